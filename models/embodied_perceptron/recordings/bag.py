"""ROS bags (MCAP, SQLite, ROS 1) as recordings, without a ROS installation."""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_typestore

from embodied_perceptron.geometry.transforms import Intrinsics, transform_from_pose
from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.files import is_lfs_pointer
from embodied_perceptron.recordings.image_codec import (
    COLOR_ENCODINGS,
    DEPTH_ENCODINGS,
    combined_images,
    decode_color_file,
    decode_compressed_depth,
    decode_image,
)
from embodied_perceptron.recordings.packed_bags import unpack
from embodied_perceptron.recordings.recording import (
    CalibrationSample,
    ColorSample,
    DepthSample,
    LeftOut,
    RecordingError,
    Sample,
    TransformSample,
    checked_depth_scale,
)
from embodied_perceptron.sensors.camera_model import (
    CameraInfoFields,
    CameraModel,
    UnregisteredDepth,
    camera_model_from_info,
    is_same_lens,
    names_aligned_depth,
)
from embodied_perceptron.sensors.frame import canonical_depth
from embodied_perceptron.sensors.poses import (
    NS_PER_S,
    Found,
    StampJudge,
    TransformTree,
    format_stamp,
    frame_name,
    seconds_to_ns,
)
from embodied_perceptron.sensors.synchronizer import RESTART_NS, BadImage

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
_TF_MESSAGE = "tf2_msgs/msg/TFMessage"
TF_TYPES = (_TF_MESSAGE, "tf/msg/tfMessage")

_TRANSPORTS = ("/compressedDepth", "/compressed")
_WORLD_FRAMES = ("odom", "world", "map")  # the first ancestor of the camera is the default
_SCANNED_TRANSFORMS = 2000
_FORESEEN_TRANSFORMS = 5000  # range in which a clock that went back temporarily recovers
_REORDERED = 8  # messages of one topic that are sorted by stamp
_FURTHEST_AHEAD_S = 5.0  # for transforms, when one of them ends early; a transform tree keeps 10 s
_MCAP_MAGIC = b"\x89MCAP0\r\n"
_YAML_ALIAS = re.compile(r"(?:^|[\s\[{,])\*[^\s,\]}]", re.MULTILINE)


def is_bag(path: str | Path) -> bool:
    """Return True for a folder with metadata.yaml and for a file .mcap, .db3 or .bag."""
    path = Path(path)
    if path.is_dir():
        return (path / "metadata.yaml").exists()
    return path.suffix in (".mcap", ".db3", ".bag") and path.is_file()


class TopicError(RecordingError):
    """Topics are missing or do not match; the message lists the available ones."""


@dataclass(frozen=True)
class TopicSummary:
    """One topic, described by its first message.

    Attributes:
        name: of the topic.
        type: message type.
        frame_id: of the header.
        encoding: of an Image; format of a CompressedImage; otherwise empty.
        size: (width, height) of an Image or CameraInfo; None where unknown.
        lens: fx, fy, cx, cy, width, height of a CameraInfo; otherwise empty.
        count: number of messages.
        delay_s: time of recording minus stamp, of the first message.
    """

    name: str
    type: str
    frame_id: str = ""
    encoding: str = ""
    size: tuple[int, int] | None = None
    lens: tuple[float, ...] = ()
    count: int = 0
    delay_s: float = 0.0

    @property
    def is_depth(self) -> bool:
        """Return True for depth images, by encoding. 16-bit grey counts as infrared unless the topic name has
        "depth"."""
        if self.type == IMAGE:
            return self.encoding in DEPTH_ENCODINGS and (self.encoding != "mono16" or "depth" in self.name)
        if self.type == COMPRESSED_IMAGE:
            return "compressedDepth" in self.encoding or self.encoding.split(";")[0].strip() in DEPTH_ENCODINGS
        return False

    @property
    def is_color(self) -> bool:
        """Return True for colour or grey images."""
        if self.type == IMAGE:
            return self.encoding in COLOR_ENCODINGS
        return self.type == COMPRESSED_IMAGE and not self.is_depth and "compressedDepth" not in self.encoding

    @property
    def base(self) -> str:
        """Name without its transport suffix."""
        return next((self.name.removesuffix(t) for t in _TRANSPORTS if self.name.endswith(t)), self.name)

    @property
    def namespace(self) -> str:
        """Namespace in which its camera_info is expected."""
        return self.base.rsplit("/", 1)[0]


@dataclass(frozen=True)
class CameraTopics:
    """Topics of one camera."""

    name: str
    color: str
    depth: str
    camera_info: str
    depth_info: str = ""  # calibration of depth that has to be registered to colour here


