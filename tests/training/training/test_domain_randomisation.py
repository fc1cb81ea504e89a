"""Sensors of another make: sites, colours and pictures that are randomised, and maps of first views."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_perceptron.nn.presets import network_config
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.weights.checkpoint import load_checkpoint
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate, load_record
from embodied_perceptron_training.homes.noise import NoiseModel
from embodied_perceptron_training.homes.prompts import PromptSpec
from embodied_perceptron_training.training.domain_randomisation import SiteNoise, randomised_image
from embodied_perceptron_training.training.prepared_scenes import Preparation, SceneCache
from embodied_perceptron_training.training.samples import SampleMaker, SceneSample, WindowSpec
from embodied_perceptron_training.training.tasks import SceneTask, build_task
from embodied_perceptron_training.training.training_run import TrainingRun


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of version 2 in both splits."""
    root = tmp_path_factory.mktemp("second")
    spec = HomeSampleSpec(
        5, 96, 64, HomeSpec(1, "bedroom", version=2), NoiseModel(sensor="mixed"), prompts=PromptSpec(per_scene=6)
    )
    generate(root, [3], spec, "train")
    generate(root, [3], spec, "val")
    return root


def voxels(count: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return (
        rng.uniform(0, 2, (count, 3)),
        rng.integers(0, 256, (count, 3)).astype(np.uint8),
        np.arange(count, dtype=np.int32),
    )


def test_sites_are_randomised_as_often_as_asked_and_the_same_again() -> None:
    points, colors, hits = voxels()
    always = SiteNoise(1.0)
    a, b = (always(points, colors, hits, np.random.default_rng(5)) for _ in range(2))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
    assert len(a[0]) == len(a[1]) == len(a[2]) < len(points)
    moved = np.linalg.norm(a[0] - points[a[2]], axis=1)  # hits tell which voxel it was
    assert 0.0 < moved.mean() < 0.03
    assert SiteNoise(0.0)(points, colors, hits, np.random.default_rng(5))[0] is points
    rng = np.random.default_rng(6)
    randomised = [len(SiteNoise(0.3)(points, colors, hits, rng)[0]) < len(points) for _ in range(60)]
    assert 8 <= sum(randomised) <= 30


def test_some_samples_have_no_colour() -> None:
    points, colors, hits = voxels(300)
    kinds = [SiteNoise(1.0)(points, colors, hits, np.random.default_rng(i))[1].astype(int) for i in range(80)]
    constant = sum(int((c == c[0]).all()) for c in kinds)
    grey = sum(int(np.ptp(c, axis=1).mean() < 30) for c in kinds) - constant
    assert 2 <= constant <= 20
    assert 2 <= grey <= 25


def test_holes_take_whole_places_and_never_everything() -> None:
    points, colors, hits = voxels()
    holes = SiteNoise(1.0, jitter_m=0.0, dropout=0.0, holes=40, hole_m=(0.3, 0.3))
    kept, _, rows = holes(points, colors, hits, np.random.default_rng(1))
    gone = np.setdiff1d(np.arange(len(points)), rows)
    assert 0 < len(gone) < len(points)
    distance = np.linalg.norm(points[gone][:, None] - points[gone][None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert np.median(distance.min(axis=1)) < 0.15  # they lie together
    one = holes(points[:1], colors[:1], hits[:1], np.random.default_rng(3))
    assert len(one[0]) == 1
    assert len(holes(points[:0], colors[:0], hits[:0], np.random.default_rng(3))[0]) == 0
    assert len(kept) == len(rows)


@pytest.mark.parametrize(("kind", "spread", "bright"), [(0.0, 0.0, 128.0), (0.1, 0.0, None), (0.25, None, None)])
def test_pictures_of_other_cameras(kind: float, spread: float | None, bright: float | None) -> None:
    picture = np.random.default_rng(2).integers(0, 256, (24, 32, 3)).astype(np.uint8)
    a, b = (randomised_image(picture, kind, np.random.default_rng(9)) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert a.shape == picture.shape
    assert a.dtype == np.uint8
    if spread is not None:
        assert np.ptp(a.astype(int), axis=2).max() == spread
    if bright is not None:
        assert a.mean() == bright
    if kind == 0.25:
        assert a.mean() < 0.6 * picture.mean()


def test_some_pictures_have_dark_corners_and_some_traces_of_compression() -> None:
    picture = np.random.default_rng(2).integers(60, 200, (48, 64, 3)).astype(np.uint8)
    dark, coarse = 0, 0
    for seed in range(60):
        shown = randomised_image(picture, 0.9, np.random.default_rng(seed)).astype(float)
        corners = np.mean(
            [shown[a, b].mean() for a in (slice(0, 8), slice(-8, None)) for b in (slice(0, 8), slice(-8, None))]
        )
        dark += corners < 0.9 * shown[20:28, 28:36].mean()
        # compression at a low quality takes the finest changes of colour from blocks of 8 x 8
        colour = shown[..., 0] - shown[..., 2]
        within, across = (np.abs(np.diff(colour, axis=1))[:, k::16].mean() for k in (6, 15))
        coarse += across > 1.5 * within
    assert 8 <= dark <= 30
    assert 8 <= coarse <= 45


def made(homes: Path, index: int, **fields: object) -> SceneSample:
    cache = SceneCache(EmbodiedScanDataset(homes, "train"), homes / ".prepared", Preparation(views=5))
    config = network_config("tiny", "detection", "depth", 2)
    assert config.detection is not None
    config = dataclasses.replace(config, detection=dataclasses.replace(config.detection, presence=True))
    maker = SampleMaker(config, ("bed", "window"), WindowSpec(window_m=20.0, **fields), cache)  # type: ignore[arg-type]
    return maker.make(cache[0], np.random.default_rng(index))[0]


def test_maps_of_first_views_hold_what_those_show(homes: Path) -> None:
    whole = made(homes, 0)
    shown = [made(homes, i, prefix_share=1.0) for i in range(12)]
    assert {len(s.projections) for s in shown} == {3, 4, 5}
    fewest = min(shown, key=lambda s: len(s.projections))
    assert len(fewest.coords) < len(whole.coords)
    assert len(fewest.boxes) <= len(whole.boxes)
    full = next(s for s in shown if len(s.projections) == 5)
    assert torch.equal(full.coords, whole.coords)
    again = made(homes, 3, prefix_share=1.0)
    assert torch.equal(again.coords, shown[3].coords)
    some = [len(made(homes, i, prefix_share=0.3).projections) < 5 for i in range(30)]
    assert 0 < sum(some) < 15


def test_homes_tell_of_their_unlabelled_things(homes: Path) -> None:
    record = load_record(homes, "synthetic/3")
    assert record["unlabelled"]
    scan = EmbodiedScanDataset(homes, "train")[0]
    assert scan.unlabelled.shape == (len(record["unlabelled"]), 9)
    shown = {k for image in scan.images for k in image.visible_unlabelled}
    assert shown == set(range(len(scan.unlabelled)))  # each by some view
    assert UNNAMED not in scan.labels


def test_things_without_a_known_name_are_learned_as_things(homes: Path) -> None:
    sample = made(homes, 0)
    scan = EmbodiedScanDataset(homes, "train")[0]
    strange = sum(name not in ("bed", "window", "wall", "floor", "ceiling") for name in scan.labels)
    assert int((sample.labels == 2).sum()) == strange + len(scan.unlabelled)
    assert set(sample.labels.tolist()) <= {0, 1, 2}


def request(homes: Path, **options: str) -> TrainingRun:
    chosen = {"cache": str(homes / ".prepared"), **options}
    return TrainingRun.of(chosen, task="detection", data=homes, val=homes, modality="depth")


def test_presence_is_learned_and_starts_anew_over_older_weights(homes: Path, tmp_path: Path) -> None:
    old = build_task(request(homes))
    old.save_weights(tmp_path / "old.safetensors", old.model, {})
    run = request(homes, classes="weights", presence="on", site_noise="0.5", prefix_share="0.5").replaced(
        weights=tmp_path / "old.safetensors",
    )
    task = build_task(run)
    assert isinstance(task, SceneTask)
    assert task.classes == load_checkpoint(tmp_path / "old.safetensors").classes
    for name, value in old.model.state_dict().items():
        torch.testing.assert_close(task.model.state_dict()[name], value, atol=1e-2, rtol=1e-2)  # halves
    batch = task.collate([task.samples.sample(i, np.random.default_rng(i)) for i in (0, 1)])
    losses = task.losses(task.model.train(), batch, lambda value: value.detach())
    assert losses["presence"] > 0
    torch.stack(list(losses.values())).sum().backward()
    assert task.model.detection.presence.kernel.grad.abs().sum() > 0  # type: ignore[union-attr]
    figures = task.validate(task.model.eval())  # things without a name are no predictions of a class
    assert "AP25" in figures
    with pytest.raises(ValueError, match=r"classes=weights needs weights"):
        build_task(request(homes, classes="weights"))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("presence", "yes", r"presence must be one of off, on, got 'yes'"),
        ("prefix_share", "1.5", r"prefix_share must lie in \[0, 1\], got 1.5"),
        ("site_noise", "-1", r"site_noise must lie in \[0, 1\], got -1"),
        ("pictures", "-1", r"pictures must be >= 0, got -1"),
        ("classes", "some", r"classes must be one of data, all, monocular, weights, got 'some'"),
    ],
)
def test_options_that_make_no_sense(homes: Path, option: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        request(homes, **{option: value})


def test_presence_needs_a_detector(homes: Path) -> None:
    run = request(homes, presence="on").replaced(task="occupancy")
    with pytest.raises(ValueError, match=r"presence=on: a network of task occupancy has no detection"):
        build_task(run)


def test_randomised_pictures_have_features_of_their_own(homes: Path, tmp_path: Path) -> None:
    images = build_task(TrainingRun.of({"size": "64x64"}, task="images", data=homes))
    images.save_weights(tmp_path / "i.safetensors", images.model, {})
    options = {"cache": str(homes / ".prepared"), "images": str(tmp_path / "i.safetensors"), "pictures": "2"}
    task = build_task(TrainingRun.of(options, task="detection", data=homes, views=3))
    assert isinstance(task, SceneTask)
    cache = task.samples.sources[0].cache
    scene = cache[0]
    others = [cache.randomised_features(scene, variant) for variant in (1, 2)]
    for levels in others:
        assert [a.shape for a in levels] == [b.shape for b in scene.features]
        assert not torch.equal(levels[0], scene.features[0])
    assert not torch.equal(others[0][0], others[1][0])
    known = [scene.features[0], others[0][0], others[1][0]]
    drawn = [task.samples.sample(0, np.random.default_rng(i))[0].features[0] for i in range(12)]
    counts = [sum(torch.equal(d, k) for d in drawn) for k in known]
    assert sum(counts) == 12
    assert min(counts) >= 1
    again = task.samples.sample(0, np.random.default_rng(4))[0].features[0]
    assert torch.equal(again, drawn[4])


def test_an_encoder_that_learns_sees_randomised_pictures_too(homes: Path) -> None:
    options = {"cache": str(homes / ".prepared"), "pictures": "1"}
    task = build_task(TrainingRun.of(options, task="detection", data=homes, views=3))
    assert isinstance(task, SceneTask)
    assert task.end_to_end
    cache = task.samples.sources[0].cache
    drawn = [task.samples.sample(0, np.random.default_rng(i))[0].colors for i in range(12)]
    pictures = cache.colors(cache[0], range(3), task.config.image.size)
    as_they_are = [torch.equal(colors, pictures) for colors in drawn]
    assert 0 < sum(as_they_are) < 12
    assert len({colors.numpy().tobytes() for colors in drawn}) > 12 - sum(as_they_are)  # others each time
    assert torch.equal(task.samples.sample(0, np.random.default_rng(4))[0].colors, drawn[4])
