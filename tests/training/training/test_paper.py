"""``--preset paper``: what was published, and nothing beside it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file
from support.small_networks import small_config, small_network, small_scene
from support.toy_task import ToyTask
from typer.testing import CliRunner

from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.nn.image_encoder import ResNetEncoder
from embodied_perceptron.nn.network import CandidateVoxels, view_sampling
from embodied_perceptron.nn.official import Conventions
from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.weights.categories import MONOCULAR_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset, Scan
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
from embodied_perceptron_training.training import tasks, train_command, trainer
from embodied_perceptron_training.training.augment import MOTIONS, Motion, MotionRange
from embodied_perceptron_training.training.criteria import (
    DECOUPLED,
    GroundingCriterion,
    GroundingTarget,
    grounding_layers,
    same,
)
from embodied_perceptron_training.training.description import losses
from embodied_perceptron_training.training.objectives import detection_criterion, voxel_criterion, voxel_losses
from embodied_perceptron_training.training.optimization import parameter_groups
from embodied_perceptron_training.training.paper import PUBLISHED
from embodied_perceptron_training.training.prepared_scenes import Preparation, SceneCache, sample_points
from embodied_perceptron_training.training.run_folder import RunFolder
from embodied_perceptron_training.training.samples import SampleMaker, WindowSpec
from embodied_perceptron_training.training.scene_pass import SceneBatch, ScenePass, VoxelAnswers, views_of
from embodied_perceptron_training.training.tasks import SceneTask, build_task, motion_range, task_config
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun


@pytest.mark.parametrize(
    ("task", "epochs", "batch", "rate", "decay"),
    [
        ("continuous-detection", 96, 1, 2e-4, 1e-4),
        ("detection", 120, 4, 1e-3, 1e-4),
        ("monocular-detection", 24, 8, 2e-4, 1e-4),
        ("occupancy", 24, 1, 1e-4, 0.01),
        ("continuous-occupancy", 24, 1, 1e-4, 0.01),
    ],
)
def test_schedules_are_the_published_ones(task: str, epochs: int, batch: int, rate: float, decay: float) -> None:
    run = TrainingRun.of({}, task=task, preset="paper")
    steps = run.optimisation
    assert (run.schedule.epochs, steps.batch, steps.learning_rate, steps.weight_decay) == (epochs, batch, rate, decay)
    assert run.data.repeat == 1  # a pass is a pass
    assert run.total_steps(samples=80, processes=8) == epochs * 80 / (8 * batch)
    assert (run.losses.detection, run.losses.occupancy, run.losses.grounding) == (1.0, 1.0, 1.0)


def test_the_rate_is_for_eight_processes_and_the_log_says_what_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TrainingRun.of({}, task="detection", preset="paper", steps=1, workers=0, validations=0)
    assert run.learning_rate(8) == 1e-3
    assert run.learning_rate(2) == pytest.approx(2.5e-4)
    own = TrainingRun.of({}, task="detection", preset="paper", learning_rate=3e-4)
    assert own.learning_rate(1) == own.learning_rate(8) == 3e-4
    assert TrainingRun.of({}, task="detection").learning_rate(1) == 2e-3  # tiny: as it stands
    said: list[str] = []
    monkeypatch.setattr(trainer.Progress, "say", lambda _, text: said.append(text))
    mine = Trainer(ToyTask(), run, RunFolder(tmp_path, pictures=False), quiet=True)
    mine.run()
    assert said[-1] == "learning rate 0.000125 for 4 samples a step: 0.001 is for 32"
    assert {group["lr"] for group in mine.optimizer.param_groups} == {1.25e-4}


def test_boxes_are_trained_on_the_four_corner_distances_alone() -> None:
    paper = TrainingRun.of({}, task="detection", preset="paper")
    assert detection_criterion(paper).box.corners == DECOUPLED == (0.2, 0.2, 0.2, 0.4)
    assert detection_criterion(paper).iou_weight == 0.0
    grounding = TrainingRun.of({}, task="grounding", preset="paper")
    assert voxel_criterion(grounding).iou_weight == 0.0
    assert voxel_criterion(grounding).contrastive_weight == 1.0
    tiny = TrainingRun.of({}, task="multi")
    assert detection_criterion(tiny).iou_weight == 1.0
    asked = TrainingRun.of({"w_iou": "0.5", "w_contrastive": "0.25"}, task="grounding", preset="paper")
    assert (detection_criterion(asked).iou_weight, voxel_criterion(asked).contrastive_weight) == (0.5, 0.25)


def test_contrastive_alignment_reaches_queries_and_tokens() -> None:
    """The gradient of the term alone moves both sides of the alignment; without its weight there is no such term."""
    config = small_config("grounding", preset="paper")
    network = small_network(config)
    assert network.grounding is not None
    g = torch.Generator().manual_seed(1)
    candidates = CandidateVoxels(
        torch.rand(2, 20, 16, generator=g), torch.rand(2, 20, 3, generator=g), torch.zeros(2, 20, dtype=torch.bool)
    )
    tokens, pad = torch.rand(2, 5, 12, generator=g), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    out = network.ground(candidates, tokens, pad)
    box = torch.tensor([[0.5, 0.5, 0.5, 0.4, 0.4, 0.4, 0.0, 0.0, 0.0]])
    named = [torch.tensor([False, True, False, False, False]), torch.tensor([True, False, False, False, False])]
    answers = VoxelAnswers(out, [box, box], named, tokens, pad)
    passed = SimpleNamespace(
        network=network, voxel_answers=lambda: answers, features=SimpleNamespace(levels=[small_scene()])
    )
    run = TrainingRun.of({}, task="grounding", preset="paper")
    terms = voxel_losses(voxel_criterion(run), passed, same)  # type: ignore[arg-type]
    assert set(terms) == {"class", "box", "contrastive"}  # appendix A.1; nothing else
    queries, words = network.grounding.head.embeddings(out.hidden, tokens)
    embedded = [
        dataclasses.replace(layer, query_embeddings=q, token_embeddings=words)
        for layer, q in zip(grounding_layers(out), queries, strict=True)
    ]
    criterion = GroundingCriterion(contrastive_weight=1.0, two_sided=True)
    layers = criterion(embedded, [GroundingTarget(box, n[None]) for n in named], ~pad)
    for kind, term in terms.items():  # every layer is supervised: the sum over layers
        every = [v for k, v in layers.items() if k.endswith(kind)]
        assert len(every) == len(out.logits) > 1
        assert term.item() == pytest.approx(float(torch.stack(every).sum()), rel=1e-5)
    terms["contrastive"].backward()
    alignment = network.grounding.head.alignment
    for side in (alignment.query, alignment.token):
        assert float(side[0].weight.grad.abs().sum()) > 0
    without = dataclasses.replace(voxel_criterion(run), contrastive_weight=0.0)
    assert "contrastive" not in voxel_losses(without, passed, same)  # type: ignore[arg-type]
    dot = small_network(dataclasses.replace(config, grounding=dataclasses.replace(config.grounding, alignment="dot")))
    with pytest.raises(ValueError, match="alignment must be projected"):
        dot.grounding.head.embeddings(out.hidden, tokens)  # type: ignore[union-attr]


# -- samples


def flipped_axes(motion: Motion) -> str:
    """The axes that a small turn beside the flips leaves pointing backwards."""
    return "".join(name for name, value in zip("xy", np.diag(motion.matrix), strict=False) if value < 0)


def test_scenes_are_moved_as_published() -> None:
    """All of it for detection, nothing for occupancy, neither turned nor mirrored for sentences."""
    found = {}
    for task in ("detection", "continuous-detection", "monocular-detection", "occupancy", "grounding"):
        run = TrainingRun.of({}, task=task, preset="paper")
        found[task] = motion_range(run, task_config(run, 4))
    for task in ("detection", "continuous-detection", "monocular-detection"):
        moved = found[task]
        assert moved is not None
        assert (moved.yaw_rad, moved.scale, moved.shift_sigma_m, moved.mirror) == (0.0873, 0.1, 0.1, 0.5)
        flips = Counter(flipped_axes(moved.draw(np.random.default_rng(seed))) for seed in range(400))
        assert set(flips) == {"", "x", "y", "xy"}  # both horizontal axes, independently
        assert all(60 < count < 140 for count in flips.values())
        assert (moved.shift_m, moved.floor_m, moved.quarter_turns) == (0.0, 0.0, False)
    assert found["occupancy"] is None
    still = found["grounding"]
    assert still is not None
    rng = np.random.default_rng(0)
    drawn = [still.draw(rng) for _ in range(50)]
    assert {(m.yaw_rad, m.mirrored) for m in drawn} == {(0.0, False)}
    assert min(m.scale for m in drawn) < 0.93
    assert max(m.scale for m in drawn) > 1.07
    tiny = TrainingRun.of({}, task="occupancy")
    assert motion_range(tiny, task_config(tiny, 4)) is MOTIONS["aligned"]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes")
    generate(folder, (40,), HomeSampleSpec(views=6, width=96, height=72, home=HomeSpec(1)), "train")
    return folder


def maker_of(homes: Path, config: NetworkConfig, spec: WindowSpec, views: int = 6) -> tuple[SampleMaker, SceneCache]:
    cache = SceneCache(EmbodiedScanDataset(homes, "train"), homes / ".prepared", Preparation(views=views))
    return SampleMaker(config, ("chair", "table", "bed", "door"), spec, cache, colors=True), cache


def test_a_mirrored_monocular_scene_has_a_mirrored_image(homes: Path) -> None:
    """What a camera shows of a place stays: the mirrored image, read at the mirrored pixel."""
    config = small_config("detection", modality="rgbd", preset="paper")
    mirror = MotionRange(yaw_rad=0.0, mirror=1.0, scale=0.0, shift_m=0.0, floor_m=0.0)
    specs = [WindowSpec(math.inf, mirror, "one", flip_images=flip) for flip in (False, True)]
    (plain, cache), (mirrored, _) = (maker_of(homes, config, spec) for spec in specs)
    scene = cache[0]
    (before,), (after,) = (m.make(scene, np.random.default_rng(3), 2) for m in (plain, mirrored))
    assert torch.equal(before.boxes, after.boxes)
    assert torch.equal(before.coords, after.coords)
    width = before.image_size[1]
    points = torch.cat([before.feats[:, :3].double(), torch.ones(len(before.feats), 1)], 1)
    pixels = [(points @ s.projections[0].T) for s in (before, after)]
    u, v = (p[:, 0] / p[:, 2] for p in pixels)
    torch.testing.assert_close(v, width - 1 - u)
    torch.testing.assert_close(pixels[0][:, 1:], pixels[1][:, 1:])
    assert before.colors is not None
    assert after.colors is not None
    assert torch.equal(after.colors, before.colors.flip(2))
    assert torch.equal(after.depth_mm, before.depth_mm.flip(2))
    assert not torch.equal(after.colors, before.colors)


def test_views_are_drawn_from_all_of_a_scan(homes: Path) -> None:
    """Each time others, in their order."""
    config = small_config("detection", modality="rgbd", preset="paper")
    drawn: dict[str, set[tuple[int, ...]]] = {"all": set(), "prefix": set()}
    for choice, wanted in (("all", 3), ("prefix", 4)):
        maker, _ = maker_of(homes, config, WindowSpec(math.inf, None, choice, random_views=wanted))  # type: ignore[arg-type]
        for seed in range(60):
            views = maker._choose_views(6, np.random.default_rng(seed))
            assert views == sorted(set(views))
            drawn[choice].add(tuple(views))
    assert {len(v) for v in drawn["all"]} == {3}
    assert {v for views in drawn["all"] for v in views} == set(range(6))
    assert {len(v) for v in drawn["prefix"]} == {4}
    maker, cache = maker_of(homes, config, WindowSpec(math.inf, None, "all", random_views=3))
    (sample,) = maker.make(cache[0], np.random.default_rng(0))
    assert len(sample.projections) == len(sample.depth_mm) == 3


def test_numbers_of_views_are_the_published_ones(homes: Path) -> None:
    expected = {
        "detection": (20, 50),
        "continuous-detection": (10, 50),
        "occupancy": (10, 20),
        "grounding": (20, 50),
        "monocular-detection": (1, 50),
    }
    for task, (views, val_views) in expected.items():
        samples = TrainingRun.of({}, task=task, preset="paper").samples
        assert (samples.views, samples.val_views, samples.random_views) == (views, val_views, "on")
    assert TrainingRun.of({}, task="detection", preset="paper", views=5).samples.val_views == 0  # of both
    own = TrainingRun.of({}, task="detection").samples
    assert (own.views, own.val_views, own.random_views) == (0, 0, "off")


def test_occupancy_without_imagenet_weights_is_an_error(homes: Path) -> None:
    """The paper starts from PyTorch's ResNet-50 (appendix A.1), and occupancy has its width."""
    for task in ("occupancy", "continuous-occupancy"):
        run = TrainingRun.of({}, task=task, preset="paper", data=homes)
        with pytest.raises(ValueError, match=r"pretrained=imagenet: no package .*--set pretrained=FILE, or"):
            build_task(run)
        assert TrainingRun.of({}, task=task, preset="paper", modality="depth").network.pretrained == ""
        assert TrainingRun.of({"images": "a"}, task=task, preset="paper").network.pretrained == ""
        assert TrainingRun.of({"pretrained": "random"}, task=task, preset="paper").network.pretrained == "random"


