"""ROS messages <-> values: stamps, transforms, byte arrays, camera models. Pure functions, no node.

``maps.py`` has messages of the map, ``objects.py`` those of objects and answers.
"""

from __future__ import annotations

import array
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, Pose, Quaternion, Transform, TransformStamped, Vector3
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Header

from embodied_perceptron.geometry.transforms import F64, Intrinsics, rotation_to_quaternion, transform_from_pose
from embodied_perceptron.recordings.image_codec import (
    COLOR_ENCODINGS,
    DEPTH_ENCODINGS,
    ImageDecodeError,
    decode_color_file,
    decode_compressed_depth,
    decode_image,
)
from embodied_perceptron.sensors.camera_model import CameraInfoFields, CameraModel, camera_model_from_info
from embodied_perceptron.sensors.frame import canonical_depth
from embodied_perceptron.sensors.poses import NS_PER_S

# --------------------------------------------------------------------------------------------------------------------
# arrays, stamps, headers


def message_array(values: NDArray[Any], typecode: str = "B") -> array.array[Any]:
    """The bytes of ``values`` as ``array.array(typecode)``, the only type that message fields accept unchecked.

    For bytes, lists or numpy arrays rclpy checks each element in Python: up to 200 ms for one image instead of 0.1 ms.
    """
    result: array.array[Any] = array.array(typecode)
    result.frombytes(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return result


def stamp_to_ns(stamp: Time) -> int:
    """Nanoseconds of a message stamp."""
    return int(stamp.sec) * NS_PER_S + int(stamp.nanosec)


def ns_to_stamp(stamp_ns: int) -> Time:
    """Message stamp of non-negative nanoseconds."""
    sec, nanosec = divmod(int(stamp_ns), NS_PER_S)
    return Time(sec=sec, nanosec=nanosec)


def make_header(stamp_ns: int, frame_id: str) -> Header:
    """Header with stamp and frame."""
    return Header(stamp=ns_to_stamp(stamp_ns), frame_id=frame_id)


# --------------------------------------------------------------------------------------------------------------------
# transforms


def _vector(v: Any) -> F64:
    return np.array([v.x, v.y, v.z], dtype=np.float64)


def _quaternion(q: Quaternion) -> F64:
    return np.array([q.x, q.y, q.z, q.w], dtype=np.float64)


def transform_to_matrix(transform: Transform) -> F64:
    """geometry_msgs/Transform -> (4, 4). Raises ``ValueError`` for non-finite values and non-unit quaternions."""
    return transform_from_pose(_vector(transform.translation), _quaternion(transform.rotation))


def pose_to_matrix(pose: Pose) -> F64:
    """geometry_msgs/Pose -> (4, 4). Raises ``ValueError`` like :func:`transform_to_matrix`."""
    return transform_from_pose(_vector(pose.position), _quaternion(pose.orientation))


def matrix_to_transform(T: F64) -> Transform:
    """(4, 4) rigid transform -> geometry_msgs/Transform."""
    x, y, z, w = (float(v) for v in rotation_to_quaternion(T[:3, :3]))
    return Transform(
        translation=Vector3(x=float(T[0, 3]), y=float(T[1, 3]), z=float(T[2, 3])),
        rotation=Quaternion(x=x, y=y, z=z, w=w),
    )


def matrix_to_pose(T: F64) -> Pose:
    """(4, 4) rigid transform -> geometry_msgs/Pose."""
    x, y, z, w = (float(v) for v in rotation_to_quaternion(T[:3, :3]))
    return Pose(
        position=Point(x=float(T[0, 3]), y=float(T[1, 3]), z=float(T[2, 3])),
        orientation=Quaternion(x=x, y=y, z=z, w=w),
    )


def make_transform_stamped(T_parent_child: F64, stamp_ns: int, parent: str, child: str) -> TransformStamped:
    """(4, 4) pose of ``child`` in ``parent`` -> geometry_msgs/TransformStamped."""
    return TransformStamped(
        header=make_header(stamp_ns, parent), child_frame_id=child, transform=matrix_to_transform(T_parent_child)
    )


# --------------------------------------------------------------------------------------------------------------------
# images


def make_image(pixels: NDArray[Any], encoding: str, stamp_ns: int, frame_id: str) -> Image:
    """(H, W) or (H, W, C) array -> sensor_msgs/Image; the array's dtype and channels must fit ``encoding``."""
    pixels = np.ascontiguousarray(pixels)
    height, width = pixels.shape[:2]
    message = Image(
        header=make_header(stamp_ns, frame_id),
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=int(pixels.dtype.byteorder == ">"),
        step=pixels.nbytes // height,
    )
    message.data = message_array(pixels)
    return message


def color_from_message(message: Image | CompressedImage) -> NDArray[np.uint8]:
    """Image or CompressedImage -> (H, W, 3) uint8 RGB; may share the message's memory.

    Raises ``ValueError`` naming the encoding, size or defect.
    """
    if isinstance(message, CompressedImage):
        return decode_color_file(message.data)
    if message.encoding not in COLOR_ENCODINGS:
        raise ImageDecodeError(f"colour encoding {message.encoding!r} is none of {', '.join(COLOR_ENCODINGS)}")
    return _raw_image(message)


def depth_from_message(message: Image | CompressedImage) -> NDArray[np.float32]:
    """Image or CompressedImage -> (H, W) float32 canonical depth in metres; the encoding defines the unit.

    Raises ``ValueError`` naming the encoding, size or defect.
    """
    if isinstance(message, CompressedImage):
        return canonical_depth(*decode_compressed_depth(message.data, message.format))
    if message.encoding not in DEPTH_ENCODINGS:
        raise ImageDecodeError(f"depth encoding {message.encoding!r} is none of {', '.join(DEPTH_ENCODINGS)}")
    return canonical_depth(_raw_image(message), message.encoding)


def _raw_image(message: Image) -> NDArray[Any]:
    return decode_image(
        message.height, message.width, message.encoding, message.step, message.is_bigendian, message.data
    )


# --------------------------------------------------------------------------------------------------------------------
# camera models


def camera_model(info: CameraInfo, rectified: bool = False) -> CameraModel:
    """sensor_msgs/CameraInfo -> model of the camera.

    ``rectified``: the images are rectified (an ``image_rect`` topic), so P is used, not K and D. Raises ``ValueError``
    for unusable intrinsics, an unknown distortion model or a wrong number of coefficients.
    """
    roi = info.roi
    fields = CameraInfoFields(
        width=info.width,
        height=info.height,
        k=info.k,
        distortion_model=info.distortion_model,
        d=info.d,
        binning=(info.binning_x, info.binning_y),
        roi=(roi.x_offset, roi.y_offset, roi.width, roi.height),
        p=info.p,
    )
    return camera_model_from_info(fields, rectified)


def camera_info_key(info: CameraInfo) -> tuple[Any, ...]:
    """Hashable key of all values that :func:`camera_model` uses."""
    roi = info.roi
    return (
        info.width,
        info.height,
        info.distortion_model,
        info.d.tobytes(),
        info.k.tobytes(),
        info.p.tobytes(),
        (info.binning_x, info.binning_y, roi.x_offset, roi.y_offset, roi.width, roi.height),
    )


def make_camera_info(camera: Intrinsics | CameraModel, stamp_ns: int, frame_id: str) -> CameraInfo:
    """Camera -> sensor_msgs/CameraInfo."""
    model = camera if isinstance(camera, CameraModel) else CameraModel(camera)
    intrinsics = model.intrinsics
    K = intrinsics.matrix
    P = np.hstack([K, np.zeros((3, 1))])
    return CameraInfo(
        header=make_header(stamp_ns, frame_id),
        width=intrinsics.width,
        height=intrinsics.height,
        distortion_model=model.model,
        d=list(model.distortion) or [0.0] * 5,
        k=K.ravel(),
        r=np.eye(3).ravel(),
        p=P.ravel(),
    )
