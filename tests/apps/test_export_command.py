"""``embodied-perceptron export-map``: glTF, PLY and objects.json, which is what its schema says."""

from __future__ import annotations

import importlib.resources
import json

import pytest
from support.online_world import config, walk
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.errors import CommandError
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.artifacts import read_objects_json, read_ply


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    live = Perceptron(config())
    for posed in walk(2, 8):
        live.integrate(posed)
        live.perceive()
    live.name_object(live.objects[0].id, "Anna's crate")
    live.save(folder / "map.safetensors")
    return folder, live


def run(*arguments):
    return CliRunner().invoke(build_app([]), ["export-map", *map(str, arguments)])


def test_a_map_is_written_by_the_ending_of_its_name(saved, tmp_path):
    folder, live = saved
    for name in ("a/map.glb", "map.ply", "objects.json"):
        result = run(folder, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert f"{len(live.objects)} objects" in result.output
    assert (tmp_path / "a/map.glb").read_bytes()[:4] == b"glTF"
    assert len(read_ply(tmp_path / "map.ply")[0]) == len(live.recall().voxels)
    assert [o.id for o in read_objects_json(tmp_path / "objects.json")] == [o.id for o in live.objects]
    result = run(folder, "--out", tmp_path / "map.obj")
    assert isinstance(result.exception, CommandError)
    assert "must end in .glb, .ply, .json, got 'map.obj'" in str(result.exception)


def test_objects_are_what_the_schema_says(saved, tmp_path):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is absent (extra agent)")
    text = (importlib.resources.files("embodied_perceptron.recordings") / "objects.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    run(saved[0], "--out", tmp_path / "objects.json")
    objects = json.loads((tmp_path / "objects.json").read_text())
    assert any("user_name" in o for o in objects)
    jsonschema.validate(objects, schema)
    for key, wrong in (("id", -1), ("score", 2), ("state", "gone"), ("box", [0] * 8), ("more", 1)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([{**objects[0], key: wrong}], schema)
