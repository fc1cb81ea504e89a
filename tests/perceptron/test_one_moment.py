"""Queries are about one moment, and about the world as it lies now."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.online_world import Boxes, K, config, look_at, perceptron, photograph, walk

from embodied_perceptron.geometry.transforms import invert_transform, make_transform
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Grounding, GroundingStatus
from embodied_perceptron.scene.live_map import LiveMap
from embodied_perceptron.sensors.frame import PosedFrame

HERE: Boxes = (
    (np.array([0.9, -0.9, 0.0]), np.array([1.5, -0.3, 0.7])),
    (np.array([0.9, 0.5, 0.0]), np.array([1.5, 1.1, 0.7])),
)
THERE: Boxes = tuple((low * [-1, 1, 1] - [0.6, 0, 0], high * [-1, 1, 1] + [0.6, 0, 0]) for low, high in HERE)
RED, BLUE = (230, 20, 20), (20, 20, 230)
QUESTION = "the red chair"


def painted(posed: PosedFrame, boxes: Boxes) -> PosedFrame:
    """The first box red, the second blue, all else grey."""
    frame = posed.frame
    v, u = np.mgrid[: K.height, : K.width]
    rays = np.stack([(u - K.cx) / K.fx, (v - K.cy) / K.fy, np.ones(u.shape)], axis=-1)
    T = posed.T_world_camera
    points = (rays * frame.depth_m[..., None]) @ T[:3, :3].T + T[:3, 3]
    color = np.full((K.height, K.width, 3), 128, np.uint8)
    for (low, high), paint in zip(boxes, (RED, BLUE), strict=True):
        color[((points > low - 0.02) & (points < high + 0.02)).all(axis=-1)] = paint
    return PosedFrame(dataclasses.replace(frame, color=color), T)


def room(boxes: Boxes) -> Perceptron:
    """Two chairs, as a user says, in a map without a network."""
    it = Perceptron(config(max_count=20))
    middle = np.mean([0.5 * (low + high) for low, high in boxes], axis=0)
    side = np.sign(middle[0])
    stamp_ns = 0
    for y in np.linspace(-1.2, 1.2, 9):
        for x in (-0.9 * side, 0.1 * side):
            stamp_ns += 200_000_000
            T = look_at(np.array([x, y, 1.5]), middle * [1, 0.6, 0.5])
            it.integrate(painted(photograph(T, stamp_ns, boxes), boxes))
    for _ in range(3):
        it.perceive()
    for low, high in boxes:
        center = 0.5 * (low + high)
        nearest = min(it.objects, key=lambda o: float(np.linalg.norm(o.box[:3] - center)))
        assert np.linalg.norm(nearest.box[:3] - center) < 0.2
        it.correct_object(nearest.id, "chair")
    return it


def answered(answer: Grounding) -> tuple[int, list[list[float]]]:
    return answer.status, [np.round(o.box, 6).tolist() for o in answer.candidates]


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("maps")
    paths = folder / "here.safetensors", folder / "there.safetensors"
    for path, boxes in zip(paths, (HERE, THERE), strict=True):
        room(boxes).save(path)
    return paths


class Interrupted:
    """Calls ``action`` once, before the n-th time that something of the live map is read.

    (A trace of instructions would be finer, but Python 3.11 may repeat one for ever when the trace is taken back.)
    """

    def __init__(self, live_map: LiveMap, number: int, action: Callable[[], None]) -> None:
        self._map, self._left, self._action, self.done = live_map, number, action, False

    def __enter__(self) -> Interrupted:
        def read(live_map: LiveMap, name: str) -> Any:
            if not self.done:
                self._left -= 1
                if self._left < 0:
                    self.done = True
                    self._action()
            return object.__getattribute__(live_map, name)

        self._map.__class__ = type("Watched", (LiveMap,), {"__getattribute__": read})
        return self

    def __exit__(self, *_: object) -> None:
        self._map.__class__ = LiveMap


def test_an_answer_is_of_one_moment_wherever_the_scene_is_replaced(maps):
    """Between any two looks at the map another one may be published: the answer is that of one or of the other."""
    it = Perceptron(config(max_count=20))

    def show(path: Path) -> None:
        it.load(path)
        it.recall()

    expected = []
    for path in maps:
        show(path)
        answer = it.ground(QUESTION)
        assert answer.status == GroundingStatus.FOUND
        expected.append(answered(answer))
    assert expected[0] != expected[1]
    seen = set()
    for number in range(64):
        show(maps[0])
        with Interrupted(it.map, number, lambda: show(maps[1])) as interruption:
            answer = it.ground(QUESTION)
        assert answered(answer) in expected, f"before look {number}"
        seen.add(expected.index(answered(answer)))
        if not interruption.done:  # it looked fewer times
            break
    else:
        raise AssertionError("it looks at the map more than 64 times for one answer")
    assert seen == {0, 1}


def test_colours_are_those_of_the_corrected_world():
    it = room(HERE)
    before = it.ground(QUESTION)
    assert before.status == GroundingStatus.FOUND
    shift = make_transform(np.eye(3), np.array([0.64, -1.28, 0.0]))
    it.correct_keyframes({name: shift @ T for name, T in it.keyframe_poses().items()})
    after = it.ground(QUESTION)
    assert after.status == GroundingStatus.FOUND
    assert after.candidates[0].id == before.candidates[0].id
    np.testing.assert_allclose(after.candidates[0].box[:3], before.candidates[0].box[:3] + shift[:3, 3], atol=1e-6)
    back = invert_transform(shift)
    it.correct_keyframes({name: back @ T for name, T in it.keyframe_poses().items()})
    assert it.ground(QUESTION).candidates[0].id == before.candidates[0].id


def test_what_cannot_move_with_the_world_is_gone_until_the_next_perception():
    it = perceptron(max_count=20)
    for frame in walk(23, 6):
        it.integrate(frame)
    seen = it.perceive()
    thing = (*seen.objects, *seen.tentative)[0]
    assert it.prediction is not None
    shift = make_transform(np.eye(3), np.array([1.28, 0.0, 0.0]))
    it.correct_keyframes({name: shift @ T for name, T in it.keyframe_poses().items()})
    assert it.prediction is None  # neural candidates would lie in the old world
    assert it.approach(thing) is None
    it.perceive()
    assert it.prediction is not None
    assert it.map.published.grid is not None


def test_what_is_cleared_is_gone_at_once_from_all_that_queries_read():
    it = room(HERE)
    low, high = HERE[1]
    box = np.array([*(0.5 * (low + high)), *(high - low + 0.3), 0.0, 0.0, 0.0])
    inside = np.abs(it.map.published.voxels.mean_point_m - box[:3]) < 0.5 * box[3:6] - 0.04
    assert inside.all(axis=1).sum() > 50
    assert it.clear_box(box) > 0
    inside = np.abs(it.map.published.voxels.mean_point_m - box[:3]) < 0.5 * box[3:6] - 0.04
    assert not inside.all(axis=1).any()
    assert {o.id for o in it.ground("the chairs").candidates} == {o.id for o in it.objects if o.label == "chair"}
    assert len(it.ground("the chairs").candidates) == 1
    it.reset()
    assert it.map.published.objects == ()
    assert it.map.published.voxels is it.map.published.grid is it.prediction is None
