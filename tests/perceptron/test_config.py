"""Strict configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied_perceptron.config import (
    ConfigError,
    GridConfig,
    PerceptronConfig,
    config_from_dict,
    config_to_dict,
    load_config,
)


def test_round_trip() -> None:
    config = config_from_dict(PerceptronConfig, {"volume": {"voxel_size_m": 0.05}, "keyframes": {"max_count": 7}})
    assert config.volume.voxel_size_m == 0.05
    assert config_from_dict(PerceptronConfig, config_to_dict(config)) == config


def test_section_objects_is_flat() -> None:
    """A file of any release loads: parts of the section have no names in it."""
    section = yaml.safe_load(
        """
        {cell_size_m: 0.07, min_height_m: 0.1, max_height_m: 2.1, min_cells: 21, min_size_m: 0.09, max_size_m: 3.6,
        match_iou: 0.21, confirm_count: 3, independent_looks: 1.6, prior_existence: 0.31, clutter_score: 0.11,
        max_detection_log_odds: 2.6, max_log_odds: 4.1, miss_log_odds_per_s: 0.9, explained_miss_factor: 2.6,
        moved_miss_factor: 4.1, min_log_odds: -1.6, gone_log_odds: -1.9, max_unfound_s: 61.0, part_s: 2.1,
        forgotten_surroundings: 0.51, forgotten_support: 0.31, back_support: 0.11, back_surroundings: 0.81,
        there_share: 0.99, there_sigma: 0.31, gone_share: 0.06, gone_sigma: 0.11, least_open: 0.21, least_support: 4.1,
        explained_share: 0.71, settled_count: 5, settled_share: 0.76, stacked_iou: 0.26, own_mass_share: 0.31,
        score_memory: 21, name_memory: 0.96, box_memory: 2.1, pause_s: 31.0, max_found: 129}
        """
    )
    config = config_from_dict(PerceptronConfig, {"objects": section})
    assert config_to_dict(config)["objects"] == section
    assert config_to_dict(PerceptronConfig())["objects"].keys() == section.keys()
    assert all(config_to_dict(PerceptronConfig())["objects"][key] != value for key, value in section.items())
    assert config.objects.segmentation.min_cells == 21
    assert config.objects.tracking.existence.confirm_count == 3
    assert config_from_dict(PerceptronConfig, config_to_dict(config)) == config


def test_integers_are_good_floats() -> None:
    assert config_from_dict(PerceptronConfig, {"volume": {"max_range_m": 4}}).volume.max_range_m == 4.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"volumes": {}}, r"config: unknown key\(s\) volumes; known: volume"),
        ({"volume": {"voxel_size": 0.02}}, r"config\.volume: unknown key\(s\) voxel_size"),
        ({"volume": {"voxel_size_m": "0.02"}}, r"config\.volume\.voxel_size_m must be float, got '0.02'"),
        ({"volume": {"max_blocks": 1.5}}, r"config\.volume\.max_blocks must be int"),
        ({"volume": {"clearing": 1}}, r"config\.volume\.clearing must be bool"),
        ({"volume": {"max_blocks": True}}, r"config\.volume\.max_blocks must be int"),
        ({"volume": {"voxel_size_m": float("nan")}}, "voxel_size_m"),
        ({"volume": {"min_range_m": 6.0}}, "min_range_m < max_range_m"),
        ({"volume": {"radius_m": 1.0}}, "radius_m"),
        ({"objects": {"there_sigma": 0.0}}, "there_sigma must be positive, got 0.0"),
        ({"objects": {"stacked_iou": 1.1}}, r"stacked_iou must be in \[0, 1\], got 1.1"),
        ({"objects": {"there_share": 0.05}}, "gone_share < there_share"),
        ({"objects": {"score_memory": 0}}, "score_memory must be at least 1"),
        (
            {"objects": {"min_cell": 3}},
            r"config\.objects: unknown key\(s\) min_cell; known: cell_size_m, .*, box_memory",
        ),
        ({"objects": {"existence": {}}}, r"config\.objects: unknown key\(s\) existence"),
        ({"objects": {"min_cells": 0}}, r"config\.objects: min_cells must be at least 1, got 0"),
        ({"objects": {"min_cells": "8"}}, r"config\.objects\.min_cells must be int"),
        ({"volume": 3}, r"config\.volume must be a mapping"),
        ([], "config must be a mapping"),
    ],
)
def test_bad_configuration_names_its_path(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_dict(PerceptronConfig, data)


def test_files(tmp_path: Path) -> None:
    good, empty, broken, binary = (tmp_path / n for n in ("good.yaml", "empty.yaml", "broken.yaml", "binary.yaml"))
    good.write_text("volume:\n  voxel_size_m: 0.04\n")
    empty.write_text("")
    broken.write_text("volume: [1, 2\n")
    binary.write_bytes(b"\xff\xfe\x00volume")
    assert load_config(good).volume.voxel_size_m == 0.04
    assert load_config(empty) == PerceptronConfig()
    with pytest.raises(ConfigError, match=r"broken\.yaml is not valid YAML"):
        load_config(broken)
    with pytest.raises(ConfigError, match=r"binary\.yaml is not UTF-8"):
        load_config(binary)
    with pytest.raises(FileNotFoundError):
        load_config(tmp_path / "absent.yaml")


def test_costs_of_classes_are_a_mapping():
    config = config_from_dict(GridConfig, {"class_costs": {"potted plant": 60}})
    assert config.class_costs == {"potted plant": 60}
    assert config_from_dict(GridConfig, config_to_dict(config)) == config
    for bad, message in (
        ({"plant": 100}, "class_costs.plant"),
        ({"plant": "much"}, "class_costs.plant"),
        ([1], "mapping"),
    ):
        with pytest.raises(ConfigError, match=message):
            config_from_dict(GridConfig, {"class_costs": bad})


def test_yaml_that_stands_for_billions_of_values_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    path.write_text("\n".join([*lines, "volume: {voxel_size_m: *a59}"]))
    with pytest.raises(ConfigError, match="values after expanding its aliases"):
        load_config(path)
    path.write_text("volume: &a {voxel_size_m: [*a]}")
    with pytest.raises(ConfigError, match="values after expanding its aliases"):
        load_config(path)
    path.write_text("volume: {voxel_size_m: &size 0.04, min_range_m: *size}")
    assert load_config(path).volume.voxel_size_m == 0.04
