"""Camera calibration: undistortion to a pinhole camera, and registration of depth to colour.

The rest of the library uses :class:`~embodied_perceptron.geometry.transforms.Intrinsics`, a pinhole without distortion.
Images of a distorted camera are resampled once, here; unknown distortion models are refused by name. Model names and
parameter orders are those of ``sensor_msgs/CameraInfo`` and OpenCV; :func:`standard_distortion` converts those of
drivers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import F64, Intrinsics, check_transform

# number of coefficients of each model
_COEFFICIENTS = {
    "plumb_bob": (4, 5),  # k1 k2 p1 p2 [k3]
    "rational_polynomial": (8, 12, 14),  # k1 k2 p1 p2 k3 k4 k5 k6 [s1..s4 [tau_x tau_y]]
    "equidistant": (4,),  # k1..k4, OpenCV's fisheye
}
SUPPORTED_MODELS = tuple(_COEFFICIENTS)
# names used by drivers and calibration tools, in lower case without separators
_POLYNOMIAL_NAMES = frozenset(
    {
        *("plumbbob", "brownconrady", "modifiedbrownconrady", "brown", "radtan", "radialtangential", "pinholeradtan"),
        *("opencv", "rationalpolynomial", "rational", "brownconradyk6"),
    }
)
_FISHEYE_NAMES = frozenset(
    {"equidistant", "equi", "fisheye", "opencvfisheye", "kannalabrandt", "kannalabrandt4", "kb4"}
)
# topics of drivers whose depth has the pixels of colour
_ALIGNED = re.compile(r"(?<!un)aligned|(?<!un)registered|depth_to_(rgb|color)")
_SAME_LENS_PX = 1e-3  # of K: two lenses never agree so well
_EDGE_POINTS = 9  # of a box that is undistorted


@dataclass(frozen=True)
class CameraModel:
    """A pinhole camera with distortion.

    Attributes:
        intrinsics: of the undistorted images that :meth:`rectify` makes (same size and same K as the raw ones).
        model: one of :data:`SUPPORTED_MODELS`.
        distortion: coefficients in the model's order; empty or all zero = no distortion.

    Raises ``ValueError`` naming the model or the coefficients.
    """

    intrinsics: Intrinsics
    model: str = "plumb_bob"
    distortion: tuple[float, ...] = ()
    _maps: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.is_distorted:
            return
        if self.model not in _COEFFICIENTS:
            raise ValueError(
                f"distortion model {self.model!r} is not supported (supported: {', '.join(SUPPORTED_MODELS)}); "
                "publish rectified images"
            )
        if not np.isfinite(self.distortion).all():
            raise ValueError(f"distortion coefficients must be finite, got {list(self.distortion)}")
        if len(self.distortion) not in _COEFFICIENTS[self.model]:
            raise ValueError(
                f"distortion model {self.model!r} has {' or '.join(map(str, _COEFFICIENTS[self.model]))} "
                f"coefficients, got {len(self.distortion)}: {list(self.distortion)}"
            )

    @property
    def is_distorted(self) -> bool:
        """True when images must be resampled."""
        return any(d != 0 for d in self.distortion)  # NaN != 0, and is refused above

    def rectify(
        self, color: NDArray[np.uint8], depth_m: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Undistort (H, W, 3) colour (bilinear) and (H, W) depth (nearest, so that surfaces do not mix).

        Pixels outside of the raw image are black with unknown depth. Returns the arguments without distortion.
        """
        return self.rectify_color(color), self.rectify_depth(depth_m)

    def rectify_color(self, color: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Undistort (H, W, 3) colour, see :meth:`rectify`."""
        if not self.is_distorted:
            return color
        return np.asarray(cv2.remap(color, *self._undistortion_maps(), cv2.INTER_LINEAR), dtype=np.uint8)

    def rectify_depth(self, depth_m: NDArray[np.float32]) -> NDArray[np.float32]:
        """Undistort (H, W) depth, see :meth:`rectify`."""
        if not self.is_distorted:
            return depth_m
        return np.asarray(cv2.remap(depth_m, *self._undistortion_maps(), cv2.INTER_NEAREST), dtype=np.float32)

    def undistort_boxes(self, boxes_px: F64) -> F64:
        """Convert (N, 4) boxes in the raw image to the boxes around them in the rectified one.

        Points along all four edges are moved, because distortion bends them. Non-finite boxes become NaN.
        """
        boxes = np.asarray(boxes_px, dtype=np.float64).reshape(-1, 4)
        if not self.is_distorted or len(boxes) == 0:
            return boxes
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(boxes).all(axis=1))
        across, down = (a.reshape(-1) for a in np.meshgrid(*[np.linspace(0.0, 1.0, _EDGE_POINTS)] * 2))
        rim = (across % 1 == 0) | (down % 1 == 0)
        share = np.stack([across[rim], down[rim]], axis=1)  # (P, 2)
        safe = np.where(finite[:, None], boxes, 0.0)
        points = safe[:, None, :2] + share * (safe[:, None, 2:] - safe[:, None, :2])  # (N, P, 2)
        K, d = self.intrinsics.matrix, np.asarray(self.distortion)
        undistort: Any = cv2.fisheye.undistortPoints if self.model == "equidistant" else cv2.undistortPoints
        moved = undistort(points.reshape(-1, 1, 2), K, d, R=np.eye(3), P=K).reshape(points.shape)
        result: F64 = np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)
        result[~finite] = np.nan
        return result

    def _undistortion_maps(self) -> tuple[NDArray[Any], NDArray[Any]]:
        if "xy" not in self._maps:
            K, d = self.intrinsics.matrix, np.asarray(self.distortion)
            size = (self.intrinsics.width, self.intrinsics.height)
            make = cv2.fisheye.initUndistortRectifyMap if self.model == "equidistant" else cv2.initUndistortRectifyMap
            self._maps["xy"] = make(K, d, np.eye(3), K, size, cv2.CV_32FC1)
        x, y = self._maps["xy"]
        return x, y


def standard_distortion(model: str, d: Sequence[float]) -> tuple[str, tuple[float, ...]]:
    """Convert a driver's distortion to one of :data:`SUPPORTED_MODELS` and its coefficients.

    Vectors may be short or end in zeros, the rational polynomial may be named plumb_bob, and names may be those of
    other tools (radtan, fisheye, KannalaBrandt4, ...). All zeros mean no distortion under any name.

    Raises ``ValueError`` for an unknown model, values that are not finite, and more coefficients than the model has.
    """
    given = tuple(float(c) for c in d)
    if not np.isfinite(given).all():
        raise ValueError(f"distortion coefficients must be finite, got {list(given)}")
    values = given
    while values and values[-1] == 0:
        values = values[:-1]
    if not values:
        return "plumb_bob", ()
    name = "".join(c for c in model.lower() if c.isalnum()) or "plumbbob"
    if name in _FISHEYE_NAMES:
        if 4 < len(values) <= 6 and values[2] == values[3] == 0:
            # eight fields k1 k2 p1 p2 k3 k4 k5 k6, filled from a model that has no p
            values = (*values[:2], *values[4:6])
        standard = "equidistant"
    elif name in _POLYNOMIAL_NAMES:
        standard = "plumb_bob" if len(values) <= max(_COEFFICIENTS["plumb_bob"]) else "rational_polynomial"
    else:
        raise ValueError(
            f"distortion model {model!r} is not supported (supported: {', '.join(SUPPORTED_MODELS)}); "
            "publish rectified images"
        )
    count = next((n for n in _COEFFICIENTS[standard] if n >= len(values)), None)
    if count is None:
        allowed = " or ".join(map(str, _COEFFICIENTS[standard]))
        raise ValueError(f"distortion model {model!r} has {allowed} coefficients, got {len(values)}: {list(given)}")
    return standard, values + (0.0,) * (count - len(values))


@dataclass(frozen=True, eq=False)
class CameraInfoFields:
    """Fields of a ``sensor_msgs/CameraInfo``, independent of the library that read it.

    Attributes:
        width, height: of the full-resolution calibration.
        k: (9,) row-major camera matrix of the raw image.
        distortion_model, d: as in the message, see :func:`standard_distortion`.
        binning: pixels combined in x, y; 0 means 1.
        roi: (x_offset, y_offset, width, height) at full resolution; width = height = 0 means the whole image.
        p: (12,) projection matrix of the rectified image.
    """

    width: int
    height: int
    k: Sequence[float]
    distortion_model: str = ""
    d: Sequence[float] = ()
    binning: tuple[int, int] = (0, 0)
    roi: tuple[int, int, int, int] = (0, 0, 0, 0)
    p: Sequence[float] = ()


def camera_model_from_info(info: CameraInfoFields, image_is_rectified: bool = False) -> CameraModel:
    """Return the model of the camera whose images are published with ``info``.

    ``image_is_rectified``: images are undistorted (topics ``image_rect*``), so ``p`` is used and ``d`` ignored.

    Raises ``ValueError`` naming the field for an uncalibrated camera (zero or NaN K), unknown distortion, a bad size.
    """
    width, height, k, d, p, distortion_model = info.width, info.height, info.k, info.d, info.p, info.distortion_model
    matrix = np.asarray(k, dtype=np.float64).ravel()
    if matrix.shape != (9,):
        raise ValueError(f"camera_info: k must have 9 numbers, got {matrix.size}")
    fx, fy, cx, cy = (float(matrix[i]) for i in (0, 4, 2, 5))
    if image_is_rectified and len(p) == 12 and float(p[0]) != 0:
        fx, fy, cx, cy = (float(p[i]) for i in (0, 5, 2, 6))
    if fx == 0 and fy == 0:
        raise ValueError("camera_info: k is all zero: the camera is not calibrated")
    x0, y0, roi_width, roi_height = info.roi
    if roi_width and roi_height:
        width, height, cx, cy = roi_width, roi_height, cx - x0, cy - y0
    model, distortion = ("plumb_bob", ()) if image_is_rectified else standard_distortion(distortion_model, d)
    intrinsics = Intrinsics(fx, fy, cx, cy, int(width), int(height))
    bx, by = max(1, int(info.binning[0])), max(1, int(info.binning[1]))
    if (bx, by) != (1, 1):
        intrinsics = intrinsics.resized(int(width) // bx, int(height) // by)
    return CameraModel(intrinsics, model, distortion)


SAME_SURFACE = 0.05  # largest relative depth difference of neighbours on one surface
_MIN_DEPTH_M = 1e-6
_MAX_PATCH_PX = 32.0  # from a patch's centre to its edge; keeps points close to the camera from filling the image


def register_depth(
    depth: NDArray[np.float32],
    depth_camera: Intrinsics,
    color_camera: Intrinsics,
    T_color_depth: F64 | None = None,
) -> NDArray[np.float32]:
    """Register (h, w) canonical depth to colour: (H, W) depth along the optical axis of colour.

    Args:
        depth: float32 metres; 0 = unknown, +Inf = nothing within range.
        depth_camera, color_camera: undistorted intrinsics.
        T_color_depth: (4, 4) pose of the depth camera in the colour camera; None = identity.

    Raises ``ValueError`` for a depth image of another size than its camera, and a transform that is not rigid.
    """
    if depth.shape != (depth_camera.height, depth_camera.width):
        raise ValueError(
            f"depth is {depth.shape[1]}x{depth.shape[0]}, its calibration {depth_camera.width}x{depth_camera.height}"
        )
    T = np.eye(4) if T_color_depth is None else check_transform(T_color_depth, "T_color_depth")
    if np.allclose(T, np.eye(4), rtol=0.0, atol=1e-9):
        return depth if depth_camera == color_camera else _on_the_same_rays(depth, depth_camera, color_camera)
    found = np.zeros((color_camera.height, color_camera.width), np.float32)
    K_color, K_depth = color_camera.matrix, depth_camera.matrix
    M = np.column_stack([K_color @ T[:3, :3] @ np.linalg.inv(K_depth), K_color @ T[:3, 3]])
    finer = max(color_camera.fx / depth_camera.fx, color_camera.fy / depth_camera.fy)
    _move(np.ascontiguousarray(depth), np.ascontiguousarray(M), min(2.0 * finer + 1.0, _MAX_PATCH_PX), found)
    return found


def compile_kernels() -> None:
    """Compile the kernels of :func:`register_depth` before the first image."""
    camera, T = Intrinsics(8.0, 8.0, 3.5, 2.5, 8, 6), np.eye(4)
    T[0, 3] = 0.05
    for writable in (True, False):  # images may share read-only message memory
        depth = np.ones((6, 8), np.float32)
        depth.setflags(write=writable)
        register_depth(depth, camera, camera, T)


def _on_the_same_rays(
    depth: NDArray[np.float32], depth_camera: Intrinsics, color_camera: Intrinsics
) -> NDArray[np.float32]:
    u = (np.arange(color_camera.width) - color_camera.cx) / color_camera.fx * depth_camera.fx + depth_camera.cx
    v = (np.arange(color_camera.height) - color_camera.cy) / color_camera.fy * depth_camera.fy + depth_camera.cy
    columns, rows = np.rint(u).astype(np.int64), np.rint(v).astype(np.int64)
    inside_u, inside_v = (columns >= 0) & (columns < depth.shape[1]), (rows >= 0) & (rows < depth.shape[0])
    found = depth[np.ix_(np.where(inside_v, rows, 0), np.where(inside_u, columns, 0))]
    return np.asarray(np.where(inside_v[:, None] & inside_u[None], found, np.float32(0.0)), np.float32)


@njit(cache=True, nogil=True, inline="always")
def _edge(x: float, y: float, z: float, near: float, other: float, to: NDArray[Any], step: NDArray[Any]):  # type: ignore[no-untyped-def]
    """Return the edge of the patch at (x, y, z) in colour towards a neighbour.

    On one surface the midpoint, which both compute alike, so that no pixel is left out; otherwise half a pixel on.
    """
    if to[2] > 0 and (near == other or abs(near - other) <= SAME_SURFACE * min(near, other)):
        return 0.5 * (x + to[0]), 0.5 * (y + to[1])
    s = 1.0 if math.isinf(z) else near / z
    return x + 0.5 * s * (step[0] - x * step[2]), y + 0.5 * s * (step[1] - y * step[2])


@njit(cache=True, nogil=True)
def _move_row(depth: NDArray[np.float32], v: int, M: F64, places: F64) -> None:
    """Fill (3, w + 2) ``places`` with x, y, z in colour of row ``v``; z = 0: no depth, or behind the camera."""
    for u in range(len(depth)):
        z = float(depth[u])
        places[2, u + 1] = 0.0
        if z > 0:
            far = math.isinf(z)  # only rotation matters there
            s, t = (1.0, 0.0) if far else (z, 1.0)
            pz = (M[2, 0] * u + M[2, 1] * v + M[2, 2]) * s + M[2, 3] * t
            if pz > _MIN_DEPTH_M:
                places[0, u + 1] = ((M[0, 0] * u + M[0, 1] * v + M[0, 2]) * s + M[0, 3] * t) / pz
                places[1, u + 1] = ((M[1, 0] * u + M[1, 1] * v + M[1, 2]) * s + M[1, 3] * t) / pz
                places[2, u + 1] = z if far else pz


@njit(cache=True, nogil=True)
def _move(depth: NDArray[np.float32], M: F64, reach: float, found: NDArray[np.float32]) -> None:
    """Fill (H, W) ``found``, zeros, with (h, w) ``depth``.

    Args:
        M: (3, 4) maps a pixel (u, v) of depth z to colour: M (u z, v z, z, 1).
        reach: largest distance in pixels from a patch's centre to its edge.
    """
    h, w = depth.shape
    H, W = found.shape
    # three rows at a time, with an empty border
    places = np.zeros((3, 3, w + 2))
    right, down = M[:, 0], M[:, 1]
    left, up = -right, -down
    _move_row(depth[0], 0, M, places[0])
    for v in range(h):
        here, above, below = places[v % 3], places[(v + 2) % 3], places[(v + 1) % 3]
        if v + 1 < h:
            _move_row(depth[v + 1], v + 1, M, below)
        else:
            below[2] = 0.0
        for u in range(w):
            j = u + 1
            x, y, z = here[0, j], here[1, j], here[2, j]
            if z <= 0 or not (-reach - 1 < x < W + reach and -reach - 1 < y < H + reach):
                continue
            near = depth[v, u]
            lx, ly = _edge(x, y, z, near, depth[v, max(u - 1, 0)], here[:, j - 1], left)
            rx, ry = _edge(x, y, z, near, depth[v, min(u + 1, w - 1)], here[:, j + 1], right)
            ux, uy = _edge(x, y, z, near, depth[max(v - 1, 0), u], above[:, j], up)
            dx, dy = _edge(x, y, z, near, depth[min(v + 1, h - 1), u], below[:, j], down)
            low_x, high_x = min(lx, rx) + min(ux - x, dx - x, 0.0), max(lx, rx) + max(ux - x, dx - x, 0.0)
            low_y, high_y = min(uy, dy) + min(ly - y, ry - y, 0.0), max(uy, dy) + max(ly - y, ry - y, 0.0)
            first_x, last_x = math.ceil(max(low_x, x - reach, 0.0)), math.ceil(min(high_x, x + reach, float(W)))
            first_y, last_y = math.ceil(max(low_y, y - reach, 0.0)), math.ceil(min(high_y, y + reach, float(H)))
            for row in range(first_y, last_y):
                for column in range(first_x, last_x):
                    if found[row, column] == 0 or z < found[row, column]:
                        found[row, column] = z


def names_aligned_depth(topic: str) -> bool:
    """Return True when the name of a topic says that its depth is aligned to colour."""
    return bool(_ALIGNED.search(topic))


def is_same_lens(depth_k: Sequence[float], color_k: Sequence[float]) -> bool:
    """Return True when depth has the calibration of colour: it is aligned, whatever frame its header names.

    Args:
        depth_k, color_k: fx, fy, cx, cy in pixels and width, height of each image; empty = unknown.
    """
    known = len(depth_k) > 0 and len(color_k) > 0
    return known and bool(np.allclose(depth_k, color_k, rtol=0.0, atol=_SAME_LENS_PX))


def is_aligned(topic: str, shape: tuple[int, ...], own: CameraModel | None, color: CameraModel | None) -> bool:
    """Return True for (h, w) depth on ``topic`` with calibration ``own`` that counts as aligned to a camera ``color``,
    whatever frame its header names. None = unknown."""
    if color is None or shape != (color.intrinsics.height, color.intrinsics.width):
        return color is None and names_aligned_depth(topic)
    same = own is not None and is_same_lens(astuple(own.intrinsics), astuple(color.intrinsics))
    return same or names_aligned_depth(topic)


@dataclass(frozen=True, eq=False)
class UnregisteredDepth:
    """A depth image in its own camera, to be registered once colour's calibration is known.

    Attributes:
        depth_m: (h, w) float32 canonical depth.
        camera: the depth camera.
        T_color_depth: (4, 4) pose of the depth camera in the colour camera; None = identity.
    """

    depth_m: NDArray[np.float32]
    camera: CameraModel
    T_color_depth: F64 | None

    @property
    def nbytes(self) -> int:
        """Return the memory of the image."""
        return self.depth_m.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (h, w)."""
        return self.depth_m.shape

    def registered(self, color_camera: Intrinsics, *, mount_is_given: bool = False) -> NDArray[np.float32]:
        """Return (H, W) undistorted depth registered to colour; aligned depth (:func:`is_same_lens`) is not moved.

        ``mount_is_given``: ``T_color_depth`` is a user's and not that of a header's frame, so it is always applied.
        Raises as :func:`register_depth`.
        """
        expected = self.camera.intrinsics.height, self.camera.intrinsics.width
        depth_m = self.camera.rectify_depth(self.depth_m) if self.shape == expected else self.depth_m
        same = self.shape == expected and is_same_lens(astuple(self.camera.intrinsics), astuple(color_camera))
        if same and not mount_is_given:
            return depth_m
        return register_depth(depth_m, self.camera.intrinsics, color_camera, self.T_color_depth)
