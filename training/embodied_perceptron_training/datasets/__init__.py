"""Readers of EmbodiedScan-style data sets, synthetic and real."""
