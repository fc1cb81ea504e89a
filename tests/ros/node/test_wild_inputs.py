"""Mutated inputs in front of the real node: each is fused, answered, or dropped or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")
pytest.importorskip("embodied_perceptron_msgs.msg")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import wild_inputs as wild

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_ros.node.corrections import CorrectionError

pytestmark = [pytest.mark.ros, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
# the strategy, the number of examples in the gate, and the outcomes that they must include
KINDS = {
    "frame": (wild.FRAMES | wild.CALIBRATIONS, 400, {"fused", "dropped"}),
    "transform": (wild.TRANSFORMS, 200, {"fused", "refused"}),
    "query": (wild.QUERIES, 150, {"answered", "refused"}),
    "service": (wild.SERVICES, 60, {"answered", "refused"}),
    "parameter": (wild.PARAMETERS, 100, {"answered", "refused"}),
    "path": (wild.PATHS, 60, {"answered", "refused"}),
    "map_file": (wild.MAP_FILES, 30, {"refused"}),
    "weights_file": (wild.FILES, 60, {"refused"}),
    "configuration": (wild.CONFIGURATIONS, 40, {"answered", "refused"}),
    "tum_folder": (wild.TUM_FOLDERS, 30, {"answered", "refused"}),
    "bag": (wild.FILES, 20, {"refused"}),
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wild.Rig]:
    made = wild.Rig(tmp_path_factory.mktemp("wild"))
    yield made
    made.close()


def outcomes_of(
    rig: wild.Rig, kind: str, examples: int, derandomize: bool, cases: st.SearchStrategy[wild.Case] | None = None
) -> set[str]:
    outcomes = set()

    @settings(
        max_examples=examples,
        derandomize=derandomize,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(KINDS[kind][0] if cases is None else cases)
    def meets(case: wild.Case) -> None:
        outcomes.add(rig.meet(kind, case))

    meets()
    rig.node._publish_diagnostics()  # the node's own status must be a valid message after all of them
    return outcomes


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_input_has_an_outcome(rig: wild.Rig, kind: str) -> None:
    assert outcomes_of(rig, kind, KINDS[kind][1], derandomize=True) >= KINDS[kind][2]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_one_of_many_random_inputs_has_an_outcome(rig: wild.Rig, kind: str) -> None:
    assert outcomes_of(rig, kind, 20 * KINDS[kind][1], derandomize=False) >= KINDS[kind][2]


def test_a_fault_is_found_and_made_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    integrate = Perceptron.integrate

    def faulty(self: Perceptron, posed, **options):
        if bool(np.isposinf(posed.frame.depth_m).any()):
            raise ZeroDivisionError("infinity was not expected here")
        return integrate(self, posed, **options)

    monkeypatch.setattr(Perceptron, "integrate", faulty)
    drawn: list[wild.Case] = []
    rig = wild.Rig(tmp_path)
    try:
        with pytest.raises(wild.UnexplainedError, match="internal_error"):
            outcomes_of(rig, "frame", 200, True, wild.FILLED_FRAMES.map(lambda case: drawn.append(case) or case))
    finally:
        rig.close()
    assert drawn[-1] == {"fill": "inf"}  # the last one is the smallest


def test_a_path_that_is_too_long_is_refused() -> None:
    path = wild.PathMessage(poses=[wild.PoseStamped()] * 100_001)
    path.header.frame_id = "odom"
    with pytest.raises(CorrectionError, match="100001"):
        wild.corrected_poses(path, "odom", {}, lambda *_: np.eye(4))
