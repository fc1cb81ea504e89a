"""Geometry alone: cells, floor, walls, and what stands in between."""
