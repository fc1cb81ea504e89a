"""Fit the weights that estimate the front of an object from the boxes around it
(:mod:`embodied_perceptron.language.relations`).

    python -m embodied_perceptron_training.language.fit_fronts --homes FOLDER

A conditional logit over the four sides of every box of generated homes, where -y is the front: shared weights, and
deviations for every frequent label. Each home counts twice: with true boxes, and with noisy boxes of which some are
missing. Writes ``lexicon/fronts.json`` of the installed package.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from embodied_perceptron.language.relations import (
    FRONT_FEATURES,
    FRONT_WEIGHTS,
    WITHOUT_FRONT,
    SceneGeometry,
    side_features,
)
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES

F64 = NDArray[np.float64]

_OFTEN = 15  # least occurrences of a label with its own weights
_PENALTY_SHARED, _PENALTY_LABEL = 0.1, 1.0


def load_sides(folder: Path, rng: np.random.Generator | None = None) -> tuple[list[str], F64]:
    """Labels and (M, 4, F) features of all objects with a front in the homes below ``folder``; with ``rng``: of noisy
    boxes, a tenth of them missing."""
    labels, features = [], []
    for path in sorted(folder.glob("synthetic/*/record.json")):
        instances = json.loads(path.read_text())["instances"]
        instances = [x for x in instances if x["label"] not in STRUCTURE_CLASSES]
        if rng is not None:
            instances = [x for x in instances if rng.random() > 0.1]
        if not instances:
            continue
        boxes = np.array([x["bbox_3d"] for x in instances])
        if rng is not None:
            boxes[:, :3] += rng.normal(0, 0.06, (len(boxes), 3)) * np.minimum(boxes[:, 3:6] / 0.4, 1.0)
            boxes[:, 3:6] *= np.exp(rng.normal(0, 0.08, (len(boxes), 3)))
        names = [x["label"] for x in instances]
        rows = [k for k, name in enumerate(names) if name not in WITHOUT_FRONT]
        labels += [names[k] for k in rows]
        features.append(side_features(SceneGeometry(boxes), names)[rows])
    if not features:
        raise ValueError(f"no homes below {folder}")
    return labels, np.concatenate(features)


def fit(labels: Sequence[str], features: F64) -> tuple[F64, dict[str, F64]]:
    """(F,) shared weights and (F,) weights by label. The front is side 0 of every row."""
    often = [label for label, n in sorted(Counter(labels).items()) if n >= _OFTEN]
    row = {label: k for k, label in enumerate(often)}
    ids = np.array([row.get(label, len(often)) for label in labels])
    count = features.shape[-1]

    def loss(parameters: F64) -> tuple[float, F64]:
        shared = parameters[:count]
        own = parameters[count:].reshape(len(often), count)
        padded = np.concatenate([own, np.zeros((1, count))])
        logits = np.einsum("nkf,nf->nk", features, shared + padded[ids])
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        value = -np.log(share[:, 0] + 1e-12).sum()
        value += _PENALTY_SHARED * (shared**2).sum() + _PENALTY_LABEL * (own**2).sum()
        error = share.copy()
        error[:, 0] -= 1.0
        by_row = np.einsum("nk,nkf->nf", error, features)
        by_label = np.zeros((len(often) + 1, count))
        np.add.at(by_label, ids, by_row)
        gradient = [by_row.sum(0) + 2 * _PENALTY_SHARED * shared, (by_label[:-1] + 2 * _PENALTY_LABEL * own).ravel()]
        return float(value), np.concatenate(gradient)

    start = np.zeros(count * (1 + len(often)))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 400}).x
    shared = found[:count]
    return shared, {label: shared + found[count * (k + 1) : count * (k + 2)] for label, k in row.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--homes", type=Path, required=True)
    arguments = parser.parse_args()
    true = load_sides(arguments.homes)
    shaken = load_sides(arguments.homes, np.random.default_rng(1))
    shared, by_label = fit([*true[0], *shaken[0]], np.concatenate([true[1], shaken[1]]))
    data = {
        "comment": "Made by `python -m embodied_perceptron_training.language.fit_fronts` on training homes.",
        "features": list(FRONT_FEATURES),
        "shared": [round(float(v), 3) for v in shared],
        "by_label": {label: [round(float(v), 3) for v in row] for label, row in by_label.items()},
    }
    text = json.dumps(data).replace('], "', '],\n  "').replace('": {"', '": {\n  "')
    write_atomically(FRONT_WEIGHTS, (text + "\n").encode())
    print(f"{len(true[0])} objects, {len(by_label)} labels -> {FRONT_WEIGHTS}")


if __name__ == "__main__":
    main()
