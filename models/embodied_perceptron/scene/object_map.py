"""Objects with persistent ids: a filter over the detections of each perception, and corrections by users.

The map keeps three estimates of every object. *Existence* is a log-odds: a detection adds evidence by its score, and a
perception of the place without a detection subtracts some, in proportion to the time. *Name* is a posterior over class
names: votes of the detections (or shares of their posteriors), weighted by score and slowly forgotten. *Box* is the
mean of the detected boxes; new ones weigh less the more boxes agreed before.

A missed object loses evidence only where it could have been found: within reach, whole within the window, and at a
place that is still mapped. The voxels decide. Voxels still in the box: something is there, and the miss counts little.
Voxels gone but the surroundings mapped: the place was seen empty, and the object is removed. Surroundings gone too: the
map forgot the place (memory is bounded), and the object stays unchanged. Voxels of another found object in the box of
the missed one are no evidence for it.

An object is *tentative* until it was found in ``confirm_count`` perceptions, is likelier to exist than not, and its
name and box are probably right; then *confirmed*; *stale* when existence has become unlikely although its place still
looks occupied. Ids count up from 1 and are never reused within a map; equal updates give equal ids.

Detections and objects are assigned one to one by :func:`~.suppression.association_affinity`: a part never takes the
identity of a whole, and similar objects side by side stay apart. An object that no longer fits at its place, and one
whose place is seen empty, is *gone*: it is remembered with its appearance and its history, and a new object that is
clearly the same thing (:mod:`.identity`) continues it under its id, wherever it is found. Where that is not clear, the
new object has an id of its own and says which earlier ones it may be. That is decided again whenever an object leaves,
when a candidate is seen to stand, and while new ones are young, in a later session too; the id that a recognised object
had until then stays known as its own. An object that was found a few times only may be a mistake: it does not leave,
and is no earlier one. An object that no camera saw leaving may be continued too, where something was put down: its old
voxels are then a tentative object until a camera sees them again.

Objects elsewhere than near the window do not change, not even their age, and cost next to nothing.
"""

from __future__ import annotations

import json
import logging
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import (
    EVERY_SCORE,
    AssociationConfig,
    EstimateConfig,
    PlaceConfig,
    ScorePolicy,
    TrackingConfig,
)
from embodied_perceptron.geometry.boxes import Bounds, box_rotations, canonical_boxes, transform_boxes
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.suppression import (
    INSIDE_SHARE,
    are_layered,
    association_affinity,
    blend_boxes,
    denied_detections,
    found_inside,
    is_one_object,
    one_object_pairs,
    paired_overlaps,
    thickened,
    touching_pairs,
)
from embodied_perceptron.inference.naming import published_name
from embodied_perceptron.mapping.voxel_counts import count_voxels, count_voxels_explained, without_bottom
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.recordings.plain_values import MAX_NAME
from embodied_perceptron.recordings.tensor_files import parse_json
from embodied_perceptron.results import (
    UNNAMED,
    Detections,
    EventKind,
    HistoryEntry,
    ObjectEvent,
    ObjectState,
    SceneObject,
    VoxelSnapshot,
)
from embodied_perceptron.scene import history
from embodied_perceptron.scene.changes import displacement
from embodied_perceptron.scene.history import History
from embodied_perceptron.scene.identity import (
    FIXED,
    LIKE,
    WEIGHTS,
    Appearance,
    Identified,
    ImageSampler,
    differences,
    last_seen,
    log_odds,
    match,
    own_voxels,
    voxels_inside,
    was_put_there,
)
from embodied_perceptron.weights.categories import ALL_CATEGORIES

# --------------------------------------------------------------------------------------------------------------------
# Corrections by users: other labels, and objects that are not there. Names and labels are kept with the objects;
# corrections are kept to write them as labels, and to suppress denied objects.

MAX_CORRECTIONS = 10_000  # older ones are dropped
MAX_ID = 2**53  # of an object
_MAX_AWAY_M, _MAX_EDGE_M = 2e5, 1e3  # of a box in a file


@dataclass(frozen=True, eq=False)
class Correction:
    """A user's correction of one object.

    Attributes:
        id: of the object.
        box: (9,) at that time, in the map.
        was: the label before.
        label: the corrected label; empty = the object is not there.
        stamp_ns: time of the correction, on the clock of the frames.
    """

    id: int
    box: NDArray[np.float64]
    was: str
    label: str
    stamp_ns: int

    def as_dict(self) -> dict[str, Any]:
        """JSON form, as in map and labels file."""
        box = [round(float(v), 6) for v in self.box]
        return {"id": self.id, "box": box, "was": self.was, "label": self.label, "stamp_ns": self.stamp_ns}


@dataclass
class Corrections:
    """Corrections, oldest first, the last one of each object. Not thread-safe."""

    entries: list[Correction] = field(default_factory=list)

    def remember(self, entry: Correction) -> None:
        """Add a correction; it replaces an earlier one of the same object but keeps that one's first label."""
        earlier = [e for e in self.entries if e.id == entry.id]
        if earlier:
            entry = replace(entry, was=earlier[0].was)
        self.entries = [*(e for e in self.entries if e.id != entry.id), entry][-MAX_CORRECTIONS:]

    def without_denied(self, found: Detections) -> Detections:
        """Drop detections of objects that a user denied at their place."""
        denied = [e for e in self.entries if not e.label]
        if not denied or len(found) == 0:
            return found
        boxes = np.stack([e.box for e in denied])
        wrong = denied_detections(found.boxes, found.labels, boxes, [e.was for e in denied])
        return found.take(np.flatnonzero(~wrong))

    def forget_inside(self, box: NDArray[np.float64]) -> None:
        """Forget corrections of objects centered in a (9,) box."""
        self.entries = [e for e in self.entries if not _is_centered_in(box, e.box)]

    def move(self, motion_at: Callable[[int], NDArray[np.float64]]) -> None:
        """Move corrections with a corrected world; ``motion_at``: as of :meth:`ObjectMap.move`."""
        moved = []
        for entry in self.entries:
            T = motion_at(entry.stamp_ns)
            boxes = canonical_boxes(transform_boxes(T, torch.from_numpy(entry.box[None])).numpy())
            moved.append(replace(entry, box=boxes[0]))
        self.entries = moved

    def to_list(self) -> list[dict[str, Any]]:
        """JSON form."""
        return [entry.as_dict() for entry in self.entries]

    @classmethod
    def from_list(cls, rows: Iterable[dict[str, Any]]) -> Corrections:
        """Inverse of :meth:`to_list`. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for invalid rows."""
        return cls([_correction(row) for row in rows][-MAX_CORRECTIONS:])


def _correction(row: dict[str, Any]) -> Correction:
    whose = f"the correction of object {plain_values.mapping(row, 'a correction')['id']!r:.30}"
    if row["label"] != "":
        plain_values.words(row["label"], f"{whose}: label")
    return Correction(
        plain_values.whole(row["id"], f"{whose}: id", 1, MAX_ID),
        checked_box(row["box"], whose),
        plain_values.words(row["was"], f"{whose}: was"),
        row["label"],
        plain_values.stamp_ns(row["stamp_ns"], f"{whose}: stamp_ns"),
    )


def _boxes_of(tracks: Iterable[Track]) -> NDArray[np.float64]:
    """(N, 9) boxes; concatenated, as stacking thousands takes as long as the rest of an update."""
    return np.concatenate([np.zeros(0), *(t.box for t in tracks)]).reshape(-1, 9)


def _around(tracks: Iterable[Track]) -> NDArray[np.float64]:
    """(4, N) least and largest x and y that boxes can reach, however they are turned."""
    boxes = _boxes_of(tracks)
    reach_m = np.linalg.norm(boxes[:, 3:6], axis=1) / 2
    return np.concatenate([boxes[:, :2].T - reach_m, boxes[:, :2].T + reach_m])


