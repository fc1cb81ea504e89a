"""Overlap and suppression of 9-DoF boxes: time on one core beside plain ways to do the same, in the same run.

    python benchmarks/boxes.py            # table, and out/bench/boxes.json

The peers are what one would write without this module: one pair at a time by half-space intersection (exact, with
SciPy's Qhull; its starting point is sampled, so slivers come out as 0), Monte Carlo with 1,000 samples per pair, and
the differentiable torch twin over all pairs. They run on a share of the pairs and are scaled up; their largest
difference from the kernel on that share stands beside them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import _report as report
import numpy as np
import torch
from scipy.spatial import ConvexHull, HalfspaceIntersection, QhullError

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry.suppression import nms

ROOM_M = 5.0


def room_boxes(n: int, generator: torch.Generator) -> torch.Tensor:
    """Boxes of 0.2 to 1.5 m spread evenly over the room, any rotation."""
    u = torch.rand(n, 9, generator=generator)
    return torch.cat([u[:, :3] * ROOM_M, 0.2 + 1.3 * u[:, 3:6], (u[:, 6:] - 0.5) * 2 * torch.pi], dim=1)


def decoder_boxes(n: int, objects: int, generator: torch.Generator) -> torch.Tensor:
    """What a decoder leaves: many slightly different boxes per object."""
    boxes = room_boxes(objects, generator)[torch.randint(0, objects, (n,), generator=generator)]
    boxes = boxes + 0.05 * torch.randn(n, 9, generator=generator)
    boxes[:, 3:6] = boxes[:, 3:6].clamp_min(0.05)
    return boxes


def best_of(call: Callable[[], Any], repeats: int = 5) -> float:
    """Milliseconds; the first call, which may compile, is not counted."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def halfspace_iou(a: torch.Tensor, b: torch.Tensor) -> float:
    """IoU of one pair by intersecting twelve half spaces."""
    planes = []
    for box in (a, b):
        R, half = bx.rotations(box[None].double())[0].numpy(), 0.5 * box[3:6].double().numpy()
        for axis in range(3):
            for sign in (1.0, -1.0):
                normal = sign * R[:, axis]
                planes.append([*normal, -normal @ box[:3].double().numpy() - half[axis]])
    # a point inside of both, the deepest of a sample in one of them
    g = np.random.default_rng(0)
    A = np.array(planes)
    points = (g.random((4000, 3)) - 0.5) * a[3:6].numpy() @ bx.rotations(a[None])[0].numpy().T + a[:3].numpy()
    slack = (points @ A[:, :3].T + A[:, 3]).max(1)
    if slack.min() > -1e-6:
        return 0.0
    try:
        inter = ConvexHull(HalfspaceIntersection(A, points[slack.argmin()]).intersections).volume
    except QhullError:
        return 0.0
    return float(inter / (float(a[3:6].prod()) + float(b[3:6].prod()) - inter))


def monte_carlo_iou(a: torch.Tensor, b: torch.Tensor, samples: torch.Tensor) -> float:
    """IoU of one pair from ``samples`` (S, 3) in the unit cube."""
    world = (samples * a[3:6]) @ bx.rotations(a[None])[0].T + a[:3]
    inter = float(bx.points_in_boxes(world, b[None]).float().mean()) * float(a[3:6].prod())
    return inter / (float(a[3:6].prod()) + float(b[3:6].prod()) - inter)


