"""Inputs that robots send by mistake or malice, as strategies of ``hypothesis``, and the real node that receives them.

A *case* is a mapping: what it changes of a valid input of its kind. Hypothesis draws cases, and shrinks those that
fail. :class:`DrivenNode` calls the node's own callbacks instead of an executor, so that every input has one outcome:
``fused``, ``answered``, ``dropped`` or ``refused``. An exception, an internal error that the node caught, a refusal
without a reason, an uncounted input and a missing answer raise :class:`UnexplainedError`.
"""

from __future__ import annotations

import array
import gc
import json
import logging
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import torch
from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import Ask, ClearBox, LoadMap, SaveMap
from geometry_msgs.msg import PoseStamped
from hypothesis import strategies as st
from nav_msgs.msg import Path as PathMessage
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.context import Context
from rclpy.parameter import Parameter
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String
from std_srvs.srv import Trigger
from support.wild_recordings import DAMAGES, damaged
from tf2_msgs.msg import TFMessage

from embodied_perceptron.config import ConfigError, SynchronizerConfig, load_config
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.recordings.image_codec import encode_color_file, encode_depth_file
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, RecordingError
from embodied_perceptron.recordings.tum import TumWriter
from embodied_perceptron.results import GroundingStatus, SceneObject
from embodied_perceptron.weights.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from embodied_perceptron_ros.conversion.values import (
    make_camera_info,
    make_header,
    make_image,
    make_transform_stamped,
    matrix_to_pose,
    message_array,
)
from embodied_perceptron_ros.node.corrections import corrected_poses
from embodied_perceptron_ros.node.perception_node import PerceptionNode

PATIENCE_S = 120.0  # for one input on a busy machine; a hang lasts for ever
CAMERAS = ("raw", "packed")  # plain images, compressed images
CAMERA = Intrinsics(14.0, 14.0, 7.5, 5.5, 16, 12)
# one metre above the floor, looking along x
T_ODOM_CAMERA = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 1]])
FRAME_NS = 33_000_000
_STAMPS = {"step_ns", "depth_late_ns", "color.stamp", "depth.stamp"}  # by these an image may meet an earlier one
Case = Mapping[str, Any]

# ---------------------------------------------------------------------------------------------------------- strategies

UINT32 = 2**32 - 1
_NUMBERS = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-320, -1e300, 1e300, 1e18, 1.0, -1.0]) | st.floats()
_FRAMES = ["odom", "map", "base_link", "raw_optical", "packed_optical", "/odom", "a/b", "x" * 300]
_ODD = ["", "\n", "\t\r", "'; --", "../..", "%s%n", "${HOME}", "\u202e", "\ufeff", "None", "{", "[]", "x" * 3000]
_CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_TEXTS = st.sampled_from(_FRAMES) | st.sampled_from(_ODD) | _CHARACTERS
FILES = st.fixed_dictionaries({"damage": DAMAGES})
_STAMP = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, UINT32))
_SIZES = st.sampled_from([0, 1, 2, 7, 255, 65535, 2**31 - 1, UINT32]) | st.integers(0, UINT32)
_SHORT = {"min_size": 3, "max_size": 3}

