"""``embodied-perceptron view``: a saved map is served as it was saved; names and corrections are kept in it."""

from __future__ import annotations

import socket

import pytest
from support.online_world import config, walk
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.apps.view_command import open_map, serve_map
from embodied_perceptron.mapping.storage import MapFileError
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.scene.live_map import labels_path


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of results without a network's map."""
    folder = tmp_path_factory.mktemp("home")
    live = Perceptron(config())
    for posed in walk(2, 8):
        live.integrate(posed)
        live.perceive()
    assert live.objects
    live.save(folder / "map.safetensors")
    return folder, live


def test_a_map_opens_as_it_was_saved(saved):
    folder, live = saved
    there = open_map(folder)
    assert [(o.id, o.label) for o in there.objects] == [(o.id, o.label) for o in live.objects]
    shown = there.recall()
    assert (shown.voxels.coords == live.recall().voxels.coords).all()
    assert len(shown.semantic.centers_m)
    assert shown.grid.cells.size
    assert [(o.id, o.score) for o in shown.objects] == [(o.id, o.score) for o in there.objects]


def test_what_is_no_map_is_said(tmp_path):
    with pytest.raises(CommandError, match="no map at"):
        open_map(tmp_path)
    (tmp_path / "map.safetensors").write_bytes(b"nonsense")
    with pytest.raises(MapFileError):
        open_map(tmp_path)


def test_names_and_corrections_are_kept_in_the_file(saved):
    pytest.importorskip("viser", reason="viser is absent (extra web)")
    folder, _ = saved
    file, perceptron = folder / "map.safetensors", open_map(folder)
    cells = perceptron.recall().semantic
    with serve_map(perceptron, file, "127.0.0.1", 0) as viewer:
        controls = viewer._controls
        number = perceptron.objects[0].id
        assert "Anna's crate" in controls.name(number, "Anna's crate")
        assert "is a workbench" in controls.correct(number, "workbench", False)
        with pytest.raises(ValueError, match="name of a class"):
            controls.name(number, "chair")
        with pytest.raises(LookupError, match="no object 999"):
            controls.name(999, "Bob")
        assert controls.ask("Anna's crate").candidates[0].id == number
    again = open_map(folder)
    assert [(o.label, o.user_name) for o in again.objects if o.id == number] == [("workbench", "Anna's crate")]
    assert (again.recall().semantic.centers_m == cells.centers_m).all()
    assert labels_path(file).is_file()


def test_a_taken_port_ends_the_command(saved):
    pytest.importorskip("viser", reason="viser is absent (extra web)")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(build_app([]), ["view", str(saved[0]), "--port", str(port), "--no-browser"])
    assert isinstance(result.exception, CommandError)
    assert f"cannot listen on 127.0.0.1, port {port}" in str(result.exception)


def test_a_newer_map_of_the_robot_is_not_overwritten(saved, tmp_path):
    pytest.importorskip("viser", reason="viser is absent (extra web)")
    file = tmp_path / "home.safetensors"
    saved[1].save(file)
    shown = open_map(file)
    number = shown.objects[0].id
    with serve_map(shown, file, "127.0.0.1", 0) as viewer:
        saved[1].save(file)  # the robot goes on
        newer = file.read_bytes()
        for teach in (lambda c: c.name(number, "Anna's crate"), lambda c: c.correct(number, "workbench", False)):
            with pytest.raises(ValueError, match=r"nothing has changed: another program .* wrote home\.safetensors"):
                teach(viewer._controls)
        assert shown.objects[0].user_name == ""
        assert shown.objects[0].label != "workbench"
    assert file.read_bytes() == newer
