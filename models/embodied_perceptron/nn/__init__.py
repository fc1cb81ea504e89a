"""Encoders, backbone, neck and the three heads."""
