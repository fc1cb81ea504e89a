"""Are classes better told by their names' meaning? Two classifiers over the same frozen features, same budget.

    python benchmarks/text_classes.py                                        # table, and out/bench/text_classes.json
    python benchmarks/text_classes.py --train data/train --val data/val      # homes of your own

The features are those that the shipped network's own classifier reads. ``linear`` is a row of weights per name;
``text`` projects the features into the space of a text encoder's sentence features, where the cosine to each name's
embedding counts, times a temperature that is learned. Both learn by binary cross entropy from the same sites and steps;
``shipped`` is the network as it is. The same again with some names left out of the learning, which only ``text`` can
say; beside it stands what the likeness of names alone gives.

Names are judged at the boxes of things: of all sites whose box overlaps a thing by more than IoU 0.25, the one that
the network scores best by its own names is asked for the name. AP25 is of whole scenes, over all names of the learning.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
import torch
from _inputs import simulated_homes
from torch import Tensor, nn
from torch.nn import functional

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.inference.loading import load_inference
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.nn.text_encoder import text_encoder
from embodied_perceptron.weights.categories import STRUCTURE_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.runner.scene_tasks import predict_everywhere, scene_perceptron
from embodied_perceptron_training.evaluation.runner.scenes import load_scene
from embodied_perceptron_training.training.few_shot import (
    RoomFeatures,
    Rows,
    boxes_by,
    classifier_rows,
    examples_of,
    room_parts,
)

HIT_IOU = 0.25
SITES_ASKED = 600  # of a window, the network's best: among them the box of each thing is looked for
OTHER_SITES = 1500  # of a home that are no example
BATCH = 1024
Classify = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Sites:
    """Of one home: (N, C) features, (N,) position of the name in ``labels``' order or -1 for none."""

    features: Tensor
    thing: Tensor
    labels: tuple[str, ...]


# --------------------------------------------------------------------------------------------------------------------
# what is learned from, and what is judged


def see(data: EmbodiedScanDataset, name: str, views: int, inference: Predictor) -> RoomFeatures:
    """What the classifier reads in one home, and the things that its views show."""
    scene = load_scene(data, name, views)
    perceptron = scene_perceptron(inference, len(scene.frames))
    for frame in scene.frames:
        perceptron.integrate(frame)
    prediction = predict_everywhere(perceptron)
    assert prediction.detections is not None
    rows = [r for r in scene.seen_rows() if scene.labels[r] not in STRUCTURE_CLASSES]
    labels = tuple(scene.labels[r] for r in rows)
    return RoomFeatures(name, labels, scene.boxes[rows], room_parts(prediction), prediction.detections.boxes)


def sites_of(room: RoomFeatures, seed: int) -> Sites:
    """Examples of all things, and some sites that are none."""
    examples = examples_of(room)
    taught = (examples.thing >= 0).nonzero()[:, 0]
    others = ((examples.thing < 0) & ~examples.inside.any(1)).nonzero()[:, 0]
    drawn = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[:OTHER_SITES]
    rows = torch.cat([taught, others[drawn]])
    return Sites(examples.features[rows].clone(), examples.thing[rows].clone(), room.labels)


def asked_sites(room: RoomFeatures, inference: Predictor) -> tuple[Tensor, list[str]]:
    """(T, C) features at the best box of each thing that has one, and the things' names."""
    rows = classifier_rows(inference)
    truth = torch.from_numpy(room.boxes)
    best = torch.zeros(len(truth), dtype=torch.float64)
    features = torch.zeros(len(truth), rows.kernel.shape[0])
    for part in room.parts:
        flat = part.flat()
        score = (flat @ rows.kernel + rows.bias).amax(1).sigmoid()
        score = score * torch.cat([level.center_logits for level in part.levels])[:, 0].sigmoid().pow(1 / 3)
        chosen = score.topk(min(SITES_ASKED, len(score))).indices
        boxes = torch.cat([level.boxes() for level in part.levels])[chosen].double()
        world = torch.from_numpy(part.manhattan.boxes_to_world(boxes.numpy()))
        mine = torch.from_numpy(part.core.contains(world[:, :3].numpy()))
        if not len(world) or not len(truth):
            continue
        value = torch.where((box_iou(world, truth) > HIT_IOU) & mine[:, None], score[chosen].double()[:, None], 0.0)
        top, row = value.max(0)
        better = top > best
        best[better], features[better] = top[better], flat[chosen[row[better]]]
    found = (best > 0).nonzero()[:, 0].tolist()
    return features[found], [room.labels[i] for i in found]


