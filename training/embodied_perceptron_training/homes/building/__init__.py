"""Generation of furnished homes from seeds."""
