"""Few-shot classes: what is fitted, what stays, what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from scipy.optimize import minimize
from support.bag_tools import camera_info, image, write_bag
from support.online_world import CLASSES, config, inference, walk
from support.small_homes import small_homes
from support.small_networks import hash_lookup, small_config, small_network, small_scene
from support.small_recording import INTRINSICS, frames, write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.geometry.manhattan import ManhattanFrame, Region
from embodied_perceptron.inference.loading import load_inference, load_network, save_network
from embodied_perceptron.mapping.storage import MapFileError
from embodied_perceptron.nn.detection import DetectionLevel
from embodied_perceptron.nn.presets import RefinementConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.scene.live_map import LABELS_SUFFIX
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron.weights.checkpoint import load_checkpoint
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.evaluation.recordings.labels import (
    LabelError,
    LabelledThing,
    RecordingLabels,
    write_labels,
)
from embodied_perceptron_training.training import few_shot, pseudo_labels
from embodied_perceptron_training.training import few_shot_command as learn_command
from embodied_perceptron_training.training.few_shot import (
    Examples,
    FewShotError,
    LabelledRoom,
    RoomFeatures,
    RoomPart,
    Rows,
    boxes_of,
    check_network,
    classifier_rows,
    examples_of,
    fit_classes,
    fit_rows,
    folds_of,
    read_labelled_rooms,
    write_classes,
)
from embodied_perceptron_training.training.pseudo_labels import AgreedThing

SIZE_M = 0.4
CHANNELS = 16  # of the small network's neck
KINDS = ("robot", "chair", "crate")


def a_room(
    seed: int, things: dict[str, int], noise: float = 0.3, yaw: float = 0.0, labelled=("robot", "crate")
) -> RoomFeatures:
    """Things on a row, one site level, boxes that are right; what a site's features tell is of which kind it is."""
    rng = np.random.default_rng(seed)
    kinds = [kind for kind, count in things.items() for _ in range(count)]
    rng.shuffle(kinds)
    grid = np.stack(np.meshgrid(*[np.arange(-4, 4)] * 2, np.arange(4), indexing="ij"), -1).reshape(-1, 3)
    coords, feats, boxes = [], [], []
    for i, kind in enumerate([*kinds, "nothing"]):
        cells = grid + np.array([12 * i, 0, 0])
        mean = np.zeros(CHANNELS)
        mean[(*KINDS, "nothing").index(kind)] = 2.0
        coords.append(cells)
        feats.append(mean + noise * rng.standard_normal((len(cells), CHANNELS)))
        boxes.append([(12 * i) * 0.05, 0.0, 0.1, SIZE_M, SIZE_M, 0.2, 0.0, 0.0, 0.0])
    sparse = SparseTensor.from_coords(
        torch.from_numpy(np.concatenate(coords)), torch.from_numpy(np.concatenate(feats)).float()
    )
    points = (sparse.coords.float() + 0.5) * 0.05
    owner = (points[:, 0] / 0.6).round().long()
    center = torch.tensor(boxes)[owner, :3].float()
    numbers = torch.tensor([4.0, 0, 0, 0, *[0.5 * SIZE_M] * 4, 0.1, 0.1, 1, 0, 0, 0, 1, 0]).repeat(len(points), 1)
    numbers[:, 1:4] = center
    sites = Sites(sparse.keys, 1, 1, sparse.sites.engine)
    level = DetectionLevel(sites, points, numbers, torch.zeros(len(points), 0))
    frame = ManhattanFrame(yaw)
    part = RoomPart((level,), (sparse.feats,), frame, Region.everywhere())
    world = frame.boxes_to_world(np.array(boxes[:-1]))
    rows = [i for i, kind in enumerate(kinds) if kind in labelled]
    return RoomFeatures(f"room {seed}", tuple(kinds[i] for i in rows), world[rows], (part,), world)


def rooms(count=4, **options):
    return [a_room(i, {"robot": 2, "crate": 2, "chair": 3}, yaw=0.3 * i, **options) for i in range(count)]


@pytest.fixture
def predictor():
    return inference(min_score=0.25)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    detection = dataclasses.replace(small_config("all", "rgbd").detection, min_score=0.3, max_per_level=30)
    network = small_network(dataclasses.replace(small_config("all", "rgbd"), detection=detection))
    save_network(path, network, CLASSES, {"occupancy_classes": ["floor", "wall", "chair"], "seed": 3})
    return path


