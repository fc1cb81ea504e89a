"""Train the image encoder: the category at every cell of every level of the feature maps.

Synthetic homes have the instance of every pixel, so the encoder can be trained from scratch on their images and then be
frozen: a keyframe's features are computed once, in training as on the robot. Colour augmentation is strong, so that the
encoder also works on real images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from embodied_perceptron.nn.image_encoder import PACKAGED_WEIGHTS, PyramidEncoder, ResNetEncoder
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import NetworkConfig, network_config
from embodied_perceptron.recordings.image_codec import COLOR_AS_STORED
from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron.weights.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, EmbodiedScanDataset
from embodied_perceptron_training.training.criteria import Losses, Reduce
from embodied_perceptron_training.training.nested import to_device
from embodied_perceptron_training.training.task import JoinedSources, SampleError
from embodied_perceptron_training.training.training_run import NetworkChoice, TrainingRun

IMAGE_PREFIXES = ("image_encoder.", "image_projection.")


@dataclass(frozen=True)
class LabelledImage:
    """One crop: (3, h, w) uint8 colour and (h, w) int64 category (position in ALL_CATEGORIES), -1 = unknown."""

    color: Tensor
    labels: Tensor


class LabelledViews:
    """Views of synthetic homes with the category of each pixel.

    Args:
        root, split: of the data set.
        size: (h, w) of the crops.
        augment: random crops, mirrors and colours; otherwise the whole view, resized.

    Raises :class:`DatasetError` when the homes have no pixel labels (only generated ones have them).
    """

    def __init__(self, root: Path, split: str, size: tuple[int, int], augment: bool) -> None:
        self.dataset = EmbodiedScanDataset(root, split)
        self.size = size
        self.augment = augment
        self._views = [(i, j) for i in range(len(self.dataset)) for j in range(len(self.dataset[i].images))]
        self._tables: dict[int, NDArray[np.int64]] = {}
        if not self._views:
            raise DatasetError(f"{root} has no views in split {split}")
        self._table(0)

    def __len__(self) -> int:
        return len(self._views)

    def _table(self, scan: int) -> NDArray[np.int64]:
        """(objects + 1,) category of each instance id of a scan; -1 = not annotated."""
        if scan not in self._tables:
            name = self.dataset[scan].sample_idx
            path = self.dataset.root / name / "record.json"
            if not path.exists():
                raise DatasetError(f"{path} is missing: images are trained on generated homes, which label every pixel")
            instances = json.loads(path.read_text())["instances"]
            index = {category: k for k, category in enumerate(ALL_CATEGORIES)}
            table = np.full(2 + max((i["object_id"] for i in instances), default=0), -1, np.int64)
            for instance in instances:
                table[instance["object_id"] + 1] = index[instance["label"]]
            self._tables[scan] = table
        return self._tables[scan]

    def sample(self, index: int, rng: np.random.Generator) -> LabelledImage:
        """See :class:`~embodied_perceptron_training.training.task.SampleSource`."""
        scan, view = self._views[index]
        image = self.dataset[scan].images[view]
        stored = cv2.imread(str(image.color_path), COLOR_AS_STORED)
        ids_path = image.color_path.parent.parent / "ids" / f"{image.color_path.stem}.png"
        ids = cv2.imread(str(ids_path), cv2.IMREAD_UNCHANGED)
        if stored is None or ids is None or stored.shape[:2] != ids.shape:
            raise SampleError(str(image.color_path), "the image or its pixel labels are missing or do not fit")
        table = self._table(scan)
        if int(ids.max(initial=0)) >= len(table):
            table = np.concatenate([table, np.full(int(ids.max()) + 1 - len(table), -1)])
        labels = table[ids]
        color: NDArray[Any] = np.ascontiguousarray(stored[..., ::-1])
        if self.augment:
            color, labels = _crop(color, labels, self.size, rng)
            color = vary_colors(color, rng)
        else:
            h, w = self.size
            color = cv2.resize(color, (w, h), interpolation=cv2.INTER_LINEAR)
            labels = cv2.resize(labels.astype(np.int16), (w, h), interpolation=cv2.INTER_NEAREST).astype(np.int64)
        return LabelledImage(
            torch.from_numpy(np.ascontiguousarray(color)), torch.from_numpy(np.ascontiguousarray(labels))
        )


def _crop(
    color: NDArray[np.uint8], labels: NDArray[np.int64], size: tuple[int, int], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A random part of the view, resized to ``size``, mirrored with probability 0.5."""
    H, W = labels.shape
    share = rng.uniform(0.45, 1.0)
    h, w = max(16, int(H * share)), max(16, int(W * share * rng.uniform(0.9, 1.1)))
    h, w = min(h, H), min(w, W)
    top, left = int(rng.integers(0, H - h + 1)), int(rng.integers(0, W - w + 1))
    color, labels = color[top : top + h, left : left + w], labels[top : top + h, left : left + w]
    out = (size[1], size[0])
    color = np.asarray(cv2.resize(color, out, interpolation=cv2.INTER_LINEAR), np.uint8)
    labels = cv2.resize(labels.astype(np.int16), out, interpolation=cv2.INTER_NEAREST).astype(np.int64)
    if rng.random() < 0.5:
        color, labels = color[:, ::-1], labels[:, ::-1]
    return color, labels


