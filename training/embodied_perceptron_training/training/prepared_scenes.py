"""Scenes prepared for training: everything constant is computed once per scene and kept on the disk.

A prepared scene is the output of the deployed pipeline on all its views: the voxels of the map (mean point, colour,
hits), the depth images for the occlusion test, the image encoder's features (where the encoder is frozen), the truth,
and the sentences with their text features. Each training sample then moves it (:mod:`.augment`) and cuts a window,
which takes milliseconds instead of seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from embodied_perceptron.config import KeyframeConfig, VolumeConfig
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.nn.presets import PRESETS, network_config
from embodied_perceptron.nn.text_encoder import TextEncoder
from embodied_perceptron.nn.view_fusion import view_projection
from embodied_perceptron.recordings.files import atomic_path
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron_training.datasets.embodiedscan import (
    DatasetError,
    EmbodiedScanDataset,
    Prompt,
    Scan,
    prompt_of,
)
from embodied_perceptron_training.datasets.grounded_prompts import grounded_prompts
from embodied_perceptron_training.evaluation.runner.scenes import choose_views
from embodied_perceptron_training.homes.prompts import PromptSpec, make_prompts
from embodied_perceptron_training.homes.relations import labelled_scene
from embodied_perceptron_training.training.domain_randomisation import randomised_image

PREPARED_VERSION = 3
MAX_DEPTH_M = 5.0
_TEXT_BATCH = 64
_TEXT_ENCODERS = sorted({g.text_encoder for p in PRESETS if (g := network_config(p, "grounding").grounding)})


@dataclass(frozen=True, eq=False)
class FusedVoxels:
    """Voxels of a map: (M, 3) float32 mean point of each, world; (M, 3) uint8 mean colour; (M,) int32 hits."""

    points_m: torch.Tensor
    colors: torch.Tensor
    hits: torch.Tensor


@dataclass(frozen=True, eq=False)
class PreparedScene:
    """One scene, V views. ``boxes``: all instances, then the unlabelled objects, whose label is :data:`UNNAMED`.

    Attributes:
        name: sample_idx.
        views: positions of the V views in the scan.
        voxels: the map of all of them; its floor is at z = 0, as in the data set's world frames.
        boxes: (G, 9) float64
        labels: (G,) names.
        visible: (V, G) bool.
        cameras: (V, 4, 4) T_world_camera.
        projections: (V, 3, 4) float64 to pixels of ``image_size``.
        image_size: (h, w).
        depth_mm: (V, H, W) uint16.
        features: per level (V, h, w, C) float16; empty without images.
        occupancy: (X, Y, Z) uint8, unobserved cells 255
        prompts: sentences.
        text: per sentence (T, C) float16 tokens and (T, 2) spans; empty without grounding
    """

    name: str
    views: tuple[int, ...]
    voxels: FusedVoxels
    boxes: NDArray[np.float64]
    labels: tuple[str, ...]
    visible: NDArray[np.bool_]
    cameras: NDArray[np.float64]
    projections: NDArray[np.float64]
    image_size: tuple[int, int]
    depth_mm: torch.Tensor
    features: tuple[torch.Tensor, ...]
    occupancy: NDArray[np.uint8] | None
    prompts: tuple[Prompt, ...]
    text: tuple[tuple[torch.Tensor, torch.Tensor], ...]


@dataclass(frozen=True)
class Preparation:
    """Settings that prepared scenes depend on, beside the data."""

    voxel_size_m: float = 0.02  # of the map
    views: int = 20  # at most this many, evenly spaced over the scan
    image_encoder: str = ""  # SHA-256 of the frozen encoder's weights; empty without image features
    view_bytes: int = field(default=0, compare=False)  # of the image features of one view
    image_size: tuple[int, int] | None = field(default=None, compare=False)  # (h, w) of its input; None = any
    text_encoder: str = ""  # its name; empty without language
    pictures: int = 0  # number of further sets of image features, of randomised images
    prompts: tuple[str, ...] = ("vg",)  # names of the files of sentences, see :func:`sentences_of`

    def key(self, name: str, images: int, *parts: str) -> str:
        """File name for the part of a scene that depends on the fields ``parts`` and all others but the encoders. Views
        are limited to the scene's ``images``, so that settings with more views share files."""
        views = min(self.views, images)
        values = {"voxel_size_m": self.voxel_size_m, "views": views, **{p: getattr(self, p) for p in parts}}
        if values.get("text_encoder") and self.prompts != ("vg",):
            values["prompts"] = self.prompts
        text = json.dumps([PREPARED_VERSION, name, values], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


class SceneCache:
    """Prepare scenes on demand and keep them below ``folder``.

    Args:
        dataset: source of the scenes.
        folder: of the prepared files; may be shared by several runs and processes.
        preparation: settings.
        inference: encodes the views when ``preparation.image_encoder`` is set.
        text_encoder: encodes the sentences when ``preparation.text_encoder`` is set.
    """

    def __init__(
        self,
        dataset: EmbodiedScanDataset,
        folder: str | Path,
        preparation: Preparation,
        inference: Predictor | None = None,
        text_encoder: TextEncoder | None = None,
    ) -> None:
        self.dataset = dataset
        self.folder = Path(folder)
        self.preparation = preparation
        self._inference = inference
        self._text_encoder = text_encoder
        self._prompts: dict[str, list[Prompt]] = {}
        if preparation.text_encoder:
            for prompt in (p for name in preparation.prompts for p in sentences_of(dataset, name)):
                self._prompts.setdefault(prompt.scan_id, []).append(prompt)

    def __len__(self) -> int:
        return len(self.dataset)

    def view_count(self, index: int) -> int:
        """Views of scene ``index``."""
        return min(self.preparation.views, self.dataset.image_count(index))

    def paths(self, index: int) -> tuple[Path, Path | None]:
        """Files of scene ``index`` and of its image features, which depend on the encoder.

        A task without language uses a scene with sentences if one exists.
        """
        scan, p = self.dataset[index], self.preparation
        name, images = scan.sample_idx, len(scan.images)
        scene = self.folder / f"{p.key(name, images, 'text_encoder')}.safetensors"
        if not p.text_encoder and not scene.exists():
            spoken = (dataclasses.replace(p, text_encoder=t).key(name, images, "text_encoder") for t in _TEXT_ENCODERS)
            scene = next((s for k in spoken if (s := self.folder / f"{k}.safetensors").exists()), scene)
        return scene, self._features_path(index, 0) if p.image_encoder else None

    def _features_path(self, index: int, variant: int) -> Path:
        scan = self.dataset[index]
        key = self.preparation.key(scan.sample_idx, len(scan.images), "image_encoder")
        return self.folder / f"{key}.features{variant or ''}.safetensors"

    def check_room(self) -> None:
        """Raise ``OSError`` with the bytes that the missing image features need, where the disk has less room."""
        p, needed = self.preparation, 0
        for index in range(len(self) if p.image_encoder and p.view_bytes else 0):
            missing = sum(not self._features_path(index, variant).exists() for variant in range(p.pictures + 1))
            needed += missing * min(p.views, len(self.dataset[index].images)) * p.view_bytes
        there = next(parent for parent in (self.folder, *self.folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(there).free
        if needed > free:
            raise OSError(
                f"the image features of {len(self)} scenes need {needed / 1e9:.2f} GB in {self.folder}, where "
                f"{free / 1e9:.2f} GB are free: free some, name another folder by --set cache=FOLDER, or use fewer "
                "--set pictures"
            )

    def __getitem__(self, index: int) -> PreparedScene:
        """Scene ``index``, read from the disk if it exists. Raises :class:`DatasetError` naming a corrupt file, and
        one with image features of another encoder or variant."""
        self.prepare(index)
        path, features = self.paths(index)
        try:
            return _read(path, features, self.preparation)
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise DatasetError(f"{path} or its features are damaged ({error}): delete them") from error

    def prepare(self, index: int) -> None:
        """Make the missing files of scene ``index``. Raises :class:`DatasetError` for a corrupt scene."""
        path, features = self.paths(index)
        missing = []
        if features is not None:
            every = [(v, self._features_path(index, v)) for v in range(self.preparation.pictures + 1)]
            missing = [(v, p) for v, p in every if not p.exists()]
        if path.exists() and not missing:
            return
        scan = self.dataset[index]
        if not scan.images:
            raise DatasetError(f"{scan.sample_idx} has no images")
        self.folder.mkdir(parents=True, exist_ok=True)
        chosen = choose_views(len(scan.images), self.preparation.views)
        posed = [posed_view(scan, i, n) for n, i in enumerate(chosen)]
        if not path.exists():
            tensors, meta = self._make(scan, chosen, posed)
            with atomic_path(path) as temporary:
                save_file(tensors, temporary, {"scene": json.dumps(meta)})
        for variant, target in missing:
            assert self._inference is not None
            views = [self._inference.view(p) for p in _randomised(scan.sample_idx, posed, variant)]
            levels = {f"{i}": torch.stack([v.levels[i] for v in views]) for i in range(len(views[0].levels))}
            with atomic_path(target) as temporary:
                made = {"encoder": self.preparation.image_encoder, "variant": str(variant)}
                save_file(levels, temporary, {"image_size": json.dumps(views[0].image_size), **made})

    def randomised_features(self, scene: PreparedScene, variant: int) -> tuple[torch.Tensor, ...]:
        """:attr:`PreparedScene.features` of the scene's images in randomisation ``variant`` (from 1)."""
        index = self.dataset.position(scene.name)
        self.prepare(index)
        return _read_features(self._features_path(index, variant), self.preparation, variant)[0]

    def _make(
        self, scan: Scan, chosen: Sequence[int], posed: Sequence[PosedFrame]
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        voxels = self._voxels(posed)
        if not any((p.frame.depth_m > 0).any() for p in posed):
            raise DatasetError(f"{scan.sample_idx}: its views have no depth")
        named = len(scan.labels)
        visible = np.zeros((len(chosen), named + len(scan.unlabelled)), bool)
        for n, i in enumerate(chosen):
            visible[n, list(scan.images[i].visible_ids)] = True
            visible[n, [named + k for k in scan.images[i].visible_unlabelled]] = True
        size = posed[0].frame.color.shape[:2]
        tensors = {
            **vars(voxels),
            "boxes": torch.from_numpy(np.concatenate([scan.boxes, scan.unlabelled])),
            "visible": torch.from_numpy(visible),
            "cameras": torch.from_numpy(np.stack([p.T_world_camera for p in posed])),
            "depth_mm": torch.from_numpy(
                np.stack([np.clip(np.round(p.frame.depth_m * 1000.0), 0, 65535).astype(np.uint16) for p in posed])
            ),
            "projections": torch.stack([view_projection(p.T_world_camera, p.frame.intrinsics, size) for p in posed]),
        }
        occupancy = self._known_occupancy(scan, chosen)
        if occupancy is not None:
            tensors["occupancy"] = torch.from_numpy(occupancy)
        prompts = self._prompts.get(scan.sample_idx, [])
        tensors.update(self._texts(prompts))
        meta = {
            "name": scan.sample_idx,
            "labels": [*scan.labels, *(UNNAMED,) * len(scan.unlabelled)],
            "views": chosen,
            "image_size": list(size),
            "prompts": [vars(p) for p in prompts],
        }
        return tensors, meta

    def fuse(self, scene: PreparedScene, chosen: Sequence[int]) -> FusedVoxels:
        """The map of some of a scene's views (positions among them), in the order given."""
        scan = self.dataset.by_name(scene.name)
        return self._voxels([posed_view(scan, scene.views[v], n) for n, v in enumerate(chosen)])

    def colors(self, scene: PreparedScene, chosen: Sequence[int], size: tuple[int, int]) -> torch.Tensor:
        """(V, h, w, 3) uint8 images of some of a scene's views (positions among them), resized once to ``size``."""
        scan = self.dataset.by_name(scene.name)
        images = [resized(scan.load_view(scene.views[v]).color, *size) for v in chosen]
        return torch.from_numpy(np.stack(images))

    def occupancy(self, scene: PreparedScene, chosen: Sequence[int]) -> NDArray[np.uint8] | None:
        """:attr:`PreparedScene.occupancy` of some of a scene's views (positions among them)."""
        return self._known_occupancy(self.dataset.by_name(scene.name), [scene.views[v] for v in chosen])

    def _voxels(self, frames: Sequence[PosedFrame]) -> FusedVoxels:
        volume = FeatureVolume(
            VolumeConfig(
                voxel_size_m=self.preparation.voxel_size_m, radius_m=100.0, max_range_m=MAX_DEPTH_M, device="cpu"
            ),
            KeyframeConfig(max_count=1),
        )
        for frame in frames:
            volume.integrate(frame)
        snapshot = volume.snapshot()
        return FusedVoxels(
            torch.from_numpy(snapshot.mean_point_m.astype(np.float32)),
            torch.from_numpy(np.ascontiguousarray(snapshot.mean_color)),
            torch.from_numpy(snapshot.hits.astype(np.int32)),
        )

    def _known_occupancy(self, scan: Scan, chosen: Sequence[int]) -> NDArray[np.uint8] | None:
        """Truth, with 255 in cells that no view observes."""
        grid = self.dataset.occupancy(scan)
        if grid is None:
            return None
        masks = self.dataset.visible_cells(scan)
        if masks is not None:
            grid = np.where(np.any([masks[i] for i in chosen], axis=0), grid, 255).astype(np.uint8)
        return grid

    def _texts(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        if self._text_encoder is None or not prompts:
            return {}
        tensors = {}
        for start in range(0, len(prompts), _TEXT_BATCH):
            features = self._text_encoder.encode([p.text for p in prompts[start : start + _TEXT_BATCH]])
            for i, pad in enumerate(features.pad):
                length = int((~pad).sum())
                tensors[f"text{start + i}"] = features.tokens[i, :length].half()
                tensors[f"spans{start + i}"] = features.spans[i, :length].to(torch.int32)
        return tensors


def sentences_of(dataset: EmbodiedScanDataset, name: str) -> list[Prompt]:
    """Sentences of a file of the split (:meth:`EmbodiedScanDataset.prompts`), the phrases of all scans' ``grounded``
    texts (:mod:`~embodied_perceptron_training.datasets.grounded_prompts`), or those ``made`` from annotated boxes.
    Raises what reading them raises."""
    if name == "made":
        scenes = [(scan.sample_idx, labelled_scene(scan.boxes, scan.labels, scan.ids)) for scan in dataset]
        spec = PromptSpec(free_share=0.0)
        made = (make_prompts(scene, scan, spec, np.random.default_rng(k)) for k, (scan, scene) in enumerate(scenes))
        return [prompt_of(entry) for entries in made for entry in entries]
    if name != "grounded":
        return dataset.prompts(name)
    files = [(scan.sample_idx, dataset.root / "language" / f"{scan.sample_idx}.json") for scan in dataset]
    return [p for scan, file in files for p in grounded_prompts(file, scan)]


def posed_view(scan: Scan, index: int, order: int) -> PosedFrame:
    """View ``index`` as the ``order``-th frame of a robot.

    Colour is resized to the depth image where they differ (both are centred on the same ray).
    """
    view = scan.load_view(index)
    camera = view.depth_camera
    color = resized(view.color, camera.height, camera.width)
    frame = RgbdFrame(order + 1, "camera", np.ascontiguousarray(color), view.depth_m, camera)
    return PosedFrame(frame, view.T_world_camera)


def resized(color: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """(H, W, 3) -> (height, width, 3)."""
    if color.shape[:2] == (height, width):
        return color
    method = cv2.INTER_AREA if height * width < color.shape[0] * color.shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(color, (width, height), interpolation=method), np.uint8)


def _randomised(name: str, posed: Sequence[PosedFrame], variant: int) -> Sequence[PosedFrame]:
    """Frames with randomised images, the same on every machine; variant 0 = unchanged."""
    if variant == 0:
        return posed
    rng = np.random.default_rng([variant, zlib.crc32(name.encode())])
    kind = float(rng.random())
    return [
        dataclasses.replace(p, frame=dataclasses.replace(p.frame, color=randomised_image(p.frame.color, kind, rng)))
        for p in posed
    ]


def _read_features(
    path: Path, preparation: Preparation, variant: int
) -> tuple[tuple[torch.Tensor, ...], tuple[int, int]]:
    """Image features of a scene, and the (h, w) of their images. Raises :class:`DatasetError` where another image size,
    encoder or variant made them; files of older versions name the size alone."""
    with safe_open(str(path), "pt") as file:
        meta = file.metadata()
        size = json.dumps(preparation.image_size) if preparation.image_size else meta["image_size"]
        for name, wanted in (("image_size", size), ("encoder", preparation.image_encoder), ("variant", str(variant))):
            if meta.get(name, wanted) != wanted:
                raise DatasetError(
                    f"{path} has image features of {name} {meta[name]:.12}, this training reads {name} {wanted:.12}: "
                    "delete the file, or name another folder by --set cache=FOLDER"
                )
        h, w = json.loads(meta["image_size"])
        return tuple(file.get_tensor(name) for name in sorted(file.keys())), (int(h), int(w))


def _read(path: Path, features: Path | None, preparation: Preparation) -> PreparedScene:
    levels: tuple[torch.Tensor, ...] = ()
    size = None
    if features is not None:
        levels, size = _read_features(features, preparation, 0)
    with safe_open(str(path), "pt") as file:
        meta = json.loads(file.metadata()["scene"])
        names = set(file.keys())
        get = file.get_tensor
        prompts = tuple(_prompt(p) for p in meta["prompts"])
        own = meta["image_size"]
        size = own if size is None else size
        return PreparedScene(
            name=meta["name"],
            views=tuple(meta["views"]),
            voxels=FusedVoxels(get("points_m"), get("colors"), get("hits")),
            boxes=get("boxes").numpy(),
            labels=tuple(meta["labels"]),
            visible=get("visible").numpy(),
            cameras=get("cameras").numpy(),
            projections=resize_projections(get("projections").numpy(), (own[0], own[1]), (size[0], size[1])),
            image_size=(int(size[0]), int(size[1])),
            depth_mm=get("depth_mm"),
            features=levels,
            occupancy=get("occupancy").numpy() if "occupancy" in names else None,
            prompts=prompts,
            text=tuple((get(f"text{i}"), get(f"spans{i}")) for i in range(len(prompts))) if "text0" in names else (),
        )


def sample_points(
    projections: NDArray[np.float64], depth_mm: torch.Tensor, per_view: int, total: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(P, 3) world points of depth images, drawn without replacement: at most ``per_view`` of each, ``total`` of all.

    ``projections``: (V, 3, 4) to the pixels of the depth images; ``depth_mm``: (V, H, W), where 0 is no point.
    """
    parts = []
    for projection, depth in zip(projections, depth_mm.numpy(), strict=True):
        flat = np.flatnonzero(depth)
        if len(flat) > per_view:
            flat = rng.choice(flat, per_view, replace=False)
        v, u = np.divmod(flat, depth.shape[1])
        pixels = np.stack([u, v, np.ones(len(flat))], 1) * (depth.reshape(-1)[flat, None] / 1000.0)
        parts.append((pixels - projection[:, 3]) @ np.linalg.inv(projection[:, :3]).T)
    points = np.concatenate(parts)
    return points[rng.choice(len(points), total, replace=False)] if len(points) > total else points


def flipped_projections(projections: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """(V, 3, 4) to pixels of images of ``width`` columns -> to those of the images mirrored left to right."""
    flipped = projections.copy()
    flipped[:, 0] = (width - 1) * projections[:, 2] - projections[:, 0]
    return flipped


def resize_projections(
    projections: NDArray[np.float64], old: tuple[int, int], new: tuple[int, int]
) -> NDArray[np.float64]:
    """(V, 3, 4) to pixels of an (h, w) image -> of the same image in another size; pixel centres stay aligned."""
    sy, sx = new[0] / old[0], new[1] / old[1]
    scale = np.array([[sx, 0.0, 0.5 * sx - 0.5], [0.0, sy, 0.5 * sy - 0.5], [0.0, 0.0, 1.0]])
    resized: NDArray[np.float64] = scale @ projections
    return resized


def _prompt(fields: dict[str, Any]) -> Prompt:
    spans = tuple((int(a), int(b)) for a, b in fields["tokens_positive"])
    ids = {name: tuple(fields[name]) for name in ("target_ids", "distractor_ids", "anchor_ids")}
    return Prompt(fields["scan_id"], fields["text"], target=fields["target"], tokens_positive=spans, **ids)