def test_new_classes_find_things_that_they_were_not_learned_from(predictor) -> None:
    fitted = fit_classes(rooms(), predictor)
    assert fitted.classes == (*CLASSES, "crate", "robot")
    assert [(c.name, c.is_new, c.things, c.rooms) for c in fitted.report] == [
        ("crate", True, 8, 4),
        ("robot", True, 8, 4),
    ]
    assert all(c.before == 0.0 and c.after > 95.0 and c.localised == 100.0 for c in fitted.report)
    assert fitted.problems(0.0) == []
    before = classifier_rows(predictor)
    assert torch.equal(fitted.rows.kernel[:, : len(CLASSES)], before.kernel)
    assert torch.equal(fitted.rows.bias[: len(CLASSES)], before.bias)
    fresh = a_room(99, {"robot": 2, "crate": 1, "chair": 2})
    found = boxes_of(fresh.parts, Rows(fitted.rows.kernel[:, 4:], fitted.rows.bias[4:]), predictor)
    sure = found.scores >= 0.25
    assert sorted(found.labels[sure].tolist()) == [0, 1, 1]


@pytest.mark.parametrize("sides", [2, 1], ids=["rooms left out", "things left out"])
def test_a_room_where_nothing_is_labelled_shows_what_is_not(predictor, sides: int) -> None:
    empty = a_room(7, {"chair": 4}, labelled=())
    made = [*rooms(sides), empty]
    if sides == 1:
        made[0] = a_room(0, {"robot": 4, "crate": 4, "chair": 3})
    fitted = fit_classes(made, predictor)
    assert [(c.name, c.rooms) for c in fitted.report] == [("crate", sides), ("robot", sides)]
    assert all(c.after > 95.0 for c in fitted.report)
    rows = Rows(fitted.rows.kernel[:, 4:], fitted.rows.bias[4:])
    assert not (boxes_of(empty.parts, rows, predictor).scores >= 0.25).any()


@pytest.mark.parametrize("sides", [4, 1], ids=["rooms left out", "things left out"])
def test_doubtful_things_are_neither_example_nor_counterexample(predictor, sides: int) -> None:
    made = [a_room(i, {"robot": 6, "crate": 3, "chair": 3}, yaw=0.3 * i, labelled=("robot",)) for i in range(sides)]
    half = [dataclasses.replace(r, doubtful=np.array([False, True] * 3)) for r in made]
    missed = [dataclasses.replace(r, labels=r.labels[::2], boxes=r.boxes[::2]) for r in made]
    fitted, blind = fit_classes(half, predictor), fit_classes(missed, predictor)
    (report,) = fitted.report
    assert (report.things, report.rooms) == (3 * sides, sides)
    assert report.after > 95.0
    rows = [Rows(f.rows.kernel[:, 4:], f.rows.bias[4:]) for f in (fitted, blind)]
    scores = [boxes_of(made[0].parts, row, predictor).scores.max(initial=0.0) for row in rows]
    assert scores[0] > scores[1] + 0.1, "things that nobody labelled speak against the kind"


def test_a_kind_of_which_all_is_doubtful_is_left_out(predictor) -> None:
    made = [dataclasses.replace(r, doubtful=np.array([label == "crate" for label in r.labels])) for r in rooms()]
    told: list[str] = []
    fitted = fit_classes(made, predictor, progress=told.append)
    assert [c.name for c in fitted.report] == ["robot"]
    assert any("'crate' has 0 examples" in words for words in told)


def test_a_known_class_is_improved_from_where_it_stands(predictor) -> None:
    taught = rooms(labelled=("chair",))
    fitted = fit_classes(taught, predictor)
    assert fitted.classes == CLASSES
    (report,) = fitted.report
    assert (report.name, report.is_new) == ("chair", False)
    assert report.after > 95.0
    before = classifier_rows(predictor)
    others = [i for i, name in enumerate(CLASSES) if name != "chair"]
    assert torch.equal(fitted.rows.kernel[:, others], before.kernel[:, others])
    assert not torch.equal(fitted.rows.kernel[:, 0], before.kernel[:, 0])
    near = fit_classes(taught, predictor, decay=1e6)
    assert torch.allclose(near.rows.kernel[:, 0], before.kernel[:, 0], atol=1e-3)


