"""Folders and files as scanning apps write them, made from a twin in TUM layout."""

from __future__ import annotations

import json
import os
import shutil
import zipfile

import cv2
import numpy as np
from support.small_recording import INTRINSICS

from embodied_perceptron.geometry.transforms import invert_transform, rotation_to_quaternion
from embodied_perceptron.recordings.conventions import convert_pose
from embodied_perceptron.recordings.exports import EXPORT_FORMATS
from embodied_perceptron.recordings.tum import read_tum_camera

WIDTH, HEIGHT = INTRINSICS.width, INTRINSICS.height


def contents(twin):
    """(number, color path, depth path, T_world_camera) of the twin."""
    camera = read_tum_camera(twin)
    for i, ((_, color), (_, depth), (_, T)) in enumerate(
        zip(camera.color_files, camera.depth_files, camera.poses, strict=True)
    ):
        yield i, color, depth, T


def matrix_text(M):
    return "\n".join(" ".join(repr(float(v)) for v in row) for row in np.atleast_2d(M)) + "\n"


def K4(camera):
    K = np.eye(4)
    K[0, 0], K[1, 1], K[0, 2], K[1, 2] = camera.fx, camera.fy, camera.cx, camera.cy
    return K


def arkit(T):
    """A pose as ARKit writes it: the inverse of what the reader does."""
    unit = convert_pose(np.eye(4), ("opengl",))
    turn = convert_pose(np.eye(4), ("yup",))
    written = invert_transform(turn) @ T @ invert_transform(unit)
    assert np.allclose(convert_pose(written, ("opengl", "yup")), T, atol=1e-12)
    return written


def scannet(folder, twin):
    for name in ("color", "depth", "pose", "intrinsic"):
        (folder / name).mkdir(parents=True)
    for i, color, depth, T in contents(twin):
        shutil.copy(color, folder / "color" / f"{i}.png")
        shutil.copy(depth, folder / "depth" / f"{i}.png")
        (folder / "pose" / f"{i}.txt").write_text(matrix_text(T))
    for kind in ("color", "depth"):
        (folder / "intrinsic" / f"intrinsic_{kind}.txt").write_text(matrix_text(K4(INTRINSICS)))
    return folder


def stray(folder, twin):
    for name in ("depth", "confidence"):
        (folder / name).mkdir(parents=True)
    size = (INTRINSICS.width, INTRINSICS.height)
    video = cv2.VideoWriter(str(folder / "rgb.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10.0, size)
    lines = ["timestamp, frame, x, y, z, qx, qy, qz, qw"]
    turn = invert_transform(convert_pose(np.eye(4), ("yup",)))
    for i, color, depth, T in contents(twin):
        video.write(cv2.imread(str(color)))
        shutil.copy(depth, folder / "depth" / f"{i:06d}.png")
        cv2.imwrite(str(folder / "confidence" / f"{i:06d}.png"), np.full(size[::-1], 2, np.uint8))
        P = turn @ T
        values = [1.0 + 0.1 * i, i, *P[:3, 3], *rotation_to_quaternion(P[:3, :3])]
        lines.append(", ".join(repr(float(v)) for v in values))
    video.release()
    (folder / "odometry.csv").write_text("\n".join(lines) + "\n")
    (folder / "camera_matrix.csv").write_text(matrix_text(K4(INTRINSICS)[:3, :3]).replace(" ", ","))
    return folder


def polycam(folder, twin):
    inner = folder / "keyframes"
    for name in ("images", "depth", "cameras"):
        (inner / name).mkdir(parents=True)
    for i, color, depth, T in contents(twin):
        stamp = 1_000_000 + i * 100_000
        cv2.imwrite(str(inner / "images" / f"{stamp}.jpg"), cv2.imread(str(color)))
        shutil.copy(depth, inner / "depth" / f"{stamp}.png")
        P, k = arkit(T), INTRINSICS
        said = {f"t_{r}{c}": float(P[r, c]) for r in range(3) for c in range(4)}
        said |= {"fx": k.fx, "fy": k.fy, "cx": k.cx, "cy": k.cy, "width": k.width, "height": k.height}
        (inner / "cameras" / f"{stamp}.json").write_text(json.dumps(said))
    return folder


def arkitscenes(folder, twin):
    for name in ("lowres_wide", "lowres_depth", "lowres_wide_intrinsics"):
        (folder / name).mkdir(parents=True)
    lines, k = [], INTRINSICS
    for i, color, depth, T in contents(twin):
        time_s = 1.0 + 0.1 * i
        name = f"4711_{time_s:.3f}"
        shutil.copy(color, folder / "lowres_wide" / f"{name}.png")
        shutil.copy(depth, folder / "lowres_depth" / f"{name}.png")
        numbers = [k.width, k.height, k.fx, k.fy, k.cx, k.cy]
        (folder / "lowres_wide_intrinsics" / f"{name}.pincam").write_text(" ".join(map(str, numbers)))
        P = invert_transform(T)
        values = [time_s, *cv2.Rodrigues(P[:3, :3])[0].ravel(), *P[:3, 3]]
        lines.append(" ".join(repr(float(v)) for v in values))
    (folder / "lowres_wide.traj").write_text("\n".join(lines) + "\n")
    return folder


def record3d(folder, twin):
    """The EXR export; depth is what the millimetres of the twin mean."""
    for name in ("rgb", "depth"):
        (folder / name).mkdir(parents=True)
    os.environ["OPENCV_IO_ENABLE_OPENEXR"] = "1"
    for i, color, depth, _ in contents(twin):
        shutil.copy(color, folder / "rgb" / f"{i}.png")
        cv2.imwrite(str(folder / "depth" / f"{i}.exr"), metres(depth))
    (folder / "metadata.json").write_text(json.dumps(record3d_metadata(twin)))
    return folder


def metres(depth):
    return cv2.imread(str(depth), cv2.IMREAD_UNCHANGED).astype(np.float32) / np.float32(1000)


def record3d_metadata(twin):
    poses = []
    for _, _, _, T in contents(twin):
        P = arkit(T)
        poses.append([*map(float, rotation_to_quaternion(P[:3, :3])), *map(float, P[:3, 3])])
    k = INTRINSICS
    K = [k.fx, 0, 0, 0, k.fy, 0, k.cx, k.cy, 1]
    return {"w": k.width, "h": k.height, "dw": k.width, "dh": k.height, "K": K, "fps": 10, "poses": poses}


def r3d(path, twin, pack, **changes):
    """An .r3d file, depth packed by ``pack``."""
    said = record3d_metadata(twin) | changes
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("metadata", json.dumps({k: v for k, v in said.items() if v is not None}))
        for i, color, depth, _ in contents(twin):
            file.writestr(f"rgbd/{i}.jpg", color.read_bytes())
            file.writestr(f"rgbd/{i}.depth", pack(metres(depth).tobytes()))
            file.writestr(f"rgbd/{i}.conf", pack(np.full(WIDTH * HEIGHT, 2, np.uint8).tobytes()))
    return path


MAKERS = dict(zip(EXPORT_FORMATS, (scannet, stray, polycam, arkitscenes, record3d), strict=True))
