"""Paths of map services: everything below one folder, nothing outside, and errors that name the folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs")

from support.online_world import BOXES, config, look_at, photograph

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_ros.node.map_folder import MapFolder, MapPathError, default_map_folder
from embodied_perceptron_ros.node.services import MapServices, refusal


@pytest.fixture
def maps(tmp_path: Path) -> MapFolder:
    for folder in ("floor1", "~"):
        (tmp_path / "maps" / folder).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.map").write_bytes(b"secret")
    return MapFolder(str(tmp_path / "maps"))


@pytest.mark.parametrize("text", ["home.map", "floor1/home.map", "./home.map", "a b ä.map", "~/home.map", "..map"])
def test_relative_names_lie_below(maps: MapFolder, text: str) -> None:
    file = maps.to_write(text)
    assert file.is_relative_to(maps.path)
    assert file == Path(os.path.normpath(maps.path / text))


def test_absolute_names_below_are_taken(maps: MapFolder) -> None:
    assert maps.to_write(f"{maps.path}/home.map") == maps.path / "home.map"


@pytest.mark.parametrize(
    "text",
    [
        "../elsewhere/secret.map",
        "floor1/../../elsewhere/secret.map",
        "/etc/passwd",
        "floor1/../home.map",
        "/",
        ".",
        "..",
    ],
)
def test_what_lies_outside_is_refused_by_name(maps: MapFolder, text: str) -> None:
    for resolve in (maps.to_write, maps.to_read):
        with pytest.raises(MapPathError) as raised:
            resolve(text)
        assert str(maps.path) in str(raised.value)
        assert "map_folder" in str(raised.value)


def test_a_sibling_with_the_same_beginning_is_outside(maps: MapFolder) -> None:
    with pytest.raises(MapPathError):
        maps.to_write(f"{maps.path}2/home.map")


def test_links_out_are_refused_links_within_are_not(maps: MapFolder, tmp_path: Path) -> None:
    (maps.path / "out").symlink_to(tmp_path / "elsewhere")
    (maps.path / "file").symlink_to(tmp_path / "elsewhere" / "secret.map")
    (maps.path / "dangling").symlink_to(tmp_path / "elsewhere" / "new.map")
    for text in ("out/secret.map", "out/new.map", "file", "dangling"):
        for resolve in (maps.to_write, maps.to_read):
            with pytest.raises(MapPathError, match="link"):
                resolve(text)
    (maps.path / "home.map").write_bytes(b"")
    (maps.path / "latest").symlink_to("home.map")
    assert maps.to_read("latest") == maps.path / "home.map"


def test_a_folder_that_is_itself_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "maps").symlink_to(tmp_path / "disk")
    maps = MapFolder(str(tmp_path / "maps"))
    assert maps.to_write("home.map") == tmp_path / "disk" / "home.map"
    assert maps.to_write(str(tmp_path / "maps" / "home.map")) == tmp_path / "disk" / "home.map"


@pytest.mark.parametrize("text", ["", "  ", "a\0b", "a\nb", "x" * 5000])
def test_names_that_are_none(maps: MapFolder, text: str) -> None:
    with pytest.raises(MapPathError, match="path must name a file"):
        maps.to_write(text)


def test_pipes_and_devices_are_not_opened(maps: MapFolder) -> None:
    os.mkfifo(maps.path / "pipe")
    for resolve in (maps.to_write, maps.to_read):
        with pytest.raises(MapPathError, match="not a regular file"):
            resolve("pipe")
        with pytest.raises(MapPathError, match="not a regular file"):
            resolve("floor1")


def test_absent_maps_and_folders_are_named(maps: MapFolder) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no map .*absent\.map"):
        maps.to_read("absent.map")
    with pytest.raises(MapPathError, match=r"there is no folder .*floor2"):
        maps.to_write("floor2/home.map")


def test_refusals_are_sentences_and_mistakes_are_not() -> None:
    said = {
        "there is no object 7": LookupError("there is no object 7"),
        "x.map is no map": ValueError("x.map is\nno map"),
        "Permission denied: /maps/x": PermissionError(13, "Permission denied", "/maps/x"),
        "No space left on device": OSError(28, "No space left on device"),
        "there is no map /x": FileNotFoundError("there is no map /x"),
    }
    assert [refusal(error) for error in said.values()] == list(said)
    assert len(refusal(ValueError("x" * 10_240))) == 500
    for mistake in (KeyError("id"), IndexError("7"), TypeError("None"), RuntimeError("?"), ZeroDivisionError()):
        assert refusal(mistake) == ""


def test_the_default_lies_in_the_users_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_map_folder() == tmp_path / "embodied_perceptron" / "maps"
    assert MapFolder().to_write("home.map").parent.is_dir()
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # the specification: such a value is to be ignored
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_map_folder() == tmp_path / ".local" / "share" / "embodied_perceptron" / "maps"


class Node:
    """Creates services that nobody calls."""

    def __init__(self, folder: Path) -> None:
        self.parameters = SimpleNamespace(map_folder=str(folder))

    def create_service(self, *args: Any, **named: Any) -> None:
        return None

    def destroy_service(self, service: Any) -> None:
        return None


def a_map(boxes: Any, first_ns: int, into: Perceptron | None = None) -> Perceptron:
    it = Perceptron(config()) if into is None else into
    for n in range(12):
        eye = (-0.2 + 0.05 * n, -0.5 + 0.1 * n, 1.4)
        for k, target in enumerate(((1.2, 0.0, 0.4), (-1.1, 0.9, 0.3), (0.5, 1.5, 0.3))):
            it.integrate(photograph(look_at(eye, target), first_ns + (3 * n + k + 1) * 10**8, boxes))
        it.perceive()
    return it


def services_of(perceptron: Perceptron, folder: Path) -> MapServices:
    return MapServices(Node(folder), perceptron, None, lambda: None, None)


def test_changes_are_told_in_words_and_refusals_too(tmp_path: Path) -> None:
    saved = tmp_path / "before.safetensors"
    a_map(BOXES, 0).save(saved)
    live = Perceptron(config())
    live.load(saved)
    a_map(BOXES[1:], 10**10, live)
    told = services_of(live, tmp_path).changes_since_loaded()
    assert "unchanged" in told
    assert "left: " in told
    saved.unlink()
    with pytest.raises(FileNotFoundError) as gone:
        services_of(live, tmp_path).changes_since_loaded()
    assert "does not exist any more" in refusal(gone.value)
    live.reset()
    with pytest.raises(ValueError, match="no map was loaded"):
        services_of(live, tmp_path).changes_since_loaded()
