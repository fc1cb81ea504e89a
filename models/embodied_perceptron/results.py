"""Results of perception as plain values with numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import canonical_boxes
from embodied_perceptron.geometry.suppression import UNNAMED as UNNAMED
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.sensors.frame import PosedFrame


class Arriving(Protocol):
    """Counts that a device may still compute."""

    def ready(self) -> bool:
        """Return True when :meth:`result` does not wait."""
        ...

    def result(self) -> Mapping[str, int]:
        """Counts by the names of :class:`FusionCounts`; waits for the device."""
        ...


class FusionCounts:
    """Changes of the map by one frame; on a device, the first reading waits for it.

    Attributes:
        points: pixels that became points.
        voxels_touched: distinct voxels that received points.
        voxels_cleared: voxels removed because the camera saw through them.
        blocks_evicted: blocks dropped by radius or budget, by reason (``radius``, ``budget``).
        points_refused: points without room (block budget exhausted within the radius).
    """

    def __init__(self, parts: Iterable[Arriving] = ()) -> None:
        self._parts = tuple(parts)

    def ready(self) -> bool:
        """Return True when reading does not wait."""
        return all(part.ready() for part in self._parts)

    def _total(self, name: str) -> int:
        return sum(part.result().get(name, 0) for part in self._parts)

    @property
    def points(self) -> int:
        return self._total("points")

    @property
    def voxels_touched(self) -> int:
        return self._total("voxels_touched")

    @property
    def voxels_cleared(self) -> int:
        return self._total("voxels_cleared")

    @property
    def points_refused(self) -> int:
        return self._total("points_refused")

    @property
    def blocks_evicted(self) -> dict[str, int]:
        return {reason: self._total(f"evicted_{reason}") for reason in ("radius", "budget")}

    def _all(self) -> tuple[Any, ...]:
        return self.points, self.voxels_touched, self.voxels_cleared, self.points_refused, self.blocks_evicted

    def __eq__(self, other: object) -> bool:
        return self._all() == other._all() if isinstance(other, FusionCounts) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        names = "points", "voxels_touched", "voxels_cleared", "points_refused", "blocks_evicted"
        counts = ", ".join(f"{name}={value}" for name, value in zip(names, self._all(), strict=True))
        return f"FusionCounts({counts})" if self.ready() else "FusionCounts(pending)"


@dataclass(frozen=True)
class FusionReport:
    """Report of one :meth:`Perceptron.integrate`.

    Attributes:
        stamp_ns: stamp of the frame.
        fused: False when the frame carried no usable depth; ``reason`` says why.
        reason: empty when fused.
        detail: what contradicts the frames before, when the reason is ``inconsistent_depth``.
        counts: changes of the map; each count is also an attribute of the report.
        keyframe: the frame was kept as a keyframe.
        stage_ms: wall time by stage.
    """

    stamp_ns: int
    fused: bool
    reason: str = ""
    counts: FusionCounts = field(default_factory=FusionCounts)
    keyframe: bool = False
    stage_ms: dict[str, float] = field(default_factory=dict)
    detail: str = ""

    @property
    def points(self) -> int:
        """See :class:`FusionCounts`."""
        return self.counts.points

    @property
    def voxels_touched(self) -> int:
        """See :class:`FusionCounts`."""
        return self.counts.voxels_touched

    @property
    def voxels_cleared(self) -> int:
        """See :class:`FusionCounts`."""
        return self.counts.voxels_cleared

    @property
    def blocks_evicted(self) -> dict[str, int]:
        """See :class:`FusionCounts`."""
        return self.counts.blocks_evicted

    @property
    def points_refused(self) -> int:
        """See :class:`FusionCounts`."""
        return self.counts.points_refused


@dataclass(frozen=True, eq=False)
class VoxelSnapshot:
    """Occupied voxels of the map at one moment, sorted by key (x slowest, z fastest); a copy, safe in another thread.

    Attributes:
        voxel_size_m: edge length.
        coords: (N, 3) int32 voxel coordinates.
        mean_point_m: (N, 3) float32 mean of the points that fell into the voxel, world frame.
        mean_color: (N, 3) uint8 RGB.
        hits: (N,) int32 number of averaged points; halved beyond 65,536, so that means slowly forget.
        evidence: (N,) float32 occupancy log-odds.
        last_seen_ns: (N,) int64 stamp of the last hit.
    """

    voxel_size_m: float
    coords: NDArray[np.int32]
    mean_point_m: NDArray[np.float32]
    mean_color: NDArray[np.uint8]
    hits: NDArray[np.int32]
    evidence: NDArray[np.float32]
    last_seen_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.coords.shape[0])


class Certainty(Enum):
    """Kind of the scores of boxes. Scores of different kinds must not be compared; see :meth:`Detections.require`.

    The score of a :class:`SceneObject` is a third kind: the probability that it still exists and that its name and box
    are right, after all perceptions (:mod:`embodied_perceptron.scene.object_map`).
    """

    RAW = "raw"  # of a network or a shape: an order, no probability
    CALIBRATED = "calibrated"  # probability that name and box are right, by one source of evidence at one moment


@dataclass(frozen=True, eq=False)
class Detections:
    """Boxes of one perception.

    Attributes:
        boxes: (B, 9) float64 x y z dx dy dz alpha beta gamma, world frame, in canonical form: z points up, x along the
            longer side (:func:`~.geometry.boxes.canonical_boxes`).
        scores: (B,) float64 in [0, 1].
        labels: class name of each.
        posteriors: for each box name -> probability that an object is there and has that name; of :data:`UNNAMED`, that
            it has none of these. None = label and score alone.
        certainty: kind of ``scores``.
        reported: (B,) True where a 2-D detector reports an object of the label; None = nowhere.

    Raises ``ValueError`` naming the field when lengths differ, a number is not finite, a size is not positive, a score
    lies outside of [0, 1], or posteriors are not probabilities that sum to at most one.
    """

    boxes: F64
    scores: F64
    labels: tuple[str, ...]
    posteriors: tuple[Mapping[str, float], ...] | None = None
    certainty: Certainty = Certainty.RAW
    reported: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.boxes.ndim != 2 or self.boxes.shape[1] != 9:
            raise ValueError(f"boxes must be (B, 9), got {self.boxes.shape}")
        if len(self.labels) != len(self.boxes):
            raise ValueError(f"{len(self.boxes)} boxes, but there are {len(self.labels)} labels")
        _check_scores(self.scores, len(self.boxes))
        if not np.isfinite(self.boxes).all():
            raise ValueError(f"box {int(np.argwhere(~np.isfinite(self.boxes))[0, 0])} has non-finite entries")
        if not (self.boxes[:, 3:6] > 0).all():
            raise ValueError(f"box {int(np.argwhere(~(self.boxes[:, 3:6] > 0))[0, 0])} has a size that is not positive")
        if self.posteriors is not None:
            if len(self.posteriors) != len(self.boxes):
                raise ValueError(f"{len(self.boxes)} boxes, but {len(self.posteriors)} posteriors")
            for names in self.posteriors:
                if not names or min(names.values()) < 0 or not sum(names.values()) <= 1.0 + 1e-6:
                    raise ValueError(f"posteriors must be probabilities of names that sum to at most one, got {names}")
        object.__setattr__(self, "boxes", canonical_boxes(self.boxes))

    def __len__(self) -> int:
        return int(self.boxes.shape[0])

    def posterior(self, row: int) -> Mapping[str, float]:
        """Posterior of one box: see :attr:`posteriors`."""
        return {self.labels[row]: float(self.scores[row])} if self.posteriors is None else self.posteriors[row]

    def is_reported(self, row: int) -> bool:
        """See :attr:`reported`."""
        return self.reported is not None and bool(self.reported[row])

    def above(self, min_score: float) -> Detections:
        """Boxes with at least ``min_score``, in the same order."""
        return self.take(np.flatnonzero(self.scores >= min_score))

    def require(self, certainty: Certainty) -> Detections:
        """These detections. Raises ``ValueError`` for scores of another kind."""
        if self.certainty is not certainty:
            raise ValueError(f"expected {certainty.value} scores of boxes, got {self.certainty.value} ones")
        return self

    def take(
        self,
        rows: NDArray[np.integer[Any]],
        scores: F64 | None = None,
        certainty: Certainty | None = None,
    ) -> Detections:
        """Boxes of ``rows`` in that order, with new ``scores`` and another ``certainty`` where given.

        Raises ``ValueError`` for invalid scores. Boxes are not checked again.
        """
        if scores is not None:
            _check_scores(scores, len(rows))
        taken = object.__new__(Detections)
        object.__setattr__(taken, "boxes", self.boxes[rows])
        object.__setattr__(taken, "scores", self.scores[rows] if scores is None else scores)
        object.__setattr__(taken, "labels", tuple(self.labels[i] for i in rows))
        posteriors = None if self.posteriors is None else tuple(self.posteriors[i] for i in rows)
        object.__setattr__(taken, "posteriors", posteriors)
        object.__setattr__(taken, "certainty", self.certainty if certainty is None else certainty)
        object.__setattr__(taken, "reported", None if self.reported is None else self.reported[rows])
        return taken


def _check_scores(scores: F64, count: int) -> None:
    if scores.shape != (count,):
        raise ValueError(f"{count} boxes, but scores are {scores.shape}")
    if not ((scores >= 0) & (scores <= 1)).all():
        raise ValueError(f"scores must be in [0, 1], got {scores.tolist()}")


class ObjectState:
    """States of a tracked object. ``ALL``: those of objects that are there; a gone one is remembered only."""

    TENTATIVE = "tentative"
    CONFIRMED = "confirmed"
    STALE = "stale"
    GONE = "gone"
    ALL = (CONFIRMED, TENTATIVE, STALE)


class EventKind:
    """Kinds of events. ``FOUND``: seen for the first time, with its place; no event of the world. ``SENTENCE``: a
    standing sentence is FOUND, for the first time or with another answer; no event of a history."""

    FOUND = "found"
    APPEARED = "appeared"
    MOVED = "moved"
    LEFT = "left"
    RETURNED = "returned"
    RENAMED = "renamed"
    STATE = "state"
    SENTENCE = "sentence"
    ALL = (FOUND, APPEARED, MOVED, LEFT, RETURNED, RENAMED, STATE)


@dataclass(frozen=True)
class HistoryEntry:
    """One entry of an object's history.

    Attributes:
        stamp_ns: time of the map.
        kind: one of :class:`EventKind`.
        at_m: (x, y, z) of the object since then; of LEFT, until then.
        probability: that this is right.
        words: the name or the state since then, of RENAMED and STATE; empty otherwise.
        reason: why it is believed.
    """

    stamp_ns: int
    kind: str
    at_m: tuple[float, float, float]
    probability: float = 1.0
    words: str = ""
    reason: str = ""


@dataclass(frozen=True, eq=False)
class SceneObject:
    """One object with a persistent id.

    Attributes:
        id: persistent, positive, never reused within a map; 0 = a candidate of a :class:`Grounding` that is no object
            of the map.
        label: class name.
        score: probability in [0, 1] that it still exists and that its name and box are right.
        box: (9,) float64 x y z dx dy dz alpha beta gamma; metres, radians, R = Rz(alpha) Rx(beta) Ry(gamma). What
            perception returns is in canonical form (:func:`~.geometry.boxes.canonical_boxes`): z is the axis nearest to
            up and points up, x the longer of the other two, alpha in (-pi/2, pi/2]; messages and files carry the same.
            The front of a box is unknown.
        state: one of :class:`ObjectState`.
        last_seen_ns: stamp of the newest evidence.
        user_name: a user's name ("Anna's desk"); empty = none.
        category: likeliest class name, where a list of classes publishes another; empty = the label. Not part of
            messages and files.
        condition: ``open``, ``closed``, ``filled``, ``empty``, ``folded`` or ``unfolded``, where it was requested and
            the map shows it (:func:`~.language.object_states.with_conditions`); empty = unknown.
        names: at most three names, best first, the label before others, each with the probability that the object is
            there and has that name.
        maybe_same_as: (id, probability) of earlier objects that this may be, best first.
        history: what happened to it, oldest first; empty for an object that was never confirmed. Not part of boxes'
            messages.
        merged_from: other ids under which it was known until it was recognised. Not part of boxes' messages.
    """

    id: int
    label: str
    score: float
    box: F64
    state: str = ObjectState.CONFIRMED
    last_seen_ns: int = 0
    user_name: str = ""
    category: str = ""
    names: tuple[tuple[str, float], ...] = ()
    condition: str = ""
    maybe_same_as: tuple[tuple[int, float], ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    merged_from: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON form, as in ``objects.json``."""
        return {
            "id": self.id,
            "label": self.label,
            "score": round(float(self.score), 6),
            "state": self.state,
            "box": [round(float(v), 6) for v in self.box],
            **({"user_name": self.user_name} if self.user_name else {}),
            **({"condition": self.condition} if self.condition else {}),
            **({"names": [{"label": n, "score": round(float(p), 6)} for n, p in self.names]} if self.names else {}),
            **({"maybe_same_as": [[i, round(p, 3)] for i, p in self.maybe_same_as]} if self.maybe_same_as else {}),
            **({"merged_from": list(self.merged_from)} if self.merged_from else {}),
        }