_ENCODINGS = ["rgb8", "bgr8", "rgba8", "mono8", "mono16", "16UC1", "32FC1", "64FC1", "8UC3", "yuv422", "RGB8", ""]
_ENCODINGS += ["bayer_rggb8", "rgb16", "32FC3", "16SC1", "nv12"]
_FORMATS = ["16UC1; compressedDepth png", "32FC1; compressedDepth png", "16UC1; compressedDepth rvl", "png", "jpeg", ""]
_FORMATS += ["64FC1; compressedDepth png", ";;;", "rgb8; jpeg compressed bgr8"]
_MODELS = ["plumb_bob", "rational_polynomial", "equidistant", "kannala_brandt4", "", "thin_prism"]
_FILLS = ["plane", "nan", "inf", "-inf", "zero", "negative", "bits", "tiny", "huge", "mixed"]
_KINDS = st.sampled_from(["color", "depth", "info", "tf"])
_CALIBRATION: dict[str, st.SearchStrategy[Any]] = {
    "info.k": st.tuples(st.integers(0, 8), _NUMBERS),
    "info.p": st.tuples(st.integers(0, 11), _NUMBERS),
    "info.d": st.lists(_NUMBERS, max_size=20),
    "info.distortion_model": st.sampled_from(_MODELS),
    **{f"info.{name}": _SIZES for name in ("width", "height", "binning_x", "binning_y")},
    "info.roi": st.tuples(_SIZES, _SIZES, _SIZES, _SIZES),
}
_IMAGE: dict[str, st.SearchStrategy[Any]] = {
    "encoding": st.sampled_from(_ENCODINGS),
    **dict.fromkeys(("step", "height", "width"), _SIZES),
    "is_bigendian": st.integers(0, 255),
    "format": st.sampled_from(_FORMATS),
    "damage": DAMAGES,
    "stamp": _STAMP,
}
_FRAME: dict[str, st.SearchStrategy[Any]] = {
    "size": st.tuples(st.integers(1, 64), st.integers(1, 48)),
    "fill": st.sampled_from(_FILLS),
    "noise": st.integers(0, 999),
    "step_ns": st.sampled_from([0, -1, -FRAME_NS, 10**9, -(10**9), 2 * 10**9, 4 * 10**9, 10**12, -(10**12)]),
    "depth_late_ns": st.sampled_from([1, 10**6, 3 * 10**7, -(10**6), 10**9, -(10**9)]),
    "absent": _KINDS,
    "twice": _KINDS,
    "order": st.permutations(range(4)),
    "optical": _TEXTS,
    "depth_frame": _TEXTS,
    "pose": st.lists(_NUMBERS, **_SHORT),
    **{f"{kind}.{name}": values for kind in ("color", "depth") for name, values in _IMAGE.items()},
    **_CALIBRATION,
}


