"""The page of labels, over HTTP and without a browser."""

from __future__ import annotations

import http.client
import json
import threading

import cv2
import numpy as np
import pytest
from support.small_recording import BOXES, write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.recordings.artifacts import read_ply, write_objects_json, write_ply
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.results import SceneObject
from embodied_perceptron_training.evaluation.evaluate_command import register
from embodied_perceptron_training.evaluation.recordings.label_server import SURE, LabelServer, LabelSession
from embodied_perceptron_training.evaluation.recordings.labels import read_labels

TABLE = SceneObject(3, "table", 0.9, np.array([1.05, 0.05, 0.37, 1.1, 0.9, 0.74, 1.57, 0, 0]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A recording, and a map folder as `replay --direct` writes it."""
    folder = tmp_path_factory.mktemp("label")
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.uniform(low, high, (400, 3)) for low, high, _ in BOXES])
    colors = np.repeat(np.array([c for *_, c in BOXES], np.uint8), 400, axis=0)
    (folder / "map").mkdir()
    write_ply(folder / "map" / "voxels.ply", points, colors)
    write_objects_json(folder / "map" / "objects.json", [TABLE])
    return write_recording(folder / "room", 6), folder / "map"


@pytest.fixture
def page(folders, tmp_path):
    recording, replayed = folders
    with LabelServer(LabelSession.open(tmp_path / "labels.json", replayed, open_recording(recording), 3)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def fetch(server, path):
    status, body = ask(server, "GET", path)
    assert status == 200, body
    return body


def test_the_page_and_what_it_reads(page):
    assert b"labels.json" in fetch(page, "/")
    view = json.loads(fetch(page, "/view.json"))
    assert view["frames"] == 3
    assert "table" in view["categories"]
    top = cv2.imdecode(np.frombuffer(fetch(page, "/top.png"), np.uint8), cv2.IMREAD_COLOR)
    assert top.shape == (view["height"], view["width"], 3)
    # the table's top, where the page says that it lies
    u = round((1.05 - view["low_m"][0]) * view["pixels_per_m"])
    v = round(view["height"] - 1 - (0.05 - view["low_m"][1]) * view["pixels_per_m"])
    near = top[v - 20 : v + 20, u - 20 : u + 20].reshape(-1, 3).astype(int)
    assert (abs(near - [40, 80, 150]).sum(axis=1) < 60).any()


def test_it_begins_with_what_was_published_and_saves_what_is_put(page):
    labels = json.loads(fetch(page, "/labels.json"))
    assert [row["names"] for row in labels["objects"]] == [["table"]]
    assert not page.session.path.exists()
    labels["objects"][0] |= {"names": ["table", "desk"], "sure": True}
    labels["ignore"].append({"box": [0, 0, 0, 1, 1, 1, 0, 0, 0]})
    status, body = ask(page, "PUT", "/labels.json", json.dumps(labels))
    assert (status, json.loads(body)) == (200, {"objects": 1, "ignore": 1})
    saved = read_labels(page.session.path)
    assert saved.things[0].names == ("table", "desk")
    assert saved.things[0].sure
    assert json.loads(fetch(page, "/labels.json")) == saved.as_dict()


def test_a_frame_shows_the_saved_boxes(page):
    def green():
        image = cv2.imdecode(np.frombuffer(fetch(page, "/frame/2.jpg"), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        return int((abs(image.astype(int) - SURE).sum(axis=2) < 60).sum())

    assert green() == 0
    sure = json.loads(fetch(page, "/labels.json"))
    sure["objects"][0]["sure"] = True
    assert ask(page, "PUT", "/labels.json", json.dumps(sure))[0] == 200
    assert green() > 20
    assert ask(page, "GET", "/frame/3.jpg")[0] == 404
    assert ask(page, "GET", "/frame/x.jpg")[0] == 404


@pytest.mark.parametrize(
    "body", ["{", "[]", '{"objects": [{"names": ["tabel"], "box": [0,0,0,1,1,1,0,0,0]}]}', b"\xff\xfe"]
)
def test_wrong_labels_change_nothing(page, body):
    before = fetch(page, "/labels.json")
    status, answer = ask(page, "PUT", "/labels.json", body)
    assert status == 400
    assert json.loads(answer)["error"]
    assert fetch(page, "/labels.json") == before
    assert not page.session.path.exists()


def test_it_answers_this_machine_alone(page):
    assert page.server_address[0] == "127.0.0.1"
    assert ask(page, "GET", "/labels.json", Host="example.org")[0] == 403
    assert ask(page, "PUT", "/labels.json", '{"objects": []}', Origin="http://example.org")[0] == 403
    assert ask(page, "PUT", "/labels.json", '{"objects": []}', Origin=page.url.rstrip("/"))[0] == 200
    assert ask(page, "PUT", "/other.json", "{}")[0] == 404
    assert ask(page, "GET", "/../label_server.py")[0] == 404


def test_without_a_page(folders, tmp_path):
    app = build_app(plugins=())
    register(app)
    path = str(tmp_path / "labels.json")

    def run(*words):
        return CliRunner().invoke(app, ["label", path, *words])

    result = run("--from-objects", str(folders[1] / "objects.json"), "--list")
    assert result.exit_code == 0, result.output
    assert "1.10 x 0.90 x 0.74  table" in result.output
    assert not read_labels(path).things[0].sure
    assert "exists" in str(run("--from-objects", str(folders[1] / "objects.json")).exception)
    assert "--map" in str(run().exception)


def test_a_cloud_of_points_comes_back_and_damage_is_named(tmp_path):
    points = np.array([[0.5, 1.25, -2.0]])
    write_ply(tmp_path / "a.ply", points, np.array([[1, 2, 3]], np.uint8))
    again, colors = read_ply(tmp_path / "a.ply")
    assert again.tolist() == points.tolist()
    assert colors.tolist() == [[1, 2, 3]]
    (tmp_path / "b.ply").write_bytes((tmp_path / "a.ply").read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"b\.ply is cut short"):
        read_ply(tmp_path / "b.ply")
    (tmp_path / "c.ply").write_bytes(b"ply\nformat ascii 1.0\nend_header\n")
    with pytest.raises(ValueError, match="no binary PLY"):
        read_ply(tmp_path / "c.ply")
