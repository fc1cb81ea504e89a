"""The viewer in the browser: its pure parts, its door, what it costs, and the page in a real browser."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from support.browser import Page, open_browser
from support.scene_builder import box_surface, room, snapshot_of

from embodied_perceptron.config import GridConfig, SegmentationConfig
from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform, rotation_to_quaternion
from embodied_perceptron.results import Grounding, GroundingStatus, Perception, SceneObject, SemanticVoxels
from embodied_perceptron.scene.navigation import navigation_grid, semantic_voxels
from embodied_perceptron.scene.object_map import check_user_name
from embodied_perceptron.scene.segmentation.layers import separate_layers
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.visualization import web
from embodied_perceptron.visualization.drawing import SHOWN_CHARACTERS, color_of_class, color_of_id, shortened
from embodied_perceptron.visualization.web import (
    Controls,
    HealthLine,
    WebUnavailableError,
    WebViewer,
    answer_html,
    box_lines,
    class_colors,
    even_share,
    first_hit,
    free_places,
    shown,
    view_of,
)
from embodied_perceptron.visualization.web import pixels_of as pixels_of_points
from embodied_perceptron.visualization.web_gate import PortTakenError, WebGate, examine, is_loopback

http11 = pytest.importorskip("websockets.http11", reason="viser is absent (extra web)")
EVIL = "<img src=x onerror='window.hacked=1'>"
K = Intrinsics(60.0, 60.0, 39.5, 29.5, 80, 60)


def thing(number, label, center, size=(0.6, 0.6, 0.6), yaw=0.0):
    return SceneObject(number, label, 0.9, np.array([*center, *size, yaw, 0.0, 0.0]))


def a_perception(objects, source=None):
    parts = [
        (room(), (120, 120, 120)),
        (box_surface((1.4, 0.0, 0.3), (0.6, 0.6, 0.6)), (220, 30, 30)),
        (box_surface((0.0, 1.2, 0.3), (0.6, 0.6, 0.6)), (30, 200, 40)),
    ]
    points = np.concatenate([p for p, _ in parts])
    colors = np.concatenate([np.broadcast_to(c, (len(p), 3)) for p, c in parts])
    snapshot = snapshot_of(points, colors, 0.05)  # few: the browser of the tests draws by the CPU
    layers = separate_layers(snapshot, 0.0, SegmentationConfig())
    grid = navigation_grid(snapshot, 0.0, GridConfig())
    cells = semantic_voxels(snapshot, layers, 0.06)
    return Perception(0, tuple(objects), (), cells, grid, snapshot, source=source)


CRATE, OTHER = thing(1, "crate", (1.4, 0.0, 0.3)), thing(2, "bin", (0.0, 1.2, 0.3))


def found(text, *objects, reason="because"):
    return Grounding(text, GroundingStatus.FOUND, objects, reason)


def wait_until(condition, what, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"timed out: {what}")


@pytest.fixture
def viewer(request):
    pytest.importorskip("viser", reason="viser is absent (extra web)")
    made = []

    def make(controls=None, **options):
        controls = controls or Controls(ask=lambda text: found(text, CRATE))
        made.append(WebViewer(controls, **{"port": 0, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---- pure parts


def test_text_of_strangers_is_short_and_no_markup():
    assert shown(EVIL) == "&lt;img src=x onerror=&#x27;window.hacked=1&#x27;&gt;"
    assert len(shortened("x" * 10_000)) == SHOWN_CHARACTERS
    assert shortened("a\nb\x00c\u2028d") == "a b c d"
    assert shortened("short") == "short"
    html = answer_html(Grounding(EVIL, GroundingStatus.FOUND, (thing(3, EVIL, (0, 0, 0)),), EVIL))
    assert "<img" not in html
    assert html.count("&lt;img") == 3
    assert len(answer_html(Grounding("t" * 10_000, GroundingStatus.INVALID, (), "r" * 10_000))) < 1_000


def test_the_name_of_an_answer_stands_once():
    assert answer_html(found("the crate", CRATE, reason="crate 1")).count("crate 1") == 1
    assert "crate 1 &mdash; it is the nearest" in answer_html(found("the crate", CRATE, reason="it is the nearest"))


def test_an_even_share_of_points_is_never_more_than_asked_for():
    for count in (0, 1, 99, 100, 101, 250, 12345):
        taken = np.arange(count)[even_share(count, 100)]
        assert len(taken) <= 100
        assert count > 100 or len(taken) == count
        assert count <= 100 or taken[-1] > 0.97 * count - 100


def test_points_have_the_colour_of_the_cell_that_they_lie_in():
    rng = np.random.default_rng(3)
    coords = np.unique(rng.integers(-6, 6, (150, 3)), axis=0)
    classes = ("floor", "chair", "table")
    labels = rng.integers(0, 3, len(coords)).astype(np.int32)
    cells = SemanticVoxels(
        0.1,
        ((coords + 0.5) * 0.1).astype(np.float32),
        np.zeros((len(coords), 3), np.uint8),
        labels,
        np.ones(len(coords), np.float32),
        classes,
    )
    points = rng.uniform(-0.8, 0.8, (400, 3)).astype(np.float32)
    known = {tuple(c): classes[label] for c, label in zip(coords.tolist(), labels, strict=True)}
    slow = [
        color_of_class(known[key])
        if (key := tuple(np.floor(p.astype(np.float64) / 0.1).astype(int).tolist())) in known
        else web._UNLABELLED
        for p in points
    ]
    assert (class_colors(points, cells) == np.array(slow, np.uint8)).all()
    assert len({tuple(c) for c in slow}) == 4
    assert (class_colors(points, cells.take(np.zeros(0, int))) == web._UNLABELLED).all()
    assert class_colors(points[:0], cells).shape == (0, 3)


def test_edges_of_boxes_have_their_lengths_and_ends():
    turned = thing(1, "crate", (1.0, 2.0, 0.5), (0.4, 0.6, 0.8), yaw=0.7)
    lines, colors = box_lines((turned, OTHER), [(1, 2, 3), (4, 5, 6)], wider_m=0.0)
    assert lines.shape == colors.shape == (24, 2, 3)
    lengths = np.sort(np.linalg.norm(lines[:12, 0] - lines[:12, 1], axis=1))
    assert lengths == pytest.approx([0.4] * 4 + [0.6] * 4 + [0.8] * 4, abs=1e-5)
    corners = box_corners(turned.box[None])[0]
    for end in lines[:12].reshape(-1, 3):
        assert np.linalg.norm(corners - end, axis=1).min() < 1e-5
    assert (colors[:12] == (1, 2, 3)).all()
    assert (colors[12:] == (4, 5, 6)).all()
    assert box_lines((), [])[0].shape == (0, 2, 3)


def test_a_click_means_the_first_box_that_its_ray_meets():
    near, far = thing(1, "a", (2.0, 0.0, 0.5), yaw=0.4), thing(2, "b", (4.0, 0.0, 0.5))
    inner, room_box = thing(3, "c", (2.0, 0.0, 0.5), (0.1, 0.1, 0.1)), thing(4, "d", (0, 0, 0), (20, 20, 20))
    eye, ahead = np.array([0.0, 0.0, 0.5]), np.array([1.0, 0.0, 0.0])
    assert first_hit(eye, ahead, (far, near)) is near
    assert first_hit(eye, -ahead, (far, near)) is None
    assert first_hit(eye, ahead, (room_box, far)) is far  # one is in the room and means the thing
    assert first_hit(eye, np.array([0.0, 1.0, 0.0]), (room_box, far)) is room_box
    assert first_hit(near.box[:3], ahead, (near, inner)) is inner
    assert first_hit(eye + 5.0 * np.eye(3)[1], ahead, (near, far)) is None


# ---- the door


def test_names_never_lie_on_each_other():
    """Forty-five at one place: the first in order have their places, the rest none."""
    rng = np.random.default_rng(0)
    for spread in (60.0, 400.0, 2000.0):
        middles = rng.uniform(0, spread, (45, 2))
        places = middles[:, None] + np.array([[0, -30], [0, 0], [0, 30]])
        sizes = rng.uniform((40, 18), (150, 20), (45, 2))
        order = rng.permutation(45)
        chosen = free_places(places, sizes, order)
        assert chosen[order[0]] == 0
        rows = np.flatnonzero(chosen >= 0)
        at = places[rows, chosen[rows]]
        low, high = at - [1, 1] * sizes[rows] * [0.5, 1], at + [0.5, 0] * sizes[rows]
        over = (low[:, None] < high[None]) & (high[:, None] > low[None])
        assert (over.all(axis=2) == np.eye(len(rows), dtype=bool)).all()
        hidden = np.flatnonzero(chosen < 0)
        assert len(hidden) or spread == 2000.0
    gone = np.full((1, 3, 2), np.nan)
    assert free_places(gone, np.array([[10.0, 10.0]]), np.array([0])).tolist() == [-1]


def test_points_come_to_the_pixels_where_a_camera_sees_them():
    """A camera at (0, -2, 1) that looks along y; a page of 800 x 600 and 90 degrees of height."""
    R = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
    wxyz = rotation_to_quaternion(R)[[3, 0, 1, 2]]
    points = np.array([[[0, 0, 1.0], [1, 0, 1], [0, 0, 2], [0, -3, 1]]])
    pixels = pixels_of_points(points, np.array([0, -2.0, 1]), wxyz, np.pi / 2, (800, 600))
    assert pixels.shape == (1, 4, 2)
    assert np.allclose(pixels[0, :3], [[400, 300], [550, 300], [400, 150]])
    assert np.isnan(pixels[0, 3]).all()


@pytest.mark.parametrize(("width", "height"), [(1400, 800), (1170, 2532), (390, 844), (2880, 1800)])
def test_a_room_and_an_answer_are_seen_whole_beside_the_panel(width, height):
    middle, reach, fov = np.array([2.0, -1.0, 0.5]), 1.5, 1.3
    eye, look_at = view_of(middle, reach, np.array([-0.3, -0.4, 0.9]), fov, width / height, width)
    z = (look_at - eye) / np.linalg.norm(look_at - eye)
    x = np.cross(z, [0.0, 0.0, 1.0])
    x /= np.linalg.norm(x)
    wxyz = rotation_to_quaternion(np.stack([x, np.cross(z, x), z], axis=1))[[3, 0, 1, 2]]
    around = middle + 0.8 * reach * np.array([[0, 0, 0], [1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]])
    pixels = pixels_of_points(around, eye, wxyz, fov, (width, height))
    assert (pixels >= 0).all()
    panel = 400 * max(1.0, width / 1500)
    free = (width, 0.63 * height) if width < height else (width - 0.9 * panel, height)
    assert (pixels <= free).all()


def request(target="/", **headers):
    return http11.Request(target, http11.Headers(headers))


def test_pages_of_other_places_may_not_look_in():
    def look(host, origin="", local=True):
        return examine(request(Host=host, **({"Origin": origin} if origin else {})), "", "c", local)

    assert look("localhost:8085") is None
    assert look("127.0.0.1:8085", "http://127.0.0.1:8085") is None
    assert look("[::1]:8085") is None
    assert look("evil.example:8085").status_code == 403  # a name that resolves to this machine
    assert look("localhost:8085", "http://evil.example").status_code == 403
    assert look("localhost:8085", "null").status_code == 403
    assert look("robot:8085", local=False) is None


def test_beyond_this_machine_a_token_is_needed():
    def look(target="/", **headers):
        return examine(request(target, Host="robot:8085", **headers), "s3cret", "cookie", False)

    assert look().status_code == 401
    assert look("/?token=wrong").status_code == 401
    assert look("/?token=").status_code == 401
    assert look("/?token=s%C3%A9cret").status_code == 401
    assert look(Cookie="cookie=wrong").status_code == 401
    assert look(Cookie="other=s3cret").status_code == 401
    assert look(Cookie="a=b; cookie=s3cret") is None
    let_in = look("/?token=s3cret&a=b")
    assert let_in.status_code == 303
    assert let_in.headers["Location"] == "/?a=b"
    assert "cookie=s3cret" in let_in.headers["Set-Cookie"]
    assert "HttpOnly" in let_in.headers["Set-Cookie"]
    assert look("//evil.example?token=s3cret").headers["Location"] == "/"


def test_addresses_of_this_machine_alone():
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.3.2.1", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "", "192.168.1.4", "robot"))


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"cannot listen on 127.0.0.1, port {port}"):
            WebGate("127.0.0.1", port)
    with pytest.raises(PortTakenError, match=r"no\.such\.host\.invalid"):
        WebGate("no.such.host.invalid", 0)


def test_pages_beyond_the_limit_are_refused(viewer):
    gate = viewer(max_viewers=1, token="secret")._gate
    upgrade = (
        f"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nCookie: {gate.cookie_name}="
        "secret\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()

    def opened():
        connection = socket.create_connection(("127.0.0.1", gate.port), 5.0)
        connection.sendall(upgrade)
        return connection, connection.recv(12)

    first, answer = opened()
    assert answer == b"HTTP/1.1 101"
    second, answer = opened()
    assert (answer, gate.refused) == (b"HTTP/1.1 503", 1)
    first.close()
    second.close()
    wait_until(lambda: not gate.connections, "the pages to go")
    third, answer = opened()
    assert answer == b"HTTP/1.1 101"
    third.close()


def get(url, headers=None):
    """(status, body) without following redirections."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    opener = urllib.request.build_opener(Stay)
    try:
        with opener.open(urllib.request.Request(url, headers=headers or {}), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


# ---- the viewer


def test_without_viser_the_reason_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "viser", None)
    with pytest.raises(WebUnavailableError, match=r"pip install 'viser>=1.0'"):
        WebViewer(Controls(ask=lambda text: found(text)), port=0)