def near_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(K, 2) pairs whose spheres meet: a fair peer rejects the others as cheaply."""
    reach = 0.5 * (a[:, 3:6].norm(dim=1)[:, None] + b[:, 3:6].norm(dim=1)[None])
    return (torch.cdist(a[:, :3], b[:, :3]) < reach).nonzero()


def overlap_rows(n: int, sampled: int, generator: torch.Generator) -> list[dict[str, Any]]:
    a, b = room_boxes(n, generator), room_boxes(n, generator)
    exact = bx.box_iou(a, b)
    rows = [
        {
            "what": f"IoU {n} x {n}, spread over 5 m",
            "how": "box_iou",
            "ms": best_of(lambda: bx.box_iou(a, b)),
            "note": f"{int((exact > 0).sum())} pairs overlap",
        }
    ]
    pairs = near_pairs(a, b)
    sample = pairs[torch.randperm(len(pairs), generator=generator)[:sampled]]
    unit = torch.rand(1000, 3, generator=generator) - 0.5
    for name, iou_of in (
        ("half spaces, pair by pair", halfspace_iou),
        ("Monte Carlo 1000, pair by pair", lambda p, q: monte_carlo_iou(p, q, unit)),
    ):
        start = time.perf_counter()
        values = torch.tensor([iou_of(a[i], b[j]) for i, j in sample.tolist()])
        ms = 1e3 * (time.perf_counter() - start) * len(pairs) / len(sample)
        worst = float((values - exact[sample[:, 0], sample[:, 1]]).abs().max())
        rows.append({"what": rows[0]["what"], "how": name, "ms": ms, "note": f"scaled; differs by up to {worst:.1e}"})
    some = pairs[torch.randperm(len(pairs), generator=generator)[:20_000]]
    p, q = a[some[:, 0]].clone().requires_grad_(), b[some[:, 1]]
    start = time.perf_counter()
    twin = bx.paired_iou(p, q)
    ms = 1e3 * (time.perf_counter() - start) * len(pairs) / len(some)
    worst = float((twin.detach() - exact[some[:, 0], some[:, 1]]).abs().max())
    rows.append(
        {
            "what": rows[0]["what"],
            "how": "torch twin (with gradient)",
            "ms": ms,
            "note": f"scaled; differs by {worst:.1e}",
        }
    )
    return rows


def plain_nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> list[int]:
    """One kept box against all the rest at a time, with the same exact overlap."""
    order, kept = torch.argsort(scores, descending=True), []
    while len(order):
        kept.append(int(order[0]))
        iou = bx.box_iou(boxes[order[:1]], boxes[order[1:]])[0]
        order = order[1:][iou <= threshold]
    return kept


def suppression_rows(n: int, generator: torch.Generator) -> list[dict[str, Any]]:
    rows = []
    for name, boxes, classes in (
        (f"NMS {n}, 30 objects, one class", decoder_boxes(n, 30, generator), 1),
        (f"NMS {n}, 100 objects, 20 classes", decoder_boxes(n, 100, generator), 20),
        (f"NMS {n} spread, one class (worst)", room_boxes(n, generator), 1),
    ):
        scores = torch.rand(n, generator=generator)
        labels = torch.randint(0, classes, (n,), generator=generator)
        kept = nms(boxes, scores, labels, 0.5)
        ms = best_of(lambda b=boxes, s=scores, k=labels: nms(b, s, k, 0.5))  # type: ignore[misc]
        rows.append({"what": name, "how": "nms", "ms": ms, "note": f"{len(kept)} kept"})
        if classes == 1:
            start = time.perf_counter()
            plain = plain_nms(boxes, scores, 0.5)
            ms = 1e3 * (time.perf_counter() - start)
            rows.append({"what": name, "how": "row by row", "ms": ms, "note": f"{len(plain)} kept"})
    return rows


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument(
        "--boxes", type=int, default=1000, help="of each of the two sets; suppression has four times as many"
    )
    parser.add_argument("--sampled", type=int, default=300, help="pairs that the slow peers do")
    options = report.parse(parser, boxes=100, sampled=30)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rows = overlap_rows(options.boxes, options.sampled, generator) + suppression_rows(4 * options.boxes, generator)
    n = 100 * options.boxes
    points, boxes = ROOM_M * torch.rand(n, 3, generator=generator), room_boxes(50, generator)
    ms = best_of(lambda: bx.points_in_boxes(points, boxes), 3)
    rows.append({"what": f"{n} points in 50 boxes", "how": "points_in_boxes", "ms": ms, "note": ""})
    report.show("boxes, one core", rows)
    report.write(options, {"boxes": options.boxes, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
