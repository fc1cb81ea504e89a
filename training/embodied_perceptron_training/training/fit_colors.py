"""What measured colours are called (:mod:`embodied_perceptron.language.colors`).

    python -m embodied_perceptron_training.training.fit_colors --homes FOLDER [--limit N]

A normal distribution over CIELAB for every colour name, from the mean colours of named objects over the images of
generated homes, each home scaled by its brightest things. Writes ``lexicon/colors.json`` of the installed package.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.language.colors import DISTRIBUTIONS, scene_lab
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES

F64 = NDArray[np.float64]

_MODEL_NOISE = np.diag([60.0, 12.0, 12.0])  # what real homes differ by beyond the generated ones


def measured_colors(folder: Path, record: dict[str, Any]) -> F64:
    """(N, 3) mean sRGB of each instance over all views in which it is visible; NaN where in none."""
    number = {instance["object_id"]: k for k, instance in enumerate(record["instances"])}
    total, count = np.zeros((len(number), 3)), np.zeros(len(number))
    for path in sorted((folder / "color").glob("*.jpg")):
        image, ids = cv2.imread(str(path)), cv2.imread(str(folder / "ids" / f"{path.stem}.png"), cv2.IMREAD_UNCHANGED)
        if image is None or ids is None:
            raise OSError(f"cannot read {path} and its ids")
        color, rows = image[..., ::-1].reshape(-1, 3).astype(np.float64), ids.ravel().astype(np.int64)
        size = int(rows.max()) + 1
        sums = np.stack([np.bincount(rows, color[:, c], size) for c in range(3)], axis=1)
        pixels = np.bincount(rows, minlength=size)
        for object_id, k in number.items():
            if object_id + 1 < size:
                total[k] += sums[object_id + 1]
                count[k] += pixels[object_id + 1]
    return np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], np.nan)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--homes", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=36, help="so many homes")
    arguments = parser.parse_args()
    names: list[str] = []
    labs = []
    for path in sorted(arguments.homes.glob("synthetic/*/record.json"))[: arguments.limit]:
        record = json.loads(path.read_text())
        rows = [k for k, x in enumerate(record["instances"]) if x["label"] not in STRUCTURE_CLASSES]
        labs.append(scene_lab(measured_colors(path.parent, record)[rows]))
        names += [record["instances"][k]["attributes"].get("color", "") for k in rows]
    lab = np.concatenate(labs)
    colors = {}
    for name in sorted(set(names) - {""}):
        values = lab[np.array(names) == name]
        values = values[np.isfinite(values).all(axis=1)]
        covariance = 0.8 * np.cov(values.T) + _MODEL_NOISE
        colors[name] = {"mean": np.median(values, axis=0).round(1).tolist(), "covariance": covariance.round(1).tolist()}
    comment = (
        f"Made by `python -m embodied_perceptron_training.training.fit_colors` on {arguments.limit} training homes."
    )
    text = json.dumps({"comment": comment, "colors": colors}).replace('}, "', '},\n  "')
    write_atomically(DISTRIBUTIONS, (text + "\n").encode())
    print(f"{len(colors)} colours from {len(lab)} objects -> {DISTRIBUTIONS}")


if __name__ == "__main__":
    main()
