"""Scenes as an agent's tools see them."""

from __future__ import annotations

import numpy as np
from support.language_scenes import living_room
from support.scene_builder import box_surface, plane, snapshot_of

from embodied_perceptron.agents.source import ObjectView
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.results import OccupancyGrid2d, Perception, SemanticVoxels


class StillScene:
    """Objects in a room of 10 x 10 m about the origin whose floor is free but for what stands on it."""

    def __init__(self, objects=None):
        objects = living_room() if objects is None else objects
        solids = [box_surface(tuple(o.box[:3]), tuple(o.box[3:6]), o.box[6], 0.04) for o in objects]
        voxels = snapshot_of(np.concatenate([plane((-5, -5, 0), (10, 0, 0), (0, 10, 0), 0.1), *solids]))
        cells = np.zeros((200, 200), np.int8)
        for o in objects:
            low, high = o.box[:2] - o.box[3:5] / 2, o.box[:2] + o.box[3:5] / 2
            (c0, r0), (c1, r1) = (np.clip(np.floor((v + 5) / 0.05).astype(int), 0, 200) for v in (low, high))
            cells[r0 : r1 + 1, c0 : c1 + 1] = 100
        grid = OccupancyGrid2d(0.05, np.array([-5.0, -5.0]), cells, 0.0)
        none = np.zeros((0, 3))
        cells_of = SemanticVoxels(
            0.1, none.astype(np.float32), none.astype(np.uint8), np.zeros(0, np.int32), np.zeros(0, np.float32), ()
        )
        self.scene = Perception.of(objects, stamp_ns=7, semantic=cells_of, grid=grid, voxels=voxels)

    is_live = False

    def views(self, thing):
        return (ObjectView("front", thing.last_seen_ns, np.zeros((20, 30, 3), np.uint8)),)

    def frame(self):
        return "map"

    def perception(self):
        return self.scene

    def ground(self, sentence, viewpoint):
        return ground_objects(sentence, self.scene.objects, viewpoint)
