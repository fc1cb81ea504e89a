"""Commands about saved maps: view, ground, diff, explain, export-map."""

from __future__ import annotations

import importlib.resources
import json
import socket

import cv2
import numpy as np
import pytest
from support.model_server import model_server, says
from support.online_world import BOXES, config, walk
from support.onnx_files import write_constant_model
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps import cli
from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.apps.explanation import PlaceRecorder, Spot, explain
from embodied_perceptron.apps.map_commands import serve_map
from embodied_perceptron.apps.reading_options import open_map
from embodied_perceptron.language.scene_file import answer_file, detected_scene
from embodied_perceptron.mapping.storage import MapFileError
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.artifacts import (
    MIN_PIXELS,
    read_objects_json,
    read_occupancy_npz,
    read_ply,
    visible_objects,
    write_objects_json,
    write_octomap,
    write_scene_objects_json,
)
from embodied_perceptron.recordings.tum import TumWriter
from embodied_perceptron.results import SceneObject
from embodied_perceptron.scene.live_map import labels_path

# --------------------------------------------------------------------------------------------------------------------
# view


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
        assert "is labelled 'workbench'" in controls.correct(number, "workbench", False)
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


# --------------------------------------------------------------------------------------------------------------------
# ground


def detection(category: str, x: float, **more) -> dict:
    return {"category": category, "center": [x, 0.0, 0.45], "size": [0.5, 0.5, 0.9], **more}


SCENE = {
    "detections": [
        detection("chair", 0.0, color=[200, 30, 30], score=0.9),
        detection("chair", 2.0, color=[20, 40, 200]),
        detection("table", 4.0),
    ],
    "viewpoint": [1, 0, 0, 1, 0, 0, 1, -3, 0, -1, 0, 1.2, 0, 0, 0, 1],
    "objects": {"never read": None},
}


def answers_of(*texts: str, scene: dict = SCENE) -> list[dict]:
    data = {"scenes": {"s": scene}, "queries": [{"scene": "s", "text": t, "target": "never read"} for t in texts]}
    return answer_file(data)["answers"]


def test_answers_are_in_the_order_of_the_queries_and_boxes_unchanged():
    answers = answers_of(
        "the blue chair", "the piano", "how many chairs", "la chaise près de la fenêtre", "the leftmost chair"
    )
    assert [a["status"] for a in answers] == ["FOUND", "NOT_FOUND", "FOUND", "INVALID", "FOUND"]
    assert set(answers[0]) == {"scene", "text", "status", "boxes", "count", "reason", "tagged", "ms"}
    box = answers[0]["boxes"][0]
    assert (box["center"], box["size"], box["category"]) == ([2.0, 0.0, 0.45], [0.5, 0.5, 0.9], "chair")
    assert answers[1]["boxes"] == []
    assert answers[2]["count"] == 2
    assert answers[4]["boxes"][0]["center"] == [0.0, 0.0, 0.45]


def test_what_holds_for_none_gives_the_boxes_that_come_nearest():
    (answer,) = answers_of("the chair above the table")
    assert answer["status"] == "NOT_FOUND"
    assert sorted(box["center"][0] for box in answer["boxes"]) == [0.0, 2.0]
    assert [box["score"] for box in answer["boxes"]] == sorted((b["score"] for b in answer["boxes"]), reverse=True)
    (counted,) = answers_of("how many chairs are above the table")
    assert (counted["count"], counted["boxes"]) == (0, [])


def test_scenes_that_say_little():
    assert answers_of("the chair", scene={"detections": []})[0]["status"] == "NOT_FOUND"
    broken = {"detections": [detection("chair", float("nan")), detection("chair", 1.0)]}
    (answer,) = answers_of("the chair", scene=broken)
    assert (answer["status"], answer["boxes"][0]["center"][0]) == ("FOUND", 1.0)
    assert answers_of(None, scene=SCENE)[0]["status"] == "INVALID"


