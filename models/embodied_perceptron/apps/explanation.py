"""Explanations of an object or place: detections of every source, their weights, and the result in the object map.

A :class:`PlaceRecorder` records the perceptions of a replay. :func:`explain` lists the boxes of the network in each
perception, the detections of each 2-D detector in each view, how they were weighed, and the history in the object map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.detection2d.association import LiftedView, pixels_of
from embodied_perceptron.detection2d.fusion import Hypothesis, surface_in
from embodied_perceptron.detection2d.lifting import lift_view
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.geometry.boxes import box_iou, points_in_boxes
from embodied_perceptron.geometry.suppression import CONFLICT_IOU, thickened
from embodied_perceptron.geometry.transforms import F64, invert_transform, project, transform_points
from embodied_perceptron.inference.posterior import FEATURES, NOTHING, features
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED, Detections, Perception, SceneObject
from embodied_perceptron.scene.object_map import distinct

_NEAR_M = 0.1  # largest distance of a point from a box that it selects
_SHOWN = 5  # names
_LEAST = 0.02  # smallest probability shown
_IN_VIEW = 0.5  # share of an object's surface that a view sees, as its back is hidden


@dataclass(frozen=True, eq=False)
class Spot:
    """A place to explain: a (3,) point in the map, and the (9,) box of the object there, where one is known."""

    point_m: F64
    box: F64 | None = None

    @classmethod
    def of(cls, thing: SceneObject) -> Spot:
        """Return the place of an object."""
        return cls(thing.box[:3], thing.box)

    def rows(self, boxes: F64) -> list[int]:
        """Return the rows of (N, 9) boxes at this place: best overlap first, or the smallest box around the point."""
        if len(boxes) == 0:
            return []
        if self.box is not None:
            iou = box_iou(torch.from_numpy(thickened(boxes)), torch.from_numpy(thickened(self.box[None]))).numpy()[:, 0]
            return [int(i) for i in np.argsort(-iou, kind="stable") if iou[i] >= CONFLICT_IOU]
        wide = boxes.copy()
        wide[:, 3:6] += 2 * _NEAR_M
        inside = points_in_boxes(torch.from_numpy(self.point_m[None]), torch.from_numpy(wide)).numpy()[0]
        size = boxes[:, 3:6].prod(axis=1)
        return [int(i) for i in np.argsort(size, kind="stable") if inside[i]]


@dataclass
class PlaceRecorder:
    """Record of every perception; :meth:`record` is a callback for :class:`ObservedPerceptron`.

    Attributes:
        perceptions: (stamp, boxes by stage, objects of any state) of each.
    """

    perceptions: list[tuple[int, dict[str, Detections], tuple[SceneObject, ...]]] = field(default_factory=list)

    def record(self, perceptron: Perceptron, perception: Perception) -> None:
        """Add one perception."""
        objects = (*perception.objects, *perception.tentative, *perception.stale)
        self.perceptions.append((perception.stamp_ns, perceptron.trace, objects))


class ObservedPerceptron(Perceptron):
    """A perceptron that calls ``on_perception`` with itself and the result after every perception."""

    on_perception: Callable[[Perceptron, Perception], None]

    def perceive(
        self, now_ns: int | None = None, window_m: float | None = None, *, confirm: bool = False
    ) -> Perception:
        """See :meth:`Perceptron.perceive`."""
        perception = super().perceive(now_ns, window_m, confirm=confirm)
        self.on_perception(self, perception)
        return perception

    @staticmethod
    def observed_by(
        on_perception: Callable[[Perceptron, Perception], None], config: PerceptronConfig
    ) -> ObservedPerceptron:
        """Build one from a configuration. Raises as :meth:`Perceptron.from_config`."""
        perceptron = ObservedPerceptron.from_config(config)
        assert isinstance(perceptron, ObservedPerceptron)
        perceptron.on_perception = on_perception
        return perceptron


def explain(perceptron: Perceptron, perception: Perception, recorder: PlaceRecorder, spot: Spot) -> list[str]:
    """Explain a place in lines of text, the verdict first.

    Args:
        perceptron: holds the map, after its last perception.
        perception: the last perception.
        recorder: record of all perceptions.
        spot: the place.
    """
    objects = (*perception.objects, *perception.tentative, *perception.stale)
    there = [objects[i] for i in spot.rows(np.array([o.box for o in objects]).reshape(-1, 9))]
    lines = [_verdict(perceptron, perception, there, spot)]
    lines += ["", "in each perception: network -> network and detectors -> object map"]
    first_ns = recorder.perceptions[0][0] if recorder.perceptions else 0
    lines += [_perception_line(entry, spot, first_ns) for entry in recorder.perceptions]
    if perceptron.lift is not None:
        lines += ["", "in each view of a 2-D detector"]
        lines += _views(perceptron.lift, perception, spot)
        lines += ["", "how it is weighed: log-likelihoods of each name"]
        for place in perceptron.lift.hypotheses:
            if spot.rows(place.box[None]):
                lines += _weighed(perceptron.lift, place)
    lines += ["", "in the object map"]
    lines += [_history(perceptron, thing) for thing in there] or ["  nothing"]
    return lines


def _verdict(perceptron: Perceptron, perception: Perception, there: Sequence[SceneObject], spot: Spot) -> str:
    if there:
        thing = there[0]
        history = perceptron.map.history(thing.id)
        text = f"{thing.label} {thing.id}, {thing.state}, score {thing.score:.2f}"
        found_in = f"found in {history.found} of {history.looks} perceptions"
        if history.user_label:
            return f"{text}: a user gave it this label; {found_in}"
        if thing.state == "confirmed" and thing.label != UNNAMED:
            return f"{text}: {found_in}, mostly under this name"
        if thing.state == "confirmed":
            return f"{text}: something exists there ({history.exists:.2f}), but no name has half of the probability"
        return f"{text}: {found_in}, correct with {history.right:.2f}"
    removed = [c for c in perceptron.map.corrections() if not c.label and spot.rows(c.box[None])]
    if removed:
        return f"no object: a user removed {removed[-1].was} {removed[-1].id} there"
    found = list(perceptron.trace.values())[-1] if perceptron.trace else None
    rows = [] if found is None else spot.rows(found.boxes)
    if found is None or not rows:
        near = np.linalg.norm(perception.voxels.mean_point_m - spot.point_m, axis=1)
        if not len(near) or near.min() > 2 * _NEAR_M:
            return "no object: the map has no surface there"
        return "no object: neither the network nor a detector has a box there"
    best = max(rows, key=lambda i: found.scores[i])
    name = f"{found.labels[best]} {found.scores[best]:.2f}"
    least = perceptron.grounder.scores
    if found.scores[best] < least.publish:
        return f"no object: the best box there is {name}, below the threshold {least.publish:.2f}"
    kept = distinct(found.above(least.keep), perception.voxels, perceptron.config.objects.tracking.association)
    if not spot.rows(kept.boxes):
        return f"no object: the best box there ({name}) overlaps a better box of another object"
    return f"no object: {name} was found there, and the map assigned it to another object"


def _perception_line(
    entry: tuple[int, dict[str, Detections], tuple[SceneObject, ...]], spot: Spot, first_ns: int
) -> str:
    stamp_ns, trace, objects = entry
    stages = list(trace)
    found = [_names(trace[stages[0]], spot)] if stages else ["no prediction"]
    if "lift" in trace:
        found.append(_names(trace["lift"], spot))
    rows = spot.rows(np.array([o.box for o in objects]).reshape(-1, 9))
    known = [f"{objects[i].label} {objects[i].id} {objects[i].state} {objects[i].score:.2f}" for i in rows[:2]]
    return f"  {(stamp_ns - first_ns) * 1e-9:6.1f} s  " + " -> ".join([*found, ", ".join(known) or "no object"])


def _names(found: Detections, spot: Spot) -> str:
    best: dict[str, float] = {}
    for i in spot.rows(found.boxes):
        best[found.labels[i]] = max(best.get(found.labels[i], 0.0), float(found.scores[i]))
    order = sorted(best, key=lambda name: -best[name])[:_SHOWN]
    return ", ".join(f"{name} {best[name]:.2f}" for name in order if best[name] >= _LEAST) or "nothing"


def _views(lift: DetectionLift, perception: Perception, spot: Spot) -> list[str]:
    """List the detections of the place in each view, and their lifting."""
    if not lift.views:
        return ["  there are none"]
    box = np.array([*spot.point_m, 0.3, 0.3, 0.3, 0.0, 0.0, 0.0]) if spot.box is None else spot.box
    (surface,) = surface_in(box[None], perception.voxels)
    lines, undetected = [], {"in view": 0, "hidden or cut": 0}
    for view in lift.views:
        found = _in_view(lift, view, box)
        full = surface is not None and pixels_of(surface, *view.camera, view.frame.depth_m)[1].mean() >= _IN_VIEW
        if found:
            lines.append(f"  keyframe {view.key} {view.source}: {'; '.join(found)}")
        else:
            undetected["in view" if full else "hidden or cut"] += 1
    return [*lines, *(f"  no detection in {n} views in which it is {how}" for how, n in undetected.items() if n)]


def _in_view(lift: DetectionLift, view: LiftedView, box: F64) -> list[str]:
    """List the 2-D detections around the centre of a (9,) box in one view, each with the result of its lifting."""
    camera = transform_points(invert_transform(view.T_world_camera), box[None, :3])
    uv, inside = project(camera, view.frame.intrinsics)
    if not inside[0]:
        return []
    found = view.found
    lifted = {d.row: d for d in view.lifted}
    lines = []
    for row in range(len(found)):
        left, top, right, bottom = found.boxes_px[row]
        if not (left <= uv[0, 0] <= right and top <= uv[0, 1] <= bottom):
            continue
        name = f"{found.labels[row]} {found.scores[row]:.2f}"
        if row in lifted:
            apart_m = float(np.linalg.norm(lifted[row].box[:3] - box[:3]))
            lines.append(f"{name}, lifted {apart_m:.2f} m from its centre")
        else:
            _, drops = lift_view(
                found.take(np.array([row])), view.frame, view.T_world_camera, lift.floor_z_m, lift.priors
            )
            lines.append(f"{name}, not lifted ({', '.join(drops) or 'no surface of the map'})")
    return lines


def _weighed(lift: DetectionLift, place: Hypothesis) -> list[str]:
    model = lift.detector_model
    prior = place.prior if lift.can_name else None
    states, table, offset = features(model, prior, place.evidence, place.plausibility)
    posterior = model.posterior(place.prior, place.evidence, place.plausibility, lift.can_name)
    parts = table * np.array([model.weights[name] for name in FEATURES])
    used = [k for k in range(len(FEATURES)) if np.abs(parts[:, k]).max() > 0]
    lines = ["  " + "".join(f"{head:>12s}" for head in ("", "network", *(FEATURES[k] for k in used), "probability"))]
    for row, state in enumerate(states):
        p = 1.0 - sum(posterior.values()) if state == NOTHING else posterior.get(state, 0.0)
        values = [offset[row], *parts[row, used]]
        name = "(nothing)" if state == NOTHING else "(other)" if state == UNNAMED else state
        lines.append(f"  {name[:12]:>12s}" + "".join(f"{v:12.2f}" for v in values) + f"{p:12.2f}")
    return lines


def _history(perceptron: Perceptron, thing: SceneObject) -> str:
    history = perceptron.map.history(thing.id)
    total = max(sum(history.votes.values()), 1e-9)
    order = sorted(history.votes, key=lambda name: -history.votes[name])[:_SHOWN]
    votes = ", ".join(f"{name} {history.votes[name] / total:.0%}" for name in order)
    by_user = f"labelled {history.user_label} by a user, otherwise " if history.user_label else ""
    return (
        f"  {thing.label} {thing.id}: {thing.state}; found in {history.found} of {history.looks} perceptions; exists "
        f"with {history.exists:.2f}, correct with {history.right:.2f} (mean score "
        f"{history.mean_score:.2f}); {by_user}named {votes}"
    )