class BagRecording:
    """A :class:`~embodied_perceptron.recordings.recording.Recording` from a bag.

    Messages come in the order of their stamps, not of recording: a converter may have written them topic by topic.
    Stamps that go back by more than 3 s start a new sequence. Static transforms come first, and moving ones
    :attr:`lookahead_s` ahead of the images, so that late poses are available.

    Attributes:
        lookahead_s: lead of the transforms.
        topics: all image, calibration and transform topics.
        left_out: calibrations and transforms that were skipped.
    """

    lookahead_s = 1.0
    truth: Mapping[str, Any] | None = None

    def __init__(
        self,
        path: str | Path,
        *,
        cameras: Sequence[CameraTopics] | None = None,
        world_frame: str | None = None,
        tolerate_damage: bool = False,
        tf_topic: str | None = None,
        depth_scale: float | None = None,
        intrinsics: Sequence[float] | None = None,
        static_tf: Sequence[TransformSample] = (),
    ) -> None:
        """Args:

        path: a folder with metadata.yaml, or a file.
        cameras: their topics; by default detected (:func:`detect_cameras`).
        world_frame: by default the first of odom, world, map above the camera, otherwise the root of its tree.
        tolerate_damage: images that cannot be decoded become
            :class:`~embodied_perceptron.sensors.synchronizer.BadImage` samples, bad calibrations and transforms are
            skipped and counted (:attr:`left_out`), instead of raising.
        tf_topic: topic of the moving transforms; by default the one nearest to the namespace of the cameras
            (:func:`choose_tf_topics`). With several robots, the cameras in its namespace are used.
        depth_scale: units per metre of integer depth images, by default 1000.
        intrinsics: fx, fy, cx, cy of the only camera, optionally width and height to check, instead of its camera_info;
            its images must be undistorted.
        static_tf: transforms to add to those of the bag; they take precedence.

        Raises:
            RecordingError: unreadable, truncated, or without the needed topics.
        """
        self.source = Path(path)
        self._depth_scale = checked_depth_scale(depth_scale)
        self._intrinsics = None if intrinsics is None else _checked_intrinsics(intrinsics)
        self._static_tf = tuple(static_tf)
        self.left_out = LeftOut(tolerates_damage=tolerate_damage)
        self._unpacked: tuple[Path, object] | None = None  # path that is read; temporary folder of this object
        with self._open() as reader:
            self.topics = self._summarise(reader)
            try:
                calibrated = self._intrinsics is not None
                chosen = tuple(cameras) if cameras is not None else detect_cameras(self.topics, calibrated)
                if calibrated:
                    chosen = tuple(replace(camera, camera_info="") for camera in chosen)
                self._check_topics(chosen)
                chosen = tuple(_with_depth_info(camera, self.topics) for camera in chosen)
                chosen, self._tf = choose_tf_topics(chosen, self.topics, tf_topic)
            except TopicError as error:
                raise RecordingError(f"{self.source}: {error.fault}", error.remedy) from error
            self._cameras = {camera.name: camera for camera in chosen}
            self.cameras = tuple(self._cameras)
            by_name = {topic.name: topic for topic in self.topics}
            self._frames = {c.name: by_name[c.color].frame_id for c in chosen}
            for name, frame in self._frames.items():
                if not frame:
                    raise RecordingError(f"{self.source}: images on {self._cameras[name].color} have no frame_id")
            self._count = sum(by_name[c.color].count for c in chosen)
            links, moving, tree = self._scan_transforms(reader)
            self._mounts = {camera.name: self._mount(camera, by_name, tree) for camera in chosen if camera.depth_info}
            chains = [_above(frame, links) for frame in self._frames.values()]
            self._awaited = moving.intersection(*[set().union(*chains)]) or moving
            self.world_frame = frame_name(world_frame) if world_frame else _default_world(chains[0])

    @property
    def tf_topics(self) -> tuple[str, ...]:
        """Topics of the transforms: moving ones, then static ones."""
        return (*self._tf.moving, *self._tf.static)

    def camera_topics(self, camera: str) -> CameraTopics:
        """Topics of a camera. Raises ``KeyError`` for an unknown one."""
        if camera not in self._cameras:
            raise KeyError(f"unknown camera {camera!r}; known: {', '.join(self._cameras)}")
        return self._cameras[camera]

    def says_aligned(self, camera: str) -> bool:
        """Return True for depth that counts as aligned to colour though its header may name another frame."""
        return not self.camera_topics(camera).depth_info and _says_aligned(self._cameras[camera], self.topics)

    def camera_frame(self, camera: str) -> str:
        """Optical frame of a camera. Raises ``KeyError`` for an unknown one."""
        self.camera_topics(camera)
        return self._frames[camera]

    def depth_scale(self, camera: str) -> float | None:
        """Units per metre of a camera's depth images; None where they are metres. Raises ``KeyError``."""
        topic = self.camera_topics(camera).depth
        encoding = next(t.encoding for t in self.topics if t.name == topic)
        return None if encoding.startswith(("32FC1", "64FC1")) else self._depth_scale or 1000.0

    def __len__(self) -> int:
        """Colour images over all cameras."""
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        """See :class:`~embodied_perceptron.recordings.recording.Recording`."""
        self.left_out.clear()
        with ExitStack() as stack:
            ahead = stack.enter_context(self._open())
            for topic in self._tf.static:
                yield from (sample for _, sample in self._transforms(ahead, [topic], static=True))
            yield from self._static_tf
            transforms = _TransformsAhead(
                self._transforms(ahead, self._tf.moving, static=False), self._awaited, seconds_to_ns(self.lookahead_s)
            )
            for at, sample in self._images(stack):
                yield from transforms.until(at)
                yield sample
            yield from transforms.rest()

    # ---- reading

    @contextmanager
    def _open(self) -> Iterator[AnyReader]:
        try:
            self._check_files()
            self._unpacked = self._unpacked or unpack(self.source)
            reader = AnyReader([self._unpacked[0]], default_typestore=get_typestore(Stores.LATEST))
            reader.open()
        except RecordingError:
            raise
        except Exception as error:  # the reader passes on any error that damaged bytes cause
            fault = f"{self.source} cannot be opened: {_one_line(error)}"
            raise RecordingError(fault, self._recovery_hint(error)) from error
        try:
            with LeftOut().record(self.source, self.source):  # metadata.yaml may hold any value
                for connection in reader.connections:
                    checked.text(connection.topic, "the name of a topic")
                    checked.text(connection.msgtype, f"the type of {connection.topic}")
                    checked.whole(connection.msgcount, f"the number of messages on {connection.topic}", 0, 2**62)
            yield reader
        finally:
            reader.close()

    def _files(self) -> list[Path]:
        """Return the files of the bag, found without metadata."""
        return [self.source] if self.source.is_file() else sorted(p for p in self.source.iterdir() if not p.is_dir())

    def _check_files(self) -> None:
        for path in self._files():
            if path.exists() and not path.is_file():
                raise RecordingError(f"{path} is not a regular file")
            if path.is_file() and is_lfs_pointer(path):
                raise RecordingError(f"{path} is a Git LFS pointer, not the recording", "run `git lfs pull`")
        metadata = self.source / "metadata.yaml"
        if metadata.is_file() and _YAML_ALIAS.search(metadata.read_text(encoding="utf-8", errors="replace")):
            # a few lines of aliases can expand to gigabytes
            raise RecordingError(f"{metadata} refers to itself (YAML aliases), which no recorder writes")

    def _recovery_hint(self, error: Exception) -> str:
        """Return a hint how to recover the bag, or ""."""
        for path in self._files():
            if path.suffix == ".mcap" and not _ends_with(path, _MCAP_MAGIC):
                return f"it is truncated: `mcap recover {path}` may save its contents"
            if path.suffix == ".db3" and "malformed" in str(error):
                return f"it is truncated or damaged: `sqlite3 {path} .recover` may save its contents"
            if path.suffix == ".bag" and "index" in str(error).lower():
                return f"it is truncated: `rosbag reindex {path}` may save its contents"
        if "files are missing" in str(error):
            return f"if files were renamed, `ros2 bag reindex {self.source}` writes metadata.yaml anew"
        return ""

    def _messages(self, reader: AnyReader, topics: Collection[str]) -> Iterator[tuple[str, str, int, Any]]:
        """Yield (topic, type, time of recording, message) of some topics."""
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
                    f"{self.source} is damaged or cut short: {type(error).__name__}: {_one_line(error)}",
                    self._recovery_hint(error),
                ) from error
            yield connection.topic, connection.msgtype, logged_ns, message

    def _check_definition(self, reader: AnyReader, kind: str) -> None:
        """Check that the message definitions stored in the bag have all fields that are read here."""
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
                raise RecordingError(f"{self.source} is damaged: it has no definition of {name}")
            has = {field.lower(): _kind_of_field(node) for field, node in own[name][1]}  # ROS 1 writes D, K, R, P
            for field, node in standard[usual][1]:
                if has.get(field) != _kind_of_field(node):
                    lacks = f"has no field {field!r} of {_kind_of_field(node)}"
                    raise RecordingError(f"{self.source} is damaged: its definition of {name} {lacks}")
                left.append(_kind_of_field(node).rpartition(" ")[2])

    def _summarise(self, reader: AnyReader) -> tuple[TopicSummary, ...]:
        summaries = []
        for name, info in sorted(reader.topics.items()):
            if combined_images({name: [str(info.msgtype)]}):  # for the error
                summaries.append(TopicSummary(name, str(info.msgtype), count=info.msgcount))
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
            k = getattr(message, "k", getattr(message, "K", None))
            lens = () if k is None or size is None else (float(k[0]), float(k[4]), float(k[2]), float(k[5]), *size)
            summaries.append(
                TopicSummary(
                    name=name,
                    type=info.msgtype,
                    frame_id="" if header is None else header.frame_id.removeprefix("/"),
                    delay_s=0.0 if header is None else (first[2] - message_stamp_ns(header)) / NS_PER_S,
                    encoding=getattr(message, "encoding", getattr(message, "format", "")),
                    size=size,
                    lens=lens,
                    count=info.msgcount,
                )
            )
        return tuple(summaries)

    def _check_topics(self, cameras: Sequence[CameraTopics]) -> None:
        known = {topic.name: topic for topic in self.topics}
        if not cameras:
            raise TopicError("no camera was given")
        if self._intrinsics is not None and len(cameras) > 1:
            names = ", ".join(camera.name for camera in cameras)
            raise TopicError(f"intrinsics describe one camera, the bag has {names}: give the topics of one")
        for camera in cameras:
            for role in ("color", "depth", "camera_info", "depth_info"):
                name = getattr(camera, role)
                optional = role == "depth_info" or (role == "camera_info" and self._intrinsics is not None)
                if name not in known and not (optional and not name):
                    raise TopicError(f"topic {name} ({role} of {camera.name!r}) is missing; have {', '.join(known)}")

    def _transforms(
        self, reader: AnyReader, topics: Collection[str], *, static: bool
    ) -> Iterator[tuple[int, TransformSample]]:
        """Yield (time of recording, transform), as recorded."""
        for topic, _, logged_ns, message in self._messages(reader, topics):
            for stamped in message.transforms:
                t, q = stamped.transform.translation, stamped.transform.rotation
                parent, child = stamped.header.frame_id, stamped.child_frame_id
                name = f"transform {parent!r:.100} -> {child!r:.100} at {format_stamp(logged_ns)}"
                with self.left_out.record(topic, f"{self.source}: {topic}: {name}"):
                    T = transform_from_pose(np.array([t.x, t.y, t.z]), np.array([q.x, q.y, q.z, q.w]))
                    names = frame_name(parent), frame_name(child)
                    yield logged_ns, TransformSample(message_stamp_ns(stamped.header), *names, T, static)

    def _images(self, stack: ExitStack) -> Iterator[tuple[_Place, Sample]]:
        """Yield images and calibrations of all cameras, by stamp."""
        roles: dict[str, list[tuple[str, str]]] = {}
        depth_cameras: dict[str, CameraModel] = {}  # current calibrations of unregistered depth
        for role in ("camera_info", "depth_info", "color", "depth"):  # the order within one stamp
            for name, camera_topics in self._cameras.items():
                if topic_name := getattr(camera_topics, role):  # no camera_info with given intrinsics
                    roles.setdefault(topic_name, []).append((name, role))
        # a reader has one position in its file, so each topic gets its own reader
        streams = [_by_stamp(self._messages(stack.enter_context(self._open()), [topic])) for topic in roles]
        for at, (topic, kind, message) in heapq.merge(*streams, key=lambda entry: entry[0]):
            stamp_ns = message_stamp_ns(message.header)
            for camera, role in roles[topic]:
                if role == "color":
                    image = self._guarded(topic, kind, message, _color_of)
                    if self._intrinsics is not None and not isinstance(image, BadImage):
                        yield at, CalibrationSample(stamp_ns, camera, self._given_model(image.shape[1], image.shape[0]))
                    yield at, ColorSample(stamp_ns, camera, image)
                elif role == "depth":
                    depth = self._guarded(topic, kind, message, self._depth_of)
                    if camera in self._mounts and not isinstance(depth, BadImage):
                        depth = self._in_its_camera(camera, depth, depth_cameras.get(camera))
                    yield at, DepthSample(stamp_ns, camera, depth)
                else:
                    images = self._cameras[camera].depth if role == "depth_info" else self._cameras[camera].color
                    rectified = "rect" in images.rsplit("/", 1)[-1]
                    with self.left_out.record(topic, f"{self.source}: {topic}"):
                        model = calibration_from_message(message, image_is_rectified=rectified)
                        if role == "depth_info":
                            depth_cameras[camera] = model
                        else:
                            yield at, CalibrationSample(stamp_ns, camera, model)

    def _in_its_camera(self, camera: str, depth_m: Any, model: CameraModel | None) -> UnregisteredDepth | BadImage:
        if model is None:
            return BadImage(f"depth has no calibration yet: no message on {self._cameras[camera].depth_info}")
        return UnregisteredDepth(depth_m, model, self._mounts[camera])

    def _given_model(self, width: int, height: int) -> CameraModel:
        """Build the camera model of the given intrinsics, at the given size or that of the images."""
        assert self._intrinsics is not None
        fx, fy, cx, cy, *size = self._intrinsics
        try:
            given = (int(size[0]), int(size[1])) if size else (width, height)
            return CameraModel(Intrinsics(fx, fy, cx, cy, *given))
        except ValueError as error:
            raise RecordingError(f"{self.source}: given {error}") from error

    def _depth_of(self, kind: str, message: Any) -> Any:
        raw, encoding = _raw_depth_of(kind, message)
        if self._depth_scale is None or raw.dtype != np.uint16:
            return canonical_depth(raw, encoding)
        return raw.astype(np.float32) / np.float32(self._depth_scale)

    def _guarded(self, topic: str, kind: str, message: Any, decode: Callable[[str, Any], Any]) -> Any:
        def read() -> Any:
            try:
                return decode(kind, message)
            except ValueError as error:
                at = format_stamp(message_stamp_ns(message.header))
                raise RecordingError(f"{self.source}: {topic} at {at}: {error}") from error

        return self.left_out.image(read)

    def _mount(self, camera: CameraTopics, topics: Mapping[str, TopicSummary], tree: TransformTree) -> Any:
        """Return ``T_color_depth`` of a camera whose depth is not registered."""
        color, depth = topics[camera.color].frame_id, topics[camera.depth].frame_id
        if color == depth or not depth:
            return np.eye(4)
        answer = tree.lookup(color, depth, 0)
        if not isinstance(answer, Found):
            raise RecordingError(
                f"{self.source}: {camera.depth} is in {depth!r}, {camera.color} in {color!r}: registering depth needs "
                f"the transform between them, and there is none ({answer})",
                f"add it: --static-tf {color},{depth},x,y,z,qx,qy,qz,qw",
            )
        return answer.T

    def _scan_transforms(self, reader: AnyReader) -> tuple[Mapping[str, str], set[str], TransformTree]:
        """Read the static and the first moving transforms: child -> parent, moving children, and the tree."""
        tree, moving = TransformTree(jump_s=None), set()
        static = (entry for topic in self._tf.static for entry in self._transforms(reader, [topic], static=True))
        first = islice(self._transforms(reader, self._tf.moving, static=False), _SCANNED_TRANSFORMS)
        given = ((0, sample) for sample in self._static_tf)
        for _, sample in chain(static, given, first):
            with self.left_out.record("transforms", f"{self.source}: transforms"):
                tree.insert_static(sample.parent, sample.child, sample.T_parent_child)
            if not sample.is_static:
                moving.add(sample.child)
        return tree.links, moving, tree


