"""A map file is checked whole before anything is replaced; what others wrote, or what lies beside it, is not lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.online_world import config, walk

from embodied_perceptron.mapping import storage
from embodied_perceptron.mapping.storage import MapChangedError, MapFileError, read_map, write_map
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings import tensor_files
from embodied_perceptron.scene.live_map import labels_path, saved_objects
from embodied_perceptron.scene.map_frame import MAX_WORLD_M


def a_map(seed: int) -> Perceptron:
    it = Perceptron(config())
    for posed in walk(seed, 6):
        it.integrate(posed)
        it.perceive()
    assert len(it.objects) > 1
    return it


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    it = a_map(1)
    it.correct_object(it.objects[0].id, "workbench")
    path: Path = tmp_path_factory.mktemp("maps") / "sound.safetensors"
    it.save(path)
    return path


@pytest.fixture(scope="module")
def live() -> Perceptron:
    return a_map(2)


def everything(it: Perceptron) -> tuple[object, ...]:
    rows = it.volume.snapshot(1)
    tracks = it.map._objects.to_json()
    return it.map.published, tracks, it.map._frame.to_json(), rows.coords.tobytes(), tuple(it.keyframe_poses())


def refused(it: Perceptron, sound: Path, path: Path, extra: dict[str, str], match: str) -> None:
    """A map with other entries is refused by its name, and nothing has changed."""
    saved = read_map(sound)
    write_map(path, saved.tensors, {**saved.header, "extra": {**saved.extra, **extra}})
    before = everything(it)
    with pytest.raises(MapFileError, match=rf"(?s){path.name}.*{match}"):
        it.load(path)
    assert everything(it) == before


TRACK_FIELDS: list[tuple[str, Any]] = [
    ("votes", []),
    ("votes", {}),
    ("votes", {"chair": "1"}),
    ("votes", {"chair": -1.0}),
    ("votes", {"chair": float("nan")}),
    ("votes", {"": 1.0}),
    ("whole", 1),
    ("missed", "no"),
    ("is_back", None),
    ("looks", "3"),
    ("looks", 1.5),
    ("looks", -1),
    ("found", [1]),
    ("reference", None),
    ("reference", 7.0),
    ("score", "0.5"),
    ("score", float("inf")),
    ("log_odds", -1e4),
    ("log_odds", 10**400),
    ("weight", -1.0),
    ("support", float("nan")),
    ("unfound_s", "long"),
    ("found_ns", 2**63 - 1),
    ("last_seen_ns", 0.5),
    ("state", ["confirmed"]),
    ("user_name", 3),
    ("id", True),
    ("box", "box"),
    ("box", [0.0, 0.0, 0.0, 1e5, 1e5, 1.0, 0.0, 0.0, 0.0]),
    ("box", [1e9, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
    ("box", [0.0, 0.0, 0.0, -1.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
    ("box", [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
    ("box", [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 10**400]),
]


@pytest.mark.parametrize(("name", "value"), TRACK_FIELDS, ids=lambda value: f"{value!r:.20}")
def test_objects_with_a_wrong_field_change_nothing(
    live: Perceptron, sound: Path, tmp_path: Path, name: str, value: object
) -> None:
    data = json.loads(read_map(sound).extra["objects"])
    data["objects"][1][name] = value
    match = "the name" if name == "user_name" else "object True" if name == "id" else name
    refused(live, sound, tmp_path / "bad.safetensors", {"objects": json.dumps(data)}, match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"next_id": 1e300}, "next_id"),
        ({"next_id": "9"}, "next_id"),
        ({"updated_ns": 2**63 - 1}, "updated_ns"),
        ({"objects": {}}, "objects"),
        ({"objects": ["x"]}, "an object"),
        ({"corrections": {}}, "corrections"),
        ({"corrections": [7]}, "a correction"),
        ({"version": [1]}, "version"),
    ],
)
def test_objects_that_are_none_change_nothing(
    live: Perceptron, sound: Path, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    data = {**json.loads(read_map(sound).extra["objects"]), **changes}
    refused(live, sound, tmp_path / "bad.safetensors", {"objects": json.dumps(data)}, match)


@pytest.mark.parametrize(
    ("name", "value"), [("id", "1"), ("stamp_ns", 2**63), ("was", 5), ("label", {}), ("box", [0.0] * 3 + [1e6] * 6)]
)
def test_corrections_with_a_wrong_field_change_nothing(
    live: Perceptron, sound: Path, tmp_path: Path, name: str, value: object
) -> None:
    data = json.loads(read_map(sound).extra["objects"])
    data["corrections"][0][name] = value
    refused(live, sound, tmp_path / "bad.safetensors", {"objects": json.dumps(data)}, name)


def far(distance_m: float) -> list[list[float]]:
    T = np.eye(4)
    T[1, 3] = distance_m
    return T.tolist()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"newest_ns": 2**63 - 1}, "newest_ns"),
        ({"newest_ns": True}, "newest_ns"),
        ({"newest_ns": -5}, "newest_ns"),
        ({"T_world_map": far(1e300)}, "within"),
        ({"T_world_map": far(3 * MAX_WORLD_M)}, "within"),
        ({"T_world_map": [[1, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]}, "level"),
        ({"T_world_map": 10**400}, "cannot be read"),
        ({"spans": []}, "spans"),
        ({"spans": {"camera": [[0, 2**70]]}}, "offset"),
        ({"spans": {"camera": [["0", 0]]}}, "span"),
        ({"spans": {"camera": [[0, 0, 0]]}}, "cannot be read"),
        ({"spans": {"camera": [[0, 0]] * 65}}, "at most 64"),
    ],
)
def test_a_place_or_time_that_no_map_has_changes_nothing(
    live: Perceptron, sound: Path, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    data = {**json.loads(read_map(sound).extra["map_frame"]), **changes}
    refused(live, sound, tmp_path / "bad.safetensors", {"map_frame": json.dumps(data)}, match)


@pytest.mark.parametrize("entry", ["objects", "map_frame", "semantic"])
@pytest.mark.parametrize("text", ["[" * 200_000, "[]", "7", '"x"', "{}", "null"], ids=lambda text: text[:4])
def test_entries_that_are_none_change_nothing(
    live: Perceptron, sound: Path, tmp_path: Path, entry: str, text: str
) -> None:
    refused(live, sound, tmp_path / "bad.safetensors", {entry: text}, "")


def test_a_place_too_far_away_changes_nothing(live: Perceptron, sound: Path) -> None:
    before = everything(live)
    with pytest.raises(ValueError, match="within"):
        live.load(sound, np.array(far(1e12)))
    assert everything(live) == before


def test_a_volume_that_does_not_fit_changes_nothing(live: Perceptron, sound: Path, tmp_path: Path) -> None:
    """Objects and frame were sound, and were in place, before the voxels were looked at."""
    saved = read_map(sound)
    write_map(tmp_path / "bad.safetensors", saved.tensors, {**saved.header, "keyframes_taken": -1})
    before = everything(live)
    with pytest.raises(MapFileError, match="keyframes_taken"):
        live.load(tmp_path / "bad.safetensors")
    assert everything(live) == before


def test_a_load_reads_one_file_once(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another program writes meanwhile: of two maps there is never a mixture."""
    opened = []
    checked = tensor_files._checked

    def counted(path: str | Path) -> Any:
        opened.append(path)
        return checked(path)

    monkeypatch.setattr(tensor_files, "_checked", counted)
    Perceptron(config()).load(sound)
    assert opened == [sound]


