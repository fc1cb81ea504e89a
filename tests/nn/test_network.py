"""The whole network: every modality, invariances, batches, and inputs at the edge of sense."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from support.small_networks import (
    CLASSES,
    COARSEST,
    hash_lookup,
    moved,
    sentence,
    small_config,
    small_network,
    small_scene,
    viewer,
)
from torch import Tensor

from embodied_perceptron.nn.detection import decode_detections
from embodied_perceptron.nn.input_features import join_samples, occupancy_origin, rgb_grid
from embodied_perceptron.nn.network import PerceptionNetwork, Viewpoint, window_sites
from embodied_perceptron.nn.presets import (
    INPUT_CHANNELS,
    MODALITIES,
    PRESETS,
    Modality,
    compared,
    network_config,
    released,
)
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron.weights.checkpoint import CheckpointError, load_into

ORIGIN = (-16, -16, -8)
VOXEL_M = 0.04


def scene_of(network: PerceptionNetwork, seed: int = 0) -> SparseTensor:
    """What the network takes: a grid for images alone, random geometry otherwise."""
    if network.config.modality == "rgb":
        return rgb_grid(network.config)
    return small_scene(seed, channels=INPUT_CHANNELS[network.config.inputs])


# --------------------------------------------------------------------------------------------------------------------
# modalities


@pytest.mark.parametrize("modality", MODALITIES)
def test_forward_and_backward_of_every_modality(modality: Modality) -> None:
    """All heads answer, and every parameter but the image encoder's (here replaced by a lookup) gets a gradient."""
    # by this seed every level keeps some sites that the level before it hands down, in each modality
    network = small_network(small_config(modality=modality), seed=1).train()
    config = network.config
    x = scene_of(network)
    lookup = hash_lookup(network) if config.uses_images else None
    levels = network.encode(x, lookup)
    assert [level.stride for level in levels] == [2, 4, 8, 16]
    shared = network.detect(levels)
    origin = occupancy_origin(config, (0.0, 0.0, 0.0))
    occupancy = network.occupy(levels, origin, lookup)
    assert [tuple(o.shape) for o in occupancy] == [(1, 4, 8, 8, 4), (1, 4, 4, 4, 2), (1, 4, 2, 2, 1)]
    answer = network.ground(network.candidates(levels, shared), *sentence(), viewer())
    assert answer.boxes.shape == (2, 1, 8, 9)
    assert answer.logits.shape == (2, 1, 8, 5)
    parts = [
        *(
            t
            for p in shared.levels
            for t in (p.center_logits, p.distances_m.log(), p.anchors_m, p.rotation, p.class_logits)
        ),
        *(p.object_logits for p in shared.levels if p.object_logits is not None),
        *occupancy,
        answer.boxes,
        answer.logits,
    ]
    torch.stack([t.square().mean() for t in parts]).sum().backward()
    without = [
        n
        for n, p in network.named_parameters()
        if (p.grad is None or not bool(p.grad.abs().sum() > 0)) and not n.startswith("image_")
    ]
    # selection alone reads these: queries are chosen, which has no gradient, and keys of attention cancel in softmax
    assert [n for n in without if not n.endswith("in_proj_bias")] == []


@pytest.mark.parametrize("modality", ["rgbd", "painting", "rgb"])
def test_images_change_the_answer_and_can_be_learned_from(modality: Modality) -> None:
    network = small_network(small_config("detection", modality))
    x = scene_of(network)
    features = {i: torch.zeros(1, c, requires_grad=True) for i, c in enumerate(network.image_channels)}

    def lookup(level: int, sites: object) -> Tensor:
        return features[level].expand(len(sites), -1)  # type: ignore[arg-type]

    network.encode(x, lookup)[-1].feats.sum().backward()
    seen = [i for i, f in features.items() if f.grad is not None and bool(f.grad.abs().sum() > 0)]
    assert seen == ([3] if modality == "rgbd" else [0])  # painting and rgb put level 0 into the input
    plain = network.encode(x, lookup)[0].feats
    other = network.encode(x, hash_lookup(network))[0].feats
    assert not torch.equal(plain, other)


