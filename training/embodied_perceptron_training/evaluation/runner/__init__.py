"""Scenes in, figures out: the evaluations that drive the deployed perceptron, their commands and reports."""
