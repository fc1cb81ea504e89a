"""The real kitchen: what a stranger points at is found. Truth was read off by eye from the pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied_perceptron.apps.replay import replay
from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.geometry.boxes import box_iou, flatten_boxes
from embodied_perceptron.recordings.tum import TumRecording
from embodied_perceptron.visualization.top_view import render_top_view

SHAPES = PerceptronConfig(network=NetworkOptions(weights=""))  # boxes by shape alone, whatever is shipped
TABLE = [0.66, 0.45, 0.38, 2.16, 0.9, 0.73, -np.pi / 2, 0, 0]
COUNTER = [0.1, -1.85, 0.8, 2.4, 0.8, 1.6, 0, 0, 0]  # with the cupboards above it
CHAIR_BACKS = [(0.08, -0.09), (0.1, 0.92), (0.63, 1.65), (1.32, 0.0), (0.5, -0.85)]


@pytest.fixture(scope="module")
def kitchen(kitchen_dir):
    return replay(TumRecording(kitchen_dir), SHAPES, perceive_every_s=5.0)


def boxes_of(perception):
    return torch.tensor(np.stack([o.box for o in perception.objects]))


def test_table_and_counter_are_among_the_boxes(kitchen):
    boxes = boxes_of(kitchen.perception)
    assert float(box_iou(boxes, torch.tensor([TABLE], dtype=torch.float64)).max()) > 0.75
    counter = flatten_boxes(torch.tensor([COUNTER], dtype=torch.float64))
    assert float(box_iou(flatten_boxes(boxes), counter).max()) > 0.6


def test_chairs_are_objects_of_their_own(kitchen):
    boxes = [o.box for o in kitchen.perception.objects]
    chairs = [b for b in boxes if b[3] < 0.9 and b[2] + b[5] / 2 < 1.0 and b[5] > 0.6]
    found = [any(np.hypot(*(b[:2] - back)) < 0.35 for b in chairs) for back in CHAIR_BACKS]
    assert sum(found) >= 4, found


def test_floor_is_free_and_table_is_occupied(kitchen):
    grid = kitchen.perception.grid

    def at(x, y):
        column, row = np.floor((np.array([x, y]) - grid.origin_m) / grid.resolution_m).astype(int)
        return int(grid.cells[row, column])

    assert abs(grid.floor_z_m) < 0.05
    table = [at(0.66 + dx, 0.45 + dy) for dx in np.arange(-0.35, 0.36, 0.1) for dy in np.arange(-0.95, 0.96, 0.1)]
    assert all(cell == 100 for cell in table)
    floor = [at(x, y) for x in np.arange(0.3, 1.1, 0.1) for y in np.arange(-1.3, -1.15, 0.05)]
    assert np.mean(np.array(floor) == 0) > 0.9
    assert not any(cell == 100 for cell in floor)


def test_a_second_run_gives_the_same_objects_to_the_bit(kitchen, kitchen_dir):
    again = replay(TumRecording(kitchen_dir), SHAPES, perceive_every_s=5.0)
    assert [o.id for o in again.perception.objects] == [o.id for o in kitchen.perception.objects]
    assert boxes_of(again.perception).numpy().tobytes() == boxes_of(kitchen.perception).numpy().tobytes()


def test_top_view_shows_the_room(kitchen):
    top = render_top_view(kitchen.perception, trajectory_m=kitchen.trajectory_m, max_pixels=600)
    r, g, b = (top[..., i].astype(int) for i in range(3))
    wood = (r > 120) & (r - b > 30) & (r - g > 10) & (g - b > 10)
    red = (r > 70) & (r > 2 * g) & (r > 2 * b)
    assert wood.mean() > 0.02  # the table
    assert red.mean() > 0.005  # the cupboards
