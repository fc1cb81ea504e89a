"""Parametric furniture families: each function makes one :class:`objects.ObjectModel` from a random generator."""
