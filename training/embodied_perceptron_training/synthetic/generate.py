"""Many homes as one data set: any number of workers or machines, resumable, the same files whatever the workers."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embodied_perceptron.categories import ALL_CATEGORIES
from embodied_perceptron.files import write_atomically
from embodied_perceptron_training.synthetic import assets
from embodied_perceptron_training.synthetic.assets.sweethome3d import library_hash
from embodied_perceptron_training.synthetic.occupancy import GridSpec
from embodied_perceptron_training.synthetic.sample import (
    GENERATOR_VERSION,
    RECORD,
    SampleSpec,
    sample_idx,
    write_sample,
)

SPLITS = ("train", "val", "test")
Progress = Callable[[int, int], None]


def generate(
    root: str | Path,
    seeds: Sequence[int],
    spec: SampleSpec,
    split: str = "train",
    workers: int = 1,
    ray_address: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Make the homes ``seeds`` below ``root`` and the split's index files over them.

    Samples that are there already are kept, so that an interrupted run goes on where it stopped; the index files are
    written last and whole. ``ray_address`` spreads the homes over a Ray cluster that sees the same ``root``.
    Raises ``ValueError`` for an unknown split or repeated seeds, ``OSError`` when ``root`` cannot be written.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if len(set(seeds)) != len(seeds) or not seeds:
        raise ValueError(f"seeds must be distinct and at least one, got {len(seeds)} with {len(set(seeds))} distinct")
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    _check_writable(root)
    for done, _ in enumerate(_run(list(seeds), root, spec, workers, ray_address), 1):
        if progress is not None:
            progress(done, len(seeds))
    write_index(root, [sample_idx(seed) for seed in sorted(seeds)], split)
    hidden = root / ".partial"
    if hidden.exists() and not any(hidden.iterdir()):
        hidden.rmdir()


def _check_writable(root: Path) -> None:
    probe = root / f".probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()


def _run(seeds: list[int], root: Path, spec: SampleSpec, workers: int, ray_address: str | None) -> Iterator[str]:
    work = partial(write_sample, root=root, spec=spec)
    if ray_address is not None:
        yield from _run_ray(seeds, root, spec, ray_address)
    elif workers <= 1:
        yield from map(work, seeds)
    else:
        context = multiprocessing.get_context("spawn")  # a forked ray caster is not safe
        with ProcessPoolExecutor(workers, context, _one_thread) as pool:
            futures = [pool.submit(work, seed) for seed in seeds]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _one_thread() -> None:
    import cv2

    cv2.setNumThreads(1)


def _run_ray(seeds: list[int], root: Path, spec: SampleSpec, address: str) -> Iterator[str]:
    try:
        import ray
    except ImportError as error:
        raise ValueError("--ray needs the package ray: pip install ray") from error
    ray.init(address=address)
    try:
        remote = ray.remote(write_sample)
        waiting = [remote.remote(seed, str(root.resolve()), spec) for seed in seeds]
        while waiting:
            done, waiting = ray.wait(waiting)
            yield ray.get(done[0])
    finally:
        ray.shutdown()


# --------------------------------------------------------------------------------------------------------------------
# index files


def write_index(root: str | Path, names: Sequence[str], split: str) -> None:
    """Infos, prompts, occupancy, open-vocabulary labels and the overview of the samples ``names``, each file whole."""
    root = Path(root)
    records = [json.loads((root / name / RECORD).read_text()) for name in names]
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
        head = "3-D models from Debian's sweethome3d-furniture, stretched to size, without their texture images:"
        write_atomically(root / f"ATTRIBUTION_{split}.txt", ("\n".join([head, "", *credits]) + "\n").encode())
    _write_json(root / "homes.json", _overview(root, split, records))


def _scan(record: dict[str, Any]) -> dict[str, Any]:
    K = np.array(record["cam2img"])
    return {
        "sample_idx": record["sample_idx"],
        "axis_align_matrix": np.eye(4),
        "cam2img": K,
        "depth_cam2img": K.copy(),
        "images": [{**image, "cam2global": np.array(image["cam2global"])} for image in record["images"]],
        "instances": [
            {key: instance[key] for key in ("bbox_3d", "bbox_label_3d", "bbox_id")} for instance in record["instances"]
        ],
    }


def _write_scan_files(root: Path, record: dict[str, Any]) -> None:
    name = record["sample_idx"]
    target = root / "embodiedscan_occupancy" / name
    target.mkdir(parents=True, exist_ok=True)
    for folder in ("openlex3d", "language"):
        (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target / "occupancy.npy", (root / name / "occupancy.npy").read_bytes())
    shape = (len(record["images"]), *GridSpec().shape)
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
    return {
        "generator_version": GENERATOR_VERSION,
        "assets": records[0]["spec"]["home"]["assets"],
        "asset_hash": asset_hash(),
        "library_hash": library_hash() if records[0]["spec"]["home"]["assets"] == "sweethome3d" else None,
        "renderer": records[0]["spec"]["renderer"],
        "splits": splits,
        "spec": records[0]["spec"],
        "categories": sorted({i["label"] for record in records for i in record["instances"]}),
    }


def asset_hash() -> str:
    """SHA-256 over the source of the furniture families: two sets with the same hash show the same furniture."""
    digest = hashlib.sha256()
    for path in sorted(Path(assets.__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