def _kind_of_field(node: Any) -> str:
    """Return "text", "an integer", "a number", the name of a message, or "a list of" these."""
    kind, content = node
    if kind in (Nodetype.ARRAY, Nodetype.SEQUENCE):
        return f"a list of {_kind_of_field(content[0])}"
    if kind == Nodetype.NAME:
        return str(content)
    name = content[0]
    return "text" if "string" in name else "a number" if name.startswith("float") else "an integer"


def _above(frame: str, links: Mapping[str, str]) -> list[str]:
    """Return a frame and its ancestors."""
    above = [frame]
    while above[-1] in links:
        above.append(links[above[-1]])
    return above


def _default_world(above: Sequence[str]) -> str:
    """Return the first usual world frame above a camera, otherwise the root of its tree."""
    if len(above) == 1:
        return _WORLD_FRAMES[0]  # no transforms: lookups report the missing one
    return next((frame for frame in _WORLD_FRAMES if frame in above), above[-1])


def _one_line(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.500}"


def _ends_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(magic)))
        return file.read() == magic


# --------------------------------------------------------------------------------------------------------------------
# order by stamp


_Place = tuple[int, int]  # number of restarts before, and the stamp


class _Clock:
    """Assigns places to the messages of one stream: by stamp; outliers keep their position."""

    def __init__(self) -> None:
        self._judge = StampJudge()
        self._begun = 0

    def place(self, stamp_ns: int, logged_ns: int) -> _Place:
        verdict = self._judge.judge(stamp_ns, logged_ns)
        if verdict == "moved" and abs(self._judge.shift_ns) > RESTART_NS:
            # a temporary step back was the clock of one sender
            self._begun = self._begun + 1 if self._judge.shift_ns < 0 else max(0, self._begun - 1)
        newest_ns = self._judge.newest_ns
        return self._begun, newest_ns if verdict == "odd" and newest_ns is not None else stamp_ns


