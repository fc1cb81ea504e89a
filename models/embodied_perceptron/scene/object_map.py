"""Objects with persistent ids: detections of each perception are associated with the objects of the map.

An object is *tentative* until it was found in ``confirm_count`` perceptions, then *confirmed*; *stale* when it is not
found any more although its place still looks occupied. Ids count up from 1 and are never reused within a map, and the
same sequence of updates gives the same ids.

When an object is not found, its place decides. The voxels in its box are still there: it waits. They vanished but the
surroundings are still mapped: it was seen empty, and the object is gone. The surroundings vanished too: the map
forgot the place (memory is bounded), and the object stays as it was. Likewise an object out of reach, or not whole
within what was looked at: time in which nobody looked does not count. What waits in vain for long is dropped.

Something that was moved keeps its id where its new box still overlaps the old one enough to be matched; otherwise the
old object expires as soon as its place is seen empty, and what stands elsewhere gets a new id.

The score of an object is the mean over the latest looks at its place, of what was found there and zero where nothing
was, beginning with ``score_prior`` looks of zero: often and middling beats once and high. The label is that with the
most score over the latest sightings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, ObjectsConfig, ScorePolicy
from embodied_perceptron.geometry.boxes import box_rotations, transform_boxes
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.results import UNNAMED, Detections, ObjectState, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.identity import (
    INSIDE_SHARE,
    blend_boxes,
    box_affinity,
    one_object_iou,
    overlaps,
    thickened,
)

_EMPTY_SHARE = 0.3  # of its voxels left: the object is gone
_KNOWN_SHARE = 0.5  # of the surrounding voxels left: the place is still mapped
_SURROUNDINGS_M = 0.3
_TENTATIVE_NS = 2_000_000_000  # not found for longer: a tentative object goes
_PART_NS = 2_000_000_000  # one inside of another that is found was a part of it
_CONFIRMED_NS = 4_000_000_000  # a confirmed one grows stale
_STALE_NS = 60_000_000_000  # a stale one goes
_PAUSE_NS = 30_000_000_000  # between two updates: nobody looked
_OTHER_LABEL = 0.7  # affinity across labels
_SCORE_MEMORY = 20  # looks
_VOTE_MEMORY = 0.9  # of the votes, at each sighting
_MAX_FOUND = 128  # boxes of one perception; the best
_VERSION = 2
_BOTTOM_M, _BOTTOM_SHARE = 0.1, 0.25


@dataclass
class _Track:
    """One object with its history."""

    id: int
    box: NDArray[np.float64]
    score: float
    votes: dict[str, float]
    found: int
    looks: int  # at its place, found or not
    whole: bool  # the box was never cut by the border of what was looked at
    missed: bool  # by the last perception
    state: str
    found_ns: int  # when it was last found, plus the time since in which nobody looked
    last_seen_ns: int  # newest evidence for it then
    support: float  # voxels in the box when it was found
    surroundings: float  # voxels around the box then

    @property
    def label(self) -> str:
        return max(sorted(self.votes), key=lambda name: self.votes[name])

    def rate(self, score: float, prior: int) -> None:
        """One more look at its place: the score of what was found, or zero."""
        self.looks += 1
        self.score += (score - self.score) / min(self.looks + prior, _SCORE_MEMORY + prior)

    def excuse(self, away_ns: int, now_ns: int) -> None:
        """Nobody looked for so long: that is no time in which it was not found."""
        self.found_ns = max(self.found_ns, min(now_ns, self.found_ns + away_ns))

    def vote(self, label: str, score: float) -> None:
        self.votes = {name: v * _VOTE_MEMORY for name, v in self.votes.items() if v > 1e-3}
        self.votes[label] = self.votes.get(label, 0.0) + score

    def absorb(self, other: _Track) -> None:
        """Merge the history of the same thing under another id."""
        if self.missed and not other.missed:
            self.box, self.missed, self.whole = other.box.copy(), False, other.whole
            self.support, self.surroundings = other.support, other.surroundings
        self.score = max(self.score, other.score)
        self.found += other.found
        self.found_ns = max(self.found_ns, other.found_ns)
        self.last_seen_ns = max(self.last_seen_ns, other.last_seen_ns)
        for label, votes in other.votes.items():
            self.votes[label] = self.votes.get(label, 0.0) + votes

    def as_object(self) -> SceneObject:
        return SceneObject(self.id, self.label, self.score, self.box.copy(), self.state, self.last_seen_ns)


@dataclass
class ObjectMap:
    """See the module docstring. Not thread-safe."""

    config: ObjectsConfig = field(default_factory=ObjectsConfig)

    def __post_init__(self) -> None:
        self._tracks: list[_Track] = []  # by id
        self._next_id = 1
        self._updated_ns = 0

    def __len__(self) -> int:
        return len(self._tracks)

    @property
    def updated_ns(self) -> int:
        """The time of the last update; 0 before the first."""
        return self._updated_ns

    def objects(self, states: Iterable[str] = ObjectState.ALL) -> tuple[SceneObject, ...]:
        """Objects in any of ``states``, by id."""
        wanted = set(states)
        return tuple(t.as_object() for t in self._tracks if t.state in wanted)

    def update(
        self,
        found: Detections,
        snapshot: VoxelSnapshot,
        now_ns: int,
        camera_m: NDArray[np.float64] | None = None,
        reach_m: float = float("inf"),
        looked_at: Region | None = None,
        scores: ScorePolicy = EVERY_SCORE,
    ) -> None:
        """Associate the detections of one perception with the objects.

        Args:
            found: detections of any score; of boxes that nearly coincide the best counts, whatever their names.
            snapshot: the map that they were found in.
            now_ns: the time, on the clock of the frames.
            camera_m: (3,) where the camera is; objects further away than ``reach_m`` are left alone.
            reach_m: radius within which the map is kept.
            looked_at: the region of the detections; None = everything. Objects that do not lie in it whole are not
                missed, and boxes that it cuts do not replace whole ones.
            scores: below ``publish`` a detection begins no object, below ``keep`` it is ignored.
        """
        away_ns = max(0, now_ns - self._updated_ns)
        self._updated_ns = now_ns
        if away_ns > _PAUSE_NS:
            for track in self._tracks:
                track.excuse(away_ns, now_ns)
            away_ns = 0
        found = _distinct(found.above(scores.keep), snapshot)
        matched = self._match(found)
        for row in range(len(found)):
            whole = not _cut_by(looked_at, found.boxes[row])
            if row in matched:
                self._see(matched[row], found, row, now_ns, whole)
            elif found.scores[row] >= scores.publish:
                matched[row] = self._begin(found, row, now_ns, whole)
        seen = {t.id for t in matched.values()}
        self._judge_places(seen, snapshot, now_ns, away_ns, camera_m, reach_m, looked_at)
        self._merge_duplicates(now_ns)

    def remove_inside(self, box: NDArray[np.float64]) -> tuple[int, ...]:
        """Forget objects whose centre lies in the (9,) ``box``; returns their ids."""
        R = box_rotations(box[None])[0]
        gone = [t for t in self._tracks if (np.abs((t.box[:3] - box[:3]) @ R) <= box[3:6] / 2).all()]
        self._tracks = [t for t in self._tracks if t not in gone]
        return tuple(t.id for t in gone)

    def move(self, motion_at: Callable[[int], NDArray[np.float64]]) -> None:
        """The world was corrected: each object moves, with its id, as what was seen of it last does.

        ``motion_at(stamp_ns)`` is the (4, 4) rigid motion, old world -> new world, of what was seen at that time.
        """
        for track in self._tracks:
            T = motion_at(track.last_seen_ns or track.found_ns)
            if not np.allclose(T, np.eye(4), atol=1e-12):
                track.box = transform_boxes(T, torch.from_numpy(track.box[None])).numpy()[0]

    def clear(self) -> None:
        """Forget all objects. Ids start at 1 again: it is a new map."""
        self._tracks = []
        self._next_id = 1
        self._updated_ns = 0

    # ------------------------------------------------------------------------------------------------------- matching

    def _match(self, found: Detections) -> dict[int, _Track]:
        """Row of ``found`` -> track, one to one, best affinity first."""
        if len(found) == 0 or not self._tracks:
            return {}
        affinity = box_affinity(np.stack([t.box for t in self._tracks]), found.boxes)
        names = np.array([t.label for t in self._tracks])
        affinity = np.where(names[:, None] == np.array(found.labels)[None, :], affinity, affinity * _OTHER_LABEL)
        pairs = [
            (-affinity[i, j], self._tracks[i].id, int(j), int(i))
            for i, j in np.argwhere(affinity >= self.config.match_iou)
        ]
        matched: dict[int, _Track] = {}
        used: set[int] = set()
        for _, _, j, i in sorted(pairs):
            if j not in matched and i not in used:
                matched[j] = self._tracks[i]
                used.add(i)
        return matched

    def _see(self, track: _Track, found: Detections, row: int, now_ns: int, whole: bool) -> None:
        track.found += 1
        track.found_ns = now_ns
        track.rate(float(found.scores[row]), self.config.score_prior)
        track.vote(found.labels[row], float(found.scores[row]))
        if whole or not track.whole:
            track.box = found.boxes[row].copy() if whole > track.whole else blend_boxes(track.box, found.boxes[row])
            track.whole = whole
        if track.state == ObjectState.STALE or track.found >= self.config.confirm_count:
            track.state = ObjectState.CONFIRMED

    def _begin(self, found: Detections, row: int, now_ns: int, whole: bool) -> _Track:
        score = float(found.scores[row])
        state = ObjectState.CONFIRMED if self.config.confirm_count <= 1 else ObjectState.TENTATIVE
        votes = {found.labels[row]: score}
        box = found.boxes[row].copy()
        track = _Track(self._next_id, box, 0.0, votes, 1, 0, whole, False, state, now_ns, 0, 0.0, 0.0)
        track.rate(score, self.config.score_prior)
        self._next_id += 1
        self._tracks.append(track)
        return track

    # ------------------------------------------------------------------------------------------------------ existence

    def _judge_places(
        self,
        matched: set[int],
        snapshot: VoxelSnapshot,
        now_ns: int,
        away_ns: int,
        camera_m: NDArray[np.float64] | None,
        reach_m: float,
        looked_at: Region | None,
    ) -> None:
        """Update what was found; let what was not found wait, fade or go (module docstring)."""
        if not self._tracks:
            return
        boxes = without_bottom(np.stack([t.box for t in self._tracks]))
        inside, around, newest_ns = count_voxels(snapshot, boxes, _SURROUNDINGS_M)
        kept = []
        for i, track in enumerate(self._tracks):
            track.missed = track.id not in matched
            if not track.missed:
                # slowly downwards: a box that loses voxels bit by bit still ends as empty
                track.support = max(float(inside[i]), 0.9 * track.support)
                track.surroundings = float(around[i])
                track.last_seen_ns = max(track.last_seen_ns, int(newest_ns[i]))
                kept.append(track)
                continue
            if self._out_of_reach(track, camera_m, reach_m) or _cut_by(looked_at, track.box):
                track.excuse(away_ns, now_ns)
                kept.append(track)
            elif self._survives(track, int(inside[i]), int(around[i]), now_ns):
                kept.append(track)
        self._tracks = kept

    @staticmethod
    def _out_of_reach(track: _Track, camera_m: NDArray[np.float64] | None, reach_m: float) -> bool:
        if camera_m is None:
            return False
        half_diagonal = float(np.linalg.norm(track.box[3:6])) / 2
        return float(np.linalg.norm(track.box[:3] - camera_m)) > reach_m - half_diagonal

    def _survives(self, track: _Track, inside: int, around: int, now_ns: int) -> bool:
        """Whether an object stays whose place was looked at without finding it."""
        if inside < _EMPTY_SHARE * max(track.support, 1.0):
            return around < _KNOWN_SHARE * track.surroundings  # the map forgot the place: nothing is known
        track.rate(0.0, self.config.score_prior)
        unfound_ns = now_ns - track.found_ns
        if track.state == ObjectState.TENTATIVE:
            return unfound_ns <= _TENTATIVE_NS
        if unfound_ns > _CONFIRMED_NS:
            track.state = ObjectState.STALE
        return unfound_ns <= _STALE_NS

    def _merge_duplicates(self, now_ns: int) -> None:
        """One object for each thing: of two that overlap strongly the lower confirmed id stays, with the box that was
        found and the votes of both; what has not been found for a while and lies inside what is, was a part of it."""
        if len(self._tracks) < 2:
            return
        rank = {ObjectState.CONFIRMED: 0, ObjectState.STALE: 1, ObjectState.TENTATIVE: 2}
        order = sorted(self._tracks, key=lambda t: (rank[t.state], t.id))
        boxes = thickened(np.stack([t.box for t in order]))
        iou, share = overlaps(boxes, boxes)
        names = [t.label for t in order]
        found = np.array([not t.missed for t in order])
        gone: set[int] = set()
        for i, track in enumerate(order):
            lost = track.missed and now_ns - track.found_ns > _PART_NS
            whole = found & (share[i] >= INSIDE_SHARE)
            if lost and any(names[j] in (names[i], UNNAMED) for j in np.flatnonzero(whole)):
                gone.add(track.id)
        for i, keeper in enumerate(order):
            for j in range(i + 1, len(order)):
                if iou[i, j] >= one_object_iou(names[i], names[j]) and not gone & {keeper.id, order[j].id}:
                    gone.add(order[j].id)
                    keeper.absorb(order[j])
        self._tracks = [t for t in self._tracks if t.id not in gone]

    # ---------------------------------------------------------------------------------------------------- persistence

    def to_json(self) -> str:
        """All objects with their history, as JSON text that :meth:`load_json` reads back exactly."""
        tracks = [{**vars(t), "box": t.box.tolist()} for t in self._tracks]
        data = {"version": _VERSION, "next_id": self._next_id, "updated_ns": self._updated_ns, "objects": tracks}
        return json.dumps(data, sort_keys=True)

    def load_json(self, text: str) -> None:
        """Replace all objects by those of :meth:`to_json`. Raises ``ValueError`` and changes nothing when it cannot."""
        try:
            data = json.loads(text)
            version = data["version"]
            if version not in (1, _VERSION):
                raise ValueError(f"objects have version {version}, this program reads {_VERSION}")
            older = {"looks": 1, "whole": True} if version == 1 else {}
            tracks = [_track_from({**older, **entry}) for entry in data["objects"]]
            next_id, updated_ns = int(data["next_id"]), int(data.get("updated_ns", 0))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"objects cannot be read: {type(error).__name__}: {error}") from error
        ids = [t.id for t in tracks]
        if ids != sorted(set(ids)) or any(not 0 < i < next_id for i in ids):
            raise ValueError(f"objects cannot be read: ids {ids} do not ascend within 1..{next_id - 1}")
        self._tracks, self._next_id, self._updated_ns = tracks, next_id, updated_ns


def _track_from(entry: dict[str, Any]) -> _Track:
    track = _Track(**{**entry, "box": np.array(entry["box"], dtype=np.float64)})
    if track.box.shape != (9,) or not np.isfinite(track.box).all():
        raise ValueError(f"object {track.id} has the box {entry['box']}")
    if track.state not in ObjectState.ALL or not track.votes:
        raise ValueError(f"object {track.id} has state {track.state!r} and labels {track.votes}")
    return track


def _distinct(found: Detections, snapshot: VoxelSnapshot) -> Detections:
    """The best boxes; of named ones that nearly coincide the better, and none in space without a single voxel."""
    named = [label != UNNAMED for label in found.labels]
    if not any(named):
        return found
    order = np.argsort(-found.scores, kind="stable")[:_MAX_FOUND]
    inside, _, _ = count_voxels(snapshot, without_bottom(found.boxes[order]), 0.0, enough=1)
    order = order[inside > 0]
    boxes = thickened(found.boxes[order])
    iou, _ = overlaps(boxes, boxes)
    kept: list[int] = []
    for i, row in enumerate(order):
        if all(iou[i, j] < one_object_iou(found.labels[row], found.labels[order[j]]) for j in kept):
            kept.append(i)
    return found.take(order[kept])


def _cut_by(region: Region | None, box: NDArray[np.float64]) -> bool:
    """Whether a (9,) box does not lie whole within the region."""
    if region is None:
        return False
    R = region.manhattan.T_world_manhattan[:3, :3].T @ box_rotations(box[None])[0]
    center, half = region.manhattan.from_world(box[:3]), np.abs(R) @ (box[3:6] / 2)
    return bool(((center - half < region.lower_m) | (center + half > region.upper_m)).any())


# --------------------------------------------------------------------------------------------------------------------
# evidence of a map for a box: the voxels in it, and those around it


def without_bottom(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, 9) boxes with their lowest part cut off: what they stand on is no evidence for them."""
    lift = np.minimum(_BOTTOM_M, _BOTTOM_SHARE * boxes[:, 5])
    raised: NDArray[np.float64] = boxes.copy()
    raised[:, :3] += 0.5 * lift[:, None] * box_rotations(boxes)[:, :, 2]
    raised[:, 5] -= lift
    return raised


