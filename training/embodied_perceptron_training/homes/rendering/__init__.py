"""Rendering of homes: materials, light, two renderers."""
