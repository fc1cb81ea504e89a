"""Inspection of a generated set: contact sheets with boxes, ids, depth, top view, occupancy and prompts; statistics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import BOX_EDGES, box_corners
from embodied_perceptron.geometry.transforms import invert_transform, transform_points
from embodied_perceptron.recordings.artifacts import write_png
from embodied_perceptron.recordings.files import write_json
from embodied_perceptron.visualization.drawing import clip_to_near_plane, pixel
from embodied_perceptron.weights.categories import (
    COMMON_CLASSES,
    DETECTION_CLASSES,
    HEAD_CLASSES,
    OCCUPANCY_IGNORED,
    TAIL_CLASSES,
)
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset, Scan, ScanView

Picture = NDArray[np.uint8]
_NEAR_M = 0.1  # near plane for boxes

# Published figures of the benchmark.
EMBODIEDSCAN_PROMPTS = {"closest": 723477, "allocentric": 216197, "vertical": 16420, "between": 9135, "support": 4812}
_KINDS = {
    "closest": "closest", "farthest": "closest", "front": "allocentric", "behind": "allocentric", "left": "allocentric",
    "right": "allocentric", "above": "vertical", "below": "vertical", "between": "between", "on": "support",
    "supporting": "support",
}  # fmt: skip


def id_colors(ids: NDArray[np.integer]) -> Picture:
    """Integer image -> a fixed colour per id, black for 0."""
    h = (np.asarray(ids, np.int64) * 2654435761) & 0xFFFFFF
    color = np.stack([(h >> s) & 255 for s in (16, 8, 0)], -1) // 2 + 90
    return np.where(np.asarray(ids)[..., None] == 0, 0, color).astype(np.uint8)


def draw_boxes(view: ScanView, scan: Scan) -> Picture:
    """Colour image with boxes and names of the visible instances."""
    canvas: Picture = view.color.copy()
    T_camera_world = invert_transform(view.T_world_camera)
    k = view.color_camera
    for i in view.visible_ids:
        if scan.labels[i] in ("wall", "floor", "ceiling"):
            continue
        p = transform_points(T_camera_world, box_corners(scan.boxes[i : i + 1])[0])
        color = tuple(int(c) for c in id_colors(np.array([i + 1]))[0])
        for b, a in sorted(BOX_EDGES, key=lambda edge: edge[::-1]):  # overlapping lines blend in this order
            ends = clip_to_near_plane(p[a], p[b], _NEAR_M)
            if ends is not None:
                start, stop = np.rint(pixel(np.stack(ends), k)).astype(int).tolist()
                cv2.line(canvas, start, stop, color, 1, cv2.LINE_AA)
        center = p.mean(0)
        if center[2] > 0.2:
            u, v = np.rint(pixel(center, k)).astype(int).tolist()
            at = (u - 15, v)
            cv2.putText(canvas, scan.labels[i], at, cv2.FONT_HERSHEY_SIMPLEX, 0.33, (255, 255, 255), 1, cv2.LINE_AA)
    return canvas


def depth_picture(depth_m: NDArray[np.float32]) -> Picture:
    """Metres -> colours, unknown black."""
    scaled = np.clip(depth_m / 5.0 * 255, 0, 255).astype(np.uint8)
    colored = cv2.applyColorMap(scaled, cv2.COLORMAP_TURBO)[..., ::-1]
    return np.where(depth_m[..., None] > 0, colored, 0).astype(np.uint8)


def top_view(scan: Scan, size: int = 320) -> Picture:
    """All boxes from above; walls gray."""
    canvas = np.full((size, size, 3), 250, np.uint8)
    if len(scan.boxes) == 0:
        return canvas
    corners = box_corners(scan.boxes)[..., :2]
    points = corners.reshape(-1, 2)
    low, high = points.min(0), points.max(0)
    scale = (size - 20) / max(float((high - low).max()), 0.1)
    for i in np.argsort(-scan.boxes[:, 3] * scan.boxes[:, 4]):
        hull = cv2.convexHull(((corners[i] - low) * scale + 10).astype(np.float32)).reshape(-1, 2)
        hull[:, 1] = size - hull[:, 1]
        polygon = [hull.round().astype(np.int32)]
        if scan.labels[i] in ("floor", "ceiling"):
            continue
        color = (150, 150, 150) if scan.labels[i] == "wall" else tuple(int(c) for c in id_colors(np.array([i + 1]))[0])
        cv2.fillPoly(canvas, polygon, color)
        cv2.polylines(canvas, polygon, True, (60, 60, 60), 1, cv2.LINE_AA)
    for camera in scan.images:
        x, y = (camera.T_world_camera[:2, 3] - low) * scale + 10
        dx, dy = camera.T_world_camera[:2, 2] * 12
        cv2.arrowedLine(canvas, (round(x), round(size - y)), (round(x + dx), round(size - y - dy)), (220, 30, 30), 1)
    return canvas


def occupancy_slices(grid: NDArray[np.uint8], size: int = 320) -> Picture:
    """Four horizontal slices of the (40, 40, 16) labels."""
    tiles = []
    for z in (5, 7, 9, 12):
        labels = np.where(grid[:, :, z] == OCCUPANCY_IGNORED, 0, grid[:, :, z])
        picture = id_colors(labels).transpose(1, 0, 2)[::-1]
        tiles.append(cv2.resize(picture, (size // 2, size // 2), interpolation=cv2.INTER_NEAREST))
    return np.vstack([np.hstack(tiles[:2]), np.hstack(tiles[2:])]).astype(np.uint8)


def contact_sheet(dataset: EmbodiedScanDataset, scan: Scan, texts: list[str], views: int = 4) -> Picture:
    """RGB with boxes, depth, ids for some views; top view, occupancy and prompts below."""
    chosen = np.linspace(0, len(scan.images) - 1, min(views, len(scan.images))).round().astype(int)
    width, height = 320, 240
    columns = []
    for i in chosen:
        view = scan.load_view(int(i))
        pictures = [draw_boxes(view, scan), depth_picture(view.depth_m)]
        ids = scan.images[i].color_path.parent.parent / "ids" / (scan.images[i].color_path.stem + ".png")
        if ids.exists():
            stored = cv2.imread(str(ids), cv2.IMREAD_UNCHANGED)
            pictures.append(id_colors(np.asarray(stored, np.uint16)))
        columns.append(np.vstack([cv2.resize(p, (width, height)) for p in pictures]))
    sheet = np.hstack(columns)
    grid = dataset.occupancy(scan)
    bottom = [top_view(scan), occupancy_slices(grid) if grid is not None else np.zeros((320, 320, 3), np.uint8)]
    page = np.full((320, max(sheet.shape[1] - 640, 320), 3), 255, np.uint8)
    for k, text in enumerate([scan.sample_idx, *texts][:19]):
        cv2.putText(page, text[:95], (6, 18 + 16 * k), cv2.FONT_HERSHEY_SIMPLEX, 0.36, (20, 20, 20), 1, cv2.LINE_AA)
    strip = np.hstack([*bottom, page])
    wide = max(sheet.shape[1], strip.shape[1])

    def padded(p: NDArray[Any]) -> NDArray[Any]:
        return np.pad(p, ((0, 0), (0, wide - p.shape[1]), (0, 0)), constant_values=255)

    return np.vstack([padded(sheet), padded(strip)]).astype(np.uint8)


def statistics(dataset: EmbodiedScanDataset) -> dict[str, Any]:
    """Counts over a split: scans, views, instances by class and by the benchmark's groups, box sizes, prompts."""
    labels: Counter[str] = Counter()
    sizes: dict[str, list[NDArray[np.float64]]] = {}
    views = tilted = 0
    for scan in dataset:
        views += len(scan.images)
        labels.update(scan.labels)
        tilted += int((np.abs(scan.boxes[:, 7:9]).max(1, initial=0) > 0.02).sum()) if len(scan.boxes) else 0
        for label, box in zip(scan.labels, scan.boxes, strict=True):
            sizes.setdefault(label, []).append(box[3:6])
    groups = {
        name: sum(labels[DETECTION_CLASSES[k]] for k in members)
        for name, members in (("head", HEAD_CLASSES), ("common", COMMON_CLASSES), ("tail", TAIL_CLASSES))
    }
    path = dataset.root / f"embodiedscan_{dataset.split}_vg.json"
    prompts = json.loads(path.read_text()) if path.exists() else []
    return {
        "scans": len(dataset),
        "views": views,
        "instances": sum(labels.values()),
        "classes": len(labels),
        "tilted": tilted,
        "groups": groups,
        "labels": dict(labels.most_common()),
        "median_size_m": {k: np.round(np.median(v, axis=0), 3).tolist() for k, v in sizes.items()},
        "prompts": len(prompts),
        "prompts_by_relation": dict(Counter(p.get("relation", "") for p in prompts)),
        "prompts_by_kind": dict(Counter(_KINDS.get(p.get("relation", ""), "other") for p in prompts)),
        "prompts_by_form": dict(Counter(p.get("form", "") for p in prompts)),
        "view_dependent": sum(bool(p.get("view_dependent")) for p in prompts),
        "hard": sum(len(p["distractor_ids"]) > 3 for p in prompts),
    }


def inspect(
    root: Path,
    out: Path,
    split: str = "train",
    limit: int = 12,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Write ``sheet_<seed>.png`` for up to ``limit`` scans and ``statistics.json`` into ``out``; return the numbers.

    ``progress`` receives the number of finished sheets and of all.
    """
    dataset = EmbodiedScanDataset(root, split)
    out.mkdir(parents=True, exist_ok=True)
    try:
        prompts = dataset.prompts()
    except FileNotFoundError:
        prompts = []
    sheets = min(limit, len(dataset))
    for index in range(sheets):
        scan = dataset[index]
        texts = [f"-> {p.target_ids[0]}: {p.text}" for p in prompts if p.scan_id == scan.sample_idx]
        name = scan.sample_idx.replace("/", "_")
        picture = contact_sheet(dataset, scan, texts)
        write_png(out / f"sheet_{name}.png", picture)
        progress(index + 1, sheets)
    numbers = statistics(dataset)
    write_json(out / "statistics.json", numbers)
    return numbers
