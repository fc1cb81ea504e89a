"""Curves of AP over one factor: ranked by hand, with perfect and random systems, and end to end on small homes."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from support.small_networks import small_config, small_network
from typer.testing import CliRunner

from embodied_perceptron.detection2d.detections2d import Limits2d, accept_detections
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.inference.loading import save_network
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron_training.evaluation.evaluate_command import evaluate_app
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError, EvaluationError
from embodied_perceptron_training.evaluation.suites.robustness import (
    DetectorSystem,
    FactorResult,
    Predictions,
    curve_data,
    curve_figures,
    curves,
    curves_markdown,
    evaluate_home,
    home_of,
    level_ap,
    mask_iou,
    match_target,
    robustness_figures,
)
from embodied_perceptron_training.evaluation.suites.scenes import SuiteSpec
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.factor_sweeps import FACTORS
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate

CAMERA = Intrinsics(90.0, 90.0, 63.5, 47.5, 128, 96)


# -- one picture, by hand


def said(*labels, scores=None):
    scores = np.linspace(0.9, 0.5, len(labels)) if scores is None else np.array(scores)
    return Predictions(np.zeros((len(labels), 9)), scores, labels)


def test_the_best_that_hits_is_right_and_doubles_are_wrong():
    ranked = match_target(said("cup", "cup", "cup"), "cup", np.array([0.1, 0.6, 0.3]), np.zeros(3), 0.25)
    assert ranked == ((0.9, False), (0.7, True), (0.5, False))


def test_what_lies_on_another_of_its_kind_does_not_count_and_other_names_neither():
    ranked = match_target(
        said("cup", "table", "cup"), "cup", np.array([0.0, 0.9, 0.0]), np.array([0.31, 0.0, 0.29]), 0.25
    )
    assert ranked == ((0.5, False),)


def test_ap_by_hand():
    hit, miss, nothing = ((0.9, True),), ((0.8, False),), ()
    assert level_ap([hit, hit]) == 100.0
    assert level_ap([hit, nothing]) == 50.0
    assert level_ap([hit, miss]) == 50.0
    assert level_ap([((0.5, True),), miss]) == pytest.approx(25.0)  # the wrong one came first
    assert level_ap([nothing]) == 0.0
    assert np.isnan(level_ap([]))
    assert level_ap([hit, miss, nothing]) == level_ap([nothing, miss, hit])


def test_area_and_worst_by_hand():
    assert curve_figures([0.0, 50.0, 100.0]) == {"area": 50.0, "worst": 0.0}
    assert curve_figures([80.0, 40.0, 60.0, 100.0]) == {"area": pytest.approx(190 / 3), "worst": 40.0}
    for bad in ([50.0], [50.0, float("nan")]):
        with pytest.raises(ValueError, match="two levels"):
            curve_figures(bad)


# -- systems that know, and that guess


class Knowing3d:
    dimensions = 3
    vocabulary = frozenset(DETECTION_CLASSES)

    def __init__(self, home):
        self.home = home

    def predict(self, frame):
        """Everything in the home, the target where it is in this frame."""
        boxes = self.home.boxes().copy()
        boxes[frame.target_id] = frame.box9
        return Predictions(boxes, np.full(len(boxes), 0.9), tuple(o.label for o in self.home.objects))


class Guessing3d(Knowing3d):
    def predict(self, frame):
        rng = np.random.default_rng(frame.target_id)
        boxes = self.home.boxes().copy()
        boxes[:, :3] = rng.uniform(-20, -10, (len(boxes), 3))
        return Predictions(boxes, rng.uniform(0, 1, len(boxes)), tuple(o.label for o in self.home.objects))


class Knowing2d:
    """A detector of pictures that the test has seen."""

    def __init__(self, home, shift_px=0.0, kept=None):
        """``kept``: share of each thing's pixels, from the left, that its mask has; None = no masks."""
        self.home, self.shift_px, self.kept, self.frame = home, shift_px, kept, None
        self.vocabulary = frozenset(o.label for o in home.objects)

    def detect(self, picture):
        ids = self.frame.view.instance
        boxes, labels, masks = [], [], []
        for o in self.home.objects:
            rows, columns = np.nonzero(ids == o.id + 1)
            if len(rows):
                mask, order = np.zeros(ids.shape, bool), np.argsort(columns, kind="stable")
                kept = order[: max(round((self.kept or 1.0) * len(order)), 1)]
                mask[rows[kept], columns[kept]] = True
                masks.append(mask)
                edges = np.array([columns.min() - 0.5, rows.min() - 0.5, columns.max() + 0.5, rows.max() + 0.5])
                boxes.append(edges + self.shift_px)
                labels.append(o.label)
        size = picture.intrinsics.width, picture.intrinsics.height
        limits = Limits2d(min_side_px=0.5, max_count=1000)
        return accept_detections(
            "camera", 1, np.array(boxes).reshape(-1, 4), np.full(len(boxes), 0.9), labels, size, limits,
            None if self.kept is None else np.array(masks).reshape(-1, *ids.shape),
        )  # fmt: skip


class Shown(DetectorSystem):
    def __init__(self, detector):
        super().__init__(detector)
        self.inner = detector

    def predict(self, frame):
        self.inner.frame = frame
        return super().predict(frame)


@pytest.fixture(scope="module")
def home():
    return build_home(11, HomeSpec(1, "bedroom"))


@pytest.fixture(scope="module")
def ranked(home):
    systems = {
        "": Knowing3d(home),
        "random": Guessing3d(home),
        "detector": Shown(Knowing2d(home)),
        "blind": Shown(Knowing2d(home, shift_px=500.0)),
        "outlines": Shown(Knowing2d(home, kept=1.0)),
        "slivers": Shown(Knowing2d(home, kept=0.4)),
    }
    return evaluate_home(home, systems, levels=3, views=2, camera=CAMERA)