@dataclass(frozen=True, eq=False)
class ObjectEvent:
    """A change of one object.

    Attributes:
        stamp_ns: time of the map.
        kind: one of :class:`EventKind`, not FOUND.
        id: of the object; of SENTENCE, of the best answer, 0 = none.
        before, after: the object; None = it was not, or is not, there.
        confidence: probability that this is right.
        reason: why it is believed; of SENTENCE, the sentence.
        formerly: id under which a moved or returned object was published until now; 0 = none.
    """

    stamp_ns: int
    kind: str
    id: int
    before: SceneObject | None
    after: SceneObject | None
    confidence: float
    reason: str = ""
    formerly: int = 0

    @property
    def object(self) -> SceneObject:
        """The object as it is now, or was last."""
        thing = self.after or self.before
        assert thing is not None
        return thing


@dataclass(frozen=True, eq=False)
class SemanticVoxels:
    """Labelled occupied cells.

    Attributes:
        cell_size_m: edge length.
        centers_m: (N, 3) float32, world frame.
        color: (N, 3) uint8 RGB.
        labels: (N,) int32 indices into ``classes``.
        confidence: (N,) float32 in [0, 1].
        classes: class names.
    """

    cell_size_m: float
    centers_m: NDArray[np.float32]
    color: NDArray[np.uint8]
    labels: NDArray[np.int32]
    confidence: NDArray[np.float32]
    classes: tuple[str, ...]

    def take(self, rows: NDArray[Any]) -> SemanticVoxels:
        """Cells of some rows, by index or mask."""
        return replace(
            self,
            centers_m=self.centers_m[rows],
            color=self.color[rows],
            labels=self.labels[rows],
            confidence=self.confidence[rows],
        )

    def joined_with(self, *others: SemanticVoxels) -> SemanticVoxels:
        """Cells of this and then of the others, which have the same size and classes."""
        parts = (self, *others)
        return replace(
            self,
            centers_m=np.concatenate([p.centers_m for p in parts]),
            color=np.concatenate([p.color for p in parts]),
            labels=np.concatenate([p.labels for p in parts]),
            confidence=np.concatenate([p.confidence for p in parts]),
        )