def _by_stamp(
    messages: Iterable[tuple[str, str, int, Any]],
) -> Iterator[tuple[_Place, tuple[str, str, Any]]]:
    """Yield (place, (topic, type, message)) of one topic in order, if at most a few messages are out of order."""
    clock = _Clock()
    waiting: list[tuple[_Place, int, tuple[str, str, Any]]] = []
    for number, (topic, kind, logged_ns, message) in enumerate(messages):
        at = clock.place(message_stamp_ns(message.header), logged_ns)
        heapq.heappush(waiting, (at, number, (topic, kind, message)))
        if len(waiting) > _REORDERED:
            at, _, entry = heapq.heappop(waiting)
            yield at, entry
    while waiting:
        at, _, entry = heapq.heappop(waiting)
        yield at, entry


class _TransformsAhead:
    """Moving transforms, released just far enough ahead of the images to interpolate their poses.

    Args:
        source: (time of recording, transform), as recorded.
        awaited: child frames of the transforms that cameras depend on.
        lookahead_ns: lead.
    """

    def __init__(
        self, source: Iterator[tuple[int, TransformSample]], awaited: Collection[str], lookahead_ns: int
    ) -> None:
        self._source = source
        self._lookahead_ns = lookahead_ns
        self._clocks = {child: _Clock() for child in awaited}
        self._newest: dict[str, _Place] = dict.fromkeys(awaited, (-1, 0))
        self._taken: deque[tuple[_Place, TransformSample]] = deque()

    def until(self, at: _Place) -> Iterator[TransformSample]:
        """Yield the transforms that an image at this place needs."""
        enough = at[0], at[1] + self._lookahead_ns
        too_far = at[0], at[1] + seconds_to_ns(_FURTHEST_AHEAD_S)
        while self._take(1):
            newest = self._newest.values()
            if min(newest, default=enough) >= enough or max(newest, default=enough) > too_far:
                return
            if self._taken[0][0][0] > at[0] and not self._comes_back(at[0]):
                return
            place, sample = self._taken.popleft()
            if sample.child in self._newest and place[0] <= at[0]:
                self._newest[sample.child] = place
            yield sample

    def rest(self) -> Iterator[TransformSample]:
        """Yield the remaining transforms."""
        while self._take(1):
            yield self._taken.popleft()[1]

    def _comes_back(self, begun: int) -> bool:
        """Return True when the clock of a sender went back temporarily, False when the recording restarted."""
        self._take(_FORESEEN_TRANSFORMS)
        return any(place[0] <= begun for place, _ in self._taken)

    def _take(self, count: int) -> bool:
        """Buffer ``count`` transforms, or all remaining ones; return True if there are any."""
        for logged_ns, sample in islice(self._source, max(0, count - len(self._taken))):
            clock = self._clocks.get(sample.child)
            place = (0, 0) if clock is None else clock.place(sample.stamp_ns, logged_ns)
            self._taken.append((place, sample))
        return bool(self._taken)


