"""One function over many scenes: order, skipped ones, faults; with and without processes."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from embodied_perceptron_training.evaluation.runner.parallel import (
    CorruptSceneError,
    EvaluationError,
    known_everywhere,
    map_scenes,
)
from embodied_perceptron_training.processes import Cluster, choose_workers


def half(name: str) -> int:
    if name == "bad":
        raise CorruptSceneError("file is damaged")
    if name == "bug":
        raise RuntimeError("a fault of the program")
    return int(name) // 2


def test_results_keep_the_order_of_the_names() -> None:
    seen: list[tuple[int, int]] = []
    outcome = map_scenes(half, ["9", "3", "bad", "4"], 1, lambda *p: seen.append(p), max_corrupt_share=0.25)
    assert outcome.results == [4, 1, 2]
    assert outcome.skipped == {"bad": "file is damaged"}
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_one_in_a_hundred_may_be_skipped_and_no_more() -> None:
    names = [str(i) for i in range(99)]
    assert map_scenes(half, [*names, "bad"], 1).results == [i // 2 for i in range(99)]
    with pytest.raises(EvaluationError, match="1 of 99 scenes cannot be read, at most 1% may: bad: file is damaged"):
        map_scenes(half, [*names[:98], "bad"], 1)


def test_faults_of_the_program_are_not_taken_for_corrupt_scenes() -> None:
    with pytest.raises(RuntimeError, match="fault of the program"):
        map_scenes(half, ["1", "bug"], 1)


def test_processes_give_the_same() -> None:
    names = [str(i) for i in range(99)]
    outcome = map_scenes(half, [*names, "bad"], 2)
    assert outcome.results == [i // 2 for i in range(99)]
    assert outcome.skipped == {"bad": "file is damaged"}


def test_a_fault_in_a_process_ends_the_others() -> None:
    with pytest.raises(EvaluationError, match="1 of 40 scenes"):
        map_scenes(half, ["bad", *(str(i) for i in range(39))], 2)


def test_at_least_one_worker() -> None:
    with pytest.raises(ValueError, match="at least one worker, got 0"):
        map_scenes(half, ["1"], 0)


@pytest.mark.slow  # starts a cluster on this machine
def test_a_cluster_gives_the_same():
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the cluster's processes do not see tests
    names = [str(i) for i in range(99)]
    seen: list[tuple[int, int]] = []
    outcome = map_scenes(half, [*names, "bad"], Cluster("local"), lambda *p: seen.append(p))
    assert outcome.results == [i // 2 for i in range(99)]
    assert outcome.skipped == {"bad": "file is damaged"}
    assert seen == [(i, 100) for i in range(101)]
    with pytest.raises(RuntimeError, match="fault of the program"):
        map_scenes(half, ["1", "bug"], Cluster("local"))


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_a_cluster_is_refused_by_name():
    with pytest.raises(EvaluationError, match="pip install ray"):
        map_scenes(half, ["1"], Cluster("local"))


def test_a_cluster_instead_of_processes_knows_whole_paths(tmp_path, monkeypatch):
    assert choose_workers(3, None) == 3
    assert choose_workers(3, "head:6379") == Cluster("head:6379")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "homes").mkdir()
    assert known_everywhere("homes", 2) == "homes"
    assert known_everywhere("homes", Cluster("auto")) == str(tmp_path / "homes")
    assert known_everywhere("tiny", Cluster("auto")) == "tiny"
