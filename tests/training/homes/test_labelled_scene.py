"""Sentences about annotated boxes, without the models of a generated home."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.homes.prompts import all_facts
from embodied_perceptron_training.homes.relations import labelled_scene
from embodied_perceptron_training.training.prepared_scenes import sentences_of

# a table with a cup on it, a second cup on the floor near a door, a third one far away
THINGS = {
    "table": [(0.0, 0.0, 0.4, 1.2, 0.8, 0.8)],
    "door": [(3.0, 0.0, 1.0, 0.1, 0.9, 2.0)],
    "cup": [(0.1, 0.0, 0.85, 0.08, 0.08, 0.1), (2.5, 0.0, 0.05, 0.08, 0.08, 0.1), (-4.0, 3.0, 0.05, 0.08, 0.08, 0.1)],
    "wall": [(0.0, 4.0, 1.0, 9.0, 0.1, 2.5)],
}
LABELS = [name for name, boxes in THINGS.items() for _ in boxes]
BOXES = np.array([[*box, 0.0, 0.0, 0.0] for boxes in THINGS.values() for box in boxes])
IDS = np.arange(len(LABELS)) + 10


def test_facts_of_boxes_are_those_of_their_geometry() -> None:
    facts = all_facts(labelled_scene(BOXES, LABELS, IDS))
    table, door, first, second, third = range(5)
    assert {(f.relation, f.target, f.anchors) for f in facts if f.relation != "unique"} == {
        ("on", first, (table,)),
        ("closest", first, (table,)),
        ("farthest", third, (table,)),
        ("closest", second, (door,)),
        ("farthest", third, (door,)),
    }
    assert {f.target for f in facts if f.relation == "unique"} == {table, door}
    assert all_facts(labelled_scene(BOXES[:0], [], IDS[:0])) == []


def test_training_makes_sentences_from_annotated_boxes(tmp_path: Path) -> None:
    numbers = {name: k for k, name in enumerate(THINGS)}
    instances = [
        {"bbox_3d": box.tolist(), "bbox_label_3d": numbers[label], "bbox_id": int(k)}
        for box, label, k in zip(BOXES, LABELS, IDS, strict=True)
    ]
    scan = {"sample_idx": "scannet/a", "images": [], "instances": instances}
    infos = {"metainfo": {"categories": numbers}, "data_list": [scan]}
    (tmp_path / "embodiedscan_infos_train.pkl").write_bytes(pickle.dumps(infos))
    dataset = EmbodiedScanDataset(tmp_path)
    prompts = sentences_of(dataset, "made")
    assert len(prompts) >= 5
    assert {p.target_ids[0] for p in prompts if p.target == "cup"} == {12, 13, 14}
    for p in prompts:
        ((start, end),) = p.tokens_positive
        assert p.text[start:end] == p.target
    assert sentences_of(dataset, "made") == prompts


def test_scans_of_some_sources_alone(tmp_path: Path) -> None:
    scans = [{"sample_idx": f"{source}/a", "images": []} for source in ("scannet", "3rscan", "scannet")]
    infos = {"metainfo": {"categories": {}}, "data_list": scans}
    (tmp_path / "embodiedscan_infos_train.pkl").write_bytes(pickle.dumps(infos))
    assert [len(EmbodiedScanDataset(tmp_path, "train", s)) for s in ("", "scannet", "scannet, 3rscan")] == [3, 2, 3]
    with pytest.raises(ValueError, match="unknown sources kitti; known: scannet"):
        EmbodiedScanDataset(tmp_path, "train", "scannet,kitti")
    with pytest.raises(ValueError, match="no scan of matterport3d"):
        EmbodiedScanDataset(tmp_path, "train", "matterport3d")