def vary_colors(color: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Vary light and camera: gains per channel, contrast, gamma, saturation, blur, grain."""
    x: NDArray[Any] = color.astype(np.float32) / 255.0
    x = x ** rng.uniform(0.7, 1.4)
    x = (x - 0.5) * rng.uniform(0.7, 1.3) + 0.5 + rng.uniform(-0.12, 0.12)
    x = x * rng.uniform(0.85, 1.15, 3).astype(np.float32)
    gray = x.mean(axis=2, keepdims=True)
    x = gray + (x - gray) * rng.uniform(0.3, 1.4)
    if rng.random() < 0.1:
        x = np.repeat(gray, 3, axis=2)
    if rng.random() < 0.3:
        x = cv2.GaussianBlur(x, (0, 0), rng.uniform(0.4, 1.2))
    if rng.random() < 0.5:
        x = x + rng.normal(0.0, rng.uniform(0.0, 0.04), x.shape).astype(np.float32)
    varied: NDArray[np.uint8] = (np.clip(x, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
    return varied


class ImageModel(nn.Module):
    """Encoder, projections and one classifier per level. The first two have the names of the whole network."""

    def __init__(self, config: NetworkConfig, pretrained: bool = False) -> None:
        super().__init__()
        network = PerceptionNetwork(config, pretrained_images=pretrained)
        if network.image_encoder is None:
            raise ValueError(f"a {config.modality} network has no images to train on")
        self.config = config
        self.image_encoder = network.image_encoder
        self.image_projection = network.image_projection
        self.classify = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(c, len(ALL_CATEGORIES), 1)) for c in network.image_channels
        )

    def forward(self, color: Tensor) -> list[Tensor]:
        """(B, h, w, 3) uint8 -> (B, categories, h_l, w_l) logits per level."""
        images = self.image_encoder.prepare(color, (color.shape[1], color.shape[2]))
        maps = self.image_encoder(images)
        if self.image_projection is not None:
            maps = [project(m) for project, m in zip(self.image_projection, maps, strict=True)]
        return [classify(m) for classify, m in zip(self.classify, maps, strict=True)]


class ImageTask:
    """``train --task images``. See the module docstring and
    :class:`~embodied_perceptron_training.training.task.TrainingTask`."""

    best_metric = "pixel_accuracy"

    def __init__(self, run: TrainingRun) -> None:
        choice, val = run.network, run.data.val
        if choice.images not in ("", "imagenet"):
            raise ValueError(f"task images starts from imagenet or from --weights, got --set images={choice.images}")
        torch.manual_seed(run.seed)
        config = network_config(choice.preset, "detection", choice.modality)
        check_packaged_images(config, choice)
        self.model: nn.Module = ImageModel(config, pretrained=choice.images == "imagenet")
        if choice.weights is not None:
            load_images(self.model, load_checkpoint(choice.weights).state)
        given, full = run.samples.crop_size, config.image.size
        h, w = map(int, given.lower().split("x")) if given else (full[0] // 2, full[1] // 2)
        self.size = (h, w)
        self.pixels = run.samples.pixels
        folders = run.data.training_folders
        self.samples = JoinedSources([LabelledViews(folder, "train", self.size, augment=True) for folder in folders])
        self._validation = None if val is None else LabelledViews(val, "val", config.image.size, False)

    def collate(self, samples: Sequence[LabelledImage]) -> LabelledImage:
        """A batch."""
        return LabelledImage(torch.stack([s.color for s in samples]), torch.stack([s.labels for s in samples]))

    def losses(self, model: nn.Module, batch: LabelledImage, reduce: Reduce) -> Losses:
        """Cross entropy per level over random cells; rare categories are drawn more often than they appear."""
        logits = model(batch.color)
        return {f"level{i}": self._level(scores, batch.labels, reduce) for i, scores in enumerate(logits)}

    def _level(self, logits: Tensor, labels: Tensor, reduce: Reduce) -> Tensor:
        wanted = _at_level(labels, logits.shape[2:]).flatten()
        known = (wanted >= 0).nonzero()[:, 0]
        if len(known) == 0:
            return logits.sum() * 0.0
        frequency = torch.bincount(wanted[known], minlength=len(ALL_CATEGORIES)).double()
        weight = frequency[wanted[known]] ** -0.5
        count = min(len(known), self.pixels * len(labels))
        rows = known[torch.multinomial(weight, count, replacement=True)]
        scores = logits.permute(0, 2, 3, 1).flatten(0, 2)[rows]
        total = functional.cross_entropy(scores, wanted[rows], reduction="sum")
        return total / reduce(scores.new_tensor(float(count)))

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy of the cells in percent, per level; every fifth view."""
        if self._validation is None:
            return {}
        right: dict[int, float] = {}
        total: dict[int, float] = {}
        rng, device = np.random.default_rng(0), next(model.parameters()).device
        for index in range(0, len(self._validation), 5):
            sample = to_device(self._validation.sample(index, rng), device)
            for level, scores in enumerate(model(sample.color[None])):
                wanted = _at_level(sample.labels[None], scores.shape[2:])
                known = wanted >= 0
                right[level] = right.get(level, 0.0) + float((scores.argmax(1) == wanted)[known].sum())
                total[level] = total.get(level, 0.0) + float(known.sum())
        figures = {f"pixel_accuracy_{level}": 100.0 * right[level] / max(total[level], 1.0) for level in right}
        return {"pixel_accuracy": sum(figures.values()) / len(figures), **figures}

    def save_weights(self, path: Path, model: nn.Module, extra: Mapping[str, Any]) -> None:
        """Write encoder and projections with their names in the whole network, for :func:`load_images`."""
        state = {k: v for k, v in model.state_dict().items() if k.startswith(IMAGE_PREFIXES)}
        save_checkpoint(path, Checkpoint(state, {"images": True}, (), dict(extra)))


def check_packaged_images(config: NetworkConfig, choice: NetworkChoice) -> None:
    """Raise ``ValueError`` where ``imagenet`` is requested and no package has weights of that encoder."""
    asked = {"images": choice.images, "pretrained": choice.pretrained}
    option = next((name for name, value in asked.items() if value == "imagenet"), None)
    if option and config.uses_images and config.image.encoder not in PACKAGED_WEIGHTS:
        raise ValueError(
            f"--set {option}=imagenet: no package has ImageNet weights of {config.image.encoder} (preset "
            f"{config.name}), only of {', '.join(sorted(PACKAGED_WEIGHTS))}. Give a file with --set {option}=FILE, or "
            "train it from random weights with --set pretrained=random"
        )


def start_images(network: PerceptionNetwork, pretrained: str) -> None:
    """Initialise the image encoder from ``pretrained``, see :class:`NetworkChoice`; ``imagenet`` is loaded already.

    Raises ``ValueError`` for a network without images, an encoder that is no ResNet, and a file that does not fit;
    ``OSError`` for an unreadable one.
    """
    encoder = network.image_encoder
    if encoder is None:
        raise ValueError(f"option pretrained: a {network.config.modality} network has no image encoder")
    backbone = encoder.backbone if isinstance(encoder, PyramidEncoder) else encoder
    if pretrained != "imagenet":
        if not isinstance(backbone, ResNetEncoder):
            raise ValueError(f"option pretrained={pretrained}: {network.config.image.encoder} is no ResNet")
        try:
            state = load_file(pretrained)
        except SafetensorError as error:
            raise ValueError(f"option pretrained={pretrained}: no safetensors file: {error}") from error
        own = {k: v for k, v in backbone.state_dict().items() if not k.endswith("num_batches_tracked")}
        wrong = [k for k, v in own.items() if k not in state or state[k].shape != v.shape]
        if wrong:
            theirs = tuple(state[wrong[0]].shape) if wrong[0] in state else "none"
            ours = tuple(own[wrong[0]].shape)
            raise ValueError(
                f"option pretrained={pretrained}: {wrong[0]} is {theirs}, not {ours} ({len(wrong)} tensors differ); "
                f"preset {network.config.name} has a ResNet-50 of base width {network.config.image.base_width}"
            )
        backbone.load_state_dict({k: state[k] for k in own}, strict=False)
    backbone.frozen_norm = True
    backbone.train(backbone.training)


def load_images(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a file of :meth:`ImageTask.save_weights` (or the same part of a whole network's state) into ``network``.

    Raises ``ValueError`` when a key is missing or has another shape.
    """
    own = {k: v for k, v in network.state_dict().items() if k.startswith(IMAGE_PREFIXES)}
    wrong = [k for k, v in own.items() if k not in state or state[k].shape != v.shape]
    if wrong:
        raise ValueError(f"image weights do not fit this preset: {wrong[0]} and {len(wrong) - 1} others")
    network.load_state_dict({k: state[k].to(v.dtype) for k, v in own.items()}, strict=False)


def views_for_projections(datasets: Sequence[EmbodiedScanDataset], count: int = 64) -> list[NDArray[np.uint8]]:
    """At most ``count`` (H, W, 3) uint8 images, evenly over all views of all scans."""
    views = [(scan, k) for dataset in datasets for scan in dataset for k in range(len(scan.images))]
    rows = np.unique(np.linspace(0, len(views) - 1, min(count, len(views))).astype(int))
    return [views[row][0].load_view(views[row][1]).color for row in rows]


@torch.no_grad()
def fit_projections(
    network: PerceptionNetwork, teacher: PerceptionNetwork, views: Sequence[NDArray[np.uint8]], ridge: float = 1e-3
) -> list[float]:
    """Set the projections of ``network`` by ridge regression so that they reproduce the image features of ``teacher``.

    Both networks need projections to the same channels. ``views`` are (H, W, 3) uint8. Returns the share of the
    teacher's variance that each level reproduces in these views.
    """
    assert network.image_encoder is not None
    assert network.image_projection is not None
    shares, pairs, encoder = [], [], network.image_encoder.eval()
    for color in views:
        batch = torch.from_numpy(np.ascontiguousarray(color))[None]
        own = encoder(encoder.prepare(batch, network.config.image.size))
        theirs = [
            functional.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)
            for x, y in zip(own, teacher.encode_images(batch), strict=True)
        ]
        pairs.append((own, theirs))
    for level, conv in enumerate(network.image_projection):
        x, y = (torch.cat([pair[k][level].flatten(2)[0].T for pair in pairs]).double() for k in (0, 1))
        mean_x, mean_y = x.mean(0), y.mean(0)
        x, y = x - mean_x, y - mean_y
        gram = x.T @ x
        gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        weight = torch.linalg.solve(gram, x.T @ y)  # (C, P)
        conv.weight.copy_(weight.T[:, :, None, None])
        conv.bias.copy_(mean_y - mean_x @ weight)
        shares.append(1.0 - float((y - x @ weight).square().sum() / y.square().sum().clamp_min(1e-12)))
    return shares


def _at_level(labels: Tensor, size: torch.Size) -> Tensor:
    """(B, h, w) -> the label at the centre of each cell of a map of ``size``."""
    sh, sw = labels.shape[1] // size[0], labels.shape[2] // size[1]
    return labels[:, sh // 2 :: sh, sw // 2 :: sw]