# ------------------------------------------------------------------------------------------------------------------
# several who write


def test_a_map_that_another_program_wrote_is_not_overwritten(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "home.safetensors"
    shutil.copy(sound, path)
    here, robot = Perceptron(config()), Perceptron(config())
    here.load(path)
    robot.load(path)
    number = robot.objects[0].id
    for name in ("Anna's crate", "Bob's crate"):  # its own map, again and again
        robot.name_object(number, name)
        robot.save(path)
    newer = path.read_bytes()
    here.name_object(number, "Carl's crate")
    with pytest.raises(MapChangedError, match=r"home\.safetensors was written by another program"):
        here.save(path)
    assert path.read_bytes() == newer
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".tmp"]
    here.save(tmp_path / "other.safetensors")
    here.load(path)
    here.save(path)
    path.unlink()
    here.save(path)


def test_a_map_behind_a_link_is_the_same_map(sound: Path, tmp_path: Path) -> None:
    path, link = tmp_path / "home.safetensors", tmp_path / "link.safetensors"
    shutil.copy(sound, path)
    link.symlink_to(path)
    here = Perceptron(config())
    here.load(link)
    shutil.copy(sound, tmp_path / "newer")
    os.replace(tmp_path / "newer", path)
    for name in (path, link):
        with pytest.raises(MapChangedError):
            here.save(name)
    here.load(link)
    for name in (link, path, link):
        here.save(name)


