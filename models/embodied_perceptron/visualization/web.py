"""The live map in a browser: points, boxes with names, cells, camera, path, questions and answers, health.

Needs the package ``viser``. One thread draws at its own rate, and only while a browser is connected;
other threads only hand data over. Names and sentences are untrusted: they are shortened and escaped.

All browsers see the same map and answers; each has its own fields to ask and to name objects.
"""

from __future__ import annotations

import html
import logging
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import BOX_EDGES, box_corners, box_rotations
from embodied_perceptron.geometry.transforms import quaternion_to_rotation, rotation_to_quaternion
from embodied_perceptron.language.time_questions import entry_in_words, newest_ns
from embodied_perceptron.results import EventKind, Grounding, GroundingStatus, Perception, SceneObject, SemanticVoxels
from embodied_perceptron.visualization.drawing import (
    PATH_COLOR,
    SHOWN_CHARACTERS,
    color_of_class,
    color_of_id,
    draw_boxes_on_image,
    label_of,
    shortened,
)
from embodied_perceptron.visualization.web_gate import MAX_VIEWERS, WebGate, is_loopback

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8085
MAX_POINTS = 250_000  # shown; an even sample of more
_MAX_LABELS = 400  # a browser draws each separately
_POINTS_S, _TICK_S, _HEALTH_S = 1.0, 0.2, 1.0
_PATH_STEP_M, _MAX_PATH = 0.05, 20_000
_KEPT_ANSWERS = 6
_SHOWN_CHANGES = 12
_GONE_GREY, _FADE_NS = 200, 3_000_000_000  # grey of what just left, and the time in which it fades by one step
_UNLABELLED = (120, 124, 130)
_ANSWER_COLOR, _CHOSEN_COLOR = (60, 220, 90), (255, 230, 40)
_SETTLED_S, _TYPED_S = 0.3, 3.0  # wait for letters that arrive after a button was pressed
_FLIGHT_S, _FLIGHT_STEPS = 0.6, 18
_PANEL_PX, _NARROW = 400, 0.8  # panel at the right, or below for a smaller width / height
_LETTER_PX, _LINE_PX = (7.0, 19.0)  # size of a name, with its margin
_STATUS_COLORS = {
    GroundingStatus.FOUND: "#1e9e4a",
    GroundingStatus.AMBIGUOUS: "#b7791f",
    GroundingStatus.NOT_FOUND: "#b7791f",
    GroundingStatus.INVALID: "#c53030",
}
_LEVEL_COLORS = {"ok": "#1e9e4a", "warn": "#b7791f", "error": "#c53030"}
_CAMERA_COLORS, _CLASS_COLORS, _NO_POINTS = "camera colours", "classes", "none"


class WebUnavailableError(ImportError):
    """The package viser is not installed."""


@dataclass(frozen=True)
class HealthLine:
    """One line of the health panel."""

    level: Literal["ok", "warn", "error"]
    what: str
    message: str


@dataclass(frozen=True)
class Controls:
    """Callbacks of the page, called from one thread of the server per request.

    Attributes:
        ask: answers a sentence.
        name: gives object ``id`` a user name (empty removes it); returns a message.
        correct: sets the label of object ``id``, or removes the object; returns a message.
        standing: returns the last answers of standing questions.
        health: returns the health lines.

    ``name`` and ``correct`` raise ``ValueError`` or ``LookupError`` with a message for the user, ``OSError`` when the
    change could not be saved; if they are None the page has no such fields.
    """

    ask: Callable[[str], Grounding]
    name: Callable[[int, str], str] | None = None
    correct: Callable[[int, str, bool], str] | None = None
    standing: Callable[[], Sequence[Grounding]] = lambda: ()
    health: Callable[[], Sequence[HealthLine]] = lambda: ()


