"""Measured colour and depth of the sensors of version 2: holes by material, angle and texture, projector shadows, mixed
pixels, misaligned colour, rolling shutter, motion blur.

Depth loss depends on the kind of surface (:data:`KINDS`): glass transmits light, mirrors measure the reflected scene,
screens and black surfaces return too little light, shiny ones reflect it away. The rates are set so that a home loses 3
to 40 % of its pixels, as real sequences do; noise of structured light follows Nguyen et al. (2012), mixed pixels occur
with time of flight.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, special

from embodied_perceptron_training.homes.building.home import Home
from embodied_perceptron_training.homes.noise import add_grain, image_flow
from embodied_perceptron_training.homes.rendering.materials import Material
from embodied_perceptron_training.homes.rendering.renderer import RenderedView
from embodied_perceptron_training.homes.rendering.scene import RenderScene
from embodied_perceptron_training.homes.sensor_model import SensorModel

F32 = NDArray[np.float32]
Rng = np.random.Generator

KINDS = ("matt", "dark", "shiny", "glass", "mirror", "screen")
MATT, DARK, SHINY, GLASS, MIRROR, SCREEN = range(6)
# probability of losing a pixel at normal incidence, by kind
_LOSS = {
    "structured-light": (0.006, 0.30, 0.22, 0.92, 0.60, 0.90),
    "time-of-flight": (0.006, 0.42, 0.14, 0.70, 0.40, 0.60),
    "lidar-phone": (0.005, 0.20, 0.10, 0.60, 0.35, 0.40),
    "stereo": (0.008, 0.25, 0.20, 0.70, 0.40, 0.75),
}
# incidence (cosine) at which half of the pixels of matt and of shiny surfaces are lost
_GRAZING = {
    "structured-light": (0.16, 0.26), "time-of-flight": (0.10, 0.2), "lidar-phone": (0.08, 0.16), "stereo": (0.12, 0.2),
}  # fmt: skip
_SCREENS = {"tv", "monitor", "laptop", "tablet", "telephone", "screen", "computer"}
_DARK_LUMA, _SHINY_GLOSS, _MIRROR_GLOSS = 0.17, 0.38, 0.88
_TEXTURELESS = 1.6  # 8-bit steps: texture below which stereo has no match


# --------------------------------------------------------------------------------------------------------------------
# kinds of surfaces


def surface_kinds(home: Home, scene: RenderScene) -> NDArray[np.uint8]:
    """(F,) index into :data:`KINDS` of every face of ``scene``, made from ``home``."""
    labels = ["", *(o.label for o in home.objects)]
    materials = scene.mesh.materials
    pairs, inverse = np.unique(
        scene.instance.astype(np.int64) * len(materials) + scene.mesh.material, return_inverse=True
    )
    kinds = [kind_of(labels[int(p) // len(materials)], materials[int(p) % len(materials)]) for p in pairs]
    return np.array(kinds, np.uint8)[inverse]


def kind_of(label: str, material: Material) -> int:
    """Index into :data:`KINDS` of a material on an object of class ``label``."""
    luma = float(np.dot(material.color, (0.3, 0.6, 0.1)))
    if material.texture == "image:sky":
        return GLASS
    if material.texture == "image:screen" or (label in _SCREENS and luma < _DARK_LUMA and material.gloss > 0.5):
        return SCREEN
    if material.substance == "glass" or (luma < _DARK_LUMA and material.gloss >= 0.6):
        return GLASS if luma > _DARK_LUMA else SCREEN
    if material.gloss >= _MIRROR_GLOSS:
        return MIRROR
    if luma < _DARK_LUMA and not material.is_image:
        return DARK
    return SHINY if material.gloss >= _SHINY_GLOSS else MATT


# --------------------------------------------------------------------------------------------------------------------
# Depth


def measured_depth(view: RenderedView, kinds: NDArray[np.uint8], sensor_model: SensorModel, rng: Rng) -> F32:
    """(H, W) metres that ``sensor_model`` measures of ``view``; 0 = no measurement. ``kinds``: of the faces.

    Raises ``ValueError`` for a view without faces.
    """
    if view.face is None:
        raise ValueError("the view does not say which faces it shows")
    if sensor_model.sensor == "perfect":
        return view.depth_m.copy()
    kind = np.where(view.face >= 0, kinds[view.face], MATT)
    true = _with_reflections(view.depth_m, kind, rng)
    if sensor_model.sensor == "structured-light":
        z, lost = _structured_light(true, sensor_model, rng)
    elif sensor_model.sensor == "stereo":
        z, lost = _stereo(true, view.color, sensor_model, rng)
    elif sensor_model.sensor == "time-of-flight":
        z, lost = _time_of_flight(true, view.incidence, sensor_model, rng)
    else:
        z, lost = _lidar_phone(true, sensor_model, rng)
    lost |= _swallowed(view.depth_m, view.incidence, kind, sensor_model, rng)
    return np.where(lost | ~(z > 0), 0, z).astype(np.float32)


def _with_reflections(depth: F32, kind: NDArray[np.integer], rng: Rng) -> F32:
    """Depth of reflections behind mirrors, and of the outside at some pixels of panes."""
    far = depth * np.float32(rng.uniform(1.4, 2.2))
    return np.where(kind == MIRROR, far, depth).astype(np.float32)


def _blobs(shape: tuple[int, ...], size_px: float, rng: Rng) -> F32:
    """(H, W) uniform in [0, 1], constant over patches of about ``size_px``, for patchy holes."""
    field = ndimage.gaussian_filter(rng.standard_normal(shape, np.float32), size_px, mode="wrap")
    return np.asarray(special.ndtr(field / max(float(field.std()), 1e-9)), np.float32)


def _clipped(share: F32) -> F32:
    return np.clip(share, 1e-4, 1 - 1e-4)


def _swallowed(
    depth: F32, incidence: F32, kind: NDArray[np.integer], sensor_model: SensorModel, rng: Rng
) -> NDArray[np.bool_]:
    """(H, W) mask of pixels lost by material, angle and distance."""
    base = np.array(_LOSS[sensor_model.sensor], np.float32)[kind]
    matt, shiny = _GRAZING[sensor_model.sensor]
    half = np.where(kind == MATT, matt, shiny)
    grazing = special.expit((half - incidence) / 0.035)
    # distant and dark surfaces return little light
    far = special.expit((depth - sensor_model.reach_m * np.where(kind == DARK, 0.7, 1.0)) / 0.25)
    level = sensor_model.hole_level
    keep = (1 - np.clip(base * level, 0, 0.97)) * (1 - np.clip(grazing * level, 0, 1)) * (1 - far)
    scale = depth.shape[1] / 320
    # holes are patches of a few pixels within larger ones; single pixels are rare
    field = 0.75 * special.ndtri(_clipped(_blobs(depth.shape, 9 * scale, rng)))
    field += 0.64 * special.ndtri(_clipped(_blobs(depth.shape, 2.5 * scale, rng)))
    patches = special.ndtr(field + 0.15 * rng.standard_normal(depth.shape, np.float32))
    speckle = rng.random(depth.shape, np.float32) < 0.0004 * level
    return np.asarray((patches > keep) | speckle | (depth <= 0))


def _shadow(depth: F32, sensor_model: SensorModel, side: float) -> NDArray[np.bool_]:
    """(H, W) mask of pixels that the projector or second camera, ``baseline_m`` to the ``side``, does not see.

    A point at column u appears at ``u - side * f * b / z`` there; it is hidden when a nearer one covers its column.
    """
    width = depth.shape[1]
    # pixels without a surface, as in cracks between walls, cast no shadow
    disparity = np.where(depth > 0, sensor_model.intrinsics.fx * sensor_model.baseline_m / np.maximum(depth, 0.05), 0)
    column = np.arange(width, dtype=np.float32)[None] - side * disparity
    if side > 0:  # nearer points move farther left: look from the right
        least = np.minimum.accumulate(column[:, ::-1], axis=1)[:, ::-1]
        hidden = column > np.roll(least, -1, axis=1) + 0.5
        hidden[:, -1] = False
    else:
        most = np.maximum.accumulate(column, axis=1)
        hidden = column < np.roll(most, 1, axis=1) - 0.5
        hidden[:, 0] = False
    # pixels outside of the other image are not measured: a band at one side
    outside = (column < -0.06 * width) | (column > 1.06 * width)
    return np.asarray(hidden | (outside & (depth > 0)))


def _jittered(depth: F32, spread_px: float, rng: Rng) -> F32:
    """Depth with frayed edges, because patches are matched instead of pixels."""
    height, width = depth.shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    jitter = ndimage.uniform_filter(rng.standard_normal((2, height, width), np.float32), (0, 3, 3)) * 3 * spread_px
    return cv2.remap(depth, x + jitter[0], y + jitter[1], cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE)


def _correlated(shape: tuple[int, ...], rng: Rng, size: int = 3) -> F32:
    """(H, W) noise of unit deviation, partly smooth over ``size`` pixels."""
    white = rng.standard_normal(shape, np.float32)
    return (ndimage.uniform_filter(white, size) * size * 0.8 + white * 0.6).astype(np.float32)


def _structured_light(depth: F32, sensor_model: SensorModel, rng: Rng) -> tuple[F32, NDArray[np.bool_]]:
    z = _jittered(depth, 0.35, rng)
    sigma = (0.0012 + 0.0019 * np.square(z - 0.4)) * 0.7
    z = z + sigma * _correlated(depth.shape, rng)
    steps = sensor_model.baseline_m * 580 * 8  # eighths of a pixel of a sensor with 580 pixels focal length
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(z > 0, steps / np.maximum(np.round(steps / z), 1), 0)
    low, high = ndimage.minimum_filter(depth, 3), ndimage.maximum_filter(depth, 3)
    edge = high - low > 0.03 * depth + 0.02
    lost = _shadow(depth, sensor_model, 1.0) | (edge & (rng.random(depth.shape) < 0.35)) | (depth < 0.45)
    return z.astype(np.float32), lost


def _stereo(depth: F32, color: NDArray[np.uint8], sensor_model: SensorModel, rng: Rng) -> tuple[F32, NDArray[np.bool_]]:
    """Stereo matching: edges grow by half a window, disparity has errors of a fraction of a pixel in patches, and
    textureless surfaces are not measured without a projector."""
    window = max(3, 2 * round(2 * depth.shape[1] / 320) + 1)
    grown = ndimage.minimum_filter(np.where(depth > 0, depth, np.float32(1e3)), window)
    mixed = rng.random(depth.shape) < 0.5
    z = np.where((grown < 0.97 * depth) & mixed, grown, _jittered(depth, 0.5, rng))
    smooth = ndimage.gaussian_filter(rng.standard_normal(depth.shape, np.float32), 5.0) * 5 * np.sqrt(4 * np.pi)
    error_px = 0.06 * smooth + 0.03 * _correlated(depth.shape, rng)
    focal = sensor_model.intrinsics.fx * 640 / sensor_model.intrinsics.width  # matching runs on larger images
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(z > 0, sensor_model.baseline_m * focal / (sensor_model.baseline_m * focal / z + error_px), 0)
    gray = cv2.cvtColor(color, cv2.COLOR_RGB2GRAY).astype(np.float32)
    detail = np.sqrt(np.maximum(ndimage.uniform_filter(gray**2, 7) - ndimage.uniform_filter(gray, 7) ** 2, 0))
    plain = special.expit((_TEXTURELESS - detail) / 0.5) * min(0.3 * sensor_model.hole_level, 0.7)
    lost = (
        _shadow(depth, sensor_model, -1.0)
        | (_blobs(depth.shape, 9.0 * depth.shape[1] / 320, rng) < plain)
        | (depth < 0.25)
    )
    return z.astype(np.float32), np.asarray(lost)


def _time_of_flight(depth: F32, incidence: F32, sensor_model: SensorModel, rng: Rng) -> tuple[F32, NDArray[np.bool_]]:
    """Time of flight: noise grows with distance and slant; edges mix both depths (some are filtered out); corners
    appear farther because of multipath light."""
    blurred = cv2.GaussianBlur(depth, (0, 0), 0.8)
    mixed = (np.abs(blurred - depth) > 0.02) & (rng.random(depth.shape) < 0.6)
    z = np.where(mixed, blurred, depth)
    hollow = cv2.GaussianBlur(depth, (0, 0), 8.0 * depth.shape[1] / 320) - depth
    z = z + np.clip(0.12 * hollow, 0, 0.02)
    sigma = (0.0015 + 0.0007 * depth**2) / np.maximum(incidence, 0.25)
    z = z + sigma * _correlated(depth.shape, rng) + 0.003 * np.sin(depth * 7.0)
    lost = (mixed & (rng.random(depth.shape) < 0.5)) | (depth < 0.25)
    return z.astype(np.float32), np.asarray(lost)


def _lidar_phone(depth: F32, sensor_model: SensorModel, rng: Rng) -> tuple[F32, NDArray[np.bool_]]:
    """LiDAR of a phone: a coarse grid of pulses with rounded edges and a bias of a percent in large patches."""
    height, width = depth.shape
    coarse = cv2.resize(depth, (max(2, width // 4), max(2, height // 4)), interpolation=cv2.INTER_NEAREST)
    drift = ndimage.gaussian_filter(rng.standard_normal(coarse.shape), 2.0) * 7.0
    coarse = coarse * (1 + 0.004 * drift + 0.003 * rng.standard_normal(coarse.shape))
    z = cv2.resize(coarse.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    holes = cv2.resize((coarse <= 0).astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR) > 0.01
    low, high = ndimage.minimum_filter(depth, 3), ndimage.maximum_filter(depth, 3)
    unsure = (high - low > 0.08 * depth + 0.05) & (rng.random(depth.shape) < 0.3 * sensor_model.hole_level)
    return z, np.asarray(holes | unsure)


# --------------------------------------------------------------------------------------------------------------------
# colour


def measured_color(view: RenderedView, sensor_model: SensorModel, rng: Rng) -> NDArray[np.uint8]:
    """(H, W, 3) colour with misalignment, motion blur, rolling shutter and the camera's colour response."""
    if sensor_model.sensor == "perfect":
        return view.color.copy()
    k = view.intrinsics
    u, v = np.meshgrid(np.arange(k.width, dtype=np.float32), np.arange(k.height, dtype=np.float32))
    T_world_next = sensor_model.motion(view.T_world_camera, rng)
    flow = image_flow(view.depth_m, k, view.T_world_camera, T_world_next, 0.1 * k.width).astype(np.float32)
    x, y = (u - k.cx) / k.fx, (v - k.cy) / k.fy
    r2 = (x**2 + y**2) / ((k.width / 2 / k.fx) ** 2 + (k.height / 2 / k.fy) ** 2)
    base = [u + sensor_model.color_shift_px[0] + sensor_model.barrel * r2 * (u - k.cx),
            v + sensor_model.color_shift_px[1] + sensor_model.barrel * r2 * (v - k.cy)]  # fmt: skip
    rolling = (v / max(k.height - 1, 1) - 0.5) * sensor_model.readout_share
    total = np.zeros(view.color.shape, np.float32)
    moments = np.linspace(-0.5, 0.5, 5) * sensor_model.shutter_share
    for moment in moments:
        at = [(b + (rolling + moment) * flow[..., i]).astype(np.float32) for i, b in enumerate(base)]
        total += cv2.remap(view.color, at[0], at[1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    light = np.clip(total / len(moments) / 255, 0, 1) ** sensor_model.gamma
    light *= (1 - sensor_model.vignette * r2)[..., None] * np.array(sensor_model.white, np.float32)
    toned: NDArray[np.uint8] = np.clip(light * 255, 0, 255).round().astype(np.uint8)
    return add_grain(toned, sensor_model.grain, rng)
