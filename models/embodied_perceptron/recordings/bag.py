"""ROS bags (MCAP, SQLite, ROS 1) as recordings, without a ROS installation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from embodied_perceptron.geometry.transforms import transform_from_pose
from embodied_perceptron.recordings.image_codec import (
    COLOR_ENCODINGS,
    DEPTH_ENCODINGS,
    decode_color_file,
    decode_compressed_depth,
    decode_image,
)
from embodied_perceptron.recordings.recording import (
    CalibrationSample,
    ColorSample,
    DepthSample,
    RecordingError,
    Sample,
    TransformSample,
)
from embodied_perceptron.sensors.camera_model import CameraInfoFields, CameraModel, camera_model_from_info
from embodied_perceptron.sensors.frame import canonical_depth
from embodied_perceptron.sensors.poses import NS_PER_S, TransformTree, format_stamp, frame_name, seconds_to_ns
from embodied_perceptron.sensors.synchronizer import BadImage

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
_TF_MESSAGE = "tf2_msgs/msg/TFMessage"
TF_TYPES = (_TF_MESSAGE, "tf/msg/tfMessage")

_TRANSPORTS = ("/compressedDepth", "/compressed")
_REGISTERED = ("aligned", "registered", "depth_to_rgb", "depth_to_color")
_WORLD_FRAMES = ("odom", "world", "map")  # the first that is above the camera is the default
_SCANNED_TRANSFORMS = 2000
_RECOVER = "if the recording was cut off, `mcap recover` or `ros2 bag reindex` may save what is there"


def is_bag(path: str | Path) -> bool:
    """Whether ``path`` looks like a bag: a folder with metadata.yaml, or a file .mcap, .db3 or .bag."""
    path = Path(path)
    return (path / "metadata.yaml").exists() if path.is_dir() else path.suffix in (".mcap", ".db3", ".bag")


class TopicError(ValueError):
    """Topics that are missing or do not fit together; the message lists what there is."""


@dataclass(frozen=True)
class TopicSummary:
    """One topic, as its first message shows it.

    Attributes:
        name: of the topic.
        type: message type.
        frame_id: of the header.
        encoding: of an Image; format of a CompressedImage; otherwise empty.
        size: (width, height) of an Image or CameraInfo, None where the message does not say.
        count: messages.
        delay_s: time of recording minus stamp, of the first message.
    """

    name: str
    type: str
    frame_id: str = ""
    encoding: str = ""
    size: tuple[int, int] | None = None
    count: int = 0
    delay_s: float = 0.0

    @property
    def is_depth(self) -> bool:
        """Whether its images are depth: decided by encoding, never by name (but a plain PNG may be either)."""
        if self.type == IMAGE:
            return self.encoding in DEPTH_ENCODINGS
        if self.type == COMPRESSED_IMAGE:
            return "compressedDepth" in self.encoding or self.encoding.split(";")[0].strip() in DEPTH_ENCODINGS
        return False

    @property
    def is_color(self) -> bool:
        """Whether its images are colour or grey."""
        if self.type == IMAGE:
            return self.encoding in COLOR_ENCODINGS
        return self.type == COMPRESSED_IMAGE and not self.is_depth

    @property
    def base(self) -> str:
        """Name without its transport suffix."""
        return next((self.name.removesuffix(t) for t in _TRANSPORTS if self.name.endswith(t)), self.name)

    @property
    def namespace(self) -> str:
        """Where its camera_info is expected beside it."""
        return self.base.rsplit("/", 1)[0]


@dataclass(frozen=True)
class CameraTopics:
    """Topics of one camera."""

    name: str
    color: str
    depth: str
    camera_info: str


class BagRecording:
    """A :class:`~embodied_perceptron.recordings.recording.Recording` from a bag.

    Messages come in the order in which they were recorded; their own stamps count. All static transforms come first,
    and moving ones :attr:`lookahead_s` ahead of the images, so that a pose that was recorded a little late is there.

    Attributes:
        lookahead_s: by how much transforms run ahead.
        skipped: messages that were left out by topic (``tolerate_damage``).
    """

    lookahead_s = 1.0

    def __init__(
        self,
        path: str | Path,
        *,
        cameras: Sequence[CameraTopics] | None = None,
        world_frame: str | None = None,
        tolerate_damage: bool = False,
    ) -> None:
        """Args:

        path: a folder with metadata.yaml, or a file.
        cameras: their topics; by default they are found (:func:`detect_cameras`).
        world_frame: by default the first of odom, world, map that is above the camera, otherwise the top of its tree.
        tolerate_damage: images that cannot be decoded become
            :class:`~embodied_perceptron.sensors.synchronizer.BadImage` samples, bad calibrations and transforms are
            left out and counted, instead of raising.

        Raises:
            RecordingError: unreadable, cut short, or without the topics that are needed.
        """
        self._path = Path(path)
        self._tolerate_damage = tolerate_damage
        self.skipped: Counter[str] = Counter()
        with self._open() as reader:
            self._topics = self._summarise(reader)
            try:
                chosen = tuple(cameras) if cameras is not None else detect_cameras(self._topics)
                self._check_topics(chosen)
            except TopicError as error:
                raise RecordingError(f"{self._path}: {error}") from error
            self._cameras = {camera.name: camera for camera in chosen}
            by_name = {topic.name: topic for topic in self._topics}
            self._frames = {c.name: by_name[c.color].frame_id for c in chosen}
            for name, frame in self._frames.items():
                if not frame:
                    raise RecordingError(f"{self._path}: images on {self._cameras[name].color} have no frame_id")
            self._count = sum(by_name[c.color].count for c in chosen)
            self._world_frame = frame_name(world_frame) if world_frame else self._find_world_frame(reader)

    @property
    def source(self) -> Path:
        """The folder or file."""
        return self._path

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras."""
        return tuple(self._cameras)

    @property
    def topics(self) -> tuple[TopicSummary, ...]:
        """All image, calibration and transform topics."""
        return self._topics

    @property
    def world_frame(self) -> str:
        """Fixed frame in which poses are given."""
        return self._world_frame

    @property
    def truth(self) -> Mapping[str, Any] | None:
        """Bags know none."""
        return None

    def camera_topics(self, camera: str) -> CameraTopics:
        """Topics of a camera. Raises ``KeyError`` for an unknown one."""
        if camera not in self._cameras:
            raise KeyError(f"unknown camera {camera!r}; known: {', '.join(self._cameras)}")
        return self._cameras[camera]

    def camera_frame(self, camera: str) -> str:
        """Optical frame of a camera. Raises ``KeyError`` for an unknown one."""
        self.camera_topics(camera)
        return self._frames[camera]

    def __len__(self) -> int:
        """Colour images over all cameras."""
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        """See :class:`~embodied_perceptron.recordings.recording.Recording`."""
        self.skipped.clear()
        lookahead_ns = seconds_to_ns(self.lookahead_s)
        # a reader has one position in its file: transforms that run ahead need another
        with self._open() as images, self._open() as ahead:
            yield from (sample for _, sample in self._transforms(ahead, static=True))
            transforms = self._transforms(ahead, static=False)
            pending = next(transforms, None)
            for logged_ns, sample in self._images(images):
                while pending is not None and pending[0] <= logged_ns + lookahead_ns:
                    yield pending[1]
                    pending = next(transforms, None)
                yield sample
            if pending is not None:
                yield pending[1]
            yield from (sample for _, sample in transforms)

    # ---- reading

    @contextmanager
    def _open(self) -> Iterator[AnyReader]:
        try:
            reader = AnyReader([self._path], default_typestore=get_typestore(Stores.LATEST))
            reader.open()
        except Exception as error:  # the reader lets through whatever damaged bytes provoke
            raise RecordingError(f"{self._path} cannot be opened: {error}; {_RECOVER}") from error
        try:
            yield reader
        finally:
            reader.close()

    def _messages(self, reader: AnyReader, topics: Collection[str]) -> Iterator[tuple[str, str, int, Any]]:
        """(topic, type, time of recording, message) of some topics."""
        connections = [c for c in reader.connections if c.topic in topics]
        if not connections:
            return
        source = reader.messages(connections=connections)
        while True:
            try:
                connection, logged_ns, raw = next(source)
                message = reader.deserialize(raw, connection.msgtype)
            except StopIteration:
                return
            except Exception as error:
                raise RecordingError(
                    f"{self._path} is damaged or cut short: {type(error).__name__}: {error}; {_RECOVER}"
                ) from error
            yield connection.topic, connection.msgtype, logged_ns, message

    def _check_definition(self, reader: AnyReader, kind: str) -> None:
        """Bags bring the definitions of their messages with them; those of a damaged one may lack what is read here."""
        standard = get_typestore(Stores.LATEST).fielddefs
        own = reader.typestore.fielddefs
        left, seen = [kind], set[str]()
        while left:
            name = left.pop()
            usual = _TF_MESSAGE if name in TF_TYPES else name
            if name in seen or usual not in standard:
                continue
            seen.add(name)
            if name not in own:
                raise RecordingError(f"{self._path}: it has no definition of {name}; {_RECOVER}")
            has = {field.lower() for field, _ in own[name][1]}  # ROS 1 writes D, K, R, P
            for field, node in standard[usual][1]:
                if field not in has:
                    raise RecordingError(f"{self._path}: its definition of {name} has no field {field!r}; {_RECOVER}")
                description: Any = node
                while isinstance(description, tuple) and not isinstance(description[1], str):
                    description = description[1][0]  # of what sequences and arrays are; a string for plain numbers
                if isinstance(description, tuple):
                    left.append(description[1])

    def _summarise(self, reader: AnyReader) -> tuple[TopicSummary, ...]:
        summaries = []
        for name, info in sorted(reader.topics.items()):
            if info.msgtype not in (IMAGE, COMPRESSED_IMAGE, CAMERA_INFO, *TF_TYPES):
                continue
            self._check_definition(reader, str(info.msgtype))
            first = next(self._messages(reader, [name]), None)
            if first is None:
                continue
            message = first[3]
            transforms = getattr(message, "transforms", None)
            header = transforms[0].header if transforms else getattr(message, "header", None)
            size = (int(message.width), int(message.height)) if hasattr(message, "width") else None
            summaries.append(
                TopicSummary(
                    name=name,
                    type=info.msgtype,
                    frame_id="" if header is None else header.frame_id.removeprefix("/"),
                    delay_s=0.0 if header is None else (first[2] - message_stamp_ns(header)) / NS_PER_S,
                    encoding=getattr(message, "encoding", getattr(message, "format", "")),
                    size=size,
                    count=info.msgcount,
                )
            )
        return tuple(summaries)

    def _check_topics(self, cameras: Sequence[CameraTopics]) -> None:
        known = {topic.name: topic for topic in self._topics}
        if not cameras:
            raise TopicError("no camera was given")
        for camera in cameras:
            for role, name in (("color", camera.color), ("depth", camera.depth), ("camera_info", camera.camera_info)):
                if name not in known:
                    raise TopicError(f"topic {name} ({role} of {camera.name!r}) is not there; have {', '.join(known)}")

    def _tf_topics(self, *, static: bool) -> list[str]:
        return [t.name for t in self._topics if t.type in TF_TYPES and t.name.endswith("_static") == static]

    def _transforms(self, reader: AnyReader, *, static: bool) -> Iterator[tuple[int, TransformSample]]:
        for topic, _, logged_ns, message in self._messages(reader, self._tf_topics(static=static)):
            for stamped in message.transforms:
                t, q = stamped.transform.translation, stamped.transform.rotation
                parent, child = stamped.header.frame_id, stamped.child_frame_id
                try:
                    T = transform_from_pose(np.array([t.x, t.y, t.z]), np.array([q.x, q.y, q.z, q.w]))
                    names = frame_name(parent), frame_name(child)
                except ValueError as error:
                    self._complain(topic, f"transform {parent!r} -> {child!r} at {format_stamp(logged_ns)}: {error}")
                    continue
                yield logged_ns, TransformSample(message_stamp_ns(stamped.header), *names, T, static)

    def _images(self, reader: AnyReader) -> Iterator[tuple[int, Sample]]:
        roles: dict[str, list[tuple[str, str]]] = {}
        for name, camera_topics in self._cameras.items():
            for role in ("color", "depth", "camera_info"):
                roles.setdefault(getattr(camera_topics, role), []).append((name, role))
        for topic, kind, logged_ns, message in self._messages(reader, roles):
            stamp_ns = message_stamp_ns(message.header)
            for camera, role in roles[topic]:
                if role == "color":
                    yield logged_ns, ColorSample(stamp_ns, camera, self._guarded(topic, kind, message, _color_of))
                elif role == "depth":
                    yield logged_ns, DepthSample(stamp_ns, camera, self._guarded(topic, kind, message, _depth_of))
                else:
                    rectified = "rect" in self._cameras[camera].color.rsplit("/", 1)[-1]
                    try:
                        model = calibration_from_message(message, image_is_rectified=rectified)
                    except ValueError as error:
                        self._complain(topic, str(error))
                        continue
                    yield logged_ns, CalibrationSample(stamp_ns, camera, model)

    def _guarded(self, topic: str, kind: str, message: Any, decode: Callable[[str, Any], Any]) -> Any:
        try:
            return decode(kind, message)
        except ValueError as error:
            text = f"{topic} at {format_stamp(message_stamp_ns(message.header))}: {error}"
            if not self._tolerate_damage:
                raise RecordingError(f"{self._path}: {text}") from error
            return BadImage(text)

    def _complain(self, topic: str, text: str) -> None:
        if not self._tolerate_damage:
            raise RecordingError(f"{self._path}: {topic}: {text}")
        self.skipped[topic] += 1

    def _find_world_frame(self, reader: AnyReader) -> str:
        """The default world frame, from the static transforms and the first moving ones."""
        tree = TransformTree(jump_s=None)
        camera = next(iter(self._frames.values()))
        scanned = 0
        for static in (True, False):
            for _, sample in self._transforms(reader, static=static):
                try:
                    tree.insert_static(sample.parent, sample.child, sample.T_parent_child)
                except ValueError as error:
                    self._complain("transforms", str(error))
                scanned += 1
                if not static and scanned > _SCANNED_TRANSFORMS:
                    break
        above = [camera]
        links = tree.links
        while above[-1] in links:
            above.append(links[above[-1]])
        if len(above) == 1:
            return _WORLD_FRAMES[0]  # no transforms: lookups answer with the missing link
        return next((frame for frame in _WORLD_FRAMES if frame in above), above[-1])


