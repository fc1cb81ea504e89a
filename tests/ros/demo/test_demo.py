"""The demonstration: its figures and its verdict, what it does to a recording, and (slow) all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs.msg")

from rosbags.rosbag2 import StoragePlugin, Writer
from support import bag_tools, small_recording

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.recordings.tum import TumWriter
from embodied_perceptron_ros.demo import simulated
from embodied_perceptron_ros.demo.demo import find_problems
from embodied_perceptron_ros.node.monitor import NodeStatus
from embodied_perceptron_ros.players.replaying import (
    ReplayOutcome,
    choose_domain,
    frames_sent,
    percentiles,
    recording_parameters,
    wait_until_ready,
)

INTRINSICS = Intrinsics(fx=60.0, fy=60.0, cx=39.5, cy=29.5, width=80, height=60)
MOVED = {"text": "what moved?", "status": "NOT_FOUND", "reason": "nothing moved"}
GOOD: dict[str, Any] = {
    "frames_sent": 10,
    "frames_fused": 9,
    "frames_unexplained": 0,
    "map_error_m": 0.012,
    "messages": {"voxels": 3, "boxes": 4},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"map_error_m": None}, None),
        ({"map_error_m": 0.02}, None),
        ({"map_error_m": 0.0201}, "20.1 mm off"),
        ({"map_error_m": float("nan")}, "mm off"),
        ({"frames_unexplained": 1}, "1 frames were lost"),
        ({"frames_fused": 11}, "more frames were fused than sent"),
        ({"frames_fused": 0}, "no frame was fused"),
        ({"frames_sent": 0, "frames_fused": 0}, "no frame was sent"),
        ({"messages": {"voxels": 3, "boxes": 0}}, "published on boxes"),
        ({"second_drive": {"queries": [{**MOVED, "correct": True}]}}, None),
        ({"second_drive": {"queries": [{**MOVED, "correct": False}]}}, None),  # reported
        ({"second_drive": {"queries": [{**MOVED, "status": None}]}}, "never answered: what moved?"),
        ({"second_drive": {"frames_fused": 0, "queries": []}}, "no frame of the second drive"),
    ],
)
def test_verdict(change: dict[str, Any], words: str | None) -> None:
    problems = find_problems({**GOOD, **change})
    if words is None:
        assert problems == ()
    else:
        assert any(words in problem for problem in problems), problems


def test_unexplained_frames_are_those_without_a_fate() -> None:
    status = NodeStatus(
        "active", received=9, fused=6, pending=0, dropped={"no_pose": 2}, latency_ms={"fused": {"p50": 4}}
    )
    outcome = ReplayOutcome(10, status, {}, Path("m"), {}, {}, 1.0)
    assert outcome.unexplained == 2
    assert percentiles(outcome, "fused") == {"p50": 4, "p99": None}
    assert percentiles(outcome, "boxes") == {"p50": None, "p99": None}


def test_frames_sent_are_pairs_of_images() -> None:
    parameters = {
        "cameras": ["front", "rear"],
        **{"front.color_topic": "front/color/image_raw", "front.color_transport": "raw"},
        **{"front.depth_topic": "front/depth/image_raw", "front.depth_transport": "raw"},
        **{"rear.color_topic": "/rear/rgb", "rear.color_transport": "compressed"},
        **{"rear.depth_topic": "/rear/depth", "rear.depth_transport": "compressedDepth"},
    }
    messages = {"/front/color/image_raw": 10, "/front/depth/image_raw": 12, "/rear/rgb/compressed": 7, "/tf": 99}
    assert frames_sent({"messages": messages}, parameters) == 12 + 7


def test_more_fates_than_frames_explain_everything() -> None:
    status = NodeStatus("active", received=12, fused=9, dropped={"no_depth": 2, "no_color": 1})
    assert ReplayOutcome(11, status, {}, Path("m"), {}, {}, 1.0).unexplained == 0


def write_folder(path: Path, name: str = "camera") -> None:
    with TumWriter(path, INTRINSICS, camera=name, world_frame="map") as writer:
        for index in range(3):
            depth = np.full((60, 80), 1.5, np.float32)
            writer.add(10**18 + index * 10**8, np.full((60, 80, 3), 90, np.uint8), depth, np.eye(4))


def test_node_parameters_of_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "one")
    parameters = recording_parameters(open_recording(tmp_path / "one"), reliable=True)
    assert parameters["cameras"] == ["camera"]
    assert parameters["fusion_frame"] == "map"
    assert parameters["use_sim_time"] is True
    assert parameters["camera.color_topic"] == "color/image_raw"
    assert parameters["qos_overrides./depth/image_raw.subscription.reliability"] == "reliable"
    for name in ("front", "rear"):
        write_folder(tmp_path / "two" / name, name)
    (tmp_path / "two" / "cameras.json").write_text('["front", "rear"]')
    parameters = recording_parameters(open_recording(tmp_path / "two"), reliable=False)
    assert parameters["cameras"] == ["front", "rear"]
    assert parameters["rear.depth_topic"] == "rear/depth/image_raw"
    assert not any(key.startswith("qos_overrides") for key in parameters)


def test_node_parameters_of_a_bag_follow_its_topics(tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    store = bag_tools.STORE
    with Writer(bag, version=9, storage_plugin=StoragePlugin.MCAP) as writer:

        def write(topic: str, message: Any, stamp_ns: int) -> None:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], stamp_ns, store.serialize_cdr(message, kind))

        connections: dict[str, Any] = {}
        for index in range(3):
            stamp_ns = 10**18 + index * 10**8
            rgb = np.full((60, 80, 3), 50, np.uint8)
            jpeg = bag_tools.compressed(stamp_ns, "optical", "rgb8; jpeg compressed bgr8", _jpeg(rgb))
            write("/head/color/image_raw/compressed", jpeg, stamp_ns)
            depth = np.full((60, 80), 1500, np.uint16)
            write("/head/aligned_depth/image_raw", bag_tools.image(stamp_ns, "optical", depth), stamp_ns)
            write("/head/color/camera_info", bag_tools.camera_info(stamp_ns, "optical", INTRINSICS), stamp_ns)
            write("/tf", bag_tools.transform(stamp_ns, "odom", "optical", np.eye(4)), stamp_ns)
    recording = open_recording(bag)
    parameters = recording_parameters(recording, reliable=True)
    (camera,) = parameters["cameras"]
    assert parameters[f"{camera}.color_topic"] == "/head/color/image_raw"
    assert parameters[f"{camera}.color_transport"] == "compressed"
    assert parameters[f"{camera}.depth_topic"] == "/head/aligned_depth/image_raw"
    assert parameters[f"{camera}.depth_transport"] == "raw"
    assert parameters["qos_overrides./head/color/image_raw/compressed.subscription.reliability"] == "reliable"
    assert parameters["fusion_frame"] == "odom"


def _jpeg(rgb: np.ndarray) -> bytes:
    from embodied_perceptron.recordings.image_codec import encode_color_file

    return encode_color_file(rgb, ".jpg")


def test_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROS_DOMAIN_ID", raising=False)
    assert 1 <= choose_domain(None) <= 101
    monkeypatch.setenv("ROS_DOMAIN_ID", "17")
    assert choose_domain(None) == 17
    assert choose_domain(3) == 3


# --------------------------------------------------------------------------------------------------------------------
# the simulated drive


def test_simulated_recording_depends_on_the_renderer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = simulated.simulated_recording(7)
    assert folder.parent == tmp_path / "embodied_perceptron"
    assert folder.name == f"simulated_0007_{simulated.ROOMS}x{simulated.FRAMES}_{simulated.renderer_digest()}"
    monkeypatch.setattr(simulated, "RENDERER", "no_such_renderer")
    with pytest.raises(simulated.SimulationError, match="no_such_renderer"):
        simulated.renderer_digest()


def test_interrupted_rendering_leaves_no_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "drive"

    def fake(command: list[str]) -> int:
        folder = Path(command[command.index("--out") + 1])
        assert folder != target
        folder.mkdir()
        (folder / "rgb.txt").touch()
        return returncode

    monkeypatch.setattr(simulated, "_run", fake)
    returncode = 1
    with pytest.raises(simulated.SimulationError, match="exit code 1"):
        simulated.render(target, ("--seed", "7"))
    assert [p.name for p in tmp_path.iterdir()] == [".drive.lock"]
    returncode = 0
    assert simulated.render(target, ("--seed", "7")) is True
    assert sorted(p.name for p in tmp_path.iterdir()) == [".drive.lock", "drive"]
    assert simulated.render(target, ("--seed", "7")) is False


RENDER_AT_ONCE = """
import sys, time
from pathlib import Path
from embodied_perceptron_ros.demo import simulated