def message_stamp_ns(header: Any) -> int:
    """Return the stamp of a message header of ROS 2, or of ROS 1 as rosbags reads it."""
    return int(header.stamp.sec) * NS_PER_S + int(header.stamp.nanosec)


def calibration_from_message(message: Any, *, image_is_rectified: bool = False) -> CameraModel:
    """Convert a ``sensor_msgs/CameraInfo`` (ROS 1 or 2) to a camera model. Raises ``ValueError`` with the field."""

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


def _raw_depth_of(kind: str, message: Any) -> tuple[Any, str]:
    """Decode (H, W) uint16 or float32 and its encoding."""
    if kind == COMPRESSED_IMAGE:
        return decode_compressed_depth(message.data, message.format)
    encoding = message.encoding
    raw = decode_image(message.height, message.width, encoding, message.step, message.is_bigendian, message.data)
    return raw, encoding


# --------------------------------------------------------------------------------------------------------------------
# assignment of topics to cameras: a pure function of topic names, types and first messages


def _checked_intrinsics(values: Sequence[float]) -> tuple[float, ...]:
    """Raise :class:`RecordingError` unless there are four or six values and the size is integer."""
    if len(values) not in (4, 6) or any(size != int(size) for size in values[4:]):
        raise RecordingError(f"intrinsics must be fx, fy, cx, cy, or these and width, height, got {list(values)}")
    return tuple(values)


