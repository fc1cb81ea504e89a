"""Metrics, the runner that drives the deployed Perceptron over scenes, and their users: calibration,
recordings, suites. ``evaluate_command`` puts their commands together."""
