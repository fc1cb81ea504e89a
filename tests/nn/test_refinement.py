"""The refinement head: what it reads, what it may change, and that it starts from what was detected."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_networks import CLASSES, small_config, small_network, small_scene
from torch import Tensor

from embodied_perceptron.geometry.boxes import box_iou, to_box_frames
from embodied_perceptron.geometry.suppression import REFINED_TOGETHER_IOU
from embodied_perceptron.inference.loading import load_network, save_network
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.nn.detection import BoxPredictions
from embodied_perceptron.nn.input_features import join_samples
from embodied_perceptron.nn.network import PerceptionNetwork, SharedFeatures
from embodied_perceptron.nn.presets import NetworkConfig, RefinementConfig, network_config
from embodied_perceptron.nn.refinement import (
    Proposals,
    RefinementHead,
    grid_points,
    merge_labels,
    propose,
    refine,
)
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.sparse.tensor import SparseTensor

VOXEL_M = 0.04
NAMES = tuple("abcdef"[:CLASSES])


def refinement_config(**changes: object) -> NetworkConfig:
    config = small_config("detection")
    assert config.detection is not None
    head = RefinementConfig(channels=8, near_channels=8, whole_channels=12, hidden_channels=16, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(config, detection=dataclasses.replace(config.detection, second_look=head))


def seen_by(network: PerceptionNetwork, seed: int = 0) -> SharedFeatures:
    features: SharedFeatures = network(small_scene(seed))
    return features


def random_boxes(count: int, seed: int, tilt: float = 0.0) -> Tensor:
    rng = np.random.default_rng(seed)
    angles = np.stack([rng.uniform(-3, 3, count), *(tilt * rng.uniform(-1, 1, (2, count)))], 1)
    parts = [rng.uniform(-0.5, 0.5, (count, 3)), rng.uniform(0.1, 1.0, (count, 3)), angles]
    return torch.from_numpy(np.concatenate(parts, 1))


def test_overlapping_boxes_are_merged() -> None:
    """Against all pairs."""
    boxes = random_boxes(60, 0)
    boxes = torch.cat([boxes, boxes[:20]])
    boxes[60:, :3] += 0.01
    rng = np.random.default_rng(1)
    scores = torch.from_numpy(np.sort(rng.uniform(0.01, 0.9, 80))[::-1].copy())
    labels = torch.from_numpy(rng.integers(0, CLASSES + 1, 80))
    rows, heard = merge_labels(BoxPredictions(boxes, scores, labels), CLASSES, 30)
    assert len(rows) == 30
    iou = box_iou(boxes, boxes)
    assert float((iou[rows][:, rows] - torch.eye(30)).max()) <= REFINED_TOGETHER_IOU
    expected = torch.zeros(30, CLASSES + 1, dtype=torch.float64)
    for thing, row in enumerate(rows.tolist()):
        for box in range(80):
            if iou[row, box] > REFINED_TOGETHER_IOU:
                expected[thing, labels[box]] = max(expected[thing, labels[box]], scores[box])
    assert torch.equal(heard, expected)


def test_no_boxes_give_no_proposals() -> None:
    nothing = BoxPredictions(torch.zeros(0, 9), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    rows, heard = merge_labels(nothing, CLASSES, 30)
    assert len(rows) == 0
    assert heard.shape == (0, CLASSES + 1)
    network = small_network(refinement_config())
    empty = SparseTensor.from_coords(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 8))
    (found,) = network.boxes(network(empty))
    assert len(found.boxes) == 0


def test_the_grid_stands_in_the_boxs_frame_and_a_little_around_it() -> None:
    boxes = random_boxes(20, 2, tilt=0.3)
    points = grid_points(boxes, 5)
    own = to_box_frames(points.reshape(-1, 3), boxes).reshape(20, 125, 20, 3)[torch.arange(20), :, torch.arange(20)]
    reach = 0.6 * boxes[:, 3:6] + 0.04
    expected = torch.tensor([-0.8, -0.4, 0.0, 0.4, 0.8], dtype=torch.float64)
    for axis, stride in enumerate((25, 5, 1)):
        share = own[:, :, axis] / reach[:, None, axis]
        for point in range(125):
            assert torch.allclose(share[:, point], expected[point // stride % 5].expand(20), atol=1e-9)


def test_each_point_samples_its_site() -> None:
    scene = small_scene(3, count=3000, extent=20)
    coarse = SparseTensor(scene.sites.coarser(4), torch.rand(len(scene.sites.coarser(4)), 3))
    boxes = random_boxes(15, 4)
    seen = propose([scene, coarse], 0, boxes, torch.rand(15, CLASSES), VOXEL_M, 0.0, 5)
    points = grid_points(seen.boxes, 5)
    for source, tensor in enumerate((scene, coarse)):
        at = {tuple(c): i for i, c in enumerate(tensor.coords.tolist())}
        stride = tensor.sites.stride
        cells = (torch.floor(points / (VOXEL_M * stride)) * stride).long().reshape(-1, 3).tolist()
        expected = [at.get(tuple(cell), -1) for cell in cells]
        assert seen.rows[..., source].reshape(-1).tolist() == expected
        assert -1 in expected
        assert max(expected) >= 0


def test_place_has_the_height_above_the_floor() -> None:
    box = torch.tensor([[0.0, 0.0, 1.4, 0.6, 0.3, 0.8, 0.0, 0.0, 0.0]], dtype=torch.float64)
    seen = propose([small_scene()], 0, box, torch.tensor([[0.1, 0.5, 0.2, 0.0]]), VOXEL_M, 0.4, 5)
    expected = [np.log(0.6), np.log(0.3), np.log(0.8), 0.6, 1.4, np.log(2.0), 0.5, np.log(0.6 * 0.3 * 0.8) / 3, 1.0]
    np.testing.assert_allclose(seen.place[0].numpy(), expected, rtol=1e-5)


def one_source_after_the_other(head: RefinementHead, seen: Proposals) -> Tensor:
    x = head.there((seen.rows >= 0).to(head.there.weight.dtype))
    for s, (norm, project, feats) in enumerate(zip(head.norms, head.project, seen.sources, strict=True)):
        for p, g in (seen.rows[..., s] >= 0).nonzero().tolist():
            x[p, g] += project(norm(feats[seen.rows[p, g, s]].double()))
    return x


def test_sources_are_read_together_as_one_after_the_other() -> None:
    """Values and gradients."""
    torch.manual_seed(5)
    head = RefinementHead(RefinementConfig(channels=6), (8, 3), CLASSES).double()
    scene = small_scene(3, count=3000, extent=20)
    coarse = SparseTensor(scene.sites.coarser(4), torch.rand(len(scene.sites.coarser(4)), 3))
    seen = propose([scene, coarse], 0, random_boxes(4, 4), torch.rand(4, CLASSES), VOXEL_M, 0.0, 5)
    expected = one_source_after_the_other(head, seen)
    weights = torch.rand_like(expected)
    parts = [*head.there.parameters(), *head.project.parameters(), *head.norms.parameters()]
    wanted = torch.autograd.grad((expected * weights).sum(), parts)
    read = head._sampled(seen)
    torch.testing.assert_close(read, expected)
    torch.testing.assert_close(torch.autograd.grad((read * weights).sum(), parts), wanted)


def test_a_new_head_keeps_detections() -> None:
    network = small_network(refinement_config())
    assert network.second_look is not None
    fresh = PerceptionNetwork(refinement_config()).second_look
    assert fresh is not None
    network.second_look.load_state_dict(fresh.state_dict())
    torch.nn.init.zeros_(network.second_look.classify.weight)
    features = seen_by(network)
    (seen,) = network.proposals(features)
    assert len(seen) > 10
    assert torch.allclose(network.second_look(seen)[:, :-1], seen.log_odds, atol=1e-6)
    (found,) = network.boxes(features)
    assert (found.scores.diff() <= 0).all()
    assert set(found.labels.tolist()) <= set(range(CLASSES + 1))


def test_boxes_with_low_scores_are_not_refined() -> None:
    network = small_network(refinement_config(min_score=0.0)).eval()
    features = seen_by(network)
    (every,) = network.proposals(features)
    first = torch.sigmoid(every.log_odds.detach()).amax(1).sort().values
    middle = float(first[len(first) // 2])
    assert float(first[0]) < middle < float(first[-1])
    some = small_network(refinement_config(min_score=middle)).eval()
    some.load_state_dict(network.state_dict())
    (fewer,) = some.proposals(features)
    assert 0 < len(fewer) < len(every)
    assert float(torch.sigmoid(fewer.log_odds.detach()).amax(1).min()) > middle - 1e-6
    (again,) = some.proposals(features, min_score=0.0)
    assert torch.equal(again.boxes, every.boxes)


def test_scenes_of_a_batch_are_refined_separately() -> None:
    network = small_network(refinement_config())
    one, two = small_scene(1), small_scene(2)
    together = network.boxes(network(join_samples([one, two])))
    for scene, found in zip((one, two), together, strict=True):
        (alone,) = network.boxes(network(scene))
        assert torch.equal(alone.labels, found.labels)
        torch.testing.assert_close(alone.scores, found.scores, atol=1e-4, rtol=1e-3)


def test_a_missing_source_is_no_site() -> None:
    """What is not there reads zeros, not the features of another site."""
    network = small_network(refinement_config())
    assert network.second_look is not None
    (seen,) = network.proposals(seen_by(network))
    nothing = dataclasses.replace(seen, rows=torch.full_like(seen.rows, -1))
    other = dataclasses.replace(nothing, sources=tuple(torch.rand_like(s) for s in seen.sources))
    assert torch.equal(network.second_look(nothing), network.second_look(other))
    assert not torch.equal(network.second_look(nothing), network.second_look(seen))


def test_only_what_scores_enough_stays() -> None:
    network = small_network(refinement_config())
    assert network.second_look is not None
    (seen,) = network.proposals(seen_by(network))
    all_boxes = refine(network.second_look, seen, 0.0, 0.25)
    some = refine(network.second_look, seen, 0.5, 0.25)
    assert 0 < len(some.scores) < len(all_boxes.scores)
    assert (some.scores > 0.5).all()
    for label in range(CLASSES):
        boxes = some.boxes[some.labels == label]
        overlaps = box_iou(boxes, boxes) - torch.eye(len(boxes))
        assert (overlaps <= 0.25 + 1e-6).all()


def test_a_share_of_the_change_counts() -> None:
    network = small_network(refinement_config(share=0.25))
    head = network.second_look
    assert head is not None
    (seen,) = network.proposals(seen_by(network))
    logits = head(seen)
    found = refine(head, seen, 0.0, 1.0)  # nothing is suppressed
    expected = torch.cat([0.75 * seen.log_odds + 0.25 * logits[:, :-1], logits[:, -1:]], 1).sigmoid()
    torch.testing.assert_close(found.scores, expected.flatten().sort(descending=True).values)


def test_unnamed_objects_are_scored(tmp_path: Path) -> None:
    """Presence is a label of its own: a predictor publishes it under no name where none is sure enough."""
    network = small_network(refinement_config())
    assert network.second_look is not None
    bias = network.second_look.classify.bias
    with torch.no_grad():
        network.second_look.classify.weight.zero_()
        bias.fill_(-20.0)
        bias[-1] = 2.0
    features = seen_by(network)
    save_network(tmp_path / "w.safetensors", network, NAMES)
    again, classes = load_network(tmp_path / "w.safetensors")
    assert classes == NAMES
    assert again.config == network.config
    predictor = Predictor(again, NAMES)
    scene = predictor.encode(small_scene())
    found = predictor.detections(scene, 0.3)
    assert len(features.levels)
    assert set(found.labels) == {UNNAMED}


@pytest.mark.parametrize("config", [network_config("paper", "detection"), network_config("tiny", "detection", "rgb")])
def test_networks_without_a_map_have_no_refinement(config: NetworkConfig) -> None:
    assert config.detection is not None
    looking = dataclasses.replace(config.detection, second_look=RefinementConfig())
    with pytest.raises(ValueError, match="the refinement head needs heights and colours of a map"):
        PerceptionNetwork(dataclasses.replace(config, detection=looking))
    network = small_network(small_config("detection"))
    features = seen_by(network)
    with pytest.raises(ValueError, match="this network has no refinement head"):
        network.proposals(features)
    with pytest.raises(ValueError, match="cells must be 5 for two convolutions of size 3, got 4"):
        PerceptionNetwork(refinement_config(cells=4))


def test_both_devices_see_the_same(gpu: torch.device) -> None:
    network = small_network(refinement_config())
    (here,) = network.boxes(network(small_scene()))
    there = network.to(gpu)
    (found,) = there.boxes(there(small_scene(device=str(gpu))))
    assert torch.equal(found.labels.cpu(), here.labels)
    torch.testing.assert_close(found.scores.cpu(), here.scores, atol=1e-4, rtol=1e-3)


def test_the_whole_is_read_as_its_convolution_would() -> None:
    """What the first layer that sees everything is given of the grid, against the convolution itself."""
    network = small_network(refinement_config())
    head = network.second_look
    assert head is not None
    seen = {}
    head.near.register_forward_hook(lambda module, given, out: seen.update(near=out))
    head.first.register_forward_pre_hook(lambda module, given: seen.update(joined=given[0]))
    (proposals,) = network.proposals(seen_by(network), min_score=0.0)
    assert len(proposals) > 1
    head(proposals)
    expected = head.whole(seen["near"].relu()).relu().flatten(1)
    assert torch.allclose(seen["joined"][:, : expected.shape[1]], expected, atol=1e-5)
    assert float(expected.abs().max()) > 1e-3
