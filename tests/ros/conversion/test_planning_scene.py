"""Objects in MoveIt's planning scene: a receiver that applies the differences has the objects of the map.

moveit_msgs has no wheels. Where it is not installed, classes with the fields of its messages stand in.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("vision_msgs")
pytest.importorskip("embodied_perceptron_msgs")

from geometry_msgs.msg import Pose
from std_msgs.msg import Header

from embodied_perceptron.results import SceneObject
from embodied_perceptron_ros.conversion.objects import box_pose
from embodied_perceptron_ros.conversion.planning_scene import PlanningScenes
from embodied_perceptron_ros.conversion.values import pose_to_matrix

pytestmark = pytest.mark.ros


@dataclass
class CollisionObject:
    ADD: ClassVar[bytes] = b"\x00"
    REMOVE: ClassVar[bytes] = b"\x01"
    APPEND: ClassVar[bytes] = b"\x02"
    MOVE: ClassVar[bytes] = b"\x03"
    header: Header = field(default_factory=Header)
    pose: Pose = field(default_factory=Pose)
    id: str = ""
    type: Any = field(default_factory=lambda: SimpleNamespace(key="", db=""))
    primitives: list = field(default_factory=list)
    primitive_poses: list = field(default_factory=list)
    operation: bytes = b"\x00"


@dataclass
class PlanningScene:
    is_diff: bool = False
    robot_state: Any = field(default_factory=lambda: SimpleNamespace(is_diff=False))
    world: Any = field(default_factory=lambda: SimpleNamespace(collision_objects=[]))


@dataclass
class SolidPrimitive:
    BOX: ClassVar[int] = 1
    type: int = 0
    dimensions: list = field(default_factory=list)


@pytest.fixture
def scenes(monkeypatch) -> PlanningScenes:
    for package, classes in (("moveit_msgs", (CollisionObject, PlanningScene)), ("shape_msgs", (SolidPrimitive,))):
        try:
            __import__(f"{package}.msg")
        except ImportError:
            whole, messages = ModuleType(package), ModuleType(f"{package}.msg")
            for kind in classes:
                setattr(messages, kind.__name__, kind)
            whole.msg = messages
            monkeypatch.setitem(sys.modules, package, whole)
            monkeypatch.setitem(sys.modules, f"{package}.msg", messages)
    return PlanningScenes()


class Receiver:
    """Applies differences as MoveIt does: ADD replaces, MOVE and REMOVE need an object that is there."""

    def __init__(self) -> None:
        self.there: dict[str, tuple[np.ndarray, tuple[float, ...], str, str]] = {}  # pose, size, label, frame

    def apply(self, scene) -> list[bytes]:
        assert scene.is_diff
        assert scene.robot_state.is_diff
        done = []
        for change in scene.world.collision_objects:
            done.append(change.operation)
            T, frame = pose_to_matrix(change.pose), change.header.frame_id
            if change.operation == change.ADD:
                (solid,), (own,) = change.primitives, change.primitive_poses
                assert solid.type == solid.BOX
                np.testing.assert_allclose(pose_to_matrix(own), np.eye(4))
                self.there[change.id] = T, tuple(solid.dimensions), change.type.key, frame
            elif change.operation == change.MOVE:
                assert not change.primitives
                self.there[change.id] = (T, *self.there[change.id][1:])
            else:
                assert change.operation == change.REMOVE
                del self.there[change.id]
        return done

    def assert_has(self, objects, frame, T_out_world) -> None:
        assert set(self.there) == {f"object_{o.id}" for o in objects}
        for item in objects:
            T, size_m, label, in_frame = self.there[f"object_{item.id}"]
            assert (label, in_frame) == (item.label, frame)
            np.testing.assert_allclose(T, box_pose(item.box, T_out_world), atol=0.021)
            np.testing.assert_allclose(size_m, item.box[3:6], atol=0.011)


def thing(number: int, x_m: float = 0.0, size_m: float = 1.0, yaw: float = 0.0, label: str = "chair") -> SceneObject:
    return SceneObject(number, label, 0.9, np.array([x_m, 2.0, 0.5, size_m, 0.5, 1.0, yaw, 0.0, 0.0]))


ADD, REMOVE, MOVE = CollisionObject.ADD, CollisionObject.REMOVE, CollisionObject.MOVE


@pytest.mark.parametrize(
    ("after", "operations"),
    [
        (thing(7), []),
        (thing(7, x_m=0.005), []),
        (thing(7, x_m=0.3), [MOVE]),
        (thing(7, yaw=0.2), [MOVE]),
        (thing(7, size_m=1.2), [ADD]),
        (thing(7, label="stool"), [ADD]),
        (None, [REMOVE]),
        (thing(8), [ADD, REMOVE]),
    ],
)
def test_one_change_is_one_operation(scenes, after, operations):
    receiver = Receiver()
    assert receiver.apply(scenes.difference([thing(7)], 1, "map")) == [ADD]
    scene = scenes.difference([] if after is None else [after], 2, "map")
    assert ([] if scene is None else receiver.apply(scene)) == operations


def test_a_new_subscriber_and_another_frame_get_everything(scenes):
    late = Receiver()
    scenes.difference([thing(1), thing(2)], 1, "map")
    assert late.apply(scenes.difference([thing(1), thing(2)], 2, "map", everything=True)) == [ADD, ADD]
    assert late.apply(scenes.difference([thing(1), thing(2)], 3, "odom")) == [ADD, ADD]
    late.assert_has([thing(1), thing(2)], "odom", None)


def test_small_steps_are_not_lost(scenes):
    receiver = Receiver()
    for step in range(30):
        scene = scenes.difference([thing(1, x_m=0.004 * step)], step, "map")
        if scene is not None:
            receiver.apply(scene)
        receiver.assert_has([thing(1, x_m=0.004 * step)], "map", None)


@pytest.mark.parametrize("seed", range(3))
def test_a_receiver_follows_random_lives(scenes, seed):
    rng, receiver, objects = np.random.default_rng(seed), Receiver(), {}
    T_out_world = np.eye(4)
    for stamp_ns in range(60):
        for number in rng.integers(0, 12, 3).tolist():
            what = rng.integers(0, 5)
            if number not in objects:
                objects[number] = thing(number, *rng.uniform(0.2, 2.0, 2))
            elif what == 0:
                del objects[number]
            elif what == 1:
                objects[number] = replace(objects[number], label=("chair", "table")[rng.integers(0, 2)])
            else:
                step = rng.normal(0.0, (0.001, 0.1)[what % 2], 9)
                objects[number] = replace(objects[number], box=np.maximum(objects[number].box + step, 0.05))
        if stamp_ns % 20 == 19:  # localisation corrects
            T_out_world = T_out_world.copy()
            T_out_world[:3, 3] += rng.normal(0.0, 0.5, 3)
        scene = scenes.difference(list(objects.values()), stamp_ns, "map", T_out_world, everything=stamp_ns == 30)
        if scene is not None:
            receiver.apply(scene)
        receiver.assert_has(objects.values(), "map", T_out_world)
