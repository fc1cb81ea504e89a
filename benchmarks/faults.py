"""Faults on purpose: mutated inputs in front of the node, each of which must meet a fate that has a name.

    python benchmarks/faults.py                              # 20,000 inputs; table, and out/bench/faults.json
    python benchmarks/faults.py --inputs 1000000 --seed 7    # the day
    python benchmarks/faults.py --kinds sentence --inputs 10000    # sentences of the longest length, alone
    python benchmarks/faults.py --topics --inputs 10000      # a node of its own, over real topics
    python benchmarks/faults.py --case '{"kind": "query", "changes": {"text": "{"}}'

An input is a *case*: a kind, and what it changes of a sound input of that kind. It is *fused*, *answered*, *dropped* or
*refused*, the last two with the reason that the node counts or says. Whatever else happens is *unexplained*: an
exception, an internal error that the node caught, an input that nobody accounts for, an answer that does not come.
Then the smallest sequence of cases that still does it is looked for, on fresh nodes, and printed.

In process the real node is driven by the callbacks that it gave to rclpy: what the executor would call is called here,
and the node's clock for waiting is ours. Memory is measured after each twentieth of the inputs, and may not grow after
the first tenth. A sentence of the longest length may take :data:`SENTENCE_LIMIT_MS` of its thread's processor time.
"""

from __future__ import annotations

import array
import gc
import json
import logging
import math
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _report as report
import cv2
import numpy as np
import rclpy
from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import Ask, ClearBox, LoadMap, SaveMap
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Path as PathMessage
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.context import Context
from rclpy.parameter import Parameter
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import String
from std_srvs.srv import Trigger
from tf2_msgs.msg import TFMessage

from embodied_perceptron.config import ConfigError, SynchronizerConfig, load_config
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.query import MAX_QUERY_CHARACTERS
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
from embodied_perceptron_ros.environment import ros_environment
from embodied_perceptron_ros.node.corrections import corrected_poses
from embodied_perceptron_ros.node.health import resident_mib
from embodied_perceptron_ros.node.monitor import NodeMonitor
from embodied_perceptron_ros.node.perception_node import PerceptionNode
from embodied_perceptron_ros.node.qos import reliable_qos
from embodied_perceptron_ros.players.launch_options import parameter_text
from embodied_perceptron_ros.players.processes import Supervisor, module_command
from embodied_perceptron_ros.players.replaying import choose_domain

GROWTH_LIMIT_MIB = 40.0  # after the first tenth of a run
SENTENCE_LIMIT_MS = 100.0
PATIENCE_S = 120.0  # for one input; a busy machine is slow, a hang is for ever
DIAGNOSE_EVERY = 500  # inputs; what the node said until then is kept
HISTORY = 64  # inputs before a fault that are tried again when it does not come alone
CAMERAS = ("raw", "packed")  # plain images; compressed ones
CAMERA = Intrinsics(14.0, 14.0, 7.5, 5.5, 16, 12)
# one metre above the floor, looking along x
T_ODOM_CAMERA = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 1]])
FRAME_NS = 33_000_000
Plain = Any  # what JSON can hold; bytes are hexadecimal


@dataclass(frozen=True)
class Case:
    """One input: its kind, and by name what it changes of a sound one."""

    kind: str
    changes: dict[str, Plain] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "changes": self.changes})


@dataclass(frozen=True)
class Verdict:
    """What became of a case: ``fate`` is a column of the table, ``reason`` says why; ``cpu_ms`` of a sentence."""

    fate: str
    reason: str = ""
    cpu_ms: float | None = None

    @property
    def signature(self) -> str:
        """What two verdicts share when they are the same fault."""
        return self.reason.strip().splitlines()[-1][:80] if self.reason.strip() else ""


STAMPS = ("step_ns", "depth_late_ns", "color.stamp", "depth.stamp")  # by these a picture may meet an earlier one
FATES = ("fused", "answered", "dropped", "refused", "unexplained")


# --------------------------------------------------------------------------------------------------------------------
# wild values


