"""Compilation of all kernels before the first frame, so that no frame waits for the compiler.

Compiled kernels are cached on disk, next to the package or in the user's cache. :func:`compile_kernels` makes them at
set-up, every later :func:`warm_up` loads them, and :func:`is_compiled` says whether they are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.geometry.box_rays import BoxView, upright_camera, view_boxes
from embodied_perceptron.geometry.suppression import nms
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.inference.naming import names_from_boxes
from embodied_perceptron.language.colors import mean_colors
from embodied_perceptron.mapping.volume import warm_up as warm_up_volume
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings import image_codec
from embodied_perceptron.results import Detections, SemanticVoxels
from embodied_perceptron.sensors import camera_model
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sparse import incremental

if TYPE_CHECKING:
    from embodied_perceptron.inference.predictor import Predictor

_CAMERA = Intrinsics(125.0, 125.0, 79.5, 59.5, 160, 120)
# two views of the room: level, one metre above the floor, looking along x
_T_ROOM_CAMERAS = tuple(upright_camera((0.0, y_m, 1.0), 0.0, 0.0) for y_m in (0.0, 0.4))
# the walls are not parallel to an axis of the world, as on a real robot
_T_WORLD_ROOM = make_transform(np.array([[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]), np.zeros(3))
_ROOM = np.array([[-4.0, -2.0, 0.0], [2.4, 2.0, 2.5]])
# two objects side by side, for code that compares objects
_THINGS = np.array([[[1.5, -0.7, 0.0], [1.9, -0.2, 0.6]], [[1.4, 0.2, 0.0], [1.8, 0.6, 0.5]]])

_CELL = SemanticVoxels(
    0.16,
    np.zeros((1, 3), np.float32),
    np.zeros((1, 3), np.uint8),
    np.zeros(1, np.int32),
    np.zeros(1, np.float32),
    ("thing",),
)

_PASSES_UNTIL_CLEARED = 3
_STEP_NS = 1_000_000_000  # between two frames
_PACKAGE = "embodied_perceptron."


class WarmUpStoppedError(RuntimeError):
    """The warm-up was stopped."""


def warm_up(
    config: PerceptronConfig,
    inference: Predictor | None = None,
    stopped: Callable[[], bool] = lambda: False,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> None:
    """Run a small room, in which objects appear and vanish, through a scratch perceptron of the same configuration.

    Args:
        config: the configuration.
        inference: the network that will be used.
        stopped: polled before each step, as compiling may take minutes on a busy machine.
        on_step: called before each step with its number, from 1, and the number of steps.

    Raises:
        WarmUpStoppedError: ``stopped`` returned True.
    """
    steps = list(_steps(config, inference))
    for number, step in enumerate(steps, 1):
        if stopped():
            raise WarmUpStoppedError("the node was asked to stop")
        on_step(number, len(steps))
        step()
    _remember(config)


def is_compiled(config: PerceptronConfig) -> bool:
    """Return True when a :func:`warm_up` of this configuration ended here before, and neither the kernels on disk nor
    their sources have changed since."""
    mark = _mark(config)
    return mark is not None and mark.exists()


def _remember(config: PerceptronConfig) -> None:
    mark = _mark(config)
    if mark is not None:
        with contextlib.suppress(OSError):  # without the mark the next start warms up again
            mark.touch()


def _mark(config: PerceptronConfig) -> Path | None:
    """Return the path of the marker file for the kernels on disk in their current state; None where none are cached."""
    states: dict[str, Any] = {}  # of each kernel, by its index file
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE):
            for function in vars(module).values():
                cache = getattr(function, "_cache", None)
                if isinstance(function, Dispatcher) and isinstance(cache, FunctionCache):
                    file = cache._cache_file
                    states[file._index_path] = file._source_stamp, Path(file._index_path).exists()
    if not states:
        return None
    state = repr((numba.__version__, torch.__version__, config, sorted(states.items())))
    return Path(min(states)).parent / f"compiled-{hashlib.sha256(state.encode()).hexdigest()[:16]}"


def _steps(config: PerceptronConfig, inference: Predictor | None) -> Iterator[Callable[[], object]]:
    small = dataclasses.replace(config, volume=dataclasses.replace(config.volume, max_blocks=8192))
    perceptron = Perceptron(small, inference=inference)
    # on the same voxels without the network: objects are found, compared and lost whatever the network finds, and 2-D
    # detections of them are lifted
    shapes = Perceptron(small, perceptron.volume, lift=DetectionLift())
    looks = [_THINGS] * (config.objects.tracking.existence.confirm_count + 1) + [_THINGS[:0]] * _PASSES_UNTIL_CLEARED
    stamp_ns = 0
    for look, things in enumerate(looks):
        T_room_camera = _T_ROOM_CAMERAS[look % 2]
        view = view_boxes(T_room_camera, _CAMERA, things, _ROOM)
        found = _detections(view, len(things), stamp_ns + _STEP_NS)  # of the first frame, which becomes a keyframe
        for writable in (False, True) * config.volume.min_hits:
            # kernels are compiled for read-only images, which share the memory of a message, and for converted ones
            color = np.zeros((*view.box.shape, 3), np.uint8)
            color.setflags(write=writable)
            stamp_ns += _STEP_NS
            frame = RgbdFrame(stamp_ns, "warm_up", color, view.depth_m.astype(np.float32), _CAMERA)
            yield partial(perceptron.integrate, PosedFrame(frame, _T_WORLD_ROOM @ T_room_camera))
        yield partial(shapes.add_detections, found)
        yield partial(shapes.perceive, stamp_ns)
        yield perceptron.perceive
    yield partial(perceptron.perceive, window_m=math.inf)  # a small window may miss the room
    yield partial(perceptron.ground, "the chair next to the table")
    # kernels that only some scenes need: incremental passes, spilled blocks, overlapping boxes, names of cells, colours
    yield incremental.compile_kernels
    yield warm_up_volume
    boxes = np.array([[1.5, 0.0, 0.3, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0], [1.6, 0.0, 0.3, 0.5, 0.5, 0.5, 0.1, 0.0, 0.0]])
    yield partial(nms, torch.from_numpy(boxes), torch.tensor([0.9, 0.8]), torch.zeros(2, dtype=torch.int64), 0.5)
    yield partial(names_from_boxes, _CELL, Detections(boxes[:1], np.ones(1), _CELL.classes))
    yield camera_model.compile_kernels
    yield image_codec.compile_kernels
    yield lambda: mean_colors(shapes.perceive(stamp_ns).voxels, boxes)


def compile_kernels(on_step: Callable[[int, int], None] = lambda step, steps: None) -> None:
    """Compile and cache every kernel of the default configuration, with the shipped network and without one.

    Takes about a minute after an installation, seconds later. ``on_step`` as in :func:`warm_up`.
    """
    config = PerceptronConfig()
    inference = Perceptron.from_config(config).inference
    warm_up(config, inference, on_step=on_step)


def _detections(view: BoxView, count: int, stamp_ns: int) -> Detections2d:
    """2-D detections of the ``count`` objects of a view, by the pixels that show each."""
    pixels = [np.argwhere(view.box == number)[:, ::-1] for number in range(count)]  # u, v
    boxes_px = np.array([[*p.min(axis=0), *(p.max(axis=0) + 1)] for p in pixels], float).reshape(-1, 4)
    return Detections2d("warm_up", stamp_ns, boxes_px, np.full(count, 0.9), ("box",) * count)
