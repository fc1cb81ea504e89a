"""From a seed to a furnished home."""
