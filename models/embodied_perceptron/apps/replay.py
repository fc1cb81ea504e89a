"""Replay of a recording through the perceptron without ROS: the loop of the node, as fast as the machine allows.

Only the stamps of the recording count, never the clock of the machine, so the same recording and configuration give the
same map, bit for bit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.detection2d.persons import person_numbers
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.geometry.transforms import F64, invert_transform
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.artifacts import (
    write_groundings_json,
    write_objects_json,
    write_occupancy_grid,
    write_occupancy_npz,
    write_ply,
    write_png,
    write_scene_objects_json,
)
from embodied_perceptron.recordings.coco import image_stamps
from embodied_perceptron.recordings.files import write_json
from embodied_perceptron.recordings.recording import PosedFrameStream, Recording, TransformSample
from embodied_perceptron.results import Grounding, Perception, SemanticVoxels
from embodied_perceptron.scene.live_map import LOOKING_FOR_PLACE
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.poses import seconds_to_ns
from embodied_perceptron.sensors.synchronizer import Drop
from embodied_perceptron.visualization.top_view import render_top_view

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
NOT_FUSED = "no_usable_depth"  # a drop reason that only fusion detects


class PlaceNotFoundError(ValueError):
    """A recording could not be localised in a saved map; the message says why."""


@dataclass
class ReplayProgress:
    """Progress of a replay.

    Attributes:
        frames: number of colour images played.
        total: number of colour images of the recording (or fewer, when limited).
        fused: number of frames in the map.
        dropped: number of dropped frames by reason.
    """

    frames: int
    total: int
    fused: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """Result of a replay.

    Attributes:
        perceptron: holds the map.
        perception: of the whole map at the end.
        trajectory_m: (N, 3) camera positions of all fused frames, in the map frame.
        frames: number of colour images played; ``frames == fused + sum(dropped)`` unless the replay was limited.
        fused, dropped: number of frames, the dropped ones by reason.
        fuse_ms, perceive_ms: wall time of each call.
        empty_because: reason why the map is empty; "" where it is not.
        unusable: reason why a detector could not be used; "" where all could.
    """

    perceptron: Perceptron
    perception: Perception
    trajectory_m: F64
    frames: int
    fused: int
    dropped: dict[str, int]
    fuse_ms: F64
    perceive_ms: F64
    empty_because: str = ""
    unusable: str = ""

    @property
    def T_world_camera(self) -> F64 | None:  # noqa: N802
        """(4, 4) pose of the newest fused frame; None where nothing was fused."""
        source = self.perception.source
        return None if source is None else source.T_world_camera

    def ask(self, sentences: Sequence[str]) -> tuple[Grounding, ...]:
        """Answer sentences about the map from the last camera pose."""
        return tuple(self.perceptron.ground(text, self.T_world_camera) for text in sentences)


def replay(
    recording: Recording,
    config: PerceptronConfig | Perceptron,
    *,
    max_frames: int | None = None,
    world_frame: str | None = None,
    perceive_every_s: float = 1.0,
    on_progress: Callable[[ReplayProgress], None] | None = None,
    on_drop: Callable[[Drop], None] | None = None,
    on_refused: Callable[[TransformSample, str], None] | None = None,
) -> ReplayResult:
    """Play a recording into a new map, or continue an existing one once the robot is localised in it.

    Args:
        recording: played from its beginning.
        config: the configuration, or a perceptron whose map is continued.
        max_frames: stop after so many fused frames.
        world_frame: of the map; by default the recording's own.
        perceive_every_s: interval of recorded time between perceptions; another one follows at the end.
        on_progress: called after every frame.
        on_drop: called for every dropped frame.
        on_refused: called with invalid transforms, which are left out; by default they raise.

    Raises:
        RecordingError: the recording cannot be read.
        PlaceNotFoundError: the recording could not be localised in the map.
        ValueError: invalid transforms; limits that are not positive.
    """
    if max_frames is not None and max_frames < 1:
        raise ValueError(f"max_frames must be positive, got {max_frames}")
    if not perceive_every_s > 0:
        raise ValueError(f"perceive_every_s must be positive, got {perceive_every_s}")
    perceptron = config if isinstance(config, Perceptron) else Perceptron.from_config(config, image_stamps(recording))
    config = perceptron.config
    stream = PosedFrameStream(recording, config.assembler, world_frame=world_frame, on_refused=on_refused)
    total = len(recording) if max_frames is None else min(len(recording), max_frames)
    progress = ReplayProgress(0, total)
    positions: list[F64] = []
    fuse_ms: list[float] = []
    perceive_ms: list[float] = []
    due_ns: int | None = None
    jumps = 0
    unfused = Counter[str]()
    first_drops: dict[str, Drop] = {}
    unmapped_m: list[float] = []  # median depths of frames without a fused point

    def note(drop: Drop) -> None:
        first_drops.setdefault(drop.reason, drop)
        if on_drop:
            on_drop(drop)

    def report_progress() -> None:
        for drop in stream.take_drops():
            note(drop)
        progress.frames = stream.colors_played
        progress.dropped = Counter(stream.stats.dropped) + unfused
        if on_progress:
            on_progress(progress)

    for posed in stream:
        if not fuse_ms:
            _warm_up(perceptron, posed)
        stamp_ns = posed.frame.stamp_ns
        if (seen := stream.stats.time_jumps) != jumps:  # the recording starts over
            jumps, due_ns = seen, None
            perceptron.forget_stamps()
        report = _timed(fuse_ms, perceptron.integrate, posed)
        if estimate := perceptron.place_estimate:
            unfused[LOOKING_FOR_PLACE] += 1
            note(Drop(posed.frame.camera, stamp_ns, LOOKING_FOR_PLACE, estimate.reason))
            report_progress()
            continue
        if report.fused:
            progress.fused += 1
            positions.append((invert_transform(perceptron.T_world_map) @ posed.T_world_camera)[:3, 3])
        else:
            reason = report.reason if report.detail else NOT_FUSED
            unfused[reason] += 1
            note(Drop(posed.frame.camera, stamp_ns, reason, report.detail or report.reason))
        if report.points == 0 and not report.detail:
            known = posed.frame.depth_m[posed.frame.depth_m > 0]
            unmapped_m.append(float(np.median(known)) if len(known) else 0.0)
        if due_ns is None or stamp_ns >= due_ns:
            due_ns = stamp_ns + seconds_to_ns(perceive_every_s)
            _timed(perceive_ms, perceptron.perceive)
        report_progress()
        if progress.fused == max_frames:
            break
    report_progress()
    if estimate := perceptron.place_estimate:
        raise PlaceNotFoundError(f"{recording.source} cannot be localised in the map: {estimate.reason}")
    perception = _timed(perceive_ms, perceptron.perceive)
    empty = len(perception.voxels) == 0
    return ReplayResult(
        perceptron=perceptron,
        perception=perception,
        trajectory_m=np.array(positions).reshape(-1, 3),
        frames=progress.frames,
        fused=progress.fused,
        dropped=dict(progress.dropped),
        fuse_ms=np.array(fuse_ms),
        perceive_ms=np.array(perceive_ms),
        empty_because=_why_empty(config, progress, first_drops, unmapped_m) if empty else "",
        unusable=_why_unusable(perceptron.lift),
    )


def _why_unusable(lift: DetectionLift | None) -> str:
    """Return the error of a detector or encoder that could not run; "" where all could."""
    if lift is None:
        return ""
    s = lift.statistics()
    if s.last_error and (s.state == "disabled" or s.pictures == 0):
        return f"the detector could not be used ({s.pictures} pictures processed): {s.last_error}"
    if s.last_error and s.failures == 0:
        return f"the encoder of detections could not be used: {s.last_error}"
    return ""


def _why_empty(
    config: PerceptronConfig, progress: ReplayProgress, drops: Mapping[str, Drop], unmapped_m: Sequence[float]
) -> str:
    """Explain an empty map by the fate of the frames."""
    if progress.frames == 0:
        return "the recording has no colour image"
    if unmapped_m:
        nearest, farthest = config.volume.min_range_m, config.volume.max_range_m
        median = float(np.median(unmapped_m))
        if median == 0:
            return f"{len(unmapped_m)} frames have no depth at all"
        hint = "; is the unit of the depth right (depth_scale)?" if not nearest <= median <= farthest else ""
        return (
            f"{len(unmapped_m)} frames have no depth between min_range_m={nearest} and max_range_m={farthest}, their "
            f"median is {median:.4g} m{hint}"
        )
    if progress.dropped:
        reason, count = Counter(progress.dropped).most_common(1)[0]
        example = drops.get(reason)
        return f"{count} of {progress.frames} frames were dropped, {reason}" + (f": {example}" if example else "")
    return "all voxels were cleared again" if progress.fused else "nothing was fused"


def _warm_up(perceptron: Perceptron, posed: PosedFrame) -> None:
    """Compile all kernels on a scratch map, so that timings measure frames and not the compiler."""
    scratch = Perceptron(perceptron.config, inference=perceptron.inference)
    scratch.integrate(posed)
    scratch.perceive()


def _timed(times_ms: list[float], call: Callable[P, ResultT], *args: P.args, **named: P.kwargs) -> ResultT:
    """Call a function and append its wall time to ``times_ms``."""
    started = time.perf_counter()
    result = call(*args, **named)
    times_ms.append((time.perf_counter() - started) * 1e3)
    return result


# --------------------------------------------------------------------------------------------------------------------
# files


def percentiles(values_ms: F64) -> dict[str, float | None]:
    """Return ``{"p50": .., "p99": ..}`` of (N,) milliseconds, rounded to microseconds; None without values."""
    if len(values_ms) == 0:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values_ms, (50, 99))
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3)}


def timings(result: ReplayResult) -> dict[str, Any]:
    """Return the contents of ``timings.json``."""
    statistics = result.perceptron.statistics()
    return {
        "frames": result.frames,
        "fused": result.fused,
        "dropped": dict(sorted(result.dropped.items())),
        **({"empty_because": result.empty_because} if result.empty_because else {}),
        "fuse_ms": percentiles(result.fuse_ms),
        "perceive_ms": percentiles(result.perceive_ms),
        "voxels": len(result.perception.voxels),
        "blocks": statistics.blocks,
        "keyframes": statistics.keyframes,
        "memory_mb": round(statistics.memory_bytes / 1e6, 1),
        **({} if result.perceptron.lift is None else {"lift": _lift_numbers(result.perceptron.lift)}),
        "perceive_stage_ms": {name: round(ms, 3) for name, ms in result.perception.stage_ms.items()},
    }


def _lift_numbers(lift: DetectionLift) -> dict[str, Any]:
    """Return counts of lifted detections, and milliseconds per picture."""
    s = lift.statistics()
    pictures = max(s.pictures, 1)
    return {
        "pictures": s.pictures,
        "found": s.found,
        "lifted": s.lifted,
        "dropped": dict(sorted(s.dropped.items())),
        "detector": s.state,
        "failures": s.failures,
        "detector_ms": round(s.detector_ms / pictures, 3),
        "lift_ms": round((s.lift_ms + s.join_ms) / pictures, 3),
        **({} if s.persons is None else {"persons": person_numbers(s.persons)}),
    }


def write_results(result: ReplayResult, out: str | Path, groundings: Sequence[Grounding] = ()) -> dict[str, Path]:
    """Write the results of a replay into the folder ``out``, created if missing.

    Args:
        result: of :func:`replay`.
        out: the folder.
        groundings: answers about the map.

    Returns:
        Written files by name: ``map.safetensors``, those of :func:`write_perception`, and ``groundings.json`` with
        answers.

    Raises:
        OSError: a file cannot be written.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    result.perceptron.save(out / "map.safetensors")
    written = write_perception(out, result.perception, result.trajectory_m, timings(result))
    names = ["map.safetensors", *written]
    if groundings:
        write_groundings_json(out / "groundings.json", groundings)
        names.append("groundings.json")
    return {name: out / name for name in names}