def test_fronts_count_where_every_detection_has_one():
    yawed = [detection("chair", 0.0, yaw=0.0), detection("table", 1.0, yaw=1.0)]
    assert detected_scene("s", {"detections": yawed}).fronts == ("boxes", "boxes")
    assert set(detected_scene("s", SCENE).fronts) == {"none"}


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ({}, "no list of detections"),
        ({"detections": [{"center": [0, 0, 0], "size": [1, 1, 1]}]}, "detection 0 of scene 's' has no category"),
        ({"detections": [{"category": "chair", "center": [0, 0], "size": [1, 1, 1]}]}, "center of detection 0"),
        ({"detections": [], "viewpoint": [1, 2]}, "viewpoint of scene 's' must be 16 numbers"),
    ],
)
def test_wrong_scenes_are_named(scene, words):
    with pytest.raises(ValueError, match=words):
        answers_of("the chair", scene=scene)


@pytest.mark.parametrize("data", [[], [{"scene": "a", "text": "the chair"}], "scenes", 3, None])
def test_a_file_that_is_no_object_is_named(data):
    with pytest.raises(ValueError, match=r"an object with 'scenes'.*; this is a (list|str|int|NoneType)"):
        answer_file(data)
    with pytest.raises(ValueError, match="the object has 'scene'"):
        answer_file({"scene": data})


def test_a_scene_may_be_the_list_of_its_detections():
    chair = {"center": [1, 2, 0.5], "size": [0.5, 0.5, 1.0], "category": "chair"}
    queries = [{"scene": "a", "text": "the chair"}]
    whole, bare = (answer_file({"scenes": {"a": a}, "queries": queries}) for a in ({"detections": [chair]}, [chair]))
    assert [a["boxes"] for a in bare["answers"]] == [a["boxes"] for a in whole["answers"]] != [[]]
    with pytest.raises(ValueError, match="query 0 names no scene"):
        answer_file({"scenes": {"a": [chair]}, "queries": [{"scene": ["a"], "text": "the chair"}]})


