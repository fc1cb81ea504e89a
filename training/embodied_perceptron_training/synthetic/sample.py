"""One home as one sample in EmbodiedScan's layout: images, truth and language in a folder that appears whole or not."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.categories import ALL_CATEGORIES
from embodied_perceptron.files import write_atomically
from embodied_perceptron.geometry import Intrinsics
from embodied_perceptron_training.synthetic import noise as sensor
from embodied_perceptron_training.synthetic.assets.sweethome3d import AssetLibrary, attribution_lines, open_library
from embodied_perceptron_training.synthetic.descriptions import make_language, openlex_labels
from embodied_perceptron_training.synthetic.freespace import free_space
from embodied_perceptron_training.synthetic.gl_render import GlRenderer
from embodied_perceptron_training.synthetic.home import Home, HomeSpec, build_home
from embodied_perceptron_training.synthetic.noise import NoiseModel
from embodied_perceptron_training.synthetic.occupancy import GridSpec, occupancy_truth, visible_cells
from embodied_perceptron_training.synthetic.prompts import PromptSpec, make_negatives, make_prompts
from embodied_perceptron_training.synthetic.relations import frame_labels, make_scene, unary_states
from embodied_perceptron_training.synthetic.render import RayCastRenderer, View
from embodied_perceptron_training.synthetic.views import view_set

GENERATOR_VERSION = 1
RECORD = "record.json"
_MIN_PIXELS_SHARE = 0.0004  # of the image: 31 pixels at 320 x 240


@dataclass(frozen=True)
class SampleSpec:
    """What every sample of a set has in common.

    Attributes:
        views: images per home.
        width, height: their size.
        home: kind of homes.
        noise: sensor faults.
        prompts: how much language.
        renderer: "raycast" (everywhere the same) or "opengl" (quick on a GPU, no cast shadows).
        fine_occupancy: additionally writes grids with cells this many times smaller; 1 = none.
    """

    views: int = 20
    width: int = 320
    height: int = 240
    home: HomeSpec = field(default_factory=lambda: HomeSpec(0))
    noise: NoiseModel = field(default_factory=NoiseModel)
    prompts: PromptSpec = field(default_factory=PromptSpec)
    fine_occupancy: int = 1
    renderer: Literal["raycast", "opengl"] = "raycast"

    def __post_init__(self) -> None:
        if self.views < 1:
            raise ValueError(f"views must be at least 1, got {self.views}")
        if self.width < 16 or self.height < 16:
            raise ValueError(f"images must be at least 16 x 16, got {self.width} x {self.height}")
        if self.renderer not in ("raycast", "opengl"):
            raise ValueError(f"renderer must be raycast or opengl, got {self.renderer!r}")
        if not 1 <= self.fine_occupancy <= 8:
            raise ValueError(f"fine_occupancy must be in 1..8, got {self.fine_occupancy}")

    @property
    def intrinsics(self) -> Intrinsics:
        """About 62 degrees across."""
        f = 0.83 * self.width
        return Intrinsics(f, f, (self.width - 1) / 2, (self.height - 1) / 2, self.width, self.height)

    def as_dict(self) -> dict[str, Any]:
        """Plain form, for the record."""
        return asdict(self)


def sample_idx(seed: int) -> str:
    """Name of a home's sample."""
    return f"synthetic/{seed}"


def load_record(root: str | Path, name: str) -> dict[str, Any]:
    """Everything that is known of the finished sample ``name``: what the index files hold, and beyond them per
    instance ``object_id, states, joints, attributes``, per frame ``states`` and ``pairs`` (ids are those of the
    instances). Raises ``FileNotFoundError``."""
    record: dict[str, Any] = json.loads((Path(root) / name / RECORD).read_text())
    return record


