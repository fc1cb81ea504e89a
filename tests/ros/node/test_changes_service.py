"""``~/changes`` compares the live map with the file that it was loaded from, and says why where it cannot."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs")

from support.online_world import BOXES, config, look_at, photograph

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_ros.node.services import MapServices, refusal

pytestmark = pytest.mark.ros


class Node:
    """Creates services that nobody calls."""

    def __init__(self, folder: Path) -> None:
        self.parameters = SimpleNamespace(map_folder=str(folder))

    def create_service(self, *args: Any, **named: Any) -> None:
        return None

    def destroy_service(self, service: Any) -> None:
        return None


def a_map(boxes: Any, first_ns: int, into: Perceptron | None = None) -> Perceptron:
    it = Perceptron(config()) if into is None else into
    for n in range(12):
        eye = (-0.2 + 0.05 * n, -0.5 + 0.1 * n, 1.4)
        for k, target in enumerate(((1.2, 0.0, 0.4), (-1.1, 0.9, 0.3), (0.5, 1.5, 0.3))):
            it.integrate(photograph(look_at(eye, target), first_ns + (3 * n + k + 1) * 10**8, boxes))
        it.perceive()
    return it


def services_of(perceptron: Perceptron, folder: Path) -> MapServices:
    return MapServices(Node(folder), perceptron, None, lambda: None, None)


def test_changes_are_told_in_words_and_refusals_too(tmp_path: Path) -> None:
    saved = tmp_path / "before.safetensors"
    a_map(BOXES, 0).save(saved)
    live = Perceptron(config())
    live.load(saved)
    a_map(BOXES[1:], 10**10, live)
    told = services_of(live, tmp_path).changes_since_loaded()
    assert "unchanged" in told
    assert "left: " in told
    saved.unlink()
    with pytest.raises(FileNotFoundError) as gone:
        services_of(live, tmp_path).changes_since_loaded()
    assert "does not exist any more" in refusal(gone.value)
    live.reset()
    with pytest.raises(ValueError, match="no map was loaded"):
        services_of(live, tmp_path).changes_since_loaded()
