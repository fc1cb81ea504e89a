"""Fitting of what reads sentences: colours, fronts, confidence, reader."""