def test_perfect_is_100_and_random_is_0_on_all_axes(ranked):
    figures = robustness_figures([ranked])
    for factor in FACTORS:
        assert figures[f"{factor}/area"] == figures[f"{factor}/worst"] == 100.0
        assert figures[f"random/{factor}/area"] < 5.0
        assert figures[f"blind/{factor}/area"] == 0.0


def test_a_perfect_2d_detector_sees_what_is_to_be_seen(ranked):
    figures = robustness_figures([ranked])
    for factor in ("articulation", "lighting", "zoom", "pitch"):
        assert figures[f"detector/{factor}/worst"] == 100.0
    ap = curves([ranked])["detector/visibility"]
    assert ap[0] < ap[-1] == 100.0  # behind the screen it sees nothing


def test_masks_are_scored_where_a_detector_makes_them(ranked):
    """Whole masks see everything; of 0.4 of a thing's pixels the IoU is 0.4, too little."""
    figures = robustness_figures([ranked])
    for factor in ("articulation", "lighting", "zoom", "pitch"):
        assert figures[f"outlines/masks/{factor}/worst"] == 100.0
        assert figures[f"slivers/masks/{factor}/area"] == 0.0
    assert not any(name.startswith(("detector/masks", "random/masks")) for name in figures)


def test_overlap_of_masks_by_hand():
    a = np.zeros((2, 2, 4), bool)
    a[0, 0, :3] = True  # three pixels; the other has none
    b = np.zeros((2, 2, 4), bool)
    b[0, 0, 1:] = True  # three, two of them shared: 2 of 4
    np.testing.assert_allclose(mask_iou(a, b), [[0.5, 0.0], [0.0, 0.0]])


def test_results_of_homes_are_pooled(ranked):
    assert robustness_figures([ranked, ranked]) == robustness_figures([ranked])
    assert robustness_figures([]) == {}


def test_a_system_is_not_asked_for_what_it_has_no_name_for(home):
    class OneWord(Knowing3d):
        vocabulary = frozenset(("bed",))

    result = evaluate_home(home, {"": Knowing3d(home), "bed": OneWord(home)}, 2, 3, ("lighting",), CAMERA)
    shown = result.views["lighting"]
    assert shown == 3
    assert result.unasked["bed", "lighting"] + len(result.ranked["bed", "lighting"][0]) == shown
    assert result.unasked["", "lighting"] == 0


def test_what_is_written(ranked):
    data = curve_data([ranked])
    assert data["levels"] == [0.0, 0.5, 1.0]
    assert data["ap"]["zoom"] == [100.0, 100.0, 100.0]
    assert data["measured"]["lighting"][0] < data["measured"]["lighting"][2]
    table = curves_markdown([ranked])
    assert "| zoom | 100.00 | 100.00 | 100.00 |" in table


# -- end to end


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("homes")
    generate(folder, (40,), HomeSampleSpec(views=2, width=96, height=72, home=HomeSpec(1, "bedroom")), "test")
    save_network(
        folder / "small.safetensors",
        small_network(small_config()),
        ("chair", "table", "bed", "picture"),
        {"occupancy_classes": ["floor", "wall", "chair"]},
    )
    return folder


def test_one_command_writes_everything(data, tmp_path):
    weights = str(data / "small.safetensors")
    options = ["--levels", "2", "--views", "1", "--workers", "1", "--weights", weights]
    result = CliRunner().invoke(
        evaluate_app, ["robustness", "--data", str(data), "--out", str(tmp_path), *options], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "metrics.json").read_text())
    assert {"lighting/area", "lighting/worst", "zoom/area", "pitch/worst", "visibility/area"} <= set(figures)
    assert all(0 <= value <= 100 for value in figures.values())
    assert set(json.loads((tmp_path / "curves.json").read_text())) == {"levels", "ap", "measured"}
    assert "AP in percent over the factor" in (tmp_path / "metrics.md").read_text()


def test_a_layout_without_detector_and_a_missing_data_set_end_with_a_message(data, tmp_path):
    command = ["robustness", "--out", str(tmp_path / "out"), "--data"]
    bad = CliRunner().invoke(evaluate_app, [*command, str(data), "--detector-layout", "yolov8"])
    assert "1 layouts for 0 files" in str(bad.exception)
    assert CliRunner().invoke(evaluate_app, [*command, str(tmp_path / "nothing")]).exit_code == 2


def test_homes_are_built_again_from_what_the_data_set_says(data):
    home = home_of(str(data), "synthetic/40")
    assert [o.label for o in home.objects] == [o.label for o in build_home(40, HomeSpec(1, "bedroom")).objects]
    np.testing.assert_array_equal(home.boxes(), build_home(40, HomeSpec(1, "bedroom")).boxes())
    with pytest.raises(CorruptSceneError, match="synthetic/41"):
        home_of(str(data), "synthetic/41")


def test_bad_specifications_are_named():
    with pytest.raises(EvaluationError, match="two levels"):
        SuiteSpec("x", levels=1)
    with pytest.raises(EvaluationError, match="needs a --detector"):
        SuiteSpec("x", layout="yolov8")


def test_a_home_with_nothing_to_show_changes_no_curve():
    ranked = {("", "zoom"): [[((0.9, True),)], [((0.8, False),)]]}
    full = FactorResult(ranked, {"zoom": [[0.1], [0.9]]}, Counter(zoom=1))
    assert robustness_figures([FactorResult(), full, FactorResult()]) == robustness_figures([full])
    assert robustness_figures([FactorResult()]) == {}
