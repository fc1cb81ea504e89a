"""What measured colours are called: the distributions, and where they come from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from support.small_homes import small_homes

from embodied_perceptron.language.colors import DISTRIBUTIONS, color_names
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.language.fit_colors import colors_in_map, distributions


def test_distributions_are_those_of_the_named_and_measured() -> None:
    rng = np.random.default_rng(0)
    red, white = rng.normal((40.0, 60.0, 30.0), 2.0, (300, 3)), rng.normal((90.0, 0.0, 0.0), 4.0, (100, 3))
    lab = np.concatenate([red, white, np.full((5, 3), np.nan), np.zeros((7, 3))])
    found = distributions(lab, ["red"] * 300 + ["white"] * 100 + ["blue"] * 5 + [""] * 7)
    assert list(found) == ["red", "white"]
    np.testing.assert_allclose(found["red"]["mean"], np.median(red, axis=0), atol=0.06)
    expected = 0.8 * np.cov(white.T) + np.diag([60.0, 12.0, 12.0])
    np.testing.assert_allclose(found["white"]["covariance"], expected, atol=0.06)
    assert (found["red"]["share"], found["white"]["share"]) == (0.75, 0.25)


def test_things_of_a_home_are_measured_as_the_map_does(tmp_path: Path) -> None:
    root = small_homes(tmp_path, sentences=0)
    dataset = EmbodiedScanDataset(root, "train")
    name = dataset[0].sample_idx
    lab, called = colors_in_map(dataset, name)
    record = json.loads((root / name / "record.json").read_text())
    told = [
        x["attributes"].get("color", "") for x in record["instances"] if x["label"] not in ("wall", "floor", "ceiling")
    ]
    assert lab.shape == (len(called), 3)
    assert 3 < len(called) <= len(told)
    assert set(called) <= set(told)
    assert np.isfinite(lab).all(axis=1).sum() > 4  # three small pictures
    assert (lab[np.isfinite(lab).all(axis=1)][:, 0] >= 0).all()


def test_shipped_distributions_tell_how_common_names_are() -> None:
    colors = json.loads(DISTRIBUTIONS.read_text())["colors"]
    share = {name: row["share"] for name, row in colors.items()}
    assert abs(sum(share.values()) - 1.0) < 0.01
    assert share["white"] > share["beige"] > share["purple"]
    wood = np.array([[150.0, 111.0, 80.0], [240.0, 240.0, 238.0]])  # dull orange: of furniture usually called brown
    assert color_names(wood) == ["brown", "white"]