class WebViewer:
    """Server of the page until :meth:`close`. All methods are thread-safe and do not wait for a browser.

    Args:
        controls: callbacks of the page.
        host: address to listen on; by default only this machine.
        port: port to listen on; 0 = any free one.
        token: that a browser must show; generated when ``host`` is not a loopback address and none is given.
        title: of the page.
        on_error: called with the traceback of an error while drawing, at most every ten seconds.
        max_viewers: pages at a time.

    Raises:
        WebUnavailableError: viser is not installed.
        PortTakenError: it cannot listen there.
        ValueError: the token does not fit into an address.
    """

    def __init__(
        self,
        controls: Controls,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        token: str = "",
        title: str = "Embodied Perceptron",
        on_error: Callable[[str], None] = lambda message: None,
        max_viewers: int = MAX_VIEWERS,
    ) -> None:
        if token and not (token.isascii() and all(c.isalnum() or c in "-_" for c in token)):
            raise ValueError("a token may have letters, digits, '-' and '_'")
        if not token and not is_loopback(host):
            token = secrets.token_urlsafe(16)
        self._controls = controls
        self._on_error = on_error
        self._reported_s = float("-inf")
        self._lock = threading.Lock()
        self._latest: Perception | None = None
        self._answers: deque[Grounding] = deque(maxlen=_KEPT_ANSWERS)
        self._path: list[NDArray[np.float64]] = []
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self.drawn = 0  # number of updates
        self._gate = WebGate(host, port, token, max_viewers)
        self._gate.title = title
        try:
            self._server = _start_server(title, self._gate)
        except BaseException:
            self._gate.close()
            raise
        shown = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::", "") else host
        self.url = f"http://{shown}:{self._gate.port}/" + (f"?token={token}" if token else "")
        self._page = _Page(self._server, controls, self.answer, self._changed.set)
        self._server.on_client_connect(self._page.greet)
        self._server.on_client_connect(lambda _: self._changed.set())
        self._server.on_client_disconnect(self._page.part)
        self._thread = threading.Thread(target=self._run, name="web viewer", daemon=True)
        self._thread.start()

    def __enter__(self) -> WebViewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def clients(self) -> int:
        """Number of connected browsers."""
        return len(self._server.get_clients())

    @property
    def refused(self) -> int:
        """Number of refused connections."""
        return self._gate.refused

    def show(self, perception: Perception) -> None:
        """Set the newest perception; it is drawn while a browser is connected."""
        with self._lock:
            self._latest = perception
            self._extend_path(perception)
        self._changed.set()

    def answer(self, grounding: Grounding) -> None:
        """Show an answer."""
        with self._lock:
            if any(grounding is known for known in self._answers):
                return
            self._answers.append(grounding)
        self._changed.set()

    def close(self) -> None:
        """Close all connections and free the port."""
        self._stopping.set()
        self._changed.set()
        self._thread.join(5.0)
        self._server.stop()

    # ---- the thread

    def _extend_path(self, perception: Perception) -> None:
        if perception.source is None:
            if len(perception.voxels) == 0:
                self._path.clear()
            return
        here = perception.source.T_world_camera[:3, 3]
        if not self._path or float(np.linalg.norm(here - self._path[-1])) >= _PATH_STEP_M:
            self._path.append(here.copy())
        if len(self._path) > _MAX_PATH:
            self._path = self._path[::2]

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.wait(_HEALTH_S)
            if self._stopping.wait(_TICK_S):
                return
            if self.clients == 0:
                self._changed.clear()
                continue
            self._changed.clear()
            try:
                self._draw()
            except Exception:  # a failed update must not end the viewer or the node
                now_s = time.monotonic()
                if now_s - self._reported_s > 10.0:
                    self._reported_s = now_s
                    self._on_error(traceback.format_exc())

    def _draw(self) -> None:
        with self._lock:
            perception, path, answers = self._latest, list(self._path), list(self._answers)
        self.drawn += 1
        with self._page.drawing, self._server.atomic():
            self._page.show_health(self._controls.health())
            self._page.show_answers(answers, self._controls.standing())
            if perception is not None and not self._page.show_map(perception, path):
                self._changed.set()  # points are still due
            self._page.show_names()


# --------------------------------------------------------------------------------------------------------------------
# the page


