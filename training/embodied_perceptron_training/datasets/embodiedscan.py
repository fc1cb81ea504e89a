"""Read EmbodiedScan's files over ScanNet, 3RScan, Matterport3D, ARKitScenes and synthetic homes.

Differences between the sources are in a table (:data:`SOURCES`): depth units, image rotation, occupancy. World frames
are axis-aligned, z up: ``T_world_camera = axis_align_matrix @ cam2global``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID
from embodied_perceptron.geometry.transforms import F64, Intrinsics, check_transform, make_transform
from embodied_perceptron.recordings.image_codec import COLOR_AS_STORED
from embodied_perceptron.weights.categories import OCCUPANCY_CLASSES, OCCUPANCY_IGNORED
from embodied_perceptron.weights.checkpoint import load_plain_pickle


class DatasetError(ValueError):
    """A file of the data set with a missing key or an invalid value; the message names file and key."""


class MissingSplitError(FileNotFoundError, DatasetError):
    """A data set without the requested split; the message names the existing ones."""


@dataclass(frozen=True)
class SourceFacts:
    """Properties of one source."""

    depth_unit_m: float = 0.001  # metres of one step of the depth image
    stored_sideways: bool = False  # stored images are a quarter turn off
    has_occupancy: bool = True  # whether there is occupancy truth


SOURCES: Mapping[str, SourceFacts] = {
    "scannet": SourceFacts(),
    "3rscan": SourceFacts(stored_sideways=True),
    "matterport3d": SourceFacts(depth_unit_m=1 / 4000),
    "arkitscenes": SourceFacts(has_occupancy=False),
    "synthetic": SourceFacts(),
}


@dataclass(frozen=True, eq=False)
class ScanImage:
    """One RGB-D view, not yet loaded."""

    color_path: Path  # color_path, depth_path: files
    depth_path: Path
    T_world_camera: F64  # (4, 4), axis-aligned world
    K_color: F64  # K_color, K_depth: (3, 3) camera matrices; sizes come from the files
    K_depth: F64
    visible_ids: tuple[int, ...]  # positions of the visible instances
    name: str  # img_path of the infos, key of visibility masks
    visible_unlabelled: tuple[int, ...] = ()  # positions of the visible unlabelled objects


@dataclass(frozen=True, eq=False)
class ScanView:
    """One loaded view: (H, W, 3) uint8 RGB, (h, w) float32 metres (0 unknown), both cameras, and their pose."""

    color: NDArray[np.uint8]
    depth_m: NDArray[np.float32]
    color_camera: Intrinsics
    depth_camera: Intrinsics
    T_world_camera: F64
    visible_ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Scan:
    """One scan."""

    sample_idx: str  # '<source>/...'
    facts: SourceFacts  # of its source
    images: tuple[ScanImage, ...]  # views in order
    boxes: F64  # (N, 9) float64, see :mod:`embodied_perceptron.geometry.boxes`
    labels: tuple[str, ...]  # (N,) class names
    ids: NDArray[np.int64]  # (N,) bbox_id of each row
    unlabelled: F64 = field(default_factory=lambda: np.zeros((0, 9)))  # (U, 9) unnamed objects, in homes of version 2
    held_out: tuple[bool, ...] = ()  # (N,) whether the shape family is held out of training; () = unknown
    sensor: str = ""  # of depth; empty = unknown
    T_world_scan: F64 = field(default_factory=lambda: np.eye(4))  # (4, 4) from the source's files to the world

    @property
    def turns_to_upright(self) -> int:
        """Quarter turns clockwise that bring this scan's images upright, from the direction of gravity in its
        cameras."""
        if not self.facts.stored_sideways or not self.images:
            return 0
        down = -np.mean([image.T_world_camera[2, :2] for image in self.images], axis=0)  # world down in x right, y down
        # a clockwise turn takes image right to image down
        return int(np.argmax([down[1], down[0], -down[1], -down[0]]))

    def load_view(self, index: int, upright: bool = True) -> ScanView:
        """Read view ``index``; ``upright`` turns images that are stored sideways, and their cameras with them.

        Raises :class:`DatasetError` naming a file that is missing or no image.
        """
        image = self.images[index]
        color = _read(image.color_path, COLOR_AS_STORED)[..., ::-1]
        raw = _read(image.depth_path, cv2.IMREAD_UNCHANGED)
        if raw.ndim != 2 or raw.dtype != np.uint16:
            raise DatasetError(f"{image.depth_path} must be 16-bit gray, got {raw.dtype} {raw.shape}")
        raw = np.where(raw == np.iinfo(np.uint16).max, 0, raw)
        view = ScanView(
            np.ascontiguousarray(color),
            (raw * np.float32(self.facts.depth_unit_m)).astype(np.float32),
            _intrinsics(image.K_color, color.shape),
            _intrinsics(image.K_depth, raw.shape),
            image.T_world_camera,
            image.visible_ids,
        )
        for _ in range(self.turns_to_upright if upright else 0):
            view = _turn_clockwise(view)
        return view

    def load_registered_view(self, index: int) -> ScanView:
        """:meth:`load_view` with the colour image in the size of the depth image, as in a bag.

        Raises also :class:`DatasetError` for depth that is not registered to colour.
        """
        view = self.load_view(index)
        camera = view.depth_camera
        if view.color.shape[:2] == view.depth_m.shape:
            return view
        expected = view.color_camera.resized(camera.width, camera.height).matrix
        if not np.allclose(expected, camera.matrix, rtol=0.05, atol=3.0):
            raise DatasetError(f"{self.images[index].name}: depth is not registered to colour")
        color = cv2.resize(view.color, (camera.width, camera.height), interpolation=cv2.INTER_AREA)
        return replace(view, color=np.ascontiguousarray(color))


def _read(path: Path, flags: int) -> NDArray[Any]:
    data = cv2.imread(str(path), flags)
    if data is None:
        raise DatasetError(f"{path} is missing or is no image")
    return np.asarray(data)


def _intrinsics(K: F64, shape: tuple[int, ...]) -> Intrinsics:
    return Intrinsics(float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2]), int(shape[1]), int(shape[0]))


def _turn_clockwise(view: ScanView) -> ScanView:
    """Pixel (u, v) goes to (height - 1 - v, u); the camera's axes turn with the image, so that points stay in place."""

    def turned(k: Intrinsics) -> Intrinsics:
        return Intrinsics(k.fy, k.fx, k.height - 1 - k.cy, k.cx, k.height, k.width)

    R_old_new = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    return ScanView(
        np.ascontiguousarray(np.rot90(view.color, -1)),
        np.ascontiguousarray(np.rot90(view.depth_m, -1)),
        turned(view.color_camera),
        turned(view.depth_camera),
        view.T_world_camera @ make_transform(R_old_new, np.zeros(3)),
        view.visible_ids,
    )


