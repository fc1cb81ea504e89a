"""Grounding among detected objects: what becomes a query, what geometry says, and that words find their thing."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from support.small_networks import small_config, small_network, small_scene, viewer
from torch import Tensor

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.nn.detection import boxes_from_faces
from embodied_perceptron.nn.grounding import (
    OWN_FEATURES,
    PAIR_FEATURES,
    DetectedObjects,
    ObjectGroundingHead,
    ObjectGroundingOutput,
    RelativeAttention,
    detected_objects,
    joined_objects,
    own_features,
    pair_features,
)
from embodied_perceptron.nn.network import ObjectGroundingBranch, PerceptionNetwork, Viewpoint
from embodied_perceptron.nn.presets import GroundingConfig, network_config
from embodied_perceptron_training.training.criteria import PointerCriterion, PointerOutput

CLASSES, CHANNELS, TEXT = 4, 8, 12


def things(count: int, padding: int = 0, seed: int = 0, scenes: int = 1) -> DetectedObjects:
    """Random ones in a room."""
    g = torch.Generator().manual_seed(seed)
    number = count + padding
    boxes = torch.rand(scenes, number, 9, generator=g)
    boxes = torch.cat([boxes[..., :3] * 4, boxes[..., 3:6] + 0.2, (boxes[..., 6:] - 0.5) * 0.6], -1)
    valid = (torch.arange(number) < count).expand(scenes, -1)
    return DetectedObjects(
        boxes,
        torch.randn(scenes, number, CHANNELS, generator=g),
        torch.rand(scenes, number, CLASSES, generator=g),
        torch.rand(scenes, number, generator=g) * valid,
        valid,
    )


def words(sentences: int, tokens: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    pad = torch.zeros(sentences, tokens, dtype=torch.bool)
    pad[1:, -1:] = True
    return torch.randn(sentences, tokens, TEXT, generator=g), pad


def decoder(channels: int, hidden: int, pair_channels: int = 32) -> GroundingConfig:
    return GroundingConfig(
        "objects", channels, text_channels=TEXT, layers=2, heads=2, hidden_channels=hidden, pair_channels=pair_channels
    )


def grounder() -> ObjectGroundingHead:
    torch.manual_seed(0)
    return ObjectGroundingHead(CHANNELS, CLASSES, decoder(16, 24)).eval()


# --------------------------------------------------------------------------------------------------------------------
# queries


@torch.no_grad()
@pytest.mark.parametrize("count", [3, 40])
def test_queries_are_the_best_boxes_that_are_not_the_same_thing(count: int) -> None:
    """Against the slow way: sort all, keep what overlaps nothing better."""
    network = small_network(small_config("grounding"))
    shared = network.detect(network.encode(small_scene(count=900)))
    found = detected_objects(shared.levels, shared.features, count)
    boxes = torch.cat([boxes_from_faces(x.anchors_m, x.distances_m, x.rotation) for x in shared.levels])
    boxes[:, 3:6].clamp_(min=0.01)
    classes = torch.cat([level.class_logits for level in shared.levels]).sigmoid()
    centers = torch.cat([level.center_logits[:, 0] for level in shared.levels]).sigmoid()
    features = torch.cat([x.feats for x in shared.features])
    score = classes.amax(1) * centers ** (1 / 3)
    assert len(boxes) < 600  # all are candidates
    kept: list[int] = []
    for row in score.argsort(descending=True, stable=True).tolist():
        if not kept or float(box_iou(boxes[row : row + 1].double(), boxes[kept].double()).max()) <= 0.4:
            kept.append(row)
    kept = kept[:count]
    number = len(kept)
    assert number > 2
    assert found.valid[0].tolist() == [i < number for i in range(count)]
    torch.testing.assert_close(found.scores[0, :number], score[kept])
    torch.testing.assert_close(found.features[0, :number], features[kept])
    torch.testing.assert_close(found.classes[0, :number], classes[kept])
    # voting moves boxes, but not to another thing
    assert float(box_iou(found.boxes[0, :number].double(), boxes[kept].double()).diagonal().min()) > 0.3
    assert float(found.scores[0, number:].sum()) == 0.0


@torch.no_grad()
def test_only_the_best_candidates_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network(small_config("grounding"))
    shared = network.detect(network.encode(small_scene(count=900)))
    everything = detected_objects(shared.levels, shared.features, 4)
    monkeypatch.setattr("embodied_perceptron.nn.grounding._CANDIDATES", 30)
    few = detected_objects(shared.levels, shared.features, 4)
    assert torch.equal(few.scores[0, 0], everything.scores[0, 0])
    boxes = torch.cat([boxes_from_faces(x.anchors_m, x.distances_m, x.rotation) for x in shared.levels]).double()
    best = torch.cat([x.feats for x in shared.features])
    for row in range(int(few.valid.sum())):  # features belong to the box
        at = int((best - few.features[0, row]).abs().sum(1).argmin())
        assert torch.equal(best[at], few.features[0, row])
        assert float(box_iou(boxes[at][None], few.boxes[0, row][None].double())) > 0.2


# --------------------------------------------------------------------------------------------------------------------
# geometry


def test_geometry_moves_with_the_viewer() -> None:
    boxes = things(7).boxes.double()
    here = Viewpoint(torch.tensor([[0.3, 0.2, 0.1]]).double(), torch.tensor([0.5]).double())
    angle, step = 2.2, torch.tensor([1.5, -3.0, 0.25]).double()
    c, s = math.cos(angle), math.sin(angle)
    R = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    turned = torch.cat([boxes[..., :3] @ R.T + step, boxes[..., 3:6], boxes[..., 6:7] + angle, boxes[..., 7:]], -1)
    there = Viewpoint(here.origin_m @ R.T + step, here.yaw_rad + angle)
    a, b = here.boxes_from_world(boxes)[0], there.boxes_from_world(turned)[0]
    assert own_features(a).shape == (7, OWN_FEATURES)
    assert pair_features(a).shape == (7, 7, PAIR_FEATURES)
    torch.testing.assert_close(own_features(a), own_features(b))
    torch.testing.assert_close(pair_features(a), pair_features(b))
    assert float((pair_features(a) - pair_features(here.boxes_from_world(turned)[0])).abs().max()) > 0.1
    torch.testing.assert_close(there.boxes_to_world(b[None]), turned)


def test_pairs_by_hand() -> None:
    """A lamp of 0.2 m, 1 m above and 2 m to the left of a table 1 m wide, as seen along x."""
    table = [3.0, 0.0, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    lamp = [3.0, 2.0, 2.1, 0.2, 0.2, 0.2, 0.0, 0.0, 0.0]
    f = pair_features(torch.tensor([table, lamp]))[0, 1].tolist()
    assert f[:3] == pytest.approx([0.0, 1.0, 0.8])  # half the offset
    assert f[3:6] == pytest.approx([1.0, math.log(3.0), math.log1p(math.hypot(2.0, 1.6))])
    assert f[6:8] == pytest.approx([2.0 - 1.0, 0.0 - 2.2])  # its bottom above the table's top
    assert f[8:10] == pytest.approx([-0.3, 0.7])  # it lies within the table's width, 1.4 m beside it
    assert f[10:13] == pytest.approx([math.log(0.2)] * 3)
    assert f[13:16] == pytest.approx([0.0, 2.0, 1.6])  # in half widths of the table, cut at four; halved
    assert f[19] > 0  # to the left
    assert f[22] == 0.0
    assert pair_features(torch.tensor([table, lamp]))[1, 1, 22] == 1.0


# --------------------------------------------------------------------------------------------------------------------
# decoder


@torch.no_grad()
def test_attention_is_what_its_formula_says() -> None:
    """Two scenes, two sentences each; one sentence, one query at a time, one head at a time."""
    torch.manual_seed(0)
    layer = RelativeAttention(8, 2, 6)
    x, every = torch.randn(4, 5, 8), torch.randn(2, 5, 5, 6)
    valid = torch.tensor([True, True, True, True, False]).expand(4, 5)
    got = layer(x, every, valid)
    for s in range(4):
        pairs = every[s // 2]
        q, k, v = layer.content(x[s]).split(8, dim=1)
        asked = layer.asked(x[s])
        for i in range(5):
            seen, where = [], []
            for h in range(2):
                c, e = slice(4 * h, 4 * h + 4), slice(6 * h, 6 * h + 6)
                logits = k[:4, c] @ q[i, c] / 2.0 + pairs[i, :4] @ asked[i, e] / math.sqrt(6)
                share = logits.softmax(0)
                seen.append(share @ v[:4, c])
                where.append(share @ pairs[i, :4])
            expected = layer.out(torch.cat(seen)) + layer.read(torch.cat(where))
            torch.testing.assert_close(got[s, i], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_order_of_objects_changes_nothing() -> None:
    head, objects = grounder(), things(9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    mixed = DetectedObjects(*(x[:, order] for x in vars(objects).values()))
    a, b = head(objects, *words(3)), head(mixed, *words(3))
    torch.testing.assert_close(a.logits[:, :, order], b.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(a.log_shares[:, :, 0], b.log_shares[:, :, 0], atol=1e-4, rtol=1e-4)
    assert torch.equal(a.boxes[:, :, order], b.boxes)


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    head, objects = grounder(), things(6, padding=3)
    alone = DetectedObjects(*(x[:, :6] for x in vars(objects).values()))
    (tokens, pad) = words(2)
    a, b = head(objects, tokens, pad), head(alone, tokens, pad)
    torch.testing.assert_close(a.logits[:, :, :6], b.logits, atol=1e-4, rtol=1e-4)
    assert bool((a.logits[:, :, 6:].sigmoid() == 0).all())
    assert bool((a.logits[:, 1, :, -1] == -torch.inf).all())  # a padded token
    one = head(alone, tokens[1:, :4], pad[1:, :4])  # the second sentence by itself
    torch.testing.assert_close(one.logits[:, 0], a.logits[:, 1, :6, :4], atol=1e-4, rtol=1e-4)


def test_probabilities_of_every_token_sum_to_one() -> None:
    out = grounder()(things(6, padding=2), *words(2))
    shares = out.log_shares.exp()
    torch.testing.assert_close(shares.sum(2), torch.ones_like(shares[:, :, 0]))
    torch.testing.assert_close(out.logits[..., :4].sigmoid(), shares[:, :, 1:, :4], atol=1e-5, rtol=1e-4)


def test_a_scene_without_objects_is_answered_with_nothing() -> None:
    head = grounder()
    out = head(things(0, padding=4), *words(2))
    assert not bool(out.query_valid.any())
    torch.testing.assert_close(out.log_shares[:, :, 0], torch.zeros_like(out.log_shares[:, :, 0]))
    criterion = PointerCriterion()
    losses = criterion([pointed(out, [0, 1])], out.log_shares)
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in head.parameters())


def test_what_does_not_fit_is_named() -> None:
    head = grounder()
    with pytest.raises(ValueError, match="same number of sentences for each scene, got 1 sentences for 2 scenes"):
        head(things(3, scenes=2), *words(1))
    with pytest.raises(ValueError, match="at least one token in every sentence"):
        head(things(3), torch.zeros(1, 2, TEXT), torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="multiple of heads, got 10 and 4"):
        RelativeAttention(10, 4, 8)
    config = network_config("paper", "grounding")
    with pytest.raises(ValueError, match="must not be world coordinates"):
        dataclasses.replace(
            config, detection=network_config("paper", "detection").detection, grounding=GroundingConfig("objects")
        )


@torch.no_grad()
def test_many_sentences_of_one_speaker_are_each_answered_as_alone() -> None:
    network = small_network(small_config("grounding"))
    levels = network.encode(small_scene())
    shared = network.detect(levels)
    g = torch.Generator().manual_seed(0)
    tokens, pad = torch.randn(3, 5, 12, generator=g), torch.zeros(3, 5, dtype=torch.bool)
    together = network.ground(network.candidates(levels, shared), tokens, pad, viewer())
    each = network.ground(
        network.candidates(levels, shared), tokens, pad, viewer(batch=3)
    )  # as if three speakers stood there
    torch.testing.assert_close(together.logits, each.logits, atol=1e-4, rtol=1e-4)
    assert torch.equal(together.boxes, each.boxes)


# --------------------------------------------------------------------------------------------------------------------
# learning


def pointed(out: ObjectGroundingOutput, meant: list[int | None]) -> PointerOutput:
    """Each sentence means one of the things of ``out``, named by its second token, or None of them."""
    boxes = out.boxes[-1, 0]
    targets = [boxes[:0] if m is None else boxes[m : m + 1] for m in meant]
    named = torch.zeros(out.log_shares.shape[1], out.log_shares.shape[3], dtype=torch.bool)
    named[:, 1] = True
    pad = out.logits[-1, :, 0] == -torch.inf
    return PointerOutput(out, targets, named, pad)


def test_losses_by_hand() -> None:
    """Two things, one of them twice; the tokens: "the", "chair", padding."""
    box = torch.tensor([[0.0, 0, 0, 1, 1, 1, 0, 0, 0], [0.2, 0, 0, 1, 1, 1, 0, 0, 0], [5.0, 0, 0, 1, 1, 1, 0, 0, 0]])
    g = torch.Generator().manual_seed(0)
    shares = torch.randn(2, 3, 4, 3, generator=g).log_softmax(2)
    out = ObjectGroundingOutput(
        boxes=box.expand(2, 3, 3, 9),
        logits=shares[:, :, 1:],
        hidden=shares,
        query_valid=torch.ones(3, 3, dtype=torch.bool),
        log_shares=shares,
    )
    named = torch.tensor([[False, True, False]]).expand(3, 3)
    pad = torch.tensor([[False, False, True]]).expand(3, 3)
    far = torch.tensor([[9.0, 0, 0, 1, 1, 1, 0, 0, 0]])
    answer = PointerOutput(out, [box[:1], box[:0], far], named, pad)
    criterion = PointerCriterion(other_weight=0.5)
    right = criterion.targets(answer)
    assert right[0].tolist() == pytest.approx([0.0, 0.6, 0.4, 0.0])  # IoU of 1 and 0.8 / 1.2
    assert right[1:].tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2  # not there, and there but not found
    losses = criterion([answer], shares)
    first = -(0.6 * shares[:, 0, 1, 1] + 0.4 * shares[:, 0, 2, 1]).mean()
    rest = -(shares[:, 1, 0, 1] + shares[:, 2, 0, 1]).mean()
    assert float(losses["named"]) == pytest.approx(float(first + rest) / 3)
    assert float(losses["others"]) == pytest.approx(float(-0.5 * shares[:, :, 0, 0].mean()))
    # two scenes count as their sentences, and another process's as one's own
    twice = criterion([answer, answer], shares)
    torch.testing.assert_close(twice, losses)
    half = dataclasses.replace(criterion, reduce=lambda value: value * 2)([answer], shares)
    torch.testing.assert_close(half["named"], losses["named"] / 2)
    assert [float(v) for v in criterion([], shares).values()] == [0.0, 0.0]


@pytest.mark.slow
def test_comparisons_between_look_alikes_are_learned() -> None:
    """Things of one class, told apart by which of them is nearest to another thing: never seen rooms are answered."""
    torch.manual_seed(0)
    head = ObjectGroundingHead(CHANNELS, 2, decoder(32, 32, pair_channels=16))
    tokens, pad = words(1)
    criterion = PointerCriterion()
    optimizer = torch.optim.AdamW(head.parameters(), 5e-3)
    g = torch.Generator().manual_seed(1)

    def room() -> tuple[DetectedObjects, int]:
        boxes = torch.zeros(1, 4, 9)
        boxes[0, :, :2] = torch.rand(4, 2, generator=g) * 6 - 3
        boxes[..., 3:6] = 0.4
        kinds = torch.zeros(1, 4, 2)
        kinds[0, :3, 0] = kinds[0, 3, 1] = 1.0  # three chairs, a desk
        nearest = int((boxes[0, :3, :2] - boxes[0, 3, :2]).norm(dim=1).argmin())
        return DetectedObjects(boxes, torch.zeros(1, 4, CHANNELS), kinds, torch.ones(1, 4), kinds.any(2)), nearest

    steps = 120
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1.0, (step + 1) / 10, (steps - step) / (0.7 * steps))
        optimizer.zero_grad()
        answers = []
        for _ in range(4):
            objects, nearest = room()
            answers.append(pointed(head(objects, tokens, pad), [nearest]))
        torch.stack(list(criterion(answers, tokens).values())).sum().backward()
        optimizer.step()
    right = 0
    with torch.no_grad():
        for _ in range(100):
            objects, nearest = room()
            right += int(head(objects, tokens, pad).logits[-1, 0, :, 1].argmax()) == nearest
    assert right > 75  # by chance 33


def test_presets_ground_among_objects_and_released_weights_among_voxels() -> None:
    for preset in ("tiny", "base"):
        config = network_config(preset, num_classes=3)
        assert config.grounding is not None
        assert config.grounding.queries == "objects"
    assert isinstance(
        PerceptionNetwork(network_config("tiny", "grounding", "depth", 3)).grounding, ObjectGroundingBranch
    )
    paper = network_config("paper").grounding
    assert paper is not None
    assert (paper.queries, paper.num_queries) == ("voxels", 256)


def test_objects_of_several_parts_are_joined_best_first() -> None:
    a, b = things(4, padding=2, seed=1), things(3, padding=1, seed=2)
    both = joined_objects([a, b], 5)
    scores = torch.cat([a.scores[0, :4], b.scores[0, :3]]).sort(descending=True).values
    assert torch.equal(both.scores[0], scores[:5])
    assert bool(both.valid.all())
    at = int((a.boxes[0] - both.boxes[0, 0]).abs().sum(1).argmin())
    source = a if torch.equal(a.boxes[0, at], both.boxes[0, 0]) else b
    at = int((source.boxes[0] - both.boxes[0, 0]).abs().sum(1).argmin())
    assert torch.equal(source.features[0, at], both.features[0, 0])
    assert torch.equal(source.classes[0, at], both.classes[0, 0])
    assert joined_objects([things(0, padding=2)], 5).boxes.shape == (1, 0, 9)
