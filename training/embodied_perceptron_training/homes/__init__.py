"""Synthetic homes: geometry, rendering, camera paths, prompts."""