def test_the_command(tmp_path):
    path, out = tmp_path / "scenes.json", tmp_path / "out" / "answers.json"
    path.write_text(json.dumps({"scenes": {"s": SCENE}, "queries": [{"scene": "s", "text": "the red chair"}]}))
    app = build_app([])
    result = CliRunner().invoke(app, ["ground", "--scenes", str(path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["answers"][0]["boxes"][0]["center"] == [0.0, 0.0, 0.45]
    assert "meaning" not in json.loads(out.read_text())["answers"][0]
    result = CliRunner().invoke(app, ["ground", "--scenes", str(path), "--out", str(out), "--explain"])
    meaning = json.loads(out.read_text())["answers"][0]["meaning"]
    assert meaning["target"]["noun"] == "chair"
    assert [(c["relation"], c["value"]) for c in meaning["constraints"]] == [("colour", "red")]
    (line,) = (line for line in result.output.splitlines() if line.startswith("{"))
    assert json.loads(line)["meaning"] == meaning
    path.write_text("{}")
    result = CliRunner().invoke(app, ["ground", "--scenes", str(path), "--out", str(out)])
    assert isinstance(result.exception, CommandError)


# --------------------------------------------------------------------------------------------------------------------
# diff


def saved_with(folder, boxes, label):
    live = Perceptron(config())
    for posed in walk(2, 12, boxes=boxes):
        live.integrate(posed)
        live.perceive()
    for thing in live.objects:
        live.correct_object(thing.id, label)
    live.save(folder / "map.safetensors")
    return folder, live


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """The same room with both boxes, and with one of them."""
    return [
        saved_with(tmp_path_factory.mktemp(name), boxes, label)
        for name, boxes, label in (("both", BOXES, "crate"), ("one", BOXES[:1], "box"))
    ]


def run_diff(*arguments):
    return CliRunner().invoke(build_app([]), ["diff", *map(str, arguments)])


def test_a_map_is_as_itself(maps):
    folder, live = maps[0]
    result = run_diff(folder, folder)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"{len(live.objects)} unchanged"


def test_what_changed_is_said_written_and_drawn(maps, tmp_path):
    (before, live), (after, _) = maps
    result = run_diff(before, after, "--out", tmp_path / "report", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout[result.stdout.index("{") :])
    assert said == json.loads((tmp_path / "report" / "changes.json").read_text())
    assert said["renamed"]
    told = [
        c["before"]["id"]
        for kind in ("left", "moved", "renamed", "unsure", "unseen")
        for c in said[kind]
        if c["before"]
    ]
    assert set(told) <= {o.id for o in live.objects}
    assert all(cv2.imread(str(tmp_path / "report" / f"{side}.png")) is not None for side in ("before", "after"))
    lines = run_diff(before, after).stdout
    assert "renamed: crate" in lines
    assert "is now box" in lines


def test_what_cannot_be_compared_is_said(maps, tmp_path):
    folder, live = maps[0]
    live.map.save(tmp_path / "a.safetensors")
    other = Perceptron(config())
    far = walk(2, 2)
    for posed in far:
        posed.T_world_camera[:3, 3] += [50, 0, 0]
        other.integrate(posed)
    other.perceive()
    other.save(tmp_path / "b.safetensors")
    result = run_diff(folder, tmp_path / "b.safetensors")
    assert isinstance(result.exception, CommandError)
    assert "cannot be compared" in str(result.exception)
    assert "of ground in common" in str(result.exception)
    result = run_diff(folder, tmp_path / "nothing")
    assert "no map at" in str(result.exception)


# --------------------------------------------------------------------------------------------------------------------
# explain


def test_an_explanation_says_what_a_user_corrected():
    """It said that no name has half of the probability, or that the map assigned the box to another object."""
    live = Perceptron(config())
    for posed in walk(2, 8):
        live.integrate(posed)
        live.perceive()
    first, second = live.objects[:2]
    live.correct_object(first.id, "workbench")
    live.correct_object(second.id, not_there=True)
    recorder = PlaceRecorder()
    lines = explain(live, live.recall(), recorder, Spot.of(first))
    assert f"workbench {first.id}, confirmed" in lines[0]
    assert "a user gave it this label" in lines[0]
    assert "labelled workbench by a user" in lines[-1]
    assert (
        f"a user removed {second.label} {second.id} there" in explain(live, live.recall(), recorder, Spot.of(second))[0]
    )


PLAIN = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"})


def run_plain(*arguments):
    return PLAIN.invoke(cli.build_app([]), list(map(str, arguments)))


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("room")
    config = folder / "c.yaml"
    config.write_text("{volume: {voxel_size_m: 0.05}, network: {weights: ''}}")
    return write_recording(folder / "room"), config


@pytest.fixture(scope="module")
def replayed(room, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    done = run_plain("replay", room[0], "--out", out, "--config", room[1])
    assert done.exit_code == 0, done.output
    return out


def some_object(out):
    return json.loads((out / "objects.json").read_text())[0]


@pytest.mark.slow  # replays a recording
def test_an_object_of_a_recording_is_explained(room, replayed):
    thing = some_object(replayed)
    done = run_plain("explain", room[0], "--config", room[1], "--object", thing["id"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert f"object {thing['id']}, confirmed" in done.output
    assert any("no name has half of" in line for line in lines)
    assert "in each perception" in done.output
    assert "2-D detector" not in done.output


@pytest.mark.slow  # replays a recording
def test_a_map_is_looked_at_once_more(room, replayed):
    thing = some_object(replayed)
    point = ",".join(str(round(v, 3)) for v in thing["box"][:3])
    done = run_plain("explain", replayed, "--config", room[1], "--at", point)
    assert done.exit_code == 0, done.output
    assert "confirmed" in done.output


def test_empty_space_has_no_surface(room):
    done = run_plain("explain", room[0], "--config", room[1], "--at", "90,90,1")
    assert done.exit_code == 0, done.output
    assert "no object: the map has no surface there" in done.output


@pytest.mark.slow  # replays a recording
def test_every_view_of_a_detector_is_told(room, replayed, tmp_path):
    pytest.importorskip("onnxruntime")
    table = np.zeros((84, 315), np.float32)
    table[:4, 5] = [80, 48, 150, 90]  # nearly the whole picture
    table[4 + 56, 5] = 0.8
    model = write_constant_model(tmp_path / "net.onnx", {"output0": table[None]})
    options = ("--config", room[1], "--detector", model, "--detector-layout", "yolov8")
    done = run_plain("explain", room[0], *options, "--object", some_object(replayed)["id"])
    assert done.exit_code == 0, done.output
    assert "in each view of a 2-D detector" in done.output
    assert "chair 0.80" in done.output or "no detection in" in done.output
    assert "how it is weighed" in done.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--object ID or --at"),
        (("--object", 1, "--at", "0,0,0"), "--object ID or --at"),
        (("--at", "1,2"), "three numbers"),
        (("--object", 987), "there is no object 987"),
    ],
)
def test_what_is_not_meant_is_refused(room, options, words):
    done = run_plain("explain", room[0], "--config", room[1], *options)
    assert isinstance(done.exception, CommandError)
    assert words in str(done.exception)


# --------------------------------------------------------------------------------------------------------------------
# export-map


@pytest.fixture(scope="module")
def named_map(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    live = Perceptron(config())
    for posed in walk(2, 8):
        live.integrate(posed)
        live.perceive()
    live.name_object(live.objects[0].id, "Anna's crate")
    live.save(folder / "map.safetensors")
    return folder, live


def run_export(*arguments):
    return CliRunner().invoke(build_app([]), ["export-map", *map(str, arguments)])


def test_a_map_is_written_by_the_ending_of_its_name(named_map, tmp_path):
    folder, live = named_map
    for name in ("a/map.glb", "map.ply", "objects.json"):
        result = run_export(folder, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert f"{len(live.objects)} objects" in result.output
    assert (tmp_path / "a/map.glb").read_bytes()[:4] == b"glTF"
    assert len(read_ply(tmp_path / "map.ply")[0]) == len(live.recall().voxels)
    assert [o.id for o in read_objects_json(tmp_path / "objects.json")] == [o.id for o in live.objects]
    result = run_export(folder, "--out", tmp_path / "map.obj")
    assert isinstance(result.exception, CommandError)
    assert "file name must end in .glb, .ply, .json, .bt, .npz, got 'map.obj'" in str(result.exception)


def test_objects_are_what_the_schema_says(named_map, tmp_path):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is absent (extra agent)")
    text = (importlib.resources.files("embodied_perceptron.recordings") / "objects.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    run_export(named_map[0], "--out", tmp_path / "objects.json")
    objects = json.loads((tmp_path / "objects.json").read_text())
    assert any("user_name" in o for o in objects)
    jsonschema.validate(objects, schema)
    for key, wrong in (("id", -1), ("score", 2), ("state", "gone"), ("box", [0] * 8), ("more", 1)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([{**objects[0], key: wrong}], schema)


def read_octomap(path):
    """Occupied voxels of a .bt file, (N, 3), its resolution, and its number of nodes: by its definition, bit by bit."""
    header, data = path.read_bytes().split(b"data\n", 1)
    lines = header.decode().splitlines()
    assert lines[0] == "# Octomap OcTree binary file"
    said = dict(line.split() for line in lines if not line.startswith("#"))
    assert said["id"] == "OcTree"
    rest, leaves, nodes = iter(data), [], 1

    def inner(corner, size):
        nonlocal nodes
        bits = [(byte >> i) & 1 for byte in (next(rest), next(rest)) for i in range(8)]
        below = []
        for child in range(8):
            kind = bits[2 * child], bits[2 * child + 1]
            at = corner + np.array([child & 1, child >> 1 & 1, child >> 2 & 1]) * (size // 2)
            nodes += kind != (0, 0)
            assert kind != (1, 0)  # free space is not written
            if kind == (0, 1):
                leaves.append((at, size // 2))
            elif kind == (1, 1):
                below.append(at)
        for at in below:
            inner(at, size // 2)

    if data:
        inner(np.full(3, -(1 << 15)), 1 << 16)
    assert next(rest, None) is None
    steps = [(at + np.stack(np.meshgrid(*[np.arange(size)] * 3), -1).reshape(-1, 3)) for at, size in leaves]
    voxels = np.concatenate(steps) if steps else np.zeros((0, 3), int)
    return {tuple(map(int, v)) for v in voxels}, float(said["res"]), nodes if data else 0, int(said["size"])


def test_objects_with_frame_and_stamp_are_read_as_the_bare_list_is(named_map, tmp_path):
    _, live = named_map
    scene = live.recall()
    write_scene_objects_json(tmp_path / "scene.json", scene, scene.objects)
    write_objects_json(tmp_path / "list.json", scene.objects)
    content = json.loads((tmp_path / "scene.json").read_text())
    assert (content["version"], content["frame"], content["stamp_ns"]) == (1, "map", scene.stamp_ns)
    assert content["objects"] == json.loads((tmp_path / "list.json").read_text())
    read, bare = (read_objects_json(tmp_path / f"{name}.json") for name in ("scene", "list"))
    assert [o.as_dict() for o in read] == [o.as_dict() for o in bare] != []
    for wrong in ({"version": 2, "objects": []}, {"objects": []}, {"version": 1}):
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=r"wrong\.json"):
            read_objects_json(tmp_path / "wrong.json")


def test_voxels_are_an_octomap(named_map, tmp_path):
    folder, live = named_map
    assert run_export(folder, "--out", tmp_path / "map.bt").exit_code == 0
    voxels = live.recall().voxels
    found, size_m, nodes, said = read_octomap(tmp_path / "map.bt")
    assert found == {tuple(map(int, c)) for c in voxels.coords}
    assert size_m == pytest.approx(voxels.voxel_size_m)
    assert nodes == said


def test_full_blocks_are_one_leaf_and_empty_maps_are_empty(tmp_path):
    block = np.stack(np.meshgrid(*[np.arange(-8, 0)] * 3), -1).reshape(-1, 3)
    write_octomap(tmp_path / "a.bt", np.concatenate([block, [[5, 6, 7]]]), 0.04)
    found, _, nodes, said = read_octomap(tmp_path / "a.bt")
    assert found == {tuple(map(int, c)) for c in block} | {(5, 6, 7)}
    assert nodes == said == 1 + (13 + 16)  # the block ends three levels above the voxels
    write_octomap(tmp_path / "b.bt", np.zeros((0, 3), np.int32), 0.04)
    assert read_octomap(tmp_path / "b.bt") == (set(), 0.04, 0, 0)
    with pytest.raises(ValueError, match=r"reaches 1310\.72 m from the origin"):
        write_octomap(tmp_path / "c.bt", np.array([[1 << 15, 0, 0]]), 0.04)


def test_the_library_of_octomap_reads_it(named_map, tmp_path):
    pyoctomap = pytest.importorskip("pyoctomap", reason="pyoctomap is absent (extra bench)")
    folder, live = named_map
    run_export(folder, "--out", tmp_path / "map.bt")
    tree = pyoctomap.OcTree(0.1)
    assert tree.readBinary(str(tmp_path / "map.bt"))
    voxels = live.recall().voxels
    centers = (voxels.coords[:200] + 0.5) * voxels.voxel_size_m
    assert all(tree.isNodeOccupied(tree.search(center)) for center in centers)
    assert tree.search(centers.min(0) - 3.0) is None


def test_cells_are_written_with_their_classes(named_map, tmp_path):
    folder, live = named_map
    result = run_export(folder, "--out", tmp_path / "cells.npz")
    assert result.exit_code == 0, result.output
    cells, expected = read_occupancy_npz(tmp_path / "cells.npz"), live.recall().semantic
    assert (cells.labels == expected.labels).all()
    assert len(cells.labels) > 0
    assert cells.classes == expected.classes


@pytest.fixture(scope="module")
def labelled(named_map, tmp_path_factory):
    """The walk as a recording, and what is written of it."""
    folder, live = named_map
    out = tmp_path_factory.mktemp("coco")
    frames = list(walk(2, 8))
    with TumWriter(out / "walk", frames[0].frame.intrinsics) as writer:
        for posed in frames:
            writer.add(posed.frame.stamp_ns, posed.frame.color, posed.frame.depth_m, posed.T_world_camera)
    path = out / "a" / "labels.json"
    result = run_export(folder, "--recording", out / "walk", "--frames", 4, "--out", path)
    assert result.exit_code == 0, result.output
    assert "4 images" in result.output
    return path, json.loads(path.read_text()), frames, live


def test_labels_are_what_coco_has(labelled):
    path, said, _, live = labelled
    assert {"info", "licenses", "images", "annotations", "categories"} <= set(said)
    images, categories = {i["id"]: i for i in said["images"]}, {c["id"]: c["name"] for c in said["categories"]}
    assert len(images) == 4
    assert set(categories.values()) == {o.label for o in live.objects}
    for image in images.values():
        pixels = cv2.imread(str(path.parent / image["file_name"]))
        assert pixels.shape == (image["height"], image["width"], 3)
    assert said["annotations"]
    assert len({a["id"] for a in said["annotations"]}) == len(said["annotations"])
    for label in said["annotations"]:
        image = images[label["image_id"]]
        x, y, w, h = label["bbox"]
        assert 0 <= x < x + w <= image["width"]
        assert 0 <= y < y + h <= image["height"]
        assert MIN_PIXELS <= label["area"] <= w * h
        assert label["iscrowd"] == 0
        assert label["category_id"] in categories
        assert all(len(polygon) % 2 == 0 and len(polygon) >= 6 for polygon in label["segmentation"])
        of = next(o for o in live.objects if o.id == label["attributes"]["object_id"])
        assert categories[label["category_id"]] == of.label


def test_a_label_is_where_its_object_is_seen(labelled):
    """A box known to hold a wall's part: its pixels, and none of what hides it or lies behind."""
    *_, frames, _ = labelled
    posed = frames[0]
    v, u = np.argwhere(np.isfinite(posed.frame.depth_m) & (posed.frame.depth_m > 0)).mean(0).astype(int)
    k, z = posed.frame.intrinsics, float(posed.frame.depth_m[v, u])
    point = posed.T_world_camera @ [(u - k.cx) / k.fx * z, (v - k.cy) / k.fy * z, z, 1.0]
    further = 2 * point[:3] - posed.T_world_camera[:3, 3]
    around = SceneObject(1, "part", 1.0, np.array([*point[:3], 0.8, 0.8, 0.8, 0.2, 0, 0]))
    behind = SceneObject(2, "hidden", 1.0, np.array([*further, 0.4, 0.4, 0.4, 0, 0, 0]))
    ((thing, mask),) = visible_objects(posed, [around, behind], np.eye(4))
    assert thing.id == 1
    assert mask[v, u]
    far = np.argwhere(mask) - [v, u]
    assert np.hypot(*far.T).max() < 0.7 / (z - 0.7) * k.fx + 2


def test_labels_are_json_alone(named_map, tmp_path):
    result = run_export(named_map[0], "--recording", tmp_path, "--out", tmp_path / "map.glb")
    assert "labels of a recording are written as .json" in str(result.exception)


def test_ground_reads_with_the_language_model_of_the_configuration(tmp_path):
    box = {"center": [0, 0, 0.5], "size": [0.5, 0.5, 1.0], "category": "chair"}
    scenes, config, out = tmp_path / "scenes.json", tmp_path / "language.yaml", tmp_path / "answers.json"
    queries = [{"scene": "a", "text": "der Stuhl am Fenster"}]
    scenes.write_text(json.dumps({"scenes": {"a": {"detections": [box]}}, "queries": queries}))
    command = ["ground", "--scene-file", str(scenes), "--out", str(out), "--config", str(config)]
    with model_server(says({"target": {"noun": "chair", "span": "Stuhl"}})) as server:
        config.write_text(f"language: {{reader: endpoint, endpoint: '{server.url}', model: m, limit_s: 20}}")
        result = CliRunner().invoke(build_app([]), command)
    assert result.exit_code == 0, result.output
    (answer,) = json.loads(out.read_text())["answers"]
    assert (answer["status"], answer["tagged"]) == ("FOUND", "der <p>Stuhl</p>[<obj_1>] am Fenster")


def test_a_map_of_an_agent_reads_with_the_language_model_of_the_configuration(saved, tmp_path):
    config = tmp_path / "language.yaml"
    with model_server(says({"kind": "contents"})) as server:
        config.write_text(f"language: {{reader: endpoint, endpoint: '{server.url}', model: m, limit_s: 20}}")
        open_map(saved[0], config).ground("was ist hier?")
        assert json.loads(server.asked[0]["messages"][1]["content"])["sentence"] == "was ist hier?"
    assert open_map(saved[0]).grounder.reader is None
    result = CliRunner().invoke(build_app([]), ["mcp", "--config", str(config)])
    assert result.exit_code != 0
    assert "--config needs --map" in str(result.exception)
