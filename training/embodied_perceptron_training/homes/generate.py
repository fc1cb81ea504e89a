"""Homes as a data set in EmbodiedScan's layout: one folder per home, index files over all of them.

Generation runs on any number of workers or machines and can be resumed: a home's folder is written atomically, and its
bytes depend on seed and specification only.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import require_at_least, require_positive
from embodied_perceptron.geometry.boxes import points_in_boxes
from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID
from embodied_perceptron.geometry.transforms import F64, Intrinsics, back_project, transform_points
from embodied_perceptron.recordings.coco import write_coco
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron_training.homes import assets
from embodied_perceptron_training.homes import noise as sensor
from embodied_perceptron_training.homes.assets.sweet_home_3d.store import FAMILY_PREFIX, credits_of, store_hash
from embodied_perceptron_training.homes.assets.varied.catalogue import FamilyModel
from embodied_perceptron_training.homes.assets.varied.clutter import UNLABELLED
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.descriptions import make_language, openlex_labels
from embodied_perceptron_training.homes.noise import NoiseModel
from embodied_perceptron_training.homes.occupancy import occupancy_truth, visible_cells
from embodied_perceptron_training.homes.prompts import PromptSpec, make_negatives, make_prompts
from embodied_perceptron_training.homes.relations import frame_labels, make_scene, unary_states
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.sensing import measured_color, measured_depth, surface_kinds
from embodied_perceptron_training.homes.sensor_model import draw_sensor_model
from embodied_perceptron_training.homes.trajectories import rgbd_camera, view_set
from embodied_perceptron_training.homes.true_detections import DETECTIONS, true_image
from embodied_perceptron_training.homes.varied_trajectories import handheld_trajectory, map_views
from embodied_perceptron_training.processes import Workers, spread

RECORD = "record.json"
SPLITS = ("train", "val", "test")
Progress = Callable[[int, int], None]  # done, total
_MIN_PIXELS_SHARE = 0.0004  # of the image: 31 pixels at 320 x 240
_MIN_MEASURED = 5  # version 2: least pixels with depth in its box of a visible object
_STRUCTURE = ("wall", "floor", "ceiling", "door", "doorframe", "window")
# Commonly requested classes; those absent from a home are its negatives.
_COMMON_CLASSES = (
    "backpack", "ball", "bathtub", "bed", "bicycle", "book", "bottle", "cabinet", "chair", "clock", "computer",
    "couch", "crib", "cup", "curtain", "desk", "dishwasher", "fan", "fireplace", "guitar", "ladder", "lamp",
    "laptop", "microwave", "mirror", "monitor", "oven", "piano", "pillow", "plant", "printer", "radiator",
    "refrigerator", "scissors", "shoe", "shower", "sink", "stove", "telephone", "toaster", "toilet", "toy", "tv",
    "umbrella", "vacuum cleaner", "vase", "wardrobe", "washing machine", "window",
)  # fmt: skip


@dataclass(frozen=True)
class HomeSampleSpec:
    """Properties of every sample of a set.

    Attributes:
        views: images per home.
        width, height: their size.
        home: kind of homes.
        noise: sensor faults.
        prompts: amount of language.
    """

    views: int = 20
    width: int = 320
    height: int = 240
    home: HomeSpec = field(default_factory=lambda: HomeSpec(0))
    noise: NoiseModel = field(default_factory=NoiseModel)
    prompts: PromptSpec = field(default_factory=PromptSpec)

    def __post_init__(self) -> None:
        require_positive(self, "views")
        require_at_least(self, 16, "width", "height")
        self.noise.check_version(self.version)

    @property
    def version(self) -> int:
        """Of the generator: that of ``home``."""
        return self.home.version

    @property
    def intrinsics(self) -> Intrinsics:
        """Camera of version 1; version 2 draws one of about this size per home."""
        return rgbd_camera(self.width, self.height)

    def as_dict(self) -> dict[str, Any]:
        """JSON form for the record; version 1 keeps its original fields, and both keep those of former options."""
        return asdict(self) | {"home": self.home.as_dict(), "fine_occupancy": 1, "renderer": "raycast"}


def sample_idx(seed: int) -> str:
    """Name of a home's sample."""
    return f"synthetic/{seed}"


