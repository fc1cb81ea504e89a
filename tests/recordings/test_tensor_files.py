"""Safetensors with limits, and disks that are full: the old file stays, the error is one of the system."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from embodied_perceptron.mapping.storage import MapFileError, read_map, write_map
from embodied_perceptron.recordings import tensor_files
from embodied_perceptron.recordings.tensor_files import TensorFileError, read_metadata, read_tensors
from embodied_perceptron.weights.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint

# a process whose files may not grow beyond 64 KiB, as on a full disk
FULL_DISK = """
import resource, signal, sys
import torch
from embodied_perceptron.mapping.storage import write_map
from embodied_perceptron.weights.checkpoint import Checkpoint, save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
tensors = {"a": torch.ones(100_000)}
for write in (
    lambda: write_map(sys.argv[1], tensors, {}),
    lambda: save_checkpoint(sys.argv[2], Checkpoint(tensors, {}, (), {})),
):
    try:
        write()
    except OSError as error:
        print("OSError", error)
"""


def test_a_full_disk_is_an_error_of_the_system_and_leaves_the_old_files(tmp_path: Path) -> None:
    map_file, weights = tmp_path / "old.map", tmp_path / "old.safetensors"
    write_map(map_file, {"a": torch.zeros(3)}, {"x": 1})
    save_checkpoint(weights, Checkpoint({"a": torch.zeros(3)}, {}, ("chair",), {}))
    before = map_file.read_bytes(), weights.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(map_file), str(weights)], capture_output=True, text=True, timeout=100
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["OSError"] * 2, done
    assert "old.map" in lines[0]
    assert "old.safetensors" in lines[1]
    assert (map_file.read_bytes(), weights.read_bytes()) == before
    assert len(list(tmp_path.iterdir())) == 2  # no rest


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OSError, match=r"m\.map"):
            write_map(tmp_path / "m.map", {"a": torch.zeros(3)}, {})
    finally:
        tmp_path.chmod(0o700)


def test_a_header_larger_than_any_is_refused_before_it_is_read(tmp_path: Path) -> None:
    claimed = tensor_files.MAX_HEADER_BYTES + 1
    for name in ("a.map", "a.safetensors"):
        with open(tmp_path / name, "wb") as file:  # sparse: takes no disk
            file.write(struct.pack("<Q", claimed))
            file.truncate(claimed + 100)
    with pytest.raises(MapFileError, match=r"a\.map has a header of"):
        read_map(tmp_path / "a.map")
    with pytest.raises(CheckpointError, match=r"a\.safetensors has a header of"):
        load_checkpoint(tmp_path / "a.safetensors")


def test_a_file_larger_than_any_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(1000)}, str(tmp_path / "a"))
    assert list(read_tensors(tmp_path / "a")[0]) == ["a"]
    monkeypatch.setattr(tensor_files, "MAX_FILE_BYTES", 1000)
    with pytest.raises(TensorFileError, match="at most 1000"):
        read_tensors(tmp_path / "a")


def test_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        for read in (read_tensors, read_metadata):
            with pytest.raises(TensorFileError, match="not a regular file"):
                read(path)


def test_what_is_read_is_of_one_file_though_another_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    save_file({"a": torch.zeros(3)}, str(path), metadata={"of": "zeros"})
    check = tensor_files.stat.S_ISREG

    def replaced_meanwhile(mode: int) -> bool:  # asked once it is open
        save_file({"a": torch.ones(3)}, str(path), metadata={"of": "ones"})
        return check(mode)

    with monkeypatch.context() as patched:
        patched.setattr(tensor_files.stat, "S_ISREG", replaced_meanwhile)
        tensors, metadata, _ = read_tensors(path)
    assert (metadata, tensors["a"].tolist()) == ({"of": "zeros"}, [0.0, 0.0, 0.0])
    tensors, metadata, _ = read_tensors(path)
    assert (metadata, tensors["a"].tolist()) == ({"of": "ones"}, [1.0, 1.0, 1.0])