@dataclass(frozen=True, eq=False)
class OccupancyGrid2d:
    """Top-down grid for navigation, row 0 at the lowest y (nav_msgs/OccupancyGrid's order).

    Attributes:
        resolution_m: cell size.
        origin_m: (2,) world x, y of the lower-left corner of cell (0, 0).
        cells: (rows, cols) int8: -1 unknown, 0 free, 1 to 99 free at a cost, 100 occupied.
        floor_z_m: height of the floor in the world frame.
    """

    resolution_m: float
    origin_m: F64
    cells: NDArray[np.int8]
    floor_z_m: float


@dataclass(frozen=True, eq=False)
class Perception:
    """Result of one :meth:`Perceptron.perceive`.

    Attributes:
        stamp_ns: stamp of the newest frame in the map.
        objects: confirmed objects.
        tentative: objects not confirmed yet.
        semantic: labelled voxels.
        grid: navigation grid.
        voxels: the map that it was computed from.
        stage_ms: wall time by stage.
        stale: objects that are no longer found although their place still looks occupied.
        diagnostics: messages for the user, such as a window that is smaller for lack of memory.
        source: the newest frame in the map, for overlay and latency; None for a map from a file.
        gone: objects that are no longer there.
        events: changes of objects since the last perception.
        T_world_map: (4, 4) pose of the map in the world of the frames' poses. The identity unless the map began far
            from the world's origin, or was loaded and placed elsewhere.
    """

    stamp_ns: int
    objects: tuple[SceneObject, ...]
    tentative: tuple[SceneObject, ...]
    semantic: SemanticVoxels
    grid: OccupancyGrid2d
    voxels: VoxelSnapshot
    stage_ms: dict[str, float] = field(default_factory=dict)
    stale: tuple[SceneObject, ...] = ()
    diagnostics: tuple[str, ...] = ()
    source: PosedFrame | None = None
    gone: tuple[SceneObject, ...] = ()
    events: tuple[ObjectEvent, ...] = ()
    T_world_map: F64 = field(default_factory=lambda: np.eye(4))

    @classmethod
    def of(cls, objects: Sequence[SceneObject], **others: Any) -> Perception:
        """A perception with ``objects`` sorted by state; ``others``: the other attributes by name."""
        confirmed, tentative, stale, gone = (
            tuple(o for o in objects if o.state == state) for state in (*ObjectState.ALL, ObjectState.GONE)
        )
        return cls(objects=confirmed, tentative=tentative, stale=stale, gone=gone, **others)