def load_record(root: str | Path, name: str) -> dict[str, Any]:
    """The record of the finished sample ``name``.

    The content of the index files, plus ``object_id, states, joints, attributes`` per instance and ``states`` and
    ``pairs`` (of instance ids) per frame. Raises ``FileNotFoundError``.
    """
    record: dict[str, Any] = json.loads((Path(root) / name / RECORD).read_text())
    return record


def write_sample(seed: int, root: str | Path, spec: HomeSampleSpec) -> str:
    """Generate home ``seed`` below ``root`` and return its sample_idx.

    Files are written to a hidden folder that is renamed at the end, so that an interrupted run leaves no partial
    sample; an existing sample with the same specification is kept. Raises ``OSError`` when the folder cannot be
    written, :class:`floorplan.HomeError` when no home can be made.
    """
    root = Path(root)
    name = sample_idx(seed)
    final = root / name
    if _is_complete(final, spec):
        return name
    partial = root / ".partial" / str(seed)
    for stale in (partial, final):
        if stale.exists():
            shutil.rmtree(stale)
    for folder in ("color", "depth", "ids"):
        (partial / folder).mkdir(parents=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    _fill(seed, partial, name, spec)
    os.replace(partial, final)
    return name


def _is_complete(folder: Path, spec: HomeSampleSpec) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, json.JSONDecodeError):
        return False
    same: bool = record["spec"] == json.loads(json.dumps(spec.as_dict()))
    return same and record["generator_version"] == spec.version


def _fill(seed: int, folder: Path, name: str, spec: HomeSampleSpec) -> None:
    """Write the files of a sample. Homes of version 2 have a sensor model and a trajectory of their own, and visible
    means measured."""
    home = build_home(seed, spec.home)
    scene = home.render_scene()
    renderer = RayCastRenderer(scene)
    own = kinds = None
    if spec.version > 1:
        own = draw_sensor_model(seed, spec.width, spec.height, spec.noise, spec.home.unseen)
        kinds = surface_kinds(home, scene)
        structure = [o.id for o in home.objects if o.label in _STRUCTURE]
        poses = handheld_trajectory(free_space(home), renderer, own, spec.views, seed, structure)
        reported = own.reported(poses, np.random.default_rng([seed, 84]))
        exposure = sensor.exposure_drift(spec.views, own.exposure_spread, np.random.default_rng([seed, 85]))
        camera, quality = own.intrinsics, own.jpeg_quality
    else:
        poses = view_set(free_space(home), renderer, spec.views, seed)
        errors = spec.noise.pose_sigma_m, spec.noise.pose_sigma_rad
        reported = sensor.shaken_poses(poses, *errors, np.random.default_rng([seed, 61]))
        exposure = sensor.exposure_drift(spec.views, spec.noise.exposure, np.random.default_rng([seed, 62]))
        camera, quality = spec.intrinsics, 92
    images, seen_per_view, masks, holes, detections = [], [], [], [], []
    for i, T in enumerate(poses):
        view = renderer.render(camera, T, float(exposure[i]), seed + i)
        rng = np.random.default_rng([seed, 63 if own is None else 86, i])
        if own is None or kinds is None:
            share = min(0.1, spec.noise.motion_blur_s)  # blur comes from the motion of the hand, not between views
            color, depth_m = sensor.measured_images(view, poses[min(i + 1, len(poses) - 1)], share, spec.noise, rng)
            seen, true_m = set(_large_objects(home, view.instance)), view.depth_m
            millimetres = sensor.depth_to_millimetres(depth_m)
        else:
            millimetres = sensor.depth_to_millimetres(measured_depth(view, kinds, own, rng))
            color = measured_color(view, own, rng)
            seen = measured_objects(home, view.instance, millimetres, camera, reported[i])
            true_m = np.where(millimetres > 0, view.depth_m, 0)
        _save_view(folder, i, color, millimetres, view.instance, quality)
        seen_per_view.append(seen)
        masks.append(visible_cells(true_m, camera, T))
        images.append((f"{name}/color/{i:05d}.jpg", f"{name}/depth/{i:05d}.png", reported[i]))
        holes.append(round(float((millimetres == 0).mean()), 4))
        detections.append(true_image(home, view.instance, images[-1][0]))
    write_coco(folder / DETECTIONS, detections)
    np.save(folder / "occupancy.npy", occupancy_truth(home, ALL_CATEGORIES))
    np.save(folder / "visible.npy", np.packbits(np.stack(masks)))
    clutter = {o.id for o in home.objects if o.label == UNLABELLED}
    named_per_view = [seen - clutter for seen in seen_per_view]
    object_ids = sorted(set().union(*named_per_view))
    record = _record(home, name, spec, camera, object_ids, named_per_view, images)
    if own is None:
        record["attribution"] = []
    else:
        families = {o.model.family for o in home.objects if isinstance(o.model, FamilyModel)}
        record["generator_revision"] = spec.home.revision
        record["attribution"] = credits_of({family for family in families if family.startswith(FAMILY_PREFIX)})
        record |= {"rig": own.as_dict(), "map_views": map_views(spec.views, seed)}
        seen_clutter = sorted(set().union(*seen_per_view) & clutter)
        record["unlabelled"] = [{"bbox_3d": _box(home, i), "object_id": i} for i in seen_clutter]
        for image, share, seen in zip(record["images"], holes, seen_per_view, strict=True):
            image["holes"] = share
            image["visible_unlabelled"] = [k for k, i in enumerate(seen_clutter) if i in seen]
    write_atomically(folder / RECORD, json.dumps(record).encode())