# --------------------------------------------------------------------------------------------------------------------
# the two classifiers


class LinearNames(nn.Module):
    """A row of weights per name."""

    def __init__(self, channels: int, names: int) -> None:
        super().__init__()
        self.rows = nn.Linear(channels, names)
        nn.init.constant_(self.rows.bias, -4.6)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) features -> (N, K) logits."""
        out: Tensor = self.rows(x)
        return out


class TextNames(nn.Module):
    """Cosine of the projected features to the embedding of each name, times a temperature, plus an offset."""

    def __init__(self, channels: int, embeddings: Tensor) -> None:
        super().__init__()
        self.project = nn.Linear(channels, embeddings.shape[1])
        self.embeddings = embeddings
        self.log_scale = nn.Parameter(torch.tensor(2.3))
        self.offset = nn.Parameter(torch.tensor(-4.6))

    def forward(self, x: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """(N, C) features -> (N, K) logits of the names of ``embeddings`` (K, E); default those learned from."""
        wanted = self.embeddings if embeddings is None else embeddings
        return self.log_scale.exp() * functional.normalize(self.project(x), dim=1) @ wanted.T + self.offset


def fit(model: nn.Module, x: Tensor, label: Tensor, steps: int, rate: float, seed: int = 0) -> float:
    """Learn (N, C) standardised features -> (N,) names, -1 = none of them; returns the mean loss of the last steps."""
    draw = torch.Generator().manual_seed(seed)
    solver = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(solver, rate, total_steps=steps)
    losses = []
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=draw)
        logits = model(x[rows])
        wanted = functional.one_hot(label[rows] + 1, logits.shape[1] + 1)[:, 1:].float()
        loss = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / BATCH
        solver.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        solver.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return float(np.mean(losses[-50:]))


# --------------------------------------------------------------------------------------------------------------------
# figures


@dataclass(frozen=True, eq=False)
class Judged:
    """The homes that are judged: things with a box, and whole scenes."""

    features: Tensor
    labels: list[str]
    rooms: list[RoomFeatures]


def accuracy(classify: Classify, judged: Judged, names: Sequence[str], only: Sequence[str] | None = None) -> float:
    """Percent of things called right among ``names``; ``only``: of things of these names."""
    asked = [i for i, label in enumerate(judged.labels) if label in (names if only is None else only)]
    if not asked:
        return float("nan")
    said = classify(judged.features[asked]).argmax(1).tolist()
    return 100.0 * float(np.mean([names[k] == judged.labels[i] for k, i in zip(said, asked, strict=True)]))


def average_precision(classify: Classify, judged: Judged, names: Sequence[str], inference: Predictor) -> float:
    """AP25 in percent over the names that the scenes have."""
    index = {name: k for k, name in enumerate(names)}
    found, truth = {}, {}
    for room in judged.rooms:
        rows = [i for i, label in enumerate(room.labels) if label in index]
        truth[room.name] = SceneBoxes(room.boxes[rows], np.array([index[room.labels[i]] for i in rows], np.int64))
        found[room.name] = boxes_by(room.parts, classify, inference)
    return float(detection_metrics(found, truth, names)["AP25"])


def left_out(train: Sequence[Sites], judged: Judged, count: int, seed: int = 5) -> list[str]:
    """Names to leave out: at random among those with three things or more to be judged."""
    known = {label for home in train for label in home.labels}
    common = sorted(n for n in known if judged.labels.count(n) >= 3)
    drawn = np.random.default_rng(seed).permutation(len(common))[:count]
    return sorted(common[i] for i in drawn)


def study(
    train: Sequence[Sites], judged: Judged, inference: Predictor, steps: int, hold_out: int, ap: bool
) -> dict[str, Any]:
    """All figures."""
    names = sorted({label for home in train for label in home.labels})
    index = {name: k for k, name in enumerate(names)}
    x = torch.cat([home.features for home in train])
    label = torch.cat(
        [torch.tensor([*(index[n] for n in home.labels), -1])[home.thing.clamp(min=-1)] for home in train]
    )
    mean, spread = x.mean(0), x.std(0).clamp_min(1e-6)
    z = (x - mean) / spread
    with torch.inference_mode():
        embeddings = text_encoder("minilm").encode(names).sentence.clone()
    embeddings = torch.tensor(embeddings.numpy())

    def learned(model: nn.Module, keep: Tensor, columns: list[int] | None = None) -> tuple[float, float]:
        target = label if columns is None else torch.tensor([*columns, -1])[label]
        started = time.perf_counter()
        loss = fit(model, z[keep], target[keep], steps, 0.01)
        return loss, time.perf_counter() - started

    def over(model: nn.Module, *more: Tensor) -> Classify:
        def classify(features: Tensor) -> Tensor:
            with torch.inference_mode():
                out: Tensor = model((features - mean) / spread, *more)
            return out

        return classify

    everything = torch.ones(len(z), dtype=torch.bool)
    rows = classifier_rows(inference)
    own = Rows(rows.kernel[:, [inference.classes.index(n) for n in names]],
               rows.bias[[inference.classes.index(n) for n in names]])  # fmt: skip
    models: dict[str, Classify] = {"shipped": lambda f: f @ own.kernel + own.bias}
    table: dict[str, dict[str, float]] = {"shipped": {}}
    for name, model in (
        ("linear", LinearNames(z.shape[1], len(names))),
        ("text", TextNames(z.shape[1], embeddings)),
    ):
        torch.manual_seed(0)
        loss, seconds = learned(model, everything)
        report.console.print(f"{name}: loss {loss:.4f} after {steps} steps, {seconds:.0f} s")
        models[name] = over(model)
        table[name] = {"loss": loss, "seconds": seconds}
    for name, classify in models.items():
        table[name]["accuracy"] = accuracy(classify, judged, names)
        if ap:
            table[name]["AP25"] = average_precision(classify, judged, names, inference)
    held = left_out(train, judged, hold_out)
    rest = [n for n in names if n not in held]
    columns = [rest.index(n) if n in rest else -1 for n in names]
    held_rows = torch.tensor([n in held for n in names] + [False])[label]
    zero = TextNames(z.shape[1], embeddings[[index[n] for n in rest]])
    learned(zero, ~held_rows, columns)
    linear = LinearNames(z.shape[1], len(rest))
    learned(linear, ~held_rows, columns)
    held_embeddings = embeddings[[index[n] for n in held]]
    nearest = functional.normalize(embeddings, dim=1)
    similar = nearest[[index[n] for n in held]] @ nearest[[index[n] for n in rest]].T

    def by_nearest(features: Tensor) -> Tensor:
        """The linear classifier's probabilities of known names, carried to new ones by the names' likeness."""
        return over(linear)(features).softmax(1) @ similar.T

    zero_shot = {
        "names": held,
        "things": sum(label in held for label in judged.labels),
        "chance": 100.0 / max(len(held), 1),
        "text, among the new names": accuracy(over(zero, held_embeddings), judged, held),
        "text, among all names": accuracy(over(zero, embeddings), judged, names, held),
        "nearest known name, among the new names": accuracy(by_nearest, judged, held),
        "text, known names": accuracy(over(zero, embeddings), judged, names, rest),
        "linear, known names": accuracy(over(linear), judged, rest),
    }
    return {
        "names": len(names),
        "sites": len(z),
        "examples": int((label >= 0).sum()),
        "things_judged": len(judged.labels),
        "steps": steps,
        "classifiers": [{"classifier": name, **row} for name, row in table.items()],
        "zero_shot": zero_shot,
    }


# --------------------------------------------------------------------------------------------------------------------
# the program


def _sites_of_home(data: EmbodiedScanDataset, name: str, views: int, inference: Predictor, seed: int) -> Sites:
    return sites_of(see(data, name, views, inference), seed)


def _cached(cache: Path | None, key: str, make: Callable[[], Any]) -> Any:
    """A home that was looked at before, from ``cache``: files of this program alone are read there."""
    if cache is None:
        return make()
    file = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    if file.is_file():
        with np.load(file) as arrays:
            features, thing = torch.from_numpy(arrays["features"]), torch.from_numpy(arrays["thing"])
            return Sites(features, thing, tuple(str(n) for n in arrays["labels"]))
    sites = make()
    cache.mkdir(parents=True, exist_ok=True)
    labels = np.array(sites.labels, np.str_)
    np.savez_compressed(file, features=sites.features.numpy(), thing=sites.thing.numpy(), labels=labels)
    return sites


def main() -> int:
    """Learn, judge, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--train", type=Path, help="to learn from, EmbodiedScan layout; default: simulated")
    parser.add_argument("--val", type=Path, help="homes to judge by")
    parser.add_argument("--weights", default="tiny", help="shipped name or file")
    parser.add_argument("--homes", type=int, default=0, help="to learn from; 0 = all")
    parser.add_argument("--judged", type=int, default=0, help="to judge by; 0 = all")
    parser.add_argument("--views", type=int, default=20, help="of each home")
    parser.add_argument("--steps", type=int, default=3000, help=f"of {BATCH} sites")
    parser.add_argument("--hold-out", type=int, default=10, help="names to leave out of the learning")
    parser.add_argument("--no-ap", action="store_true", help="without AP25 of whole scenes")
    parser.add_argument("--cache", type=Path, help="folder for features of homes that were looked at")
    options = report.parse(parser, views=5, steps=20, hold_out=2)
    if options.train is None:
        train, val = (2, 1) if options.quick else (24, 8)
        options.train = simulated_homes(report.OUT / f"homes_{train}_{val}", train, val, options.views)
    inference = load_inference(options.weights)
    torch.manual_seed(0)

    def names_of(folder: Path, split: str, most: int) -> tuple[EmbodiedScanDataset, list[str]]:
        data = EmbodiedScanDataset(folder, split)
        return data, [data[i].sample_idx for i in range(len(data) if most == 0 else min(most, len(data)))]

    data, which = names_of(options.train, "train", options.homes)
    learned = []
    for k, name in enumerate(which):
        key = f"{options.train.resolve()} {name} {options.views} {options.weights}"
        make = partial(_sites_of_home, data, name, options.views, inference, k)
        learned.append(_cached(options.cache, key, make))
    data, which = names_of(options.val or options.train, "val", options.judged)
    rooms = [see(data, name, options.views, inference) for name in which]
    asked = [asked_sites(room, inference) for room in rooms]
    things = Judged(torch.cat([f for f, _ in asked]), [n for _, labels in asked for n in labels], rooms)
    result = study(learned, things, inference, options.steps, options.hold_out, not options.no_ap)
    report.show(f"{result['names']} names, {len(learned)} homes, percent", result["classifiers"])
    report.show("names that were left out, percent", result["zero_shot"])
    result |= {"homes": len(learned), "homes_judged": len(rooms), "views": options.views, "weights": options.weights}
    report.write(options, {**result, "things_seen": sum(len(room.labels) for room in rooms)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
