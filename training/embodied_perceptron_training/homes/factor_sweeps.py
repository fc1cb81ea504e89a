"""Parametric evaluation after BEHAVIOR Vision Suite: videos of one target in which one factor goes from 0 to 1.

Each frame stores the requested and the measured factor. Everything else (home, other cameras, seed) is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from embodied_perceptron.geometry.transforms import F64, Intrinsics
from embodied_perceptron_training.homes.assets import furniture
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder
from embodied_perceptron_training.homes.assets.objects import PlacedObject, pose_at
from embodied_perceptron_training.homes.building.floorplan import HomeError
from embodied_perceptron_training.homes.building.freespace import FreeSpace, free_space
from embodied_perceptron_training.homes.building.home import Home
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.rendering.renderer import RenderedView, auto_gain
from embodied_perceptron_training.homes.trajectories import look_at

Factor = Literal["articulation", "lighting", "visibility", "zoom", "pitch", "orbit"]
FACTORS: tuple[Factor, ...] = ("articulation", "lighting", "visibility", "zoom", "pitch", "orbit")
_ZOOM = (0.6, 3.0)  # multiplier of the focal length
_PITCH_RAD = (-1.1, 1.1)  # elevation of the camera above the target, limited by floor and ceiling
_ORBIT_RAD = 0.9  # angle around the target, out from behind a screen
_LEAST_ORBIT_RAD = 0.4
_WELL_SEEN = 0.5  # share of the most target pixels of any free place


@dataclass(frozen=True, eq=False)
class FactorFrame:
    """One frame of a parametric video.

    Attributes:
        view: images and camera.
        level: requested factor, 0..1.
        measured: measured factor: mean state of the moving joints, mean brightness relative to full light, visible
            share of the target's pixels, focal length relative to the first frame's, elevation of the camera in
            radians.
        target_id: object id in the home.
        box9: the target's box in this frame.
        target_pixels: pixels of the target.
    """

    view: RenderedView
    level: float
    measured: float
    target_id: int
    box9: F64
    target_pixels: int


def factor_targets(home: Home, factor: Factor) -> list[int]:
    """Objects with the factor. Raises ``ValueError`` for an unknown factor."""
    if factor not in FACTORS:
        raise ValueError(f"factor must be one of {', '.join(FACTORS)}, got {factor!r}")
    standing = [o for o in home.objects if o.mounted in ("floor", "object")]
    if factor == "articulation":
        return [o.id for o in standing if o.model.joints]
    sizes = {o.id: float(np.prod(o.box9()[3:6]) ** (1 / 3)) for o in standing}
    return [o.id for o in standing if sizes[o.id] > 0.2]


def factor_sweep(home: Home, factor: Factor, target_id: int, frames: int, camera: Intrinsics) -> Iterator[FactorFrame]:
    """Frames of the sweep, the factor going from 0 to 1 in equal steps.

    Raises :class:`HomeError` when the target does not have the factor or is visible from no free place, ``ValueError``
    for fewer than two frames.
    """
    if frames < 2:
        raise ValueError(f"a video needs at least two frames, got {frames}")
    if target_id not in factor_targets(home, factor):
        raise HomeError(f"object {target_id} ({home.objects[target_id].label}) cannot show the factor {factor}")
    levels = np.linspace(0.0, 1.0, frames)
    make = {
        "articulation": _articulation,
        "lighting": _lighting,
        "visibility": _visibility,
        "zoom": _zoom,
        "pitch": _pitch,
        "orbit": _orbit,
    }[factor]
    yield from make(home, home.objects[target_id], levels, camera)


def _frame(view: RenderedView, level: float, measured: float, target: PlacedObject) -> FactorFrame:
    pixels = int((view.instance == target.id + 1).sum())
    return FactorFrame(view, float(level), float(measured), target.id, target.box9(), pixels)


def drawn_eye(home: Home, target: PlacedObject, renderer: RayCastRenderer, camera: Intrinsics, from_front: bool) -> F64:
    """(3,) free camera position, drawn deterministically among those with at least half of the most visible pixels of
    the target. Raises :class:`HomeError` when it is visible from none."""
    space = free_space(home)
    box = target.box9()
    center = box[:3]
    reach = max(1.0, 1.4 * float(np.linalg.norm(box[3:6])))
    seen: list[tuple[int, F64]] = []
    small = camera.resized(camera.width // 4, camera.height // 4)
    for xy in _around(space, center, reach):
        offset = xy - center[:2]
        if from_front and offset @ target.front[:2] < 0.5 * np.linalg.norm(offset):
            continue
        eye = np.array([xy[0], xy[1], float(np.clip(center[2] + 0.5, 1.0, 1.6))])
        _, ids = renderer.ids(small, look_at(eye, center))
        pixels = int((ids == target.id + 1).sum())
        if pixels > 0:
            seen.append((pixels, eye))
    if not seen:
        raise HomeError(f"object {target.id} ({target.label}) is not visible from any free place")
    most = max(pixels for pixels, _ in seen)
    well = [eye for pixels, eye in seen if pixels >= _WELL_SEEN * most]
    return well[int(np.random.default_rng([home.seed, 73, target.id]).integers(len(well)))]


def _around(space: FreeSpace, center: F64, reach: float) -> F64:
    points = space.center_of(space.cells())
    distance = np.linalg.norm(points - center[:2], axis=1)
    ring = points[(distance > 0.7 * reach) & (distance < 1.8 * reach)]
    thinned: F64 = ring[:: max(1, len(ring) // 40)]
    return thinned


def _articulation(home: Home, target: PlacedObject, levels: F64, camera: Intrinsics) -> Iterator[FactorFrame]:
    eye = drawn_eye(home, target, RayCastRenderer(home.render_scene()), camera, from_front=True)
    T = look_at(eye, target.box9()[:3])
    joints = moving_joints(home, target)
    for level in levels:
        moved = home
        for part in joints:
            moved = moved.with_joint(target.id, part, float(level))
        view = RayCastRenderer(moved.render_scene()).render(camera, T)
        states = moved.objects[target.id].joint_states
        yield _frame(view, level, float(np.mean([states[part] for part in joints])), moved.objects[target.id])


def moving_joints(home: Home, target: PlacedObject) -> list[str]:
    """A random subset of the target's joints, at least one; the others stay unchanged."""
    joints = sorted(target.model.joints)
    rng = np.random.default_rng([home.seed, 79, target.id])
    return sorted(rng.permutation(joints)[: int(rng.integers(1, len(joints) + 1))].tolist())


