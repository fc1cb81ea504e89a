"""Metrics, one pure module each, and the evaluations that drive the deployed Perceptron."""
