"""Fits of the sentence reader, colours, fronts, nouns and confidence."""