def _lighting(home: Home, target: PlacedObject, levels: F64, camera: Intrinsics) -> Iterator[FactorFrame]:
    scene = home.render_scene()
    full = RayCastRenderer(scene)
    T = look_at(drawn_eye(home, target, full, camera, from_front=False), target.box9()[:3])
    light = full.radiance(camera, T)
    reference, gain = light.mean(), auto_gain(light)
    for level in levels:
        renderer = RayCastRenderer(scene.with_light_level(float(level)))
        view = renderer.render(camera, T, gain=gain)  # fixed exposure, so that the image gets darker
        yield _frame(view, level, float(renderer.radiance(camera, T).mean() / reference), target)


def _visibility(home: Home, target: PlacedObject, levels: F64, camera: Intrinsics) -> Iterator[FactorFrame]:
    """Frames with a screen that slides between camera and target; visible share from a second render without it."""
    plain = RayCastRenderer(home.render_scene())
    box = target.box9()
    eye = drawn_eye(home, target, plain, camera, from_front=False)
    T = look_at(eye, box[:3])
    alone = plain.ids(camera, T)[1] == target.id + 1
    total = int(alone.sum())
    columns = np.nonzero(alone.any(0))[0]
    screen = furniture.divider(np.random.default_rng([home.seed, 71]), MeshBuilder())
    low, high = screen.bounds()
    to_target = box[:2] - eye[:2]
    heading = float(np.arctan2(to_target[1], to_target[0]))
    ahead = 0.45 * float(np.linalg.norm(to_target))
    # lateral position of the screen's near edge, from full (factor 0) to no (1) occlusion
    left, right = (-(columns[k] - camera.cx) / camera.fx * ahead for k in (0, -1))
    width = float(high[0] - low[0])
    for level in levels:
        edge = right + (left - right) * (1 - float(level)) + 0.01 - 0.02 * float(level)
        lateral = edge - width / 2
        place = eye[:2] + ahead * np.array([np.cos(heading), np.sin(heading)])
        place = place + lateral * np.array([-np.sin(heading), np.cos(heading)])
        # full occlusion at 0: the screen covers the view's height
        pose = pose_at((float(place[0]), float(place[1]), float(max(0.0, eye[2] - high[2] + 0.4))), heading + np.pi / 2)
        occluder = PlacedObject(len(home.objects), screen, pose, target.room)
        view = RayCastRenderer(home.render_scene([*home.objects, occluder])).render(camera, T)
        visible = int((view.instance == target.id + 1).sum())
        yield _frame(view, level, visible / max(total, 1), target)