class Wild:
    """Random plain values that programs do not expect."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def integer(self, low: int, high: int) -> int:
        """Mostly at the edges and near zero."""
        edge = self.pick([low, low + 1, -1, 0, 1, 2, 3, 7, 255, 256, 65535, 2**31 - 1, high - 1, high])
        value = edge if self.chance(0.7) else int(self.rng.integers(low, high, endpoint=True))
        return min(max(value, low), high)

    def number(self) -> float | str:
        """JSON has no NaN: special values are words; see :func:`as_float`."""
        special = ["nan", "inf", "-inf", 0.0, -0.0, 1e-320, -1e300, 1e300, 1e18, 1.0, -1.0, 0.5, 1e-9]
        return self.pick(special) if self.chance(0.7) else float(self.rng.normal() * 10 ** self.rng.uniform(-3, 7))

    def text(self) -> str:
        kind = self.rng.integers(9)
        if kind == 0:
            return ""
        if kind == 1:
            return "x" * int(self.rng.integers(1, 3000))
        if kind == 2:
            return "".join(chr(int(c)) for c in self.rng.integers(1, 0xD800, int(self.rng.integers(1, 30))))
        if kind == 3:
            return self.pick(
                ["\n", " ", "\t\r", "'; --", "../..", "%s%n", "${HOME}", "\u202e", "\ufeff", "None", "{", "[]"]
            )
        if kind == 4:
            return "".join(chr(int(c)) for c in self.rng.integers(32, 127, int(self.rng.integers(1, 60))))
        return self.pick(
            ["odom", "map", "base_link", "raw_optical", "packed_optical", "/odom", "a/b", "frame", "x" * 300]
        )

    def blob(self, most: int = 64) -> str:
        return self.rng.bytes(int(self.rng.integers(0, most))).hex()

    def damage(self) -> list[Plain]:
        """Cuts, flips and insertions; see :func:`damaged`. Places are shares of the length."""
        where = float(self.rng.random())
        return self.pick(
            [
                ["cut", where],
                ["flip", where, int(self.rng.integers(1, 256))],
                ["insert", where, self.blob(16)],
                ["drop", where, int(self.rng.integers(1, 64))],
                ["number", where, self.pick([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])],
                ["early", float(self.rng.random() ** 6), int(self.rng.integers(1, 256))],
            ]
        )


def as_float(value: Plain) -> float:
    return float(value)


def damaged(data: bytes, damages: Sequence[Sequence[Plain]]) -> bytes:
    """``data`` with the damages done to it in turn."""
    for damage in damages:
        kind, where = damage[0], min(int(damage[1] * len(data)), max(len(data) - 1, 0))
        if kind == "cut":
            data = data[:where]
        elif kind in ("flip", "early") and data:
            data = data[:where] + bytes([data[where] ^ int(damage[2])]) + data[where + 1 :]
        elif kind == "insert":
            data = data[:where] + bytes.fromhex(damage[2]) + data[where:]
        elif kind == "drop":
            data = data[:where] + data[where + int(damage[2]) :]
        elif kind == "number":
            data = data[:where] + struct.pack("<I", int(damage[2])) + data[where + 4 :]
    return data


# --------------------------------------------------------------------------------------------------------------------
# messages of cases

ENCODINGS = ["rgb8", "bgr8", "rgba8", "bgra8", "mono8", "mono16", "16UC1", "32FC1", "64FC1", "8UC3", "yuv422", "RGB8"]
ENCODINGS += ["bayer_rggb8", "", "rgb16", "32FC3", "16SC1", "nv12"]
FILLS = ["plane", "nan", "inf", "-inf", "zero", "negative", "bits", "tiny", "huge", "mixed"]
FORMATS = ["16UC1; compressedDepth png", "32FC1; compressedDepth png", "16UC1; compressedDepth rvl", "png", "jpeg", ""]
FORMATS += ["64FC1; compressedDepth png", ";;;", "rgb8; jpeg compressed bgr8"]
MODELS = ["plumb_bob", "rational_polynomial", "equidistant", "kannala_brandt4", "", "thin_prism"]
UINT32 = 2**32 - 1


def frame_makers(wild: Wild) -> dict[str, Callable[[], Plain]]:
    """What can be changed of a picture, by name: colour, depth, calibration and pose."""
    makers: dict[str, Callable[[], Plain]] = {
        "camera": lambda: wild.pick(CAMERAS),
        "size": lambda: [wild.integer(1, 64), wild.integer(1, 48)],
        "fill": lambda: wild.pick(FILLS),
        "noise": lambda: int(wild.rng.integers(1000)),
        "step_ns": lambda: wild.pick([0, -1, -FRAME_NS, 10**9, -(10**9), 2 * 10**9, 4 * 10**9, 10**12, -(10**12)]),
        "depth_late_ns": lambda: wild.pick([1, 10**6, 3 * 10**7, -(10**6), 10**9, -(10**9)]),
        "absent": lambda: wild.pick(["color", "depth", "info", "tf"]),
        "twice": lambda: wild.pick(["color", "depth", "info", "tf"]),
        "order": lambda: [int(i) for i in wild.rng.permutation(4)],
        "optical": lambda: wild.text(),
        "depth_frame": lambda: wild.text(),
        "pose": lambda: [wild.number() for _ in range(3)],
    }
    for kind in ("color", "depth"):
        makers |= {
            f"{kind}.encoding": lambda: wild.pick(ENCODINGS),
            f"{kind}.step": lambda: wild.integer(0, UINT32),
            f"{kind}.height": lambda: wild.integer(0, UINT32),
            f"{kind}.width": lambda: wild.integer(0, UINT32),
            f"{kind}.is_bigendian": lambda: wild.integer(0, 255),
            f"{kind}.format": lambda: wild.pick(FORMATS),
            f"{kind}.damage": lambda: [wild.damage() for _ in range(int(wild.rng.integers(1, 4)))],
            f"{kind}.stamp": lambda: [wild.integer(-(2**31), 2**31 - 1), wild.integer(0, UINT32)],
        }
    makers |= {
        "info.k": lambda: [int(wild.rng.integers(9)), wild.number()],
        "info.p": lambda: [int(wild.rng.integers(12)), wild.number()],
        "info.d": lambda: [wild.number() for _ in range(int(wild.rng.integers(0, 20)))],
        "info.distortion_model": lambda: wild.pick(MODELS),
        "info.width": lambda: wild.integer(0, UINT32),
        "info.height": lambda: wild.integer(0, UINT32),
        "info.binning_x": lambda: wild.integer(0, UINT32),
        "info.binning_y": lambda: wild.integer(0, UINT32),
        "info.roi": lambda: [wild.integer(0, UINT32) for _ in range(4)],
    }
    return makers


def frame_changes(wild: Wild) -> dict[str, Plain]:
    """Of one picture: few things or none."""
    changes: dict[str, Plain] = {}
    makers = frame_makers(wild)
    names = list(makers)
    for _ in range(int(wild.rng.geometric(0.5)) - (1 if wild.chance(0.15) else 0)):
        name = wild.pick(names)
        changes[name] = makers[name]()
    if "camera" not in changes and wild.chance(0.35):
        changes["camera"] = CAMERAS[1]
    return changes


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
    c = case.changes
    camera = c.get("camera", CAMERAS[0])
    width, height = c.get("size", (CAMERA.width, CAMERA.height))
    rng = np.random.default_rng(c.get("noise", 0))
    optical = c.get("optical", f"{camera}_optical")
    depth_m = _filled(c.get("fill", "plane"), np.full((height, width), 2.0, np.float32), rng)
    color = np.full((height, width, 3), 90, np.uint8)
    depth_ns = max(stamp_ns + c.get("depth_late_ns", 0), 0)
    messages: dict[str, Any] = {"info": make_camera_info(CAMERA.resized(width, height), stamp_ns, optical)}
    if camera == CAMERAS[0]:
        messages["color"] = make_image(color, "rgb8", stamp_ns, optical)
        messages["depth"] = make_image(depth_m, "32FC1", depth_ns, c.get("depth_frame", optical))
    else:
        millimetres = np.nan_to_num(depth_m * 1000, nan=0, posinf=65535, neginf=0).clip(0, 65535).astype(np.uint16)
        packed = struct.pack("<iff", 0, 0.0, 0.0) + encode_depth_file(millimetres)
        for kind, data, form, ns in (
            ("color", encode_color_file(color, ".jpg" if c.get("noise", 0) % 2 else ".png"), "png", stamp_ns),
            ("depth", packed, FORMATS[0], depth_ns),
        ):
            frame_id = optical if kind == "color" else c.get("depth_frame", optical)
            messages[kind] = CompressedImage(header=make_header(ns, frame_id), format=form)
            messages[kind].data = array.array("B", data)
    T = T_ODOM_CAMERA.copy()
    T[:3, 3] += [as_float(v) for v in c.get("pose", (0, 0, 0))]
    transform = make_transform_stamped(T_ODOM_CAMERA, stamp_ns, "odom", optical)
    t = transform.transform.translation
    t.x, t.y, t.z = (float(v) for v in T[:3, 3])
    messages["tf"] = TFMessage(transforms=[transform])
    for name, value in c.items():
        kind, _, name_of_field = name.partition(".")
        if name_of_field and kind in messages:
            _change(messages[kind], name_of_field, value)
    arrivals = ["tf", "info", "color", "depth"]
    arrivals = [arrivals[i] for i in c.get("order", range(4))]
    arrivals = [kind for kind in arrivals if kind != c.get("absent")]
    if c.get("twice") in arrivals:
        arrivals.append(c["twice"])
    return [(kind, camera, messages[kind]) for kind in arrivals]


def _change(message: Any, name: str, value: Plain) -> None:
    if name == "stamp":
        message.header.stamp.sec, message.header.stamp.nanosec = value
    elif name == "damage":
        message.data = message_array(np.frombuffer(damaged(message.data.tobytes(), value), np.uint8))
    elif name in ("k", "p"):
        numbers = getattr(message, name).copy()
        numbers[value[0]] = as_float(value[1])
        setattr(message, name, numbers)
    elif name == "d":
        message.d = array.array("d", [as_float(v) for v in value])
    elif name == "roi":
        roi = message.roi
        roi.x_offset, roi.y_offset, roi.width, roi.height = value
    elif name in message.get_fields_and_field_types():
        setattr(message, name, value)


def transform_changes(wild: Wild) -> dict[str, Plain]:
    """Of one message with transforms."""
    entries = []
    for _ in range(int(wild.rng.integers(1, 4))):
        entry: dict[str, Plain] = {"parent": wild.text(), "child": wild.text()}
        if wild.chance(0.6):
            entry["rotation"] = wild.pick([[0.0] * 4, [1.0, 1.0, 1.0, 1.0], [wild.number() for _ in range(4)]])
        if wild.chance(0.4):
            entry["translation"] = [wild.number() for _ in range(3)]
        if wild.chance(0.5):
            entry["stamp"] = [wild.integer(-(2**31), 2**31 - 1), wild.integer(0, UINT32)]
        if wild.chance(0.1):
            entry["child"] = f"frame_{int(wild.rng.integers(10**9))}"
        entries.append(entry)
    return {"transforms": entries, **({"static": True} if wild.chance(0.4) else {})}


def transform_message(case: Case, stamp_ns: int) -> TFMessage:
    """The message of a ``transform`` case."""
    message = TFMessage()
    for entry in case.changes.get("transforms", [{}]):
        stamped = make_transform_stamped(np.eye(4), stamp_ns, entry.get("parent", "odom"), entry.get("child", "x"))
        q, t = stamped.transform.rotation, stamped.transform.translation
        q.x, q.y, q.z, q.w = (as_float(v) for v in entry.get("rotation", (0, 0, 0, 1)))
        t.x, t.y, t.z = (as_float(v) for v in entry.get("translation", (0, 0, 0)))
        if "stamp" in entry:
            stamped.header.stamp.sec, stamped.header.stamp.nanosec = entry["stamp"]
        message.transforms.append(stamped)
    return message


SENTENCES = ["the chair", "the red box next to the table", "anything", "the 2nd thing left of the 3rd", "not the sofa"]
SENTENCES += ["what is on the table?", "all chairs", "the largest thing behind me", "le grand canapé", "the the of of"]


def query_changes(wild: Wild) -> dict[str, Plain]:
    """Of one message on ``grounding_query``: plain text, JSON, or what looks like it."""
    if wild.chance(0.35):
        words = " ".join(wild.pick(SENTENCES).split() + wild.pick(SENTENCES).split())
        return {"text": wild.pick([wild.text(), wild.pick(SENTENCES), words, wild.text() + " " + wild.pick(SENTENCES)])}
    fields: dict[str, Plain] = {"text": wild.pick(SENTENCES)}
    values: list[Callable[[], Plain]] = [
        lambda: wild.text(),
        lambda: wild.integer(-(2**63), 2**63 - 1),
        lambda: wild.pick([None, True, False, [], {}, [[]], 1e308, -1, "1"]),
    ]
    for _ in range(int(wild.rng.integers(0, 4))):
        name = wild.pick(
            ["id", "text", "top_k", "standing", "cancel", "frame_id", "frame", "stamp", "extra", wild.text()]
        )
        fields[name] = wild.pick(values)()
    if wild.chance(0.3):
        fields |= {"standing": True, "id": f"s{int(wild.rng.integers(30))}"}
    if wild.chance(0.2):
        fields = {"id": f"s{int(wild.rng.integers(30))}", "cancel": True}
    changes: dict[str, Plain] = {"fields": fields}
    if wild.chance(0.3):
        changes["damage"] = [wild.damage()]
    return changes


def query_text(case: Case) -> str:
    """What a ``query`` case says."""
    text = case.changes.get("text")
    if text is None:
        text = json.dumps(case.changes.get("fields", {"text": "the chair"}))
    if "damage" in case.changes:
        text = damaged(text.encode("utf-8", "replace"), case.changes["damage"]).decode("utf-8", "replace")
    return text.replace("\0", "")  # rclpy carries no NUL


# what is repeated to the longest length; sentences of two or three of these nest, share and contradict each other
PARTS = ["the chair between ", "chair window between ", "next to the ", "left of the ", "the second closest ", "and "]
PARTS += ["that is not ", "with a lamp on it ", ", ", "which is between the table and the window ", "go to the "]
PARTS += ["bring me ", "if you ", "when i ", "the one ", "two metres from ", "3 ", "! ", "… ", "( ", '" ', "how many "]
OTHER_WORDS = [
    "red",
    "blue",
    "near",
    "right",
    "behind",
    "in front",
    "under",
    "above",
    "or",
    "with",
    "farthest",
    "third",
]
OTHER_WORDS += [".", "?", "where", "there", "any", "except", "without", "as", "enter", "facing", "looking at", "stand"]
WORDS = sorted({*OTHER_WORDS, *(word for part in (*PARTS, *SENTENCES) for word in part.split())})


def sentence_changes(wild: Wild) -> dict[str, Plain]:
    """Of one sentence of the longest length: parts or words again and again, random words, random characters."""
    kind = int(wild.rng.integers(4))
    if kind == 0:
        unit = "".join(wild.pick(PARTS) for _ in range(int(wild.rng.integers(1, 5))))
    elif kind == 1:
        unit = " ".join(wild.pick(WORDS) for _ in range(int(wild.rng.integers(1, 7)))) + " "
    elif kind == 2:
        unit = " ".join(wild.pick(WORDS) for _ in range(MAX_QUERY_CHARACTERS // 2))
    else:
        unit = "".join(wild.pick("abc ,.-'\"()0123456789eé") for _ in range(MAX_QUERY_CHARACTERS))
    return {"text": (unit * MAX_QUERY_CHARACTERS)[:MAX_QUERY_CHARACTERS].strip()}


def calibration_changes(wild: Wild) -> dict[str, Plain]:
    """Of one picture's calibration alone, several values at once."""
    makers = {name: make for name, make in frame_makers(wild).items() if name.startswith("info.")}
    names = [wild.pick(list(makers)) for _ in range(int(wild.rng.integers(1, 5)))]
    return {"camera": wild.pick(CAMERAS), **{name: makers[name]() for name in names}}


