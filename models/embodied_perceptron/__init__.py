"""Embodied Perceptron: incrementally updated sparse voxel perception for robots.

What users need is here: ``from embodied_perceptron import Perceptron, RgbdFrame``. Each name is imported when it is
first asked for, so that importing the package takes no time and loads no torch.

Importing this package sets ``OMP_WAIT_POLICY=passive`` unless it is set: on a busy machine torch's spinning OpenMP
threads starve everything else. It takes effect only when this package is imported before torch.
"""

import os as _os
from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from embodied_perceptron import boxes, frame
    from embodied_perceptron.config import ConfigError, PerceptronConfig, load_config
    from embodied_perceptron.geometry.transforms import Intrinsics
    from embodied_perceptron.perceptron import Perceptron
    from embodied_perceptron.recordings.open import open_recording
    from embodied_perceptron.recordings.recording import PosedFrameStream
    from embodied_perceptron.results import Grounding, Perception, SceneObject
    from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

_os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.2.0"
__all__ = [
    "ConfigError",
    "Grounding",
    "Intrinsics",
    "Perception",
    "Perceptron",
    "PerceptronConfig",
    "PosedFrame",
    "PosedFrameStream",
    "RgbdFrame",
    "SceneObject",
    "boxes",
    "frame",
    "load_config",
    "open_recording",
]
_HOMES = {
    "ConfigError": "config",
    "Grounding": "results",
    "Intrinsics": "geometry.transforms",
    "Perception": "results",
    "Perceptron": "perceptron",
    "PerceptronConfig": "config",
    "PosedFrame": "sensors.frame",
    "PosedFrameStream": "recordings.recording",
    "RgbdFrame": "sensors.frame",
    "SceneObject": "results",
    "load_config": "config",
    "open_recording": "recordings.open",
}


def __getattr__(name: str) -> _Any:
    if name in ("boxes", "frame"):
        return _import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = globals()[name] = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
