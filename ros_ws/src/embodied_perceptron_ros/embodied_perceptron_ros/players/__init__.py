"""Recordings played on real topics."""
