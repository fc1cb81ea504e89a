"""Pseudo-labels: objects of a recording whose name the network and 2-D detectors agree on.

They were trained on different images and make different errors. A recording is mapped, the detectors run on its
keyframes, and an object becomes an example where the posterior over all of them is sure of its name and at least two of
them report it independently. This is self-training with an ensemble (Xie et al., "Self-training with noisy student",
2020); as with other labels, its effect is measured on objects and scenes left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import LiftOptions, PerceptronConfig
from embodied_perceptron.detection2d.fusion import Hypothesis
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.reports import markdown_table
from embodied_perceptron_training.training.few_shot import FewShotError, LabelledRoom, fuse_recording, kind_of

NETWORK = "network"
MIN_THINGS = 5  # of all recordings: fewer agreements may be chance
_MIN_VIEWS = 2  # of a detector that report the name
_MIN_SHARE = 0.3  # of the network's probability of any name: it counts as reporting the name
_MIN_SOURCES = 2
_DOUBTFUL = 0.05  # probability of a name from which the object is no counterexample of it


@dataclass(frozen=True, eq=False)
class AgreedThing:
    """An object with an agreed name."""

    name: str  # in the network's vocabulary where it has one
    box: NDArray[np.float64]  # (9,) float64, in the world of the recording
    probability: float  # of the name, over all sources
    sources: tuple[str, ...]  # :data:`NETWORK` and detectors that report it
    agreed: bool  # it is an example; False = it may be such an object


def agreed_room(
    source: Path, inference: Predictor, lift: LiftOptions, min_probability: float, only: Sequence[str] = ()
) -> tuple[LabelledRoom, list[AgreedThing]]:
    """Label a recording with the objects that network and detectors agree on.

    Args:
        source: recording of any format.
        inference: the network.
        lift: the detectors.
        min_probability: of a name.
        only: kinds that count; empty = all.

    Raises :class:`~.few_shot.FewShotError` for a recording without poses, ``RecordingError`` or ``OSError`` for
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
    """Return the agreed objects of the last perception, one for each likely name; ``where``: for messages."""
    found = []
    for hypothesis in lift.hypotheses:
        posterior = lift.detector_model.posterior(
            hypothesis.prior, hypothesis.evidence, hypothesis.plausibility, lift.can_name
        )
        names = {name: p for name, p in posterior.items() if name != UNNAMED and name not in STRUCTURE_CLASSES}
        best = max(sorted(names), key=lambda n: names[n], default="")
        for name, p in names.items():
            sources = _sources(hypothesis, name)
            agreed = name == best and p >= min_probability and len(sources) >= _MIN_SOURCES
            if agreed or p >= _DOUBTFUL:
                found.append(AgreedThing(kind_of(name, classes, where), hypothesis.box, p, sources, agreed))
    return found


def check_enough(things: Sequence[AgreedThing]) -> None:
    """Raise :class:`~.few_shot.FewShotError` for fewer than :data:`MIN_THINGS` agreed objects."""
    if len(things) < MIN_THINGS:
        raise FewShotError(
            f"network and detectors agree on {len(things)} objects, {MIN_THINGS} are needed: record more of the room, "
            "or correct labels by hand"
        )


def _sources(hypothesis: Hypothesis, name: str) -> tuple[str, ...]:
    prior = {} if hypothesis.prior is None else {n: p for n, p in hypothesis.prior.items() if n != UNNAMED}
    p = prior.get(name, 0.0)
    network = [NETWORK] if p > 0 and p >= _MIN_SHARE * sum(prior.values()) else []
    detectors = [one.source for one in hypothesis.evidence if one.reported.get(name, (0, 0.0))[0] >= _MIN_VIEWS]
    return (*network, *detectors)


def agreement_table(things: Sequence[AgreedThing]) -> str:
    """Return a Markdown table of the agreed objects by name."""
    rows = []
    for name in sorted({thing.name for thing in things}):
        mine = [thing for thing in things if thing.name == name]
        sources = sorted({source for thing in mine for source in thing.sources})
        counts = ", ".join(f"{s} {sum(s in thing.sources for thing in mine)}" for s in sources)
        rows.append((name, len(mine), counts))
    return "\n".join(markdown_table(("name", "objects", "sources"), rows, "lrl"))