def detect_cameras(topics: Sequence[TopicSummary], calibrated: bool = False) -> tuple[CameraTopics, ...]:
    """Match each colour topic with its depth topic and camera_info.

    A colour and a depth topic match when each is the best match of the other by image size, frame id, name, and raw
    before compressed. ``calibrated``: no camera_info is needed.

    Raises:
        TopicError: no colour, no depth, or no camera_info of a pair; lists the image topics.
    """
    colors = [t for t in topics if t.is_color]
    depths = [t for t in topics if t.is_depth]
    if not colors or not depths:
        lack = " and ".join(kind for kind, found in (("colour", colors), ("depth", depths)) if not found)
        raise TopicError(f"found no {lack} images; image topics: {_listed(topics)}{_what_is_supported(topics)}")
    pairs = []
    for color in colors:
        depth = max(depths, key=lambda d: _affinity(color, d))
        if max(colors, key=lambda c: _affinity(c, depth)) is color:
            pairs.append((color, depth))
    names = _camera_names([color for color, _ in pairs])
    return tuple(
        CameraTopics(name, color.name, depth.name, "" if calibrated else _camera_info_of(color, topics))
        for name, (color, depth) in zip(names, pairs, strict=True)
    )


@dataclass(frozen=True)
class TfTopics:
    """Topics of transforms; where several static topics have a transform, the last counts."""

    moving: tuple[str, ...]
    static: tuple[str, ...]


