"""``train --task boxes``: targets, what is kept of a look, and a training over a network that stays as it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_homes import small_homes
from support.small_networks import small_config, small_network
from torch import Tensor

from embodied_perceptron.inference.loading import load_network, save_network
from embodied_perceptron.nn.refinement import Proposals
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron.weights.checkpoint import load_checkpoint
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.training import tasks
from embodied_perceptron_training.training.refinement import (
    LabelledProposals,
    RefinementTask,
    joined,
    label_proposals,
    network_digest,
    overlap_targets,
    with_refinement_head,
)
from embodied_perceptron_training.training.task import SampleError
from embodied_perceptron_training.training.tasks import build_task, train_run
from embodied_perceptron_training.training.training_run import TrainingRun

CLASSES = tuple(DETECTION_CLASSES)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_homes(tmp_path_factory.mktemp("homes"), sentences=2)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small detector without a refinement head."""
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    config = dataclasses.replace(small_config("detection"), num_classes=len(CLASSES))
    save_network(path, small_network(config, seed=3), CLASSES, {"calibration": {"threshold": 0.3}}, half=False)
    return path


def learning(homes: Path, weights: Path, **options: str) -> RefinementTask:
    run = TrainingRun.of({"looks": "2", **options}, task="boxes", data=homes, val=homes, weights=weights, views=3)
    task = build_task(run)
    assert isinstance(task, RefinementTask)
    return task


def losses_of(task: RefinementTask, batch: LabelledProposals) -> Tensor:
    return torch.stack(list(task.losses(task.model, batch, lambda value: value.detach()).values())).sum()


def test_targets_by_hand() -> None:
    iou = torch.tensor([[0.6, 0.0, 0.3], [0.14, 0.2, 0.0], [0.0, 0.0, 0.0]])
    right = overlap_targets(iou, torch.tensor([1, 3, 1]), 3)
    expected = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.25], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(right, expected)
    assert overlap_targets(torch.zeros(2, 0), torch.zeros(0, dtype=torch.int64), 3).tolist() == [[0.0] * 4] * 2


def test_what_was_seen_is_kept_and_is_what_the_network_sees(homes: Path, weights: Path, tmp_path: Path) -> None:
    task = learning(homes, weights, cache=str(tmp_path))
    source, index = task.samples.scenes[0]
    first = source.window(index, 1)
    assert len(first.proposals.seen) > 5
    files = sorted((tmp_path / "looked").iterdir())
    assert len(files) == 1
    source._network = None  # type: ignore[assignment]  # it is not asked again
    again = source.window(index, 1)
    for name in ("boxes", "log_odds", "place", "rows"):
        assert torch.equal(getattr(first.proposals.seen, name), getattr(again.proposals.seen, name))
    assert torch.equal(first.proposals.right, again.proposals.right)
    files[0].write_bytes(files[0].read_bytes()[:200])
    with pytest.raises(SampleError, match="damaged"):
        source.window(index, 1)


def test_proposals_are_those_of_another_network_only_where_the_head_reads_something_else() -> None:
    network = small_network(small_config("all"), seed=3)
    digest = network_digest(network)
    changes = {}
    for part in ("occupancy", "grounding", "backbone", "detection"):
        parameter = next(value for name, value in network.named_parameters() if name.startswith(f"{part}."))
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(1.0)
            changes[part] = network_digest(network) != digest
            parameter.copy_(before)
    assert changes == {"occupancy": False, "grounding": False, "backbone": True, "detection": True}
    alone = small_network(small_config("detection"), seed=3)
    shared = {k: v for k, v in network.state_dict().items() if k in alone.state_dict()}
    alone.load_state_dict(shared)
    assert network_digest(alone) == network_digest(network)