def test_the_page_is_served_and_a_taken_port_is_refused(viewer):
    one = viewer()
    status, body = get(one.url)
    assert (status, b"<html" in body.lower()) == (200, True)
    assert b"<title>Embodied Perceptron</title>" in body
    packed = gzip.decompress(get(one.url, {"Accept-Encoding": "gzip"})[1])
    assert packed == body
    assert b"<title>a &lt;b&gt;</title>" in get(viewer(title="a <b>").url)[1]
    assert get(one.url, {"Host": "evil.example"})[0] == 403
    threads = threading.active_count()
    port = int(one.url.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(PortTakenError, match=str(port)):
        viewer(port=port)
    wait_until(lambda: threading.active_count() <= threads + 1, "threads of the viewer that could not start")
    with pytest.raises(ValueError, match="token"):
        viewer(token="a b")


def listening_ports():
    """TCP ports on which this process listens."""
    inodes = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(link.readlink().name.removeprefix("socket:[").removesuffix("]"))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of sockets")
def test_there_is_no_way_around_the_door(viewer):
    before = listening_ports()
    one = viewer(token="secret")
    opened = listening_ports() - before
    assert opened == {urllib.parse.urlsplit(one.url).port}  # nothing listens but the door, which asks for the token
    assert get(f"http://127.0.0.1:{opened.pop()}/")[0] == 401


@pytest.mark.parametrize("headers", [{"Host": "[::1"}, {"Host": "localhost", "Origin": "http://[x"}])
def test_headers_that_cannot_be_read_are_refused(viewer, headers):
    assert get(viewer().url, headers)[0] == 400


@pytest.mark.parametrize(
    "sent", [b"hello\r\n\r\n", b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + bytes(20_000)]
)
def test_only_get_requests_are_answered(viewer, sent):
    with socket.create_connection(("127.0.0.1", viewer()._gate.port), 5.0) as connection:
        connection.settimeout(5.0)
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            assert connection.recv(1) == b""


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: loc"], ids=["silent", "half a request"])
def test_a_thousand_connections_keep_nobody_out(viewer, begun):
    """Tabs keep connections that ask for nothing; each takes a file of the process."""
    gate = viewer(max_viewers=2)._gate
    kept = []
    try:
        for _ in range(1000):
            kept.append(socket.create_connection(("127.0.0.1", gate.port), 5.0))
            kept[-1].settimeout(20.0)
            if begun:
                kept[-1].sendall(begun)
            if len(kept) > 16:  # the oldest that has not asked makes room
                with contextlib.suppress(ConnectionResetError):
                    assert kept.pop(0).recv(1) == b""
        assert (len(kept), gate.refused) == (16, 1000 - 16)
        kept.append(socket.create_connection(("127.0.0.1", gate.port), 5.0))
        kept[-1].settimeout(20.0)
        kept[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept[-1].recv(100).startswith(b"HTTP/1.1 200")
        assert gate.refused == 1000 - 15
    finally:
        for connection in kept:
            connection.close()


def test_opened_to_the_network_it_makes_a_token(viewer):
    one = viewer(host="0.0.0.0")
    address, _, token = one.url.partition("?token=")
    assert len(token) >= 16
    assert get(address)[0] == 401
    assert get(one.url + "x")[0] == 401
    assert get(one.url)[0] == 303
    assert one.refused == 2
    assert viewer(host="0.0.0.0", token="mine").url.endswith("?token=mine")


def test_it_costs_nothing_when_nobody_looks(viewer, monkeypatch):
    one = viewer()
    made = []
    for name in ("draw_boxes_on_image", "box_lines", "class_colors", "answer_html"):
        monkeypatch.setattr(web, name, lambda *_, name=name: made.append(name))
    sent = one._server._websock_server.get_message_buffer()
    before = sent.message_counter
    for _ in range(20):
        one.show(a_perception((CRATE,)))
        one.answer(found("the crate", CRATE))
        time.sleep(0.05)
    time.sleep(3 * web._TICK_S)
    assert (one.clients, one.drawn, made, sent.message_counter) == (0, 0, [], before)


def test_the_path_stays_bounded(viewer, monkeypatch):
    monkeypatch.setattr(web, "_MAX_PATH", 50)
    one = viewer()
    frame = RgbdFrame(1, "front", np.zeros((60, 80, 3), np.uint8), np.ones((60, 80), np.float32), K)
    base = a_perception(())
    for i in range(200):
        at = PosedFrame(frame, make_transform(np.eye(3), np.array([0.1 * i, 0.0, 0.0])))
        one.show(Perception(0, (), (), base.semantic, base.grid, base.voxels, source=at))
    assert 20 <= len(one._path) <= 50
    assert one._path[-1][0] == pytest.approx(19.9)
    assert one._path[0][0] == 0.0


# ---- in a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    pytest.importorskip("viser", reason="viser is absent (extra web)")
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def screenshot(page):
    data = np.frombuffer(page.browser.get_screenshot_as_png(), np.uint8)
    return cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def pixels_of(image, color):
    """How many pixels are much more of the colour's strongest channels than of the others."""
    strong = np.array(color) > 150
    values = image.astype(int)
    return int((values[..., strong].min(axis=2) - values[..., ~strong].max(axis=2) > 60).sum())


def test_boxes_appear_and_a_question_is_answered(viewer, browser):
    asked = []

    def ask(text):
        asked.append(text)
        return found(text, CRATE, reason="the only crate")

    frame = RgbdFrame(1, "front", np.full((60, 80, 3), 90, np.uint8), np.ones((60, 80), np.float32), K)
    health = [HealthLine("warn", "transforms", "no transform since 3 s")]
    one = viewer(Controls(ask, name=lambda number, name: "", health=lambda: health))
    page = Page(browser, one.url)
    page.wait_for_text("no transform since 3 s")
    blank = screenshot(page)
    red, edges = (220, 30, 30), color_of_id(2)
    one.show(a_perception((CRATE, OTHER), PosedFrame(frame, np.eye(4))))
    page.wait_for(lambda: pixels_of(screenshot(page), red) > pixels_of(blank, red) + 50, "the red crate")
    page.wait_for(lambda: pixels_of(screenshot(page), edges) > pixels_of(blank, edges) + 50, "the other's edges")
    page.wait_for(lambda: "crate 1" in page.browser.page_source, "the names")
    green = web._ANSWER_COLOR
    before = pixels_of(screenshot(page), green)
    page.ask("the crate by the window")
    page.wait_for_text("the only crate")
    assert asked == ["the crate by the window"]
    assert "FOUND" in page.text()
    page.wait_for(lambda: pixels_of(screenshot(page), green) > before + 100, "the answer highlighted")


def test_questions_arrive_whole_however_fast_they_are_typed(viewer, browser):
    """A page tells what was typed twenty times a second, and forgets a letter when something else comes meanwhile."""
    asked = []

    def ask(text):
        asked.append(text)
        return found(text, CRATE)

    page = Page(browser, viewer(Controls(ask)).url)
    sentences = [f"the crate closest to the desk number {number}" for number in range(3)]
    for number, sentence in enumerate(sentences):
        page.ask(sentence)
        page.wait_for(lambda n=number: len(asked) > n, "the question")
        page.wait_for(lambda: page.field("Question").get_attribute("value") == "", "an empty field")
    assert asked == sentences


def test_the_camera_flies_to_the_answer(viewer, browser):
    one = viewer(Controls(lambda text: found(text, OTHER)))
    page = Page(browser, one.url)
    one.show(a_perception((CRATE, OTHER)))
    page.wait_for(one._server.get_clients, "the page's connection")
    (client,) = one._server.get_clients().values()
    page.wait_for(lambda: one._page._room is not None, "the room")
    room = client.camera.look_at.copy()
    page.ask("the bin")

    def off_m():  # the middle of the answer from where the camera looks; the panel stands beside
        return float(np.linalg.norm(client.camera.look_at - OTHER.box[:3]))

    page.wait_for(lambda: off_m() < 1.0, "the flight")
    assert np.linalg.norm(room - OTHER.box[:3]) > 1.2
    assert np.linalg.norm(client.camera.position - OTHER.box[:3]) < 5.0
    assert client.camera.position[2] > OTHER.box[2]


def test_markup_in_names_is_read_and_not_obeyed(viewer, browser):
    one = viewer(
        Controls(
            ask=lambda text: found(text, thing(3, EVIL, (0, 0, 0.3)), reason=EVIL),
            name=lambda number, name: f"{number} is {name}",
            standing=lambda: [found(EVIL)],
            health=lambda: [HealthLine("error", EVIL, EVIL)],
        )
    )
    page = Page(browser, one.url)
    one.show(a_perception((thing(3, EVIL, (0.0, 0.0, 0.3)), thing(4, "y" * 10_000, (1.0, 0.0, 0.3)))))
    page.ask(EVIL)
    page.wait_for_text("FOUND " + EVIL[:10])
    page.wait_for(lambda: "yyyyyyyy" in page.browser.page_source, "the long name")
    assert "y" * 200 not in page.browser.page_source
    assert page.browser.execute_script("return window.hacked") is None
    assert page.browser.execute_script("return document.querySelectorAll('img[src=x]').length") == 0


@pytest.mark.slow
def test_a_browser_that_went_in_the_middle_of_an_answer_harms_nobody(viewer, browser):
    go_on, asked = threading.Event(), threading.Event()
    problems = []

    def ask(text):
        asked.set()
        go_on.wait(60)
        return found(text, CRATE, reason="after all")

    one = viewer(Controls(ask), on_error=problems.append)
    one.show(a_perception((CRATE,)))
    browser.switch_to.new_window("tab")
    Page(browser, one.url).ask("the crate")
    assert asked.wait(60)
    browser.close()
    browser.switch_to.window(browser.window_handles[0])
    wait_until(lambda: one.clients == 0, "the browser to go")
    go_on.set()
    again = Page(browser, one.url)  # what was asked is answered all the same
    again.wait_for_text("after all")
    assert problems == []


def test_no_more_pages_than_allowed(viewer, browser):
    one = viewer(max_viewers=1)
    one.show(a_perception((CRATE,)))
    Page(browser, one.url)
    wait_until(lambda: one.clients == 1, "the first page")
    before = one.refused
    browser.switch_to.new_window("tab")
    try:
        Page(browser, one.url)
        wait_until(lambda: one.refused > before, "the second page to be refused")
        assert one.clients == 1
    finally:
        browser.close()
        browser.switch_to.window(browser.window_handles[0])


def red_spot(page):
    """(x, y) in the middle of the red crate on the page."""
    image = screenshot(page).astype(int)
    rows, columns = np.nonzero(image[..., 0] - image[..., 1:].max(axis=2) > 60)
    if len(rows) < 30:
        return None
    middle = np.median(columns), np.median(rows)
    nearest = np.argmin((columns - middle[0]) ** 2 + (rows - middle[1]) ** 2)
    return int(columns[nearest]), int(rows[nearest])


def click_at(page, x, y):
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = page.browser.find_element("tag name", "canvas")
    box = canvas.rect
    actions = ActionChains(page.browser)
    actions.move_to_element_with_offset(
        canvas, x - int(box["x"] + box["width"] / 2), y - int(box["y"] + box["height"] / 2)
    )
    actions.click().perform()


@pytest.mark.slow
def test_what_is_clicked_on_is_named_and_corrected(viewer, browser):
    told = []

    def name(number, words):
        check_user_name(words, ["crate"])
        told.append(("name", number, words))
        return f"crate {number} is called {words}"

    def correct(number, label, not_there):
        told.append(("correct", number, label, not_there))
        return f"{number} is gone" if not_there else f"{number} is a {label}"

    one = viewer(Controls(ask=lambda text: found(text, CRATE), name=name, correct=correct))
    page = Page(browser, one.url)
    one.show(a_perception((CRATE, OTHER)))
    page.wait_for(lambda: red_spot(page) is not None, "the red crate")
    page.press("Teach")
    page.button("Name it").click()
    page.wait_for_text("choose an object first")
    page.wait_for(
        lambda: (click_at(page, *red_spot(page)), "crate 1" in page.field("Object").get_attribute("value"))[1],
        "the crate to be chosen by a click",
    )
    page.type("Name", "Crate")
    page.button("Name it").click()
    page.wait_for_text("is the name of a class")
    page.type("Name", "Anna's crate")
    page.button("Name it").click()
    page.wait_for_text("crate 1 is called Anna's crate")
    page.type("It is a", "treadmill")
    page.button("Correct").click()
    page.wait_for_text("1 is a treadmill")
    page.button("Not there").click()
    page.wait_for_text("1 is gone")
    assert told == [("name", 1, "Anna's crate"), ("correct", 1, "treadmill", False), ("correct", 1, "", True)]


def test_a_browser_needs_the_token_of_a_viewer_that_is_open_to_the_network(viewer, browser):
    one = viewer(Controls(lambda text: found(text, CRATE, reason="let in")), host="0.0.0.0", token="s3cret")
    address = f"http://127.0.0.1:{one.url.split(':')[2].split('/')[0]}/"
    browser.delete_all_cookies()
    shut = Page(browser, address)
    assert shut.browser.find_elements("tag name", "canvas") == []
    assert "token" in shut.text()
    assert one.clients == 0
    Page(browser, address + "?token=wrong")
    assert one.clients == 0
    page = Page(browser, address + "?token=s3cret")
    wait_until(lambda: one.clients == 1, "the page")
    assert "s3cret" not in browser.current_url
    page.ask("the crate")
    page.wait_for_text("let in")
    again = Page(browser, address)  # the cookie lets it in
    again.wait_for(lambda: again.browser.find_elements("tag name", "canvas"), "the page without the token")
    browser.delete_all_cookies()
    assert "token" in Page(browser, address).text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_tabs_are_served_side_by_side(viewer, browser):
    asked, problems = [], []

    def ask(text):
        asked.append(text)
        return found(text, CRATE, reason=f"heard {text[-5:]}")

    one = viewer(Controls(ask), max_viewers=2, on_error=problems.append)
    one.show(a_perception((CRATE,)))
    first = browser.current_window_handle
    try:
        for i in range(2):
            browser.switch_to.new_window("tab")
            page = Page(browser, one.url)
            page.ask(f"crate tab {i}")
            page.wait_for_text(f"heard tab {i}")
            wait_until(lambda i=i: one.clients == i + 1, f"tab {i}")
        assert "heard tab 0" in page.text()  # what one asks, all read
        refused = one.refused
        browser.switch_to.new_window("tab")
        Page(browser, one.url)
        wait_until(lambda: one.refused > refused, "the tab too many to be refused")
    finally:
        for handle in [h for h in browser.window_handles if h != first]:
            browser.switch_to.window(handle)
            browser.close()
        browser.switch_to.window(first)
    wait_until(lambda: one.clients == 0, "the tabs to go")
    assert asked == ["crate tab 0", "crate tab 1"]
    again = Page(browser, one.url)
    again.wait_for_text("heard tab 1")
    assert problems == []


def test_what_cannot_be_kept_is_told_on_the_page():
    """A name given on the page of a saved map is written at once; a full disk must not look like a success."""
    page = SimpleNamespace(_done=SimpleNamespace(content=""))

    def full(number, name):
        raise OSError(28, "No space left on device")

    for what, number, words in (
        (full, 3, "could not be written: [Errno 28] No space left"),
        (lambda number, name: check_user_name(name), 3, "name of a class"),
        (lambda number, name: "", 0, "choose an object first"),
        (lambda number, name: f"{number} is called {EVIL}", 3, "3 is called &lt;img"),
    ):
        web._Panel._do(page, what, number, "chair")
        assert words in page._done.content