def message_stamp_ns(header: Any) -> int:
    """Stamp of a message header of ROS 2 (``nanosec``) or of ROS 1 as rosbags reads it."""
    return int(header.stamp.sec) * NS_PER_S + int(header.stamp.nanosec)


def calibration_from_message(message: Any, *, image_is_rectified: bool = False) -> CameraModel:
    """A ``sensor_msgs/CameraInfo`` (ROS 1 or 2) -> camera model. Raises ``ValueError`` naming the field."""

    def field(name: str) -> Any:
        return getattr(message, name) if hasattr(message, name) else getattr(message, name.upper())

    roi = message.roi
    info = CameraInfoFields(
        width=message.width,
        height=message.height,
        k=[float(v) for v in field("k")],
        distortion_model=message.distortion_model,
        d=[float(v) for v in field("d")],
        p=[float(v) for v in field("p")],
        binning=(message.binning_x, message.binning_y),
        roi=(roi.x_offset, roi.y_offset, roi.width, roi.height),
    )
    return camera_model_from_info(info, image_is_rectified)


def _color_of(kind: str, message: Any) -> Any:
    if kind == COMPRESSED_IMAGE:
        return decode_color_file(message.data)
    image = decode_image(
        message.height, message.width, message.encoding, message.step, message.is_bigendian, message.data
    )
    if image.ndim != 3:
        raise ValueError(f"colour image has the depth encoding {message.encoding!r}")
    return image


