"""Embodied Perceptron: incrementally updated sparse voxel perception for robots.

Importing this package sets ``OMP_WAIT_POLICY=passive`` unless it is set: on a busy machine torch's spinning OpenMP
threads starve everything else. It takes effect only when this package is imported before torch.
"""

import os as _os

_os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.2.0"
