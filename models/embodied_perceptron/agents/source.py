"""Source of the scene of an agent's tools: a saved map; the ROS package adds a running node."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Grounding, Perception


class SceneUnavailableError(RuntimeError):
    """No scene is available: the node is not running or does not answer in time. The message says what to do."""


class SceneSource(Protocol):
    """A scene for tools. Its methods are called from several threads."""

    def frame(self) -> str:
        """Name of the frame of all results: metres, z up."""
        ...

    def perception(self) -> Perception:
        """The scene at one moment. Raises :class:`SceneUnavailableError`."""
        ...

    def ground(self, sentence: str, viewpoint: NDArray[np.float64] | None) -> Grounding:
        """Answer a sentence; ``viewpoint``: (4, 4) pose of the speaker in :meth:`frame`, None = unknown (a map) or the
        robot's (a node). Raises :class:`SceneUnavailableError`, ``ValueError`` where the viewpoint is fixed."""
        ...


class MapSource:
    """A saved map."""

    def __init__(self, perceptron: Perceptron) -> None:
        self._perceptron = perceptron
        self._perception = perceptron.recall()

    def frame(self) -> str:
        """The frame of the map."""
        return "map"

    def perception(self) -> Perception:
        """The objects and voxels of the map."""
        return self._perception

    def ground(self, sentence: str, viewpoint: NDArray[np.float64] | None) -> Grounding:
        """See :meth:`.Perceptron.ground`."""
        return self._perceptron.ground(sentence, viewpoint)
