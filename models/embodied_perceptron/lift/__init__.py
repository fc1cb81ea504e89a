"""Boxes or masks of any 2-D detector, lifted into the map: an open-vocabulary source for the same objects."""
