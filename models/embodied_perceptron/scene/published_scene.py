"""What readers see of the scene: one frozen value, replaced as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.inference.predictor import ScenePrediction
from embodied_perceptron.results import Detections, ObjectState, OccupancyGrid2d, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.approach import ApproachOptions, approach_pose


@dataclass(frozen=True, eq=False)
class PublishedScene:
    """The scene at one moment; all of it lies in one world. Queries read one such value and nothing else.

    A perception replaces it. What moves or changes the map replaces it at once, too, by what still holds: a part that
    cannot be brought into the new world is None until the next perception.

    Attributes:
        objects: confirmed objects.
        tentative: objects not confirmed yet.
        voxels: the map, for the colours of objects.
        prediction: of the network.
        seen: its boxes, where nothing was said of the objects since: candidates of low confidence.
        grid: for navigation.
        T_world_map: (4, 4) where all this lies in the world of the frames' poses.
    """

    objects: tuple[SceneObject, ...] = ()
    tentative: tuple[SceneObject, ...] = ()
    voxels: VoxelSnapshot | None = None
    prediction: ScenePrediction | None = None
    seen: Detections | None = None
    grid: OccupancyGrid2d | None = None
    T_world_map: NDArray[np.float64] = field(default_factory=lambda: np.eye(4))

    def with_objects(self, objects: Sequence[SceneObject], **others: Any) -> PublishedScene:
        """With other ``objects`` of any state; ``others``: further attributes to replace, by name."""
        confirmed, tentative = (
            tuple(o for o in objects if o.state == state) for state in (ObjectState.CONFIRMED, ObjectState.TENTATIVE)
        )
        return replace(self, objects=confirmed, tentative=tentative, **others)

    def approach(
        self, thing: SceneObject, robot_m: NDArray[np.float64] | None = None, robot_radius_m: float = 0.3
    ) -> NDArray[np.float64] | None:
        """(4, 4) pose on the floor to be at an object, in the map, by the grid; None = there is none.

        ``robot_m``: (2,) or (3,) where the robot is now; see :func:`~.approach.approach_pose`.
        """
        options = ApproachOptions(robot_radius_m)
        return None if self.grid is None else approach_pose(thing.box, self.grid, robot_m, options)