class _Page:
    """Contents of the page. One thread draws at a time: that of the viewer, or that of a control on the page."""

    def __init__(
        self, server: Any, controls: Controls, answered: Callable[[Grounding], None], moved: Callable[[], None]
    ) -> None:
        self._server = server
        self.moved = moved
        self.controls = controls
        self.answered = answered
        self._panels: dict[int, _Panel] = {}
        self._panels_lock = threading.Lock()
        self.drawing = threading.RLock()
        self._objects: tuple[SceneObject, ...] = ()
        self._perception: Perception | None = None
        self._points_of: tuple[object, str] | None = None
        self._cells_of: object = None
        self._points_s = float("-inf")
        self._path: Sequence[NDArray[np.float64]] = ()
        self._shown_html: dict[str, str] = {}
        self._answer_boxes: tuple[object, ...] = ()
        self._room: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None  # lowest and highest corner
        gui = server.gui
        self._health = gui.add_html("")
        with gui.add_folder("Answers", order=20):
            self._answers = gui.add_html("")
        with gui.add_folder("Changes", order=25, expand_by_default=False):
            self._changes = gui.add_html("")
        self._camera_folder = gui.add_folder("Camera", order=30, visible=False)  # a saved map has no image
        with self._camera_folder:
            self._camera = gui.add_image(np.zeros((3, 4, 3), np.uint8))
        with gui.add_folder("Show", order=40, expand_by_default=False):
            self._points_mode = gui.add_dropdown("Points", (_CAMERA_COLORS, _CLASS_COLORS, _NO_POINTS))
            self._with_boxes = gui.add_checkbox("Objects", True)
            self._with_names = gui.add_checkbox("Names", True)
            self._with_cells = gui.add_checkbox("Semantic cells", False)
            self._with_path = gui.add_checkbox("Path", True)
        for switch in (self._points_mode, self._with_boxes, self._with_names, self._with_cells, self._with_path):
            switch.on_update(lambda _: self._redraw())

    # ---- connections

    def greet(self, client: Any) -> None:
        """Add the fields of a new browser and show it the whole room."""
        panel = _Panel(client, self)
        with self._panels_lock:
            self._panels[client.client_id] = panel
        panel.offer(self._objects)
        if self._room is not None:
            panel.look_at_room(*self._room)

    def part(self, client: Any) -> None:
        """Remove the fields of a browser that disconnected."""
        with self._panels_lock:
            panel = self._panels.pop(client.client_id, None)
        if panel is not None:
            panel.gone = True

    def _everyone(self) -> list[_Panel]:
        with self._panels_lock:
            return list(self._panels.values())

    def by_id(self, number: int) -> SceneObject | None:
        return next((o for o in self._objects if o.id == number), None)

    def _redraw(self) -> None:
        self._points_of = self._cells_of = None
        self._points_s = float("-inf")
        perception = self._perception
        if perception is not None:
            with self.drawing, self._server.atomic():
                self._show_points(perception)
                self._show_boxes(perception.objects)
                self._show_cells(perception.semantic)
                self._show_path(self._path)

    # ---- texts

    def show_health(self, lines: Sequence[HealthLine]) -> None:
        """Show the health lines, the worst first."""
        rank = {"error": 0, "warn": 1, "ok": 2}
        rows = [
            f'<div><span style="color:{_LEVEL_COLORS[line.level]}">&#9679;</span> <b>{shown(line.what)}</b> '
            f"{shown(line.message, 200)}</div>"
            for line in sorted(lines, key=lambda line: rank[line.level])
        ]
        self._put("health", self._health, _block("".join(rows), "ep-health"))

    def show_answers(self, answers: Sequence[Grounding], standing: Sequence[Grounding]) -> None:
        """Show the last answers, newest first, the standing questions, and the boxes of the newest answer."""
        rows = [answer_html(answer) for answer in reversed(answers)]
        if standing:
            rows.append("<div style='margin-top:6px'><b>Standing questions</b></div>")
            rows += [answer_html(answer) for answer in standing]
        self._put("answers", self._answers, _block("".join(rows) or "No question yet.", "ep-answers"))
        chosen = answered_objects(answers[-1]) if answers else ()
        if chosen == self._answer_boxes:
            return
        self._answer_boxes = chosen
        draw_lines(
            self._server.scene, "/answer", *box_lines(chosen, [_ANSWER_COLOR] * len(chosen), 0.06), thickness=5.0
        )

    def _put(self, key: str, handle: Any, content: str) -> None:
        """Send a text only if it changed."""
        if self._shown_html.get(key) != content:
            self._shown_html[key] = content
            handle.content = content

    # ---- the room

    def show_map(self, perception: Perception, path: Sequence[NDArray[np.float64]]) -> bool:
        """Draw boxes, camera and path, and points at their own rate. Returns False when points are still due."""
        if perception is not self._perception:
            self._perception = perception
            if perception.objects != self._objects:
                self._objects = perception.objects
                for panel in self._everyone():
                    panel.offer(perception.objects)
            self._show_boxes(perception.objects)
            self._put("changes", self._changes, changes_html(perception))
            self._show_camera(perception)
            self._show_path(path)
            self._look_at(perception)
        self._show_cells(perception.semantic)
        if self._points_of == (perception.voxels, self._points_mode.value):
            return True
        if time.monotonic() - self._points_s < _POINTS_S:
            return False
        self._show_points(perception)
        return True

    def _look_at(self, perception: Perception) -> None:
        """Point the browsers at the whole room when the first points arrive."""
        points = perception.voxels.mean_point_m
        if self._room is not None or len(points) == 0:
            return
        low, high = np.percentile(points, (2, 98), axis=0)
        self._room = (low.astype(np.float64), high.astype(np.float64))
        for panel in self._everyone():
            panel.look_at_room(*self._room)

    def _show_points(self, perception: Perception) -> None:
        mode, voxels = self._points_mode.value, perception.voxels
        self._points_s, self._points_of = time.monotonic(), (voxels, mode)
        points, colors = voxels.mean_point_m, voxels.mean_color
        rows = even_share(len(points), MAX_POINTS) if mode != _NO_POINTS else slice(0, 0)
        points = points[rows]
        colors = class_colors(points, perception.semantic) if mode == _CLASS_COLORS else colors[rows]
        draw_points(self._server.scene, "/points", points, colors, 0.8 * voxels.voxel_size_m)

    def _show_cells(self, semantic: SemanticVoxels) -> None:
        wanted: object = semantic if self._with_cells.value else False
        if wanted is self._cells_of:
            return
        self._cells_of = wanted
        rows = even_share(len(semantic.centers_m), MAX_POINTS) if wanted else slice(0, 0)
        palette = np.array([color_of_class(name) for name in semantic.classes], np.uint8).reshape(-1, 3)
        labels = semantic.labels[rows]
        colors = palette[labels] if len(palette) else np.zeros((len(labels), 3), np.uint8)
        draw_points(self._server.scene, "/cells", semantic.centers_m[rows], colors, 0.9 * semantic.cell_size_m)

    def _show_boxes(self, objects: Sequence[SceneObject]) -> None:
        scene = self._server.scene
        drawn = objects if self._with_boxes.value else ()
        colors = [color_of_id(o.id) for o in drawn]
        draw_lines(scene, "/objects", *box_lines(drawn, colors), thickness=2.5)
        gone: tuple[SceneObject, ...] = ()
        now_ns = 0
        if self._perception is not None and self._with_boxes.value:
            gone, now_ns = self._perception.gone, newest_ns(self._perception.objects, self._perception.gone, None)
        faded = [(o, max(0, round(_GONE_GREY - (now_ns - o.history[-1].stamp_ns) / _FADE_NS))) for o in gone]
        faded = [(o, grey) for o, grey in faded if grey]
        lines = box_lines([o for o, _ in faded], [(grey, grey, grey) for _, grey in faded])
        draw_lines(scene, "/gone", *lines, thickness=1.0)
        self._show_solid(drawn, colors)
        self.show_names()

    def show_names(self) -> None:
        """Show as many names as have space in the current view of each browser."""
        shown_objects = self._objects if self._with_boxes.value and self._with_names.value else ()
        for panel in self._everyone():
            panel.show_names(shown_objects[:_MAX_LABELS], self._answer_boxes)

    def _show_solid(self, objects: Sequence[SceneObject], colors: Sequence[tuple[int, int, int]]) -> None:
        """Draw faint solid boxes, which can be clicked."""
        boxes = np.array([o.box for o in objects], np.float64).reshape(-1, 9)
        xyzw = np.array([rotation_to_quaternion(R) for R in box_rotations(boxes)]).reshape(-1, 4)
        bodies = self._server.scene.add_batched_meshes_simple(
            "/bodies",
            *_unit_cube(),
            batched_wxyzs=xyzw[:, [3, 0, 1, 2]],
            batched_positions=boxes[:, :3],
            batched_scales=boxes[:, 3:6].astype(np.float32),
            batched_colors=np.array(colors, np.uint8).reshape(-1, 3),
            opacity=0.12,
            lod="off",
            cast_shadow=False,
            receive_shadow=False,
            visible=len(boxes) > 0,
        )
        bodies.on_click(self._clicked)

    def _clicked(self, event: Any) -> None:
        hit = first_hit(np.array(event.ray_origin), np.array(event.ray_direction), self._objects)
        with self._panels_lock:
            panel = self._panels.get(event.client_id)
        if hit is not None and panel is not None:
            panel.select(hit.id)

    def _show_camera(self, perception: Perception) -> None:
        source = perception.source
        if source is None:
            return
        frame = source.frame
        T = source.T_world_camera
        picture = draw_boxes_on_image(frame.color, perception.objects, T, frame.intrinsics)
        step = max(1, -(-picture.shape[1] // 480))
        self._camera.image = np.ascontiguousarray(picture[::step, ::step])
        self._camera_folder.visible = True
        xyzw = rotation_to_quaternion(T[:3, :3])
        k = frame.intrinsics
        self._server.scene.add_camera_frustum(
            "/camera",
            fov=2.0 * float(np.arctan2(k.height / 2, k.fy)),
            aspect=k.width / k.height,
            scale=0.25,
            color=PATH_COLOR,
            wxyz=xyzw[[3, 0, 1, 2]],
            position=T[:3, 3],
        )

    def _show_path(self, path: Sequence[NDArray[np.float64]]) -> None:
        shown_path = path if self._with_path.value and len(path) > 1 else ()
        steps = np.stack([path[:-1], path[1:]], axis=1) if shown_path else np.zeros((0, 2, 3))
        colors = np.broadcast_to(np.array(PATH_COLOR, np.uint8), steps.shape)
        draw_lines(self._server.scene, "/path", steps.astype(np.float32), colors, thickness=3.0)
        self._path = path


class _Panel:
    """The fields of one browser: to ask, and to name and correct the selected object."""

    def __init__(self, client: Any, page: _Page) -> None:
        self._client, self._page, controls = client, page, page.controls
        self._ids: tuple[int, ...] = ()
        self._names: list[Any] = []
        self._named_as: object = None
        self.gone = False
        self._room_middle = np.zeros(3)
        client.camera.on_update(lambda _: page.moved())
        gui = client.gui
        with gui.add_folder("Ask", order=10):
            # In a multiline field Enter arrives with the letters: the page drops pending letters when another event,
            # such as a submitted form, comes in between.
            self._question = gui.add_text(
                "Question", "", multiline=True, hint='for example: "the chair by the window", and Enter'
            )
            self._question.on_update(lambda _: self._ask_line())
            gui.add_button("Ask").on_click(lambda _: self._ask(self._typed(self._question)))
        self._things: Any = None
        if controls.name is None and controls.correct is None:
            return
        with gui.add_folder("Teach", order=25, expand_by_default=False):
            self._things = gui.add_dropdown("Object", ("",), hint="or click it in the room")
            self._things.on_update(lambda _: self._mark())
            self._name = gui.add_text("Name", "", hint="your own name for it")
            if controls.name is not None:
                gui.add_button("Name it").on_click(lambda _: self._rename())
            if controls.correct is not None:
                self._label = gui.add_text("It is a", "", hint="what it is, if the name is wrong")
                gui.add_button("Correct").on_click(lambda _: self._correct(False))
                gui.add_button("Not there").on_click(lambda _: self._correct(True))
            self._done = gui.add_html("")

    def offer(self, objects: Sequence[SceneObject]) -> None:
        """Set the selectable objects."""
        ids = tuple(o.id for o in objects)
        if self._things is None:
            return
        options = ("", *(label_of(o) for o in objects))
        if ids != self._ids or options != self._things.options:
            chosen = self._chosen()
            self._ids = ids
            self._things.options = options
            self.select(chosen if chosen in ids else 0)

    def select(self, number: int) -> None:
        """Select an object; 0 = none."""
        at = self._ids.index(number) + 1 if number in self._ids else 0
        self._things.value = self._things.options[at]
        self._mark()

    def _chosen(self) -> int:
        if self._things is None or self._things.value not in self._things.options:
            return 0
        at = self._things.options.index(self._things.value)
        return self._ids[at - 1] if at else 0

    def _mark(self) -> None:
        thing = self._page.by_id(self._chosen())
        chosen = () if thing is None else (thing,)
        draw_lines(
            self._client.scene, "/chosen", *box_lines(chosen, [_CHOSEN_COLOR] * len(chosen), 0.04), thickness=4.0
        )

    def _ask_line(self) -> None:
        if "\n" in self._question.value:
            self._ask(self._question.value)

    def _ask(self, text: str) -> None:
        question = " ".join(text.split())
        self._question.value = ""
        if question:
            answer = self._page.controls.ask(question)
            self._page.answered(answer)
            self.fly_to(answered_objects(answer))

    @staticmethod
    def _typed(field: Any) -> str:
        """Return the text of a field: a browser may send the last letters after the button event."""
        end_s, text = time.monotonic() + _TYPED_S, ""
        while time.monotonic() < end_s:
            text = field.value
            time.sleep(_SETTLED_S)
            if field.value == text:
                break
        return str(field.value)

    # ---- camera and names

    def look_at_room(self, low_m: NDArray[np.float64], high_m: NDArray[np.float64]) -> None:
        """Move the camera to see the whole room between two corners, from above the walls."""
        self._room_middle = 0.5 * (low_m + high_m)
        camera = self._client.camera
        reach_m = 0.6 * float(np.linalg.norm(high_m - low_m))
        toward = np.array([-0.3, -0.42, 0.86])
        eye, look_at = view_of(self._room_middle, reach_m, toward, camera.fov, camera.aspect, camera.image_width)
        with self._client.atomic():
            camera.position, camera.look_at = eye, look_at

    def fly_to(self, objects: Sequence[SceneObject]) -> None:
        """Fly the camera to the objects, seen from the centre of the room."""
        if not objects:
            return
        corners = box_corners(np.array([o.box for o in objects])).reshape(-1, 3)
        low, high = corners.min(axis=0), corners.max(axis=0)
        middle, reach_m = 0.5 * (low + high), max(0.5 * float(np.linalg.norm(high - low)), 0.6)
        toward = (self._room_middle - middle) * [1.0, 1.0, 0.0]
        far = float(np.linalg.norm(toward))
        toward = toward / far if far > 0.3 else np.array([-0.6, -0.8, 0.0])
        toward[2] = 1.1
        camera = self._client.camera
        eye, look_at = view_of(middle, 1.6 * reach_m, toward, camera.fov, camera.aspect, camera.image_width)
        start, start_at = camera.position.copy(), camera.look_at.copy()
        for step in range(1, _FLIGHT_STEPS + 1):
            if self.gone:
                return
            share = step / _FLIGHT_STEPS
            share = share * share * (3.0 - 2.0 * share)  # slow at both ends
            with self._client.atomic():
                camera.position = start + share * (eye - start)
                camera.look_at = start_at + share * (look_at - start_at)
            time.sleep(_FLIGHT_S / _FLIGHT_STEPS)

    def show_names(self, objects: Sequence[SceneObject], first: Sequence[Any]) -> None:
        """Show the names that have space, those of ``first`` before the nearest ones."""
        camera = self._client.camera
        state = (objects, first, camera.position.tobytes(), camera.wxyz.tobytes(), camera.image_width, camera.fov)
        if state == self._named_as:
            return
        self._named_as = state
        boxes = np.array([o.box for o in objects], np.float64).reshape(-1, 9)
        middles = boxes[:, :3]
        up = np.zeros_like(middles)
        up[:, 2] = 0.5 * boxes[:, 5] + 0.05
        places = np.stack([middles + up, middles, middles - up], axis=1)  # (N, 3, 3)
        pixels = pixels_of(places, camera.position, camera.wxyz, camera.fov, (camera.image_width, camera.image_height))
        texts = [label_of(o) for o in objects]
        sizes = np.array([(_LETTER_PX * (len(t) + 1), _LINE_PX) for t in texts]).reshape(-1, 2)
        sizes *= pixel_ratio(camera.image_width, camera.aspect)
        ids = {thing.id for thing in first}
        away = np.linalg.norm(middles - camera.position, axis=1) - 1e6 * np.array([o.id in ids for o in objects], float)
        chosen = free_places(pixels, sizes, np.argsort(away, kind="stable"))
        while len(self._names) < len(objects):
            label = self._client.scene.add_label(f"/names/{len(self._names)}", "", anchor="bottom-center")
            self._names.append(label)
        for k, label in enumerate(self._names):
            visible = k < len(objects) and chosen[k] >= 0
            if visible:
                if label.text != texts[k]:
                    label.text = texts[k]
                label.position = places[k, chosen[k]]
            if label.visible != visible:
                label.visible = visible

    def _rename(self) -> None:
        assert self._page.controls.name is not None
        self._do(self._page.controls.name, self._chosen(), self._typed(self._name))

    def _correct(self, not_there: bool) -> None:
        assert self._page.controls.correct is not None
        self._do(self._page.controls.correct, self._chosen(), "" if not_there else self._typed(self._label), not_there)

    def _do(self, what: Callable[..., str], number: int, *values: Any) -> None:
        if not number:
            message = "choose an object first"
        else:
            try:
                message = what(number, *values)
            except (ValueError, LookupError) as error:
                message = str(error.args[0] if error.args else error)
            except OSError as error:
                message = f"kept until the program ends, but could not be written: {error}"
        self._done.content = _block(shown(message, 200), "ep-done")


# --------------------------------------------------------------------------------------------------------------------
# pure functions


def shown(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Shorten (:func:`shortened`) and escape ``text`` for a page."""
    return html.escape(shortened(text, most))


def answer_html(answer: Grounding) -> str:
    """Format a question with its answer."""
    objects = ", ".join(shown(label_of(o)) for o in answer.choice[:5])
    nearest = "" if answer.candidates else "nearest: "
    reason = shown(answer.reason, 300)
    words = f"{nearest}{objects} &mdash; " if objects and reason != objects else ""  # the reason may be the name alone
    return (
        f"<div style='margin-bottom:6px'><i>{shown(answer.text, 200)}</i><br/>"
        f"<b style='color:{_STATUS_COLORS[answer.status]}'>{answer.status.name}</b> {words}{reason}</div>"
    )


def changes_html(perception: Perception) -> str:
    """Format the last changes of objects as a time line, newest first."""
    things = (*perception.objects, *perception.gone)
    now_ns = newest_ns(perception.objects, perception.gone, None)
    changes = [(e, o) for o in things for e in o.history if e.kind != EventKind.FOUND]
    changes.sort(key=lambda change: -change[0].stamp_ns)
    rows = [f"<div>{shown(entry_in_words(o, e, now_ns), 200)}</div>" for e, o in changes[:_SHOWN_CHANGES]]
    return _block("".join(rows) or "Nothing has changed yet.", "ep-changes")


def answered_objects(answer: Grounding) -> tuple[Any, ...]:
    """Return the object of an answer, or all candidates of an ambiguous one."""
    if answer.status == GroundingStatus.FOUND:
        return answer.candidates[:1]
    return answer.candidates if answer.status == GroundingStatus.AMBIGUOUS else ()


def view_of(
    middle_m: NDArray[np.float64],
    reach_m: float,
    toward: NDArray[np.float64],
    fov_rad: float,
    aspect: float,
    width_px: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (eye, look_at) from which a sphere is fully visible beside the panel.

    Args:
        middle_m, reach_m: centre and radius of the sphere, world.
        toward: direction from the sphere to the eye.
        fov_rad, aspect: vertical field of view; width of the page by its height.
        width_px: width of the page. The panel is at its right, on narrow pages at the bottom.
    """
    back = toward / np.linalg.norm(toward)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= max(float(np.linalg.norm(right)), 1e-9)
    up = np.cross(back, right)
    half = float(np.tan(0.5 * fov_rad))
    narrow = aspect < _NARROW
    covered = 0.38 if narrow else min(_PANEL_PX * pixel_ratio(width_px, aspect) / max(width_px, 1.0), 0.5)
    free_x, free_y = (aspect, 1.0 - covered) if narrow else (aspect * (1.0 - covered), 1.0)
    distance = reach_m / (half * min(free_x, free_y, 1.0))
    aside = distance * half * covered
    shift = -aside * up if narrow else aside * aspect * right
    return middle_m + distance * back + shift, middle_m + shift


def pixel_ratio(width_px: float, aspect: float) -> float:
    """Estimate the device pixel ratio from the width: the browser does not report it."""
    return max(1.0, width_px / (430.0 if aspect < _NARROW else 1500.0))


def pixels_of(
    points_m: NDArray[np.float64],
    position_m: NDArray[np.float64],
    wxyz: NDArray[np.float64],
    fov_rad: float,
    size_px: tuple[int, int],
) -> NDArray[np.float64]:
    """Project (..., 3) points to (..., 2) pixels of a page of (width, height); NaN behind the camera (z forward, y
    down). ``fov_rad``: vertical."""
    R = quaternion_to_rotation(np.roll(wxyz, -1))
    p = (points_m - position_m) @ R
    focal = 0.5 * size_px[1] / np.tan(0.5 * fov_rad)
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = focal * p[..., :2] / p[..., 2:] + 0.5 * np.array(size_px)
    pixels[p[..., 2] < 0.05] = np.nan
    return np.asarray(pixels)


def free_places(
    places_px: NDArray[np.float64], sizes_px: NDArray[np.float64], order: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Place N texts of (N, 2) sizes without overlap: in ``order`` each takes the first free one of its (N, K, 2)
    places, the centres of its lower edge; NaN = unusable. Returns (N,) indices, -1 = none."""
    taken = np.zeros((0, 4))
    chosen = np.full(len(places_px), -1, np.int64)
    for row in order:
        width, height = sizes_px[row]
        for k, (u, v) in enumerate(places_px[row]):
            box = np.array([u - width / 2, v - height, u + width / 2, v])
            if np.isfinite(box).all() and not ((box[:2] < taken[:, 2:]) & (box[2:] > taken[:, :2])).all(axis=1).any():
                chosen[row], taken = k, np.vstack([taken, box])
                break
    return chosen


def _block(inside: str, name: str) -> str:
    return f"<div class='{name}' style='font-size:0.85em;padding:0 0.6em 0.4em'>{inside}</div>"


def even_share(count: int, most: int) -> slice:
    """Return a slice of at most ``most`` of ``count`` rows, evenly spread."""
    return slice(0, count, max(1, -(-count // most)))


def class_colors(points_m: NDArray[np.float32], semantic: SemanticVoxels) -> NDArray[np.uint8]:
    """Return (N, 3) RGB of the class of the cell of each of (N, 3) points; grey without a cell."""
    colors = np.full((len(points_m), 3), _UNLABELLED, np.uint8)
    if len(semantic.centers_m) == 0 or len(points_m) == 0:
        return colors
    palette = np.array([color_of_class(name) for name in semantic.classes], np.uint8).reshape(-1, 3)
    cells = np.floor(semantic.centers_m.astype(np.float64) / semantic.cell_size_m).astype(np.int64)
    wanted = np.floor(points_m.astype(np.float64) / semantic.cell_size_m).astype(np.int64)
    low = np.minimum(cells.min(axis=0), wanted.min(axis=0))
    size = np.maximum(cells.max(axis=0), wanted.max(axis=0)) - low + 1
    flat = ((cells - low) @ np.array([size[1] * size[2], size[2], 1])).astype(np.int64)
    keys = ((wanted - low) @ np.array([size[1] * size[2], size[2], 1])).astype(np.int64)
    order = np.argsort(flat, kind="stable")
    at = np.minimum(np.searchsorted(flat[order], keys), len(order) - 1)
    found = flat[order][at] == keys
    colors[found] = palette[semantic.labels[order[at[found]]]]
    return colors


def box_lines(
    objects: Sequence[SceneObject], colors: Sequence[tuple[int, int, int]], wider_m: float = 0.02
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return (12 N, 2, 3) edges of the slightly enlarged boxes in metres, and their colours."""
    if not objects:
        return np.zeros((0, 2, 3), np.float32), np.zeros((0, 2, 3), np.uint8)
    boxes = np.array([o.box for o in objects])
    boxes[:, 3:6] += wider_m
    corners = box_corners(boxes)
    lines = corners[:, np.array(BOX_EDGES)].reshape(-1, 2, 3).astype(np.float32)
    rgb = np.repeat(np.array(colors, np.uint8), 2 * len(BOX_EDGES), axis=0).reshape(-1, 2, 3)
    return lines, rgb


def draw_lines(scene: Any, name: str, lines: NDArray[np.float32], colors: NDArray[np.uint8], thickness: float) -> None:
    """Replace the lines of entity ``name``; without lines, hide it."""
    visible = len(lines) > 0
    if not visible:  # browsers reject empty buffers
        lines, colors = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 3), np.uint8)
    # the page treats line colours as linear and brightens them
    linear = np.round(255.0 * (colors / 255.0) ** 2.2).astype(np.uint8)
    scene.add_line_segments(name, lines, linear, thickness=thickness, thickness_units="screen", visible=visible)


def draw_points(scene: Any, name: str, points_m: NDArray[np.float32], colors: NDArray[np.uint8], size_m: float) -> None:
    """Replace the points of entity ``name``."""
    visible = len(points_m) > 0
    if not visible:
        points_m, colors = np.zeros((1, 3), np.float32), np.zeros((1, 3), np.uint8)
    scene.add_point_cloud(
        name, points_m, colors, point_size=size_m, point_shape="square", precision="float32", visible=visible
    )


def first_hit(
    origin_m: NDArray[np.float64], direction: NDArray[np.float64], objects: Sequence[SceneObject]
) -> SceneObject | None:
    """Return the object whose box a ray hits first; boxes around the origin come last, the smallest of them first."""
    best: tuple[float, float, SceneObject] | None = None
    for thing in objects:
        R = box_rotations(thing.box[None])[0]
        start, step = R.T @ (origin_m - thing.box[:3]), R.T @ direction
        with np.errstate(divide="ignore", invalid="ignore"):
            a, b = (-thing.box[3:6] / 2 - start) / step, (thing.box[3:6] / 2 - start) / step
        enter, leave = float(np.nanmax(np.minimum(a, b))), float(np.nanmin(np.maximum(a, b)))
        if enter > leave or leave < 0:
            continue
        key = (enter if enter > 0 else np.inf, float(np.prod(thing.box[3:6])), thing)
        if best is None or key[:2] < best[:2]:
            best = key
    return None if best is None else best[2]


def _unit_cube() -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    """Return vertices (8, 3) and faces (12, 3) of a unit cube around the origin."""
    vertices = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)], np.float32)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [triangle for a, b, c, d in quads for triangle in ((a, b, c), (a, c, d))]
    return vertices, np.array(faces, np.uint32)


