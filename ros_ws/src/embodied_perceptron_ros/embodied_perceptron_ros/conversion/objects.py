"""Messages of objects and answers: detections, markers, grounding results. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import embodied_perceptron_msgs.msg
import numpy as np
import torch
from embodied_perceptron_msgs.msg import GroundedPhrase as GroundedPhraseMessage
from embodied_perceptron_msgs.msg import GroundingResult
from geometry_msgs.msg import Point, PoseStamped, Vector3
from std_msgs.msg import ColorRGBA
from vision_msgs.msg import (
    BoundingBox3D,
    Detection3D,
    Detection3DArray,
    ObjectHypothesis,
    ObjectHypothesisWithPose,
)
from visualization_msgs.msg import Marker, MarkerArray

from embodied_perceptron.geometry.boxes import BOX_EDGES, CORNER_SIGNS, euler_to_matrix, matrix_to_euler
from embodied_perceptron.geometry.transforms import F64, make_transform
from embodied_perceptron.language.query import Query
from embodied_perceptron.results import (
    UNNAMED,
    EventKind,
    GroundedPhrase,
    Grounding,
    GroundingStatus,
    ObjectEvent,
    SceneObject,
)
from embodied_perceptron.visualization.drawing import color_of_class, label_of, shortened
from embodied_perceptron_ros.conversion.values import make_header, matrix_to_pose, pose_to_matrix, stamp_to_ns

_UNIT_CORNERS = 0.5 * CORNER_SIGNS.numpy().astype(np.float64)
MarkerKey = tuple[str, int]  # namespace, id
# None where the interface package was built before it had the message: make setup, or colcon build
ObjectEventMessage: Any = getattr(embodied_perceptron_msgs.msg, "ObjectEvent", None)


# --------------------------------------------------------------------------------------------------------------------
# boxes


def box_pose(box: F64, T_out_world: F64 | None = None) -> F64:
    """(9,) box -> (4, 4) pose of its centre, moved by ``T_out_world``."""
    T = make_transform(euler_to_matrix(torch.from_numpy(np.asarray(box[6:9], np.float64))).numpy(), box[:3])
    return T if T_out_world is None else T_out_world @ T


def box_to_message(box: F64, T_out_world: F64 | None = None) -> BoundingBox3D:
    """(9,) box -> vision_msgs/BoundingBox3D."""
    dx, dy, dz = (float(v) for v in box[3:6])
    return BoundingBox3D(center=matrix_to_pose(box_pose(box, T_out_world)), size=Vector3(x=dx, y=dy, z=dz))


def message_to_box(message: BoundingBox3D, T_world_in: F64 | None = None) -> F64:
    """vision_msgs/BoundingBox3D -> (9,) box. Raises ``ValueError`` for a bad pose or a size that is not positive."""
    size = np.array([message.size.x, message.size.y, message.size.z])
    if not (np.isfinite(size).all() and (size > 0).all()):
        raise ValueError(f"box size must be three positive numbers, got {size.tolist()}")
    T = pose_to_matrix(message.center)
    if T_world_in is not None:
        T = T_world_in @ T
    return np.concatenate([T[:3, 3], size, matrix_to_euler(torch.from_numpy(T[:3, :3].copy())).numpy()])


# --------------------------------------------------------------------------------------------------------------------
# detections


def object_to_detection(item: SceneObject, stamp_ns: int, frame_id: str, T_out_world: F64 | None = None) -> Detection3D:
    """Object -> vision_msgs/Detection3D: ``id`` is the persistent id; ``results`` are the published label and score,
    then other names (:attr:`.SceneObject.names`), best first."""
    box = box_to_message(item.box, T_out_world)
    others = [(name, p) for name, p in item.names if name != item.label]
    results = []
    for name, score in ((item.label, item.score), *others):
        result = ObjectHypothesisWithPose(hypothesis=ObjectHypothesis(class_id=name, score=float(score)))
        result.pose.pose = box.center
        results.append(result)
    return Detection3D(header=make_header(stamp_ns, frame_id), results=results, bbox=box, id=str(item.id))


def detection_to_object(detection: Detection3D) -> SceneObject:
    """vision_msgs/Detection3D -> object in the detection's frame. Raises ``ValueError`` without a hypothesis."""
    if not detection.results:
        raise ValueError(f"detection {detection.id!r} has no hypothesis")
    hypotheses = [(result.hypothesis.class_id, float(result.hypothesis.score)) for result in detection.results]
    label, score = hypotheses[0]
    names = tuple(pair for pair in hypotheses if pair[0] != UNNAMED)
    return SceneObject(int(detection.id), label, score, message_to_box(detection.bbox), names=names)


