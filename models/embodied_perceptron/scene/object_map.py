"""Objects with persistent ids: a filter over the detections of each perception.

Of every object the map keeps three estimates. *Existence* is a log-odds: a detection adds what its score says against
clutter, and a perception of the place that does not find the thing takes something away, in proportion to the time in
which it should have been found. *Name* is a posterior over class names: counts of what it was called (where several
sources speak, of each name's share), weighed by score and slowly forgotten. *Box* is the mean of the boxes found, new
ones weighing the less the more have agreed.

What is not found counts only where it could have been found: within reach, whole within what was looked at, and in a
place that is still mapped. There the voxels decide. They are still in the box: something stands there, and a miss says
little. They vanished but the surroundings are mapped: the place was seen empty, and the object is gone. The
surroundings vanished too: the map forgot the place (memory is bounded), and the object stays as it was. Voxels that
belong to something else that was found there, in the box of the missing one, are no evidence for it.

An object is *tentative* until it was found in ``confirm_count`` perceptions, is likelier to exist than not, and its
name and box are probably enough right; then *confirmed*; *stale* when existence has become unlikely although its place
still looks occupied. Ids count up from 1 and are never reused within a map, and the same sequence of updates gives the
same ids.

Detections and objects are assigned one to one, as :func:`~.suppression.association_affinity` allows: a part never takes
the identity of a whole, and like things side by side stay apart. Something that was moved keeps its id where its new
box still overlaps the old one enough; otherwise the old object goes as soon as its place is seen empty, and what
stands elsewhere gets a new id. So does what replaces something in its place, once extent or name fit no more.

The work of an update depends on what is near the place looked at, not on all that was ever seen: objects are found
through a grid over the ground, and of those elsewhere nothing changes, not even their age.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, AssociationConfig, PlaceConfig, ScorePolicy, TrackingConfig
from embodied_perceptron.geometry.boxes import Bounds, box_rotations, canonical_boxes, transform_boxes
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.suppression import (
    INSIDE_SHARE,
    association_affinity,
    blend_boxes,
    found_inside,
    is_one_object,
    one_object_pairs,
    paired_overlaps,
    thickened,
    touching_pairs,
)
from embodied_perceptron.mapping.voxel_counts import count_voxels, count_voxels_explained, without_bottom
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.recordings.tensor_files import parse_json
from embodied_perceptron.results import UNNAMED, Detections, ObjectState, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.corrections import MAX_ID, Correction, Corrections, check_user_name, check_words
from embodied_perceptron.scene.ground_index import GroundIndex, ground_bounds
from embodied_perceptron.scene.tracks import (
    Track,
    logit,
    reference_score,
    sigmoid,
    track_from_json,
    upgraded_entry,
)

_SURROUNDINGS_M, _COLUMN_M = 0.3, 3.0  # around the box on the ground, and above and below it
_VERSION = 5
_CELL_M = 2.0  # of the grid over the ground: most things lie in one to four cells
_CONFIRMED_ANEW = 1.25  # times the score below which a confirmed object is tentative: it does not come and go


@dataclass(frozen=True)
class ObjectHistory:
    """What an object's state and name rest on.

    Attributes:
        found: perceptions that found it.
        looks: perceptions of its place, found or not.
        exists: probability that it is there.
        mean_score: of what was found at its place, zero where nothing was.
        right: probability that it is there and that name and box are right.
        votes: label -> scores of what was found under it, slowly forgotten.
    """

    found: int
    looks: int
    exists: float
    mean_score: float
    right: float
    votes: dict[str, float]


@dataclass
class ObjectMap:
    """See the module docstring. Not thread-safe.

    Attributes:
        config: everything tunable.
        name_of: label -> the name under which objects are published (:func:`~.inference.naming.published_name`); None
            = under their labels. The map itself, and its file, keep all labels. What a user said stays as it was said.
    """

    config: TrackingConfig = field(default_factory=TrackingConfig)
    name_of: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        self._tracks: dict[int, Track] = {}  # ids ascend
        self._grid = GroundIndex(_CELL_M)
        self._next_id = 1
        self._updated_ns = 0
        self._updates = 0
        self.corrections = Corrections()

    def __len__(self) -> int:
        return len(self._tracks)

    @property
    def updated_ns(self) -> int:
        """The time of the last update; 0 before the first."""
        return self._updated_ns

    def objects(self, states: Iterable[str] = ObjectState.ALL) -> tuple[SceneObject, ...]:
        """Objects in any of ``states``, by id."""
        wanted = set(states)
        return tuple(t.as_object(self.config, self.name_of) for t in self._tracks.values() if t.state in wanted)

    def probabilities(self, even: float, states: Iterable[str] = ObjectState.ALL) -> tuple[float, ...]:
        """Scores of :meth:`objects` if a box of score ``even`` were as likely right as wrong."""
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
            scores: below ``publish`` a detection begins no object, below ``keep`` it is ignored, and an object whose
                own score has fallen below that is tentative, unless a user named it, until it is a quarter above.
        """
        dt_s = 1e-9 * max(0, now_ns - self._updated_ns)
        if dt_s > self.config.existence.pause_s:
            dt_s = 0.0  # nobody looked
        self._updated_ns = now_ns
        self._updates += 1
        found = self.corrections.without_denied(distinct(found.above(scores.keep), snapshot, self.config.association))
        near = self._near(found, camera_m, reach_m, looked_at)
        cut = np.array([_cut_by(looked_at, box) for box in found.boxes], dtype=bool)
        matched = self._match(near, found, cut)
        for row in range(len(found)):
            if row in matched:
                self._see(matched[row], found, row, now_ns, not cut[row], scores)
            elif found.scores[row] >= scores.publish:
                matched[row] = self._begin(found, row, now_ns, not cut[row], scores)
                near.append(matched[row])
        seen = {t.id for t in matched.values()}
        near, alone = self._judge_places(near, seen, snapshot, dt_s, camera_m, reach_m, looked_at)
        self._merge_duplicates(near, alone)
        for track in near:
            if track.id in self._tracks:
                self._set_state(track, scores)
                self._grid.put(track.id, track.box)

    def history(self, number: int) -> ObjectHistory:
        """How an object of the map came to be what it is. Raises ``LookupError`` without it."""
        track = self._tracked(number)
        right = track.probability(self.config, track.reference)
        return ObjectHistory(track.found, track.looks, sigmoid(track.log_odds), track.score, right, dict(track.votes))

    def name(self, number: int, user_name: str) -> SceneObject:
        """Call an object by a user's name; empty takes the name away.

        Raises ``ValueError`` for a name that is none, is a class, or is another object's, ``LookupError`` without the
        object.
        """
        track, known = self._tracked(number), {t.label for t in self._tracks.values()}
        wanted = check_user_name(user_name, known) if user_name.strip() else ""
        others = [t for t in self._tracks.values() if t.id != number and t.user_name.casefold() == wanted.casefold()]
        if wanted and others:
            raise ValueError(f"{wanted!r} is the name of object {others[0].id} already: take it away there first")
        track.user_name, track.published = wanted, None
        return track.as_object(self.config, self.name_of)

    def relabel(self, number: int, label: str) -> SceneObject:
        """An object is what a user says, whatever is found there later. Raises as :meth:`name`."""
        track, wanted = self._tracked(number), check_words(label, "label")
        self.corrections.remember(Correction(number, track.box.copy(), track.label, wanted, self._updated_ns))
        track.user_label, track.published = wanted, None
        return track.as_object(self.config, self.name_of)

    def deny(self, number: int) -> SceneObject:
        """There is no such thing: it goes, and the like is not found there again. Raises ``LookupError``."""
        track = self._tracked(number)
        self.corrections.remember(Correction(number, track.box.copy(), track.label, "", self._updated_ns))
        gone = track.as_object(self.config, self.name_of)
        self._remove(track)
        return gone

    def _tracked(self, number: int) -> Track:
        if number not in self._tracks:
            raise LookupError(f"there is no object {number}")
        return self._tracks[number]

    def remove_inside(self, box: NDArray[np.float64]) -> tuple[int, ...]:
        """Forget objects whose centre lies in the (9,) ``box``; returns their ids."""
        R = box_rotations(box[None])[0]
        gone = [t for t in self._tracks.values() if (np.abs((t.box[:3] - box[:3]) @ R) <= box[3:6] / 2).all()]
        for track in gone:
            self._remove(track)
        self.corrections.forget_inside(box)
        return tuple(t.id for t in gone)

    def move(self, motion_at: Callable[[int], NDArray[np.float64]]) -> None:
        """The world was corrected: each object moves, with its id, as what was seen of it last does.

        ``motion_at(stamp_ns)`` is the (4, 4) rigid motion, old world -> new world, of what was seen at that time.
        """
        for track in self._tracks.values():
            track.is_back = True  # the map was made anew of its keyframes alone: thinner, as where one comes back to
            T = motion_at(track.last_seen_ns or track.found_ns)
            if not np.allclose(T, np.eye(4), atol=1e-12):
                moved = transform_boxes(T, torch.from_numpy(track.box[None])).numpy()
                track.box, track.published = canonical_boxes(moved)[0], None
                self._grid.put(track.id, track.box)
        self.corrections.move(motion_at)

    def clear(self) -> None:
        """Forget all objects. Ids start at 1 again: it is a new map."""
        self._tracks = {}
        self._grid = GroundIndex(_CELL_M)
        self._next_id = 1
        self._updated_ns = 0
        self.corrections = Corrections()

    # ------------------------------------------------------------------------------------------------------- matching

    def _near(
        self, found: Detections, camera_m: NDArray[np.float64] | None, reach_m: float, looked_at: Region | None
    ) -> list[Track]:
        """Objects that what was looked at, or what was found, may concern, by id."""
        low, high = np.full(2, -np.inf), np.full(2, np.inf)
        if camera_m is not None:
            low, high = camera_m[:2] - reach_m, camera_m[:2] + reach_m
        if looked_at is not None:
            region_low, region_high = ground_bounds(looked_at)
            low, high = np.maximum(low, region_low), np.minimum(high, region_high)
        ids = self._grid.near(low, high)
        bounds = Bounds.of(found.boxes)
        for row in range(len(found)):
            ids |= self._grid.near(bounds.low[row, :2] - _SURROUNDINGS_M, bounds.high[row, :2] + _SURROUNDINGS_M)
        return [self._tracks[i] for i in sorted(ids)]

    def _match(self, near: Sequence[Track], found: Detections, cut: NDArray[np.bool_]) -> dict[int, Track]:
        """Row of ``found`` -> track, one to one, so that together they agree best."""
        if len(found) == 0 or not near:
            return {}
        labels = [t.label for t in near]
        same = np.array([[UNNAMED in (a, b) or a == b for b in found.labels] for a in labels])
        settled = np.array(
            [t.is_settled(self.config.estimates) and a != UNNAMED for t, a in zip(near, labels, strict=True)]
        )
        affinity = association_affinity(np.stack([t.box for t in near]), found.boxes, same, settled, cut)
        affinity[affinity < self.config.association.match_iou] = 0.0
        # squared: one pair that fits well counts more than two that hardly do
        rows, columns = scipy.optimize.linear_sum_assignment(affinity**2, maximize=True)
        return {int(j): near[i] for i, j in zip(rows, columns, strict=True) if affinity[i, j] > 0}

    def _see(
        self,
        track: Track,
        found: Detections,
        row: int,
        now_ns: int,
        whole: bool,
        scores: ScorePolicy,
    ) -> None:
        score = float(found.scores[row])
        track.found += 1
        track.found_ns, track.unfound_s = now_ns, 0.0
        track.rate(score, self.config.estimates)
        track.log_odds = min(track.log_odds + self._for_detection(score, scores), self.config.existence.max_log_odds)
        track.reference = reference_score(scores, self.config)
        track.vote(found.labels[row], score, found.posterior(row), self.config.estimates.name_memory)
        if whole > track.whole:
            track.box, track.whole, track.weight = found.boxes[row].copy(), True, score
        elif whole or not track.whole:
            gain = max(score / (track.weight + score), 1e-3)
            box = blend_boxes(track.box, found.boxes[row], gain)
            if np.array_equal(box, track.box) and gain < 0.5:  # they do not agree: if it goes on, it has moved
                track.weight *= 0.5
            else:
                track.box, track.weight = (
                    canonical_boxes(box[None])[0],
                    min(track.weight + score, self.config.estimates.box_memory),
                )

    def _begin(
        self,
        found: Detections,
        row: int,
        now_ns: int,
        whole: bool,
        scores: ScorePolicy,
    ) -> Track:
        score = float(found.scores[row])
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
            whole=whole,
            missed=False,
            state=ObjectState.TENTATIVE,
            found_ns=now_ns,
            begun_ns=now_ns,
            unfound_s=0.0,
            last_seen_ns=0,
            support=0.0,
            surroundings=0.0,
            is_back=False,
            reference=reference_score(scores, self.config),
        )
        track.rate(score, self.config.estimates)
        self._next_id += 1
        self._tracks[track.id] = track
        return track

    def _remove(self, track: Track) -> None:
        del self._tracks[track.id]
        self._grid.remove(track.id)

    # ------------------------------------------------------------------------------------------------------ existence

    def _for_detection(self, score: float, scores: ScorePolicy) -> float:
        """Log-odds that a detection adds: a thing has given it rather than clutter."""
        against = logit(max(scores.keep, self.config.existence.clutter_score))
        return min(max(logit(score) - against, 0.0), self.config.existence.max_detection_log_odds)

    def _set_state(self, track: Track, scores: ScorePolicy) -> None:
        likely = track.log_odds >= 0.0
        state = track.state
        # a thing may well be there whose name and box are hardly right: then it is not confirmed
        by_user = bool(track.user_label or track.user_name)
        least = scores.keep * (1.0 if state == ObjectState.CONFIRMED else _CONFIRMED_ANEW)
        right = by_user or track.probability(self.config, track.reference) >= least
        if likely and right and track.found >= self.config.existence.confirm_count:
            state = ObjectState.CONFIRMED
        elif state == ObjectState.CONFIRMED and not (likely and right):
            state = ObjectState.TENTATIVE if likely else ObjectState.STALE
        if state != track.state:
            track.state, track.published = state, None

    def _judge_places(
        self,
        near: Sequence[Track],
        matched: set[int],
        snapshot: VoxelSnapshot,
        dt_s: float,
        camera_m: NDArray[np.float64] | None,
        reach_m: float,
        looked_at: Region | None,
    ) -> tuple[list[Track], set[int]]:
        """Update what was found; let what was not found wait, fade or go (module docstring).

        Returns what stays, and the ids of what was not found but has voxels that nothing found explains.
        """
        looked = [
            t
            for t in near
            if t.id in matched or not (self._out_of_reach(t, camera_m, reach_m) or _cut_by(looked_at, t.box))
        ]
        if not looked:
            return list(near), set()
        boxes = np.stack([t.box for t in looked])
        is_found = np.array([t.id in matched for t in looked])
        others, covered = found_inside(boxes, is_found)
        inside, _, newest_ns, explained = count_voxels_explained(snapshot, without_bottom(boxes), 0.0, others, boxes)
        around = count_voxels(snapshot, _columns(boxes), 0.0)[0] - inside
        gone, alone = set[int](), set[int]()
        for i, track in enumerate(looked):
            track.published = None
            track.missed = not is_found[i]
            track.is_back = track.missed and (track.is_back or track.looked_at < self._updates - 1)
            track.looked_at = self._updates
            if track.missed:
                rate = self._miss_rate(track, [looked[k] for k in others[i]], covered[i])
                if not self._survives(track, inside[i], explained[i], around[i], covered[i], rate * dt_s, dt_s):
                    gone.add(track.id)
                    self._remove(track)
                elif inside[i] - explained[i] >= self.config.association.own_mass_share * max(inside[i], 1):
                    alone.add(track.id)
                continue
            # slowly downwards: a box that loses voxels bit by bit still ends as empty
            track.support = max(float(inside[i]), 0.9 * track.support)
            track.surroundings = float(around[i])
            newest = int(newest_ns[i])
            track.last_seen_ns = newest if track.last_seen_ns > self._updated_ns else max(track.last_seen_ns, newest)
        return [t for t in near if t.id not in gone], alone

    @staticmethod
    def _out_of_reach(track: Track, camera_m: NDArray[np.float64] | None, reach_m: float) -> bool:
        if camera_m is None:
            return False
        half_diagonal = float(np.linalg.norm(track.box[3:6])) / 2
        return float(np.linalg.norm(track.box[:3] - camera_m)) > reach_m - half_diagonal

    def _miss_rate(self, track: Track, others: Sequence[Track], covered: float) -> float:
        """What existence loses per second in which it is missed; more where what was found there, which fills so much
        of its box, tells where it has gone."""
        existence, like_size = self.config.existence, self.config.association.like_size
        if any(track.has_moved_to(other, like_size) for other in others):
            return existence.miss_log_odds_per_s * existence.moved_miss_factor
        explained = covered >= existence.explained_share
        return existence.miss_log_odds_per_s * (existence.explained_miss_factor if explained else 1.0)

    def _survives(
        self, track: Track, inside: int, explained: int, around: int, covered: float, missed: float, dt_s: float
    ) -> bool:
        """Whether an object stays whose place was looked at without finding it.

        Args:
            inside: voxels in its box now.
            explained: those of them that lie in something else that was found.
            around: voxels around it.
            covered: share of its box that such things fill.
            missed: what existence loses by that.
            dt_s: for how long it has been looked for since the last time.
        """
        existence, places = self.config.existence, self.config.places
        forgotten = around < places.forgotten_surroundings * track.surroundings
        if forgotten and inside < places.forgotten_support * max(track.support, 1.0):
            return True  # the map forgot the place: nothing is known
        track.rate(0.0, self.config.estimates)
        track.unfound_s += dt_s
        floor = existence.min_log_odds if track.state != ObjectState.TENTATIVE else -math.inf
        track.log_odds = max(track.log_odds - missed, min(floor, track.log_odds))
        if not track.is_back:
            track.log_odds += emptiness(inside - explained, track.support, covered, places)
        elif inside < places.back_support * track.support and around >= places.back_surroundings * track.surroundings:
            track.log_odds += emptiness(inside, track.support, 0.0, places)
        tentative = track.state == ObjectState.TENTATIVE  # goes when it is no likelier than before it was found
        if track.log_odds < (logit(existence.prior_existence) if tentative else existence.gone_log_odds):
            return False
        return track.unfound_s <= existence.max_unfound_s

    def _merge_duplicates(self, near: Sequence[Track], alone: set[int]) -> None:
        """One object for each thing: of two that overlap strongly the likelier confirmed one stays, with the box that
        was found and the names of both; what has not been found for a while and lies inside what is, was a part of it.

        Two that were both found just now are two, unless they fill one place. So are two that hardly overlap while one
        is overlooked but still there.
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
            if is_one_object(float(iou[k]), float(thin_iou[k]), a.label, b.label, two):
                gone.add(b.id)
                a.absorb(b)
        for i in gone:
            self._remove(self._tracks[i])

    # ---------------------------------------------------------------------------------------------------- persistence

    def to_json(self) -> str:
        """All objects with their history, as JSON text that :meth:`load_json` reads back exactly."""
        tracks = []
        for track in self._tracks.values():
            entry = {**vars(track), "box": track.box.tolist()}
            del entry["published"], entry["looked_at"], entry["begun_ns"]
            tracks.append(entry)
        data = {"version": _VERSION, "next_id": self._next_id, "updated_ns": self._updated_ns, "objects": tracks}
        data["corrections"] = self.corrections.to_list()
        return json.dumps(data, sort_keys=True)

    def load_json(self, text: str) -> None:
        """Replace all objects by those of :meth:`to_json`, of this version or an older one.

        Raises ``ValueError`` and changes nothing when it cannot.
        """
        try:
            data = plain_values.mapping(parse_json(text), "objects")
            version = data["version"]
            if version not in (1, 2, 3, 4, _VERSION):
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
        self._tracks = {t.id: t for t in tracks}
        for track in tracks:
            self._grid.put(track.id, track.box)
        self._next_id, self._updated_ns = next_id, updated_ns
        self.corrections = corrections


def emptiness(unexplained: float, support: float, covered: float, config: PlaceConfig) -> float:
    """Log-odds, at most 0, that the voxels left in a box add to the existence of what was found there.

    Args:
        unexplained: voxels in the box that belong to nothing else that was found.
        support: voxels that were there when it was found.
        covered: share of the box that other things fill, which hide what was there.
        config: of the share of voxels that is left, where a thing is there and where it is gone.
    """
    expected = support * (1.0 - covered)
    if 1.0 - covered < config.least_open or expected < config.least_support:
        return 0.0
    share = min(unexplained / expected, 1.0)
    there = -0.5 * ((share - config.there_share) / config.there_sigma) ** 2 - math.log(config.there_sigma)
    gone = -0.5 * ((share - config.gone_share) / config.gone_sigma) ** 2 - math.log(config.gone_sigma)
    return min(there - gone, 0.0)


def _columns(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 9) boxes of what stands around, below and above each of (N, 9) boxes.

    What hangs or stands high has nothing but itself close by; the floor beneath it tells whether the place is mapped.
    """
    bounds = Bounds.of(boxes)
    margin = np.array([_SURROUNDINGS_M, _SURROUNDINGS_M, _COLUMN_M])
    center, size = 0.5 * (bounds.low + bounds.high), bounds.extent + 2.0 * margin
    return np.concatenate([center, size, np.zeros_like(center)], axis=1)


def distinct(found: Detections, snapshot: VoxelSnapshot, config: AssociationConfig) -> Detections:
    """The best boxes; of those that are of one thing the better, and none of a network in space without a voxel."""
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
    """Whether two boxes (2, 9) each hold voxels that the other does not: books, plates, panes."""
    inside, _, _, explained = count_voxels_explained(snapshot, pair, 0.0, [[1], [0]], pair)
    return bool((explained <= (1.0 - share) * inside).all() and (inside > 0).all())


def _cut_by(region: Region | None, box: NDArray[np.float64]) -> bool:
    """Whether a (9,) box does not lie whole within the region."""
    if region is None:
        return False
    R = region.manhattan.T_world_manhattan[:3, :3].T @ box_rotations(box[None])[0]
    center, half = region.manhattan.from_world(box[:3]), np.abs(R) @ (box[3:6] / 2)
    return bool(((center - half < region.lower_m) | (center + half > region.upper_m)).any())
