"""Pictures and recordings of what was perceived."""