def test_a_map_of_an_earlier_run_may_be_overwritten(sound: Path, live: Perceptron, tmp_path: Path) -> None:
    """Whoever saves where nothing was loaded from means to replace it."""
    path = tmp_path / "home.safetensors"
    shutil.copy(sound, path)
    live.save(path)
    assert [o.id for o in saved_objects(path)]


def test_a_map_written_while_another_is_being_written_stays(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "home.safetensors"
    shutil.copy(sound, path)
    here = Perceptron(config())
    here.load(path)
    save_file = storage.save_file

    def overtaken(*args: Any, **kwargs: Any) -> None:
        save_file(*args, **kwargs)
        shutil.copy(sound, tmp_path / "newer")
        os.replace(tmp_path / "newer", path)

    monkeypatch.setattr(storage, "save_file", overtaken)
    with pytest.raises(MapChangedError):
        here.save(path)
    assert path.read_bytes() == sound.read_bytes()


# ------------------------------------------------------------------------------------------------------------------
# labels beside a map


def test_labels_of_the_map_before_go(sound: Path, live: Perceptron, tmp_path: Path) -> None:
    path = tmp_path / "home.safetensors"
    said = Perceptron(config())
    said.load(sound)
    said.save(path)
    assert labels_path(path) == tmp_path / "home.labels.json"
    assert labels_path(path).exists()
    live.save(path)  # of which nobody said anything
    assert os.listdir(tmp_path) == ["home.safetensors"]


def test_maps_with_and_without_the_ending_have_labels_of_their_own(sound: Path, tmp_path: Path) -> None:
    names = ["home", "home.safetensors", "home.map", "home.map.safetensors", "home.safetensors.safetensors"]
    paths = {labels_path(tmp_path / name) for name in names}
    assert len(paths) == len(names)
    said = Perceptron(config())
    said.load(sound)
    for name in names:
        said.save(tmp_path / name)
    assert {p for p in tmp_path.iterdir() if p.suffix == ".json"} == paths


@pytest.mark.parametrize("labelled", [True, False], ids=["changed labels", "no labels any more"])
def test_a_kill_between_map_and_labels_is_made_good_at_the_next_load(
    sound: Path, live: Perceptron, tmp_path: Path, labelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "home.safetensors"
    said = Perceptron(config())
    said.load(sound)
    said.save(path)
    before = labels_path(path).read_text()
    if labelled:
        said.correct_object(said.objects[0].id, "tool cabinet")
    script = f"""
import os, signal
from embodied_perceptron.scene import live_map
from embodied_perceptron.recordings import files
replace = files.os.replace
def killed(source, target):
    if str(target).endswith(".json"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
files.os.replace = killed
target = live_map.labels_path({str(path)!r})
with live_map._written_labels(target, {{"version": 1, "corrections": [], "names": []}}):
    replace({str(tmp_path / "next")!r}, {str(path)!r})
"""
    (said if labelled else live).save(tmp_path / "next")
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert labels_path(path).read_text() == before  # behind the map
    fresh = Perceptron(config())
    fresh.load(path)
    assert "a save of this map was interrupted" in caplog.text
    if labelled:
        assert labels_path(path).read_text() == labels_path(tmp_path / "next").read_text() != before
    else:
        assert not labels_path(path).exists()


def test_labels_are_on_the_disk_before_the_map_replaces_the_old_one(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "home.safetensors"
    said = Perceptron(config())
    said.load(sound)
    replaced, replace = [], os.replace

    def recorded(source: Path, target: Path) -> None:
        replaced.append((Path(target).name, sorted(p.name.split(".")[2] for p in tmp_path.glob(".*.tmp"))))
        replace(source, target)

    monkeypatch.setattr("embodied_perceptron.recordings.files.os.replace", recorded)
    said.save(path)
    assert replaced == [("home.safetensors", ["labels", "safetensors"]), ("home.labels.json", ["labels"])]


@pytest.mark.parametrize("corrected", [True, False])
def test_labels_of_a_recording_stay(
    sound: Path, live: Perceptron, tmp_path: Path, corrected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that somebody made by hand for a recording of the map's name."""
    it, path = live, tmp_path / "home.safetensors"
    if corrected:
        it = Perceptron(config())
        it.load(sound)
    labels_path(path).write_text('{"objects": []}')
    it.save(path)
    assert labels_path(path).read_text() == '{"objects": []}'
    assert "home.labels.json is no labels file of a map" in caplog.text