def service_changes(wild: Wild) -> dict[str, Plain]:
    """Of one call of a map service."""
    service = wild.pick(["save_map", "load_map", "reset", "clear_box", "clear_box", "ask", "ask"])
    changes: dict[str, Plain] = {"service": service}
    if service in ("save_map", "load_map"):
        paths = [
            "a.map",
            "b/c.map",
            "../x",
            "/etc/passwd",
            "/dev/null",
            ".",
            "a" * 255,
            "a" * 300,
            "damaged.map",
            "a.map",
        ]
        changes["path"] = wild.pick([*paths, wild.text()])
    if service == "clear_box":
        changes["box"] = [wild.number() for _ in range(10)]
        if wild.chance(0.5):
            changes["box"] = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
            changes["box"][int(wild.rng.integers(10))] = wild.number()
        if wild.chance(0.3):
            changes["frame_id"] = wild.text()
    if service == "ask":
        changes["text"] = wild.pick([wild.text(), wild.pick(SENTENCES)])
        if wild.chance(0.3):
            changes |= {"top_k": wild.integer(0, UINT32), "frame_id": wild.text()}
        if wild.chance(0.3):
            changes["stamp"] = [wild.integer(-(2**31), 2**31 - 1), wild.integer(0, UINT32)]
    return changes


PARAMETERS = ["perception_hz", "output_frame", "viewpoint_frame", "on_time_jump", "max_backlog", "default_top_k"]
PARAMETERS += ["cameras", "voxel_size_m", "weights", "map_file", "map_folder", "fusion_frame", "raw.color_topic"]
PARAMETERS += [
    "raw.rectified",
    "use_sim_time",
    "nothing.like.it",
    "",
    "diagnostics_hz",
    "obstacles_range_m",
    "base_frame",
]


def parameter_changes(wild: Wild) -> dict[str, Plain]:
    """Of one call of ``set_parameters``."""
    value = wild.pick(
        [
            ["double", wild.number()],
            ["integer", wild.integer(-(2**63), 2**63 - 1)],
            ["string", wild.text()],
            ["bool", wild.chance(0.5)],
            ["strings", [wild.text() for _ in range(int(wild.rng.integers(0, 3)))]],
            ["doubles", [wild.number()]],
            ["not_set", None],
        ]
    )
    name = wild.pick(PARAMETERS) if wild.chance(0.9) else wild.text()
    return {"name": name.replace("use_sim_time", "voxels_hz"), "value": value}


def path_changes(wild: Wild) -> dict[str, Plain]:
    """Of corrected poses of keyframes."""
    poses = []
    for _ in range(int(wild.rng.integers(0, 4))):
        numbers = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
        if wild.chance(0.7):
            numbers[int(wild.rng.integers(7))] = wild.number()
        which = int(wild.rng.integers(3))  # of the keyframes, counted from the newest
        stamp = [wild.integer(-(2**31), 2**31 - 1), wild.integer(0, UINT32)]
        poses.append({"numbers": numbers, "of": which} if wild.chance(0.7) else {"numbers": numbers, "stamp": stamp})
    return {"poses": poses, **({"frame_id": wild.text()} if wild.chance(0.3) else {})}


