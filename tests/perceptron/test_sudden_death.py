"""kill -9 at every moment of a save, an export and a recording: a file is the old one or the whole new one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from support.online_world import walk
from support.volume_frames import posed

from embodied_perceptron.apps.replay import write_perception
from embodied_perceptron.config import ObjectsConfig, PerceptronConfig, SegmentationConfig, VolumeConfig
from embodied_perceptron.mapping import storage
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings import files
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import DepthSample
from embodied_perceptron.recordings.tum import TumWriter
from embodied_perceptron.scene.live_map import labels_path

pytestmark = pytest.mark.forks

MOST_MOMENTS = 64
OLD, NEW = "Anna's desk", "Bert's desk"


class Doom:
    """Ends this process with SIGKILL at its n-th moment: a write half done, before a flush or a rename."""

    def __init__(self, moment: int) -> None:
        self._left = moment

    def pass_by(self, half: Callable[[], object] = lambda: None) -> None:
        self._left -= 1
        if self._left < 0:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self) -> None:
        """Put itself before everything that changes a disk here."""
        write, flush, replace, save = Path.write_bytes, files._flush, os.replace, storage.save_file

        def write_bytes(path: Path, data: bytes) -> int:
            self.pass_by(lambda: write(path, bytes(data)[: len(data) // 2]))
            return write(path, data)

        def save_file(tensors: dict[str, torch.Tensor], name: str, metadata: dict[str, str]) -> None:
            self.pass_by(lambda: write(Path(name), b"12345"))
            save(tensors, name, metadata)

        def flushed(path: Path) -> None:
            self.pass_by()
            flush(path)

        def replaced(source: Path, target: Path) -> None:
            self.pass_by()
            replace(source, target)

        Path.write_bytes = write_bytes  # type: ignore[assignment,method-assign]
        files._flush = flushed
        files.os.replace = replaced  # type: ignore[attr-defined]
        storage.save_file = save_file


def deaths(act: Callable[[], object]) -> Iterator[int]:
    """Copies of this process die at each moment of ``act`` in turn, until one gets through; yields after each death."""
    for moment in range(MOST_MOMENTS):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.set_num_threads(1)  # threads do not live on in a copy
                cv2.setNumThreads(0)
                Doom(moment).arm()
                act()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "it failed instead of dying"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield moment
    raise AssertionError(f"still dying after {MOST_MOMENTS} moments")


def contents(folder: Path) -> dict[str, bytes]:
    """Files but what dead writers left, which later writers remove (``tests/mapping/test_volume_files.py``)."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".tmp"}


def a_map(seed: int, name: str = "") -> Perceptron:
    it = Perceptron(
        PerceptronConfig(
            volume=VolumeConfig(voxel_size_m=0.04, max_blocks=4000),
            objects=ObjectsConfig(SegmentationConfig(min_cells=8)),
        )
    )
    for frame in walk(seed, 6):
        it.integrate(frame)
        it.perceive()
    if name:
        it.name_object(it.objects[0].id, name)
    return it


def test_a_map_saved_over_another_is_one_of_both(tmp_path: Path) -> None:
    old, new = a_map(3, OLD), a_map(4, NEW)
    folder, goal = tmp_path / "maps", tmp_path / "goal"
    folder.mkdir()
    goal.mkdir()
    path = folder / "home.safetensors"
    old.save(path)
    new.save(goal / path.name)
    before, after = contents(folder), contents(goal)
    assert set(before) == set(after) == {path.name, labels_path(path).name}
    seen = set()
    for _ in deaths(lambda: new.save(path)):
        now = contents(folder)
        assert set(now) == set(before)
        assert all(data in (before[name], after[name]) for name, data in now.items())
        again = Perceptron(old.config)
        again.load(path)
        in_map = {o.user_name for o in again.objects if o.user_name}
        in_labels = {o["user_name"] for o in json.loads(now[labels_path(path).name])["names"]}
        seen.add((*in_map, *in_labels))
    # the labels beside a map never run ahead of it
    assert seen == {(OLD, OLD), (NEW, OLD), (NEW, NEW)}
    assert contents(folder) == after


@pytest.mark.slow
def test_an_export_that_dies_leaves_whole_files(tmp_path: Path) -> None:
    """What ``replay --out`` writes, over an older run's."""
    old, new = a_map(5).perceive(), a_map(6).perceive()
    folder, goal = tmp_path / "out", tmp_path / "goal"
    folder.mkdir()
    goal.mkdir()
    nowhere = np.zeros((0, 3))
    write_perception(folder, old, nowhere, {"frames": 1})
    write_perception(goal, new, nowhere, {"frames": 2})
    before, after = contents(folder), contents(goal)
    assert set(before) == set(after)
    seen = 0
    for _ in deaths(lambda: write_perception(folder, new, nowhere, {"frames": 2})):
        now = contents(folder)
        assert set(now) == set(before)
        assert all(data in (before[name], after[name]) for name, data in now.items())
        if now["occupancy_grid.yaml"] == after["occupancy_grid.yaml"] != before["occupancy_grid.yaml"]:
            assert now["occupancy_grid.pgm"] == after["occupancy_grid.pgm"]
        seen += 1
    assert seen >= 4 * len(after)
    assert contents(folder) == after


@pytest.mark.slow
def test_an_encoder_that_is_exported_and_dies_leaves_the_old_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from embodied_perceptron.inference.onnx import OnnxImageEncoder, export_image_encoder
    from embodied_perceptron.nn.image_encoder import ResNetEncoder

    path = tmp_path / "image.onnx"
    export_image_encoder(ResNetEncoder(4, (1, 1, 1, 1)).eval(), path)
    before = path.read_bytes()
    new = ResNetEncoder(8, (1, 1, 1, 1)).eval()
    for _ in deaths(lambda: export_image_encoder(new, path)):
        if path.read_bytes() != before:
            break
        assert OnnxImageEncoder(path, threads=1).metadata["out_channels"][0] == 16
    run = OnnxImageEncoder(path, threads=1)
    assert run.metadata["out_channels"] == list(new.out_channels)


def frames_of(folder: Path) -> int:
    return sum(isinstance(sample, DepthSample) for sample in open_recording(folder))


def test_a_recording_whose_writer_died_is_refused_by_name_until_it_is_whole(tmp_path: Path) -> None:
    frames = [posed(np.full((48, 64), 1.5, np.float32), i) for i in range(2)]

    def write(folder: Path) -> None:
        with TumWriter(folder, frames[0].frame.intrinsics) as out:
            for one in frames:
                out.add(one.frame.stamp_ns, one.frame.color, one.frame.depth_m, one.T_world_camera)

    refused = 0
    folders = [tmp_path / f"run{i}" for i in range(MOST_MOMENTS)]
    moments = iter(folders)
    for moment in deaths(lambda: write(next(moments))):
        next(moments)  # the copy took its own
        folder = folders[moment]
        if (folder / "rgb.txt").exists():
            assert frames_of(folder) == len(frames)
        else:
            refused += 1
            with pytest.raises(ValueError, match=folder.name):
                open_recording(folder)
    assert refused > 8
    assert frames_of(folders[moment + 1]) == len(frames)