def test_what_cannot_be_told_apart_is_refused(predictor) -> None:
    blind = [dataclasses.replace(r, parts=(blinded(r.parts[0], i),)) for i, r in enumerate(rooms())]
    fitted = fit_classes(blind, predictor)
    assert all(c.after < 60.0 for c in fitted.report)
    worse = dataclasses.replace(fitted, report=(dataclasses.replace(fitted.report[0], before=80.0, after=60.0),))
    assert any("fell from 80.0 to 60.0" in p for p in worse.problems(1.0))
    assert any("not better" in p for p in worse.problems(1.0))
    same = dataclasses.replace(fitted, report=(dataclasses.replace(fitted.report[0], before=50.0, after=50.0),))
    assert any("not better" in p for p in same.problems(1.0))
    bad = few_shot.ValidationReport(3, 60.0, 55.0, 0.0)
    good = dataclasses.replace(fitted, report=(dataclasses.replace(fitted.report[0], before=0.0, after=60.0),))
    assert good.problems(1.0) == []
    assert any("validation" in p for p in dataclasses.replace(good, validation=bad).problems(1.0))
    assert dataclasses.replace(good, validation=bad).problems(6.0) == []


def blinded(part: RoomPart, seed: int) -> RoomPart:
    noise = torch.randn(part.features[0].shape, generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(part, features=(noise,))


def test_things_of_one_room_are_left_out_in_turn(predictor) -> None:
    one = [a_room(3, {"robot": 4, "chair": 3})]
    folds = folds_of(one, ["robot"])
    assert folds[0][0] == -1
    assert sorted(folds[0][1:]) == [0, 1, 2, 3]
    fitted = fit_classes(one, predictor)
    assert fitted.report[0].after > 95.0
    by_room = folds_of(rooms(4), ["crate", "robot"])
    assert sorted(f[0] for f in by_room) == [0, 1, 2, 3]
    assert all(set(f) == {f[0]} for f in by_room)


def test_held_out_things_are_neither_example_nor_counterexample(predictor) -> None:
    room = a_room(5, {"robot": 4, "chair": 2})
    seen = examples_of(room)
    prior = Rows(torch.zeros(CHANNELS, 1), torch.full((1,), -4.6))
    teaches = np.array([True, True, True, False])
    held_out = seen.inside[:, 3]
    changed = seen.features.clone()
    changed[held_out] = 2 * changed[held_out].mean(0) - changed[held_out]  # other features of the same mean and spread
    plain = fit_rows([(seen, room.labels, teaches)], ["robot"], prior)
    other = fit_rows([(dataclasses.replace(seen, features=changed), room.labels, teaches)], ["robot"], prior)
    assert torch.allclose(plain.kernel, other.kernel, atol=1e-3)
    taught = fit_rows([(seen, room.labels, np.ones(4, bool))], ["robot"], prior)
    assert not torch.equal(taught.kernel, plain.kernel)


def test_rows_are_those_of_logistic_regression() -> None:
    """Slow twin: each class by itself, by scipy, in float64."""
    g = torch.Generator().manual_seed(4)
    features = torch.randn(300, 5, generator=g) * torch.tensor([1.0, 3.0, 0.2, 1.0, 1.0]) + 2.0
    thing = torch.full((300,), -1)
    thing[:40], thing[40:70] = 0, 1
    features[:40, 0] += 1.5
    inside = torch.zeros(300, 2, dtype=torch.bool)
    inside[:60, 0], inside[40:90, 1] = True, True
    labels, names = ("a", "b"), ["a", "b"]
    prior = Rows(torch.randn(5, 2, generator=g) * 0.1, torch.tensor([-4.6, -1.0]))
    rows = fit_rows([(Examples(features, thing, inside), labels, np.ones(2, bool))], names, prior, decay=0.1)
    x = features.double().numpy()
    mean, spread = x.mean(0), x.std(0, ddof=1)
    z = (x - mean) / spread
    for k in range(2):
        y = (thing == k).numpy()
        use = y | ~inside[:, k].numpy()
        start = prior.kernel[:, k].double().numpy() * spread

        def loss(p, y=y, use=use, start=start):
            logits = z @ p[:5] + p[5]
            bce = np.logaddexp(0, logits) - y * logits
            return bce[use].sum() / y.sum() + 0.1 * ((p[:5] - start) ** 2).sum()

        best = minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-7}).x
        kernel = best[:5] / spread
        assert rows.kernel[:, k].numpy() == pytest.approx(kernel, abs=2e-2)
        assert float(rows.bias[k]) == pytest.approx(best[5] - mean @ kernel, abs=5e-2)


