"""The page of ``embodied-perceptron label``: the map from above, frames with the boxes in them, a form.

    GET  /             the page
    GET  /view.json    the map's position in the picture, number of frames, known names
    GET  /top.png      the map from above
    GET  /frame/3.jpg  a frame of the recording
    GET  /cameras.json camera poses and coarse depth of the frames: the page draws boxes into them
    GET  /labels.json  the labels
    PUT  /labels.json  new labels: 200, or 400 and {"error": message}; the file is written only if all of it is valid

The server listens on the loopback interface only and answers only requests with its own host name, so that pages of
other sites can neither read nor change anything.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.transforms import invert_transform
from embodied_perceptron.recordings.artifacts import read_objects_json, read_ply
from embodied_perceptron.recordings.image_codec import encode_color_file
from embodied_perceptron.recordings.recording import PosedFrameStream, Recording
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.visualization.drawing import Image
from embodied_perceptron.visualization.top_view import TopViewFrame, splat_voxels
from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron_training.evaluation.recordings.labels import (
    LabelError,
    RecordingLabels,
    labels_from_dict,
    labels_from_objects,
    read_labels,
    write_labels,
)

_PAGE = Path(__file__).with_name("label_page.html")
_MARGIN_M = 0.3
_MAX_PIXELS = 1200
_CUT_HEIGHT_M = 1.7  # above the lowest voxels: higher ones would hide the room
_VOXEL_M = 0.02  # of the squares in the picture
_LARGEST_BODY = 4 << 20
_PARTS = (24, 32)  # rows and columns of a frame's coarse depth


@dataclass(eq=False)
class LabelSession:
    """The label file, the map from above and some frames. Thread-safe."""

    path: Path
    labels: RecordingLabels
    top: Image
    view: TopViewFrame
    frames: tuple[PosedFrame, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, path: Path, replayed: Path, recording: Recording | None = None, frames: int = 40) -> LabelSession:
        """Labels at ``path``, or where there are none the objects that a replay wrote into the folder ``replayed``;
        ``frames`` of the ``recording``, evenly spaced. Raises what reading these raises."""
        points, colors = read_ply(replayed / "voxels.ply")
        if len(points) == 0:
            raise ValueError(f"{replayed / 'voxels.ply'} holds no voxels")
        labels = (
            read_labels(path) if path.exists() else labels_from_objects(read_objects_json(replayed / "objects.json"))
        )
        low, high = np.percentile(points, [0.2, 99.8], axis=0)
        view = TopViewFrame(low[:2] - _MARGIN_M, high[:2] + _MARGIN_M, _MAX_PIXELS)
        shown = points[:, 2] < low[2] + _CUT_HEIGHT_M
        top = splat_voxels(points[shown], colors[shown], _VOXEL_M, view)
        chosen: tuple[PosedFrame, ...] = ()
        if recording is not None:
            step = max(1, -(-len(recording) // max(frames, 1)))
            stream = PosedFrameStream(recording, PerceptronConfig().assembler)
            chosen = tuple(frame for i, frame in enumerate(stream) if i % step == 0)[:frames]
        return cls(path, labels, top, view, chosen)

    def describe(self) -> dict[str, Any]:
        """Contents of ``view.json``."""
        return {
            "low_m": self.view.low_m.tolist(),
            "pixels_per_m": self.view.pixels_per_m,
            "width": self.view.width,
            "height": self.view.height,
            "frames": len(self.frames),
            "categories": list(ALL_CATEGORIES),
            "path": str(self.path),
        }

    def save(self, data: Any) -> RecordingLabels:
        """Check and write new labels. Raises :class:`LabelError`, and changes nothing then."""
        labels = labels_from_dict(data)
        with self.lock:
            write_labels(self.path, labels)
            self.labels = labels
        return labels

    def picture(self, number: int) -> Image:
        """Colour image of a frame. Raises ``IndexError``."""
        if not 0 <= number < len(self.frames):
            raise IndexError(number)
        return self.frames[number].frame.color

    def cameras(self) -> list[dict[str, Any]]:
        """Contents of ``cameras.json``: intrinsics in pixels, pose (4, 4), largest depth in each of 24 x 32 parts of
        the picture in metres, 0 = unknown."""
        return [_camera(frame) for frame in self.frames]


def _camera(posed: PosedFrame) -> dict[str, Any]:
    k, depth_m = posed.frame.intrinsics, posed.frame.depth_m
    rows, columns = (
        np.linspace(0, size, parts + 1).astype(int) for size, parts in zip(depth_m.shape, _PARTS, strict=True)
    )
    known = np.where(np.isfinite(depth_m), depth_m, 0.0)
    far = np.maximum.reduceat(np.maximum.reduceat(known, rows[:-1], axis=0), columns[:-1], axis=1)
    return {
        **{"fx": k.fx, "fy": k.fy, "cx": k.cx, "cy": k.cy, "width": k.width, "height": k.height},
        "T_camera_world": invert_transform(posed.T_world_camera).tolist(),
        "depth_m": np.round(far.astype(np.float64), 2).tolist(),
    }


class LabelServer(ThreadingHTTPServer):
    """Serve one session on 127.0.0.1; ``port`` 0 = a free one."""

    daemon_threads = True

    def __init__(self, session: LabelSession, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.session = session
        self.url = f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LabelServer

    def do_GET(self) -> None:
        """See the module docstring."""
        if not self._ours():
            return
        session, path = self.server.session, self.path.partition("?")[0]
        if path == "/":
            self._answer(_PAGE.read_bytes(), "text/html; charset=utf-8")
        elif path == "/view.json":
            self._json(session.describe())
        elif path == "/labels.json":
            self._json(session.labels.as_dict())
        elif path == "/cameras.json":
            self._json(session.cameras())
        elif path == "/top.png":
            self._image(session.top, ".png")
        elif path.startswith("/frame/") and path.endswith(".jpg"):
            try:
                self._image(session.picture(int(path[len("/frame/") : -len(".jpg")])), ".jpg")
            except (ValueError, IndexError):
                self._json({"error": f"no such frame: {path}; there are {len(session.frames)}"}, HTTPStatus.NOT_FOUND)
        else:
            self._json({"error": f"nothing is at {path}"}, HTTPStatus.NOT_FOUND)

    def do_PUT(self) -> None:
        """New labels."""
        if not self._ours():
            return
        if self.path != "/labels.json":
            self._json({"error": f"nothing can be put at {self.path}"}, HTTPStatus.NOT_FOUND)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _LARGEST_BODY:
            self.close_connection = True
            self._json({"error": f"length {length!r} is not at most {_LARGEST_BODY}"}, HTTPStatus.BAD_REQUEST)
            return
        try:
            labels = self.server.session.save(json.loads(self.rfile.read(int(length))))
        except (LabelError, json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
            self._json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
            return
        self._json({"objects": len(labels.things), "ignore": len(labels.ignore)})

    def _ours(self) -> bool:
        """Whether the request names this server, which requests from pages of other sites do not."""
        port = self.server.server_port
        names = (f"127.0.0.1:{port}", f"localhost:{port}")
        origin = self.headers.get("Origin")
        if self.headers.get("Host") in names and (origin is None or origin.removeprefix("http://") in names):
            return True
        self.close_connection = True
        self._json({"error": "only for pages of this machine"}, HTTPStatus.FORBIDDEN)
        return False

    def _json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._answer(json.dumps(value).encode(), "application/json", status)

    def _image(self, image: Image, kind: str) -> None:
        self._answer(encode_color_file(image, kind), "image/png" if kind == ".png" else "image/jpeg")

    def _answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