def write_sample(seed: int, root: str | Path, spec: SampleSpec) -> str:
    """Generate home ``seed`` below ``root`` and return its sample_idx.

    Everything is first written into a hidden folder that is renamed at the end, so that an interrupted run leaves no
    half sample; a sample that is there already with the same specification is kept. Raises ``OSError`` when the folder
    cannot be written, :class:`floorplan.HomeError` when no home can be made.
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


def _is_complete(folder: Path, spec: SampleSpec) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, json.JSONDecodeError):
        return False
    same: bool = record["spec"] == json.loads(json.dumps(spec.as_dict()))
    return same and record["generator_version"] == GENERATOR_VERSION


def _fill(seed: int, folder: Path, name: str, spec: SampleSpec) -> None:
    library = _library() if spec.home.assets == "sweethome3d" else None
    if library is not None:
        library.used.clear()
    home = build_home(seed, spec.home, library)
    scene = home.render_scene()
    caster = RayCastRenderer(scene)
    poses = view_set(free_space(home), caster, spec.views, seed)
    renderer: RayCastRenderer | GlRenderer = caster if spec.renderer == "raycast" else GlRenderer(scene)
    reported = sensor.shaken_poses(
        poses, spec.noise.pose_sigma_m, spec.noise.pose_sigma_rad, np.random.default_rng([seed, 61])
    )
    exposure = sensor.exposure_drift(spec.views, spec.noise.exposure, np.random.default_rng([seed, 62]))
    images, seen_per_view, masks = [], [], []
    for i, T in enumerate(poses):
        view = renderer.render(spec.intrinsics, T, float(exposure[i]), seed + i)
        rng = np.random.default_rng([seed, 63, i])
        _write_view(folder, i, view, poses[min(i + 1, len(poses) - 1)], spec, rng)
        counts = np.bincount(view.instance.ravel(), minlength=len(home.objects) + 1)[1:]
        seen_per_view.append(set(np.nonzero(counts >= _MIN_PIXELS_SHARE * view.instance.size)[0].tolist()))
        masks.append(visible_cells(view.depth_m, spec.intrinsics, T))
        images.append((f"{name}/color/{i:05d}.jpg", f"{name}/depth/{i:05d}.png", reported[i]))
    if isinstance(renderer, GlRenderer):
        renderer.close()
    object_ids = sorted(set().union(*seen_per_view))
    _write_occupancy(folder, home, masks, spec)
    record = _record(home, name, spec, object_ids, seen_per_view, images)
    record["attribution"] = attribution_lines(library) if library is not None else []
    write_atomically(folder / RECORD, json.dumps(record).encode())


@lru_cache(maxsize=1)
def _library() -> AssetLibrary:
    return open_library()  # once per process: catalogues and meshes are worth keeping


def _write_view(folder: Path, i: int, view: View, T_next: NDArray[np.float64], spec: SampleSpec, rng: Any) -> None:
    color = view.color
    if spec.noise.motion_blur_s > 0:  # views are apart; the hand moves a little during the exposure
        share = min(0.1, spec.noise.motion_blur_s)
        color = sensor.motion_blur(color, view.depth_m, view.intrinsics, view.T_world_camera, T_next, share)
    color = sensor.add_grain(color, spec.noise.grain, rng)
    depth = sensor.noisy_depth(view.depth_m, view.incidence, spec.noise.sensor, rng)
    _save(folder / f"color/{i:05d}.jpg", color[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
    _save(folder / f"depth/{i:05d}.png", sensor.depth_to_millimetres(depth), [cv2.IMWRITE_PNG_COMPRESSION, 2])
    _save(folder / f"ids/{i:05d}.png", view.instance.astype(np.uint16), [cv2.IMWRITE_PNG_COMPRESSION, 2])


def _save(path: Path, image: NDArray[Any], options: list[int]) -> None:
    done, data = cv2.imencode(path.suffix, image, options)
    if not done:
        raise OSError(f"cannot encode {path}")
    path.write_bytes(data.tobytes())


def _write_occupancy(folder: Path, home: Home, masks: list[NDArray[np.bool_]], spec: SampleSpec) -> None:
    np.save(folder / "occupancy.npy", occupancy_truth(home, ALL_CATEGORIES))
    np.save(folder / "visible.npy", np.packbits(np.stack(masks)))
    if spec.fine_occupancy > 1:
        np.save(
            folder / "occupancy_fine.npy",
            occupancy_truth(home, ALL_CATEGORIES, GridSpec().refined(spec.fine_occupancy)),
        )


def _record(
    home: Home,
    name: str,
    spec: SampleSpec,
    object_ids: list[int],
    seen_per_view: list[set[int]],
    images: list[tuple[str, str, NDArray[np.float64]]],
) -> dict[str, Any]:
    """All that the index files need of this sample; ids in it are positions in the list of annotated instances."""
    position = {object_id: k for k, object_id in enumerate(object_ids)}
    label_id = {label: k for k, label in enumerate(ALL_CATEGORIES)}
    scene = make_scene(home, object_ids)
    rng = np.random.default_rng([home.seed, 64])
    here = {o.label for o in home.objects}
    absent = [label for label in _COMMON_CLASSES if label not in here]
    prompts = make_prompts(scene, name, spec.prompts, rng)
    frames = [frame_labels(home, seen) for seen in seen_per_view]
    K = np.eye(4)
    K[:3, :3] = spec.intrinsics.matrix
    return {
        "generator_version": GENERATOR_VERSION,
        "spec": spec.as_dict(),
        "seed": home.seed,
        "sample_idx": name,
        "rooms": [{"kind": room.kind, "rect": list(room.rect), "height_m": room.height_m} for room in home.rooms],
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
                "bbox_3d": [round(float(v), 6) for v in home.objects[i].box9()],
                "bbox_label_3d": label_id[home.objects[i].label],
                "bbox_id": k,
                "label": home.objects[i].label,
                "object_id": i,
                "states": list(unary_states(home.objects[i])),
                "joints": dict(home.objects[i].joint_states),
                "attributes": dict(home.objects[i].model.attributes),
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


# Classes that people ask for; those a home lacks make its negatives.
_COMMON_CLASSES = (
    "backpack", "ball", "bathtub", "bed", "bicycle", "book", "bottle", "cabinet", "chair", "clock", "computer",
    "couch", "crib", "cup", "curtain", "desk", "dishwasher", "fan", "fireplace", "guitar", "ladder", "lamp",
    "laptop", "microwave", "mirror", "monitor", "oven", "piano", "pillow", "plant", "printer", "radiator",
    "refrigerator", "scissors", "shoe", "shower", "sink", "stove", "telephone", "toaster", "toilet", "toy", "tv",
    "umbrella", "vacuum cleaner", "vase", "wardrobe", "washing machine", "window",
)  # fmt: skip