def _box(home: Home, object_id: int) -> list[float]:
    """(9,) box of an object, as precise as in the record."""
    return [round(float(v), 6) for v in home.objects[object_id].box9()]


def _large_objects(home: Home, instance: NDArray[np.integer]) -> list[int]:
    """Ids of the objects that are large enough in the (H, W) instance image."""
    counts = np.bincount(instance.ravel(), minlength=len(home.objects) + 1)[1:]
    return np.flatnonzero(counts >= _MIN_PIXELS_SHARE * instance.size).tolist()


def measured_objects(
    home: Home,
    instance: NDArray[np.integer],
    millimetres: NDArray[np.uint16],
    intrinsics: Intrinsics,
    T_world_camera: F64,
) -> set[int]:
    """Ids of the objects, including unlabelled ones, that are large enough in the image and have at least five pixels
    whose back-projection with the stored pose lies in their box.

    ``instance`` (H, W) holds object id + 1, ``millimetres`` (H, W) the measured depth.
    """
    points, valid = back_project(millimetres.astype(np.float32) / 1000, intrinsics)
    world = transform_points(T_world_camera, points[valid])
    owner = instance[valid] - 1
    seen = set()
    for i in _large_objects(home, instance):
        box = torch.tensor([_box(home, i)], dtype=torch.float64)
        inside = points_in_boxes(torch.from_numpy(world[owner == i]), box)
        if int(inside.sum()) >= _MIN_MEASURED:
            seen.add(i)
    return seen


