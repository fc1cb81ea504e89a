"""Pictures and recordings of what was perceived."""

from __future__ import annotations

from embodied_perceptron.viewing.drawing import color_of_id, draw_boxes_on_image
from embodied_perceptron.viewing.recorder import RerunRecorder, ViewerUnavailableError
from embodied_perceptron.viewing.room_view import render_3d
from embodied_perceptron.viewing.top_view import render_top_view

__all__ = [
    "RerunRecorder",
    "ViewerUnavailableError",
    "color_of_id",
    "draw_boxes_on_image",
    "render_3d",
    "render_top_view",
]