def file_changes(wild: Wild) -> dict[str, Plain]:
    """Of a file's bytes."""
    return {"damage": [wild.damage() for _ in range(int(wild.rng.integers(1, 4)))]}


def tum_changes(wild: Wild) -> dict[str, Plain]:
    """Of one file of a TUM folder."""
    names = ["rgb.txt", "depth.txt", "groundtruth.txt", "camera.json", "color", "depth"]
    changes: dict[str, Plain] = {"file": wild.pick(names), **file_changes(wild)}
    if wild.chance(0.3):
        lines = [
            "1 ../../../etc/passwd",
            "nan rgb/0.png",
            "1e300 x",
            "-1 x",
            "",
            "# ",
            "1 1 1 1 0 0 0 0",
            "9" * 400 + " x",
        ]
        changes = {"file": wild.pick(names[:3]), "line": wild.pick([*lines, wild.text()])}
    if wild.chance(0.2):
        key = wild.pick(["width", "height", "fx", "fy", "cx", "cy", "depth_scale", "depth_invalid", "camera", "x"])
        value = wild.pick([wild.integer(-(2**40), 2**40), wild.text(), None, [], {}, 1e308, 0, -1, "1", [wild.text()]])
        changes = {"key": key, "value": value}
    return changes


def map_changes(wild: Wild) -> dict[str, Plain]:
    """Of a saved map: bytes, or a value in its header."""
    if wild.chance(0.5):
        return file_changes(wild)
    keys = ["version", "volume", "keyframes", "keyframes_taken", "keyframe_config", "extra", "next_id", "newest_ns"]
    values = [
        None,
        0,
        -1,
        2**70,
        1e308,
        "x",
        [],
        {},
        [[]],
        [{}],
        {"a": 1},
        True,
        "{",
        {"objects": "{}"},
        {"objects": 1},
    ]
    values += [{"map_frame": "["}, {"map_frame": '{"T_world_map": [1e300, 0, 0]}'}, {"semantic": '{"classes": 3}'}]
    return {"header": {wild.pick(keys): wild.pick(values)}}


YAML = (
    "volume:\n  voxel_size_m: 0.05\n  max_blocks: 2000\nassembler:\n  max_pose_wait_s: 0.2\nscores:\n  publish: 0.3\n"
)


def config_changes(wild: Wild) -> dict[str, Plain]:
    """Of a configuration file."""
    if wild.chance(0.5):
        return file_changes(wild)
    lines = [
        "volume: 3",
        "volume: {voxel_size_m: .nan}",
        "x: &a [*a]",
        "!!python/object:os.system x",
        "volume: {max_blocks: 1.5}",
    ]
    lines += [
        "a: &a [x,x]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b]",
        "? [1]\n: 2",
        "- 1",
        "volume: {voxel_size_m: 1e400}",
        "\t",
    ]
    return {"yaml": wild.pick([*lines, wild.text(), "assembler: {max_pose_wait_s: " + str(wild.number()) + "}"])}


# kind -> (what its cases change, how often of all); the slow ones are rare
KINDS: dict[str, tuple[Callable[[Wild], dict[str, Plain]], float]] = {
    "frame": (frame_changes, 0.35),
    "transform": (transform_changes, 0.22),
    "calibration": (calibration_changes, 0.04),
    "query": (query_changes, 0.14),
    "sentence": (sentence_changes, 0.01),
    "service": (service_changes, 0.04),
    "parameter": (parameter_changes, 0.08),
    "path": (path_changes, 0.03),
    "map file": (map_changes, 0.02),
    "weights file": (file_changes, 0.04),
    "configuration": (config_changes, 0.02),
    "folder": (tum_changes, 0.006),
    "bag": (file_changes, 0.004),
}


def cases(seed: int, count: int, kinds: Sequence[str] = tuple(KINDS)) -> Iterator[Case]:
    """``count`` cases of the seed; the same every time."""
    wild = Wild(np.random.default_rng(seed))
    shares = np.array([KINDS[kind][1] for kind in kinds])
    for _ in range(count):
        kind = kinds[int(wild.rng.choice(len(kinds), p=shares / shares.sum()))]
        yield Case(kind, KINDS[kind][0](wild))


# --------------------------------------------------------------------------------------------------------------------
# the node, driven by hand

SCENE = tuple(
    SceneObject(i + 1, label, 0.8, np.array([x, y, z, 0.5, 0.4, 0.6, 0.1 * i, 0, 0]))
    for i, (label, x, y, z) in enumerate(
        [
            ("chair", 1, 0, 0.3),
            ("chair", 2, 1, 0.3),
            ("table", 1.5, 0.5, 0.4),
            ("box", 1.5, 0.5, 0.9),
            ("sofa", 3, 0, 0.4),
        ]
    )
)
ROOM_LABELS = ("chair", "table", "window", "lamp", "sofa", "door", "box", "cabinet", "bed", "shelf")
ROOM = tuple(  # what long sentences are asked about
    SceneObject(i + 1, label, 0.8, np.array([4 * math.sin(7 * i), 4 * math.cos(3 * i), 0.5, 0.9, 0.5, 0.8, i, 0, 0]))
    for i, label in enumerate(3 * ROOM_LABELS)
)
SCENE_COLORS = np.array([[200.0, 30, 30], [30, 30, 200], [120, 80, 40], [np.nan] * 3, [90, 90, 90]])


class DrivenNode(PerceptionNode):
    """The real node, whose callbacks are called here instead of by an executor.

    Attributes:
        heard: callbacks of subscriptions by topic as the node names it; those of services by name.
        told: messages published on plain topics, by topic.
        errors: what the node logged as errors.
        clock_ns: of the node's waiting.
    """

    def __init__(self, context: Context, parameters: dict[str, Any]) -> None:
        self.heard: dict[str, Callable[..., Any]] = {}
        self.told: dict[str, list[Any]] = {}
        self.errors: list[str] = []
        self.clock_ns = 10**12
        given = [Parameter(name, value=value) for name, value in parameters.items()]
        super().__init__(context=context, parameter_overrides=given, enable_rosout=False)

    def create_subscription(self, msg_type: Any, topic: str, callback: Any, *args: Any, **kwargs: Any) -> Any:
        self.heard[topic] = callback
        return super().create_subscription(msg_type, topic, callback, *args, **kwargs)

    def create_service(self, srv_type: Any, srv_name: str, callback: Any, *args: Any, **kwargs: Any) -> Any:
        self.heard[srv_name.rsplit("/", 1)[-1]] = callback
        return super().create_service(srv_type, srv_name, callback, *args, **kwargs)

    def create_publisher(self, msg_type: Any, topic: str, *args: Any, **kwargs: Any) -> Any:
        publisher = super().create_publisher(msg_type, topic, *args, **kwargs)
        told, publish = self.told.setdefault(topic, []), publisher.publish

        def keep(message: Any) -> None:
            serialize_message(message)  # what could not be sent is a fault
            publish(message)
            told.append(message)

        publisher.publish = keep
        return publisher

    def get_logger(self) -> Any:
        return _Logger(self.errors)

    def now_ns(self) -> int:
        return self.clock_ns


class _Logger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Keeps errors, and is silent."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.getLogger("faults"), {})
        self._errors = errors

    def error(self, message: Any, *args: Any, **kwargs: Any) -> None:
        self._errors.append(str(message))

    def get_child(self, name: str) -> _Logger:
        return self

    def warning(self, message: Any, *args: Any, **kwargs: Any) -> None:
        pass

    warn, info, debug = warning, warning, warning  # type: ignore[assignment]


