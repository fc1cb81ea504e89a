"""Arguments and outputs are checked before anything is loaded, in every command."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps import command_line
from embodied_perceptron.apps.cli import build_app

RUN = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"})


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield f"{path} {name}".strip(), command
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}".strip())


APP = build_app()
GROUP = typer.main.get_command(APP)
OUTPUTS = [
    (path, parameter)
    for path, command in commands(GROUP)
    for parameter in command.params
    if re.match("(Folder|File) to write|Label file", parameter.help or "")
]


def value_of(parameter: Any, path: Path) -> Any:
    return parameter.process_value(typer.Context(GROUP), str(path))


@pytest.mark.parametrize(("command", "parameter"), OUTPUTS, ids=[f"{c} {p.name}" for c, p in OUTPUTS])
def test_an_output_that_cannot_be_written_is_refused_at_once(command: str, parameter: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    is_folder = "Folder" in parameter.help
    bad = [file / "below", Path("/proc/nothing/out"), tmp_path / ("x" * 300), file if is_folder else tmp_path]
    bad += [] if is_folder else [Path(os.devnull)]
    for path in bad:
        with pytest.raises(typer.BadParameter, match=r"cannot be written|is a (file|directory)"):
            value_of(parameter, path)
    before = sorted(tmp_path.iterdir())
    assert value_of(parameter, tmp_path / "new" / "deep") == tmp_path / "new" / "deep"
    assert sorted(tmp_path.iterdir()) == before, "a check leaves nothing"


def test_there_are_outputs_to_check() -> None:
    assert len(OUTPUTS) > 25


TWO_LAYOUTS = "--detector FILE --detector-layout yolox --detector-layout yolov8"
LOADED = "replay ROOM --out OUT"
WRONG = [
    ("replay ROOM --out FILE/below", "FILE/below cannot be written"),
    ("replay ROOM --out OUT " + TWO_LAYOUTS, "2 layouts for 1 files"),
    ("replay ROOM --out OUT --detector NONE.onnx --detector-layout yolox", "NONE.onnx"),
    ("replay ROOM --out OUT --detector FILE --detector-layout yolo99", "yolo99"),
    ("replay ROOM --out OUT --weights NONE.safetensors", "NONE.safetensors"),
    ("replay ROOM --out OUT --map NONE", "NONE"),
    ("replay ROOM --out OUT --config NONE.yaml", "NONE.yaml"),
    ("replay NONE --out OUT", "NONE"),
    ("explain ROOM --object 1 " + TWO_LAYOUTS, "2 layouts for 1 files"),
    ("explain NONE --object 1", "NONE"),
    ("view NONE", "NONE"),
    ("describe NONE", "NONE"),
    ("diff NONE ROOM", "NONE"),
    ("mcp --map NONE", "NONE"),
    ("export-map NONE --out OUT.glb", "NONE"),
    ("learn --from ROOM --out OUT/w.safetensors --pseudo " + TWO_LAYOUTS, "2 layouts for 1 files"),
    ("learn --from ROOM --out OUT/w.safetensors --weights NONE.safetensors", "NONE.safetensors"),
    ("evaluate recording --recording ROOM --out OUT --labels NONE.json", "NONE.json"),
    ("evaluate recording --recording ROOM --out OUT --weights NONE.safetensors", "NONE.safetensors"),
    ("evaluate all --data NONE --out OUT", "NONE"),
    ("evaluate all --data ROOM --out OUT --weights NONE.safetensors", "NONE.safetensors"),
    ("evaluate robustness --data ROOM --out OUT --detector-layout yolov8", "1 layouts for 0 files"),
    ("replay ROOM --out OUT --detections NONE.json", "NONE.json"),
    ("evaluate recording --recording ROOM --out OUT --degrade recall=0.5", "--degrade belongs to --detections"),
    ("train --task detection --data NONE --out OUT", "NONE"),
    ("export-bag NONE --out OUT", "NONE"),
    ("export-bag ROOM --out ROOM", "exists already"),
    ("inspect NONE", "NONE"),
    ("label OUT.json --map NONE", "NONE"),
    ("demo --source NONE", "NONE"),
]


@pytest.mark.parametrize(("words", "named"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_argument_is_named_before_anything_is_loaded(
    words: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loading(BaseException):
        """What takes long stands in a block of progress."""

    def begin(self: object) -> None:
        raise Loading

    monkeypatch.setattr(command_line.TaskProgress, "__enter__", begin)
    write_recording(tmp_path / "ROOM", count=1)
    (tmp_path / "FILE").write_text("")
    monkeypatch.chdir(tmp_path)
    result = RUN.invoke(APP, words.split())
    assert not isinstance(result.exception, Loading), "it began to load"
    assert result.exit_code != 0
    assert named in re.sub(r"\s+", " ", result.output) + str(result.exception)
    assert not (tmp_path / "OUT").exists()