def test_weights_with_new_classes_are_read_and_perceive(weights: Path, tmp_path: Path) -> None:
    before = load_inference(weights)
    fitted = fit_classes(rooms(), before)
    out = tmp_path / "mine.safetensors"
    write_classes(weights, out, fitted)
    old, new = load_checkpoint(weights), load_checkpoint(out)
    assert new.classes == (*CLASSES, "crate", "robot")
    assert new.config["num_classes"] == 6
    assert new.extra["seed"] == 3
    assert [c["name"] for c in new.extra["taught"]] == ["crate", "robot"]
    for key, value in old.state.items():
        grown = new.state[key]
        assert grown.dtype == value.dtype
        assert torch.equal(grown if grown.shape == value.shape else grown[..., :4], value), key
    maps = []
    for file in (weights, out):
        options = dataclasses.replace(config().network, weights=str(file), min_score=0.0)
        perceptron = Perceptron.from_config(dataclasses.replace(config(), network=options))
        for frame in walk(2, 4):
            perceptron.integrate(frame)
        prediction = perceptron.predict()
        (part,) = prediction.parts
        maps.append((part.scene.detection.levels, perceptron.perceive().semantic))
        assert perceptron.ground("the robot").reason
    for a, b in zip(maps[0][0], maps[1][0], strict=True):
        assert b.class_logits.shape[1] == 6
        assert torch.allclose(a.class_logits, b.class_logits[:, :4], atol=1e-5)
        assert torch.equal(a.distances_m, b.distances_m)
    assert np.array_equal(maps[0][1].labels, maps[1][1].labels)


def test_a_second_look_takes_new_classes_as_they_are_said(predictor, tmp_path: Path) -> None:
    small = small_config("all", "rgbd")
    look = RefinementConfig(channels=8, near_channels=8, whole_channels=8, hidden_channels=16)
    config = dataclasses.replace(small, detection=dataclasses.replace(small.detection, second_look=look))
    path, out = tmp_path / "w.safetensors", tmp_path / "mine.safetensors"
    save_network(path, small_network(config), CLASSES, {"occupancy_classes": ["floor", "wall", "chair"]})
    write_classes(path, out, fit_classes(rooms(), predictor))
    (old, _), (new, classes) = load_network(path), load_network(out)
    assert len(classes) == len(CLASSES) + 2
    looks = old.second_look, new.second_look
    features = new(small_scene(), hash_lookup(new))
    (seen,) = new.proposals(features)
    assert len(seen) > 5
    known = dataclasses.replace(seen, log_odds=seen.log_odds[:, : len(CLASSES)])
    before, after = looks[0](known), looks[1](seen)
    assert torch.allclose(before[:, :-1], after[:, : len(CLASSES)], atol=1e-5)
    assert torch.allclose(before[:, -1], after[:, -1], atol=1e-5)  # presence
    said = seen.log_odds[:, len(CLASSES) :] * looks[1].scale + looks[1].shift
    assert torch.allclose(after[:, len(CLASSES) : -1], said, atol=1e-6)


def test_networks_whose_features_depend_on_classes_are_refused() -> None:
    paper = small_network(small_config("detection", "depth", "paper"))
    with pytest.raises(FewShotError, match="prunes by its classes"):
        check_network(few_shot.Predictor(paper, CLASSES))
    nothing = small_network(small_config("occupancy", "depth"))
    with pytest.raises(FewShotError, match="no detection head"):
        check_network(few_shot.Predictor(nothing, CLASSES, ("a", "b", "c")))


# ---- what is read


