"""Sentences about objects: parsed, scored, answered."""