def objects_to_detections(
    objects: Iterable[SceneObject], stamp_ns: int, frame_id: str, T_out_world: F64 | None = None
) -> Detection3DArray:
    """Objects -> vision_msgs/Detection3DArray."""
    detections = [object_to_detection(o, stamp_ns, frame_id, T_out_world) for o in objects]
    return Detection3DArray(header=make_header(stamp_ns, frame_id), detections=detections)


def conditions_to_detections(
    objects: Iterable[SceneObject], stamp_ns: int, frame_id: str, T_out_world: F64 | None = None
) -> Detection3DArray:
    """Objects with a known condition -> vision_msgs/Detection3DArray, with the condition ("open") as class."""
    known = [replace(o, label=o.condition, names=()) for o in objects if o.condition]
    return objects_to_detections(known, stamp_ns, frame_id, T_out_world)


def detections_to_objects(message: Detection3DArray) -> tuple[SceneObject, ...]:
    """vision_msgs/Detection3DArray -> objects in its frame, last seen at its stamp."""
    stamp_ns = stamp_to_ns(message.header.stamp)
    return tuple(replace(detection_to_object(d), last_seen_ns=stamp_ns) for d in message.detections)


def event_to_message(event: ObjectEvent, frame_id: str, T_out_world: F64 | None = None) -> Any:
    """Change of an object -> embodied_perceptron_msgs/ObjectEvent."""
    place = event.stamp_ns, frame_id, T_out_world
    ends = [o if o is None else replace(o, names=()) for o in (event.before, event.after)]
    if event.kind == EventKind.STATE:
        ends = [o if o is None else replace(o, label=o.condition or o.label) for o in ends]
    before, after = ([] if o is None else [object_to_detection(o, *place)] for o in ends)
    return ObjectEventMessage(
        header=make_header(event.stamp_ns, frame_id),
        kind=event.kind,
        id=event.id,
        before=before,
        after=after,
        confidence=float(event.confidence),
        reason=event.reason,
        formerly=event.formerly,
    )


def message_to_event(message: Any) -> ObjectEvent:
    """embodied_perceptron_msgs/ObjectEvent -> change, in the message's frame."""
    before, after = (detection_to_object(some[0]) if some else None for some in (message.before, message.after))
    if message.kind == EventKind.STATE:
        before, after = (None if o is None else replace(o, condition=o.label) for o in (before, after))
    stamp_ns = stamp_to_ns(message.header.stamp)
    return ObjectEvent(
        *(stamp_ns, message.kind, int(message.id), before, after, float(message.confidence)),
        message.reason,
        int(message.formerly),
    )


# --------------------------------------------------------------------------------------------------------------------
# markers


def object_markers(
    objects: Sequence[SceneObject],
    shown: Iterable[MarkerKey],
    stamp_ns: int,
    frame_id: str,
    T_out_world: F64 | None = None,
    namespace: str = "objects",
) -> tuple[MarkerArray, set[MarkerKey]]:
    """Markers of objects: a translucent box, its edges and a text each; DELETE for vanished objects.

    ``shown``: the keys that the last call returned. Returns the message and the keys that are shown after it.
    """
    markers = []
    for item in objects:
        r, g, b = color_of_class(item.label)
        rgb = r / 255, g / 255, b / 255
        text = f"{label_of(item)} ({item.score:.2f})"
        markers += _box_marker_triple(item.box, rgb, text, namespace, item.id, stamp_ns, frame_id, T_out_world)
    return _with_deletions(markers, shown, stamp_ns, frame_id)


def grounding_markers(
    grounding: Grounding,
    shown: Iterable[MarkerKey],
    stamp_ns: int,
    frame_id: str,
    T_out_world: F64 | None = None,
    namespace: str = "answer",
) -> tuple[MarkerArray, set[MarkerKey]]:
    """Markers of an answer: the found object in green, ambiguous candidates in orange; see :func:`object_markers`."""
    found = grounding.status == GroundingStatus.FOUND
    rgb = (0.1, 0.9, 0.2) if found else (1.0, 0.6, 0.0)
    markers = []
    for rank, item in enumerate(grounding.candidates[:1] if found else grounding.candidates):
        text = f"{shortened(grounding.text, 60)} -> {label_of(item)}"
        markers += _box_marker_triple(item.box, rgb, text, namespace, rank, stamp_ns, frame_id, T_out_world)
    return _with_deletions(markers, shown, stamp_ns, frame_id)


