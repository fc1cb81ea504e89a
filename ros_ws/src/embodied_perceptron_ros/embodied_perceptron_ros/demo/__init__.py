"""The demonstration and its simulated mission."""
