"""2-D to 3-D: boxes or masks of any 2-D detector, lifted into the map as one more source for the same objects."""
