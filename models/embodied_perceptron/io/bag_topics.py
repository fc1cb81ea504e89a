"""Which topics of a bag belong to which camera: a pure function of topic names, types and first messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from embodied_perceptron.io.image_codec import COLOR_ENCODINGS, DEPTH_ENCODINGS

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"

_TRANSPORTS = ("/compressedDepth", "/compressed")
_REGISTERED = ("aligned", "registered", "depth_to_rgb", "depth_to_color")


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
