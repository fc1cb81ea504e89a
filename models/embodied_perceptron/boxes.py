"""9-DoF boxes under their public name; they live in :mod:`embodied_perceptron.geometry.boxes`."""

from embodied_perceptron.geometry.boxes import *  # noqa: F403
