"""The programs in examples/ run as their first lines say."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from support.scripts import load_script
from support.small_recording import write_recording

from embodied_perceptron.apps.reading_options import open_map

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    return load_script(f"examples/{name}.py")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recording(tmp_path_factory.mktemp("recording") / "room", 24)


@pytest.fixture(scope="module")
def saved(recording: Path) -> Path:
    path = recording.parent / "map.safetensors"
    assert example("map_folder").main([str(recording), str(path), "--weights", "none"]) == 0
    return path


def test_each_is_short_and_documented() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert names == ["ask.py", "follow_detector.py", "go_to.py", "map_folder.py", "watch_changes.py"]
    for name in names:
        text = (EXAMPLES / name).read_text()
        assert len(text.splitlines()) <= 60, name
        assert f"    python3 examples/{name} " in text


def test_a_folder_is_mapped(saved: Path) -> None:
    assert len(open_map(saved).recall().voxels) > 1000


def test_a_map_is_asked(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = saved.with_name("named.safetensors")
    perceptron = open_map(saved)
    perceptron.correct_object(perceptron.objects[0].id, "table")
    perceptron.save(named)
    assert example("ask").main([str(named), "the table"]) == 0
    assert "the table: FOUND" in capsys.readouterr().out
    assert example("ask").main([str(named), "the piano"]) == 1


def test_boxes_of_a_detector_become_objects(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert example("follow_detector").main([str(recording)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "table" in last


def test_changes_of_a_saved_map_are_printed(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Path(shutil.copy(saved, tmp_path / "map.safetensors"))
    perceptron = open_map(watched)
    perceptron.correct_object(perceptron.objects[0].id, "table")
    watch_changes = example("watch_changes")
    # another program writes the map between two looks at the file
    monkeypatch.setattr(watch_changes, "time", SimpleNamespace(sleep=lambda _: perceptron.save(watched)))
    assert watch_changes.main([str(watched), "--changes", "1"]) == 0
    assert "is now table" in capsys.readouterr().out


def test_a_goal_is_in_front_of_the_object(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = saved.with_name("goal.safetensors")
    perceptron = open_map(saved)
    box = max(perceptron.objects, key=lambda o: float(np.prod(o.box[3:6])))
    perceptron.correct_object(box.id, "table")
    perceptron.save(named)
    go_to = example("go_to")
    assert go_to.main([str(named), "the table"]) == 0
    words = capsys.readouterr().out.split()
    x, y = float(words[words.index("x") + 1]), float(words[words.index("y") + 1])
    assert np.hypot(x - box.box[0], y - box.box[1]) < 2.5
    assert go_to.main([str(named), "the piano"]) == 1
    monkeypatch.setenv("PATH", "")
    assert go_to.main([str(named), "the table", "--publish"]) == 3
