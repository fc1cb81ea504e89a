"""Write any sequence as an MCAP bag, as a robot would record it: images, camera_info, /tf and /tf_static."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from embodied_perceptron.geometry.transforms import rotation_to_quaternion
from embodied_perceptron.recordings.image_codec import encode_image
from embodied_perceptron.recordings.recording import (
    CalibrationSample,
    ColorSample,
    DepthSample,
    LeftOut,
    Recording,
    Sample,
    TransformSample,
)
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.poses import NS_PER_S
from embodied_perceptron_training.datasets.embodiedscan import Scan

_STORE = get_typestore(Stores.ROS2_JAZZY)
_LATCHED = Qos(
    QosHistory.KEEP_LAST, 100, QosReliability.RELIABLE, QosDurability.TRANSIENT_LOCAL, QosTime(0, 0), QosTime(0, 0),
    QosLiveliness.AUTOMATIC, QosTime(0, 0), False,
)  # fmt: skip


class ScanRecording:
    """The views of a scan as a :class:`~embodied_perceptron.recordings.recording.Recording` at a fixed rate.

    Colour is resized to the depth image where their sizes differ. Poses are those of the views; there are none between.
    """

    cameras = ("camera",)
    world_frame = "odom"

    def __init__(self, scan: Scan, rate_hz: float = 10.0) -> None:
        if not rate_hz > 0:
            raise ValueError(f"rate_hz must be positive, got {rate_hz}")
        self._scan, self._rate_hz = scan, rate_hz
        self.source = scan.images[0].color_path.parent
        self.left_out = LeftOut()  # stays empty: an unreadable view raises
        rows = zip(scan.ids.tolist(), scan.labels, scan.boxes.tolist(), strict=True)
        self.truth = {"objects": [{"id": i, "label": label, "box9": box} for i, label, box in rows]}

    def camera_frame(self, camera: str) -> str:
        """Optical frame."""
        if camera != "camera":
            raise KeyError(f"unknown camera {camera!r}; known: camera")
        return "camera_optical_frame"

    def depth_scale(self, camera: str) -> float | None:
        """Depth comes in metres."""
        return None

    def __len__(self) -> int:
        return len(self._scan.images)

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self)):
            stamp = round((index + 1) * NS_PER_S / self._rate_hz)
            view = self._scan.load_registered_view(index)
            yield TransformSample(stamp, self.world_frame, "camera_optical_frame", view.T_world_camera)
            yield CalibrationSample(stamp, "camera", CameraModel(view.depth_camera))
            yield ColorSample(stamp, "camera", view.color)
            yield DepthSample(stamp, "camera", view.depth_m)


def export_bag(
    recording: Recording, path: str | Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Write ``recording`` as an MCAP bag folder ``path``; returns the number of messages.

    ``progress`` is called with the number of colour images written, and of all.

    Topics per camera: ``/<camera>/color/image_raw``, ``/<camera>/color/camera_info``, ``/<camera>/depth/image_raw``
    (16UC1, millimetres). Samples that could not be decoded are left out. Raises ``FileExistsError`` when ``path``
    exists, and what the recording raises.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    # renamed at the end; the folder has the bag's name, which its file has too
    with tempfile.TemporaryDirectory(".tmp", f".{path.name}.", path.parent) as folder:
        count = _write_bag(recording, Path(folder) / path.name, progress)
        (Path(folder) / path.name).rename(path)
    return count


def _write_bag(recording: Recording, path: Path, progress: Callable[[int, int], None]) -> int:
    count = images = 0
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connections: dict[str, Any] = {}
        for sample in recording:
            for topic, message in _messages(sample, recording):
                kind = message.__msgtype__
                if topic not in connections:
                    qos = (_LATCHED,) if topic == "/tf_static" else ()
                    connections[topic] = writer.add_connection(topic, kind, typestore=_STORE, offered_qos_profiles=qos)
                writer.write(connections[topic], sample.stamp_ns, _STORE.serialize_cdr(message, kind))
                count += 1
            if isinstance(sample, ColorSample):
                images += 1
                progress(images, len(recording))
    return count


def _messages(sample: Sample, recording: Recording) -> Iterator[tuple[str, Any]]:
    if isinstance(sample, TransformSample):
        yield "/tf_static" if sample.is_static else "/tf", _transform(sample)
        return
    base, frame = f"/{sample.camera}", recording.camera_frame(sample.camera)
    if isinstance(sample, CalibrationSample):
        yield f"{base}/color/camera_info", _camera_info(sample.stamp_ns, frame, sample.calibration)
    elif isinstance(sample, ColorSample):
        if isinstance(sample.image, np.ndarray):
            yield f"{base}/color/image_raw", _image(sample.stamp_ns, frame, sample.image)
    elif isinstance(sample.depth_m, np.ndarray):
        finite = np.where(np.isfinite(sample.depth_m), sample.depth_m, 0)
        raw = np.rint(finite * 1000)
        raw = np.where(raw < np.iinfo(np.uint16).max, raw, 0).astype(np.uint16)
        yield f"{base}/depth/image_raw", _image(sample.stamp_ns, frame, raw)


def _make(name: str, **fields: Any) -> Any:
    return _STORE.types[name](**fields)


def _header(stamp_ns: int, frame: str) -> Any:
    stamp = _make("builtin_interfaces/msg/Time", sec=stamp_ns // NS_PER_S, nanosec=stamp_ns % NS_PER_S)
    return _make("std_msgs/msg/Header", stamp=stamp, frame_id=frame)


def _image(stamp_ns: int, frame: str, pixels: NDArray[Any]) -> Any:
    encoding, step, data = encode_image(pixels)
    return _make(
        "sensor_msgs/msg/Image",
        header=_header(stamp_ns, frame),
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding=encoding,
        is_bigendian=0,
        step=step,
        data=data,
    )


def _camera_info(stamp_ns: int, frame: str, camera: CameraModel) -> Any:
    k = camera.intrinsics
    return _make(
        "sensor_msgs/msg/CameraInfo",
        header=_header(stamp_ns, frame),
        height=k.height,
        width=k.width,
        distortion_model=camera.model,
        d=np.asarray(camera.distortion or np.zeros(5), np.float64),
        k=k.matrix.ravel(),
        r=np.eye(3).ravel(),
        p=np.hstack([k.matrix, np.zeros((3, 1))]).ravel(),
        binning_x=0,
        binning_y=0,
        roi=_make("sensor_msgs/msg/RegionOfInterest", x_offset=0, y_offset=0, height=0, width=0, do_rectify=False),
    )


def _transform(sample: TransformSample) -> Any:
    x, y, z, w = (float(v) for v in rotation_to_quaternion(sample.T_parent_child[:3, :3]))
    tx, ty, tz = (float(v) for v in sample.T_parent_child[:3, 3])
    stamped = _make(
        "geometry_msgs/msg/TransformStamped",
        header=_header(sample.stamp_ns, sample.parent),
        child_frame_id=sample.child,
        transform=_make(
            "geometry_msgs/msg/Transform",
            translation=_make("geometry_msgs/msg/Vector3", x=tx, y=ty, z=tz),
            rotation=_make("geometry_msgs/msg/Quaternion", x=x, y=y, z=z, w=w),
        ),
    )
    return _make("tf2_msgs/msg/TFMessage", transforms=[stamped])
