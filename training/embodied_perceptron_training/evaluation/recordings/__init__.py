"""Recordings of real rooms: labels by hand, and what is published about them against these."""
