"""The lifecycle node ``/perception``."""
