"""Embodied Perceptron: incrementally updated sparse voxel perception for robots.

What users need is here: ``from embodied_perceptron import Perceptron, RgbdFrame``. Each name is imported when it is
first asked for, so that importing the package takes no time and loads no torch.

Importing this package sets ``OMP_WAIT_POLICY=passive`` unless it is set: on a busy machine torch's spinning OpenMP
threads starve everything else. It takes effect only when this package is imported before torch.
"""

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from importlib.machinery import ModuleSpec as _ModuleSpec
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from embodied_perceptron.config import ConfigError, PerceptronConfig, load_config
    from embodied_perceptron.geometry import boxes
    from embodied_perceptron.geometry.transforms import Intrinsics
    from embodied_perceptron.perceptron import Perceptron
    from embodied_perceptron.recordings.open import open_recording
    from embodied_perceptron.recordings.recording import PosedFrameStream
    from embodied_perceptron.results import Grounding, Perception, SceneObject
    from embodied_perceptron.sensors import frame
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


class _Alias(_ModuleType):
    """A public module whose contents live elsewhere: ``import embodied_perceptron.boxes`` works, and imports no more
    than an empty file would until one of its names is asked for."""

    def __init__(self, name: str, *homes: str) -> None:
        super().__init__(f"{__name__}.{name}", f"Public names of {' and '.join(f'``{home}``' for home in homes)}.")
        self.__spec__ = _ModuleSpec(self.__name__, None)
        self.__package__ = __name__
        self._homes = homes
        _sys.modules[self.__name__] = self

    def _contents(self) -> dict[str, _Any]:
        contents: dict[str, _Any] = {}
        for home in reversed(self._homes):
            found = vars(_import_module(f"{__name__}.{home}"))
            public = {name for name, value in found.items() if name[0] != "_" and not isinstance(value, _ModuleType)}
            contents |= {name: found[name] for name in public}
        return contents

    def __getattr__(self, name: str) -> _Any:
        if name == "__all__":
            return sorted(self._contents())
        if not name.startswith("_"):  # tools that walk through sys.modules ask for these: nothing is loaded
            contents = self._contents()
            if name in contents:
                return contents[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._contents()})


if not TYPE_CHECKING:
    boxes = _Alias("boxes", "geometry.boxes", "geometry.suppression")
    frame = _Alias("frame", "sensors.frame")


def __getattr__(name: str) -> _Any:
    if name in _HOMES:
        value = globals()[name] = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