def _depth_of(kind: str, message: Any) -> Any:
    if kind == COMPRESSED_IMAGE:
        raw, encoding = decode_compressed_depth(message.data, message.format)
    else:
        encoding = message.encoding
        raw = decode_image(message.height, message.width, encoding, message.step, message.is_bigendian, message.data)
    return canonical_depth(raw, encoding)


# --------------------------------------------------------------------------------------------------------------------
# which topics belong to which camera: a pure function of topic names, types and first messages


def detect_cameras(topics: Sequence[TopicSummary]) -> tuple[CameraTopics, ...]:
    """Find the cameras: each colour topic with its depth topic and its camera_info.

    A colour and a depth topic belong together when each is the other's best match by image size, frame id (registered
    depth has the colour camera's), name, and raw before compressed.

    Raises:
        TopicError: no colour, no depth, or no camera_info for a pair; lists the image topics.
    """
    colors = [t for t in topics if t.is_color]
    depths = [t for t in topics if t.is_depth]
    if not colors or not depths:
        lack = " and ".join(kind for kind, found in (("colour", colors), ("depth", depths)) if not found)
        raise TopicError(f"found no {lack} images; image topics: {_listed(topics)}")
    pairs = []
    for color in colors:
        depth = max(depths, key=lambda d: _affinity(color, d))
        if max(colors, key=lambda c: _affinity(c, depth)) is color:
            pairs.append((color, depth))
    names = _camera_names([color for color, _ in pairs])
    return tuple(
        CameraTopics(name, color.name, depth.name, _camera_info_of(color, topics))
        for name, (color, depth) in zip(names, pairs, strict=True)
    )


