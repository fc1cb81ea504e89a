"""The page of labels, over HTTP and without a browser."""

from __future__ import annotations

import http.client
import json
import threading
import time

import cv2
import numpy as np
import pytest
from support.browser import open_browser
from support.small_recording import BOXES, write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.recordings.artifacts import read_ply, write_objects_json, write_ply
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.results import SceneObject
from embodied_perceptron_training.evaluation.evaluate_command import register
from embodied_perceptron_training.evaluation.recordings.label_server import LabelServer, LabelSession
from embodied_perceptron_training.evaluation.recordings.labels import labels_from_objects, read_labels

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
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
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


def test_frames_come_with_the_cameras_that_took_them(page):
    image = cv2.imdecode(np.frombuffer(fetch(page, "/frame/2.jpg"), np.uint8), cv2.IMREAD_COLOR)
    camera, posed = json.loads(fetch(page, "/cameras.json"))[2], page.session.frames[2]
    assert image.shape[:2] == (camera["height"], camera["width"])
    assert np.allclose(np.array(camera["T_camera_world"]) @ posed.T_world_camera, np.eye(4))
    depth_m = np.array(camera["depth_m"])
    assert depth_m.shape == (24, 32)
    assert depth_m.max() == pytest.approx(posed.frame.depth_m[np.isfinite(posed.frame.depth_m)].max(), abs=0.01)
    assert ask(page, "GET", "/frame/3.jpg")[0] == 404
    assert ask(page, "GET", "/frame/x.jpg")[0] == 404


def test_all_unknown_names_are_told_at_once(page):
    rows = [{"names": [name], "box": [0, 0, 0, 1, 1, 1, 0, 0, 0]} for name in ("tabel", "chair", "gizmoid")]
    status, answer = ask(page, "PUT", "/labels.json", json.dumps({"objects": rows}))
    assert status == 400
    error = json.loads(answer)["error"]
    assert "objects[0].names holds the unknown name 'tabel' (near: table" in error
    assert "objects[2].names holds the unknown name 'gizmoid'" in error
    assert "extra_names" in error


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
    with pytest.raises(ValueError, match="not a binary PLY"):
        read_ply(tmp_path / "c.ply")


# ---- the page in a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def opened(page, browser):
    """Three objects on the page."""
    chairs = [SceneObject(4 + i, "chair", 0.9, np.array([0.3 * i, 0.2, 0.4, 0.3, 0.3, 0.8, 0, 0, 0])) for i in range(2)]
    page.session.labels = labels_from_objects([TABLE, *chairs])
    browser.get(page.url)
    wait_for(lambda: browser.find_elements("css selector", "#rows div"))
    yield browser
    browser.execute_script("stored = JSON.stringify(data)")  # it would ask whether to leave


