"""Pictures of what was perceived; :mod:`embodied_perceptron.viewer` gathers what users call."""