def write_perception(
    out: Path,
    perception: Perception,
    trajectory_m: F64,
    numbers: Mapping[str, Any],
    semantic: SemanticVoxels | None = None,
) -> tuple[str, ...]:
    """Write a perception of the whole map into the folder ``out``.

    Args:
        out: the folder.
        perception: of the whole map.
        trajectory_m: (N, 3) positions of the cameras, for the picture.
        numbers: contents of ``timings.json``.
        semantic: labelled cells for ``occupancy.npz`` in place of those of the perception.

    Returns:
        Names of the files: ``voxels.ply``, ``objects.json`` (confirmed objects), ``scene_objects.json`` (the same with
        frame and stamp), ``occupancy.npz`` (labelled cells),
        ``top_view.png``, ``timings.json``, ``occupancy_grid.pgm``, ``occupancy_grid.yaml``. Coordinates are in the
        map frame; where it is not the world frame, ``timings.json`` holds its ``T_world_map``.

    Raises:
        OSError: a file cannot be written.
    """
    write_ply(out / "voxels.ply", perception.voxels.mean_point_m, perception.voxels.mean_color)
    objects = with_conditions(perception.objects, perception.voxels)
    write_objects_json(out / "objects.json", objects)
    write_scene_objects_json(out / "scene_objects.json", perception, objects)
    write_occupancy_npz(out / "occupancy.npz", perception.semantic if semantic is None else semantic)
    write_png(out / "top_view.png", render_top_view(perception, trajectory_m=trajectory_m))
    grid_files = write_occupancy_grid(out / "occupancy_grid", perception.grid)
    elsewhere = not np.array_equal(perception.T_world_map, np.eye(4))
    place = {"T_world_map": perception.T_world_map.tolist()} if elsewhere else {}
    write_json(out / "timings.json", {**numbers, **place})
    names = ("voxels.ply", "objects.json", "scene_objects.json", "occupancy.npz", "top_view.png", "timings.json")
    return (*names, *(path.name for path in grid_files))