@pytest.fixture
def corrected(tmp_path: Path, predictor):
    """A map with three objects, as users correct it: ``save(label, ...)`` relabels the first objects."""
    perceptron = Perceptron(config(), inference=predictor)
    for i, frame in enumerate(walk(1, 6)):
        perceptron.integrate(frame)
        if i > 1:
            perceptron.perceive()
    ids = [o.id for o in perceptron.perceive().objects + perceptron.map._objects.objects()]
    ids = list(dict.fromkeys(ids))
    assert len(ids) >= 3

    def save(*labels: str, name: str = "home.safetensors") -> Path:
        for number, label in zip(ids, labels, strict=False):
            if label:
                perceptron.correct_object(number, label)
        path = tmp_path / name
        perceptron.save(path)
        return path

    return save


def test_a_corrected_map_tells_its_labels(corrected) -> None:
    file = corrected("Robot", "CHAIR", " big   crate ")
    (room,) = read_labelled_rooms([file], CLASSES)
    assert sorted(room.labels) == ["big crate", "chair", "robot"]
    assert room.boxes.shape == (3, 9)
    room = few_shot.room_features(room, inference())
    assert sum(len(p.flat()) for p in room.parts) > 50
    for part in room.parts:  # all rooms are held at once: what the layers kept at the sites is gone
        for level in part.levels:
            kept = vars(level.sites)
            assert not any(kept[name] for name in ("_maps", "_coarser", "engine_shared")), kept
            assert level.object_logits is None
    assert examples_of(room).inside.shape[1] == 3
    (only,) = read_labelled_rooms([file], CLASSES, ["Robot"])
    assert only.labels == ("robot",)
    with pytest.raises(FewShotError, match=r"has \d examples.*; 3 are needed"):
        fit_classes([room], inference())


def test_a_kind_with_two_examples_does_not_end_the_others(monkeypatch) -> None:
    """It is left out, and said to be; its things are no examples of anything."""
    levels, told = SimpleNamespace(), []
    room = few_shot.RoomFeatures("home", ("chair",) * 4 + ("crate",) * 2, np.ones((6, 9)), (), np.zeros((0, 9)))
    monkeypatch.setattr(
        few_shot,
        "examples_of",
        lambda r: Examples(torch.zeros(8, 2), torch.tensor([*range(len(r.labels)), -1, -1][:8]), torch.zeros(8, 6)),
    )
    kept = []
    monkeypatch.setattr(few_shot, "classifier_rows", lambda _: levels)

    def stop(known, classes, names):
        kept.extend(names)
        raise RuntimeError("far enough")

    monkeypatch.setattr(few_shot, "prior_rows", stop)
    with pytest.raises(RuntimeError, match="far enough"):
        fit_classes([room], SimpleNamespace(classes=CLASSES), progress=told.append)
    assert kept == ["chair"]
    assert told == ["left out: 'crate' has 2 examples; 3 are needed for the fit and its validation"]


def test_maps_that_teach_nothing_are_named(corrected, tmp_path: Path) -> None:
    file = corrected()
    with pytest.raises(FewShotError, match=r"no object is labelled in .*home"):
        read_labelled_rooms([file], CLASSES)
    file = corrected("robot")
    with pytest.raises(FewShotError, match="no object called crate"):
        read_labelled_rooms([file], CLASSES, ["crate"])
    with pytest.raises(FewShotError, match="twice"):
        read_labelled_rooms([file, file], CLASSES)
    with pytest.raises((MapFileError, OSError), match=r"absent"):
        read_labelled_rooms([tmp_path / "absent.safetensors"], CLASSES)
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(MapFileError, match="junk"):
        read_labelled_rooms([tmp_path / "junk.safetensors"], CLASSES)


