"""One object of the map over time: a filter for existence, name and box, and how a file keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import EstimateConfig, ScorePolicy, TrackingConfig
from embodied_perceptron.geometry.boxes import canonical_boxes
from embodied_perceptron.inference.naming import published_name
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.results import UNNAMED, ObjectState, SceneObject
from embodied_perceptron.scene.corrections import MAX_ID, check_words, checked_box

_NAMES, _LEAST_SHARE = 3, 0.01  # that are published with an object
_MAX_LOG_ODDS = 500.0  # in files: the exponential of more is none


def published_score(score: float, looks: int, scores: ScorePolicy, config: TrackingConfig) -> float:
    """Probability that the name and box of something are right that had this mean score in so many perceptions.

    Those that found nothing at the place are in the mean with zero. What is published is this, times the probability
    that the object still exists.
    """
    return probability_right(score, looks, reference_score(scores, config), config.estimates)


def probability_right(mean: float, looks: int, reference: float, config: EstimateConfig) -> float:
    return sigmoid(min(looks, config.independent_looks) * (logit(mean) - logit(reference)))


def reference_score(scores: ScorePolicy, config: TrackingConfig) -> float:
    """The score at which a box is as likely wrong as right: what a calibration says, or that from which they are
    published."""
    return scores.even or max(scores.publish, config.existence.clutter_score)


def logit(p: float) -> float:
    p = min(max(p, 1e-4), 1.0 - 1e-4)
    return math.log(p / (1.0 - p))


def sigmoid(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))


def _added(sums: Mapping[str, float], new: Mapping[str, float], memory: float) -> dict[str, float]:
    """Sums that are slowly forgotten, and what is new."""
    kept = {name: v * memory for name, v in sums.items() if v > 1e-3}
    return kept | {name: kept.get(name, 0.0) + v for name, v in new.items()}


def best_names(
    votes: Mapping[str, float], label: str, score: float, name_of: Callable[[str], str] | None
) -> tuple[tuple[str, float], ...]:
    """At most three names with the probability that it is there and called so, best first.

    Args:
        votes: for each name; empty of maps that older programs wrote.
        label: under which it is published, with this ``score``.
        name_of: label -> name of the list of classes; None = as they are.
    """
    sums: dict[str, float] = {}
    for known, votes_of in votes.items():
        name = known if name_of is None else name_of(known)
        sums[name] = sums.get(name, 0.0) + votes_of
    own = sum(sums.values()) if label == UNNAMED else sums.get(label, 0.0)
    if own <= 0.0:  # a map that an older program wrote
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
    score: float  # mean score of what was found at its place over the perceptions of it
    votes: dict[str, float]  # scores under each label
    weight: float  # of the box: scores of the sightings that it is the mean of
    found: int
    looks: int  # perceptions of its place, found or not; names of fields are keys of map files, and stay
    whole: bool  # the box was never cut by the border of what was looked at
    missed: bool  # by the last perception that looked there
    state: str
    found_ns: int  # when it was last found
    unfound_s: float  # for how long it has been looked for in vain since
    last_seen_ns: int  # newest evidence for it then
    support: float  # voxels in the box when it was found
    surroundings: float  # voxels around, above and below the box then
    is_back: bool  # since it was found it was out of view, or the map was made anew
    reference: float  # score at which a box is as likely wrong as right
    user_name: str = ""  # what a user calls it
    user_label: str = ""  # what a user says that it is
    names: dict[str, float] = field(default_factory=dict)  # posteriors of all names, summed
    begun_ns: int = 0  # when it was first found where it is now; not kept in files
    looked_at: int = 0  # number of the last update that looked at its place; not kept in files
    published: SceneObject | None = None  # as of now; None = to be made anew

    @property
    def label(self) -> str:
        return self.user_label or max(sorted(self.votes), key=lambda name: self.votes[name])

    def name_share(self, label: str) -> float:
        """Posterior probability of a name."""
        return self.votes.get(label, 0.0) / max(sum(self.votes.values()), 1e-12)

    def is_settled(self, config: EstimateConfig) -> bool:
        """Whether its name is beyond doubt."""
        if self.user_label:
            return True
        return self.found >= config.settled_count and self.name_share(self.label) >= config.settled_share

    def has_moved_to(self, other: Track, like_size: float) -> bool:
        """Whether ``other``, which touches it and is found, may be this one: of its name and size, and first found
        since this one is missed. A door that was opened, a chair that was pushed."""
        a, b = np.sort(self.box[3:6]), np.sort(other.box[3:6])
        like = bool((np.minimum(a, b) >= like_size * np.maximum(a, b))[1:].all())  # how thick is known least
        return like and other.label == self.label != UNNAMED and other.begun_ns > self.found_ns

    def rate(self, score: float, config: EstimateConfig) -> None:
        """One more perception of its place: the score of what was found, or zero."""
        self.looks += 1
        self.score += (score - self.score) / min(self.looks, config.score_memory)

    def vote(self, label: str, score: float, posterior: Mapping[str, float], memory: float) -> None:
        """One more perception found it under a label; ``posterior``: all that was said of it (:class:`.Detections`)."""
        self.votes = _added(self.votes, {label: score}, memory)
        self.names = _added(self.names, posterior, memory)

    def absorb(self, other: Track) -> None:
        """Merge the history of the same thing under another id."""
        if self.missed and not other.missed:
            self.box, self.missed, self.whole, self.weight = other.box.copy(), False, other.whole, other.weight
            self.support, self.surroundings, self.unfound_s = other.support, other.surroundings, 0.0
            self.begun_ns = other.begun_ns  # of a thing that stands there
        self.log_odds = max(self.log_odds, other.log_odds)
        self.score = max(self.score, other.score)
        self.found += other.found
        self.found_ns = max(self.found_ns, other.found_ns)
        self.last_seen_ns = max(self.last_seen_ns, other.last_seen_ns)
        self.votes, self.names = _added(self.votes, other.votes, 1.0), _added(self.names, other.names, 1.0)
        self.user_name, self.user_label = self.user_name or other.user_name, self.user_label or other.user_label
        self.published = None

    def probability(self, config: TrackingConfig, reference: float) -> float:
        return sigmoid(self.log_odds) * probability_right(self.score, self.looks, reference, config.estimates)

    def as_object(self, config: TrackingConfig, name_of: Callable[[str], str] | None) -> SceneObject:
        if self.published is None:
            score = self.probability(config, self.reference)
            box, seen_ns, known = self.box.copy(), self.last_seen_ns, self.label
            label = known if self.user_label or name_of is None else published_name(self.votes, name_of)
            category = known if label != known else ""
            names = ((label, score),) if self.user_label else best_names(self.names, label, score, name_of)
            self.published = SceneObject(
                self.id, label, score, box, self.state, seen_ns, self.user_name, category, names
            )
        return self.published


def upgraded_entry(entry: dict[str, Any], version: int, config: EstimateConfig) -> dict[str, Any]:
    """An object of a file of any version with the fields of this one."""
    plain_values.mapping(entry, "an object")
    if version == 1:
        entry = {"looks": 1, "whole": True, **entry}
    if version < 3:  # had states and scores by rules
        log_odds = {ObjectState.CONFIRMED: 3.0, ObjectState.TENTATIVE: 0.5, ObjectState.STALE: -1.0}
        weight = min(float(entry["score"]) * float(entry["found"]), config.box_memory)
        entry = {
            "log_odds": log_odds.get(entry["state"], 0.0),
            "weight": weight,
            "unfound_s": 0.0,
            "reference": 0.25,
            **entry,
        }
    if version < 4:  # means were of two perceptions more, which had found nothing
        looks = max(min(int(entry["looks"]), config.score_memory), 1)
        entry = {**entry, **{key: min(float(entry[key]) * (looks + 2) / looks, 1.0) for key in ("score", "reference")}}
    return entry


def track_from_json(entry: dict[str, Any]) -> Track:
    """A track of a map file. Raises ``ValueError`` naming the object and the field that does not fit."""
    for name in ("published", "looked_at", "begun_ns"):
        if name in entry:
            raise ValueError(f"object {entry.get('id')} has a field that is none: {name}")
    track = Track(**{**entry, "box": checked_box(entry["box"], f"object {entry.get('id')}")})
    try:
        _check_fields(track)
    except ValueError as error:
        raise ValueError(f"object {track.id}: {error}") from None
    track.box = canonical_boxes(track.box[None])[0]
    return track


def _check_fields(track: Track) -> None:
    whole, number, truth = plain_values.whole, plain_values.number, plain_values.truth
    whole(track.id, "id", 1, MAX_ID)
    for name in ("found", "looks"):
        whole(getattr(track, name), name, 0, MAX_ID)
    for name in ("found_ns", "last_seen_ns"):
        plain_values.stamp_ns(getattr(track, name), name)
    for name in ("whole", "missed", "is_back"):
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
            number(value, f"{what} of {plain_values.text(name, f'a name in {what}')!r}", 0.0, 1e18)
    if track.state not in ObjectState.ALL:
        raise ValueError(f"state must be one of {list(ObjectState.ALL)}, got {track.state!r:.100}")
    for words, what in ((track.user_name, "name"), (track.user_label, "label")):
        if not isinstance(words, str):
            raise ValueError(f"the {what} must be a text, got {words!r:.100}")
        if words:
            check_words(words, what)