def test_images_alone_see_nothing_of_the_geometry() -> None:
    network = small_network(small_config("detection", "rgb"))
    grid = rgb_grid(network.config)
    a = network.encode(grid, hash_lookup(network))
    b = network.encode(grid.replace(torch.rand(len(grid), 7)), hash_lookup(network))
    assert torch.equal(a[0].feats, b[0].feats)


def test_paper_reads_the_images_in_every_cell() -> None:
    """The dense stream: image features of every cell beside the sparse ones, also where there is no site."""
    config = small_config("occupancy", "rgbd", "paper")
    assert config.occupancy is not None
    config = dataclasses.replace(
        config,
        image=dataclasses.replace(config.image, base_width=4, pyramid_channels=8),
        occupancy=dataclasses.replace(config.occupancy, in_channels=16 + 8),
    )
    network = small_network(config)
    empty = SparseTensor.from_coords(torch.zeros(0, 3).long(), torch.zeros(0, 3))
    with torch.no_grad():
        nothing = network.encode(empty, hash_lookup(network))
        origin = occupancy_origin(config, (0.0, 0.0, 0.0))
        dark = network.occupy(nothing, origin, lambda level, sites: torch.zeros(len(sites), 8))
        lit = network.occupy(nothing, origin, hash_lookup(network))
    assert not torch.equal(dark[0], lit[0])
    with pytest.raises(ValueError, match="needs image features"):
        network.occupy(nothing, origin)


def test_fcaf3d_is_geometry_with_euler_angles() -> None:
    config = compared(small_config("all", "rgbd"), "fcaf3d")
    assert (config.modality, config.occupancy, config.grounding) == ("depth", None, None)
    network = small_network(config)
    out = network.detect(network.encode(small_scene()))
    assert out.levels[0].rotation.shape[1] == 3
    (found,) = decode_detections(out.levels, min_score=0.0)
    assert len(found.boxes) > 0
    with pytest.raises(ValueError, match="fcaf3d is a detector"):
        compared(small_config("occupancy"), "fcaf3d")


def test_what_a_modality_lacks_is_named() -> None:
    network, x = small_network(small_config("detection", "rgbd")), small_scene()
    with pytest.raises(ValueError, match="a rgbd network needs image features"):
        network.encode(x)
    depth = small_network(small_config("detection"))
    with pytest.raises(ValueError, match="a depth network has no image encoder"):
        depth.encode_images(torch.zeros(1, 64, 64, 3, dtype=torch.uint8))
    levels = depth.encode(x)
    with pytest.raises(ValueError, match="no occupancy head"):
        depth.occupy(levels, ORIGIN)
    with pytest.raises(ValueError, match="no grounding head"):
        depth.ground(depth.candidates(levels, None), *sentence(), viewer())
    occupancy = small_network(small_config("occupancy"))
    with pytest.raises(ValueError, match="no detection head"):
        occupancy.detect(levels)


# --------------------------------------------------------------------------------------------------------------------
# invariances