@pytest.mark.parametrize(
    ("label", "error", "reason"),
    [
        ("x" * 10_240, LabelError, "1 to 1000 characters"),
        ("x" * 500, FewShotError, "500 characters"),
        ("wall", FewShotError, "no kind of object"),
        ("Object", FewShotError, "no kind of object"),
        ("12", FewShotError, "must have a letter"),
        ("a\x07b", LabelError, "control character"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path: Path, label: str, error: type[ValueError], reason: str) -> None:
    folder = write_recording(tmp_path / "drive", 2)
    text = {"objects": [{"names": [label], "box": [1, 0, 0.4, 1, 1, 1, 0, 0, 0]}], "extra_names": [label]}
    folder.with_name(folder.name + LABELS_SUFFIX).write_text(json.dumps(text))
    with pytest.raises(error, match=reason):
        read_labelled_rooms([folder], CLASSES)


def labelled(folder: Path, *things: tuple[str, float], size_m: float = 0.9) -> Path:
    boxes = [(name, np.array([x, 0.0, 0.4, size_m, size_m, 0.74, 0.0, 0.0, 0.0])) for name, x in things]
    extra = tuple(sorted({name for name, _ in things} - {"table", "chair"}))
    write_labels(
        folder.with_name(folder.name + LABELS_SUFFIX),
        RecordingLabels(tuple(LabelledThing((n,), b) for n, b in boxes), extra_names=extra),
    )
    return folder


def test_contradictory_labels_are_refused(tmp_path: Path) -> None:
    folder = labelled(write_recording(tmp_path / "drive", 2), ("robot", 1.0), ("crate", 1.05))
    with pytest.raises(FewShotError, match=r"\(1\.05, 0\.00, 0\.40\) is both a 'robot' and a 'crate'"):
        read_labelled_rooms([folder], CLASSES)
    labelled(folder, ("robot", 1.0), ("crate", 2.5), ("Robot", 1.02))
    assert read_labelled_rooms([folder], CLASSES)[0].labels == ("robot", "crate", "robot")


def test_a_labelled_recording_is_looked_at(tmp_path: Path) -> None:
    folder = write_recording(tmp_path / "drive", 6)
    with pytest.raises(FewShotError, match=r"drive has no labels: make them .*label .*drive\.labels\.json"):
        read_labelled_rooms([folder], CLASSES)
    labelled(folder, ("robot", 1.05), size_m=4.0)  # random weights keep few sites
    (room,) = read_labelled_rooms([folder], CLASSES)
    room = few_shot.room_features(room, inference())
    assert (examples_of(room).thing == 0).any()


def test_every_scan_of_a_data_set_is_a_lesson(tmp_path: Path) -> None:
    root = small_homes(tmp_path / "homes", sentences=2)
    (scan,) = EmbodiedScanDataset(root, "train")
    shown = sorted(frozenset[int]().union(*(image.visible_ids for image in scan.images)))
    kinds = {scan.labels[k] for k in shown} - {"wall", "floor", "ceiling"}
    (room,) = read_labelled_rooms([root], CLASSES)  # of the homes to train on alone
    assert set(room.labels) == kinds
    assert len(room.labels) == len(room.boxes) == sum(scan.labels[k] in kinds for k in shown)
    assert str(room.source) == f"{root}/{scan.sample_idx}"
    (only,) = read_labelled_rooms([root], CLASSES, ["bed"])
    assert set(only.labels) == {"bed"}
    room = few_shot.room_features(only, inference())
    assert (examples_of(room).thing >= 0).any()
    assert room.boxes.shape == (len(only.labels), 9)
    with pytest.raises(FewShotError, match="no object called piano is labelled"):
        read_labelled_rooms([root], CLASSES, ["piano"])
    with pytest.raises(FewShotError, match="given twice"):
        read_labelled_rooms([root, root], CLASSES)
    (root / "embodiedscan_infos_train.pkl").unlink()
    with pytest.raises(FewShotError, match=r"has no embodiedscan_infos_train\.pkl"):
        read_labelled_rooms([root], CLASSES)


def see_all(sources: list[Path]) -> list[RoomFeatures]:
    return [few_shot.room_features(room, inference()) for room in read_labelled_rooms(sources, CLASSES)]


def test_a_bag_without_transforms_is_refused_by_name(tmp_path: Path) -> None:
    messages = []
    for stamp, color, depth, _ in frames(4):
        for topic, message in (
            ("/camera/color/image_raw", image(stamp, "camera", color)),
            ("/camera/depth/image_raw", image(stamp, "camera", (depth * 1000).clip(0, 9000).astype(np.uint16))),
            ("/camera/color/camera_info", camera_info(stamp, "camera", INTRINSICS)),
        ):
            messages.append((topic, stamp, message))
    bag = labelled(write_bag(tmp_path / "bag", messages), ("robot", 1.0))
    with pytest.raises(ValueError, match=r"bag.*(TF|transform)"):
        see_all([bag])


# ---- the command


@pytest.fixture
def run(monkeypatch, weights: Path, tmp_path: Path):
    app = typer.Typer()
    app.command("learn")(learn_command.learn)
    app.callback()(lambda: None)

    def go(made: list[RoomFeatures], *options: str):
        monkeypatch.setattr(
            "embodied_perceptron_training.training.few_shot.read_labelled_rooms",
            lambda sources, *_: [LabelledRoom(s, r.labels, r.boxes, None) for s, r in zip(sources, made, strict=True)],
        )
        by_source = {f"room {i}": room for i, room in enumerate(made)}
        monkeypatch.setattr(few_shot, "room_features", lambda room, _: by_source[str(room.source)])
        monkeypatch.chdir(tmp_path)
        for name in by_source:
            Path(name).mkdir(exist_ok=True)
        sources = [part for name in by_source for part in ("--from", name)]
        out = tmp_path / "out.safetensors"
        args = ["learn", *sources, "--weights", str(weights), "--out", str(out), *options]
        return CliRunner().invoke(app, args), out

    return go


def test_the_command_writes_what_is_better(run) -> None:
    result, out = run(rooms())
    assert result.exit_code == 0, result.output
    assert "| robot (new) | 8 | 4 | 100 | 0.0 | 100.0 |" in result.output
    assert "6 classes, 2 of them new" in result.output
    assert load_inference(out).classes == (*CLASSES, "crate", "robot")


def test_the_command_refuses_what_is_worse(run, monkeypatch) -> None:
    blind = [dataclasses.replace(r, parts=(blinded(r.parts[0], i),), labels=("chair",) * len(r.labels))
             for i, r in enumerate(rooms())]  # fmt: skip
    monkeypatch.setattr(
        few_shot, "_class_figures", lambda pairs, names, seen=[]: seen.append(1) or {"chair": 90.0 / len(seen)}
    )
    result, out = run(blind)
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 1
    assert "nothing was written" in str(result.exception)
    assert "from 90.0 to 45.0" in str(result.exception)
    assert not out.exists()


def test_the_command_names_missing_folders_and_weights(run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result, _ = run(rooms(), "--out", str(tmp_path / "file" / "x.safetensors"))
    assert "cannot be written" in result.output
    result, _ = run(rooms(), "--weights", "absent")
    assert "absent" in str(result.exception)


@pytest.fixture
def agreeing(run, monkeypatch, tmp_path: Path):
    """The command with ``--pseudo`` over recordings whose sources agree on the objects of the made rooms."""
    detector = tmp_path / "net.onnx"
    detector.write_bytes(b"")
    options = ("--pseudo", "--detector", str(detector), "--detector-layout", "nanodet")

    def go(made: list[RoomFeatures], *more: str, count: int | None = None):
        def agreed(source, *_):
            room = made[int(str(source).split()[-1])]
            told = zip(room.labels, room.boxes, strict=True)
            things = [AgreedThing(name, box, 0.9, ("network", "nanodet"), True) for name, box in told]
            return LabelledRoom(source, room.labels, room.boxes, None), things[:count]

        monkeypatch.setattr(pseudo_labels, "agreed_room", agreed)
        return run(made, *options, *more)

    return go


def test_agreement_teaches_without_labels(agreeing) -> None:
    result, out = agreeing(rooms())
    assert result.exit_code == 0, result.output
    assert "| robot | 8 | nanodet 8, network 8 |" in result.output
    assert load_inference(out).classes == (*CLASSES, "crate", "robot")


def test_agreement_that_makes_it_worse_or_is_too_little_is_refused(agreeing, monkeypatch) -> None:
    result, out = agreeing(rooms(), count=1)
    assert "agree on 4 objects, 5 are needed" in str(result.exception)
    monkeypatch.setattr(few_shot, "_class_figures", lambda *_, seen=[]: seen.append(1) or {"robot": 90.0 / len(seen)})
    result, _ = agreeing(rooms(labelled=("robot",)))
    assert result.exception.exit_code == 1
    assert "from 90.0 to 45.0" in str(result.exception)
    assert not out.exists()


@pytest.mark.parametrize("options", [("--pseudo",), ("--detector", "net.onnx", "--detector-layout", "nanodet")])
def test_agreement_needs_a_detector(run, options) -> None:
    result, _ = run(rooms(), *options)
    assert "--pseudo and --detector belong together" in str(result.exception)
