"""Where an agent's tools take the scene from: a saved map here, a running node through the ROS package."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Grounding, Perception


class SceneUnavailableError(RuntimeError):
    """There is no scene (yet): the node is not running, or does not answer in time. The message says what to do."""


class SceneSource(Protocol):
    """A scene that tools ask about. Its methods are called from several threads."""

    def frame(self) -> str:
        """Name of the frame in which all that the source gives lies: metres, z up."""
        ...

    def perception(self) -> Perception:
        """The scene at one moment. Raises :class:`SceneUnavailableError`."""
        ...

    def ground(self, sentence: str, viewpoint: NDArray[np.float64] | None) -> Grounding:
        """The answer to a sentence; ``viewpoint``: (4, 4) pose of the speaker in :meth:`frame`, None = unknown (a map)
        or the robot's (a node). Raises :class:`SceneUnavailableError`, ``ValueError`` where the viewpoint cannot be
        chosen."""
        ...


class MapSource:
    """A saved map, as it was opened."""

    def __init__(self, perceptron: Perceptron) -> None:
        self._perceptron = perceptron
        self._perception = perceptron.recall()

    def frame(self) -> str:
        """A saved map lies in a frame of its own."""
        return "map"

    def perception(self) -> Perception:
        """What the map holds."""
        return self._perception

    def ground(self, sentence: str, viewpoint: NDArray[np.float64] | None) -> Grounding:
        """See :meth:`.Perceptron.ground`."""
        return self._perceptron.ground(sentence, viewpoint)