@pytest.mark.parametrize("modality", ["depth", "rgbd", "painting"])
@pytest.mark.parametrize("steps", [(1, 0, 0), (-3, 2, 0), (0, 0, 1)])
@torch.no_grad()
def test_moving_the_world_moves_the_answer_exactly(modality: Modality, steps: tuple[int, int, int]) -> None:
    """By whole cells of the coarsest level: the same numbers to the bit, at sites moved by as much."""
    network = small_network(small_config(modality=modality))
    shift = tuple(COARSEST * s for s in steps)
    x = small_scene()
    a = network.encode(x, hash_lookup(network) if network.config.uses_images else None)
    b = network.encode(moved(x, shift), hash_lookup(network, shift) if network.config.uses_images else None)  # type: ignore[arg-type]
    one, two = network.detect(a), network.detect(b)
    step = torch.tensor(shift)
    for p, q in zip(one.levels, two.levels, strict=True):
        assert torch.equal(q.sites.coords, p.sites.coords + step)
        assert torch.equal(p.class_logits, q.class_logits)
        assert torch.equal(p.distances_m, q.distances_m)
        assert torch.equal(p.rotation, q.rotation)
        torch.testing.assert_close(q.points_m, p.points_m + step * VOXEL_M, atol=1e-5, rtol=0)
    origin = tuple(o + s for o, s in zip(ORIGIN, shift, strict=True))
    for p, q in zip(network.occupy(a, ORIGIN), network.occupy(b, origin), strict=True):
        assert torch.equal(p, q)
    metres = step.float() * VOXEL_M
    here = viewer()
    there = Viewpoint(here.origin_m + metres, here.yaw_rad)
    p, q = (
        network.ground(network.candidates(a, one), *sentence(), here),
        network.ground(network.candidates(b, two), *sentence(), there),
    )
    torch.testing.assert_close(q.boxes[..., :3], p.boxes[..., :3] + metres, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(q.logits, p.logits, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_turning_the_world_and_the_viewer_turns_the_boxes() -> None:
    """Same voxels as seen by the viewer -> the same boxes as seen by the viewer, for any angle."""
    config = small_config()
    assert config.grounding is not None
    network = small_network(
        dataclasses.replace(config, grounding=dataclasses.replace(config.grounding, queries="voxels"))
    )
    assert network.grounding is not None
    head = network.grounding.head.double()
    g = torch.Generator().manual_seed(0)
    visual = torch.randn(1, 30, 16, generator=g).double()
    points = torch.rand(1, 30, 3, generator=g).double() * 4
    tokens, pad = sentence()
    visual_pad = torch.zeros(1, 30, dtype=torch.bool)
    here = Viewpoint(torch.tensor([[0.3, 0.2, 0.1]], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))
    out = head(visual, here.from_world(points), visual_pad, tokens.double(), pad)
    boxes = here.boxes_to_world(out.boxes)
    angle, step = 2.2, torch.tensor([1.5, -3.0, 0.25], dtype=torch.float64)
    c, s = math.cos(angle), math.sin(angle)
    R = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    there = Viewpoint(here.origin_m @ R.T + step, here.yaw_rad + angle)
    again = head(visual, there.from_world(points @ R.T + step), visual_pad, tokens.double(), pad)
    turned = there.boxes_to_world(again.boxes)
    torch.testing.assert_close(turned[..., :3], boxes[..., :3] @ R.T + step, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(turned[..., 3:6], boxes[..., 3:6], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(turned[..., 6], boxes[..., 6] + angle, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(turned[..., 7:], boxes[..., 7:], atol=1e-9, rtol=1e-9)  # tilt stays what it is
    assert torch.equal(again.query_index, out.query_index)


@pytest.mark.parametrize("modality", ["depth", "rgbd"])
@torch.no_grad()
def test_batched_equals_single(modality: Modality) -> None:
    network = small_network(small_config(modality=modality))
    lookup = hash_lookup(network) if network.config.uses_images else None
    scenes = [small_scene(1), small_scene(2, count=150), small_scene(3, count=900)]
    levels = network.encode(join_samples(scenes), lookup)
    shared = network.detect(levels)
    boxes = decode_detections(shared.levels, min_score=0.2)
    occupancy = network.occupy(levels, ORIGIN)
    tokens, pad = sentence(3)
    grounded = network.ground(network.candidates(levels, shared), tokens, pad, viewer(batch=3))
    for i, x in enumerate(scenes):
        mine = network.encode(x, lookup)
        alone = network.detect(mine)
        for both, single in zip(shared.levels, alone.levels, strict=True):
            rows = slice(both.sites.bounds[i], both.sites.bounds[i + 1])
            assert torch.equal(both.sites.coords[rows], single.sites.coords)
            torch.testing.assert_close(both.class_logits[rows], single.class_logits, atol=1e-4, rtol=1e-4)
        (found,) = decode_detections(alone.levels, min_score=0.2)
        assert len(found.boxes) == len(boxes[i].boxes) > 0
        torch.testing.assert_close(found.boxes, boxes[i].boxes, atol=1e-3, rtol=1e-3)
        for both, single in zip(occupancy, network.occupy(mine, ORIGIN), strict=True):
            torch.testing.assert_close(both[i : i + 1], single, atol=1e-4, rtol=1e-4)
        one = network.ground(network.candidates(mine, alone), tokens[i : i + 1], pad[i : i + 1], viewer())
        valid = one.query_valid[0]
        torch.testing.assert_close(grounded.boxes[:, i, valid], one.boxes[:, 0, valid], atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_the_answer_does_not_depend_on_the_order_of_points() -> None:
    network, x = small_network(small_config("detection")), small_scene()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    y = SparseTensor.from_coords(x.coords[order], x.feats[order])
    for p, q in zip(network.detect(network.encode(x)).levels, network.detect(network.encode(y)).levels, strict=True):
        assert torch.equal(p.class_logits, q.class_logits)


# --------------------------------------------------------------------------------------------------------------------
# inputs at the edge


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("modality", ["depth", "rgbd", "painting"])
@pytest.mark.parametrize("training", [False, True])
def test_nothing_and_a_single_voxel(count: int, modality: Modality, training: bool) -> None:
    network = small_network(small_config(modality=modality)).train(training)
    lookup = hash_lookup(network) if network.config.uses_images else None
    x = SparseTensor.from_coords(torch.zeros(count, 3).long(), torch.ones(count, 8))
    levels = network.encode(x, lookup)
    shared = network.detect(levels)
    (found,) = decode_detections(shared.levels, min_score=0.0)
    assert bool(torch.isfinite(found.boxes).all())
    assert (len(found.boxes) > 0) == (count > 0)
    for logits in network.occupy(levels, ORIGIN):
        assert bool(torch.isfinite(logits).all())
    out = network.ground(network.candidates(levels, shared), *sentence(), viewer())
    assert bool(torch.isfinite(out.boxes).all())
    assert bool(out.query_valid.any()) == (count > 0)
    assert bool((out.logits.sigmoid()[:, ~out.query_valid] == 0).all())


@torch.no_grad()
def test_a_batch_with_an_empty_scene() -> None:
    network = small_network(small_config())
    empty = SparseTensor.from_coords(torch.zeros(0, 3).long(), torch.zeros(0, 8))
    levels = network.encode(join_samples([small_scene(), empty]))
    shared = network.detect(levels)
    full, none = decode_detections(shared.levels, min_score=0.0)
    assert len(full.boxes) > 0
    assert len(none.boxes) == 0
    out = network.ground(network.candidates(levels, shared), *sentence(2), viewer(batch=2))
    assert out.query_valid.any(dim=1).tolist() == [True, False]
    assert bool(torch.isfinite(out.logits[:, 0, out.query_valid[0]]).all())


@torch.no_grad()
def test_points_outside_of_the_window_change_nothing_inside() -> None:
    """Beyond the receptive field, that is; the window itself only cuts."""
    network = small_network(small_config("occupancy"))
    x = small_scene(extent=20)
    far = SparseTensor.from_coords(
        torch.cat([x.coords, torch.tensor([[5000, 5000, 0], [-4000, 10, 900]])]),
        torch.cat([x.feats, torch.ones(2, 8)]),
    )
    for a, b in zip(
        network.occupy(network.encode(x), ORIGIN), network.occupy(network.encode(far), ORIGIN), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    outside = network.occupy(network.encode(x), (1600, 1600, 1600))
    nothing = network.occupy(network.encode(SparseTensor.from_coords(x.coords[:0], x.feats[:0])), ORIGIN)
    assert torch.equal(outside[0], nothing[0])
    with pytest.raises(ValueError, match="multiples of stride 4"):
        network.occupy(network.encode(x), (1, 0, 0))


def test_features_that_are_not_finite_are_refused_at_the_door() -> None:
    feats = torch.ones(2, 8)
    feats[1, 3] = torch.nan
    with pytest.raises(ValueError, match=r"features must be finite, row 1 at \[1, 0, 0\]"):
        SparseTensor.from_coords(torch.tensor([[0, 0, 0], [1, 0, 0]]), feats)


def test_a_sentence_needs_a_viewpoint_and_a_word() -> None:
    network = small_network(small_config("grounding"))
    levels = network.encode(small_scene())
    shared = network.detect(levels)
    tokens, pad = sentence()
    with pytest.raises(ValueError, match="needs a viewpoint"):
        network.ground(network.candidates(levels, shared), tokens, pad)
    with pytest.raises(ValueError, match="at least one token in every sentence"):
        network.ground(network.candidates(levels, shared), tokens, torch.ones_like(pad), viewer())
    with pytest.raises(ValueError, match="at least one token in every sentence"):
        network.ground(network.candidates(levels, shared), tokens[:, :0], pad[:, :0], viewer())


def test_padding_of_sentences_changes_nothing() -> None:
    network = small_network(small_config("grounding"))
    with torch.no_grad():
        levels = network.encode(small_scene())
        shared = network.detect(levels)
        tokens, pad = sentence()
        longer = torch.cat([tokens, torch.full((1, 3, 12), 1e3)], 1)
        a = network.ground(network.candidates(levels, shared), tokens, pad, viewer())
        b = network.ground(
            network.candidates(levels, shared), longer, torch.tensor([[False] * 5 + [True] * 3]), viewer()
        )
    torch.testing.assert_close(a.boxes, b.boxes, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(a.logits, b.logits[..., :5], atol=1e-4, rtol=1e-4)
    assert bool((b.logits[..., 5:] == -torch.inf).all())


def test_window_sites_are_all_cells_of_every_sample() -> None:
    x = join_samples([small_scene(1), small_scene(2)])
    sites = window_sites(x.sites.coarser(4), (-8, 0, 4), (2, 3, 1))
    assert sites.stride == 4
    assert sites.coords[sites.samples == 1].tolist() == [[a, b, 4] for a in (-8, -4) for b in (0, 4, 8)]
    assert bool((sites.keys.diff() > 0).all())


# --------------------------------------------------------------------------------------------------------------------
# configurations


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("huge",), "preset must be one of tiny, base, paper, got 'huge'"),
        (("tiny", "cooking"), "task must be all or one of detection, occupancy, grounding, got 'cooking'"),
        (("tiny", "all", "radar"), "modality must be rgbd, depth, rgb or painting, got 'radar'"),
    ],
)
def test_unknown_names_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network_config(*arguments)  # type: ignore[arg-type]


def test_numbers_that_do_not_fit_are_refused() -> None:
    config = network_config("tiny")
    for change, message in (
        ({"voxel_size_m": 0.0}, "voxel_size_m must be positive, got 0.0"),
        ({"voxel_size_m": 0.03}, "no backbone level has cells of 0.16 m"),
        ({"detection": None}, "needs a detection head"),
        ({"inputs": "smell"}, "inputs must be one of .* got 'smell'"),
        ({"image": dataclasses.replace(config.image, encoder="alexnet")}, "alexnet"),
    ):
        with pytest.raises(ValueError, match=message):
            PerceptionNetwork(dataclasses.replace(config, **change))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only the paper preset has released weights, got 'tiny'"):
        released(config)
    with pytest.raises(ValueError, match="pruning must be class or object"):
        PerceptionNetwork(
            dataclasses.replace(config, detection=dataclasses.replace(config.detection, pruning="luck"))  # type: ignore[type-var,arg-type]
        )


def test_weights_of_another_preset_are_refused_by_name() -> None:
    with torch.device("meta"):
        tiny = PerceptionNetwork(network_config("tiny", "detection", num_classes=CLASSES))
        base = PerceptionNetwork(network_config("base", "detection", num_classes=CLASSES))
        wide = PerceptionNetwork(network_config("tiny", "detection", num_classes=CLASSES + 1))
        with pytest.raises(
            CheckpointError, match=r"base\.safetensors does not fit this network; missing: .*of another"
        ):
            load_into(tiny, base.state_dict(), "base.safetensors")
        with pytest.raises(CheckpointError, match=r"detection\.classify\.bias is \(1, 5\), the network has \(1, 4\)"):
            load_into(tiny, wide.state_dict(), "w")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize("task", ["all", "detection", "occupancy", "grounding"])
def test_every_configuration_can_be_built(preset: str, modality: Modality, task: str) -> None:
    with torch.device("meta"):
        network = PerceptionNetwork(network_config(preset, task, modality))
    has = {name for name in ("detection", "occupancy", "grounding") if getattr(network, name) is not None}
    if task != "all":
        assert task in has
    elif preset != "paper":
        assert has == {"detection", "occupancy", "grounding"}
    config = network.config
    if config.occupancy is not None:
        cell = config.backbone.strides[config.occupancy_level()] * config.voxel_size_m
        assert cell == pytest.approx(config.occupancy.cell_size_m)