def _few(makers: Mapping[str, st.SearchStrategy[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with at most ``most`` of the entries."""
    names = st.lists(st.sampled_from(sorted(makers)), max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: makers[name] for name in chosen}))


_ONE_CAMERA = st.fixed_dictionaries({"camera": st.sampled_from(CAMERAS)})
FILLED_FRAMES = _few({name: _FRAME[name] for name in ("fill", "noise", "order")}, 3)
FRAMES = st.tuples(_ONE_CAMERA, _few(_FRAME, 3)).map(lambda parts: {**parts[0], **parts[1]})
CALIBRATIONS = st.tuples(_ONE_CAMERA, _few(_CALIBRATION, 4)).map(lambda parts: {**parts[0], **parts[1]})
_TRANSFORM = st.fixed_dictionaries(
    {"parent": _TEXTS, "child": _TEXTS},
    optional={
        "rotation": st.just((0.0,) * 4) | st.just((1.0,) * 4) | st.lists(_NUMBERS, min_size=4, max_size=4),
        "translation": st.lists(_NUMBERS, **_SHORT),
        "stamp": _STAMP,
    },
)
TRANSFORMS = st.fixed_dictionaries(
    {"transforms": st.lists(_TRANSFORM, min_size=1, max_size=3), "static": st.booleans()}
)

SENTENCES = ["the chair", "the red box next to the table", "anything", "the 2nd thing left of the 3rd", "not the sofa"]
SENTENCES += ["what is on the table?", "all chairs", "the largest thing behind me", "le grand canapé", "the the of of"]
_ASKED = st.sampled_from(SENTENCES) | _TEXTS
_ANY = _TEXTS | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([None, True, False, [], {}, [[]], 1e308, "1"])
_QUERY_FIELDS = ["id", "text", "top_k", "standing", "cancel", "frame_id", "frame", "stamp", "extra"]
_STANDING = st.integers(0, 29).map(lambda i: {"standing": True, "id": f"s{i}"})
_CANCEL = st.integers(0, 29).map(lambda i: {"id": f"s{i}", "cancel": True})
_FIELDS = st.dictionaries(st.sampled_from(_QUERY_FIELDS) | _TEXTS, _ANY, max_size=4)
QUERIES = st.one_of(
    st.fixed_dictionaries({"text": _ASKED}),
    st.fixed_dictionaries({"fields": _FIELDS | _STANDING | _CANCEL}, optional={"damage": DAMAGES}),
)
_PATHS = ["a.map", "b/c.map", "../x", "/etc/passwd", "/dev/null", ".", "a" * 255, "a" * 300, "damaged.map"]
_BOX = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
_BOXES = st.lists(_NUMBERS, min_size=10, max_size=10) | st.tuples(st.integers(0, 9), _NUMBERS).map(
    lambda change: [change[1] if k == change[0] else value for k, value in enumerate(_BOX)]
)
SERVICES = st.one_of(
    st.fixed_dictionaries(
        {"service": st.sampled_from(["save_map", "load_map"]), "path": st.sampled_from(_PATHS) | _TEXTS}
    ),
    st.just({"service": "reset"}),
    st.fixed_dictionaries({"service": st.just("clear_box"), "box": _BOXES}, optional={"frame_id": _TEXTS}),
    st.fixed_dictionaries(
        {"service": st.just("ask"), "text": _ASKED},
        optional={"top_k": _SIZES, "frame_id": _TEXTS, "stamp": _STAMP},
    ),
)
_PARAMETERS = ["perception_hz", "output_frame", "viewpoint_frame", "on_time_jump", "max_backlog", "default_top_k"]
_PARAMETERS += ["cameras", "voxel_size_m", "weights", "map_file", "map_folder", "fusion_frame", "raw.color_topic"]
_PARAMETERS += ["raw.rectified", "nothing.like.it", "", "diagnostics_hz", "obstacles_range_m", "base_frame"]
_VALUES = st.one_of(
    st.tuples(st.just("double"), _NUMBERS),
    st.tuples(st.just("integer"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("string"), _TEXTS),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("string_array"), st.lists(_TEXTS, max_size=2)),
    st.tuples(st.just("double_array"), st.lists(_NUMBERS, max_size=2)),
    st.just(("not_set", None)),
)
PARAMETERS = st.fixed_dictionaries(
    {"name": (st.sampled_from(_PARAMETERS) | _TEXTS).filter(lambda name: name != "use_sim_time"), "value": _VALUES}
)
_POSE = st.tuples(st.integers(0, 6), _NUMBERS).map(
    lambda change: [change[1] if k == change[0] else float(k == 6) for k in range(7)]
)
PATHS = st.fixed_dictionaries(
    {
        "poses": st.lists(
            st.fixed_dictionaries({"numbers": _POSE}, optional={"of": st.integers(0, 2), "stamp": _STAMP}), max_size=3
        )
    },
    optional={"frame_id": _TEXTS},
)
_TUM_FILES = ["rgb.txt", "depth.txt", "groundtruth.txt", "camera.json", "color", "depth"]
_TUM_LINES = [
    "1 ../../../etc/passwd",
    "nan rgb/0.png",
    "1e300 x",
    "-1 x",
    "",
    "# ",
    "1 1 1 1 0 0 0 0",
    "9" * 400 + " x",
]
_TUM_KEYS = ["width", "height", "fx", "fy", "cx", "cy", "depth_scale", "depth_invalid", "camera", "x"]
TUM_FOLDERS = st.one_of(
    st.fixed_dictionaries({"file": st.sampled_from(_TUM_FILES), "damage": DAMAGES}),
    st.fixed_dictionaries({"file": st.sampled_from(_TUM_FILES[:3]), "line": st.sampled_from(_TUM_LINES) | _TEXTS}),
    st.fixed_dictionaries({"key": st.sampled_from(_TUM_KEYS), "value": _ANY}),
)
_MAP_KEYS = ["version", "volume", "keyframes", "keyframes_taken", "keyframe_config", "extra", "next_id", "newest_ns"]
_MAP_VALUES = [{"objects": "{}"}, {"objects": 1}, {"map_frame": "["}, {"semantic": '{"classes": 3}'}, [[]], [{}]]
_MAP_VALUES += [{"map_frame": '{"T_world_map": [1e300, 0, 0]}'}, None, 0, -1, 2**70, 1e308, "x", {"a": 1}, True, "{"]
MAP_FILES = FILES | st.fixed_dictionaries(
    {"header": st.fixed_dictionaries({}, optional={key: st.sampled_from(_MAP_VALUES) for key in _MAP_KEYS})}
)
YAML = (
    "volume:\n  voxel_size_m: 0.05\n  max_blocks: 2000\nassembler:\n  max_pose_wait_s: 0.2\nscores:\n  publish: 0.3\n"
)
_YAML_LINES = ["volume: 3", "volume: {voxel_size_m: .nan}", "x: &a [*a]", "!!python/object:os.system x", "? [1]\n: 2"]
_YAML_LINES += ["a: &a [x,x]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b]", "- 1", "volume: {voxel_size_m: 1e400}", "\t"]
CONFIGURATIONS = FILES | st.fixed_dictionaries({"yaml": st.sampled_from(_YAML_LINES) | _TEXTS})


# ------------------------------------------------------------------------------------------------------------ messages


def _filled(fill: str, depth_m: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    special = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "zero": 0, "negative": -1, "tiny": 1e-40, "huge": 3e38}
    if fill in special:
        return np.full_like(depth_m, special[fill])
    if fill == "bits":
        return rng.integers(0, 2**32, depth_m.shape, dtype=np.uint32).view(np.float32)
    if fill == "mixed":
        values = np.array([0, 1, np.nan, np.inf, -np.inf, -1, 0.3, 4.9, 1e30], np.float32)
        return values[rng.integers(0, len(values), depth_m.shape)]
    return depth_m


def frame_messages(case: Case, stamp_ns: int) -> list[tuple[str, str, Any]]:
    """(kind, camera, message) in the order of arrival; kind is ``color``, ``depth``, ``info`` or ``tf``."""
    camera = case.get("camera", CAMERAS[0])
    width, height = case.get("size", (CAMERA.width, CAMERA.height))
    rng = np.random.default_rng(case.get("noise", 0))
    optical = case.get("optical", f"{camera}_optical")
    depth_frame = case.get("depth_frame", optical)
    depth_m = _filled(case.get("fill", "plane"), np.full((height, width), 2.0, np.float32), rng)
    color = np.full((height, width, 3), 90, np.uint8)
    depth_ns = max(stamp_ns + case.get("depth_late_ns", 0), 0)
    messages: dict[str, Any] = {"info": make_camera_info(CAMERA.resized(width, height), stamp_ns, optical)}
    if camera == CAMERAS[0]:
        messages["color"] = make_image(color, "rgb8", stamp_ns, optical)
        messages["depth"] = make_image(depth_m, "32FC1", depth_ns, depth_frame)
    else:
        millimetres = np.nan_to_num(depth_m * 1000, nan=0, posinf=65535, neginf=0).clip(0, 65535).astype(np.uint16)
        packed = struct.pack("<iff", 0, 0.0, 0.0) + encode_depth_file(millimetres)
        jpeg = encode_color_file(color, ".jpg" if case.get("noise", 0) % 2 else ".png")
        messages["color"] = CompressedImage(header=make_header(stamp_ns, optical), format="png")
        messages["depth"] = CompressedImage(header=make_header(depth_ns, depth_frame), format=_FORMATS[0])
        messages["color"].data, messages["depth"].data = array.array("B", jpeg), array.array("B", packed)
    transform = make_transform_stamped(T_ODOM_CAMERA, stamp_ns, "odom", optical)
    t, moved = transform.transform.translation, case.get("pose", (0, 0, 0))
    t.x, t.y, t.z = (float(a + b) for a, b in zip(T_ODOM_CAMERA[:3, 3], moved, strict=True))
    messages["tf"] = TFMessage(transforms=[transform])
    for name, value in case.items():
        kind, _, field = name.partition(".")
        if field and kind in messages:
            _change(messages[kind], field, value)
    arrivals = [("tf", "info", "color", "depth")[i] for i in case.get("order", range(4))]
    arrivals = [kind for kind in arrivals if kind != case.get("absent")]
    arrivals += [kind for kind in arrivals if kind == case.get("twice")]
    return [(kind, camera, messages[kind]) for kind in arrivals]


def _change(message: Any, name: str, value: Any) -> None:
    if name == "stamp":
        message.header.stamp.sec, message.header.stamp.nanosec = value
    elif name == "damage":
        message.data = message_array(np.frombuffer(damaged(message.data.tobytes(), value), np.uint8))
    elif name in ("k", "p"):
        numbers = getattr(message, name).copy()
        numbers[value[0]] = value[1]
        setattr(message, name, numbers)
    elif name == "d":
        message.d = array.array("d", value)
    elif name == "roi":
        message.roi.x_offset, message.roi.y_offset, message.roi.width, message.roi.height = value
    elif name in message.get_fields_and_field_types():
        setattr(message, name, value)


def transform_message(case: Case, stamp_ns: int) -> TFMessage:
    """The message of a case of :data:`TRANSFORMS`."""
    message = TFMessage()
    for entry in case["transforms"]:
        stamped = make_transform_stamped(np.eye(4), stamp_ns, entry["parent"].replace("\0", ""), "x")
        stamped.child_frame_id = entry["child"].replace("\0", "")
        q, t = stamped.transform.rotation, stamped.transform.translation
        q.x, q.y, q.z, q.w = entry.get("rotation", (0.0, 0.0, 0.0, 1.0))
        t.x, t.y, t.z = entry.get("translation", (0.0, 0.0, 0.0))
        if "stamp" in entry:
            stamped.header.stamp.sec, stamped.header.stamp.nanosec = entry["stamp"]
        message.transforms.append(stamped)
    return message


# ------------------------------------------------------------------------------------------------------------ the node

ROOM = tuple(
    SceneObject(i + 1, label, 0.8, np.array([np.sin(7 * i), np.cos(3 * i), 0.5, 0.9, 0.5, 0.8, i, 0, 0]))
    for i, label in enumerate(["chair", "chair", "table", "box", "sofa", "lamp"])
)


class UnexplainedError(AssertionError):
    """An input without an outcome that has a name."""


class DrivenNode(PerceptionNode):
    """The real node; tests call its callbacks in place of an executor.

    Attributes:
        callbacks: of subscriptions by topic, and of services by name.
        published: messages by topic.
        errors: messages that the node logged as errors.
        clock_ns: the clock by which the node waits.
    """

    def __init__(self, context: Context, parameters: dict[str, Any]) -> None:
        self.callbacks: dict[str, Callable[..., Any]] = {}
        self.published: dict[str, list[Any]] = {}
        self.errors: list[str] = []
        self.clock_ns = 10**12
        given = [Parameter(name, value=value) for name, value in parameters.items()]
        super().__init__(context=context, parameter_overrides=given, enable_rosout=False)

    def create_subscription(self, msg_type: Any, topic: str, callback: Any, *args: Any, **kwargs: Any) -> Any:
        self.callbacks[topic] = callback
        return super().create_subscription(msg_type, topic, callback, *args, **kwargs)

    def create_service(self, srv_type: Any, srv_name: str, callback: Any, *args: Any, **kwargs: Any) -> Any:
        self.callbacks[srv_name.rsplit("/", 1)[-1]] = callback
        return super().create_service(srv_type, srv_name, callback, *args, **kwargs)

    def create_publisher(self, msg_type: Any, topic: str, *args: Any, **kwargs: Any) -> Any:
        publisher = super().create_publisher(msg_type, topic, *args, **kwargs)
        published, publish = self.published.setdefault(topic, []), publisher.publish

        def keep(message: Any) -> None:
            serialize_message(message)  # a message that cannot be sent is a fault
            publish(message)
            published.append(message)

        publisher.publish = keep
        return publisher

    def get_logger(self) -> Any:
        return _Logger(self.errors)

    def now_ns(self) -> int:
        return self.clock_ns


class _Logger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Keeps errors and drops the rest."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.getLogger("wild_inputs"), {})
        self._errors = errors

    def error(self, message: Any, *args: Any, **kwargs: Any) -> None:
        self._errors.append(str(message))

    def get_child(self, name: str) -> _Logger:
        return self

    def warning(self, message: Any, *args: Any, **kwargs: Any) -> None:
        pass

    warn, info, debug = warning, warning, warning  # type: ignore[assignment]


class Rig:
    """An active node and the files that it reads; for one thread.

    ``files`` holds valid bytes of a weights file, a bag and a map.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.maps = folder, folder / "maps"
        self.maps.mkdir(parents=True, exist_ok=True)
        self.context = Context()
        rclpy.init(context=self.context)
        parameters: dict[str, Any] = {
            **{"cameras": list(CAMERAS), "weights": "none", "voxel_size_m": 0.05, "max_blocks": 2000, "radius_m": 6.0},
            **{"perception_hz": 0.05, "max_pose_wait_s": 0.2, "map_folder": str(self.maps), "autostart": False},
            **{"packed.color_transport": "compressed", "packed.depth_transport": "compressedDepth", "max_backlog": 100},
        }
        self.node = DrivenNode(self.context, parameters)
        self.node.trigger_configure()
        self.node.trigger_activate()
        assert not self.node.errors
        assert self.node._map is not None
        self.live = self.node._map
        self.stamp_ns = 10**15
        assert [self.frame({}) for _ in range(3)] == ["fused"] * 3
        self.files = valid_files(folder)
        (self.maps / "damaged.map").write_bytes(b"not a map")
        self.live.perceptron.save(self.maps / "valid.map")
        self.files["map"] = (self.maps / "valid.map").read_bytes()

    def close(self) -> None:
        self.node.close()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)
        gc.collect()  # a node is full of reference cycles

    def meet(self, kind: str, case: Case) -> str:
        """Outcome of one case; ``kind`` is the name of a method below. Raises :class:`UnexplainedError`."""
        before = self.node.health.counted("internal_errors")
        del self.node.errors[:]
        outcome = str(getattr(self, kind)(case))
        if self.node.health.counted("internal_errors") != before:
            raise UnexplainedError("\n".join(self.node.errors) or "internal error")
        return outcome

    # ---- waiting

    def _step(self) -> Any:
        """Counts of the inbox after the fusion thread has processed everything that it has."""
        inbox, deadline = self.live.inbox, time.monotonic() + PATIENCE_S
        for _ in range(2):  # the first round may have begun earlier
            counts = inbox.counts
            inbox.wake()
            while inbox.counts is counts:
                if time.monotonic() > deadline:
                    raise UnexplainedError("the fusion thread hangs")
                time.sleep(0.00002)
        return inbox.counts

    def _call(self, name: str, request: Any, response: Any) -> Any:
        answer = self.node.callbacks[name](request, response)
        if not hasattr(answer, "send"):
            return answer
        deadline = time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < deadline:
                answer.send(None)
                time.sleep(0.00005)
        except StopIteration as end:
            return end.value
        raise UnexplainedError(f"{name} does not answer")

    # ---- kinds

    def frame(self, case: Case) -> str:
        self.stamp_ns += FRAME_NS
        self.node.clock_ns += FRAME_NS
        before = self._step()
        stamp_ns = max(self.stamp_ns + case.get("step_ns", 0), 0)
        self.stamp_ns = max(self.stamp_ns, stamp_ns)  # the next frame is newer than this one
        for kind, camera, message in frame_messages(case, stamp_ns):
            if kind == "tf":
                self.node.callbacks["/tf"](message, {})
            else:
                topic = self.node.get_parameter(f"{camera}.{kind}_topic").value
                if kind != "info" and camera == CAMERAS[1]:
                    topic += "/compressed" if kind == "color" else "/compressedDepth"
                self.node.callbacks[topic](message, {})
        counts = self._step()
        for _ in range(40):
            if not counts.pending:
                break
            self.node.clock_ns += 300_000_000
            counts = self._step()
        received, fused, dropped = (
            counts.received - before.received,
            counts.fused - before.fused,
            Counter(counts.dropped),
        )
        dropped.subtract(before.dropped)
        if counts.pending or received != fused + dropped.total() or dropped["internal_error"]:
            raise UnexplainedError(f"{received} received, {fused} fused, {dropped} dropped, {counts.pending} pending")
        if not received and not {"absent", *_STAMPS} & set(case):
            raise UnexplainedError("the image was not counted")
        return "fused" if fused else "dropped"

    def transform(self, case: Case) -> str:
        refused = sum(self.live.transforms.refused.values())
        self.stamp_ns += 10_000_000
        self.node.callbacks["/tf_static" if case["static"] else "/tf"](transform_message(case, self.stamp_ns), {})
        return "refused" if sum(self.live.transforms.refused.values()) > refused else "fused"

    def query(self, case: Case) -> str:
        text = case["text"] if "text" in case else json.dumps(case["fields"])
        self.node.clock_ns += 10**9  # below max_queries_hz
        text = damaged(text.encode("utf-8", "replace"), case.get("damage", ())).decode("utf-8", "replace")
        answers = self.node.published["~/grounding"]
        before, deadline = len(answers), time.monotonic() + PATIENCE_S
        self.node.callbacks["grounding_query"](String(data=text.replace("\0", "")))  # rclpy carries no NUL
        while len(answers) == before:
            if time.monotonic() > deadline:
                raise UnexplainedError("the query has no answer")
            time.sleep(0.00005)
        outcome = self._answered(answers[before])
        # the node has no network, and so no names; the same sentence over named objects
        grounding = ground_objects(answers[before].text, ROOM, T_ODOM_CAMERA)
        return outcome if grounding.status == GroundingStatus.INVALID else "answered"

    def _answered(self, result: Any) -> str:
        if result.status != GroundingResult.INVALID:
            return "answered"
        if not result.reason or result.reason.startswith("internal error"):
            raise UnexplainedError(result.reason or "INVALID without a reason")
        return "refused"

    def service(self, case: Case) -> str:
        service = case["service"]
        request: Any
        if service == "ask":
            request = Ask.Request(text=case["text"].replace("\0", ""), top_k=case.get("top_k", 0))
            request.frame_id = case.get("frame_id", "").replace("\0", "")
            request.stamp.sec, request.stamp.nanosec = case.get("stamp", (0, 0))
            return self._answered(self._call("ask", request, Ask.Response()).result)
        if service == "clear_box":
            request = ClearBox.Request(frame_id=case.get("frame_id", "").replace("\0", ""))
            center, size, q = request.box.center, request.box.size, request.box.center.orientation
            center.position.x, center.position.y, center.position.z, size.x, size.y, size.z = case["box"][:6]
            q.x, q.y, q.z, q.w = case["box"][6:]
            return self._done(self._call(service, request, ClearBox.Response()))
        if service == "reset":
            return self._done(self._call(service, Trigger.Request(), Trigger.Response()))
        kind = SaveMap if service == "save_map" else LoadMap
        return self._done(self._call(service, kind.Request(path=case["path"].replace("\0", "")), kind.Response()))

    def _done(self, response: Any) -> str:
        if response.success:
            return "answered"
        if not response.message or self.node.errors:  # a refusal warns; an error is a mistake of the program
            raise UnexplainedError("\n".join([response.message, *self.node.errors]) or "refused without a reason")
        return "refused"

    def parameter(self, case: Case) -> str:
        name, (kind, value) = case["name"].replace("\0", ""), case["value"]
        message = ParameterValue()
        if kind != "not_set":
            message.type = getattr(ParameterType, f"PARAMETER_{kind.upper()}")
            if kind.startswith("string"):
                value = value.replace("\0", "") if kind == "string" else [text.replace("\0", "") for text in value]
            setattr(message, f"{kind}_value", value)
        earlier = self.node.get_parameter(name) if self.node.has_parameter(name) else None
        request = SetParameters.Request(parameters=[ParameterMessage(name=name, value=message)])
        (result,) = self._call("set_parameters", request, SetParameters.Response()).results
        if not result.successful:
            if not result.reason:
                raise UnexplainedError("refused without a reason")
            return "refused"
        self.node._publish_diagnostics()
        if earlier is not None:  # so that one case does not spoil the next ones
            (back,) = self.node.set_parameters([earlier])
            if not back.successful:
                raise UnexplainedError(f"{name} cannot be set back to {earlier.value!r}: {back.reason}")
        return "answered"

    def path(self, case: Case) -> str:
        keyframes = self.live.perceptron.keyframe_poses()
        names = list(reversed(keyframes))
        path = PathMessage(header=make_header(self.stamp_ns, case.get("frame_id", "odom").replace("\0", "")))
        for entry in case["poses"]:
            stamped = PoseStamped(pose=matrix_to_pose(np.eye(4)))
            if entry.get("of", len(names)) < len(names):
                stamped.header = make_header(names[entry["of"]][1], "odom")
                stamped.pose = matrix_to_pose(keyframes[names[entry["of"]]])
                stamped.pose.position.x += entry["numbers"][0]
            else:
                stamped.header.stamp.sec, stamped.header.stamp.nanosec = entry.get("stamp", (0, 0))
            if entry["numbers"][3:] != [0.0, 0.0, 0.0, 1.0]:
                q = stamped.pose.orientation
                q.x, q.y, q.z, q.w = entry["numbers"][3:]
            path.poses.append(stamped)
        try:
            poses, _ = corrected_poses(path, "odom", keyframes, lambda *_: np.eye(4))
            self.live.perceptron.correct_keyframes(poses)
        except ValueError:  # as the thread of corrections does
            return "refused"
        return "answered"

    # ---- files

    def map_file(self, case: Case) -> str:
        data = with_map_header(self.files["map"], case["header"]) if "header" in case else self.files["map"]
        (self.maps / "mutated.map").write_bytes(damaged(data, case.get("damage", ())))
        outcome = self._done(self._call("load_map", LoadMap.Request(path="mutated.map"), LoadMap.Response()))
        if outcome == "answered":
            self.live.perceptron.perceive()
        return outcome

    def weights_file(self, case: Case) -> str:
        file = self.folder / "mutated.safetensors"
        file.write_bytes(damaged(self.files["weights"], case["damage"]))
        return _read(lambda: load_checkpoint(file), CheckpointError)

    def configuration(self, case: Case) -> str:
        file = self.folder / "mutated.yaml"
        file.write_bytes(damaged(case.get("yaml", YAML).encode("utf-8", "replace"), case.get("damage", ())))
        return _read(lambda: load_config(file), ConfigError)

    def tum_folder(self, case: Case) -> str:
        folder = self.folder / "mutated_tum"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "tum", folder)
        if "key" in case:
            values = json.loads((folder / "camera.json").read_text())
            (folder / "camera.json").write_text(json.dumps({**values, case["key"]: case["value"]}))
        else:
            file = folder / case["file"]
            if not file.is_file():  # an image
                file = sorted(folder.rglob("*.png"))[0 if case["file"] == "color" else -1]
            line = case.get("line", "").encode("utf-8", "replace")
            file.write_bytes(damaged(file.read_bytes(), case.get("damage", ())) + line)
        return _read(lambda: _play(folder), RecordingError)

    def bag(self, case: Case) -> str:
        file = self.folder / "mutated.mcap"
        file.write_bytes(damaged(self.files["bag"], case["damage"]))
        return _read(lambda: _play(file), RecordingError)


def _read(read: Callable[[], Any], error: type[Exception]) -> str:
    """Files are read whole, or refused with the documented error."""
    try:
        read()
    except (error, OSError):
        return "refused"
    return "answered"


def _play(path: Path) -> None:
    for _ in PosedFrameStream(open_recording(path), SynchronizerConfig()):
        pass


def with_map_header(data: bytes, changes: Mapping[str, Any]) -> bytes:
    """A map file with other values in its header, of the version without checksums, which would hide all else."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header["__metadata__"]
    (name,) = metadata
    values = {key: value for key, value in json.loads(metadata[name]).items() if not key.startswith("checksum")}
    metadata[name] = json.dumps({**values, "version": 1, **changes})
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def valid_files(folder: Path) -> dict[str, bytes]:
    """Bytes of a valid weights file and bag; a valid TUM folder lies in ``folder / "tum"``."""
    rng = np.random.default_rng(0)
    state = {"a.weight": torch.from_numpy(rng.normal(size=(3, 4)).astype(np.float32)), "b": torch.zeros(2)}
    save_checkpoint(folder / "w.safetensors", Checkpoint(state, {"preset": "tiny"}, ("chair", "table"), {"seed": 1}))
    with TumWriter(folder / "tum", CAMERA) as writer:
        for i in range(3):
            color = rng.integers(0, 255, (CAMERA.height, CAMERA.width, 3), dtype=np.uint8)
            depth_m = np.full((CAMERA.height, CAMERA.width), 2.0, np.float32)
            writer.add(10**9 + i * 100_000_000, color, depth_m, T_ODOM_CAMERA)
    return {"weights": (folder / "w.safetensors").read_bytes(), "bag": _valid_bag(folder)}


def _valid_bag(folder: Path) -> bytes:
    """A bag of three frames, as a robot records it."""
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    types = {"color": "sensor_msgs/msg/Image", "depth": "sensor_msgs/msg/Image", "info": "sensor_msgs/msg/CameraInfo"}
    topics = {"color": "/color/image_raw", "depth": "/depth/image_raw", "info": "/color/camera_info", "tf": "/tf"}
    types["tf"] = "tf2_msgs/msg/TFMessage"
    with Writer(folder / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connections = {k: writer.add_connection(topics[k], types[k], typestore=store) for k in topics}
        for i in range(3):
            stamp_ns = 10**9 + i * 100_000_000
            for kind, _, message in frame_messages({}, stamp_ns):
                writer.write(connections[kind], stamp_ns, bytes(serialize_message(message)))
    (file,) = (folder / "bag").glob("*.mcap")
    return file.read_bytes()