@dataclass(frozen=True)
class Prompt:
    """One sentence about one scan; ``target_ids`` is empty for a sentence without a target."""

    scan_id: str
    text: str
    target_ids: tuple[int, ...]
    target: str
    distractor_ids: tuple[int, ...]
    anchor_ids: tuple[int, ...]
    tokens_positive: tuple[tuple[int, int], ...]

    @property
    def hard(self) -> bool:
        """More than three distractors."""
        return len(self.distractor_ids) > 3


def infos_file(root: Path, split: str) -> Path:
    """Path of the infos of a split."""
    return root / f"embodiedscan_infos_{split}.pkl"


class EmbodiedScanDataset:
    """Scans of one split.

    Args:
        root: folder that holds ``embodiedscan_infos_<split>.pkl`` and that image paths are relative to.
        split: train, val or test.
        sources: keep only these, separated by commas; empty = all.

    Raises ``ValueError`` for an unknown source, :class:`MissingSplitError` when the infos are missing,
    :class:`DatasetError` when they are malformed or hold no scan of the sources, and
    :class:`restricted_pickle.UnsafePickleError` when they hold anything but plain data.
    """

    def __init__(self, root: str | Path, split: str = "train", sources: str = "") -> None:
        self.root = Path(root)
        self.split = split
        wanted = {name.strip() for name in sources.split(",") if name.strip()}
        if unknown := sorted(wanted - set(SOURCES)):
            raise ValueError(f"unknown sources {', '.join(unknown)}; known: {', '.join(SOURCES)}")
        path = infos_file(self.root, split)
        try:
            infos = load_plain_pickle(path)
        except FileNotFoundError as error:
            names = [
                file.stem.removeprefix(infos_file(self.root, "").stem)
                for file in self.root.glob(infos_file(self.root, "*").name)
            ]
            there = f"it has {', '.join(sorted(names))}" if names else "nor any other"
            message = f"{self.root} holds no split {split!r} in EmbodiedScan's layout ({path.name}); {there}"
            raise MissingSplitError(message) from error
        try:
            categories = infos["metainfo"]["categories"]
            entries = infos["data_list"]
        except (KeyError, TypeError) as error:
            raise DatasetError(f"{path} lacks {error}") from error
        self.categories: dict[int, str] = {int(k): str(name) for name, k in categories.items()}
        self._entries = [e for e in entries if not wanted or _source(e, path) in wanted]
        if wanted and not self._entries:
            raise DatasetError(f"{path} has no scan of {', '.join(sorted(wanted))}")
        self._path = path
        self._by_name = {str(e["sample_idx"]): i for i, e in enumerate(self._entries)}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Scan]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> Scan:
        entry = self._entries[index]
        try:
            return self._scan(entry)
        except (KeyError, TypeError) as error:
            raise DatasetError(
                f"{self._path}: scan {entry.get('sample_idx', index)} has a missing or invalid entry: {error}"
            ) from error

    def image_count(self, index: int) -> int:
        """Images of scan ``index``."""
        return len(self._entries[index]["images"])

    def by_name(self, sample_idx: str) -> Scan:
        """A scan by its sample_idx. Raises :class:`DatasetError` for an unknown one."""
        if sample_idx not in self._by_name:
            raise DatasetError(f"{self.root} has no scan {sample_idx!r} in split {self.split}")
        return self[self._by_name[sample_idx]]

    def position(self, sample_idx: str) -> int:
        """Index of a scan. Raises ``KeyError``."""
        return self._by_name[sample_idx]

    def _scan(self, entry: Mapping[str, Any]) -> Scan:
        T_align = check_transform(np.asarray(entry.get("axis_align_matrix", np.eye(4))), "axis_align_matrix")
        images = tuple(self._image(entry, image, T_align) for image in entry["images"])
        instances = entry.get("instances", [])
        boxes = np.array([i["bbox_3d"] for i in instances], np.float64).reshape(-1, 9)
        name = str(entry["sample_idx"])
        return Scan(
            name,
            SOURCES[_source(entry, self._path)],
            images,
            boxes,
            tuple(self.categories[int(i["bbox_label_3d"])] for i in instances),
            np.array([int(i["bbox_id"]) for i in instances], np.int64),
            np.array([i["bbox_3d"] for i in entry.get("unlabelled", [])], np.float64).reshape(-1, 9),
            tuple(bool(i["unseen"]) for i in instances) if all("unseen" in i for i in instances) else (),
            str(entry.get("rig", {}).get("sensor", "")),
            T_align,
        )

    def _image(self, entry: Mapping[str, Any], image: Mapping[str, Any], T_align: F64) -> ScanImage:
        K = np.asarray(image["cam2img"] if "cam2img" in image else entry["cam2img"], np.float64)[:3, :3]
        shared = entry.get("depth_cam2img", K)
        K_depth = np.asarray(image.get("depth_cam2img", shared), np.float64)[:3, :3]
        T = check_transform(np.asarray(T_align @ np.asarray(image["cam2global"], np.float64)), "cam2global")
        return ScanImage(
            self.root / image["img_path"],
            self.root / image["depth_path"],
            T,
            K,
            K_depth,
            tuple(int(i) for i in image.get("visible_instance_ids", ())),
            str(image["img_path"]),
            tuple(int(i) for i in image.get("visible_unlabelled", ())),
        )

    # -- language and occupancy

    def prompts(self, name: str = "vg") -> list[Prompt]:
        """Sentences of ``embodiedscan_<split>_<name>.json`` about scans of this set. Raises ``FileNotFoundError``."""
        path = self.root / f"embodiedscan_{self.split}_{name}.json"
        entries = json.loads(path.read_text())
        try:
            return [prompt_of(e) for e in entries if e["scan_id"] in self._by_name]
        except (KeyError, TypeError) as error:
            raise DatasetError(f"{path}: a prompt lacks {error}") from error

    def occupancy(self, scan: Scan) -> NDArray[np.uint8] | None:
        """(40, 40, 16) uint8 labels: 0 empty, k + 1 = OCCUPANCY_CLASSES[k], 255 ignored; None where there is none."""
        if not scan.facts.has_occupancy:
            return None
        rows = np.load(self._occupancy_folder(scan) / "occupancy.npy", allow_pickle=False)
        index = {name: k + 1 for k, name in enumerate(OCCUPANCY_CLASSES)}
        lookup = np.full(max(self.categories) + 1, OCCUPANCY_IGNORED, np.uint8)
        for k, name in self.categories.items():
            lookup[k] = index.get(name, OCCUPANCY_IGNORED)
        grid = np.zeros(BENCHMARK_GRID.shape, np.uint8)
        grid[rows[:, 0], rows[:, 1], rows[:, 2]] = lookup[rows[:, 3]]
        return grid

    def visible_cells(self, scan: Scan) -> list[NDArray[np.bool_]] | None:
        """Per image (40, 40, 16) bool: cells that it sees; None where there is no occupancy."""
        if not scan.facts.has_occupancy:
            return None
        path = self._occupancy_folder(scan) / "visible_occupancy.pkl"
        stored = load_plain_pickle(path)
        masks = [stored[i.name] for i in scan.images] if isinstance(stored, dict) else list(stored)
        if len(masks) != len(scan.images):
            raise DatasetError(f"{path} holds {len(masks)} masks for {len(scan.images)} images")
        return [np.asarray(m, bool).reshape(BENCHMARK_GRID.shape) for m in masks]

    def _occupancy_folder(self, scan: Scan) -> Path:
        folder = self.root / "embodiedscan_occupancy"
        whole = folder / scan.sample_idx
        return whole if whole.exists() else folder / scan.sample_idx.split("/", 1)[-1]


def _source(entry: Mapping[str, Any], path: Path) -> str:
    source = str(entry["sample_idx"]).split("/")[0]
    if source not in SOURCES:
        raise DatasetError(f"{path}: unknown source of scan {entry['sample_idx']!r}; known: {', '.join(SOURCES)}")
    return source


def prompt_of(entry: Mapping[str, Any]) -> Prompt:
    """A sentence from its entry in a file. Raises ``KeyError`` naming a missing key."""
    target = entry["target_id"]
    return Prompt(
        str(entry["scan_id"]),
        str(entry["text"]),
        tuple(int(t) for t in target) if isinstance(target, (list, tuple)) else (int(target),),
        str(entry["target"]),
        tuple(int(i) for i in entry.get("distractor_ids") or ()),
        tuple(int(i) for i in entry.get("anchor_ids") or ()),
        tuple((int(a), int(b)) for a, b in entry.get("tokens_positive") or ()),
    )
