"""The fuzzer: it finds nothing in a thousand inputs, it would find something, and it makes that small."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")
pytest.importorskip("embodied_perceptron_msgs.msg")

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_ros.node.corrections import CorrectionError

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "faults.py"
pytestmark = [pytest.mark.ros, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.fixture(scope="module")
def faults() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["faults"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def report(tally) -> str:
    return json.dumps(tally.faults, indent=1)


def test_a_thousand_inputs_meet_a_fate_with_a_name(faults: ModuleType, tmp_path: Path) -> None:
    tally = faults.run(faults.cases(2, 1000), 1000, tmp_path, minimising=False)
    assert not tally.faults, report(tally)
    assert tally.inputs == 1000
    rows = tally.rows()
    assert set(rows) == set(faults.KINDS)  # each kind was tried
    for fate in ("fused", "answered", "dropped", "refused"):
        assert sum(row[fate] for row in rows.values()) > 20


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_thousand_inputs(faults: ModuleType, tmp_path: Path) -> None:
    tally = faults.run(faults.cases(3, 20_000), 20_000, tmp_path, minimising=False)
    assert not tally.faults, report(tally)
    assert tally.healthy, tally.memory_mib


def test_long_sentences_take_little(faults: ModuleType) -> None:
    """Ten thousand are the matter of the script: there each has its limit."""
    met = [faults.Rig._sentence(None, case) for case in faults.cases(12, 120, ["sentence"])]
    assert {verdict.fate for verdict in met} >= {"answered", "refused"}
    times_ms = [verdict.cpu_ms for verdict in met]
    assert np.percentile(times_ms, 95) < faults.SENTENCE_LIMIT_MS
    assert max(times_ms) < 10 * faults.SENTENCE_LIMIT_MS  # the first may load tables


def test_a_sentence_that_takes_too_long_is_a_fault(faults: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "SENTENCE_LIMIT_MS", 0.0)
    verdict = faults.Rig._sentence(None, faults.Case("sentence", {"text": "the chair next to the table"}))
    assert verdict.fate == "unexplained"
    tally = faults.Tally()
    tally.add(faults.Case("sentence"), verdict)
    assert tally.to_json()["sentence_ms.max"] > 0


def test_the_same_seed_makes_the_same_cases(faults: ModuleType) -> None:
    first, again, other = (list(faults.cases(seed, 300)) for seed in (4, 4, 5))
    assert first == again != other
    assert all(json.loads(case.to_json())["changes"] == case.changes for case in first)


def test_a_fault_is_found_and_made_small(faults: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    integrate = Perceptron.integrate

    def faulty(self: Perceptron, posed, **options):
        if bool(np.isposinf(posed.frame.depth_m).any()):
            raise ZeroDivisionError("infinity was not expected here")
        return integrate(self, posed, **options)

    monkeypatch.setattr(Perceptron, "integrate", faulty)
    sound = [faults.Case("frame"), faults.Case("query", {"text": "the chair"})]
    bad = faults.Case("frame", {"fill": "inf", "order": [2, 1, 0, 3], "noise": 40})
    tally = faults.run([*sound, bad, *sound], 5, tmp_path)
    assert tally.fates["frame", "unexplained"] == 1
    assert not tally.healthy
    (fault,) = tally.faults.values()
    assert "infinity was not expected here" in fault["seen"]
    assert fault["cases"] == [faults.Case("frame", {"fill": "inf"}).to_json()]


def test_faults_of_several_inputs_are_made_small_too(faults: ModuleType) -> None:
    """No node: what fails is a rule about sequences."""

    def fails(cases) -> bool:
        wide = [i for i, c in enumerate(cases) if c.changes.get("width", 0) > 10]
        return bool(wide) and any("text" in c.changes for c in cases[wide[0] :])

    noise = [faults.Case("frame", {"fill": "inf"})] * 7
    history = [*noise, faults.Case("frame", {"width": 4711, "x": 1}), *noise, faults.Case("query", {"text": "abcdef"})]
    small = faults.minimise(history, fails)
    assert [c.changes for c in small] == [{"width": 18}, {"text": "a"}]


def test_a_hang_is_a_fault(faults: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = faults.Rig(tmp_path)
    try:
        monkeypatch.setattr(faults, "PATIENCE_S", 0.2)
        rig.node.told["~/grounding"] = []  # where no answer arrives
        verdict = rig.meet(faults.Case("query", {"text": "the chair"}))
    finally:
        rig.close()
    assert verdict.fate == "unexplained"
    assert verdict.signature.startswith("faults.HangError") or "no answer" in verdict.signature


def test_memory_that_grows_is_not_healthy(faults: ModuleType) -> None:
    tally = faults.Tally(memory_mib=[500.0, 510.0, 510.0, 511.0])
    tally.add(faults.Case("query"), faults.Verdict("answered"))
    assert tally.healthy
    tally.memory_mib = [500.0, 510.0, 560.0, 611.0]
    assert not tally.healthy


@pytest.mark.slow
def test_queries_beyond_their_rate_are_answered_unread(faults: ModuleType, tmp_path: Path) -> None:
    rig = faults.Rig(tmp_path)
    try:
        rig.node._parameters_now = dataclasses.replace(rig.node.parameters, max_queries_hz=0.1)
        answers = rig.node.told["~/grounding"]
        for _ in range(1100):
            rig.meet(faults.Case("query", {"text": "the chair"}))
        too_fast = [a for a in answers if "max_queries_hz" in a.reason]
        assert 90 <= len(too_fast) <= 100
        assert all(a.status == a.INVALID for a in too_fast)
        assert rig.node.health.counted("queries_over_rate") == len(too_fast)
    finally:
        rig.close()


def test_too_long_a_path_is_refused(faults: ModuleType) -> None:
    path = faults.PathMessage(poses=[faults.PoseStamped()] * 100_001)
    path.header.frame_id = "odom"
    with pytest.raises(CorrectionError, match="100001"):
        faults.corrected_poses(path, "odom", {}, lambda *_: np.eye(4))
