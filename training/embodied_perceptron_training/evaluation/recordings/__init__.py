"""Recordings of real rooms: hand-made labels, and scores of the published objects."""