def _one_line(record: logging.LogRecord) -> bool:
    """Shorten the errors of connections to one line, and drop those of requests that are none."""
    if record.getMessage() == "opening handshake failed":
        return False
    if record.exc_info and record.exc_info[1] is not None:
        record.msg, record.args = f"web viewer: {record.getMessage()}: {record.exc_info[1]!r}"[:300], ()
        record.exc_info = record.exc_text = None
    return True


def _start_server(title: str, gate: WebGate) -> Any:
    """Start a viser server behind ``gate``."""
    try:
        import rich
        import viser
    except ImportError as error:
        raise WebUnavailableError(f"the web viewer needs viser: pip install 'viser>=1.0': {error}") from error

    class Server(viser.ViserServer):
        def request_share_url(self, verbose: bool = True) -> str | None:
            return None  # would open a tunnel from the internet to this robot

    console = rich.get_console()
    quiet, console.quiet = console.quiet, True  # it would print the address without the token
    logging.getLogger("websockets.server").addFilter(_one_line)
    try:
        with gate.guard():
            server = Server(host="127.0.0.1", port=0, label=title, verbose=False)
    finally:
        console.quiet = quiet
    if server.get_port() != gate.port:
        server.stop()
        raise WebUnavailableError(f"viser {viser.__version__} opens a port of its own: a version from 1.0 on is needed")
    server.gui.configure_theme(show_logo=False, show_share_button=False, dark_mode=True, control_width="large")
    return server