def test_every_frame_is_a_monocular_sample(homes: Path) -> None:
    """Section 5.1: frames are the samples; 24 epochs show each of them 24 times."""
    task = build_task(TrainingRun.of({}, task="monocular-detection", preset="paper", data=homes))
    assert task.classes == MONOCULAR_CLASSES
    assert len(task.samples) == 6 == len(EmbodiedScanDataset(homes, "train")[0].images)
    scan = EmbodiedScanDataset(homes, "train")[0]
    for index in range(6):
        (sample,) = task.samples.sample(index, np.random.default_rng(index))
        seen = {scan.labels[i] for i in scan.images[index].visible_ids} & set(MONOCULAR_CLASSES)
        assert {MONOCULAR_CLASSES[i] for i in sample.labels.tolist()} == seen
        assert len(sample.projections) == 1


def test_a_continuous_sample_is_every_first_views_of_a_scene(homes: Path) -> None:
    """Section 5.1: N samples of 1 to N views from N views of a scan, under one motion; the images are encoded once."""
    config = small_config("detection", modality="rgbd", preset="paper")
    run = TrainingRun.of({}, task="continuous-detection", preset="paper")
    spec = WindowSpec(math.inf, motion_range(run, config), "prefix", random_views=4)
    maker, cache = maker_of(homes, config, spec)
    maps = maker.make(cache[0], np.random.default_rng(5))
    assert [len(m.projections) for m in maps] == [4, 3, 2, 1]
    assert [m.name.rsplit("#", 1)[1] for m in maps] == ["004", "003", "002", "001"]
    assert [m.shares_views for m in maps] == [False, True, True, True]
    for more, fewer in itertools.pairwise(maps):
        assert torch.equal(more.projections[:-1], fewer.projections)
        assert len(fewer.boxes) <= len(more.boxes)
        assert {tuple(b) for b in fewer.boxes.tolist()} <= {tuple(b) for b in more.boxes.tolist()}
    network, encoded = small_network(config), []
    encode = network.encode_images
    network.encode_images = lambda colors, *rest: encoded.append(len(colors)) or encode(colors, *rest)  # type: ignore
    together = ScenePass(network, SceneBatch(maps))
    assert encoded == [4]
    alone = ScenePass(network, SceneBatch([maps[2]]), views=[views_of(network, maps[0])[:2]])
    (boxes,), found = network.boxes(alone.features), network.boxes(together.features)
    torch.testing.assert_close(found[2].scores, boxes.scores, rtol=1e-3, atol=1e-4)


