"""Frames, cameras and poses over time, and the synchronizer that joins them."""
