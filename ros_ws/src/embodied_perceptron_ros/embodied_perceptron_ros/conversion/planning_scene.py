"""Boxes of objects as collision objects of MoveIt: moveit_msgs/PlanningScene with what has changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.results import SceneObject
from embodied_perceptron_ros.conversion.objects import box_pose
from embodied_perceptron_ros.conversion.values import make_header, matrix_to_pose

_MOVED_M, _TURNED = 0.01, 0.02  # change of a position or size in metres, or of an entry of a rotation, that is sent


class PlanningScenes:
    """Differences between objects and what was sent before.

    The id of a collision object is ``object_`` and the object's id on ``~/boxes``, and stays; its ``type.key`` is the
    label.

    Raises ``ImportError`` where the packages ``moveit_msgs`` and ``shape_msgs`` are not installed.
    """

    def __init__(self) -> None:
        from moveit_msgs.msg import CollisionObject, PlanningScene
        from shape_msgs.msg import SolidPrimitive

        self.type: type[Any] = PlanningScene
        self._object: type[Any] = CollisionObject
        self._solid: type[Any] = SolidPrimitive
        self._frame_id = ""
        self._sent: dict[int, tuple[F64, F64, str]] = {}  # (4, 4) pose, size_m, label

    def difference(
        self,
        objects: Iterable[SceneObject],
        stamp_ns: int,
        frame_id: str,
        T_out_world: F64 | None = None,
        everything: bool = False,
    ) -> Any:
        """Return the moveit_msgs/PlanningScene for a planning scene that has what was returned before; None = nothing
        has changed.

        New objects, and those whose size or label changed, are ADD, which replaces; objects of another pose are MOVE;
        those that are no longer there are REMOVE. ``everything``: all objects are ADD, for a new subscriber.
        """
        header, again = make_header(stamp_ns, frame_id), everything or frame_id != self._frame_id
        now = {o.id: (box_pose(o.box, T_out_world), np.array(o.box[3:6], np.float64), o.label) for o in objects}
        changes = []
        for number, (T, size_m, label) in now.items():
            before = self._sent.get(number)
            message = self._object(header=header, id=_id(number), pose=matrix_to_pose(T))
            if again or before is None or before[2] != label or np.abs(before[1] - size_m).max() > _MOVED_M:
                message.operation = self._object.ADD
                message.type.key = label
                dimensions = [float(edge_m) for edge_m in size_m]
                message.primitives = [self._solid(type=self._solid.BOX, dimensions=dimensions)]
                message.primitive_poses = [matrix_to_pose(np.eye(4))]
            elif np.abs(before[0] - T)[:3, 3].max() > _MOVED_M or np.abs(before[0] - T)[:3, :3].max() > _TURNED:
                message.operation = self._object.MOVE
                now[number] = T, before[1], label
            else:
                now[number] = before
                continue
            changes.append(message)
        gone = sorted(set(self._sent) - set(now))
        changes += [self._object(header=header, id=_id(n), operation=self._object.REMOVE) for n in gone]
        self._sent, self._frame_id = now, frame_id
        if not changes:
            return None
        scene = self.type(is_diff=True)
        scene.robot_state.is_diff = True  # otherwise the robot's joints are reset
        scene.world.collision_objects = changes
        return scene


def _id(number: int) -> str:
    return f"object_{number}"
