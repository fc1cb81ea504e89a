"""Additional furniture families of version 2."""