def test_scenes_with_rare_classes_come_more_often(
    homes: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def order(classes: list[set[str]], share: float) -> list[int]:
        asked.append((classes, share))
        return [0, 0, 0]

    monkeypatch.setattr(tasks, "repeat_factor_order", order)
    task = learning(homes, weights, cache=str(tmp_path), balance="0.25")
    (scan,) = EmbodiedScanDataset(homes, "train")
    assert asked == [([set(scan.labels) & set(CLASSES)], 0.25)]
    assert len(task.samples) == 3
    assert len(task._validation) == 1  # stands as it is
    rng = np.random.default_rng
    first, again = (task.samples.sample(i, rng(5)).seen.boxes for i in (0, 2))
    assert torch.equal(first, again)  # of the one scene
    assert len(list((tmp_path / "looked").iterdir())) <= 2


def test_several_windows_read_as_each_alone(homes: Path, weights: Path, tmp_path: Path) -> None:
    task = learning(homes, weights, cache=str(tmp_path))
    source, index = task.samples.scenes[0]
    parts = [source.window(index, number).proposals for number in (0, 1)]
    model = task.model.eval()
    apart = torch.cat([model(part.seen) for part in parts])
    torch.testing.assert_close(model(joined(parts).seen), apart, atol=1e-5, rtol=1e-4)


def test_a_drawn_grid_is_the_kept_one_from_any_of_four_ends(homes: Path, weights: Path, tmp_path: Path) -> None:
    task = learning(homes, weights, cache=str(tmp_path))
    source, index = task.samples.scenes[0]
    labelled = source.window(index, 0).proposals
    kept = {row.tobytes(): i for i, row in enumerate(labelled.seen.boxes.numpy())}
    kinds = set()
    for seed in range(12):
        drawn = source._drawn(labelled, np.random.default_rng(seed)).seen
        rows = [kept[row.tobytes()] for row in drawn.boxes.numpy()]
        grid = labelled.seen.rows[rows].reshape(len(rows), 5, 5, 5, -1)
        missing = {
            ends: int((grid.flip(ends).reshape(drawn.rows.shape) != drawn.rows).any(dim=1).any(dim=0).sum())
            for ends in ((), (1,), (2,), (1, 2))
        }
        ends = min(missing, key=lambda e: missing[e])
        assert missing[ends] <= 1  # one source may be missing
        kinds.add(ends)
    assert len(kinds) == 4


def test_boxes_of_things_are_drawn_before_others(homes: Path, weights: Path, tmp_path: Path) -> None:
    task = learning(homes, weights, cache=str(tmp_path))
    source, index = task.samples.scenes[0]
    labelled = source.window(index, 0).proposals
    things = torch.arange(len(labelled.right)) < 3
    right = torch.zeros_like(labelled.right)
    right[things, 2] = 0.5
    drawn = source._drawn(dataclasses.replace(labelled, right=right), np.random.default_rng(0))
    assert int((drawn.right > 0).sum()) == 3
    assert len(drawn.right) == min(len(right), 3 + 48)


def test_a_window_without_a_proposal_is_drawn_as_well(homes: Path, weights: Path, tmp_path: Path) -> None:
    task = learning(homes, weights, cache=str(tmp_path))
    source, index = task.samples.scenes[0]
    full = source.window(index, 0).proposals
    seen, none = full.seen, torch.zeros(0, dtype=torch.int64)
    empty = Proposals(seen.boxes[none], seen.log_odds[none], seen.place[none], seen.rows[none], seen.sources)
    for seed in range(8):  # every augmentation among them
        drawn = source._drawn(LabelledProposals(empty, full.right[none]), np.random.default_rng(seed))
        assert len(drawn.right) == 0


def test_a_training_moves_the_refinement_head_alone(homes: Path, weights: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = learning(homes, weights, cache=str(tmp_path / "cache"))
    before = {k: v.clone() for k, v in task.network.state_dict().items()}
    digest = network_digest(task.network)
    batch = task.collate([task.samples.sample(0, np.random.default_rng(0))])
    optimizer = torch.optim.AdamW(task.model.parameters(), 3e-3)
    task.model.train()
    first = last = 0.0
    for step in range(40):
        loss = losses_of(task, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = (float(loss.detach()) if step == 0 else first), float(loss.detach())
    assert last < 0.7 * first
    assert network_digest(task.network) == digest
    figures = task.validate(task.model.eval())
    assert {"AP25", "AP25_first", "AR25"} <= set(figures)
    task.save_weights(tmp_path / "out.safetensors", task.model, {"seed": 1})
    network, classes = load_network(tmp_path / "out.safetensors")
    assert classes == CLASSES
    for name, value in network.state_dict().items():
        if name.startswith("second_look."):
            assert value.shape == before[name].shape
        else:
            torch.testing.assert_close(value, before[name], atol=2e-3, rtol=2e-3)  # half precision
    extra = load_checkpoint(tmp_path / "out.safetensors").extra
    assert extra["seed"] == 1
    assert "calibration" not in extra  # of other scores


def test_a_refinement_head_is_trained_further(homes: Path, weights: Path, tmp_path: Path) -> None:
    task = learning(homes, weights, cache=str(tmp_path / "cache"))
    with torch.no_grad():
        task.model.shift.fill_(0.25)  # type: ignore[union-attr, operator]
    task.save_weights(tmp_path / "out.safetensors", task.model, {})
    network, _, _ = with_refinement_head(tmp_path / "out.safetensors")
    assert network.second_look is not None
    assert network.second_look.shift.tolist() == [0.25]
    assert [n for n, p in network.named_parameters() if p.requires_grad] == [
        f"second_look.{n}" for n, _ in network.second_look.named_parameters()
    ]


def test_windows_without_truth_teach_silence(homes: Path, weights: Path, tmp_path: Path) -> None:
    task = learning(homes, weights, cache=str(tmp_path))
    source, index = task.samples.scenes[0]
    seen = source.window(index, 0).proposals.seen
    nothing = label_proposals(seen, torch.zeros(0, 9), torch.zeros(0, dtype=torch.int64), len(CLASSES))
    assert not nothing.right.any()
    assert torch.isfinite(losses_of(task, nothing))


def test_several_folders_teach_together(homes: Path, weights: Path, tmp_path: Path) -> None:
    task = learning(homes, weights, cache=str(tmp_path), also=f"{homes},{homes}")
    assert len(task.samples) == 3


def test_a_training_of_the_head_continues_without_its_weights_file(homes: Path, weights: Path, tmp_path: Path) -> None:
    start = tmp_path / "w.safetensors"
    start.write_bytes(weights.read_bytes())
    options = {"looks": "1", "cache": str(tmp_path / "cache")}
    run = TrainingRun.of(options, task="boxes", data=homes, weights=start, views=3, steps=2, batch=1)
    run = run.replaced(epochs=0.0, workers=0, validations=0, precision="float32", checkpoint_s=0.0)
    assert not train_run(run.replaced(minutes=1e-9), tmp_path / "run", quiet=True).finished
    start.unlink()
    assert train_run(run, tmp_path / "run", resume=True, quiet=True).finished
    written, classes = load_network(tmp_path / "run" / "last.safetensors")
    assert classes == CLASSES
    assert written.second_look is not None


def test_bad_requests_are_named(homes: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="task boxes needs --weights"):
        build_task(TrainingRun.of({}, task="boxes", data=homes))
    with pytest.raises(ValueError, match="option looks must be positive, got 0"):
        learning(homes, weights, looks="0")
    config = small_config("occupancy")
    save_network(tmp_path / "o.safetensors", small_network(config), CLASSES[: config.num_classes])
    with pytest.raises(ValueError, match="a refinement head needs a network with detection"):
        learning(homes, tmp_path / "o.safetensors")
