"""Recordings in (folders, bags), results out (point clouds, grids, pictures)."""
