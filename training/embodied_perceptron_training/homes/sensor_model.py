"""Sensor model of homes of version 2: sensor, lens, carrier and pose drift, drawn per home.

The ranges are those of products and of two real sequences: structured light (57 to 63 degrees across, 0.4 to 5 m),
time of flight (65 to 90 degrees), the LiDAR of a phone (58 to 70 degrees), stereo (65 to 90 degrees).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import cv2
import numpy as np

from embodied_perceptron.geometry.transforms import F64, Intrinsics, make_transform
from embodied_perceptron_training.homes.noise import NoiseModel, Sensor

DepthSensor = Literal["perfect", "structured-light", "time-of-flight", "lidar-phone", "stereo"]
Carrier = Literal["hand", "robot"]

SENSORS: tuple[DepthSensor, ...] = ("structured-light", "time-of-flight", "lidar-phone", "stereo")
UNSEEN_SENSOR: DepthSensor = "time-of-flight"  # for testing only
_UNSEEN_SHARE = 0.4  # share of the test homes with it
_FOV_DEG = {
    "perfect": (55.0, 90.0), "structured-light": (55.0, 64.0), "time-of-flight": (64.0, 90.0),
    "lidar-phone": (57.0, 72.0), "stereo": (63.0, 90.0),
}  # fmt: skip
_REACH_M = {
    "perfect": (60.0, 60.0), "structured-light": (3.8, 6.0), "time-of-flight": (3.8, 5.5), "lidar-phone": (4.5, 5.5),
    "stereo": (4.5, 8.0),
}  # fmt: skip
_SIZES = ((1.0, 0.75), (1.0, 0.75), (0.8, 0.75), (1.25, 0.75), (1.0, 0.5625), (1.2, 0.5625))  # scale, height / width
_DRIFT_MEMORY = 0.85  # correlation of the pose errors of successive views
_FRAME_S = 0.1  # duration of one :meth:`SensorModel.motion`


@dataclass(frozen=True)
class SensorModel:
    """The camera of one home and its errors.

    Attributes:
        sensor: depth sensor.
        carrier: person or robot that carries it.
        intrinsics: stored with the images; exact for depth.
        reach_m: range beyond which little is measured.
        baseline_m: between the depth camera and the projector or second camera.
        hole_level: factor of the probability of losing a pixel by material, angle and texture.
        color_shift_px: (right, down) offset of colour relative to depth.
        barrel: residual radial distortion of the colour image, as share of the radius at the corner.
        drift_m, drift_rad: root mean square error of the poses, correlated between views.
        exposure_s: exposure time, which blurs the image.
        readout_s: from the first row's exposure to the last's.
        exposure_spread: relative drift of the exposure between views.
        white: (3,) gains of red, green and blue.
        gamma, vignette, grain: of the colour image; grain in 8-bit steps.
        jpeg_quality: 1..100.
    """

    sensor: DepthSensor
    carrier: Carrier
    intrinsics: Intrinsics
    reach_m: float
    baseline_m: float
    hole_level: float
    color_shift_px: tuple[float, float]
    barrel: float
    drift_m: float
    drift_rad: float
    exposure_s: float
    readout_s: float
    exposure_spread: float
    white: tuple[float, float, float]
    gamma: float
    vignette: float
    grain: float
    jpeg_quality: int

    def as_dict(self) -> dict[str, Any]:
        """JSON form, for the record."""
        k = self.intrinsics
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "intrinsics"}
        return {**values, "white": list(self.white), "color_shift_px": list(self.color_shift_px),
                "fov_deg": round(float(np.rad2deg(2 * np.arctan(k.width / 2 / k.fx))), 3),
                "width": k.width, "height": k.height}  # fmt: skip

    def motion(self, T_world_camera: F64, rng: np.random.Generator) -> F64:
        """(4, 4) pose of the camera a tenth of a second later."""
        calm = 1.0 if self.carrier == "hand" else 0.6
        turn = rng.normal(0, 0.3 * calm, 3) * _FRAME_S * np.array([1.0, 1.0, 0.5])
        shift = rng.normal(0, 0.25 * calm, 3) * _FRAME_S
        return T_world_camera @ make_transform(cv2.Rodrigues(turn.reshape(3, 1))[0].astype(np.float64), shift)

    @property
    def shutter_share(self) -> float:
        """Share of :meth:`motion` during the exposure."""
        return self.exposure_s / _FRAME_S

    @property
    def readout_share(self) -> float:
        """Share of :meth:`motion` between the first and the last row."""
        return self.readout_s / _FRAME_S

    def reported(self, poses: F64, rng: np.random.Generator, memory: float = _DRIFT_MEMORY) -> F64:
        """(N, 4, 4) true camera poses -> estimated poses with slowly changing errors of ``drift_m``.

        ``memory`` is the correlation of the errors of successive poses.
        """
        result = poses.copy()
        shift, turn = rng.normal(0, 1, 3), rng.normal(0, 1, 3)
        fresh = np.sqrt(1 - memory**2)
        for i in range(len(poses)):
            R = cv2.Rodrigues((turn * self.drift_rad / np.sqrt(3)).reshape(3, 1))[0]
            result[i] = make_transform(R @ poses[i, :3, :3], poses[i, :3, 3] + shift * self.drift_m / np.sqrt(3))
            shift = memory * shift + fresh * rng.normal(0, 1, 3)
            turn = memory * turn + fresh * rng.normal(0, 1, 3)
        return result


def draw_sensor_model(seed: int, width: int, height: int, noise: NoiseModel, unseen: bool = False) -> SensorModel:
    """The sensor model of home ``seed``; images are about ``width`` x ``height``.

    ``noise.sensor`` fixes the sensor; "mixed" draws it, the held-out one only with ``unseen``; "perfect" has no errors.
    Blur and pose noise given by ``noise`` replace those drawn.
    """
    rng = np.random.default_rng([seed, 81])
    sensor = _draw_sensor(noise.sensor, unseen, rng)
    carrier: Carrier = "hand" if rng.random() < 0.6 else "robot"
    scale, shape = _SIZES[int(rng.integers(len(_SIZES)))]
    wide = max(16, 8 * round(width * scale / 8))
    high = max(12, 4 * round(wide * shape * (height / width) / 0.75 / 4))
    f = wide / 2 / np.tan(np.deg2rad(rng.uniform(*_FOV_DEG[sensor])) / 2)
    cx, cy = (wide - 1) / 2 + wide * rng.normal(0, 0.006), (high - 1) / 2 + high * rng.normal(0, 0.006)
    sensor_model = SensorModel(
        sensor=sensor,
        carrier=carrier,
        intrinsics=Intrinsics(float(f), float(f * rng.uniform(0.995, 1.005)), float(cx), float(cy), wide, high),
        reach_m=float(rng.uniform(*_REACH_M[sensor])),
        baseline_m=float(rng.uniform(0.06, 0.09) if sensor == "structured-light" else rng.uniform(0.05, 0.1)),
        hole_level=float(np.exp(rng.normal(0.0, 0.45))),
        color_shift_px=(float(rng.normal(0, 1.3) * wide / 320), float(rng.normal(0, 0.9) * wide / 320)),
        barrel=float(rng.uniform(-0.015, 0.015)),
        drift_m=float(rng.uniform(0.005, 0.02)),
        drift_rad=float(np.deg2rad(rng.uniform(0.1, 0.5))),
        exposure_s=float(np.exp(rng.uniform(np.log(1 / 250), np.log(1 / 25)))),
        readout_s=float(rng.uniform(0.0, 0.03)),
        exposure_spread=float(rng.uniform(0.08, 0.3)),
        white=_triple(np.exp(rng.normal(0, 0.06, 3))),
        gamma=float(rng.uniform(0.8, 1.25)),
        vignette=float(rng.uniform(0.0, 0.3)),
        grain=float(rng.uniform(1.0, 5.0)),
        jpeg_quality=int(rng.integers(70, 96)),
    )
    if sensor == "perfect":
        return replace(
            sensor_model, hole_level=0.0, color_shift_px=(0.0, 0.0), barrel=0.0, drift_m=0.0, drift_rad=0.0,
            exposure_s=0.0, readout_s=0.0, exposure_spread=0.0, white=(1.0, 1.0, 1.0), gamma=1.0, vignette=0.0,
            grain=0.0, jpeg_quality=95,
        )  # fmt: skip
    if noise.pose_sigma_m > 0:
        sensor_model = replace(sensor_model, drift_m=noise.pose_sigma_m, drift_rad=noise.pose_sigma_rad)
    return replace(sensor_model, exposure_s=noise.motion_blur_s) if noise.motion_blur_s > 0 else sensor_model


def _draw_sensor(wanted: Sensor, unseen: bool, rng: np.random.Generator) -> DepthSensor:
    seen = tuple(s for s in SENSORS if s != UNSEEN_SENSOR)
    drawn = seen[int(rng.choice(len(seen), p=[0.45, 0.2, 0.35]))]
    if unseen and rng.random() < _UNSEEN_SHARE:
        drawn = UNSEEN_SENSOR
    return drawn if wanted == "mixed" else wanted


def _triple(values: F64) -> tuple[float, float, float]:
    a, b, c = (float(v) for v in values)
    return (a, b, c)
