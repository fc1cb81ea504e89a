"""One narrow sparse-convolution interface with MinkowskiEngine's semantics."""
