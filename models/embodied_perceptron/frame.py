"""Public names of ``sensors.frame``."""

from embodied_perceptron.sensors.frame import *  # noqa: F403
