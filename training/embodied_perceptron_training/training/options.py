"""What ``--set name=value`` says to the scene tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embodied_perceptron_training.training.augment import ALIGNED_MOTION, MotionRange

MOTIONS = {"aligned": ALIGNED_MOTION, "any": MotionRange()}  # by the name of option ``turns``


@dataclass(frozen=True)
class TaskOptions:
    """``--set name=value`` of the scene tasks.

    Attributes:
        images: the image encoder: weights file of ``train --task images``, or ``imagenet`` for the preset's packaged
            one. It is then frozen, and scenes keep its features: many times faster. Empty: it is trained along with
            everything else, as the paper does.
        classes: ``data`` (those that occur in the training split) or ``all``.
        window_m: edge of training windows; 0 = the preset's (``paper``: the whole scene).
        learn: ``all``, or ``grounding``: the decoder of sentences alone, over a network that stays as it is. It sees
            what it will see at inference, and ``sentences`` may be many: they cost little beside the look at the
            scene. Weights to start from may have another decoder; this one then starts anew.
        sentences: per sample that has any.
        absent_share: of them, about what is elsewhere; for decoders over objects.
        sentence_share, occupancy_share: of the samples that teach grounding and occupancy; steps get cheaper.
        repeat: windows per scene and epoch.
        balance: scenes with a class that fewer than this share of all scenes has come more often, see
            :func:`balanced_order`; 0 = all alike.
        turns: how scenes are turned in training (not ``paper``): ``aligned`` with the lattice up to quarter turns and a
            few degrees, as :class:`~embodied_perceptron.inference.map_predictor.MapPredictor` turns its lattice, or
            ``any``.
        cache: folder of prepared scenes; empty = ``.prepared`` below the data.
        w_detection, w_occupancy, w_grounding: of the heads' losses.
    """

    images: str = ""
    classes: str = "data"
    window_m: float = 0.0
    learn: str = "all"
    sentences: int = 6
    absent_share: float = 0.25
    sentence_share: float = 1.0
    occupancy_share: float = 1.0
    repeat: int = 4
    balance: float = 0.0
    turns: str = "aligned"
    cache: str = ""
    w_detection: float = 1.0
    w_occupancy: float = 0.5
    w_grounding: float = 0.3

    @staticmethod
    def of(options: Mapping[str, str]) -> TaskOptions:
        """From text. Raises ``ValueError`` naming an unknown option or a value of the wrong kind."""
        known = {f.name: f for f in dataclasses.fields(TaskOptions)}
        values: dict[str, Any] = {}
        for name, text in options.items():
            if name not in known:
                raise ValueError(f"unknown option {name!r}; known: {', '.join(known)}")
            kind: Callable[[str], Any] = type(known[name].default)
            try:
                values[name] = kind(text)
            except ValueError:
                raise ValueError(f"option {name} must be {type(known[name].default).__name__}, got {text!r}") from None
        if values.get("turns", "any") not in MOTIONS:
            raise ValueError(f"option turns must be one of {', '.join(MOTIONS)}, got {values['turns']!r}")
        if values.get("learn", "all") not in ("all", "grounding"):
            raise ValueError(f"option learn must be all or grounding, got {values['learn']!r}")
        for name in ("balance", "absent_share"):
            if not 0.0 <= values.get(name, 0.0) <= 1.0:
                raise ValueError(f"option {name} must be in [0, 1], got {values[name]}")
        return TaskOptions(**values)
