"""Offline side: synthetic homes, data sets, training and evaluation."""
