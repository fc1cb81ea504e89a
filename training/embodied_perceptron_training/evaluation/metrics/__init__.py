"""Figures of merit: pure functions of predictions and truth."""