def choose_tf_topics(
    cameras: Sequence[CameraTopics], topics: Sequence[TopicSummary], wanted: str | None = None
) -> tuple[tuple[CameraTopics, ...], TfTopics]:
    """Choose the cameras and transforms of one robot: robots of one kind use the same frames in their own namespaces.

    Moving transforms are those of the topic nearest above the namespace of a camera (``/robot1/tf`` before ``/tf`` for
    ``/robot1/front/color``), otherwise of the only namespace that has some. Static ones come from every namespace above
    the camera and from that of the moving ones.

    Args:
        cameras: all detected or requested cameras.
        topics: of the bag.
        wanted: topic of the moving transforms; of several cameras those in its namespace are used, if any.

    Raises:
        TopicError: ``wanted`` does not exist; cameras of several robots; a camera with transforms of several robots.
    """
    transforms = [t.name for t in topics if t.type in TF_TYPES]
    moving = [name for name in transforms if not name.endswith("_static")]
    static = [name for name in transforms if name.endswith("_static")]
    if wanted is not None:
        if wanted not in moving:
            raise TopicError(f"topic {wanted} has no moving transforms; there are: {', '.join(moving) or 'none'}")
        own = tuple(camera for camera in cameras if _lies_in(camera.color, wanted))
        cameras, chosen = own or tuple(cameras), {wanted}
    else:
        chosen = {name for camera in cameras for name in _nearest_above(camera, moving)}
    if len(chosen) > 1 and len({_space(name) for name in chosen}) > 1:
        names, robots = ", ".join(c.name for c in cameras), ", ".join(sorted(chosen))
        raise TopicError(
            f"cameras {names} have transforms of several robots ({robots}); a map takes one robot",
            f"choose one, for example with --tf-topic {min(chosen)}",
        )
    spaces = {_space(name) for name in chosen}
    beside = [n for n in static if _space(n) in spaces or any(_lies_in(c.color, n) for c in cameras)]
    if not beside and len({_space(name) for name in static}) == 1:
        beside = static
    return tuple(cameras), TfTopics(tuple(sorted(chosen)), tuple(sorted(beside, key=lambda n: (n.count("/"), n))))


def _space(topic: str) -> str:
    """Return the namespace of a topic; that of ``/tf`` is empty."""
    return topic.rsplit("/", 1)[0]


def _lies_in(topic: str, other: str) -> bool:
    """Return True when a topic lies in the namespace of another."""
    return topic.startswith(_space(other) + "/")


def _nearest_above(camera: CameraTopics, moving: Sequence[str]) -> list[str]:
    above = [name for name in moving if _lies_in(camera.color, name)]
    spaces = {_space(name) for name in above or moving}
    if not above and len(spaces) > 1:
        raise TopicError(
            f"{camera.color} is in the namespace of none of the transforms {', '.join(moving)}",
            f"choose them, for example with --tf-topic {min(moving)}",
        )
    nearest = max(spaces, key=len, default="")
    return [name for name in above or moving if _space(name) == nearest]


