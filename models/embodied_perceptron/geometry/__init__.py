"""Rigid transforms, projection, voxels and 9-DoF boxes: the only place where this arithmetic is written."""