target, started = Path(sys.argv[1]), Path(sys.argv[2])

def slow(command):
    folder = Path(command[command.index("--out") + 1])
    folder.mkdir()
    (folder / "first").write_text(sys.argv[3])
    with started.open("a") as file:
        file.write(sys.argv[3])
    time.sleep(0.5)
    (folder / "rgb.txt").write_text(sys.argv[3])
    return 0

simulated._run = slow
print("ready", flush=True)
sys.stdin.readline()
made = simulated.render(target, ("--seed", "7"))
before = target.stat().st_ino
time.sleep(1.0)  # the other one would be done now
assert target.stat().st_ino == before, "the folder was replaced while it was read"
print(made)
"""


def test_two_processes_that_render_one_home_at_once_share_it(tmp_path: Path) -> None:
    """The second used to remove the folder that the first had made and was reading."""
    target, started = tmp_path / "drive", tmp_path / "started"
    command = [sys.executable, "-c", RENDER_AT_ONCE, str(target), str(started)]
    both = [
        subprocess.Popen(
            [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    try:
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in both:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=60) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(out.strip() for out, _ in said) == ["False", "True"]
    assert len(started.read_text()) == 1
    assert (target / "first").read_text() == (target / "rgb.txt").read_text()
    assert sum("another process is rendering" in err for _, err in said) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [".drive.lock", "drive", "started"]


def test_what_a_killed_rendering_left_behind_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "drive"
    for left in (target, tmp_path / "drive.part"):
        left.mkdir()
        (left / "half.jpg").touch()

    def fake(command: list[str]) -> int:
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir()
        (folder / "rgb.txt").touch()
        return 0

    monkeypatch.setattr(simulated, "_run", fake)
    assert simulated.render(target, ("--seed", "7")) is True
    assert [p.name for p in target.iterdir()] == ["rgb.txt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".drive.lock", "drive"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(simulated.SimulationError, match="cannot be written"):
        simulated.render(tmp_path / "file" / "drive", 7)


@pytest.mark.slow
def test_a_recording_whose_truth_cannot_be_read_is_not_scored(tmp_path: Path) -> None:
    (tmp_path / "scene.json").write_text("{}")
    with pytest.raises(simulated.SimulationError, match="scoring"):
        simulated.mission_score(tmp_path, *[tmp_path / "scene.json"] * 3)


def test_map_error_measures_distance_to_the_walls(tmp_path: Path) -> None:
    from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
    from embodied_perceptron_training.homes.recording import map_error_m

    truth = {"seed": 3, "spec": {"rooms": 1, "kind": "living room", "clutter": 1.0}}
    (tmp_path / "scene.json").write_text(json.dumps(truth))
    triangles = build_home(3, HomeSpec(1, "living room", 1.0)).triangles()
    on_surface = triangles.mean(axis=1)[::50]
    assert map_error_m(tmp_path, on_surface) < 1e-6
    far_below = on_surface - np.array([0.0, 0.0, 50.0])
    lowest = triangles[..., 2].min()
    expected = lowest - far_below[:, 2]
    assert map_error_m(tmp_path, far_below) == pytest.approx(expected.mean(), rel=0.02)
    with pytest.raises(ValueError, match="no points"):
        map_error_m(tmp_path, np.zeros((0, 3)))


# --------------------------------------------------------------------------------------------------------------------
# all of it


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.timeout(600)
def test_demo_on_real_data(kitchen_dir: Path, tmp_path: Path) -> None:
    from embodied_perceptron_ros.demo.demo import run_demo

    result = run_demo(tmp_path, kitchen_dir, rate=2.0)
    assert result.problems == ()
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["frames_sent"] == 100
    assert written["frames_fused"] + sum(written["frames_dropped"].values()) == 100
    assert written["map_error_m"] is None
    assert written["latency_ms"]["fused"]["p50"] > 0
    for name in ("top_view.png", "demo.rrd", "voxels.ply", "occupancy_grid.pgm", "objects.json"):
        assert (tmp_path / name).stat().st_size > 100, name


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.timeout(600)
def test_demo_on_the_simulated_drive(tmp_path: Path) -> None:
    from embodied_perceptron_ros.demo.demo import run_demo

    result = run_demo(tmp_path)
    assert result.problems == ()
    assert 0 < result.results["map_error_m"] <= 0.02


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.timeout(600)
def test_replay_of_a_small_folder_over_topics(tmp_path: Path) -> None:
    """Player, node, monitor, map service: the whole machinery on three frames."""
    from embodied_perceptron_ros.ros_commands import replay_over_topics

    write_folder(tmp_path / "recording")
    out = tmp_path / "out"
    assert replay_over_topics(source=tmp_path / "recording", out=out, config=None, max_frames=2, rate=1.0) == 0
    timings = json.loads((out / "timings.json").read_text())
    assert (timings["frames"], timings["fused"], timings["dropped"]) == (2, 2, {})
    names = {"map.safetensors", "voxels.ply", "objects.json", "top_view.png", "occupancy_grid.pgm", "timings.json"}
    assert names <= {p.name for p in out.iterdir()}


@pytest.mark.ros
@pytest.mark.timeout(600)
def test_failing_node_is_reported_with_its_log(tmp_path: Path) -> None:
    from embodied_perceptron_ros.players.replaying import ReplayFailedError, ReplayPlan, replay_over_ros

    write_folder(tmp_path / "recording")
    plan = ReplayPlan(tmp_path / "recording", tmp_path / "out", parameters={"config_file": "/no/such/file.yaml"})
    with pytest.raises(ReplayFailedError, match=r"(?s)the node ended.*node\.log.*no/such/file"):
        replay_over_ros(plan)


@pytest.mark.parametrize(
    ("reports", "steps"),
    [
        (["active loaded"], 0),
        (["configuring", "active loading", "active loading", "active loaded"], 3),
        (["absent", "active"], 1),  # a node of an earlier version
    ],
)
def test_nothing_is_played_before_the_kernels_are_loaded(reports: list[str], steps: int) -> None:
    class Monitor:
        taken = 0

        @property
        def status(self) -> NodeStatus:
            state, *kernels = reports[self.taken].split()
            return NodeStatus(state, areas={"map": {"kernels": kernels[0]}} if kernels else {})

        def step(self) -> None:
            self.taken += 1

    monitor = Monitor()
    wait_until_ready(monitor, monitor.step)
    assert monitor.taken == steps


def test_what_is_played_has_the_poses_of_ros(tmp_path: Path) -> None:
    with TumWriter(tmp_path / "r", small_recording.INTRINSICS) as writer:
        for stamp, color, depth_m, T in small_recording.frames(3):
            writer.add(stamp, color, depth_m, T @ np.diag([1.0, -1.0, -1.0, 1.0]))
    bag = simulated.converted(tmp_path / "r", tmp_path / "out", {"poses": "opengl", "pose_scale": 1.0})
    posed = list(PosedFrameStream(open_recording(bag), SynchronizerConfig()))
    assert len(posed) == 3
    for found, (_, _, _, T) in zip(posed, small_recording.frames(3), strict=True):
        np.testing.assert_allclose(found.T_world_camera, T, atol=1e-6)
    with pytest.raises(simulated.SimulationError, match="poses must be of"):
        simulated.converted(tmp_path / "r", tmp_path / "out", {"poses": "unity"})