class HangError(RuntimeError):
    """Something did not come."""


class Rig:
    """A node that is configured and active, and files that it reads. One thread drives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.maps = folder / "maps"
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
        if self.node.errors:
            raise RuntimeError(f"the node did not start: {self.node.errors}")
        assert self.node._map is not None
        self.live = self.node._map
        self.stamp_ns = 10**15
        self.handlers: dict[str, Callable[[Case], Verdict]] = {
            **{"frame": self._frame, "transform": self._transform, "query": self._query, "service": self._service},
            **{"calibration": self._frame, "sentence": self._sentence},
            **{"parameter": self._parameter, "path": self._path, "map file": self._map_file},
            **{
                "weights file": self._weights,
                "configuration": self._configuration,
                "folder": self._tum,
                "bag": self._bag,
            },
        }
        for _ in range(3):
            sound = self._frame(Case("frame"))
        if sound.fate != "fused":
            raise RuntimeError(f"a sound frame is not fused: {sound}")
        self.sources = sources(folder)
        (self.maps / "damaged.map").write_bytes(b"not a map")
        self.live.perceptron.save(self.maps / "sound.map")
        self.sources["map"] = (self.maps / "sound.map").read_bytes()

    def close(self) -> None:
        self.node.close()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)
        gc.collect()  # nodes are full of circles

    def meet(self, case: Case) -> Verdict:
        """Put one case in front of the node and wait for its fate."""
        before, errors = self.node.health.counted("internal_errors"), len(self.node.errors)
        try:
            verdict = self.handlers[case.kind](case)
        except Exception:  # the fault that is looked for
            return Verdict("unexplained", traceback.format_exc())
        if self.node.health.counted("internal_errors") != before:
            return Verdict("unexplained", "\n".join(self.node.errors[errors:]) or "internal error")
        del self.node.errors[:]
        return verdict

    def diagnose(self) -> None:
        """What the node says of itself must be a message, whatever it met."""
        self.node._publish_diagnostics()
        for told in self.node.told.values():
            told.clear()

    # ---- waiting

    def _step(self) -> Any:
        """Until the fusion thread has done whole rounds after everything that was handed over; its counts then."""
        inbox, deadline = self.live.inbox, time.monotonic() + PATIENCE_S
        for _ in range(2):  # the first may have begun before
            counts = inbox.counts
            inbox.wake()
            while inbox.counts is counts:
                if time.monotonic() > deadline:
                    raise HangError("the fusion thread does not go on")
                time.sleep(0.00002)
        return inbox.counts

    def _await(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise HangError(what)
            time.sleep(0.00005)
        return value

    def _call(self, name: str, request: Any, response: Any) -> Any:
        answer = self.node.heard[name](request, response)
        if not hasattr(answer, "send"):
            return answer
        try:
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                answer.send(None)
                time.sleep(0.00005)
        except StopIteration as end:
            return end.value
        raise HangError(f"{name} does not answer")

    # ---- kinds

    def _frame(self, case: Case) -> Verdict:
        self.stamp_ns += FRAME_NS
        self.node.clock_ns += FRAME_NS
        before = self._step()
        step_ns = case.changes.get("step_ns", 0)
        stamp_ns = max(self.stamp_ns + step_ns, 0)
        for kind, camera, message in frame_messages(case, stamp_ns):
            if kind == "tf":
                self.node.heard["/tf"](message, {})
            else:
                name = {"color": "color_topic", "depth": "depth_topic", "info": "info_topic"}[kind]
                topic = self.node.get_parameter(f"{camera}.{name}").value
                if kind != "info" and camera == CAMERAS[1]:
                    topic += "/compressed" if kind == "color" else "/compressedDepth"
                self.node.heard[topic](message, {})
        counts, rounds = self._step(), 0
        while counts.pending:
            rounds += 1
            if rounds > 40:
                raise HangError(f"{counts.pending} frames are pending for ever")
            self.node.clock_ns += 300_000_000
            counts = self._step()
        fused, received = counts.fused - before.fused, counts.received - before.received
        dropped = counts.dropped - before.dropped
        if received != fused + sum(dropped.values()):
            raise HangError(f"{received} frames received, {fused} fused, {dict(dropped)} dropped")
        if dropped.get("internal_error"):
            return Verdict("unexplained", "\n".join(self.node.errors) or "internal_error")
        if fused:
            return Verdict("fused")
        if dropped:
            return Verdict("dropped", "+".join(sorted(dropped)))
        if received == 0 and not {"absent", *STAMPS} & set(case.changes):
            raise HangError("the picture was not even counted")
        return Verdict("dropped", "belongs to a picture that was dropped before")

    def _transform(self, case: Case) -> Verdict:
        refused = Counter(self.live.transforms.refused)
        self.stamp_ns += 10_000_000
        self.node.heard["/tf_static" if case.changes.get("static") else "/tf"](
            transform_message(case, self.stamp_ns), {}
        )
        more = Counter(self.live.transforms.refused) - refused
        return Verdict("refused", "transform") if more else Verdict("fused")

    def _answer_of(self, result: Any) -> Verdict:
        if result.status == GroundingResult.INVALID:
            if result.reason.startswith("internal error"):
                return Verdict("unexplained", result.reason)
            return Verdict("refused", "query: INVALID") if result.reason else Verdict("unexplained", "no reason")
        return Verdict("answered", f"query: {result.status}")

    def _query(self, case: Case) -> Verdict:
        answers = self.node.told["~/grounding"]
        before = len(answers)
        self.node.heard["grounding_query"](String(data=query_text(case)))
        self._await(lambda: len(answers) > before, "the query has no answer")
        verdict = self._answer_of(answers[before])
        # this node has no network, and so no names; the same sentence about things that have some
        grounding = ground_objects(answers[before].text, SCENE, T_ODOM_CAMERA, colors=SCENE_COLORS)
        if verdict.fate == "unexplained" or grounding.status == GroundingStatus.INVALID:
            return verdict
        return Verdict("answered", f"sentence: {grounding.status.name}")

    def _sentence(self, case: Case) -> Verdict:
        start_s = time.thread_time()
        grounding = ground_objects(case.changes.get("text", "the chair"), ROOM, T_ODOM_CAMERA)
        cpu_ms = 1e3 * (time.thread_time() - start_s)
        if cpu_ms > SENTENCE_LIMIT_MS:
            return Verdict("unexplained", f"a sentence took more than {SENTENCE_LIMIT_MS:g} ms", cpu_ms)
        if grounding.status == GroundingStatus.INVALID:
            return Verdict("refused", "sentence: INVALID", cpu_ms)
        return Verdict("answered", f"sentence: {grounding.status.name}", cpu_ms)

    def _service(self, case: Case) -> Verdict:
        c = case.changes
        service = c.get("service", "reset")
        if service == "ask":
            request = Ask.Request(text=c.get("text", "").replace("\0", ""), top_k=c.get("top_k", 0))
            request.frame_id = c.get("frame_id", "").replace("\0", "")
            request.stamp.sec, request.stamp.nanosec = c.get("stamp", (0, 0))
            return self._answer_of(self._call("ask", request, Ask.Response()).result)
        if service == "clear_box":
            request, response = ClearBox.Request(frame_id=c.get("frame_id", "")), ClearBox.Response()
            numbers = [as_float(v) for v in c.get("box", (0, 0, 0, 1, 1, 1, 0, 0, 0, 1))]
            center, size, q = request.box.center, request.box.size, request.box.center.orientation
            center.position.x, center.position.y, center.position.z, size.x, size.y, size.z = numbers[:6]
            q.x, q.y, q.z, q.w = numbers[6:]
        elif service == "reset":
            request, response = Trigger.Request(), Trigger.Response()
        else:
            kind = SaveMap if service == "save_map" else LoadMap
            request, response = kind.Request(path=c.get("path", "a.map").replace("\0", "")), kind.Response()
        del self.node.errors[:]
        response = self._call(service, request, response)
        return self._said(response.success, response.message)

    def _said(self, success: bool, message: str) -> Verdict:
        if success:
            return Verdict("answered", "service")
        if not message or self.node.errors:  # a refusal warns; an error is a mistake of the program
            return Verdict("unexplained", "\n".join([message, *self.node.errors]) or "refused without a word")
        return Verdict("refused", "service")

    def _parameter(self, case: Case) -> Verdict:
        kind, value = case.changes.get("value", ["double", 1.0])
        fields = {
            "double": ("double_value", ParameterType.PARAMETER_DOUBLE),
            "integer": ("integer_value", ParameterType.PARAMETER_INTEGER),
            "string": ("string_value", ParameterType.PARAMETER_STRING),
            "bool": ("bool_value", ParameterType.PARAMETER_BOOL),
            "strings": ("string_array_value", ParameterType.PARAMETER_STRING_ARRAY),
            "doubles": ("double_array_value", ParameterType.PARAMETER_DOUBLE_ARRAY),
        }
        message = ParameterValue()
        if kind in fields:
            name, message.type = fields[kind]
            value = (
                as_float(value) if kind == "double" else [as_float(v) for v in value] if kind == "doubles" else value
            )
            setattr(message, name, value)
        name = case.changes.get("name", "perception_hz")
        known = self.node.has_parameter(name)
        earlier = self.node.get_parameter(name) if known else None
        request = SetParameters.Request(parameters=[ParameterMessage(name=name, value=message)])
        (result,) = self._call("set_parameters", request, SetParameters.Response()).results
        if not result.successful:
            return (
                Verdict("refused", "parameter") if result.reason else Verdict("unexplained", "refused without a word")
            )
        self.node._publish_diagnostics()
        if earlier is not None:  # so that one case does not spoil the others
            (back,) = self.node.set_parameters([earlier])
            if not back.successful:
                return Verdict("unexplained", f"{name} cannot be set back to {earlier.value!r}: {back.reason}")
        return Verdict("answered", "parameter")

    def _path(self, case: Case) -> Verdict:
        keyframes = self.live.perceptron.keyframe_poses()
        names = list(reversed(keyframes))
        path = PathMessage(header=make_header(self.stamp_ns, case.changes.get("frame_id", "odom")))
        for entry in case.changes.get("poses", ()):
            stamped = PoseStamped(pose=matrix_to_pose(np.eye(4)))
            if "of" in entry and entry["of"] < len(names):
                stamped.header = make_header(names[entry["of"]][1], "odom")
                stamped.pose = matrix_to_pose(keyframes[names[entry["of"]]])
                stamped.pose.position.x += as_float(entry["numbers"][0])
            else:
                stamped.header.stamp.sec, stamped.header.stamp.nanosec = entry.get("stamp", (0, 0))
            if entry["numbers"][3:] != [0.0, 0.0, 0.0, 1.0]:
                q = stamped.pose.orientation
                q.x, q.y, q.z, q.w = (as_float(v) for v in entry["numbers"][3:])
            path.poses.append(stamped)
        try:
            poses, _ = corrected_poses(path, "odom", keyframes, lambda *_: np.eye(4))
            self.live.perceptron.correct_keyframes(poses)
        except ValueError as error:  # as the thread of corrections does
            return Verdict("refused", type(error).__name__)
        return Verdict("answered", "path")

    # ---- files

    def _map_file(self, case: Case) -> Verdict:
        data = self.sources["map"]
        if "header" in case.changes:
            data = with_map_header(data, case.changes["header"])
        (self.maps / "mutated.map").write_bytes(damaged(data, case.changes.get("damage", ())))
        response = self._call("load_map", LoadMap.Request(path="mutated.map"), LoadMap.Response())
        verdict = self._said(response.success, response.message)
        if verdict.fate == "answered":
            self.live.perceptron.perceive()
        return verdict

    def _weights(self, case: Case) -> Verdict:
        file = self.folder / "mutated.safetensors"
        file.write_bytes(damaged(self.sources["weights"], case.changes.get("damage", ())))
        return _read(lambda: load_checkpoint(file), CheckpointError)

    def _configuration(self, case: Case) -> Verdict:
        file = self.folder / "mutated.yaml"
        text = case.changes.get("yaml", YAML).encode("utf-8", "replace")
        file.write_bytes(damaged(text, case.changes.get("damage", ())))
        return _read(lambda: load_config(file), ConfigError)

    def _tum(self, case: Case) -> Verdict:
        folder = self.folder / "mutated_tum"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "tum", folder)
        c = case.changes
        if "key" in c:
            values = json.loads((folder / "camera.json").read_text())
            (folder / "camera.json").write_text(json.dumps({**values, c["key"]: c["value"]}))
        else:
            name = c.get("file", "rgb.txt")
            file = folder / name
            if not file.is_file():  # an image
                file = sorted(folder.rglob("*.png"))[0 if name == "color" else -1]
            data = file.read_bytes()
            data = data + c["line"].encode("utf-8", "replace") if "line" in c else damaged(data, c.get("damage", ()))
            file.write_bytes(data)
        return _read(lambda: _play(folder), RecordingError)

    def _bag(self, case: Case) -> Verdict:
        file = self.folder / "mutated.mcap"
        file.write_bytes(damaged(self.sources["bag"], case.changes.get("damage", ())))
        return _read(lambda: _play(file), RecordingError)


def _read(read: Callable[[], Any], error: type[Exception]) -> Verdict:
    """Files are read whole, or refused with the error that is documented."""
    try:
        read()
    except (error, OSError) as refused:
        return Verdict("refused", type(refused).__name__)
    return Verdict("answered", "file")


def _play(path: Path) -> None:
    for _ in PosedFrameStream(open_recording(path), SynchronizerConfig()):
        pass


def with_map_header(data: bytes, changes: dict[str, Plain]) -> bytes:
    """A map file with other values in its header, of the version without checksums: they would hide all else."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header["__metadata__"]
    (name,) = metadata
    values = {key: value for key, value in json.loads(metadata[name]).items() if not key.startswith("checksum")}
    metadata[name] = json.dumps({**values, "version": 1, **changes})
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def sources(folder: Path) -> dict[str, bytes]:
    """Sound files of every kind; the TUM folder lies in ``folder / "tum"``."""
    import torch

    rng = np.random.default_rng(0)
    state = {"a.weight": torch.from_numpy(rng.normal(size=(3, 4)).astype(np.float32)), "b": torch.zeros(2)}
    save_checkpoint(folder / "w.safetensors", Checkpoint(state, {"preset": "tiny"}, ("chair", "table"), {"seed": 1}))
    if not (folder / "tum").exists():
        with TumWriter(folder / "tum", CAMERA) as writer:
            for i in range(3):
                color = rng.integers(0, 255, (CAMERA.height, CAMERA.width, 3), dtype=np.uint8)
                depth_m = np.full((CAMERA.height, CAMERA.width), 2.0, np.float32)
                writer.add(10**9 + i * 100_000_000, color, depth_m, T_ODOM_CAMERA)
    return {"weights": (folder / "w.safetensors").read_bytes(), "bag": sound_bag(folder)}


