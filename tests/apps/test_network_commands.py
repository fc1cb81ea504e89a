"""``model`` and ``weights convert``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
import typer
from support.golden import load_json
from typer.testing import CliRunner

from embodied_perceptron.apps.network_commands import register
from embodied_perceptron.inference.loading import load_network
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import PRESETS, network_config, released
from embodied_perceptron.nn.summary import networks_of, stage_rows
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron.weights.checkpoint import CheckpointError, load_into, load_official

WIDE = {"COLUMNS": "200"}


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    register(made)
    return made


def rows(preset: str, task: str = "all") -> dict[str, str]:
    return {row.stage: row.channels for config in networks_of(preset, task) for row in stage_rows(config)}


def test_paper_has_the_channels_of_the_paper() -> None:
    found = rows("paper")
    assert [found[f"layer{i}, {n} blocks"] for i, n in ((1, 3), (2, 4), (3, 6), (4, 3))] == ["64", "128", "256", "512"]
    assert found["fused with images"] == "128, 256, 512, 1024"
    assert found["fused in every cell"] == "512 + 256 = 768"
    assert found["occupancy pyramid"] == "768 -> 128"
    assert found["occupancy head"] == "80 + 1"
    assert found["detection head"] == "284 + 1 + 12"


@pytest.mark.parametrize("preset", PRESETS)
def test_cells_follow_from_strides(preset: str) -> None:
    for config in networks_of(preset, "all"):
        for row in stage_rows(config):
            if row.stage.startswith("layer"):
                assert row.cell == f"{int(row.stride) * config.voxel_size_m:g} m"


@pytest.mark.parametrize("preset", PRESETS)
def test_printed_totals_are_those_of_the_network(app: typer.Typer, preset: str) -> None:
    result = CliRunner().invoke(app, ["dev", "model", preset, "--task", "detection"], env=WIDE)
    assert result.exit_code == 0
    with torch.device("meta"):
        network = PerceptionNetwork(network_config(preset, "detection"))
    total = sum(p.numel() for p in network.parameters())
    assert re.search(rf"total .*\b{total:,} ", result.output)


def test_tiny_is_small_enough_to_ship() -> None:
    (config,) = networks_of("tiny", "all")
    assert sum(row.parameters for row in stage_rows(config)) * 2 <= 16 * 2**20  # half precision, with image encoder


def test_unknown_names_are_usage_errors(app: typer.Typer) -> None:
    for arguments in (
        ["dev", "model", "huge"],
        ["dev", "model", "tiny", "--task", "cooking"],
        ["dev", "model", "tiny", "--classes", "0"],
    ):
        assert CliRunner().invoke(app, arguments).exit_code == 2


def test_registering_does_not_load_torch() -> None:
    code = (
        "import sys, typer; from embodied_perceptron.apps.network_commands import register; "
        "register(typer.Typer()); print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.strip() == "False"


def test_registered_for_the_command_line() -> None:
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    group = project.split('[project.entry-points."embodied_perceptron.commands"]')[1].split("\n[")[0]
    entry = EntryPoint("network", re.search(r'^network = "(.+)"$', group, re.M)[1], "embodied_perceptron.commands")  # type: ignore[index]
    assert entry.load() is register


@pytest.mark.golden
@pytest.mark.parametrize("task", ["detection", "occupancy", "grounding"])
def test_a_released_state_fits_the_released_network(task: str) -> None:
    """Every parameter of the network is found, and none is left but those the release never reads."""
    shapes = load_json(f"state_dict_{task}")
    with torch.device("meta"):
        network = PerceptionNetwork(released(network_config("paper", task)))
        imported = load_official({k: torch.empty(s) for k, s in shapes.items()}, task)  # type: ignore[arg-type]
        load_into(network, imported.state, "released")
        assert all(".self_posembed." in key for key in imported.unused)
        ours = PerceptionNetwork(network_config("paper", "detection", num_classes=20))
        with pytest.raises(CheckpointError, match="does not fit this network"):
            load_into(ours, imported.state, "released")


@pytest.mark.golden
@pytest.mark.slow
@pytest.mark.parametrize(("task", "keep"), [("detection", 100_000), ("continuous-detection", 20_000)])
def test_a_released_file_becomes_weights(tmp_path: Path, app: typer.Typer, task: str, keep: int) -> None:
    shapes = load_json("state_dict_detection")
    state = {k: torch.tensor(0.25).expand(s) for k, s in shapes.items()}  # one number on disk each
    state["data_preprocessor.mean"] = torch.ones(3)
    torch.save({"state_dict": state, "meta": {"epoch": 12}}, tmp_path / "released.pth")
    out = tmp_path / "w.safetensors"
    release = ["--from-release", str(tmp_path / "released.pth")]
    arguments = ["weights", "convert", *release, "--task", task, "--out", str(out)]
    result = CliRunner().invoke(app, arguments, env=WIDE)
    assert result.exit_code == 0, result.output
    assert "1 keys of released.pth were not used" in result.output
    assert "  data_preprocessor.mean" in result.output
    network, classes = load_network(out)
    assert classes == DETECTION_CLASSES
    assert network.config.official
    assert network.config.detection is not None
    assert network.config.detection.keep == keep  # of the released configuration
    assert all(bool((p == 0.25).all()) for p in network.parameters())


def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path, app: typer.Typer) -> None:
    out = tmp_path / "w.safetensors"
    (tmp_path / "text.pth").write_text("hello")
    torch.save({"state_dict": {"decoder.norm.weight": torch.ones(3)}}, tmp_path / "grounding.pth")
    torch.save({"state_dict": {"bbox_head.conv_cls.bias": torch.ones(1, 18)}}, tmp_path / "part.pth")
    for name, words in (
        ("text.pth", "not a readable torch checkpoint"),
        ("grounding.pth", "no key of this state dict belongs to a detection model"),
        ("part.pth", "detection.classify.bias is (1, 18), the network has (1, 284)"),
    ):
        release = ["--from-release", str(tmp_path / name)]
        arguments = ["weights", "convert", *release, "--task", "detection", "--out", str(out)]
        result = CliRunner().invoke(app, arguments, env=WIDE)
        assert result.exit_code == 2
        assert words in result.output
        assert not out.exists()
    assert (
        CliRunner()
        .invoke(app, ["weights", "convert", "--from-release", "nowhere.pth", "--task", "detection"])
        .exit_code
        == 2
    )


def test_lists_are_printed_as_json(app: typer.Typer) -> None:
    listed = json.loads(CliRunner().invoke(app, ["weights", "list", "--json"]).stdout)
    assert listed["tiny"]["file"] == "tiny.safetensors"
    assert {"fusion", "language"} <= set(json.loads(CliRunner().invoke(app, ["dev", "bench", "--json"]).stdout))
