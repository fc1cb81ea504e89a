"""Boxes, detections and worlds of the tests of the object map."""

from __future__ import annotations

import numpy as np
from support.scene_builder import box_surface, plane, snapshot_of

from embodied_perceptron.results import Detections

SECOND = 1_000_000_000
FLOOR = plane((-4, -3, 0), (8, 0, 0), (0, 6, 0), 0.02)
A = (0.0, 0.0, 0.4, 0.8, 0.6, 0.8, 0.2, 0.0, 0.0)
B = (2.0, 1.0, 0.3, 0.5, 0.5, 0.6, 0.0, 0.0, 0.0)
C = (-2.0, 1.0, 0.3, 0.6, 0.4, 0.6, 0.0, 0.0, 0.0)


def found(*boxes, scores=None, labels=None):
    n = len(boxes)
    return Detections(
        np.array(boxes, dtype=np.float64).reshape(-1, 9),
        np.full(n, 0.8) if scores is None else np.array(scores, dtype=np.float64),
        ("object",) * n if labels is None else tuple(labels),
    )


def world(*boxes, stamp_ns=7):
    solids = [box_surface(tuple(b[:3]), tuple(b[3:6]), b[6], 0.02) for b in boxes]
    return snapshot_of(np.concatenate([FLOOR, *solids]), stamp_ns=stamp_ns)


def ids(objects, state=None):
    return [o.id for o in objects.objects() if state is None or o.state == state]