def sound_bag(folder: Path) -> bytes:
    """A bag of three pictures, as a robot records them."""
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    shutil.rmtree(folder / "bag", ignore_errors=True)
    types = {"color": "sensor_msgs/msg/Image", "depth": "sensor_msgs/msg/Image", "info": "sensor_msgs/msg/CameraInfo"}
    topics = {"color": "/color/image_raw", "depth": "/depth/image_raw", "info": "/color/camera_info", "tf": "/tf"}
    types["tf"] = "tf2_msgs/msg/TFMessage"
    with Writer(folder / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connections = {k: writer.add_connection(topics[k], types[k], typestore=store) for k in topics}
        for i in range(3):
            stamp_ns = 10**9 + i * 100_000_000
            for kind, _, message in frame_messages(Case("frame"), stamp_ns):
                writer.write(connections[kind], stamp_ns, bytes(serialize_message(message)))
    (file,) = (folder / "bag").glob("*.mcap")
    return file.read_bytes()


# --------------------------------------------------------------------------------------------------------------------
# the smallest input that fails


def fails(history: Sequence[Case], signature: str, folder: Path) -> bool:
    """Whether a fresh node meets the fault in these cases."""
    rig = Rig(folder)
    try:
        return any(v.fate == "unexplained" and v.signature == signature for v in map(rig.meet, history))
    finally:
        rig.close()


def minimise(history: Sequence[Case], fails: Callable[[Sequence[Case]], bool]) -> list[Case]:
    """The shortest sequence found that still fails, its last case reduced to what is needed. ``history`` must fail."""
    last = list(history[-1:])
    left = last if fails(last) else list(history)
    size = max(len(left) // 2, 1)
    while size and len(left) > 1:
        start = 0
        while start < len(left):
            fewer = left[:start] + left[start + size :]
            if fewer and fails(fewer):
                left = fewer
            else:
                start += size
        size //= 2
    for i in range(len(left)):
        left[i] = _simplest(left[i], lambda case, i=i: fails([*left[:i], case, *left[i + 1 :]]))  # type: ignore[misc]
    return left


def _simplest(case: Case, fails: Callable[[Case], bool]) -> Case:
    """With as few changes, and as plain ones, as still fail."""
    for name in list(case.changes):
        fewer = Case(case.kind, {k: v for k, v in case.changes.items() if k != name})
        if fails(fewer):
            case = fewer
    for name in case.changes:
        tried = True
        while tried:
            tried = False
            for value in _plainer(case.changes[name]):
                simpler = Case(case.kind, {**case.changes, name: value})
                if fails(simpler):
                    case, tried = simpler, True
                    break
    return case


def _plainer(value: Plain) -> Iterator[Plain]:
    """Values that are simpler than ``value``, the simplest first."""
    if isinstance(value, str) and len(value) > 1:
        yield from (value[: len(value) // 2], value[len(value) // 2 :], value[:-1])
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int) and abs(value) > 1:
        yield from (v for v in (0, 1, -1, int(math.copysign(abs(value) // 2, value))) if abs(v) < abs(value))
    elif isinstance(value, list) and value:
        yield from (value[:i] + value[i + 1 :] for i in range(len(value)))
        for i, item in enumerate(value):
            yield from ([*value[:i], simpler, *value[i + 1 :]] for simpler in _plainer(item))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: simpler} for simpler in _plainer(item))


# --------------------------------------------------------------------------------------------------------------------
# a run


@dataclass
class Tally:
    """What became of the inputs.

    Attributes:
        fates: (kind, fate) -> inputs; reasons: (kind, fate: reason) -> inputs.
        faults: unexplained inputs: signature -> the smallest sequence of cases, and what was seen.
        memory_mib: after each twentieth.
        sentence_ms: processor time of each sentence of the longest length.
    """

    fates: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory_mib: list[float] = field(default_factory=list)
    sentence_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        return sum(self.fates.values())

    @property
    def growth_mib(self) -> float:
        """After the first tenth."""
        steady = self.memory_mib[len(self.memory_mib) // 10 :]
        return max(steady[-1] - steady[0], 0.0) if len(steady) > 1 else 0.0

    @property
    def healthy(self) -> bool:
        unexplained = sum(n for (_, fate), n in self.fates.items() if fate == "unexplained")
        return self.inputs > 0 and unexplained == 0 and self.growth_mib <= GROWTH_LIMIT_MIB

    def add(self, case: Case, verdict: Verdict) -> None:
        self.fates[case.kind, verdict.fate] += 1
        if verdict.cpu_ms is not None:
            self.sentence_ms.append(verdict.cpu_ms)
        if verdict.fate != "unexplained":
            self.reasons[case.kind, f"{verdict.fate}: {verdict.reason}".rstrip(": ")] += 1

    def rows(self) -> dict[str, dict[str, int]]:
        kinds = [kind for kind in KINDS if any(k == kind for k, _ in self.fates)]
        return {kind: {fate: self.fates[kind, fate] for fate in FATES} for kind in kinds}

    def sentence_times(self) -> dict[str, float]:
        """Of sentences of the longest length: median, 99th percentile and the longest; empty without any."""
        if not self.sentence_ms:
            return {}
        p50, p99, longest = np.percentile(self.sentence_ms, [50, 99, 100]).tolist()
        return {"p50": round(p50, 1), "p99": round(p99, 1), "max": round(longest, 1)}

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "seconds": round(self.seconds, 1),
            "inputs_per_s": round(self.inputs / self.seconds, 1) if self.seconds else None,
            "kinds": [{"kind": kind, **fates} for kind, fates in self.rows().items()],
            "reasons": [{"kind": kind, "reason": what, "inputs": n} for (kind, what), n in self.reasons.most_common()],
            "memory_mib": [round(m, 1) for m in self.memory_mib],
            "growth_mib_after_first_tenth": round(self.growth_mib, 1),
            **{f"sentence_ms.{name}": ms for name, ms in self.sentence_times().items()},
            "faults": [{"signature": signature, **fault} for signature, fault in self.faults.items()],
            "healthy": self.healthy,
        }


def run(
    inputs: Sequence[Case] | Iterator[Case],
    total: int,
    folder: Path,
    *,
    minimising: bool = True,
    on_progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Meet all cases in one node; after a fault with a fresh one."""
    tally, start_s, history = Tally(), time.monotonic(), []  # type: ignore[var-annotated]
    rig = Rig(folder)
    for kind in ("query", "sentence"):  # what sentences load once is no growth
        rig.meet(Case(kind, {"text": "frame the red box next to the tabel"}))
    gc.collect()
    gc.freeze()  # as the node's process does
    every = max(total // 20, 1)
    try:
        for number, case in enumerate(inputs, 1):
            verdict = rig.meet(case)
            history = [*history[-HISTORY:], case]
            tally.add(case, verdict)
            if verdict.fate == "unexplained" and verdict.signature not in tally.faults:
                tally.faults[verdict.signature] = {"cases": [case.to_json()], "seen": verdict.reason}
                rig.close()
                if minimising:

                    def again(tried: Sequence[Case], signature: str = verdict.signature) -> bool:
                        return fails(tried, signature, folder)

                    found = minimise(history, again) if again(history[-1:]) or again(history) else history[-1:]
                    tally.faults[verdict.signature]["cases"] = [c.to_json() for c in found]
                rig, history = Rig(folder), []
            if number % DIAGNOSE_EVERY == 0:
                rig.diagnose()
            if number % every == 0:
                gc.collect()
                tally.memory_mib.append(resident_mib())
                tally.seconds = time.monotonic() - start_s
                on_progress(tally)
    finally:
        rig.close()
        gc.unfreeze()
    tally.seconds = time.monotonic() - start_s
    return tally


def over_topics(inputs: Iterator[Case], total: int, folder: Path, on_progress: Callable[[Tally], None]) -> Tally:
    """Publish frames, transforms and queries to a node of its own process, as others on the network would.

    Which message met which fate is not known here, their sums are: a frame that nobody accounts for, a query without
    its answer, an internal error, or a node that ended, is unexplained. One picture may be two frames there (its halves
    do not fit), messages of transforms all count as fused; how many links were refused stands in the reasons.
    """
    domain = choose_domain(None)
    environment = ros_environment() | {"ROS_DOMAIN_ID": str(domain)}
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    topics = {
        (camera, kind): f"/{camera}/{name}{packed if camera == CAMERAS[1] else ''}"
        for camera in CAMERAS
        for kind, name, packed in (
            ("color", "color/image_raw", "/compressed"),
            ("depth", "depth/image_raw", "/compressedDepth"),
            ("info", "color/camera_info", ""),
        )
    }
    parameters: dict[str, Any] = {
        **{"cameras": list(CAMERAS), "weights": "none", "voxel_size_m": 0.05, "max_blocks": 2000, "radius_m": 6.0},
        **{"max_pose_wait_s": 0.2, "max_backlog": 100, "perception_hz": 0.5, "max_queries_hz": 1000.0},
        **{"packed.color_transport": "compressed", "packed.depth_transport": "compressedDepth"},
    }
    for topic in topics.values():
        parameters |= {f"qos_overrides.{topic}.subscription.reliability": "reliable"}
        parameters |= {f"qos_overrides.{topic}.subscription.depth": 200}
    options = [text for name, value in parameters.items() for text in ("-p", f"{name}:={parameter_text(value)}")]
    tally, start_s = Tally(), time.monotonic()
    with Supervisor() as processes, NodeMonitor(domain) as monitor:
        processes.start("node", module_command("node", "--ros-args", *options), environment, folder / "node.log")

        def await_status(condition: Callable[[], Any], what: str, seconds: float) -> None:
            deadline = time.monotonic() + seconds
            while not condition():
                code = processes.exit_codes()["node"]
                if code is not None or time.monotonic() > deadline:
                    log = (folder / "node.log").read_text(errors="replace")[-3000:]
                    raise HangError(f"{what}; exit code of the node {code}\n{log}")
                monitor.spin(0.2)

        await_status(lambda: monitor.status.state == "active", "the node is not active", 180.0)
        qos, publishers = reliable_qos(200), {}
        types = {"color": Image, "depth": Image, "info": CameraInfo}
        for (camera, kind), topic in topics.items():
            message_type = CompressedImage if camera == CAMERAS[1] and kind != "info" else types[kind]
            publishers[camera, kind] = monitor.node.create_publisher(message_type, topic, qos)
        tf = monitor.node.create_publisher(TFMessage, "/tf", qos)
        queries = monitor.node.create_publisher(String, "/grounding_query", qos)
        answered: list[Any] = []
        monitor.node.create_subscription(GroundingResult, "/perception/grounding", answered.append, reliable_qos(1000))
        monitor.spin(2.0)
        stamp_ns, asked = time.time_ns(), 0
        sent: Counter[str] = Counter()
        try:
            for number, case in enumerate(inputs, 1):
                stamp_ns += FRAME_NS
                sent[case.kind] += 1
                if case.kind == "frame":
                    for kind, camera, message in frame_messages(
                        case, max(stamp_ns + case.changes.get("step_ns", 0), 0)
                    ):
                        (tf if kind == "tf" else publishers[camera, kind]).publish(message)
                elif case.kind == "transform":
                    tf.publish(transform_message(case, stamp_ns))
                else:
                    asked += 1
                    queries.publish(String(data=query_text(case)))
                monitor.spin(0.004)
                if number % max(total // 20, 1) == 0:
                    await_status(lambda: len(answered) >= asked, f"{asked} queries, {len(answered)} answers", 60.0)  # noqa: B023
                    tally.memory_mib.append(float(monitor.status.areas["node"]["memory_mib"]))
                    tally.fates.update({(kind, "fused"): n - tally.fates[kind, "fused"] for kind, n in sent.items()})
                    tally.seconds = time.monotonic() - start_s
                    on_progress(tally)
            monitor.spin(2.0)
            received = lambda: int(monitor.status.areas["frames"]["frames_received"])  # noqa: E731
            settled = lambda: monitor.status.settled >= received()  # noqa: E731
            await_status(settled, "frames are pending for ever", 30.0)
            errors = int(monitor.status.areas["node"].get("internal_errors", "0"))
            if errors:
                raise HangError((folder / "node.log").read_text(errors="replace")[-5000:])
        except HangError as error:
            verdict = Verdict("unexplained", str(error))
            tally.add(Case("frame"), verdict)
            tally.faults[verdict.signature] = {"cases": [], "seen": str(error)}
        unexplained = tally.fates["frame", "unexplained"]
        tally.fates.clear()  # what was progress until here
        tally.fates["frame", "unexplained"] = unexplained
        status = monitor.status
        tally.fates["frame", "fused"] = status.fused
        for reason, count in status.dropped.items():
            tally.fates["frame", "dropped"] += count
            tally.reasons["frame", f"dropped: {reason}"] = count
        refused = sum(int(v) for k, v in status.areas.get("transforms", {}).items() if k.startswith("refused."))
        tally.reasons["transform", "links refused"] = refused
        tally.fates["transform", "fused"] = sent["transform"]
        for answer in answered:
            tally.fates["query", "refused" if answer.status == GroundingResult.INVALID else "answered"] += 1
    tally.seconds = time.monotonic() - start_s
    return tally


def show(tally: Tally) -> None:
    report.show("fates", tally.to_json()["kinds"])
    if tally.memory_mib:
        span = f"{tally.memory_mib[0]:.0f} ... {tally.memory_mib[-1]:.0f} MiB"
        report.console.print(f"memory {span}, {tally.growth_mib:+.1f} MiB after the first tenth")
    if tally.sentence_ms:
        report.console.print(f"sentences of the longest length, ms: {tally.sentence_times()}")
    if tally.seconds:
        report.console.print(f"{tally.inputs / tally.seconds:.0f} inputs/s; healthy: {tally.healthy}")
    for signature, fault in tally.faults.items():
        report.console.print(f"\n[bold red]unexplained[/]: {signature}", highlight=False)
        report.console.print("\n".join(fault["cases"]), soft_wrap=True, markup=False)
        report.console.print(fault["seen"], markup=False)


def main() -> int:
    """Try, print, write; exit code 1 when something is unexplained or memory grows."""
    parser = report.parser(__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument(
        "--case", action="append", default=[], help="JSON of a case, as a fault prints it; again for more"
    )
    parser.add_argument("--topics", action="store_true", help="frames, transforms and queries over real topics")
    options = report.parse(parser, inputs=400)
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # damaged images are meant here
    with tempfile.TemporaryDirectory() as folder:
        if options.case:
            given = [Case(**json.loads(text)) for text in options.case]
            tally = run(given, len(given), Path(folder), minimising=False)
        else:

            def progress(t: Tally) -> None:
                done = f"{t.inputs} inputs, {t.inputs / t.seconds:.0f}/s, {len(t.faults)} faults"
                report.console.print(f"{done}, {t.memory_mib[-1]:.0f} MiB")
                report.write(options, {"seed": options.seed, **t.to_json()})  # a run that is cut short has its figures

            on_topics = ("frame", "transform", "query")
            kinds = [k for k in options.kinds if k in on_topics or not options.topics]
            inputs = cases(options.seed, options.inputs, kinds)
            drive = over_topics if options.topics else run
            tally = drive(inputs, options.inputs, Path(folder), on_progress=progress)
    show(tally)
    report.write(options, {"seed": options.seed, **tally.to_json()})
    return 0 if tally.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