class GroundingStatus(IntEnum):
    """Status of an answer; values as in ``embodied_perceptron_msgs/GroundingResult``."""

    FOUND = 1
    NOT_FOUND = 2
    AMBIGUOUS = 3
    INVALID = 4

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class GroundedPhrase:
    """A noun phrase of a sentence and the objects that it refers to.

    Attributes:
        text: words of the sentence.
        start, end: characters [start, end) of the sentence.
        ids: of the objects, best first; empty where none was found.
    """

    text: str
    start: int
    end: int
    ids: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """JSON form."""
        return {"text": self.text, "start": self.start, "end": self.end, "ids": list(self.ids)}


@dataclass(frozen=True, eq=False)
class Grounding:
    """The answer to one sentence.

    Attributes:
        text: the query.
        status: terminal status.
        candidates: objects, best first; empty for NOT_FOUND and INVALID. Their scores are probabilities that this is
            the requested object. Tentative candidates are not published as objects; their id is 0 where the map does
            not have them.
        reason: text; never empty for a status other than FOUND.
        tagged_text: the sentence with grounded phrases marked, ``<p>chair</p>[<obj_3>]``.
        latency_ms: from the arrival of the query to its answer.
        count: number of objects for a plural or count query ("the chairs", "how many cups", "what is on the table"),
            also 0; None for a query about one object.
        phrases: noun phrases of the sentence with their objects, the target first.
        nearest: objects of the requested kind when none fulfils the sentence (NOT_FOUND), best match first, with scores
            as of candidates; empty otherwise.
    """

    text: str
    status: GroundingStatus
    candidates: tuple[SceneObject, ...] = ()
    reason: str = ""
    tagged_text: str = ""
    latency_ms: float = 0.0
    count: int | None = None
    phrases: tuple[GroundedPhrase, ...] = ()
    nearest: tuple[SceneObject, ...] = ()

    @property
    def choice(self) -> tuple[SceneObject, ...]:
        """The candidates, or the nearest matches without candidates."""
        return self.candidates or self.nearest
