"""Fit the distributions of colour names (:mod:`embodied_perceptron.language.colors`).

    python -m embodied_perceptron_training.language.fit_colors --homes FOLDER [--homes FOLDER] [--limit N]

For every colour name: a normal distribution over CIELAB and the frequency of the name, from the colours that maps of
generated homes measure in the boxes of objects, scaled by the brightest objects of each home. Effects of cameras, light
and clutter are included. Writes ``lexicon/colors.json`` of the installed package.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.language.colors import DISTRIBUTIONS, mean_colors, scene_lab
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.evaluation.runner.scene_tasks import mapped_scene
from embodied_perceptron_training.evaluation.runner.scenes import load_scene

F64 = NDArray[np.float64]

_VIEWS = 20
_MODEL_NOISE = np.diag([60.0, 12.0, 12.0])  # variance of real homes beyond the generated ones


def colors_in_map(dataset: EmbodiedScanDataset, name: str) -> tuple[F64, list[str]]:
    """(N, 3) CIELAB that the map measures of the objects in 20 views, and their colour names ("" = none).

    Raises ``OSError``, ``KeyError`` or :class:`DatasetError` for damaged homes or homes of another generator.
    """
    scene = load_scene(dataset, name, _VIEWS)
    record = json.loads((dataset.root / name / "record.json").read_text())
    called = {x["bbox_id"]: x["attributes"].get("color", "") for x in record["instances"]}
    rows = scene.seen_rows()
    lab = scene_lab(mean_colors(mapped_scene(scene).volume.snapshot(), scene.boxes[rows]))
    things = [k for k, row in enumerate(rows) if scene.labels[row] not in STRUCTURE_CLASSES]
    return lab[things], [called[int(scene.ids[rows[k]])] for k in things]


def distributions(lab: F64, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """(N, 3) CIELAB, NaN = not measured, and N colour names -> entries of ``colors.json``."""
    known = np.isfinite(lab).all(axis=1) & np.array([name != "" for name in names], bool)
    found = {}
    for name in sorted({name for name, k in zip(names, known, strict=True) if k}):
        values = lab[known & (np.array(names) == name)]
        covariance = 0.8 * np.cov(values.T) + _MODEL_NOISE
        found[name] = {
            "mean": np.median(values, axis=0).round(1).tolist(),
            "covariance": covariance.round(1).tolist(),
            "share": round(len(values) / int(known.sum()), 4),
        }
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--homes", type=Path, required=True, action="append", help="data set to train on")
    parser.add_argument("--limit", type=int, default=50, help="most homes of each data set")
    arguments = parser.parse_args()
    names: list[str] = []
    labs = []
    for root in arguments.homes:
        dataset = EmbodiedScanDataset(root, "train")
        for index in range(min(arguments.limit, len(dataset))):
            lab, called = colors_in_map(dataset, dataset[index].sample_idx)
            labs.append(lab)
            names += called
    colors = distributions(np.concatenate(labs), names)
    comment = (
        "Made by `python -m embodied_perceptron_training.language.fit_colors` from the maps of "
        f"{len(labs)} training homes."
    )
    text = json.dumps({"comment": comment, "colors": colors}).replace('}, "', '},\n  "')
    write_atomically(DISTRIBUTIONS, (text + "\n").encode())
    print(f"{len(colors)} colours from {len(names)} objects -> {DISTRIBUTIONS}")


if __name__ == "__main__":
    main()
