"""Fewer faces for a triangle mesh: quadric edge collapse (Garland and Heckbert, 1997) that always reaches its target.

Faces weigh by their area; edges that belong to one face only are held by planes of their own, since edges of open
sheets, which seats and leaves often are, would cost nothing to collapse within the sheet's plane. Collapses that turn a
face over are tried again later, at a price.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
_BORDER_WEIGHT = 2.0
_FLIP_PRICE = 30.0


def decimated(vertices: F64, faces: I64, target: int) -> tuple[F64, I64]:
    """(V, 3) vertices, (F, 3) faces -> the same shape with at most ``target`` faces (or none left to take).

    Raises ``ValueError`` for ``target < 1``.
    """
    if target < 1:
        raise ValueError(f"target must be at least 1, got {target}")
    if len(faces) <= target:
        return vertices, faces
    quadrics = _quadrics(vertices, faces)
    edges = np.unique(np.sort(_edges(faces), axis=1), axis=0)
    moved, kept = _collapse(vertices.copy(), faces.copy(), quadrics, edges, target)
    return moved, kept


def _edges(faces: I64) -> I64:
    return np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])


def _planes(normal: F64, point: F64, weight: F64) -> F64:
    """(N, 10) upper triangles of the quadrics ``weight * (n, -n.p)(n, -n.p)^T``."""
    p = np.concatenate([normal, -(normal * point).sum(1, keepdims=True)], 1)
    i, j = np.triu_indices(4)
    result: F64 = p[:, i] * p[:, j] * weight[:, None]
    return result


def _quadrics(vertices: F64, faces: I64) -> F64:
    corners = vertices[faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    double_area = np.linalg.norm(normal, axis=1)
    unit = normal / np.maximum(double_area, 1e-15)[:, None]
    result = np.zeros((len(vertices), 10))
    own = _planes(unit, corners[:, 0], double_area)
    for k in range(3):
        np.add.at(result, faces[:, k], own)
    edges, owner = _edges(faces), np.tile(np.arange(len(faces)), 3)
    _, inverse, count = np.unique(np.sort(edges, axis=1), axis=0, return_inverse=True, return_counts=True)
    border = count[inverse.reshape(-1)] == 1
    edges, owner = edges[border], owner[border]
    along = vertices[edges[:, 1]] - vertices[edges[:, 0]]
    across = np.cross(along, unit[owner])
    length = np.linalg.norm(across, axis=1)
    held = _planes(across / np.maximum(length, 1e-15)[:, None], vertices[edges[:, 0]], _BORDER_WEIGHT * length**2)
    for k in range(2):
        np.add.at(result, edges[:, k], held)
    return result


@njit(cache=True)
def _error(q: F64, x: float, y: float, z: float) -> float:
    error: float = (
        q[0] * x * x + 2 * q[1] * x * y + 2 * q[2] * x * z + 2 * q[3] * x
        + q[4] * y * y + 2 * q[5] * y * z + 2 * q[6] * y + q[7] * z * z + 2 * q[8] * z + q[9]
    )  # fmt: skip
    return max(error, 0.0)


@njit(cache=True)
def _place(q: F64, a: F64, b: F64, out: F64) -> float:
    """Puts the best point for an edge into ``out``; returns its error."""
    best = np.inf
    for k in range(3):
        t = 0.5 * k
        x, y, z = a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]), a[2] + t * (b[2] - a[2])
        error = _error(q, x, y, z)
        if error < best:
            best = error
            out[0], out[1], out[2] = x, y, z
    c00, c01, c02 = q[4] * q[7] - q[5] * q[5], q[2] * q[5] - q[1] * q[7], q[1] * q[5] - q[2] * q[4]
    determinant = q[0] * c00 + q[1] * c01 + q[2] * c02
    size = q[0] + q[4] + q[7]
    if abs(determinant) > 1e-4 * size * size * size:
        c11, c12, c22 = q[0] * q[7] - q[2] * q[2], q[1] * q[2] - q[0] * q[5], q[0] * q[4] - q[1] * q[1]
        x = -(c00 * q[3] + c01 * q[6] + c02 * q[8]) / determinant
        y = -(c01 * q[3] + c11 * q[6] + c12 * q[8]) / determinant
        z = -(c02 * q[3] + c12 * q[6] + c22 * q[8]) / determinant
        length = (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2
        away = (x - (a[0] + b[0]) / 2) ** 2 + (y - (a[1] + b[1]) / 2) ** 2 + (z - (a[2] + b[2]) / 2) ** 2
        error = _error(q, x, y, z)
        if away < length and error < best:
            best = error
            out[0], out[1], out[2] = x, y, z
    return best


@njit(cache=True)
def _turns_over(vertices: F64, faces: I64, f: int, moving: int, to: F64) -> bool:
    p = np.empty((3, 3))
    for k in range(3):
        p[k] = vertices[faces[f, k]]
    before = np.cross(p[1] - p[0], p[2] - p[0])
    for k in range(3):
        if faces[f, k] == moving:
            p[k] = to
    after = np.cross(p[1] - p[0], p[2] - p[0])
    dot = before[0] * after[0] + before[1] * after[1] + before[2] * after[2]
    lengths = np.sqrt((before**2).sum() * (after**2).sum())
    return bool(dot < 0.15 * lengths)


@njit(cache=True)
def _collapse(vertices: F64, faces: I64, quadrics: F64, edges: I64, target: int) -> tuple[F64, I64]:
    count, total = len(vertices), len(faces)
    first = np.full(count, -1, np.int64)  # chains of (3 * face + corner) per vertex
    last = np.full(count, -1, np.int64)
    following = np.full(3 * total, -1, np.int64)
    for f in range(total):
        for k in range(3):
            v, node = faces[f, k], 3 * f + k
            if first[v] < 0:
                first[v] = node
            else:
                following[last[v]] = node
            last[v] = node
    alive = np.ones(total, np.bool_)
    version = np.zeros(count, np.int64)
    point = np.empty(3)
    heap = [(0.0, 0, 0, 0, 0)]
    heap.clear()
    for e in range(len(edges)):
        a, b = edges[e, 0], edges[e, 1]
        cost = _place(quadrics[a] + quadrics[b], vertices[a], vertices[b], point)
        heap.append((cost, a, b, 0, 0))
    heapq.heapify(heap)
    left = total
    while left > target and len(heap) > 0:
        cost, a, b, stamp, tried = heapq.heappop(heap)
        if first[a] < 0 or first[b] < 0 or version[a] + version[b] != stamp:
            continue
        together = quadrics[a] + quadrics[b]
        _place(together, vertices[a], vertices[b], point)
        if tried == 0:
            flips = False
            for side in range(2):
                moving, other = (a, b) if side == 0 else (b, a)
                node = first[moving]
                while node >= 0 and not flips:
                    f = node // 3
                    if alive[f] and faces[f, 0] != other and faces[f, 1] != other and faces[f, 2] != other:
                        flips = _turns_over(vertices, faces, f, moving, point)
                    node = following[node]
            if flips:
                heapq.heappush(heap, (cost * _FLIP_PRICE + 1e-12, a, b, stamp, 1))
                continue
        vertices[a] = point
        quadrics[a] = together
        node = first[b]
        while node >= 0:
            f = node // 3
            if alive[f]:
                if faces[f, 0] == a or faces[f, 1] == a or faces[f, 2] == a:
                    alive[f] = False
                    left -= 1
                else:
                    faces[f, node % 3] = a
            node = following[node]
        following[last[a]] = first[b]
        last[a] = last[b]
        first[b] = -1
        version[a] += 1
        node = first[a]
        while node >= 0:
            f = node // 3
            if alive[f]:
                for k in range(3):
                    c = faces[f, k]
                    if c != a and first[c] >= 0:
                        price = _place(together + quadrics[c], vertices[a], vertices[c], point)
                        heapq.heappush(heap, (price, a, c, version[a] + version[c], 0))
            node = following[node]
    return vertices, faces[alive]
