"""Weights files: round trip, refusals by name, released checkpoints without running anything from them."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from support.golden import load_json

from embodied_perceptron.weights.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    load_into,
    load_official,
    read_official_file,
    save_checkpoint,
)


def checkpoint() -> Checkpoint:
    torch.manual_seed(0)
    return Checkpoint(torch.nn.Linear(3, 2).state_dict(), {"preset": "tiny"}, ("chair", "table"), {"seed": 7})


def test_round_trip(tmp_path: Path) -> None:
    saved = checkpoint()
    save_checkpoint(tmp_path / "w.safetensors", saved)
    loaded = load_checkpoint(tmp_path / "w.safetensors")
    assert loaded.config == saved.config
    assert loaded.classes == saved.classes
    assert loaded.extra == saved.extra
    module = torch.nn.Linear(3, 2)
    load_into(module, loaded.state, "w.safetensors")
    assert torch.equal(module.weight, saved.state["weight"])


def test_shared_tensors_can_be_saved(tmp_path: Path) -> None:
    value = torch.ones(3)
    save_checkpoint(tmp_path / "w.safetensors", Checkpoint({"a": value, "b": value}, {}, (), {}))
    assert torch.equal(load_checkpoint(tmp_path / "w.safetensors").state["b"], value)


def test_mismatches_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing: bias \(1\); unknown: extra \(1\); of another shape: weight"):
        load_into(torch.nn.Linear(3, 2), {"weight": torch.zeros(5, 3), "extra": torch.zeros(1)}, "w")


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_checkpoint(path, checkpoint())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"w\.safetensors is damaged"):
        load_checkpoint(path)
    path.write_bytes(whole.replace(b'"version":"1"', b'"version":"9"'))
    with pytest.raises(CheckpointError, match="has version 9"):
        load_checkpoint(path)
    path.write_bytes(whole.replace(b"embodied_perceptron.weights", b"embodied_perceptron.weighed"))
    with pytest.raises(CheckpointError, match="holds no network weights"):
        load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "absent.safetensors")


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


class History:
    """Something that a training framework would put beside the weights."""

    def __init__(self) -> None:
        self.values = [1, 2]


def test_released_files_are_read_without_running_them(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    state = {"bbox_head.conv_cls.bias": torch.arange(3.0)[None], "somewhere.else": torch.ones(1)}
    content = {
        "state_dict": state,
        "meta": {"time": np.float64(1.0), "array": np.arange(3), "history": History(), "fn": subprocess.run},
        "message_hub": Malicious(victim),
    }
    torch.save(content, tmp_path / "released.pth")
    loaded = read_official_file(tmp_path / "released.pth")
    assert not victim.exists()
    assert torch.equal(loaded["bbox_head.conv_cls.bias"], state["bbox_head.conv_cls.bias"])
    mapped = load_official(loaded, "detection")
    assert list(mapped.state) == ["detection.classify.bias"]
    assert mapped.unused == ("somewhere.else",)


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("hello")
    with zipfile.ZipFile(tmp_path / "zip.pth", "w") as archive:
        archive.writestr("a.json", json.dumps({}))
    torch.save([1, 2], tmp_path / "list.pth")
    for name in ("text.pth", "zip.pth", "list.pth"):
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            read_official_file(tmp_path / name)
    with pytest.raises(CheckpointError, match="belongs to a detection model"):
        load_official({"a": torch.ones(1)}, "detection")


@pytest.mark.golden
@pytest.mark.parametrize("task", ["detection", "occupancy", "grounding"])
def test_every_released_head_key_is_mapped_or_listed(task: str) -> None:
    shapes = load_json(f"state_dict_{task}")
    with torch.device("meta"):
        mapped = load_official({k: torch.empty(s) for k, s in shapes.items()}, task)  # type: ignore[arg-type]
    never_read = [k for k in mapped.unused if k.startswith("decoder.layers.") and ".self_posembed." in k]
    assert len(mapped.unused) == len(never_read)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    saved = checkpoint()
    saved.state["weight"] = saved.state["weight"].to(dtype)
    saved.state["weight"][1, 2] = value
    save_checkpoint(tmp_path / "w.safetensors", saved)
    with pytest.raises(CheckpointError, match=r"w\.safetensors: 1 of the 6 numbers of weight are not finite"):
        load_checkpoint(tmp_path / "w.safetensors")