def test_colour_is_resized_once(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appendix A.1: images to 480 x 480, from their own size and not from that of the depth image."""
    scan = EmbodiedScanDataset(homes, "train")[0]
    fine = np.zeros((4 * 72, 4 * 96, 3), np.uint8)
    fine[:, ::2] = 255  # is gray in a smaller picture
    view = dataclasses.replace(scan.load_view(0), color=fine)
    monkeypatch.setattr(Scan, "load_view", lambda *_: view)
    _, cache = maker_of(homes, small_config("detection", modality="rgbd", preset="paper"), WindowSpec())
    colors = cache.colors(cache[0], [0], (4 * 72, 4 * 96))
    np.testing.assert_array_equal(colors[0].numpy(), fine)


def test_sites_that_pruning_keeps_depend_on_the_task() -> None:
    kept = next(row for row in PUBLISHED if row.setting == "keep")
    for task, keep in kept.values.items():
        detection = task_config(TrainingRun.of({}, task=task, preset="paper"), 4).detection
        assert detection is not None
        assert detection.keep == keep, kept.source


def test_imagenet_that_no_package_has_is_an_error(homes: Path) -> None:
    for task in ("detection", "images"):
        with pytest.raises(ValueError, match=r"no package has ImageNet weights of resnet50 \(preset paper\)"):
            build_task(TrainingRun.of({"images": "imagenet"}, task=task, preset="paper", data=homes))


@pytest.mark.slow  # the published size
def test_the_image_encoder_starts_from_a_plain_resnet_and_learns_on(homes: Path, tmp_path: Path) -> None:
    """As torchvision names it; it fits the usual width of the occupancy network, not the detector's."""
    file, empty = tmp_path / "resnet50.safetensors", tmp_path / "empty.safetensors"
    torch.manual_seed(5)
    state = {k: v for k, v in ResNetEncoder(64).state_dict().items() if not k.endswith("num_batches_tracked")}
    save_file({**state, "fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}, file)
    empty.write_bytes(b"")

    def of(task: str, preset: str = "paper", **options: str) -> SceneTask:
        return build_task(TrainingRun.of(options, task=task, preset=preset, data=homes))  # type: ignore[return-value]

    encoder = of("occupancy", pretrained=str(file)).model.image_encoder
    assert torch.equal(encoder.backbone.layer4[2].conv3.weight, state["layer4.2.conv3.weight"])
    encoder.train()
    assert not encoder.backbone.layer1[0].bn1.training
    assert not encoder.backbone.bn1.weight.requires_grad
    assert all(p.requires_grad for n, p in encoder.named_parameters() if "conv" in n)
    with pytest.raises(ValueError, match=r"conv1.weight is \(64, 3, 7, 7\), not \(16, 3, 7, 7\).*base width 16"):
        of("detection", pretrained=str(file))
    with pytest.raises(ValueError, match="no safetensors file"):
        of("occupancy", pretrained=str(empty))
    with pytest.raises(FileNotFoundError):
        of("occupancy", pretrained=str(tmp_path / "none.safetensors"))
    with pytest.raises(ValueError, match="pretrained=imagenet: no package has ImageNet weights of resnet50"):
        of("occupancy", pretrained="imagenet")
    with pytest.raises(ValueError, match="mobilenet_v2 is no ResNet"):
        of("detection", "tiny", pretrained=str(file))
    with pytest.raises(ValueError, match="choose one"):
        of("detection", "tiny", pretrained="imagenet", images="imagenet")


def test_a_text_encoder_that_is_asked_for_is_there_or_an_error() -> None:
    def config(**options: str) -> NetworkConfig:
        return task_config(TrainingRun.of(options, task="grounding", preset="paper"), 4)

    assert (config().grounding.text_encoder, config().grounding.text_channels) == ("roberta-base", 768)  # type: ignore[union-attr]
    chosen = config(text="minilm").grounding
    assert chosen is not None
    assert (chosen.text_encoder, chosen.text_channels) == ("minilm", 384)
    with pytest.raises(FileNotFoundError, match="no text encoder at 'nowhere/roberta'"):
        config(text="nowhere/roberta")
    with pytest.raises(ValueError, match="text=minilm: a network of task detection has no grounding"):
        task_config(TrainingRun.of({"text": "minilm"}, task="detection", preset="paper"), 4)


def test_the_decoder_of_sentences_learns_a_tenth_as_fast_from_twelve_sentences() -> None:
    run = TrainingRun.of({}, task="grounding", preset="paper")
    network = small_network(small_config("grounding", preset="paper"))
    groups = parameter_groups(network, 5e-4, run.optimisation.rate_scales)
    slow = {id(p) for group in groups if group["scale"] == 0.1 for p in group["params"]}
    decoder = {n for n, p in network.named_parameters() if id(p) in slow}
    assert {n.split(".")[2] for n in decoder} == {"layers", "norm", "box_position", "voxel_position"}
    assert (run.samples.sentences, run.optimisation.reference_batch) == (12, 8)


def test_boxes_are_decoded_as_published_unless_asked() -> None:
    """All nine degrees, class times centreness, no votes, no occlusion test; ``refined`` as the other presets."""
    own = small_network(small_config("detection", "rgbd", "paper"))
    assert own.config.conventions == Conventions(centerness_power=1.0, votes=False, occlusion_margin_m=None)
    assert own.view_sampling.occlusion_margin_m is None
    asked = task_config(TrainingRun.of({"refined": "on"}, task="detection", preset="paper"), 4)
    tiny = small_config("detection", "rgbd")
    assert asked.conventions == tiny.conventions == Conventions()
    assert view_sampling(asked) == view_sampling(tiny)
    assert view_sampling(tiny).occlusion_margin_m == 0.1


def test_points_are_those_of_the_depth_images(homes: Path) -> None:
    """By hand: pixels of a camera that looks along +x from (1, 2, 3), and no more of them than are asked for."""
    camera = np.array([[0.0, 0.0, 1.0, 1.0], [-1.0, 0.0, 0.0, 2.0], [0.0, -1.0, 0.0, 3.0], [0.0, 0.0, 0.0, 1.0]])
    k = np.array([[50.0, 0.0, 31.5, 0.0], [0.0, 50.0, 23.5, 0.0], [0.0, 0.0, 1.0, 0.0]])
    projection = (k @ np.linalg.inv(camera))[None]
    depth = torch.zeros(1, 48, 64, dtype=torch.int32)
    depth[0, 10, 20], depth[0, 40, 60], depth[0, 20, 20] = 2000, 1000, 9000  # no limit
    points = sample_points(projection, depth, 10, 100, np.random.default_rng(0))
    expected = [
        [3.0, 2.0 - 2.0 * (20 - 31.5) / 50, 3.0 - 2.0 * (10 - 23.5) / 50],
        [10.0, 2.0 - 9.0 * (20 - 31.5) / 50, 3.0 - 9.0 * (20 - 23.5) / 50],
        [2.0, 2.0 - 28.5 / 50, 3.0 - 16.5 / 50],
    ]
    np.testing.assert_allclose(points, expected, atol=1e-12)
    full = torch.full((3, 48, 64), 1500, dtype=torch.int32)
    drawn = sample_points(projection.repeat(3, 0), full, 100, 250, np.random.default_rng(1))
    assert len(drawn) == 250
    again = sample_points(projection.repeat(3, 0), full, 100, 250, np.random.default_rng(1))
    np.testing.assert_array_equal(drawn, again)
    assert (
        len(sample_points(projection, torch.zeros(1, 48, 64, dtype=torch.int32), 9, 9, np.random.default_rng(0))) == 0
    )


def test_sites_hold_one_measured_point_each_at_the_papers_size(homes: Path) -> None:
    config = small_config("detection", modality="rgbd", preset="paper")
    maker, cache = maker_of(homes, config, WindowSpec(math.inf, None, "all"))
    scene = cache[0]
    (sample,) = maker.make(scene, np.random.default_rng(0))
    assert torch.equal(torch.floor(sample.feats / 0.01).long(), sample.coords)
    depth = scene.depth_mm.int()
    count = int((depth > 0).sum())
    assert 0.5 * count < len(sample.coords) <= count  # not the means of a map


# -- train --print-run


def printed(*arguments: str) -> Any:
    app = typer.Typer()
    app.command("train")(train_command.train)
    app.command("nothing")(lambda: None)
    result = CliRunner().invoke(app, ["train", "--print-run", *arguments])
    if result.exception is not None:
        raise result.exception
    return json.loads(result.output)


def test_a_run_is_printed_and_nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "build_task", lambda run: pytest.fail("builds a task"))
    found = printed("--preset", "paper", "--task", "detection")
    assert found["losses"] == {
        "class": 1.0, "center": 1.0, "box/center": 0.2, "box/size": 0.2, "box/rotation": 0.2, "box/all": 0.4,
    }  # fmt: skip
    assert found["augmentation"] == {
        "rotation_rad": 0.0873, "scale": [0.9, 1.1], "translation_sigma_m": 0.1, "flip": ["x", "y"],
    }  # fmt: skip
    keys = ("learning_rate", "weight_decay", "epochs", "batch_per_gpu", "views", "random_views", "site_size_m")
    assert [found[k] for k in keys] == [1e-3, 1e-4, 120.0, 4, 20, True, 0.01]
    assert found["image_encoder"] == {
        "name": "resnet50", "pretrained": False, "trainable": True, "base_width": 16,
    }  # fmt: skip
    assert found["text_encoder"] is None
    occupancy = printed("--preset", "paper", "--task", "occupancy")
    assert (occupancy["augmentation"], occupancy["site_size_m"], occupancy["views"]) == (None, 0.0025, 10)
    assert occupancy["losses"] == {f"occupancy/{k}": 1.0 for k in ("cross_entropy", "semantic", "geometric")}
    grounding = printed("--preset", "paper", "--task", "grounding")
    assert (grounding["augmentation"]["rotation_rad"], grounding["augmentation"]["flip"]) == (0.0, [])
    assert grounding["losses"]["grounding/contrastive"] == 1.0
    assert not any("iou" in name for name in grounding["losses"])
    assert grounding["text_encoder"] == {
        "name": "roberta-base", "trainable": False, "learning_rate_factor": 0.0,
    }  # fmt: skip
    assert printed("--preset", "paper", "--task", "monocular-detection")["views"] == 1
    assert printed("--task", "monocular-detection")["views"] == 1
    assert found["computed_for"] == {"scans": 3930, "images": 689_000, "gpus": 8}
    tiny = printed("--task", "multi", "--steps", "7")
    assert (tiny["epochs"], tiny["steps"], tiny["random_views"]) == (None, 7, False)
    assert tiny["losses"]["iou"] == 1.0
    with pytest.raises(CommandError, match="--task must be given"):
        printed("--preset", "paper")
    with pytest.raises(CommandError, match=r"task must be one of .*monocular-detection.*, got 'monocular'"):
        printed("--preset", "paper", "--task", "monocular")
    with pytest.raises(CommandError, match="describes tasks over scenes"):
        printed("--preset", "paper", "--task", "boxes")


def test_the_printed_length_is_that_of_the_given_data(homes: Path) -> None:
    """One scan of six frames; 8 GPUs of the paper's batch."""
    for task, samples, steps in (("monocular-detection", 6, math.ceil(24 * 6 / 64)), ("detection", 1, 4)):
        found = printed("--preset", "paper", "--task", task, "--data", str(homes))
        assert found["computed_for"] == {"scans": 1, "images": 6, "gpus": 8}
        assert (found["samples_per_epoch"], found["steps"]) == (samples, steps)


@pytest.mark.parametrize("task", ["multi", "occupancy", "grounding"])
def test_printed_losses_are_those_of_a_step(task: str) -> None:
    """By name: what a criterion gives, its corner distances summed as ``box``."""
    run = TrainingRun.of({}, task=task)
    config = task_config(run, 4)
    named = {name.split("/")[0] if name.startswith("box/") else name for name in losses(run, config)}
    expected = {"class", "center", "box", "iou", "object"} if config.detection is not None else set()
    if config.occupancy is not None:
        expected |= {f"occupancy/{k}" for k in ("cross_entropy", "semantic", "geometric")}
    if config.grounding is not None:
        expected |= {"grounding/named", "grounding/others"}
    assert named == expected


def test_training_goes_on_from_shipped_weights_by_their_name(tmp_path) -> None:
    """As every other command takes them."""
    from embodied_perceptron.weights import weights_file
    from embodied_perceptron_training.training.train_command import _run_of

    run = _run_of({"task": "multi", "preset": "tiny", "data": tmp_path, "weights": Path("tiny"), "set_": []})
    assert run.network.weights == weights_file("tiny").resolve()
    with pytest.raises(ValueError, match="nothing-such"):
        _run_of({"task": "multi", "preset": "tiny", "data": tmp_path, "weights": Path("nothing-such"), "set_": []})
