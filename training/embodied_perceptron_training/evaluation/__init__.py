"""Metrics, the runner that drives the deployed Perceptron over scenes, and what stands on both: calibration,
recordings, suites. ``evaluate_command`` puts their commands together."""