def _save_view(
    folder: Path,
    i: int,
    color: NDArray[np.uint8],
    millimetres: NDArray[np.uint16],
    instance: NDArray[np.integer],
    quality: int,
) -> None:
    _save(folder / f"color/{i:05d}.jpg", color[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    _save(folder / f"depth/{i:05d}.png", millimetres, [cv2.IMWRITE_PNG_COMPRESSION, 2])
    _save(folder / f"ids/{i:05d}.png", instance.astype(np.uint16), [cv2.IMWRITE_PNG_COMPRESSION, 2])


def _save(path: Path, image: NDArray[Any], options: list[int]) -> None:
    done, data = cv2.imencode(path.suffix, image, options)
    if not done:
        raise OSError(f"cannot encode {path}")
    path.write_bytes(data.tobytes())


def _record(
    home: Home,
    name: str,
    spec: HomeSampleSpec,
    intrinsics: Intrinsics,
    object_ids: list[int],
    seen_per_view: list[set[int]],
    images: list[tuple[str, str, F64]],
) -> dict[str, Any]:
    """The sample's content of the index files; ids are positions in the list of annotated instances."""
    position = {object_id: k for k, object_id in enumerate(object_ids)}
    label_id = {label: k for k, label in enumerate(ALL_CATEGORIES)}
    scene = make_scene(home, object_ids)
    rng = np.random.default_rng([home.seed, 64])
    here = {o.label for o in home.objects}
    absent = [label for label in _COMMON_CLASSES if label not in here]
    prompts = make_prompts(scene, name, spec.prompts, rng)
    frames = [frame_labels(home, seen) for seen in seen_per_view]
    K = np.eye(4)
    K[:3, :3] = intrinsics.matrix
    return {
        "generator_version": spec.version,
        "spec": spec.as_dict(),
        "seed": home.seed,
        "sample_idx": name,
        "rooms": [room.as_dict() for room in home.rooms],
        "cam2img": K.tolist(),
        "images": [
            {
                "img_path": color,
                "depth_path": depth,
                "cam2global": T.tolist(),
                "visible_instance_ids": [position[i] for i in sorted(seen)],
            }
            for (color, depth, T), seen in zip(images, seen_per_view, strict=True)
        ],
        "instances": [
            {
                "bbox_3d": _box(home, i),
                "bbox_label_3d": label_id[home.objects[i].label],
                "bbox_id": k,
                "label": home.objects[i].label,
                "object_id": i,
                "states": list(unary_states(home.objects[i])),
                "joints": dict(home.objects[i].joint_states),
                "attributes": dict(home.objects[i].model.attributes),
                **_family(home, i),
            }
            for k, i in enumerate(object_ids)
        ],
        "frames": [
            {
                "states": {str(position[int(i)]): words for i, words in frame["states"].items()},
                "pairs": [[position[a], r, position[b]] for a, r, b in frame["pairs"]],
            }
            for frame in frames
        ],
        "prompts": prompts,
        "negatives": make_negatives(scene, name, spec.prompts, absent, rng),
        "language": make_language(scene, absent, rng),
        "openlex3d": openlex_labels(scene),
    }


def _family(home: Home, object_id: int) -> dict[str, Any]:
    """Family of an object and whether it is held out from training; empty for version 1, which does not record it."""
    if home.spec.version == 1:
        return {}
    model = home.objects[object_id].model
    known = isinstance(model, FamilyModel)
    return {"family": model.family if known else "shell", "unseen": model.unseen if known else False}


# -- the whole set


def generate(
    root: str | Path,
    seeds: Sequence[int],
    spec: HomeSampleSpec,
    split: str = "train",
    workers: Workers = 1,
    progress: Progress | None = None,
) -> None:
    """Generate the homes ``seeds`` below ``root`` and the index files of the split.

    Existing samples are kept, so that an interrupted run continues; index files are written last and atomically. All
    machines of a cluster need the same ``root``. Raises ``ValueError`` for an unknown split, repeated seeds or a
    missing cluster, ``OSError`` when ``root`` cannot be written.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if len(set(seeds)) != len(seeds) or not seeds:
        raise ValueError(f"seeds must be distinct and at least one, got {len(seeds)} with {len(set(seeds))} distinct")
    if split == "test" and spec.version > 1:
        spec = replace(spec, home=replace(spec.home, unseen=True))
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    work = partial(write_sample, root=root.resolve(), spec=spec)
    for done, (_, take) in enumerate(spread(work, list(seeds), workers), 1):
        take()
        if progress is not None:
            progress(done, len(seeds))
    write_index(root, [sample_idx(seed) for seed in sorted(seeds)], split)
    hidden = root / ".partial"
    if hidden.exists() and not any(hidden.iterdir()):
        hidden.rmdir()


# -- index files


def write_index(root: str | Path, names: Sequence[str], split: str) -> None:
    """Write infos, prompts, occupancy, open-vocabulary labels and the overview of the samples ``names``."""
    root = Path(root)
    records = [load_record(root, name) for name in names]
    infos = {
        "metainfo": {"categories": {name: k for k, name in enumerate(ALL_CATEGORIES)}},
        "data_list": [_scan(record) for record in records],
    }
    write_atomically(root / f"embodiedscan_infos_{split}.pkl", pickle.dumps(infos, protocol=4))
    prompts = [p for record in records for p in record["prompts"]]
    _write_json(root / f"embodiedscan_{split}_vg.json", prompts)
    complex_free = [p for p in prompts if p["form"] != "complex"]
    _write_json(root / f"embodiedscan_{split}_mini_vg.json", complex_free[:: max(1, len(complex_free) // 1000)])
    _write_json(root / f"embodiedscan_{split}_negatives.json", [p for r in records for p in r["negatives"]])
    for record in records:
        _write_scan_files(root, record)
    credits = sorted({line for record in records for line in record["attribution"]})
    if credits:
        head = "3-D models from Debian's sweethome3d-furniture, decimated, stretched, recoloured, without textures:"
        write_atomically(root / f"ATTRIBUTION_{split}.txt", ("\n".join([head, "", *credits]) + "\n").encode())
    _write_json(root / "homes.json", _overview(root, split, records))


def _scan(record: dict[str, Any]) -> dict[str, Any]:
    K = np.array(record["cam2img"])
    later = (
        {}
        if record["generator_version"] == 1
        else {
            "generator_revision": record.get("generator_revision", 1),
            **{key: record.get(key, []) for key in ("generator_version", "rig", "map_views", "unlabelled")},
        }
    )
    keys = ("bbox_3d", "bbox_label_3d", "bbox_id") + (("family", "unseen") if later else ())
    return {
        **later,
        "sample_idx": record["sample_idx"],
        "axis_align_matrix": np.eye(4),
        "cam2img": K,
        "depth_cam2img": K.copy(),
        "images": [{**image, "cam2global": np.array(image["cam2global"])} for image in record["images"]],
        "instances": [{key: instance[key] for key in keys} for instance in record["instances"]],
    }


def _write_scan_files(root: Path, record: dict[str, Any]) -> None:
    name = record["sample_idx"]
    target = root / "embodiedscan_occupancy" / name
    target.mkdir(parents=True, exist_ok=True)
    for folder in ("openlex3d", "language"):
        (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target / "occupancy.npy", (root / name / "occupancy.npy").read_bytes())
    shape = (len(record["images"]), *BENCHMARK_GRID.shape)
    masks = np.unpackbits(np.load(root / name / "visible.npy"), count=int(np.prod(shape))).reshape(shape).astype(bool)
    by_image = {image["img_path"]: mask for image, mask in zip(record["images"], masks, strict=True)}
    write_atomically(target / "visible_occupancy.pkl", pickle.dumps(by_image, protocol=4))
    _write_json(root / "openlex3d" / f"{name}.json", record["openlex3d"])
    _write_json(root / "language" / f"{name}.json", record["language"])


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=None, sort_keys=True) + "\n").encode())


def _overview(root: Path, split: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    path = root / "homes.json"
    splits = json.loads(path.read_text())["splits"] if path.exists() else {}
    splits[split] = [record["seed"] for record in records]
    version, kind = records[0]["generator_version"], records[0]["spec"]["home"]["assets"]
    return {
        "generator_version": version,
        **({} if version == 1 else {"generator_revision": records[0].get("generator_revision", 1)}),
        "assets": kind,
        "asset_hash": asset_hash(version),
        "library_hash": None if kind == "parametric" else store_hash(),
        "renderer": records[0]["spec"]["renderer"],
        "splits": splits,
        "spec": records[0]["spec"],
        "categories": sorted({i["label"] for record in records for i in record["instances"]}),
    }


def asset_hash(version: int = 1) -> str:
    """SHA-256 over the sources of furniture: sets with the same hash have the same furniture."""
    digest = hashlib.sha256()
    folder = Path(assets.__file__).parent
    for path in sorted(folder.glob("*.py") if version == 1 else folder.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