def count_voxels(
    snapshot: VoxelSnapshot, boxes: NDArray[np.float64], margin_m: float, enough: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Voxels in each of (B, 9) boxes, those outside but within ``margin_m``, and the newest stamp of those inside.

    Voxels count by their mean points; boxes are widened by half a voxel, so that surfaces on a face count as inside.
    ``enough``: stop counting for a box that has so many inside.
    """
    if len(boxes) == 0 or len(snapshot) == 0:
        nothing = np.zeros(len(boxes), np.int64)
        return nothing, nothing.copy(), nothing.copy()
    R = box_rotations(boxes)
    half = boxes[:, 3:6] / 2 + snapshot.voxel_size_m / 2
    # half the edges of the upright bounds of all that counts; a little more, for rounding
    reach = np.einsum("bij,bj->bi", np.abs(R), half + margin_m) + 1e-3 * snapshot.voxel_size_m
    # the snapshot is sorted by x, then y: only a slab of it can lie in a box, and of each of its layers only a strip
    x = snapshot.coords[:, 0]
    low = np.floor((boxes[:, :2] - reach[:, :2]) / snapshot.voxel_size_m).astype(np.int64)
    high = np.ceil((boxes[:, :2] + reach[:, :2]) / snapshot.voxel_size_m).astype(np.int64)
    first = np.searchsorted(x, low[:, 0], side="left")
    last = np.searchsorted(x, high[:, 0], side="right")
    rows = np.stack([first, last], axis=1).astype(np.int64)
    counts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] = _count_in_slabs(
        snapshot.mean_point_m,
        snapshot.last_seen_ns,
        snapshot.coords,
        rows,
        np.stack([low[:, 1], high[:, 1]], axis=1),
        boxes[:, :3].copy(),
        R,
        half,
        reach[:, 2].copy(),
        margin_m,
        len(snapshot) if enough is None else enough,
    )
    return counts


@njit(cache=True, nogil=True)
def _count_in_slabs(
    points: NDArray[np.float32],
    stamps: NDArray[np.int64],
    coords: NDArray[np.int32],
    slabs: NDArray[np.int64],
    strips: NDArray[np.int64],
    center: NDArray[np.float64],
    R: NDArray[np.float64],
    half: NDArray[np.float64],
    reach_z: NDArray[np.float64],
    margin: float,
    enough: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    inside = np.zeros(len(center), np.int64)
    around = np.zeros(len(center), np.int64)
    newest = np.zeros(len(center), np.int64)
    for b in range(len(center)):
        row, last = slabs[b]
        while row < last:
            if coords[row, 1] < strips[b, 0]:
                row = _first_not_below(coords, row, last, coords[row, 0], strips[b, 0])
                continue
            if coords[row, 1] > strips[b, 1]:
                row = _first_not_below(coords, row, last, coords[row, 0] + 1, strips[b, 0])
                continue
            if abs(points[row, 2] - center[b, 2]) > reach_z[b]:
                row += 1
                continue
            excess = -1e9
            for axis in range(3):
                local = 0.0
                for k in range(3):
                    local += (points[row, k] - center[b, k]) * R[b, k, axis]
                excess = max(excess, abs(local) - half[b, axis])
            if excess <= 0.0:
                inside[b] += 1
                newest[b] = max(newest[b], stamps[row])
                if inside[b] >= enough:
                    break
            elif excess <= margin:
                around[b] += 1
            row += 1
    return inside, around, newest


@njit(cache=True, nogil=True)
def _first_not_below(coords: NDArray[np.int32], first: int, last: int, x: int, y: int) -> int:
    """First row of [first, last) whose voxel is not before (x, y); ``last`` when there is none."""
    while first < last:
        middle = (first + last) // 2
        if coords[middle, 0] < x or (coords[middle, 0] == x and coords[middle, 1] < y):
            first = middle + 1
        else:
            last = middle
    return first
