"""Scenes in, figures out: the evaluations that drive the deployed perceptron, and their reports."""
