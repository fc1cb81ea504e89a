"""Pictures and recordings of what was perceived."""

from __future__ import annotations

from embodied_perceptron.viewing.drawing import color_of_id, draw_boxes_on_image
from embodied_perceptron.viewing.top_view import render_top_view

__all__ = ["color_of_id", "draw_boxes_on_image", "render_top_view"]
