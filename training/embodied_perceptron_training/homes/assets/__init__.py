"""Parametric furniture families: each function makes one :class:`model.ObjectModel` from a random generator."""