def _is_centered_in(box: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return bool((np.abs((other[:3] - box[:3]) @ box_rotations(box[None])[0]) <= box[3:6] / 2).all())


def checked_box(numbers: Any, whose: str) -> NDArray[np.float64]:
    """(9,) box of a file. Raises ``ValueError`` for a box that no object in a map can have."""
    try:
        box = np.array([plain_values.number(value, "box") for value in plain_values.sequence(numbers, "box")])
        fits = box.shape == (9,) and (np.abs(box[:3]) <= _MAX_AWAY_M).all() and (np.abs(box[6:]) <= 1e3).all()
        fits = fits and bool(((box[3:6] >= 0) & (box[3:6] <= _MAX_EDGE_M)).all())
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{whose} has the box {numbers!r:.200}")
    return box


def check_words(text: str, what: str) -> str:
    """``text`` with single spaces and composed letters. Raises ``ValueError`` for an empty or too long text, one
    without a letter, and a :func:`~.plain_values.forbidden_character`."""
    words = text.strip()
    if not words:
        raise ValueError(f"the {what} is empty")
    if len(words) > MAX_NAME:
        raise ValueError(f"the {what} has {len(words)} characters, at most {MAX_NAME} are allowed")
    if forbidden := plain_values.forbidden_character(words):
        raise ValueError(f"the {what} has the {forbidden}: {words!a}")
    words = unicodedata.normalize("NFC", " ".join(words.split()))
    if not any(c.isalpha() for c in words):
        raise ValueError(f"the {what} must have a letter, got {words!r}")
    return words


def check_user_name(text: str, labels: Iterable[str] = ()) -> str:
    """A valid name for an object. Raises ``ValueError`` as :func:`check_words`, and for the name of a known class or
    one of ``labels``."""
    name = check_words(text, "name")
    bare = name.casefold().removeprefix("the ")
    if bare in {c.casefold() for c in (*ALL_CATEGORIES, *labels)}:
        raise ValueError(f"{name!r} is the name of a class: choose a name that says which one ('my {bare}')")
    return name


# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Look:
    """One perception: its detections and what it could have found; see :meth:`ObjectMap.update`.

    Attributes:
        found: distinct detections. cut: (N,) bool, cut by the border of the region.
        snapshot: the map. now_ns, dt_s: its time, and the time since the perception before.
        camera_m, reach_m, region: where objects could have been found.
        scores: thresholds.
    """

    found: Detections
    cut: NDArray[np.bool_]
    snapshot: VoxelSnapshot
    now_ns: int
    dt_s: float
    camera_m: NDArray[np.float64] | None
    reach_m: float
    region: Region | None
    scores: ScorePolicy

    def ground(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(2,), (2,) bounds on the ground of what it could have found."""
        low, high = np.full(2, -np.inf), np.full(2, np.inf)
        if self.camera_m is not None:
            low, high = self.camera_m[:2] - self.reach_m, self.camera_m[:2] + self.reach_m
        if self.region is not None:
            region_low, region_high = ground_bounds(self.region)
            low, high = np.maximum(low, region_low), np.minimum(high, region_high)
        return low, high

    def shows(self, boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(N,) whether (N, 9) boxes lie wholly within reach and region."""
        shown = ~_cut_by(self.region, boxes)
        if self.camera_m is not None:
            away_m = np.linalg.norm(boxes[:, :3] - self.camera_m, axis=1)
            shown &= away_m <= self.reach_m - np.linalg.norm(boxes[:, 3:6], axis=1) / 2
        return shown


def ground_bounds(region: Region) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(2,), (2,) bounds on the ground, in the world, of a region in a Manhattan frame."""
    low, high = region.lower_m[:2], region.upper_m[:2]
    if not np.isfinite([*low, *high]).all():
        if region.manhattan.yaw_rad == 0:
            return low.astype(np.float64), high.astype(np.float64)
        return np.full(2, -np.inf), np.full(2, np.inf)
    corners = np.array([[x, y, 0.0] for x in (low[0], high[0]) for y in (low[1], high[1])])
    world = region.manhattan.to_world(corners)[:, :2]
    return world.min(axis=0), world.max(axis=0)


# --------------------------------------------------------------------------------------------------------------------
# One object over time: existence, name and box, and its entry in map files

_NAMES, _LEAST_SHARE = 3, 0.01  # published with an object
_MAX_LOG_ODDS = 500.0  # in files; the exponential of more overflows
_PASSING = ("published", "looked_at", "begun_ns", "anchor", "condition", "present_ns", "reported")  # not in files
_MAX_MERGED = 32  # other ids of an object


def published_score(score: float, looks: int, scores: ScorePolicy, config: TrackingConfig) -> float:
    """Probability that name and box are right, from the mean score over the perceptions of a place (0 where nothing was
    found) and their number. The published score is this times the probability that the object still exists."""
    return probability_right(score, looks, reference_score(scores, config), config.estimates)


def probability_right(mean: float, looks: int, reference: float, config: EstimateConfig) -> float:
    return sigmoid(min(looks, config.independent_looks) * (logit(mean) - logit(reference)))


def reference_score(scores: ScorePolicy, config: TrackingConfig) -> float:
    """Score at which a box is as likely wrong as right: of the calibration, otherwise the publishing threshold."""
    return scores.even or max(scores.publish, config.existence.clutter_score)


def logit(p: float) -> float:
    p = min(max(p, 1e-4), 1.0 - 1e-4)
    return math.log(p / (1.0 - p))


def sigmoid(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))


def _added(sums: Mapping[str, float], new: Mapping[str, float], memory: float) -> dict[str, float]:
    """Decayed sums plus new values."""
    kept = {name: v * memory for name, v in sums.items() if v > 1e-3}
    return kept | {name: kept.get(name, 0.0) + v for name, v in new.items()}


def best_names(
    votes: Mapping[str, float], label: str, score: float, name_of: Callable[[str], str] | None
) -> tuple[tuple[str, float], ...]:
    """At most three names with the probability that the object is there and has that name, best first.

    Args:
        votes: for each name; empty in maps of older versions.
        label, score: as published.
        name_of: label -> name of the list of classes; None = labels are published.
    """
    sums: dict[str, float] = {}
    for known, votes_of in votes.items():
        name = known if name_of is None else name_of(known)
        sums[name] = sums.get(name, 0.0) + votes_of
    own = sum(sums.values()) if label == UNNAMED else sums.get(label, 0.0)
    if own <= 0.0:  # a map of an older version
        return () if label == UNNAMED else ((label, score),)
    shares = {name: min(1.0, v / own) for name, v in sums.items() if name != UNNAMED}
    order = sorted(shares, key=lambda name: (name != label, -shares[name], name))[:_NAMES]
    return tuple((name, score * shares[name]) for name in order if shares[name] >= _LEAST_SHARE)


@dataclass
class Track:
    """One object with its history."""

    id: int
    box: NDArray[np.float64]
    log_odds: float  # that it exists
    score: float  # mean score over the perceptions of its place
    votes: dict[str, float]  # scores under each label
    weight: float  # of the box: sum of scores of the averaged detections
    found: int
    looks: int  # perceptions of its place, found or not; names of fields are keys of map files, and stay
    whole: bool  # the box was never cut by the border of the window
    missed: bool  # by the last perception of its place
    state: str
    found_ns: int  # when it was last found
    unfound_s: float  # time of perceptions that missed it since
    last_seen_ns: int  # newest voxel in its box then
    support: float  # voxels in the box when it was found
    surroundings: float  # voxels around, above and below the box then
    is_back: bool  # since it was found it was out of view, or the map was rebuilt
    reference: float  # score at which a box is as likely wrong as right
    user_name: str = ""
    user_label: str = ""  # corrected by a user
    names: dict[str, float] = field(default_factory=dict)  # posteriors of all names, summed
    history: History = ()  # empty = never confirmed
    appearance: Appearance = field(default_factory=Appearance)
    maybe: dict[int, float] = field(default_factory=dict)  # earlier objects that this may be, with probabilities
    replaced_ns: int = 0  # when its object was recognised elsewhere; tentative until its place is seen later
    merged: list[int] = field(default_factory=list)  # ids under which it was known before it was recognised
    confirmed: bool = False  # on purpose, by a single perception
    condition: str = ""  # at the last look at it; not kept in files
    present_ns: int = 0  # when it was surely there, see last_seen; not kept in files
    anchor: NDArray[np.float64] | None = None  # its box when it was last found to stay there; not kept in files
    begun_ns: int = 0  # when it was first found where it is now; not kept in files
    reported: bool = False  # by a 2-D detector when it was last found; not kept in files
    looked_at: int = 0  # number of the last update that looked at its place; not kept in files
    published: SceneObject | None = None  # cached; None = outdated

    @property
    def label(self) -> str:
        return self.user_label or max(sorted(self.votes), key=lambda name: self.votes[name])

    def name_share(self, label: str) -> float:
        """Posterior probability of a name."""
        return self.votes.get(label, 0.0) / max(sum(self.votes.values()), 1e-12)

    def is_settled(self, config: EstimateConfig) -> bool:
        """Whether its name is certain."""
        if self.user_label:
            return True
        return self.found >= config.settled_count and self.name_share(self.label) >= config.settled_share

    @property
    def is_known(self) -> bool:
        """Whether it is more than a mistake: it was named or confirmed on purpose, or found several times."""
        return self.found >= _KNOWN or self.confirmed or bool(self.user_name or self.user_label)

    def odds_as(self, new: Track, mean_view: NDArray[np.float32] | None = None) -> float:
        """Log-odds that ``new`` is this object elsewhere; -inf where both were there at one time."""
        if self.present_ns - new.begun_ns > _LAG_NS:
            return -math.inf
        return log_odds(differences(new.as_identified(), self.as_identified(), mean_view))

    def rate(self, score: float, config: EstimateConfig) -> None:
        """Count a perception of its place with the score of the detection, or zero."""
        self.looks += 1
        self.score += (score - self.score) / min(self.looks, config.score_memory)

    def vote(self, label: str, score: float, posterior: Mapping[str, float], memory: float) -> None:
        """Count a detection under a label; ``posterior``: of the detection (:class:`.Detections`)."""
        self.votes = _added(self.votes, {label: score}, memory)
        self.names = _added(self.names, posterior, memory)

    def absorb(self, other: Track) -> None:
        """Take over what another track of the same object knows; box and state stay."""
        if other.history and (not self.history or other.history[0].stamp_ns < self.history[0].stamp_ns):
            self.history = other.history
        self.merged = [*self.merged, *other.merged, other.id][-_MAX_MERGED:]
        self.found, self.confirmed = self.found + other.found, self.confirmed or other.confirmed
        for name in ("log_odds", "score", "found_ns", "last_seen_ns", "present_ns"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        self.votes, self.names = _added(self.votes, other.votes, 1.0), _added(self.names, other.names, 1.0)
        self.user_name, self.user_label = self.user_name or other.user_name, self.user_label or other.user_label
        self.appearance.absorb(other.appearance)
        self.published = None

    def stand_as(self, other: Track) -> None:
        """Take the place of another track of the same object, which was found."""
        for name in ("box", "missed", "whole", "weight", "support", "surroundings", "unfound_s", "begun_ns"):
            setattr(self, name, getattr(other, name))

    def as_identified(self) -> Identified:
        return Identified(self.appearance, self.box, self.names or self.votes)

    @property
    def has_left(self) -> bool:
        """Whether its place was seen empty."""
        return self.state == ObjectState.GONE and self.history[-1].probability > _UNSURE

    @property
    def announced(self) -> str:
        """Its name in the last entry of its history that has one."""
        named = (EventKind.FOUND, EventKind.APPEARED, EventKind.RENAMED)
        return next((e.words for e in reversed(self.history) if e.kind in named), "")

    def note(self, stamp_ns: int, kind: str, probability: float = 1.0, words: str = "", reason: str = "") -> None:
        """Add an entry to the history; time never goes back in it."""
        stamp_ns = max([stamp_ns, *(e.stamp_ns for e in self.history[-1:])])
        x, y, z = self.box[:3].tolist()
        entry = HistoryEntry(stamp_ns, kind, (x, y, z), probability, words, reason)
        self.history, self.published = history.extended(self.history, entry), None

    def probability(self, config: TrackingConfig, reference: float) -> float:
        return sigmoid(self.log_odds) * probability_right(self.score, self.looks, reference, config.estimates)

    def as_object(self, config: TrackingConfig, name_of: Callable[[str], str] | None) -> SceneObject:
        if self.published is None:
            score = self.probability(config, self.reference)
            box, seen_ns, known = self.box.copy(), self.last_seen_ns, self.label
            label = known if self.user_label or name_of is None else published_name(self.votes, name_of)
            category = known if label != known else ""
            names = ((label, score),) if self.user_label else best_names(self.names, label, score, name_of)
            maybe = tuple(sorted(self.maybe.items(), key=lambda item: -item[1]))
            self.published = SceneObject(
                *(self.id, label, score, box, self.state, seen_ns, self.user_name, category, names),
                maybe_same_as=maybe,
                merged_from=tuple(self.merged),
                history=self.history,
            )
        return self.published


def upgraded_entry(entry: dict[str, Any], version: int, config: EstimateConfig) -> dict[str, Any]:
    """An entry of a file of any version with the fields of this version."""
    plain_values.mapping(entry, "an object")
    if version == 1:
        entry = {"looks": 1, "whole": True, **entry}
    if version < 3:  # states and scores followed rules
        log_odds = {ObjectState.CONFIRMED: 3.0, ObjectState.TENTATIVE: 0.5, ObjectState.STALE: -1.0}
        weight = min(float(entry["score"]) * float(entry["found"]), config.box_memory)
        odds = log_odds.get(entry["state"], 0.0)
        entry = {"log_odds": odds, "weight": weight, "unfound_s": 0.0, "reference": 0.25, **entry}
    if version < 4:  # means included two more perceptions with score 0
        looks = max(min(int(entry["looks"]), config.score_memory), 1)
        entry = {**entry, **{key: min(float(entry[key]) * (looks + 2) / looks, 1.0) for key in ("score", "reference")}}
    return entry


def track_from_json(entry: dict[str, Any]) -> Track:
    """A track of a map file. Raises ``ValueError`` naming the object and the invalid field."""
    for name in _PASSING:
        if name in entry:
            raise ValueError(f"object {entry.get('id')} has an unknown field: {name}")
    entry, past = dict(entry), {}
    for name, read in _PAST.items():
        if name in entry:
            value = entry.pop(name)
            try:
                past[name] = read(value)
            except ValueError as error:  # the object is worth more than its past
                _LOG.warning("object %s: its %s cannot be read and is left out: %s", entry.get("id"), name, error)
    track = Track(**{**entry, **past, "box": checked_box(entry["box"], f"object {entry.get('id')}")})
    try:
        _check_fields(track)
    except ValueError as error:
        raise ValueError(f"object {track.id}: {error}") from None
    track.box = canonical_boxes(track.box[None])[0]
    return track


def _maybe(rows: Any) -> dict[int, float]:
    """(id, probability) of the earlier objects that an object may be."""
    pairs = [plain_values.sequence(row, "maybe") for row in plain_values.sequence(rows, "maybe")]
    return {plain_values.whole(i, "maybe", 1, MAX_ID): plain_values.number(p, "maybe", 0.0, 1.0) for i, p in pairs}


def _merged(rows: Any) -> list[int]:
    return [plain_values.whole(i, "merged", 1, MAX_ID) for i in plain_values.sequence(rows, "merged")][-_MAX_MERGED:]


_PAST: Mapping[str, Callable[[Any], Any]] = {
    "history": history.from_list, "appearance": Appearance.from_list, "maybe": _maybe, "merged": _merged
}  # fmt: skip


def _check_fields(track: Track) -> None:
    whole, number, truth = plain_values.whole, plain_values.number, plain_values.truth
    whole(track.id, "id", 1, MAX_ID)
    for name in ("found", "looks"):
        whole(getattr(track, name), name, 0, MAX_ID)
    for name in ("found_ns", "last_seen_ns", "replaced_ns"):
        plain_values.stamp_ns(getattr(track, name), name)
    for name in ("whole", "missed", "is_back", "confirmed"):
        truth(getattr(track, name), name)
    for name in ("weight", "unfound_s", "support", "surroundings"):
        number(getattr(track, name), name, 0.0, 1e18)
    for name in ("score", "reference"):
        number(getattr(track, name), name, 0.0, 1.0 + 1e-9)
    number(track.log_odds, "log_odds", -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
    if not plain_values.mapping(track.votes, "votes"):
        raise ValueError("votes must have a name")
    plain_values.mapping(track.names, "names")
    for what, sums in (("votes", track.votes), ("names", track.names)):
        for name, value in sums.items():
            number(value, f"{what} of {plain_values.words(name, f'a name in {what}')!r}", 0.0, 1e18)
    if track.state not in (*ObjectState.ALL, ObjectState.GONE):
        raise ValueError(f"state must be one of {list(ObjectState.ALL)}, got {track.state!r:.100}")
    if track.state == ObjectState.GONE and not track.history:  # its history was damaged
        track.note(track.found_ns, EventKind.LEFT)
    for words, what in ((track.user_name, "name"), (track.user_label, "label")):
        if not isinstance(words, str):
            raise ValueError(f"the {what} must be a text, got {words!r:.100}")
        if words:
            plain_values.words(words, f"the {what}")


# --------------------------------------------------------------------------------------------------------------------

_SURROUNDINGS_M, _COLUMN_M = 0.3, 3.0  # around the box on the ground, and above and below it
_VERSION = 6
_LOG = logging.getLogger(__name__)
_MAX_GONE, _MAX_FRESH = 2000, 64  # objects that are remembered, and that may be earlier ones
_LOOKS = 8  # appearances measured in an update
_WAIT_NS = 5_000_000_000  # from a change to its event: what comes back, or is found elsewhere, is one event
_MOVED_M = 0.3  # from its anchor, of an object that is followed while it moves
_SAME_PLACE_IOU = 0.5
_REPLACED_IOU = 0.1  # with the box of a gone object, of one that stands there now
_KNOWN = 4  # detections of an object that can leave or be recognised: fewer may be a mistake
_STEADY = 6  # detections after which a box has its final place
_PUT_THERE_SHARE = 0.8  # of its voxels, that a camera saw through before
_UNSURE = 0.5  # probability that an object left that was not found again
_REMAINING_SHARE = 0.75  # of its voxels: with as many in its box, an object may still be there, under other boxes
_AGAIN_SHARE = 0.3  # of the middle of its box, that two keyframes saw through before an object is said to have left
# the middle of a box, in its size
_CORE = 0.35 * np.stack(np.meshgrid(*[np.linspace(-1, 1, 5)] * 3), -1).reshape(-1, 3)
_SAMPLE = 256  # objects whose views make the mean view
_LAG_NS = 1_000_000_000  # a map may show an object for this long after it was carried away
_MAX_LIKE = 8  # earlier objects with which a new one is compared, the most similar in extent
_MANY_LOST = 4  # of the objects of a loaded map; if more are lost than found again, the map is not trusted
_CONFIRMED_ANEW = 1.25  # hysteresis: factor on the score below which a confirmed object becomes tentative


@dataclass(frozen=True)
class ObjectHistory:
    """Evidence for an object's state and name.

    Attributes:
        found: perceptions that found it.
        looks: perceptions of its place, found or not.
        exists: probability that it exists.
        mean_score: mean score over these perceptions, 0 where nothing was found.
        right: probability that it exists and that name and box are right.
        votes: label -> sum of detection scores, slowly forgotten.
        user_label: label set by a user, which counts instead of the votes; empty where there is none.
    """

    found: int
    looks: int
    exists: float
    mean_score: float
    right: float
    votes: dict[str, float]
    user_label: str = ""


@dataclass
class ObjectMap:
    """See the module docstring. Not thread-safe.

    Attributes:
        config: everything tunable.
        name_of: label -> published name (:func:`~.inference.naming.published_name`); None = the label. The map and its
            file keep all labels; labels by users are published unchanged.
        image: features of recent images, for the appearance of objects in the next update; None = without.
        seen_through: share of (N, 3) points through which so many keyframes saw between two times, in the next update;
            None = without keyframes: then voxels, and the times at which blocks of the map got voxels, decide alone.
    """

    config: TrackingConfig = field(default_factory=TrackingConfig)
    name_of: Callable[[str], str] | None = None
    image: ImageSampler | None = None
    seen_through: Callable[[NDArray[np.float64], int, int, int], float] | None = None

    def __post_init__(self) -> None:
        self._tracks: dict[int, Track] = {}  # ids ascend
        self._next_id = 1
        self._updated_ns = 0
        self._updates = 0
        self.corrections = Corrections()
        self._forget_past()

    def _forget_past(self) -> None:
        self._places: tuple[list[Track], NDArray[np.float64]] | None = None  # objects and their ground
        self._changed_rows: list[int] = []  # of them, since then
        self._gone: dict[int, Track] = {}  # in the order in which they left
        self._fresh: dict[int, Track] = {}  # confirmed in this session; each may turn out to be an earlier object
        self._undecided = False  # there is news about identities
        self._waiting: list[tuple[int, ObjectEvent]] = []  # when it is due
        self._loaded, self._again, self._lost = set[int](), set[int](), set[int]()  # ids of a loaded map
        self._away = set[int]()  # ids that were gone when the map was loaded

    def __len__(self) -> int:
        return len(self._tracks)

    @property
    def updated_ns(self) -> int:
        """Time of the last update; 0 before the first."""
        return self._updated_ns

    def objects(self, states: Iterable[str] = ObjectState.ALL) -> tuple[SceneObject, ...]:
        """Objects in any of ``states``, by id."""
        wanted = set(states)
        gone = self._gone.values() if ObjectState.GONE in wanted else ()
        tracks = (*self._tracks.values(), *gone)
        return tuple(t.as_object(self.config, self.name_of) for t in tracks if t.state in wanted)

    @property
    def doubt(self) -> str:
        """Why moves are not believed; empty = they are."""
        lost, again = len(self._lost), len(self._again - self._lost)
        if lost < _MANY_LOST or lost <= again:
            return ""
        return (
            f"{lost} objects of the loaded map are not where it says, {again} are: is it the map of this place, and "
            "does it lie where it belongs? Until more are found again, no object counts as moved"
        )

    def probabilities(self, even: float, states: Iterable[str] = ObjectState.ALL) -> tuple[float, ...]:
        """Scores of :meth:`objects` if boxes with score ``even`` were right half of the time."""
        wanted = set(states)
        return tuple(t.probability(self.config, even) for t in self._tracks.values() if t.state in wanted)

    def update(
        self,
        found: Detections,
        snapshot: VoxelSnapshot,
        now_ns: int,
        camera_m: NDArray[np.float64] | None = None,
        reach_m: float = float("inf"),
        looked_at: Region | None = None,
        scores: ScorePolicy = EVERY_SCORE,
        confirm: bool = False,
    ) -> tuple[ObjectEvent, ...]:
        """Associate the detections of one perception with the objects.

        Args:
            found: detections of any score; of boxes that nearly coincide the best counts, whatever their names.
            snapshot: the map of the detections.
            now_ns: time on the clock of the frames.
            camera_m: (3,) camera position; objects further away than ``reach_m`` do not change.
            reach_m: radius within which the map is kept.
            looked_at: region of the detections; None = everything. Objects partly outside are not missed, and boxes cut
                by its border do not replace whole ones.
            scores: below ``publish`` a detection starts no object, below ``keep`` it is ignored. An object with a lower
                score than ``keep`` becomes tentative, unless a user named it, until its score is a quarter above.
            confirm: one detection confirms an object.

        Returns the changes that are certain enough by now, in the order of time.
        """
        dt_s = 1e-9 * max(0, now_ns - self._updated_ns)
        if dt_s > self.config.existence.pause_s:
            dt_s = 0.0  # there was no perception
        self._updated_ns = now_ns
        self._updates += 1
        found = self.corrections.without_denied(distinct(found.above(scores.keep), snapshot, self.config.association))
        look = _Look(
            found, _cut_by(looked_at, found.boxes), snapshot, now_ns, dt_s, camera_m, reach_m, looked_at, scores
        )
        near = self._near(look)
        matched = self._match(near, look)
        self._average_boxes(matched, look)
        for row in range(len(found)):
            if row in matched:
                self._see(matched[row], look, row)
            elif found.scores[row] >= scores.publish:
                matched[row] = self._begin(look, row)
                near.append(matched[row])
        seen = {t.id for t in matched.values()}
        near, alone = self._judge_places(near, seen, look)
        self._merge_duplicates(near, alone)
        for track in near:
            if track.id in self._tracks:
                track.confirmed |= confirm and track.id in seen
                self._set_state(track, scores, 1 if confirm else self.config.existence.confirm_count)
        self._remember([t for t in near if t.id in self._tracks], seen, snapshot, now_ns)
        due, waiting = list[ObjectEvent](), list[tuple[int, ObjectEvent]]()
        for at_ns, event in self._waiting:
            if 0 < at_ns - now_ns <= _WAIT_NS:  # not longer after a clock was set back
                waiting.append((at_ns, event))
            elif event.kind == EventKind.LEFT and not self._is_surely_empty(event.id):
                waiting.append((now_ns + _WAIT_NS, event))
            else:
                due.append(event)
        self._waiting = waiting
        if self.doubt:
            due = [event for event in due if event.id not in self._loaded]
        return tuple(sorted(due, key=lambda event: event.stamp_ns))

    def history(self, number: int) -> ObjectHistory:
        """Evidence for an object's state and name. Raises ``LookupError`` for an unknown id."""
        track = self._tracked(number)
        right = track.probability(self.config, track.reference)
        exists, votes = sigmoid(track.log_odds), dict(track.votes)
        return ObjectHistory(track.found, track.looks, exists, track.score, right, votes, track.user_label)

    def name(self, number: int, user_name: str) -> SceneObject:
        """Set a user's name for an object; empty removes it.

        Raises ``ValueError`` for an invalid name, a class name, or a name in use, ``LookupError`` for an unknown id.
        """
        track, known = self._tracked(number), {t.label for t in self._tracks.values()}
        wanted = check_user_name(user_name, known) if user_name.strip() else ""
        others = [t for t in self._tracks.values() if t.id != number and t.user_name.casefold() == wanted.casefold()]
        if wanted and others:
            raise ValueError(f"{wanted!r} is already the name of object {others[0].id}: remove it there first")
        track.user_name, track.published = wanted, None
        return track.as_object(self.config, self.name_of)

    def relabel(self, number: int, label: str) -> SceneObject:
        """Set an object's label for good. Raises as :meth:`name`."""
        track, wanted = self._tracked(number), check_words(label, "label")
        self.corrections.remember(Correction(number, track.box.copy(), track.label, wanted, self._updated_ns))
        track.user_label, track.published = wanted, None
        return track.as_object(self.config, self.name_of)

    def deny(self, number: int) -> SceneObject:
        """Remove an object and suppress its later detections. Raises ``LookupError`` for an unknown id."""
        track = self._tracked(number)
        self.corrections.remember(Correction(number, track.box.copy(), track.label, "", self._updated_ns))
        gone = track.as_object(self.config, self.name_of)
        self._remove(track)
        return gone

    def _tracked(self, number: int) -> Track:
        track = self._tracks.get(number) or next((t for t in self._tracks.values() if number in t.merged), None)
        if track is None:
            raise LookupError(f"there is no object {number}")
        return track

    def remove_inside(self, box: NDArray[np.float64]) -> tuple[int, ...]:
        """Remove objects centered in the (9,) ``box``; returns their ids."""
        gone = [t for t in self._tracks.values() if _is_centered_in(box, t.box)]
        for track in gone:
            self._remove(track)
        self.corrections.forget_inside(box)
        return tuple(t.id for t in gone)

    def move(self, motion_at: Callable[[int], NDArray[np.float64]]) -> None:
        """Move each object with a corrected world, by the motion at its last sighting; ids stay.

        ``motion_at(stamp_ns)``: (4, 4) rigid motion, old world -> new world, of data from that time.
        """
        self._places = None
        for track in (*self._tracks.values(), *self._gone.values()):
            track.is_back = True  # the map was rebuilt from keyframes and is thinner, as at a place seen again
            track.history, track.anchor = history.moved(track.history, motion_at), None
            T = motion_at(track.last_seen_ns or track.found_ns)
            if not np.allclose(T, np.eye(4), atol=1e-12):
                moved = transform_boxes(T, torch.from_numpy(track.box[None])).numpy()
                track.box, track.published = canonical_boxes(moved)[0], None
        self.corrections.move(motion_at)

    def clear(self) -> None:
        """Remove all objects and restart ids at 1, for a new map."""
        self._tracks = {}
        self._next_id = 1
        self._updated_ns = 0
        self.corrections = Corrections()
        self._forget_past()

    # ------------------------------------------------------------------------------------------------------- matching

    def _near(self, look: _Look) -> list[Track]:
        """Objects near the region or the detections, by id."""
        areas, found = [look.ground()], Bounds.of(look.found.boxes)
        if len(look.found):
            low, high = found.low[:, :2].min(axis=0), found.high[:, :2].max(axis=0)
            areas.append((low - _SURROUNDINGS_M, high + _SURROUNDINGS_M))
        if self._places is None:
            self._places = list(self._tracks.values()), _around(self._tracks.values())
        elif self._changed_rows:
            self._places[1][:, self._changed_rows] = _around(self._places[0][row] for row in self._changed_rows)
        tracks, (low_x, low_y, high_x, high_y) = self._places
        near = [(low_x <= x1) & (low_y <= y1) & (high_x >= x0) & (high_y >= y0) for (x0, y0), (x1, y1) in areas]
        self._changed_rows = np.flatnonzero(np.any(near, axis=0)).tolist()
        return [tracks[row] for row in self._changed_rows]

    def _match(self, near: Sequence[Track], look: _Look) -> dict[int, Track]:
        """Optimal one-to-one assignment: row of the detections -> track."""
        found = look.found
        if len(found) == 0 or not near:
            return {}
        labels = [t.label for t in near]
        same = np.array([[UNNAMED in (a, b) or a == b for b in found.labels] for a in labels])
        settled = np.array(
            [t.is_settled(self.config.estimates) and a != UNNAMED for t, a in zip(near, labels, strict=True)]
        )
        affinity = association_affinity(np.stack([t.box for t in near]), found.boxes, same, settled, look.cut)
        affinity[affinity < self.config.association.match_iou] = 0.0
        # squared: one good pair counts more than two poor ones
        rows, columns = scipy.optimize.linear_sum_assignment(affinity**2, maximize=True)
        return {int(j): near[i] for i, j in zip(rows, columns, strict=True) if affinity[i, j] > 0}

    def _average_boxes(self, matched: Mapping[int, Track], look: _Look) -> None:
        """Blend the boxes of known objects with the detected ones; a box that the border cuts changes no whole one."""
        rows = [row for row, track in matched.items() if not (look.cut[row] and track.whole)]
        tracks, scores = [matched[row] for row in rows], look.found.scores[rows]
        for row, track in zip(rows, tracks, strict=True):
            if not look.cut[row] and not track.whole:
                track.whole, track.weight = True, 0.0
        gains = np.maximum(
            scores / np.maximum([t.weight + s for t, s in zip(tracks, scores, strict=True)], 1e-12), 1e-3
        )
        old = _boxes_of(tracks)
        new = blend_boxes(old, look.found.boxes[rows], gains)
        disagrees = (new == old).all(axis=1) & (gains < 0.5)  # if that continues, the object has moved
        for n, box in enumerate(canonical_boxes(new)):
            if disagrees[n]:
                tracks[n].weight *= 0.5
            else:
                tracks[n].box = box.copy()
                tracks[n].weight = min(tracks[n].weight + float(scores[n]), self.config.estimates.box_memory)

    def _see(self, track: Track, look: _Look, row: int) -> None:
        found, scores, score = look.found, look.scores, float(look.found.scores[row])
        track.found += 1
        track.reported = found.is_reported(row)
        track.found_ns, track.unfound_s = look.now_ns, 0.0
        track.rate(score, self.config.estimates)
        track.log_odds = min(track.log_odds + self._for_detection(score, scores), self.config.existence.max_log_odds)
        track.reference = reference_score(scores, self.config)
        track.vote(found.labels[row], score, found.posterior(row), self.config.estimates.name_memory)

    def _begin(self, look: _Look, row: int) -> Track:
        found, scores, score = look.found, look.scores, float(look.found.scores[row])
        track = Track(
            id=self._next_id,
            box=found.boxes[row].copy(),
            log_odds=logit(self.config.existence.prior_existence) + self._for_detection(score, scores),
            score=0.0,
            votes={found.labels[row]: score},
            names=dict(found.posterior(row)),
            weight=score,
            found=1,
            looks=0,
            whole=not look.cut[row],
            missed=False,
            state=ObjectState.TENTATIVE,
            found_ns=look.now_ns,
            begun_ns=look.now_ns,
            reported=found.is_reported(row),
            unfound_s=0.0,
            last_seen_ns=0,
            support=0.0,
            surroundings=0.0,
            is_back=False,
            reference=reference_score(scores, self.config),
        )
        track.rate(score, self.config.estimates)
        self._next_id += 1
        self._tracks[track.id], self._places = track, None
        return track

    def _remove(self, track: Track, silently: bool = True) -> None:
        """Remove an object; ``silently``: with its events that were not told yet."""
        del self._tracks[track.id]
        self._places = None
        self._fresh.pop(track.id, None)
        if silently:
            self._waiting = [entry for entry in self._waiting if entry[1].id != track.id]

    # ----------------------------------------------------------------------------------------------------------- past

    def _leave(self, track: Track, reason: str, probability: float) -> None:
        """Remove an object that is not there any more, and remember it if it was more than a mistake."""
        before, is_known = track.as_object(self.config, self.name_of), bool(track.history) and track.is_known
        self._remove(track, silently=not is_known)
        if not is_known or track.label in FIXED:
            return
        track.note(self._updated_ns, EventKind.LEFT, probability, "", reason)
        track.state = ObjectState.GONE
        self._gone[track.id], self._undecided = track, True
        while len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]
        if track.id in self._loaded:
            self._lost.add(track.id)
        if probability > _UNSURE:
            self._wait(track, EventKind.LEFT, replace(before, state=ObjectState.GONE, history=track.history), None)

    def _wait(
        self, track: Track, kind: str, before: SceneObject | None, after: SceneObject | None, formerly: int = 0
    ) -> None:
        entry = track.history[-1]
        event = ObjectEvent(entry.stamp_ns, kind, track.id, before, after, entry.probability, entry.reason, formerly)
        wait_ns = _WAIT_NS if kind in (EventKind.APPEARED, EventKind.LEFT) else 0
        self._waiting.append((self._updated_ns + wait_ns, event))

    def _remember(self, near: list[Track], seen: set[int], snapshot: VoxelSnapshot, now_ns: int) -> None:
        """Update appearances and histories after a perception, and find out which new objects are earlier ones."""
        found = [t for t in near if t.id in seen]
        self._again |= self._loaded & seen
        due = [t for t in found if t.found <= 4 or t.found % 8 == 0]
        due = [t for t in due if t.present_ns >= now_ns - _WAIT_NS]  # old voxels do not look like it any more
        for track in sorted(due, key=lambda t: t.found)[:_LOOKS]:
            track.appearance.look(track.box, snapshot, self.image)
        doubtful = {i for t in self._fresh.values() for i in t.maybe}
        doubtful &= {t.id for t in found if now_ns - t.present_ns <= _LAG_NS}
        self._undecided |= bool(doubtful)  # where one of them stands still, another moved
        for track in near:
            if track.state != ObjectState.CONFIRMED:
                continue
            if track.history:
                self._follow(track, now_ns)
                self._undecided |= track.id in self._fresh and track.found <= 16 and track.found.bit_count() == 1
            else:
                here = Bounds.of(track.box[None]).iou(Bounds.of(_boxes_of(self._gone.values())))[0] > _REPLACED_IOU
                gone = [t for t, is_here in zip(self._gone.values(), here.tolist(), strict=True) if is_here]
                left_ns = max((t.history[-1].stamp_ns for t in gone if t.has_left), default=-1)
                if 0 < track.present_ns <= left_ns:  # detected in the voxels that an object left behind
                    track.state, track.replaced_ns, track.published = ObjectState.TENTATIVE, left_ns, None
                    continue
                put_there = bool(gone) or was_put_there(track.box, track.begun_ns, snapshot)
                if not put_there and self.seen_through is not None:
                    points = voxels_inside(track.box, snapshot).points_m
                    put_there = self.seen_through(points, -1, track.begun_ns, 1) >= _PUT_THERE_SHARE
                is_new = track.last_seen_ns >= track.begun_ns - _LAG_NS  # not detected in old voxels alone
                self._introduce(track, put_there and is_new and track.label not in FIXED)
                self._undecided = True
        if self._undecided and self._fresh and not self.doubt:
            self._undecided = False
            self._identify()

    def _introduce(self, track: Track, is_put_there: bool) -> None:
        """Begin the history of a newly confirmed object."""
        kind = EventKind.APPEARED if is_put_there else EventKind.FOUND
        reason = "its place was seen before, without it" if is_put_there else "first seen with its place"
        track.note(track.begun_ns, kind, track.probability(self.config, track.reference), track.label, reason)
        track.anchor = track.box.copy()
        self._fresh[track.id] = track
        while len(self._fresh) > _MAX_FRESH:  # the oldest that is no earlier one
            del self._fresh[min(self._fresh, key=lambda i: bool(self._fresh[i].maybe))]
        if is_put_there:
            self._wait(track, kind, None, track.as_object(self.config, self.name_of))

    def _follow(self, track: Track, now_ns: int) -> None:
        """Note that an object moved while it was followed, or has another name."""
        if track.anchor is None or track.found < _STEADY:
            track.anchor = track.box.copy()
        elif not track.missed and _has_moved(track.anchor, track.box):
            before = replace(track.as_object(self.config, self.name_of), box=track.anchor)
            track.anchor = track.box.copy()
            track.note(now_ns, EventKind.MOVED, 1.0, "", "followed while it moved")
            self._wait(track, EventKind.MOVED, before, track.as_object(self.config, self.name_of))
        name, announced = track.label, track.announced
        if name != announced and track.is_settled(self.config.estimates):
            after = track.as_object(self.config, self.name_of)
            share = 1.0 if track.user_label else track.name_share(name)
            track.note(now_ns, EventKind.RENAMED, share, name, f"it was {announced}" if announced else "")
            if announced != UNNAMED:
                self._wait(track, EventKind.RENAMED, replace(after, label=announced), after)

    def note_conditions(self, objects: Iterable[SceneObject], now_ns: int) -> None:
        """Note conditions of objects ("open") that two looks agree on; a change is an event of the next update."""
        for thing in objects:
            track = self._tracks.get(thing.id)
            if track is None or not track.history or not thing.condition:
                continue
            known = next((e.words for e in reversed(track.history) if e.kind == EventKind.STATE), "")
            if thing.condition != known and thing.condition == track.condition:
                track.note(now_ns, EventKind.STATE, 0.9, thing.condition, f"it was {known}" if known else "")
                if known:
                    self._wait(track, EventKind.STATE, replace(thing, condition=known), thing)
            track.condition = thing.condition

    def _identify(self) -> None:
        """Continue gone objects by new ones that are clearly the same, and note which others may be."""
        new = [t for t in self._fresh.values() if t.state == ObjectState.CONFIRMED and t.label not in FIXED]
        unseen = (t for t in self._tracks.values() if t.history and self._updated_ns - t.present_ns > _LAG_NS)
        old = [t for t in (*self._gone.values(), *unseen) if t.is_known and t.label not in FIXED]
        if not new or not old:
            return
        boxes = [_boxes_of(some) for some in (new, old)]
        sizes = [np.log(np.column_stack([b[:, 5], np.sort(b[:, 3:5], axis=1)]).clip(0.02)) for b in boxes]
        unlike = np.sqrt(((sizes[0][:, None] - sizes[1][None]) ** 2).mean(axis=2))
        earlier_ns = [max(t.begun_ns + 1, t.present_ns - _LAG_NS) for t in old]
        unlike[(unlike >= LIKE) | (np.array([t.begun_ns for t in new])[:, None] < earlier_ns)] = np.inf
        odds = np.full((len(new), len(old)), -np.inf)
        views = [t.appearance.views for t in islice(self._tracks.values(), _SAMPLE) if len(t.appearance.views)]
        mean_view = np.concatenate(views).astype(np.float32).mean(axis=0) if len(views) > 4 else None
        for n, track in enumerate(new):
            put_there = track.history[0].kind == EventKind.APPEARED
            prior = 0.0 if put_there else WEIGHTS.discovered
            for m in np.argsort(unlike[n], kind="stable")[:_MAX_LIKE]:
                if unlike[n, m] < LIKE and (track.id not in self._loaded or old[m].id in track.maybe):
                    odds[n, m] = old[m].odds_as(track, mean_view) + prior
        # A candidate whose place was seen empty explains a new object. Any other one must have been carried while no
        # camera looked: its odds are against all candidates of the first kind.
        has_left = np.array([t.has_left for t in old])
        odds[:, ~has_left] -= np.log1p(np.exp(odds[:, has_left]).sum(axis=1, keepdims=True))
        winners, probability = match(odds)
        for n, track in enumerate(new):
            if self._tracks.get(track.id) is not track:  # a newer one continues it
                continue
            earlier = old[winners[n][0]] if n in winners else None
            is_put_there = track.history[0].kind == EventKind.APPEARED
            # an object that no camera saw leaving moves only to a place where something was put down
            if earlier and (earlier.has_left or is_put_there or not _has_moved(earlier.box, track.box)):
                self._continue(earlier, track, winners[n][1])
                continue
            maybe = {old[m].id: round(float(p), 3) for m, p in enumerate(probability[n]) if p >= WEIGHTS.mentioned}
            if maybe != track.maybe:
                track.maybe, track.published = maybe, None

    def _continue(self, old: Track, new: Track, probability: float) -> None:
        """Let a new object be an earlier one: it takes its id, name and history. The voxels of an earlier one that
        no camera saw leaving stay in the map under another id until a camera sees their place."""
        before, formerly = old.as_object(self.config, self.name_of), new.id
        unannounced = any(e.id == old.id and e.kind == EventKind.LEFT for _, e in self._waiting)
        unannounced |= old.state == ObjectState.GONE and not old.has_left
        self._waiting = [entry for entry in self._waiting if entry[1].id != old.id]
        self._remove(new)
        if self._gone.pop(old.id, None) is None:
            self._remove(old)
            left = replace(old, id=self._next_id, state=ObjectState.TENTATIVE, published=None)
            left.history, left.maybe, left.merged, left.appearance = (), {}, [], Appearance()
            left.user_name, left.user_label, left.replaced_ns = "", "", self._updated_ns
            self._next_id += 1
            self._tracks[left.id] = left
        for track in self._tracks.values():
            if new.id in track.maybe or old.id in track.maybe:
                track.maybe = {i: p for i, p in track.maybe.items() if i not in (new.id, old.id)}
                track.published = None
        stamp_ns, new.id, old.id, new.maybe = new.history[0].stamp_ns, old.id, new.id, {}
        new.absorb(old)
        new.history = old.history[: -1 if unannounced else None]
        self._lost.discard(new.id)
        self._tracks = dict(sorted((self._tracks | {new.id: new}).items()))
        stays = not _has_moved(old.box, new.box)
        if stays and unannounced:
            return
        kind = EventKind.RETURNED if stays or (new.id in self._away and old.has_left) else EventKind.MOVED
        reason = f"{'its old place is empty' if old.has_left else 'it was put there'}, and it looks the same"
        reason += f"; known as object {formerly} until then"
        new.note(stamp_ns, kind, round(probability, 3), "", reason)
        self._wait(new, kind, before, new.as_object(self.config, self.name_of), formerly)

    # ------------------------------------------------------------------------------------------------------ existence

    def _for_detection(self, score: float, scores: ScorePolicy) -> float:
        """Log-odds that a detection adds: of an object against clutter."""
        against = logit(max(scores.keep, self.config.existence.clutter_score))
        return min(max(logit(score) - against, 0.0), self.config.existence.max_detection_log_odds)

    def _set_state(self, track: Track, scores: ScorePolicy, confirm_count: int) -> None:
        likely = track.log_odds >= 0.0
        state = track.state
        # an object that surely exists is not confirmed while its name and box are doubtful
        by_user = bool(track.user_label or track.user_name)
        least = scores.keep * (1.0 if state == ObjectState.CONFIRMED else _CONFIRMED_ANEW)
        right = by_user or track.probability(self.config, track.reference) >= least
        is_seen = track.present_ns > track.replaced_ns or not track.replaced_ns
        if likely and right and is_seen and track.found >= confirm_count:
            state = ObjectState.CONFIRMED
        elif state == ObjectState.CONFIRMED and not (likely and right):
            state = ObjectState.TENTATIVE if likely else ObjectState.STALE
        if state != track.state:
            track.state, track.published = state, None

    def _judge_places(self, near: Sequence[Track], matched: set[int], look: _Look) -> tuple[list[Track], set[int]]:
        """Update found objects; keep, doubt or remove missed ones (module docstring).

        Returns the remaining objects, and the ids of missed ones with voxels that no found object explains.
        """
        shown = look.shows(_boxes_of(near))
        looked = [t for t, is_shown in zip(near, shown, strict=True) if is_shown or t.id in matched]
        if not looked:
            return list(near), set()
        boxes = np.stack([t.box for t in looked])
        is_found = np.array([t.id in matched for t in looked])
        others, covered = found_inside(boxes, is_found)
        inside, _, newest_ns, explained = count_voxels_explained(
            look.snapshot, without_bottom(boxes), 0.0, others, boxes
        )
        around = count_voxels(look.snapshot, _columns(boxes), 0.0)[0] - inside
        gone, alone = set[int](), set[int]()
        for i, track in enumerate(looked):
            track.published = None
            track.missed = not is_found[i]
            track.is_back = track.missed and (track.is_back or track.looked_at < self._updates - 1)
            track.looked_at = self._updates
            if track.missed:
                rate = self._miss_rate(track, [looked[k] for k in others[i]], covered[i])
                if not self._survives(track, inside[i], explained[i], around[i], covered[i], rate, look):
                    gone.add(track.id)
                    # as many voxels as before, of another object or none, do not show that it left
                    own, places = inside[i] - explained[i], self.config.places
                    remaining = (1.0 - self._seen_through(track, look.snapshot, track.found_ns)) * inside[i]
                    is_less = inside[i] < _REMAINING_SHARE * track.support
                    is_less = is_less and emptiness(own, track.support, covered[i], places) < 0.0
                    if is_less or emptiness(remaining, track.support, 0.0, places) < 0.0:
                        self._leave(track, "its place was seen empty", 0.95)
                    else:
                        self._leave(track, "it was not found again", _UNSURE)
                elif inside[i] - explained[i] >= self.config.association.own_mass_share * max(inside[i], 1):
                    alone.add(track.id)
                continue
            # decays slowly, so that a box that loses voxels bit by bit still ends as empty
            track.support = max(float(inside[i]), 0.9 * track.support)
            track.surroundings = float(around[i])
            if max(track.last_seen_ns, track.present_ns) > self._updated_ns:  # of a file, or the clock was set back
                track.last_seen_ns = track.present_ns = 0
            track.replaced_ns = min(track.replaced_ns, self._updated_ns)
            if newest_ns[i] > track.present_ns:
                seen_ns, present_ns = last_seen(track.box, look.snapshot)
                track.last_seen_ns = max(track.last_seen_ns, seen_ns)
                track.present_ns = max(track.present_ns, present_ns)
        return [t for t in near if t.id not in gone], alone

    def _miss_rate(self, track: Track, others: Sequence[Track], covered: float) -> float:
        """Log-odds that a missed object loses per second; more where found objects explain its box (``covered``: the
        share that they fill) or its motion."""
        existence = self.config.existence
        newer = (other for other in others if other.begun_ns > track.begun_ns and other.label == track.label)
        if track.label != UNNAMED and any(track.odds_as(other) > 0.0 for other in newer):
            return existence.miss_log_odds_per_s * existence.moved_miss_factor
        explained = covered >= existence.explained_share
        return existence.miss_log_odds_per_s * (existence.explained_miss_factor if explained else 1.0)

    def _survives(
        self, track: Track, inside: float, explained: float, around: int, covered: float, rate: float, look: _Look
    ) -> bool:
        """Whether a missed object stays in the map.

        Args:
            inside: voxels in its box now.
            explained: those of them inside of other found objects.
            around: voxels around it.
            covered: share of its box that these objects fill.
            rate: log-odds that it loses per second.
        """
        existence, places = self.config.existence, self.config.places
        forgotten = around < places.forgotten_surroundings * track.surroundings
        if forgotten and inside < places.forgotten_support * max(track.support, 1.0):
            return True  # the map forgot the place
        track.rate(0.0, self.config.estimates)
        track.unfound_s += look.dt_s
        floor = existence.min_log_odds if track.state != ObjectState.TENTATIVE else -math.inf
        track.log_odds = max(track.log_odds - rate * look.dt_s, min(floor, track.log_odds))
        if inside:
            since_ns = max(track.found_ns, look.now_ns - round(look.dt_s * 1e9) - 1)
            opaque = 1.0 - self._seen_through(track, look.snapshot, since_ns)  # voxels seen through are cleared late
            inside, explained = opaque * inside, opaque * explained
        if not track.is_back:
            track.log_odds += emptiness(inside - explained, track.support, covered, places)
        elif inside < places.back_support * track.support and around >= places.back_surroundings * track.surroundings:
            track.log_odds += emptiness(inside, track.support, 0.0, places)
        tentative = track.state == ObjectState.TENTATIVE  # removed when no likelier than the prior
        if track.log_odds < (logit(existence.prior_existence) if tentative else existence.gone_log_odds):
            return False
        return track.unfound_s <= existence.max_unfound_s

    def _is_surely_empty(self, number: int) -> bool:
        """Whether a second keyframe confirms that an object left; without keyframes voxels decide alone."""
        track = self._gone.get(number)
        if track is None or self.seen_through is None:
            return True
        points = track.box[:3] + (_CORE * track.box[3:6]) @ box_rotations(track.box[None])[0].T
        return self.seen_through(points, track.present_ns, self._updated_ns + 1, 2) >= _AGAIN_SHARE

    def _seen_through(self, track: Track, snapshot: VoxelSnapshot, since_ns: int) -> float:
        """Share of the voxels of an object through which a keyframe saw since a time; 0 without keyframes."""
        if self.seen_through is None:
            return 0.0
        points = own_voxels(track.box, snapshot)[1].points_m
        return self.seen_through(points, since_ns, self._updated_ns + 1, 1)

    def _merge_duplicates(self, near: Sequence[Track], alone: set[int]) -> None:
        """Merge duplicates: of two that overlap strongly the likelier confirmed one stays, with the found box and the
        names of both. An object that has been missed for a while inside of a found one was a part of it.

        Two that were both found now are two objects, unless they fill one place. So are two that hardly overlap while
        the missed one still has own voxels.
        """
        if len(near) < 2:
            return
        rank = {ObjectState.CONFIRMED: 0, ObjectState.STALE: 1, ObjectState.TENTATIVE: 2}
        order = sorted((t for t in near if t.id in self._tracks), key=lambda t: (rank[t.state], t.id))
        boxes = np.stack([t.box for t in order])
        first, second = touching_pairs(boxes)
        thick = thickened(boxes)
        iou, share = paired_overlaps(thick[first], thick[second])
        thin_iou, _ = paired_overlaps(boxes[first], boxes[second])
        volume = thick[:, 3:6].prod(axis=1)
        gone: set[int] = set()
        for k, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            a, b = order[i], order[j]
            for part, whole, inside in ((a, b, share[k]), (b, a, share[k] * volume[i] / volume[j])):
                lost = part.missed and part.unfound_s > self.config.existence.part_s
                if lost and not whole.missed and inside >= INSIDE_SHARE and whole.label in (part.label, UNNAMED):
                    gone.add(part.id)
            if gone & {a.id, b.id}:
                continue
            two = not a.missed and not b.missed
            two |= bool({a.id, b.id} & alone) and float(thin_iou[k]) <= self.config.association.stacked_iou
            layers = a.reported and b.reported and are_layered(a.label, b.label)
            if not layers and is_one_object(float(iou[k]), float(thin_iou[k]), a.label, b.label, two):
                gone.add(b.id)
                if a.missed and not b.missed:
                    a.stand_as(b)
                a.absorb(b)
        for i in gone:
            self._remove(self._tracks[i])

    # ---------------------------------------------------------------------------------------------------- persistence

    def to_json(self) -> str:
        """All objects with their history as JSON text; :meth:`load_json` restores them exactly."""
        tracks = []
        for track in sorted((*self._tracks.values(), *self._gone.values()), key=lambda t: t.id):
            entry = {**vars(track), "box": track.box.tolist(), "history": history.to_list(track.history)}
            entry |= {"appearance": track.appearance.to_list(), "maybe": sorted(track.maybe.items())}
            for name in _PASSING:
                del entry[name]
            tracks.append(entry)
        data = {"version": _VERSION, "next_id": self._next_id, "updated_ns": self._updated_ns, "objects": tracks}
        data["corrections"] = self.corrections.to_list()
        return json.dumps(data, sort_keys=True)

    def load_json(self, text: str, source: str = "the map") -> None:
        """Replace all objects by those of :meth:`to_json`, of this or an older version.

        Names are cleaned as :func:`~.tensor_files.parse_json` says, with the file ``source``. Raises ``ValueError`` for
        invalid text, without a change.
        """
        try:
            data = plain_values.mapping(parse_json(text, source), "objects")
            version = data["version"]
            if version not in range(1, _VERSION + 1):
                raise ValueError(f"objects have version {version}, this program reads {_VERSION}")
            tracks = [
                track_from_json(upgraded_entry(entry, version, self.config.estimates))
                for entry in plain_values.sequence(data["objects"], "objects")
            ]
            next_id = plain_values.whole(data["next_id"], "next_id", 1, MAX_ID)
            updated_ns = plain_values.stamp_ns(data.get("updated_ns", 0), "updated_ns")
            corrections = Corrections.from_list(plain_values.sequence(data.get("corrections", []), "corrections"))
        except (KeyError, TypeError, OverflowError, json.JSONDecodeError) as error:
            raise ValueError(f"objects cannot be read: {type(error).__name__}: {error}") from error
        ids = [t.id for t in tracks]
        if ids != sorted(set(ids)) or any(not 0 < i < next_id for i in ids):
            raise ValueError(f"objects cannot be read: ids {ids} do not ascend within 1..{next_id - 1}")
        self.clear()
        self._tracks = {t.id: t for t in tracks if t.state != ObjectState.GONE}
        gone = sorted((t for t in tracks if t.state == ObjectState.GONE), key=lambda t: t.history[-1].stamp_ns)
        self._gone = {t.id: t for t in gone}
        for track in self._tracks.values():
            if track.state == ObjectState.CONFIRMED and not track.history:  # a map of an older version
                track.note(track.found_ns, EventKind.FOUND, words=track.label)
            if track.maybe and track.history:  # not decided yet
                track.begun_ns, self._fresh[track.id] = track.history[0].stamp_ns, track
        self._loaded, self._away = set(self._tracks), set(self._gone)
        self._next_id, self._updated_ns = next_id, updated_ns
        self.corrections = corrections


def emptiness(unexplained: float, support: float, covered: float, config: PlaceConfig) -> float:
    """Log-odds, at most 0, that the remaining voxels in a box add to an object's existence.

    Args:
        unexplained: voxels in the box outside of other found objects.
        support: voxels when the object was found.
        covered: share of the box that other objects fill and hide.
        config: distribution of the remaining share where an object is there and where it is gone.
    """
    expected = support * (1.0 - covered)
    if 1.0 - covered < config.least_open or expected < config.least_support:
        return 0.0
    share = min(unexplained / expected, 1.0)
    there = -0.5 * ((share - config.there_share) / config.there_sigma) ** 2 - math.log(config.there_sigma)
    gone = -0.5 * ((share - config.gone_share) / config.gone_sigma) ** 2 - math.log(config.gone_sigma)
    return min(there - gone, 0.0)


def _columns(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 9) boxes of the surroundings of (N, 9) boxes. They reach down to the floor, which shows whether the place of
    a hanging or high object is mapped."""
    bounds = Bounds.of(boxes)
    margin = np.array([_SURROUNDINGS_M, _SURROUNDINGS_M, _COLUMN_M])
    center, size = 0.5 * (bounds.low + bounds.high), bounds.extent + 2.0 * margin
    return np.concatenate([center, size, np.zeros_like(center)], axis=1)


def distinct(found: Detections, snapshot: VoxelSnapshot, config: AssociationConfig) -> Detections:
    """The best boxes without duplicates of one object; boxes of a network must contain a voxel."""
    if len(found) == 0:
        return found
    order = np.argsort(-found.scores, kind="stable")
    if any(label != UNNAMED for label in found.labels):
        order = order[: config.max_found]
        inside, _, _ = count_voxels(snapshot, without_bottom(found.boxes[order]), 0.0, enough=1)
        order = order[inside > 0]
    boxes = found.boxes[order]
    first, second, thin_iou = one_object_pairs(boxes, [found.labels[row] for row in order])
    better: list[list[tuple[int, float]]] = [[] for _ in order]
    for i, j, thin in zip(first.tolist(), second.tolist(), thin_iou.tolist(), strict=True):
        a, b = int(order[i]), int(order[j])
        layers = found.is_reported(a) and found.is_reported(b) and are_layered(found.labels[a], found.labels[b])
        if not layers:
            better[j].append((i, thin))
    kept = np.zeros(len(order), dtype=bool)
    for j in range(len(order)):
        kept[j] = not any(
            kept[i]
            and not (thin <= config.stacked_iou and _have_own_mass(snapshot, boxes[[i, j]], config.own_mass_share))
            for i, thin in better[j]
        )
    return found.take(order[kept])


def _have_own_mass(snapshot: VoxelSnapshot, pair: NDArray[np.float64], share: float) -> bool:
    """Whether two boxes (2, 9) each hold voxels outside of the other: books, plates, panes."""
    inside, _, _, explained = count_voxels_explained(snapshot, pair, 0.0, [[1], [0]], pair)
    return bool((explained <= (1.0 - share) * inside).all() and (inside > 0).all())


def _has_moved(before: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
    """Whether a (9,) box is elsewhere: not only grown, and not by less than its own size can be wrong."""
    away_m = float(np.linalg.norm(after[:3] - before[:3]))  # never less than the displacement
    if away_m < _MOVED_M or float(np.linalg.norm(displacement(before, after))) < _MOVED_M:
        return False
    return float(Bounds.of(before[None]).iou(Bounds.of(after[None]))[0, 0]) < _SAME_PLACE_IOU


def _cut_by(region: Region | None, boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(N,) whether (N, 9) boxes lie partly outside of the region."""
    if region is None:
        return np.zeros(len(boxes), np.bool_)
    R = region.manhattan.T_world_manhattan[:3, :3].T @ box_rotations(boxes)
    center, half = region.manhattan.from_world(boxes[:, :3]), (np.abs(R) @ boxes[:, 3:6, None])[..., 0] / 2
    cut: NDArray[np.bool_] = ((center - half < region.lower_m) | (center + half > region.upper_m)).any(axis=1)
    return cut