def _affinity(color: TopicSummary, depth: TopicSummary) -> tuple[int, ...]:
    parts = zip(color.base.split("/"), depth.base.split("/"), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], parts))
    return (
        int(color.size is None or depth.size is None or color.size == depth.size),
        int(color.frame_id == depth.frame_id),
        common,
        int(names_aligned_depth(depth.name)),
        int("mono" not in color.encoding and "infra" not in color.name),
        int(color.type == IMAGE) + int(depth.type == IMAGE),
        min(color.count, depth.count),
    )


def _with_depth_info(camera: CameraTopics, topics: Sequence[TopicSummary]) -> CameraTopics:
    """Add the calibration topic of depth with another frame or size than colour, if there is one.

    Depth without a calibration of its own counts as registered, and so does depth with the calibration of colour, or
    of its size on a topic of aligned depth: some drivers leave the depth camera's frame in the header.
    """
    by_name = {topic.name: topic for topic in topics}
    color, depth = by_name[camera.color], by_name[camera.depth]
    infos = [t for t in topics if t.type == CAMERA_INFO]
    sizes = {color.size, *(t.size for t in infos if t.name == (camera.camera_info or f"{color.namespace}/camera_info"))}
    found = [t for t in infos if t.name == f"{depth.namespace}/camera_info" and t.frame_id == depth.frame_id]
    if camera.depth_info or not found or found[0].name == camera.camera_info or depth.namespace == color.namespace:
        return camera
    if _says_aligned(camera, topics):
        return camera
    differs = depth.frame_id != color.frame_id or found[0].size not in sizes
    return replace(camera, depth_info=found[0].name) if differs else camera


def _says_aligned(camera: CameraTopics, topics: Sequence[TopicSummary]) -> bool:
    """Return True when the name or the calibration of depth says that it has the pixels of colour."""
    by_name = {topic.name: topic for topic in topics}
    color, depth = by_name[camera.color], by_name[camera.depth]
    of_color = by_name.get(camera.camera_info or f"{color.namespace}/camera_info")
    of_depth = by_name.get(f"{depth.namespace}/camera_info")
    if of_color is not None and of_depth is not None and is_same_lens(of_depth.lens, of_color.lens):
        return of_depth is not of_color
    sizes = {size for size in (color.size, None if of_color is None else of_color.size) if size is not None}
    return names_aligned_depth(depth.name) and depth.size in sizes


def _camera_info_of(color: TopicSummary, topics: Sequence[TopicSummary]) -> str:
    infos = [t for t in topics if t.type == CAMERA_INFO]
    beside = [t for t in infos if t.name == f"{color.namespace}/camera_info"]
    same_frame = [t for t in infos if t.frame_id == color.frame_id and color.frame_id]
    for found in (beside, same_frame):
        if len(found) == 1:
            return found[0].name
    have = ", ".join(t.name for t in infos) or "none"
    raise TopicError(
        f"found no camera_info for {color.name}; CameraInfo topics: {have}",
        "record it with the images, or use --intrinsics fx,fy,cx,cy",
    )


def _camera_names(colors: Sequence[TopicSummary]) -> list[str]:
    """Name cameras by the first part of their topic where it is unique, otherwise by the namespace."""
    short = [color.base.strip("/").split("/")[0] for color in colors]
    return [
        name if short.count(name) == 1 else color.namespace.strip("/").replace("/", "_") or name
        for name, color in zip(short, colors, strict=True)
    ]


def _what_is_supported(topics: Sequence[TopicSummary]) -> str:
    """List the supported encodings when a topic has another one, and topics of types that combine images."""
    combined = combined_images({t.name: [t.type] for t in topics})
    encodings = sorted(
        {t.encoding for t in topics if t.type in (IMAGE, COMPRESSED_IMAGE) and not (t.is_color or t.is_depth)}
    )
    if combined or not encodings:
        return f"; {combined}" if combined else ""
    supported = f"colour may be {', '.join(COLOR_ENCODINGS)}, depth {', '.join(DEPTH_ENCODINGS)}, also as PNG"
    return f"; {', '.join(encodings)} cannot be read: {supported}"


def _listed(topics: Sequence[TopicSummary]) -> str:
    images = [f"{t.name} ({t.encoding or t.type})" for t in topics if t.type in (IMAGE, COMPRESSED_IMAGE)]
    return ", ".join(images) or "none"
