"""RGB-D frames under their public name; they live in :mod:`embodied_perceptron.sensors.frame`."""

from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame, canonical_depth

__all__ = ["PosedFrame", "RgbdFrame", "canonical_depth"]
