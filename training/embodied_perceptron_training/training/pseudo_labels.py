"""Examples without labels: things of a recording whose name several kinds of witnesses agree on.

The network and each 2-D detector are witnesses of different kinds: they were trained on different pictures and err on
different things. A recording is mapped, the detectors look at its keyframes, and a thing becomes an example where one
posterior over all of them is sure of its name and at least two said it by themselves. The idea is that of
self-training with an ensemble (Xie et al., "Self-training with noisy student", 2020); what it is worth is checked as of
any other labels, on things and scenes that were left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import LiftOptions, PerceptronConfig
from embodied_perceptron.detection2d.fusion import Place
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.training.few_shot_classes import FewShotError, LabelledRoom, fuse_recording, kind_of

NETWORK = "network"
MIN_THINGS = 5  # of all recordings: fewer agreements may be chance
_MIN_VIEWS = 2  # in which a detector must say a name
_MIN_SHARE = 0.3  # of what the network gives to any name there: it says this one too
_MIN_WITNESSES = 2
_DOUBTFUL = 0.05  # so probable is it that a thing is called so: it is no counterexample of the name


@dataclass(frozen=True, eq=False)
class AgreedThing:
    """A thing whose name witnesses agree on."""

    name: str  # as the network calls such things, where it can
    box: NDArray[np.float64]  # (9,) float64, in the world of the recording
    probability: float  # of the name, by all witnesses
    witnesses: tuple[str, ...]  # who said it; :data:`NETWORK` or a detector
    agreed: bool  # they do; otherwise it may be such a thing


def agreed_room(
    source: Path, inference: Predictor, lift: LiftOptions, min_probability: float, only: Sequence[str] = ()
) -> tuple[LabelledRoom, list[AgreedThing]]:
    """A recording, labelled by what its witnesses agree on.

    Args:
        source: recording of any format.
        inference: the network.
        lift: the detectors.
        min_probability: of a name.
        only: kinds that count; empty = all.

    Raises :class:`~.few_shot_classes.FewShotError` for a recording without poses, ``RecordingError`` or ``OSError`` for
    what cannot be read, and ``DetectorFileError`` for a detector that cannot be used.
    """
    perceptron = Perceptron(
        PerceptronConfig(), inference=inference, lift=lift_from_options(replace(lift, max_rate_hz=1e3))
    )
    fuse_recording(source, perceptron)
    perceptron.perceive(window_m=np.inf)
    assert perceptron.lift is not None
    statistics = perceptron.lift.statistics()
    if statistics.failures:
        raise FewShotError(f"{source}: the detectors failed: {statistics.last_error}")
    things = agreed_things(perceptron.lift, inference.classes, min_probability, str(source))
    kinds = {thing.name for thing in things if thing.agreed and (not only or thing.name in only)}
    things = [thing for thing in things if thing.name in kinds]
    boxes = np.stack([thing.box for thing in things]) if things else np.zeros((0, 9))
    doubtful = np.array([not thing.agreed for thing in things], dtype=bool)
    room = LabelledRoom(source, tuple(thing.name for thing in things), boxes, lambda _: perceptron, doubtful)
    return room, [thing for thing in things if thing.agreed]


def agreed_things(lift: DetectionLift, classes: Sequence[str], min_probability: float, where: str) -> list[AgreedThing]:
    """Of the last perception of ``lift``, one for each name that a thing may have; ``where``: for messages."""
    found = []
    for place in lift.places:
        posterior = lift.witnesses.posterior(place.prior, place.evidence, place.plausibility, lift.can_name)
        names = {name: p for name, p in posterior.items() if name != UNNAMED and name not in STRUCTURE_CLASSES}
        best = max(sorted(names), key=lambda n: names[n], default="")
        for name, p in names.items():
            witnesses = _witnesses(place, name)
            agreed = name == best and p >= min_probability and len(witnesses) >= _MIN_WITNESSES
            if agreed or p >= _DOUBTFUL:
                found.append(AgreedThing(kind_of(name, classes, where), place.box, p, witnesses, agreed))
    return found


def check_enough(things: Sequence[AgreedThing]) -> None:
    """Raise :class:`~.few_shot_classes.FewShotError` where too little was agreed on to learn from."""
    if len(things) < MIN_THINGS:
        raise FewShotError(
            f"witnesses agree on {len(things)} things, {MIN_THINGS} are needed: record more of the room, "
            "or correct labels by hand"
        )


def _witnesses(place: Place, name: str) -> tuple[str, ...]:
    prior = {} if place.prior is None else {n: p for n, p in place.prior.items() if n != UNNAMED}
    said = prior.get(name, 0.0)
    network = [NETWORK] if said > 0 and said >= _MIN_SHARE * sum(prior.values()) else []
    detectors = [one.source for one in place.evidence if one.said.get(name, (0, 0.0))[0] >= _MIN_VIEWS]
    return (*network, *detectors)


def agreement_table(things: Sequence[AgreedThing]) -> str:
    """What was used, in Markdown."""
    lines = ["| name | things | witnesses |", "|---|---:|---|"]
    for name in sorted({thing.name for thing in things}):
        mine = [thing for thing in things if thing.name == name]
        who = sorted({witness for thing in mine for witness in thing.witnesses})
        counts = ", ".join(f"{w} {sum(w in thing.witnesses for thing in mine)}" for w in who)
        lines.append(f"| {name} | {len(mine)} | {counts} |")
    return "\n".join(lines)
