"""Doctor and replay of recordings with faults of some frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.small_recording import write_recording

from embodied_perceptron.apps.checks import has_errors
from embodied_perceptron.apps.doctor import examine_recording
from embodied_perceptron.apps.replay import replay
from embodied_perceptron.config import NetworkOptions, PerceptronConfig, SynchronizerConfig
from embodied_perceptron.recordings.open import open_recording

SHAPES = PerceptronConfig(network=NetworkOptions(weights=""))


@pytest.mark.parametrize(
    ("every", "spoil", "expected"),
    [
        (5, lambda depth: depth[::-1], "every 5th frame"),
        (5, lambda depth: 10 * depth, "10 times too large"),
        (
            2,
            lambda depth: cv2.resize(depth[20:100, 26:134], (160, 120), interpolation=0),
            "every second",
        ),
    ],
    ids=["flipped", "scale", "unaligned"],
)
def test_bad_depth_of_single_frames_is_left_out_and_named(
    tmp_path: Path, every: int, spoil: Callable[[np.ndarray], np.ndarray], expected: str
) -> None:
    folder = write_recording(tmp_path, 40)
    for i, file in enumerate(sorted((folder / "depth").iterdir())):
        if i % every == every - 1:
            depth = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
            cv2.imwrite(str(file), np.ascontiguousarray(spoil(depth)))
    result = replay(open_recording(folder), SHAPES)
    assert set(result.dropped) == {"inconsistent_depth"}
    assert 40 // every - 4 <= result.dropped["inconsistent_depth"] <= 40 // every
    findings = examine_recording(open_recording(folder), SynchronizerConfig())
    (single,) = [f for f in findings if f.check == "single frames"]
    assert expected in single.message
    assert not has_errors(findings), [f.message for f in findings]
