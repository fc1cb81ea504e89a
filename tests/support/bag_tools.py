"""Writes small bags for tests: messages as a robot would record them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from embodied_perceptron.geometry.transforms import Intrinsics, rotation_to_quaternion
from embodied_perceptron.recordings.image_codec import encode_image

STORE = get_typestore(Stores.ROS2_JAZZY)


def make(name: str, **fields: Any) -> Any:
    return STORE.types[name](**fields)


def header(stamp_ns: int, frame_id: str) -> Any:
    stamp = make("builtin_interfaces/msg/Time", sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    return make("std_msgs/msg/Header", stamp=stamp, frame_id=frame_id)


def image(stamp_ns: int, frame_id: str, pixels: np.ndarray, **changes: Any) -> Any:
    encoding, step, data = encode_image(pixels)
    fields = {"encoding": encoding, "is_bigendian": 0, "step": step, "data": data}
    height, width = pixels.shape[:2]
    fields |= {"header": header(stamp_ns, frame_id), "height": height, "width": width}
    return make("sensor_msgs/msg/Image", **(fields | changes))


def compressed(stamp_ns: int, frame_id: str, format: str, data: bytes) -> Any:
    flat = np.frombuffer(data, np.uint8)
    return make("sensor_msgs/msg/CompressedImage", header=header(stamp_ns, frame_id), format=format, data=flat)


def camera_info(stamp_ns: int, frame_id: str, camera: Intrinsics, **changes: Any) -> Any:
    roi = make("sensor_msgs/msg/RegionOfInterest", x_offset=0, y_offset=0, height=0, width=0, do_rectify=False)
    fields = {
        "header": header(stamp_ns, frame_id),
        "height": camera.height,
        "width": camera.width,
        "distortion_model": "plumb_bob",
        "d": np.zeros(5),
        "k": camera.matrix.ravel(),
        "r": np.eye(3).ravel(),
        "p": np.hstack([camera.matrix, np.zeros((3, 1))]).ravel(),
        "binning_x": 0,
        "binning_y": 0,
        "roi": roi,
    }
    return make("sensor_msgs/msg/CameraInfo", **(fields | changes))


def transform(stamp_ns: int, parent: str, child: str, T: np.ndarray, **rotation: float) -> Any:
    q = dict(zip("xyzw", map(float, rotation_to_quaternion(T[:3, :3])), strict=True)) | rotation
    stamped = make(
        "geometry_msgs/msg/TransformStamped",
        header=header(stamp_ns, parent),
        child_frame_id=child,
        transform=make(
            "geometry_msgs/msg/Transform",
            translation=make("geometry_msgs/msg/Vector3", **dict(zip("xyz", map(float, T[:3, 3]), strict=True))),
            rotation=make("geometry_msgs/msg/Quaternion", **q),
        ),
    )
    return make("tf2_msgs/msg/TFMessage", transforms=[stamped])


def write_bag(
    path: Path,
    messages: list[tuple[str, int, Any]],
    storage: StoragePlugin = StoragePlugin.MCAP,
    compressed_by: CompressionMode | None = None,
) -> Path:
    """``messages``: (topic, time of recording, message)."""
    writer = Writer(path, version=9, storage_plugin=storage)
    if compressed_by is not None:
        writer.set_compression(compressed_by, CompressionFormat.ZSTD)
    _write_all(writer, messages, STORE, STORE.serialize_cdr)
    return path


def _write_all(writer: Any, messages: list[tuple[str, int, Any]], store: Any, serialize: Any) -> None:
    with writer:
        connections: dict[str, Any] = {}
        for topic, logged_ns, message in messages:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], logged_ns, serialize(message, kind))


def as_ros1(message: Any, store: Any) -> Any:
    """The same message with ROS 1 types: a sequence number in headers, upper-case calibration."""
    if isinstance(message, np.ndarray) or not hasattr(message, "__msgtype__"):
        return [as_ros1(m, store) for m in message] if isinstance(message, list) else message
    kind = store.types[message.__msgtype__]
    values = {}
    for name in kind.__dataclass_fields__:
        ours = name if hasattr(message, name) else name.lower()  # D K R P
        if name != "__msgtype__":
            values[name] = 0 if name == "seq" else as_ros1(getattr(message, ours), store)
    return kind(**values)


def ros1_store() -> Any:
    """The types of ROS 1, and TFMessage of tf2."""
    store = get_typestore(Stores.ROS1_NOETIC)
    store.register(get_types_from_msg("geometry_msgs/TransformStamped[] transforms", "tf2_msgs/msg/TFMessage"))
    return store


def write_ros1_bag(path: Path, messages: list[tuple[str, int, Any]], compressed_by: Any = None) -> Path:
    """``messages``: (topic, time of recording, message of ROS 2)."""
    store = ros1_store()
    writer = Ros1Writer(path)
    if compressed_by is not None:
        writer.set_compression(compressed_by)
    _write_all(writer, messages, store, lambda message, kind: store.serialize_ros1(as_ros1(message, store), kind))
    return path
