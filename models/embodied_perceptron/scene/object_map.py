"""Objects with persistent ids: what is found in one perception is matched with what is known.

An object is *tentative* until it was found in ``confirm_count`` perceptions, then *confirmed*; *stale* when it is not
found any more although its place still looks occupied. Ids count up from 1 and are never reused within a map, and the
same sequence of updates gives the same ids.

When an object is not found, its place decides. The voxels in its box are still there: it waits. They vanished but the
surroundings are still mapped: it was seen empty, and the object is gone. The surroundings vanished too: the map forgot
the place (memory is bounded), and the object stays as it was. Likewise an object out of reach. An object that moved
to where its old box does not overlap gets a new id.
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

from embodied_perceptron.boxes import box_iou, matrix_to_euler, rotations
from embodied_perceptron.config import ObjectsConfig
from embodied_perceptron.results import ObjectState, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.detections import Detections

_EMPTY_SHARE = 0.3  # of its voxels left: the object is gone
_KNOWN_SHARE = 0.5  # of the surrounding voxels left: the place is still mapped
_SURROUNDINGS_M = 0.3
_TENTATIVE_NS = 2_000_000_000  # not found for longer: a tentative object goes
_PART_NS = 2_000_000_000  # one inside of another that is found was a part of it
_CONFIRMED_NS = 4_000_000_000  # a confirmed one grows stale
_BOTTOM_M, _BOTTOM_SHARE = 0.1, 0.25
_SAME_IOU = 0.5  # two objects that overlap this much are one
_INSIDE_SHARE = 0.7  # of a box inside another counts as containment
_MIN_VOLUME_RATIO = 0.15
_OTHER_LABEL = 0.7  # affinity across labels
_SCORE_MEMORY = 10
_BLEND_IOU = 0.6
_VERSION = 1


@dataclass
class _Track:
    """One object with its history."""

    id: int
    box: NDArray[np.float64]
    score: float
    votes: dict[str, float]
    found: int
    missed: bool  # by the last perception
    state: str
    found_ns: int  # when it was last found
    last_seen_ns: int  # newest evidence for it then
    support: float  # voxels in the box when it was found
    surroundings: float  # voxels around the box then

    @property
    def label(self) -> str:
        return max(sorted(self.votes), key=lambda name: self.votes[name])

    def absorb(self, other: _Track) -> None:
        """Take over what is known of the same thing under another id."""
        if self.missed and not other.missed:
            self.box, self.missed = other.box.copy(), False
            self.support, self.surroundings = other.support, other.surroundings
        self.found += other.found
        self.found_ns = max(self.found_ns, other.found_ns)
        self.last_seen_ns = max(self.last_seen_ns, other.last_seen_ns)
        for label, votes in other.votes.items():
            self.votes[label] = self.votes.get(label, 0.0) + votes

    def as_object(self) -> SceneObject:
        return SceneObject(self.id, self.label, self.score, self.box.copy(), self.state, self.last_seen_ns)


@dataclass
class ObjectMap:
    """See the module docstring. Not thread-safe: its owner locks."""

    config: ObjectsConfig = field(default_factory=ObjectsConfig)

    def __post_init__(self) -> None:
        self._tracks: list[_Track] = []  # by id
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._tracks)

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
        looked_at: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    ) -> None:
        """Bring the objects up to date with one perception.

        Args:
            found: what was found.
            snapshot: the map that it was found in.
            now_ns: the time, on the clock of the frames.
            camera_m: (3,) where the camera is; objects further away than ``reach_m`` are left alone.
            reach_m: radius within which the map is kept.
            looked_at: (3,) lowest and highest corner of what was looked at; objects that do not lie in it whole are
                not missed. None = everything.
        """
        matched = self._match(found)
        for row, track in matched.items():
            self._see(track, found, row, now_ns)
        for row in range(len(found)):
            if row not in matched:
                matched[row] = self._begin(found, row, now_ns)
        self._judge_places({t.id for t in matched.values()}, snapshot, now_ns, camera_m, reach_m, looked_at)
        self._merge_duplicates(now_ns)

    def remove_inside(self, box: NDArray[np.float64]) -> tuple[int, ...]:
        """Forget objects whose centre lies in the (9,) ``box``; returns their ids."""
        R = _rotations(box[None])[0]
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
                R = torch.from_numpy(T[:3, :3] @ _rotations(track.box[None])[0])
                moved = np.concatenate(
                    [T[:3, :3] @ track.box[:3] + T[:3, 3], track.box[3:6], matrix_to_euler(R).numpy()]
                )
                track.box = moved

    def clear(self) -> None:
        """Forget all objects. Ids start at 1 again: it is a new map."""
        self._tracks = []
        self._next_id = 1

    # ------------------------------------------------------------------------------------------------------- matching

    def _match(self, found: Detections) -> dict[int, _Track]:
        """Row of ``found`` -> track, one to one, best affinity first."""
        if len(found) == 0 or not self._tracks:
            return {}
        boxes = np.stack([t.box for t in self._tracks])
        affinity = box_affinity(boxes, found.boxes)
        for i, track in enumerate(self._tracks):
            for j, label in enumerate(found.labels):
                if label != track.label:
                    affinity[i, j] *= _OTHER_LABEL
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

    def _see(self, track: _Track, found: Detections, row: int, now_ns: int) -> None:
        track.found += 1
        track.found_ns = now_ns
        track.score += (float(found.scores[row]) - track.score) / min(track.found, _SCORE_MEMORY)
        label = found.labels[row]
        track.votes[label] = track.votes.get(label, 0.0) + float(found.scores[row])
        track.box = blend_boxes(track.box, found.boxes[row])
        if track.state == ObjectState.STALE or track.found >= self.config.confirm_count:
            track.state = ObjectState.CONFIRMED

    def _begin(self, found: Detections, row: int, now_ns: int) -> _Track:
        score = float(found.scores[row])
        state = ObjectState.CONFIRMED if self.config.confirm_count <= 1 else ObjectState.TENTATIVE
        votes = {found.labels[row]: score}
        track = _Track(self._next_id, found.boxes[row].copy(), score, votes, 1, False, state, now_ns, 0, 0.0, 0.0)
        self._next_id += 1
        self._tracks.append(track)
        return track

    # ------------------------------------------------------------------------------------------------------ existence

    def _judge_places(
        self,
        matched: set[int],
        snapshot: VoxelSnapshot,
        now_ns: int,
        camera_m: NDArray[np.float64] | None,
        reach_m: float,
        looked_at: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
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
            elif (
                _cut_by(looked_at, track.box)
                or self._out_of_reach(track, camera_m, reach_m)
                or self._survives(track, int(inside[i]), int(around[i]), now_ns)
            ):
                kept.append(track)
        self._tracks = kept

    @staticmethod
    def _out_of_reach(track: _Track, camera_m: NDArray[np.float64] | None, reach_m: float) -> bool:
        if camera_m is None:
            return False
        half_diagonal = float(np.linalg.norm(track.box[3:6])) / 2
        return float(np.linalg.norm(track.box[:3] - camera_m)) > reach_m - half_diagonal

    @staticmethod
    def _survives(track: _Track, inside: int, around: int, now_ns: int) -> bool:
        """Whether an object that was not found stays."""
        if inside < _EMPTY_SHARE * max(track.support, 1.0):
            return around < _KNOWN_SHARE * track.surroundings  # the map forgot the place: nothing is known
        unfound_ns = now_ns - track.found_ns
        if track.state == ObjectState.TENTATIVE:
            return unfound_ns <= _TENTATIVE_NS
        if unfound_ns > _CONFIRMED_NS:
            track.state = ObjectState.STALE
        return True

    def _merge_duplicates(self, now_ns: int) -> None:
        """One object for each thing: of two that overlap strongly the lower confirmed id stays, with the box that was
        found; what has not been found for a while and lies inside what is, was a part of it."""
        if len(self._tracks) < 2:
            return
        rank = {ObjectState.CONFIRMED: 0, ObjectState.STALE: 1, ObjectState.TENTATIVE: 2}
        order = sorted(self._tracks, key=lambda t: (rank[t.state], t.id))
        boxes = np.stack([t.box for t in order])
        iou, share = overlaps(boxes, boxes)
        found = np.array([not t.missed for t in order])
        gone: set[int] = set()
        for i, track in enumerate(order):
            lost = track.missed and now_ns - track.found_ns > _PART_NS
            if lost and (found & (share[i] >= _INSIDE_SHARE)).any():
                gone.add(track.id)
        for i, keeper in enumerate(order):
            for j in range(i + 1, len(order)):
                if iou[i, j] >= _SAME_IOU and not gone & {keeper.id, order[j].id}:
                    gone.add(order[j].id)
                    keeper.absorb(order[j])
        self._tracks = [t for t in self._tracks if t.id not in gone]

    # ---------------------------------------------------------------------------------------------------- persistence

    def to_json(self) -> str:
        """All objects with their history, as JSON text that :meth:`load_json` reads back exactly."""
        tracks = [{**vars(t), "box": t.box.tolist()} for t in self._tracks]
        return json.dumps({"version": _VERSION, "next_id": self._next_id, "objects": tracks}, sort_keys=True)

    def load_json(self, text: str) -> None:
        """Replace all objects by those of :meth:`to_json`. Raises ``ValueError`` and changes nothing when it cannot."""
        try:
            data = json.loads(text)
            if data["version"] != _VERSION:
                raise ValueError(f"objects have version {data['version']}, this program reads {_VERSION}")
            tracks = [_track_from(entry) for entry in data["objects"]]
            next_id = int(data["next_id"])
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"objects cannot be read: {type(error).__name__}: {error}") from error
        ids = [t.id for t in tracks]
        if ids != sorted(set(ids)) or any(not 0 < i < next_id for i in ids):
            raise ValueError(f"objects cannot be read: ids {ids} do not ascend within 1..{next_id - 1}")
        self._tracks, self._next_id = tracks, next_id


def _track_from(entry: dict[str, Any]) -> _Track:
    track = _Track(**{**entry, "box": np.array(entry["box"], dtype=np.float64)})
    if track.box.shape != (9,) or not np.isfinite(track.box).all():
        raise ValueError(f"object {track.id} has the box {entry['box']}")
    if track.state not in ObjectState.ALL or not track.votes:
        raise ValueError(f"object {track.id} has state {track.state!r} and labels {track.votes}")
    return track


# --------------------------------------------------------------------------------------------------------------------
# geometry of matching


def _rotations(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    R: NDArray[np.float64] = rotations(torch.from_numpy(np.ascontiguousarray(boxes, dtype=np.float64))).numpy()
    return R


def _cut_by(limits: tuple[NDArray[np.float64], NDArray[np.float64]] | None, box: NDArray[np.float64]) -> bool:
    """Whether a (9,) box does not lie whole within [lower, upper]."""
    if limits is None:
        return False
    half = np.abs(_rotations(box[None])[0]) @ (box[3:6] / 2)
    return bool(((box[:3] - half < limits[0]) | (box[:3] + half > limits[1])).any())


def overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(N, 9), (M, 9) boxes -> (N, M) IoU, and (N, M) share of a's volume inside b."""
    iou: NDArray[np.float64] = box_iou(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    volume_a, volume_b = a[:, 3:6].prod(axis=1)[:, None], b[:, 3:6].prod(axis=1)[None, :]
    shared: NDArray[np.float64] = iou * (volume_a + volume_b) / (1.0 + iou)
    return iou, shared / np.maximum(volume_a, 1e-12)


def box_affinity(known: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 9), (M, 9) -> (N, M) how much two boxes may be of the same object, in [0, 1].

    The IoU; and for a part that grew into a whole (or the reverse), which overlap little, half of the share of the
    smaller inside the larger.
    """
    iou, share_known = overlaps(known, found)
    volume_known, volume_found = known[:, 3:6].prod(axis=1)[:, None], found[:, 3:6].prod(axis=1)[None, :]
    share_found = share_known * volume_known / np.maximum(volume_found, 1e-12)
    share = np.maximum(share_known, share_found)
    ratio = np.minimum(volume_known, volume_found) / np.maximum(np.maximum(volume_known, volume_found), 1e-12)
    grown = (share >= _INSIDE_SHARE) & (ratio >= _MIN_VOLUME_RATIO)
    affinity: NDArray[np.float64] = np.maximum(iou, np.where(grown, 0.5 * share, 0.0))
    return affinity


def blend_boxes(old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """The (9,) box to keep: the mean of two that agree, otherwise the new one (maps grow, so it knows more)."""
    aligned: NDArray[np.float64] = new.copy()
    if old[7:].any() or new[7:].any() or float(overlaps(old[None], new[None])[0][0, 0]) < _BLEND_IOU:
        return aligned
    turns = round(float((new[6] - old[6]) / (np.pi / 2)))  # a box is the same turned by quarters
    aligned[6] -= turns * np.pi / 2
    if turns % 2:
        aligned[3], aligned[4] = new[4], new[3]
    blended: NDArray[np.float64] = old + 0.5 * (aligned - old)
    blended[6] = (blended[6] + np.pi / 2) % np.pi - np.pi / 2
    return blended


def without_bottom(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, 9) boxes with their lowest part cut off: what they stand on is no evidence for them."""
    lift = np.minimum(_BOTTOM_M, _BOTTOM_SHARE * boxes[:, 5])
    raised: NDArray[np.float64] = boxes.copy()
    raised[:, :3] += 0.5 * lift[:, None] * _rotations(boxes)[:, :, 2]
    raised[:, 5] -= lift
    return raised


def count_voxels(
    snapshot: VoxelSnapshot, boxes: NDArray[np.float64], margin_m: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Voxels in each of (B, 9) boxes, those outside but within ``margin_m``, and the newest stamp of those inside.

    Voxels count by their mean points; boxes are widened by half a voxel, so that surfaces on a face count as inside.
    """
    if len(boxes) == 0 or len(snapshot) == 0:
        nothing = np.zeros(len(boxes), np.int64)
        return nothing, nothing.copy(), nothing.copy()
    reach = np.linalg.norm(boxes[:, 3:6], axis=1) / 2 + np.sqrt(3.0) * margin_m + snapshot.voxel_size_m
    # the snapshot is sorted by x first: only a slab of it can lie in a box
    x = snapshot.coords[:, 0]
    first = np.searchsorted(x, np.floor((boxes[:, 0] - reach) / snapshot.voxel_size_m), side="left")
    last = np.searchsorted(x, np.ceil((boxes[:, 0] + reach) / snapshot.voxel_size_m), side="right")
    half = boxes[:, 3:6] / 2 + snapshot.voxel_size_m / 2
    rows = np.stack([first, last], axis=1).astype(np.int64)
    R = _rotations(boxes)
    counts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] = _count_in_slabs(
        snapshot.mean_point_m, snapshot.last_seen_ns, rows, boxes[:, :3].copy(), R, half, reach, margin_m
    )
    return counts


@njit(cache=True)
def _count_in_slabs(
    points: NDArray[np.float32],
    stamps: NDArray[np.int64],
    slabs: NDArray[np.int64],
    center: NDArray[np.float64],
    R: NDArray[np.float64],
    half: NDArray[np.float64],
    reach: NDArray[np.float64],
    margin: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    inside = np.zeros(len(center), np.int64)
    around = np.zeros(len(center), np.int64)
    newest = np.zeros(len(center), np.int64)
    for b in range(len(center)):
        for row in range(slabs[b, 0], slabs[b, 1]):
            if abs(points[row, 1] - center[b, 1]) > reach[b] or abs(points[row, 2] - center[b, 2]) > reach[b]:
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
            elif excess <= margin:
                around[b] += 1
    return inside, around, newest