def wait_for(condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def texts(browser, where):
    return [e.get_attribute("textContent") for e in browser.find_elements("css selector", where)]


def test_a_number_is_the_same_on_the_map_in_the_list_and_in_the_picture(opened):
    assert texts(opened, "#rows div") == ["1table ?", "2chair ?", "3chair ?"]
    assert sorted(texts(opened, "#boxes text")) == ["1", "2", "3"]
    wait_for(lambda: opened.find_elements("css selector", "#over path"))
    numbers = {g.get_attribute("data-number") for g in opened.find_elements("css selector", "#over g")}
    assert numbers
    assert numbers <= {"1", "2", "3"}


def test_boxes_in_the_picture_lie_where_the_camera_saw_them(opened, page):
    """As the library projects them; corners of the page and of the library are the same points."""
    posed = page.session.frames[0]
    boxes = np.array([[1.0, 0.2, 0.4, 0.6, 0.5, 0.4, 0.7, 0.2, -0.3]])
    corners = opened.execute_script("return corners(arguments[0])", boxes[0].tolist())
    mine = box_corners(boxes)[0]
    assert np.abs(np.linalg.norm(np.array(corners)[:, None] - mine, axis=2).min(axis=1)).max() < 1e-9
    point = (posed.T_world_camera @ [0.3, -0.2, 2.0, 1.0])[:3]
    u, v = opened.execute_script("return pixel(cameras[0], inCamera(cameras[0], arguments[0]))", point.tolist())
    k = posed.frame.intrinsics
    assert (u, v) == pytest.approx((k.cx + k.fx * 0.15, k.cy - k.fy * 0.1))


def test_hovering_lights_both_ways(opened):
    lit = "return [...document.querySelectorAll('.lit')].map(e => [e.parentNode.id, e.dataset.number])"

    def point_at(where, event="pointerenter"):
        element = opened.find_element("css selector", where)
        opened.execute_script("arguments[0].dispatchEvent(new Event(arguments[1]))", element, event)

    point_at("#rows [data-number='2']")
    assert ["boxes", "2"] in opened.execute_script(lit)
    point_at("#rows [data-number='2']", "pointerleave")
    assert opened.execute_script(lit) == []
    point_at("#boxes [data-number='1']")
    assert ["rows", "1"] in opened.execute_script(lit)


def test_the_map_zooms_about_what_is_chosen(opened):
    scale = "return mapScale()"
    at = "const p = onMap(chosen.box); return [p[0] - frameOnMap.x, p[1] - frameOnMap.y]"
    before = opened.execute_script(scale)
    opened.find_element("css selector", "#rows div").click()
    for _ in range(3):
        opened.find_element("id", "in").click()
    assert opened.execute_script(scale) == pytest.approx(1.5**3 * before, rel=0.01)
    u, v = opened.execute_script(at)
    size = opened.execute_script("return [frameOnMap.width, frameOnMap.height]")
    assert 0 < u < size[0]
    assert 0 < v < size[1]
    opened.find_element("id", "fit").click()
    assert opened.execute_script(scale) == pytest.approx(before)


def test_what_was_done_is_taken_back_and_done_again(opened):
    from selenium.webdriver.common.keys import Keys

    def names():
        return opened.execute_script("return data.objects.map(o => o.names[0])")

    opened.find_elements("css selector", "#rows div")[1].click()
    opened.execute_script(
        "const f = document.getElementById('names'); f.value = 'stool';"
        "for (const kind of ['input', 'change']) f.dispatchEvent(new Event(kind, {bubbles: true}))"
    )
    opened.find_element("id", "remove").click()
    states = [["table", "chair", "chair"], ["table", "stool", "chair"], ["table", "chair"]]
    assert names() == states[2]
    for button, state in (("undo", 1), ("undo", 0), ("redo", 1), ("redo", 2), ("undo", 1)):
        opened.find_element("id", button).click()
        assert names() == states[state]
    opened.find_element("id", "add").click()  # what was taken back is gone once something else is done
    assert not opened.find_element("id", "redo").is_enabled()
    opened.find_element("tag name", "body").send_keys(Keys.CONTROL + "z")
    assert names() == states[1]


def test_a_new_name_is_asked_for_while_it_is_typed_and_kept(opened, page):
    opened.find_elements("css selector", "#rows div")[0].click()
    field = opened.find_element("id", "names")
    field.clear()
    field.send_keys("workbenchy, table")
    opened.find_element("id", "save").click()
    assert "workbenchy" in opened.find_element("id", "said").text
    assert not page.session.path.exists()
    opened.find_element("css selector", "#new button").click()
    opened.find_element("id", "save").click()
    wait_for(lambda: "saved 3 objects" in opened.find_element("id", "said").text)
    saved = read_labels(page.session.path)
    assert saved.extra_names == ("workbenchy",)
    assert saved.things[0].names == ("workbenchy", "table")


def test_it_fits_a_phone(opened):
    opened.set_window_size(500, 800)
    try:
        inside = "return document.documentElement.scrollWidth <= innerWidth"
        assert opened.execute_script(inside)
        assert opened.find_element("id", "map").size["height"] > 250
    finally:
        opened.set_window_size(960, 640)