def _affinity(color: TopicSummary, depth: TopicSummary) -> tuple[int, ...]:
    parts = zip(color.base.split("/"), depth.base.split("/"), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], parts))
    return (
        int(color.size is None or depth.size is None or color.size == depth.size),
        int(color.frame_id == depth.frame_id),
        common,
        int(any(word in depth.name for word in _REGISTERED)),
        int("mono" not in color.encoding and "infra" not in color.name),
        int(color.type == IMAGE) + int(depth.type == IMAGE),
        min(color.count, depth.count),
    )


def _camera_info_of(color: TopicSummary, topics: Sequence[TopicSummary]) -> str:
    infos = [t for t in topics if t.type == CAMERA_INFO]
    beside = [t for t in infos if t.name == f"{color.namespace}/camera_info"]
    same_frame = [t for t in infos if t.frame_id == color.frame_id and color.frame_id]
    for found in (beside, same_frame):
        if len(found) == 1:
            return found[0].name
    have = ", ".join(t.name for t in infos) or "none"
    raise TopicError(f"found no camera_info for {color.name}; CameraInfo topics: {have}")


def _camera_names(colors: Sequence[TopicSummary]) -> list[str]:
    """First part of the topic where that is unique, otherwise the whole namespace."""
    short = [color.base.strip("/").split("/")[0] for color in colors]
    return [
        name if short.count(name) == 1 else color.namespace.strip("/").replace("/", "_") or name
        for name, color in zip(short, colors, strict=True)
    ]


def _listed(topics: Sequence[TopicSummary]) -> str:
    images = [f"{t.name} ({t.encoding or t.type})" for t in topics if t.type in (IMAGE, COMPRESSED_IMAGE)]
    return ", ".join(images) or "none"
