"""Network: time per stage and preset, with one and two threads, on a simulated room and on a recorded kitchen.

    python benchmarks/network.py                       # table, and out/bench/network.json
    python benchmarks/network.py --presets tiny,base   # some presets only
    EMBODIED_DATA_DIR=FOLDER ...                       # where `kitchen/` lies; without it the room alone

Weights are random and image features are those of random views: times, not answers. Random weights call every site
every name, as no trained network does, so no preset suppresses more boxes than `tiny` and `base` may. Wall time is what
a user waits for; CPU time does not see what else the machine does. Where MinkowskiEngine or spconv is installed, they
run the same layers in turn with ours, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import _report as report
import numpy as np
import torch

import embodied_perceptron  # noqa: F401  (sets the OpenMP waiting policy, before torch loads)
from embodied_perceptron.geometry.transforms import back_project, transform_points
from embodied_perceptron.mapping.image_features import StreamingLookup
from embodied_perceptron.nn.input_features import input_from_points, thin
from embodied_perceptron.nn.network import PerceptionNetwork, SharedFeatures, Viewpoint
from embodied_perceptron.nn.presets import PRESETS, NetworkConfig, network_config
from embodied_perceptron.nn.text_encoder import text_encoder
from embodied_perceptron.nn.view_fusion import View, ViewLookup, ViewSamplingConfig
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron.sparse.conv import SparseConv
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor

# whole passes on one core, milliseconds
GOALS: dict[tuple[str, str], float] = {
    ("tiny", "pass: detection"): 150,
    ("tiny", "pass: occupancy"): 150,
    ("tiny", "pass: grounding on top"): 100,
    ("base", "pass: all heads"): 700,
}
LONG_S = 5.0
MAX_CANDIDATES = 20_000  # pairs of box and class that enter suppression
SENTENCE = "the chair that is closest to the door"
Row = dict[str, Any]


def best_of(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """(wall, CPU) seconds of each call, run in turn.

    The first round, which may compile, counts only for calls that take so long that compiling does not matter; those
    are not repeated.
    """
    best = dict.fromkeys(calls, (float("inf"), float("inf")))
    for i in range(repeats + 1):
        for name, call in calls.items():
            if best[name][1] > LONG_S and best[name][1] < float("inf"):
                continue
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if i or cpu > LONG_S:
                best[name] = (min(best[name][0], wall), min(best[name][1], cpu))
    return best


# --------------------------------------------------------------------------------------------------------------------
# scenes


def simulated_room(count: int = 100_000) -> tuple[np.ndarray, np.ndarray]:
    """(P, 3) points and colours on 170 m2 of surface: a 6 x 5 x 2.8 m room with 14 boxes in it, noise of 3 mm."""
    r = np.random.default_rng(0)
    room = np.array([6.0, 5.0, 2.8])
    boxes = [(np.zeros(3), room)]
    for _ in range(14):
        size = r.random(3) * [1.4, 1.0, 1.0] + 0.3
        low = r.random(3) * [room[0] - size[0], room[1] - size[1], 0]
        boxes.append((low, low + size))
    faces = [
        (low, high, axis, side)
        for i, (low, high) in enumerate(boxes)
        for axis in range(3)
        for side in (low, high)
        if not (i and axis == 2 and side is low)
    ]
    areas = np.array([np.prod(np.delete(high - low, axis)) for low, high, axis, _ in faces])
    points = []
    for (low, high, axis, side), some in zip(faces, r.multinomial(count, areas / areas.sum()), strict=True):
        p = low + r.random((some, 3)) * (high - low)
        p[:, axis] = side[axis]
        points.append(p)
    return np.concatenate(points) + r.normal(0, 0.003, (count, 3)), r.integers(0, 256, (count, 3), dtype=np.uint8)


def recorded_kitchen(count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(P, 3) points and colours of the recorded views, or None when the recording is absent."""
    folder = report.data_folder("kitchen")
    if folder is None:
        return None
    camera = read_tum_camera(folder)
    poses, color_files = dict(camera.poses), dict(camera.color_files)
    frames = [(s, p) for s, p in camera.depth_files if s in poses and s in color_files]
    r = np.random.default_rng(0)
    points, colors = [], []
    for stamp, path in frames:
        local, valid = back_project(camera.read_depth(path), camera.intrinsics)
        rows = r.choice(np.flatnonzero(valid), count // len(frames))
        points.append(transform_points(poses[stamp], local.reshape(-1, 3)[rows]))
        colors.append(camera.read_color(color_files[stamp]).reshape(-1, 3)[rows])
    return np.concatenate(points), np.concatenate(colors)


def random_view(config: NetworkConfig, channels: tuple[int, ...], strides: tuple[int, ...], seed: int) -> View:
    """A view from inside of the room, with random features."""
    g = torch.Generator().manual_seed(seed)
    h, w = config.image.size
    yaw = torch.tensor(2 * torch.pi * seed / 50, dtype=torch.float64)
    forward = torch.stack([yaw.cos(), yaw.sin(), torch.tensor(0.0, dtype=torch.float64)])
    right = torch.stack([yaw.sin(), -yaw.cos(), torch.tensor(0.0, dtype=torch.float64)])
    R = torch.stack([right, torch.tensor([0, 0, -1.0], dtype=torch.float64), forward])
    K = torch.tensor([[0.9 * w, 0, w / 2], [0, 0.9 * w, h / 2], [0, 0, 1]], dtype=torch.float64)
    position = torch.tensor([3.0, 2.5, 1.5], dtype=torch.float64)
    projection = K @ torch.cat([R, -(R @ position)[:, None]], dim=1)
    levels = tuple(torch.randn(h // s, w // s, c, generator=g).half() for s, c in zip(strides, channels, strict=True))
    return View(projection, (h, w), levels)


# --------------------------------------------------------------------------------------------------------------------
# stages


def make_input(config: NetworkConfig, points: np.ndarray, colors: np.ndarray, engine: str = "torch") -> SparseTensor:
    x = input_from_points(points, colors, config.voxel_size_m, config.inputs, engine=get_engine(engine))  # type: ignore
    return thin(x, config.max_sites)


def fresh(x: SparseTensor) -> SparseTensor:
    """The same tensor without remembered maps, as every new frame has it."""
    return SparseTensor(Sites(x.keys.clone(), x.stride, x.batch_size, x.sites.engine), x.feats)


def build_maps(net: PerceptionNetwork, x: SparseTensor) -> None:
    """All sites and kernel maps of the backbone, nothing else."""
    b = net.config.backbone
    sites = x.sites
    for factor, size in [(b.stem_stride, 3), *([(2, 2)] if b.pool else [])]:
        out = sites.coarser(factor)
        sites.kernel_map(out, size)
        sites = out
    for _ in b.channels:
        out = sites.coarser(2)
        for a, size in ((sites, 3), (sites, 1), (out, 3)):
            a.kernel_map(out, size)
        sites = out


def geometry_rows(
    config: NetworkConfig, net: PerceptionNetwork, x: SparseTensor, repeats: int
) -> dict[str, tuple[float, float]]:
    """Everything that works on sites. Each stage starts from what the stages before it would have left."""
    channels = net.image_channels

    def lookup(level: int, sites: Sites) -> torch.Tensor:
        return torch.zeros(len(sites), channels[level])

    calls: dict[str, Callable[[], Any]] = {
        "maps of the backbone": lambda: build_maps(net, fresh(x)),
        "backbone with maps": lambda: net.backbone(fresh(x)),
    }
    levels = net.encode(x, lookup)

    def refreshed() -> list[SparseTensor]:
        return [fresh(level) for level in levels]

    if net.detection is not None:
        detected = net.detect(levels)
        calls["neck and detection head"] = lambda: net.detect(refreshed())
        features = SharedFeatures(x, levels, lookup, detected)
        calls["boxes and suppression"] = lambda: net.boxes(features)
    if net.occupancy is not None and config.occupancy is not None:
        cell = round(config.occupancy.cell_size_m / config.voxel_size_m)
        calls["occupancy"] = lambda: net.occupy(levels, [-10 * cell, -10 * cell, 0], lookup)
    if net.grounding is not None and config.grounding is not None:
        shared = net.detect(levels) if net.detection is not None else None
        tokens = torch.randn(1, 12, config.grounding.text_channels)
        viewpoint = None if config.inputs == "xyz" else Viewpoint(torch.zeros(1, 3), torch.zeros(1))
        calls["grounding (neck of its own)" if config.grounding.own_neck else "grounding"] = lambda: net.ground(
            net.candidates(refreshed(), shared), tokens, torch.zeros(1, 12, dtype=torch.bool), viewpoint
        )
    return best_of({**calls, **passes(config, net, x, lookup)}, repeats)


def passes(
    config: NetworkConfig, net: PerceptionNetwork, x: SparseTensor, lookup: Callable[[int, Sites], torch.Tensor]
) -> dict[str, Callable[[], Any]]:
    """What a user waits for, from input sites to results; grounding without the text encoder, on top of detection."""
    cell = round(config.occupancy.cell_size_m / config.voxel_size_m) if config.occupancy is not None else 1
    origin = [-10 * cell, -10 * cell, 0]
    tokens = torch.randn(1, 12, config.grounding.text_channels) if config.grounding is not None else torch.zeros(0)
    pad = torch.zeros(1, 12, dtype=torch.bool)
    viewpoint = None if config.inputs == "xyz" else Viewpoint(torch.zeros(1, 3), torch.zeros(1))

    def detection() -> None:
        net.boxes(net(fresh(x), lookup))

    def everything() -> None:
        shared = net(fresh(x), lookup)
        net.boxes(shared)
        net.occupy(shared.levels, origin, lookup)
        net.ground(net.candidates(shared.levels, shared.detection), tokens, pad, viewpoint)

    calls: dict[str, Callable[[], Any]] = {}
    if net.detection is not None:
        calls["pass: detection"] = detection
    if net.occupancy is not None:
        calls["pass: occupancy"] = lambda: net.occupy(net.encode(fresh(x), lookup), origin, lookup)
    if net.detection is not None and net.occupancy is not None and net.grounding is not None:
        calls["pass: all heads"] = everything
    return calls


def goal_rows(rows: list[Row]) -> list[Row]:
    """Goals beside what was measured on one core. CPU time counts: the work, whatever else the machine did."""
    found = []
    for (preset, stage), goal in GOALS.items():
        mine = [r for r in rows if r["preset"] == preset and r["threads"] == 1]
        for scene in sorted({r["scene"] for r in mine if r["scene"]}):
            ms = {r["stage"]: r["cpu_ms"] for r in mine if r["scene"] in (scene, "")}
            on_top = [v for k, v in ms.items() if k in ("grounding", "text encoder minilm")]
            value = sum(on_top) if stage.endswith("on top") else ms.get(stage)
            if value is not None:
                found.append(report.goal(f"{preset}, {scene}, {stage}, CPU ms", value, most=goal))
    return found


def fusion_rows(
    config: NetworkConfig, net: PerceptionNetwork, x: SparseTensor, count: int
) -> dict[str, tuple[float, float]]:
    """Image features of all backbone levels: from all views at once, and what one more view costs a live map."""
    if net.image_encoder is None or len(net.image_channels) < len(config.backbone.channels):
        return {}
    views = [random_view(config, net.image_channels, net.image_encoder.strides, i) for i in range(count + 1)]
    sites, site_levels = x.sites.coarser(config.backbone.strides[0]), []
    for _ in config.backbone.channels:
        site_levels.append(sites)
        sites = sites.coarser(2)
    fusion = ViewSamplingConfig(conventions=config.conventions)
    batch = ViewLookup([views[:count]], net.image_channels, config.voxel_size_m, fusion)
    live = StreamingLookup(net.image_channels, config.voxel_size_m, fusion)

    def ask(lookup: Callable[[int, Sites], torch.Tensor]) -> None:
        for level, sites in enumerate(site_levels):
            lookup(level, sites)

    spent = [(float("inf"), float("inf"))]
    for _ in range(3):
        live.views = views[:count]
        ask(live)
        live.views = views
        wall, cpu = time.perf_counter(), time.process_time()
        ask(live)
        spent.append((time.perf_counter() - wall, time.process_time() - cpu))
        live = StreamingLookup(net.image_channels, config.voxel_size_m, fusion)
    rows = best_of({f"fusion of {count} views at once": lambda: ask(batch)}, 2)
    rows["fusion of one more view, live"] = min(spent)
    return rows


def encoder_rows(config: NetworkConfig, net: PerceptionNetwork, repeats: int) -> dict[str, tuple[float, float]]:
    """One image, one sentence."""
    calls: dict[str, Callable[[], Any]] = {}
    if net.image_encoder is not None:
        size = config.image.size
        color = torch.randint(0, 256, (1, 480, 640, 3), dtype=torch.uint8)
        calls[f"image encoder {config.image.encoder} {size[0]}x{size[1]}"] = lambda: net.encode_images(color)
    if config.grounding is not None:
        name = config.grounding.text_encoder
        with contextlib.suppress(FileNotFoundError):  # RoBERTa is only there where a user brought it
            text = text_encoder(name)
            calls[f"text encoder {name}"] = lambda: text.encode([SENTENCE])
    return best_of(calls, repeats)


# --------------------------------------------------------------------------------------------------------------------
# other engines


def engine_rows(
    config: NetworkConfig, points: np.ndarray, colors: np.ndarray, repeats: int
) -> dict[str, tuple[float, float]]:
    """The same backbone by MinkowskiEngine, in turn with ours."""
    if importlib.util.find_spec("MinkowskiEngine") is None:
        return {}
    net = PerceptionNetwork(config).eval()
    inputs = {name: make_input(config, points, colors, name) for name in ("torch", "minkowski")}
    return best_of({f"backbone by {name}": lambda x=x: net.backbone(fresh(x)) for name, x in inputs.items()}, repeats)  # type: ignore


def spconv_rows(
    config: NetworkConfig, points: np.ndarray, colors: np.ndarray, repeats: int
) -> dict[str, tuple[float, float]]:
    """Three submanifold layers of 64 channels on the input sites by spconv, in turn with ours."""
    if importlib.util.find_spec("spconv") is None:
        return {}
    import spconv.pytorch as spconv

    x = make_input(config, points, colors)
    x = x.replace(torch.randn(len(x), 64))
    ours = torch.nn.Sequential(*[SparseConv(64, 64) for _ in range(3)])
    theirs = spconv.SparseSequential(*[spconv.SubMConv3d(64, 64, 3, bias=False, indice_key="a") for _ in range(3)])
    low = x.coords.min(dim=0).values
    rows = torch.cat([x.samples[:, None], x.coords - low], dim=1).int()
    shape = (x.coords.max(dim=0).values - low + 1).tolist()
    return best_of(
        {
            "3 submanifold layers by torch": lambda: ours(fresh(x)),
            "3 submanifold layers by spconv": lambda: theirs(spconv.SparseConvTensor(x.feats, rows, shape, 1)),
        },
        repeats,
    )


def bounded(config: NetworkConfig) -> NetworkConfig:
    """The preset with a bound on what enters suppression, for weights that are random."""
    head = config.detection
    if head is None or head.max_candidates:
        return config
    return dataclasses.replace(config, detection=dataclasses.replace(head, max_candidates=MAX_CANDIDATES))


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument(
        "--tasks", default="all,occupancy", help="occupancy is of paper alone, where it is a network of its own"
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--points", type=int, default=100_000, help="of a scene")
    parser.add_argument("--views", type=int, default=50, help="of the fusion of images")
    parser.add_argument("--repeats", type=int, default=3)
    options = report.parse(parser, tasks="all", threads="1", points=3000, views=3, repeats=1)
    torch.set_grad_enabled(False)
    scenes = {"room": simulated_room(options.points), "kitchen": recorded_kitchen(options.points)}
    rows: list[Row] = []
    for preset in options.presets.split(","):
        for task in options.tasks.split(","):
            if task == "occupancy" and preset != "paper":
                continue
            config = bounded(network_config(preset, task))
            torch.manual_seed(0)
            net = PerceptionNetwork(config).eval()
            for threads in [int(v) for v in options.threads.split(",")]:
                torch.set_num_threads(threads)
                measured: list[tuple[str, int, dict[str, tuple[float, float]]]] = []
                for scene, cloud in scenes.items():
                    if cloud is None:
                        continue
                    x = make_input(config, *cloud)
                    measured.append((scene, len(x), geometry_rows(config, net, x, options.repeats)))
                    if scene == "room" and threads == 1:
                        measured.append((scene, len(x), fusion_rows(config, net, x, options.views)))
                        measured.append((scene, len(x), engine_rows(config, *cloud, options.repeats)))
                        measured.append((scene, len(x), spconv_rows(config, *cloud, options.repeats)))
                measured.append(("", 0, encoder_rows(config, net, options.repeats)))
                for scene, sites, times in measured:
                    for stage, (wall, cpu) in times.items():
                        row = {"preset": f"{preset} {task}".removesuffix(" all"), "threads": threads, "scene": scene}
                        rows.append({**row, "sites": sites, "stage": stage, "ms": 1e3 * wall, "cpu_ms": 1e3 * cpu})
                report.console.print(f"{preset} {task}, {threads} thread(s): measured")
    report.show("network, time per stage", rows)
    goals = goal_rows(rows)
    report.show("goals on one core", goals)
    report.write(options, {"points": options.points, "stages": rows, "goals": goals})
    return 0


if __name__ == "__main__":
    sys.exit(main())