def _zoom(home: Home, target: PlacedObject, levels: F64, camera: Intrinsics) -> Iterator[FactorFrame]:
    renderer = RayCastRenderer(home.render_scene())
    T = look_at(drawn_eye(home, target, renderer, camera, from_front=False), target.box9()[:3])
    for level in levels:
        scale = _ZOOM[0] + (_ZOOM[1] - _ZOOM[0]) * float(level)
        zoomed = replace(camera, fx=camera.fx * scale, fy=camera.fy * scale)
        yield _frame(renderer.render(zoomed, T), level, scale / _ZOOM[0], target)


def _pitch(home: Home, target: PlacedObject, levels: F64, camera: Intrinsics) -> Iterator[FactorFrame]:
    """Frames of a camera that rises on an arc around the target at a fixed distance."""
    renderer = RayCastRenderer(home.render_scene())
    center = target.box9()[:3]
    eye = drawn_eye(home, target, renderer, camera, from_front=False)
    flat = eye[:2] - center[:2]
    ceiling = home.rooms[target.room].height_m - 0.1
    distance = float(np.linalg.norm(eye - center))
    lowest = max(_PITCH_RAD[0], -np.arcsin(min(1.0, max(center[2] - 0.1, 0.0) / distance)))
    highest = min(_PITCH_RAD[1], float(np.arcsin(min(1.0, max(ceiling - center[2], 0.0) / distance))))
    direction = flat / np.linalg.norm(flat)
    for level in levels:
        angle = lowest + (highest - lowest) * float(level)
        place = center + distance * np.array([*(np.cos(angle) * direction), np.sin(angle)])
        yield _frame(renderer.render(camera, look_at(place, center)), level, angle, target)


def _orbit(home: Home, target: PlacedObject, levels: F64, camera: Intrinsics) -> Iterator[FactorFrame]:
    """Frames of a camera that moves around a target behind a screen at a fixed distance, as far as the view stays free
    of other objects; visible share from a second render without the screen. :class:`HomeError` without room."""
    plain = RayCastRenderer(home.render_scene())
    center = target.box9()[:3]
    eye = drawn_eye(home, target, plain, camera, from_front=False)
    screen = furniture.divider(np.random.default_rng([home.seed, 71]), MeshBuilder())
    to_target = center[:2] - eye[:2]
    heading = float(np.arctan2(to_target[1], to_target[0]))
    place = eye[:2] + 0.55 * to_target
    lift_m = float(max(0.0, eye[2] - screen.bounds()[1][2] + 0.4))  # covers the view's height
    pose = pose_at((float(place[0]), float(place[1]), lift_m), heading + np.pi / 2)
    occluder = PlacedObject(len(home.objects), screen, pose, target.room)
    hiding = RayCastRenderer(home.render_scene([*home.objects, occluder]))

    def camera_at(angle: float) -> F64:
        c, s = np.cos(angle), np.sin(angle)
        around = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]) @ (eye - center)
        return look_at(center + around, center)

    def pixels(renderer: RayCastRenderer, angle: float) -> int:
        return int((renderer.ids(camera, camera_at(angle))[1] == target.id + 1).sum())

    def free_arc(side: float) -> float:
        steps = side * np.arange(0.0, _ORBIT_RAD + 0.05, 0.1)
        clear = [pixels(plain, angle) >= _WELL_SEEN * pixels(plain, 0.0) for angle in steps]
        return float(steps[clear.index(False) - 1 if False in clear else -1])

    arc = max(free_arc(1.0), free_arc(-1.0), key=abs)
    if abs(arc) < _LEAST_ORBIT_RAD:
        raise HomeError(f"there is no room to go around object {target.id} ({target.label})")
    for level in levels:
        angle = arc * float(level)
        view = hiding.render(camera, camera_at(angle))
        visible = int((view.instance == target.id + 1).sum())
        yield _frame(view, level, visible / max(pixels(plain, angle), 1), target)
