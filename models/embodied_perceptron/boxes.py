"""Public names of ``geometry.boxes`` and ``geometry.suppression``."""

from embodied_perceptron.geometry.boxes import *  # noqa: F403
from embodied_perceptron.geometry.suppression import *  # noqa: F403