def _box_marker_triple(
    box: F64,
    rgb: tuple[float, float, float],
    text: str,
    namespace: str,
    marker_id: int,
    stamp_ns: int,
    frame_id: str,
    T_out_world: F64 | None,
) -> list[Marker]:
    header = make_header(stamp_ns, frame_id)
    pose = matrix_to_pose(box_pose(box, T_out_world))
    dx, dy, dz = (float(v) for v in box[3:6])
    r, g, b = rgb
    common = {"header": header, "id": int(marker_id), "action": Marker.ADD}
    solid = Marker(**common, ns=namespace, type=Marker.CUBE, pose=pose, scale=Vector3(x=dx, y=dy, z=dz))
    solid.color = ColorRGBA(r=r, g=g, b=b, a=0.25)
    edges = Marker(**common, ns=f"{namespace}/edges", type=Marker.LINE_LIST, pose=pose, scale=Vector3(x=0.015))
    edges.color = ColorRGBA(r=r, g=g, b=b, a=1.0)
    local = _UNIT_CORNERS * (dx, dy, dz)
    edges.points = [Point(x=float(c[0]), y=float(c[1]), z=float(c[2])) for e in BOX_EDGES for c in local[list(e)]]
    label = Marker(**common, ns=f"{namespace}/text", type=Marker.TEXT_VIEW_FACING, text=text, scale=Vector3(z=0.12))
    label.color = ColorRGBA(r=1.0, g=1.0, b=1.0, a=1.0)
    top_m = float((np.abs(box_pose(box, T_out_world)[2, :3]) @ box[3:6]) / 2 + 0.1)
    label.pose.position = Point(x=pose.position.x, y=pose.position.y, z=pose.position.z + top_m)
    return [solid, edges, label]


def _with_deletions(
    markers: list[Marker], shown: Iterable[MarkerKey], stamp_ns: int, frame_id: str
) -> tuple[MarkerArray, set[MarkerKey]]:
    present = {(m.ns, m.id) for m in markers}
    header = make_header(stamp_ns, frame_id)
    vanished = sorted(set(shown) - present)
    deletions = [Marker(header=header, ns=ns, id=marker_id, action=Marker.DELETE) for ns, marker_id in vanished]
    return MarkerArray(markers=deletions + markers), present


# --------------------------------------------------------------------------------------------------------------------
# answers


def grounding_to_message(
    grounding: Grounding,
    query: Query,
    stamp_ns: int,
    frame_id: str,
    T_out_world: F64 | None = None,
    *,
    approach: F64 | None = None,
    distance_m: float = math.nan,
) -> GroundingResult:
    """Answer -> embodied_perceptron_msgs/GroundingResult, its candidates best first.

    ``approach``: (4, 4) pose to go to, in the world frame like the candidates; None = there is none.
    """
    header = make_header(stamp_ns, frame_id)
    pose = PoseStamped(header=header)
    if approach is not None:
        pose.pose = matrix_to_pose(approach if T_out_world is None else T_out_world @ approach)
    return GroundingResult(
        header=header,
        id=query.id,
        text=grounding.text,
        status=int(grounding.status),
        standing=query.standing,
        candidates=[object_to_detection(o, stamp_ns, frame_id, T_out_world) for o in grounding.candidates],
        reason=grounding.reason,
        tagged_text=grounding.tagged_text,
        latency_ms=float(grounding.latency_ms),
        count=-1 if grounding.count is None else grounding.count,
        phrases=[GroundedPhraseMessage(**phrase.as_dict()) for phrase in grounding.phrases],
        nearest=[object_to_detection(o, stamp_ns, frame_id, T_out_world) for o in grounding.nearest],
        user_name=grounding.candidates[0].user_name if grounding.candidates else "",
        reachable=approach is not None,
        approach=pose,
        distance=float(distance_m),
    )


def message_to_grounding(message: GroundingResult) -> Grounding:
    """embodied_perceptron_msgs/GroundingResult -> answer in the message's frame."""
    candidates = tuple(detection_to_object(d) for d in message.candidates)
    if candidates and message.user_name:
        candidates = (replace(candidates[0], user_name=message.user_name), *candidates[1:])
    return Grounding(
        text=message.text,
        status=GroundingStatus(message.status),
        candidates=candidates,
        reason=message.reason,
        tagged_text=message.tagged_text,
        latency_ms=float(message.latency_ms),
        count=None if message.count < 0 else int(message.count),
        phrases=tuple(
            GroundedPhrase(p.text, int(p.start), int(p.end), tuple(int(i) for i in p.ids)) for p in message.phrases
        ),
        nearest=tuple(detection_to_object(d) for d in message.nearest),
    )
