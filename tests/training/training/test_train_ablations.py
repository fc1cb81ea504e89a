"""The paper's comparisons: which rows, one training per network, resumable, printed as tables."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from support.toy_task import ToyTask
from typer.testing import CliRunner

from embodied_perceptron_training.training import ablations, train_command
from embodied_perceptron_training.training.ablations import (
    ROWS,
    TABLES,
    Budget,
    Row,
    TrainingStopped,
    chosen_rows,
    markdown,
    planned,
    run_row,
    run_rows,
    write_tables,
)
from embodied_perceptron_training.training.criteria import BOX_LOSSES
from embodied_perceptron_training.training.trainer import Trainer
from embodied_perceptron_training.training.training_run import TrainingRun, preset_defaults


class Detector(ToyTask):
    best_metric = "AP25"

    def validate(self, model: Any) -> dict[str, float]:
        return {"AP25": 30.0 + super().validate(model)["score"], "AR25": 70.0}


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Requests that were trained; the second one is interrupted once."""
    done: list[Mapping[str, Any]] = []

    def train_run(run: TrainingRun, folder: Path, resume: bool = False, quiet: bool = False) -> Any:
        stored = run.to_json()
        done.append({**stored["request"], "resumed": resume, "settings": stored["settings"]})
        task = Detector(signal_at=2 if len(done) == 2 else 0)
        config = run.replaced(batch=4, workers=0)
        return Trainer(task, config, ablations.RunFolder(folder, pictures=False), quiet=True).run(resume)

    monkeypatch.setattr(ablations, "train_run", train_run)
    return done


def budget(folder: Path, **changes: Any) -> Budget:
    return Budget(**{"data": folder, "val": folder, "steps": 4, "options": {"images": "imagenet"}, **changes})


def test_rows_are_those_of_the_tables() -> None:
    assert len({r.name for r in ROWS}) == len(ROWS)
    assert {r.table for r in ROWS} == set(TABLES)
    assert [r.name for r in chosen_rows(["matchers", "detectors-ours"])] == [
        *("detectors-ours", "matchers-scanrefer", "matchers-butd-detr", "matchers-ours"),
    ]
    assert {dict(r.options)["w_iou"] for r in chosen_rows(["loss"])} == {"0.0"}  # the design alone
    assert {r.box_loss for r in ROWS} == set(BOX_LOSSES)
    assert {r.views: dict(r.options)["val_views"] for r in chosen_rows(["training-views"])} == dict.fromkeys(
        (1, 5, 10, 20, 40), "50"
    )
    trained = [r for r in ROWS if not r.scored]
    # tasks-detection is detectors-ours, matchers-ours is tasks-grounding, two tables have "ours" of occupancy
    assert len({r.folder() for r in trained}) == len(trained) - 4
    assert set(ROWS) - set(chosen_rows(["all"])) == set(chosen_rows(["fusion"]))
    assert set(ROWS) - set(chosen_rows(["all"], "paper")) == set(chosen_rows(["matchers"]))
    with pytest.raises(ValueError, match="unknown rows soup"):
        chosen_rows(["detectors", "soup"])
    # nothing but what a row is about differs from "ours"
    ours = next(r for r in ROWS if r.name == "detectors-ours")
    plain = next(r for r in ROWS if r.name == "loss-plain")
    own = {"box_loss": "decoupled", "options": ()}
    assert dataclasses.replace(plain, name=ours.name, table=ours.table, label=ours.label, **own) == ours


# name of each row in the paper -> its figure AP25 or mIoU there, which tells the row
PAPER_ROWS = {
    "detection": {"Camera-Only": 12.80, "Depth-Only": 17.16, "Multi-Modality": 19.07},  # Table 2
    "detectors": {
        **{"ImVoxelNet": 6.15, "VoteNet": 3.20, "FCAF3D": 9.07},
        **{"+our decoder": 14.80, "+painting": 15.10, "Ours": 16.85},
    },
    "occupancy": {"Camera-Only": 10.43, "Depth-Only": 14.44, "Multi-Modality": 20.79},  # Table 3
    "multi-view-occupancy": {
        **{"OccNet": 8.07, "SurroundOcc": 9.10},
        **{"Camera-Only": 10.48, "Depth-Only": 15.56, "Multi-Modality": 19.97},
    },
    "fusion": {  # Table 12
        **{"Painting": 20.33, "MinkUNet": 24.53, "MinkResNet (w/o FPN)": 21.16, "MinkResNet (Ours)": 27.65}
    },
    "loss": {  # Table 13
        **{"w/o Decouple": 20.14, "Decouple (sum.)": 18.03, "Decouple (avg.)": 21.50, "+Norm by 3D Size": 20.67},
        **{"Decouple (weigh.)": 21.70, "7-DoF IoU Loss": 21.51, "+ Corner Loss": 22.13},
    },
}


@pytest.mark.parametrize("table", PAPER_ROWS)
def test_a_table_has_the_papers_rows_and_says_what_they_train(table: str, tmp_path: Path) -> None:
    rows = chosen_rows([table], "paper")
    plan = planned(rows, budget(tmp_path, preset="paper", steps=0, options={}))
    title, *lines = plan.splitlines()
    assert title == TABLES[table].title
    labels = [line.strip().split(": ")[0] for line in lines]
    assert set(labels) == set(PAPER_ROWS[table])
    assert {label for label, line in zip(labels, lines, strict=True) if "not reproduced" in line} == {
        label for label in PAPER_ROWS[table] if label in ("OccNet", "SurroundOcc")
    }
    assert all("epochs" in line for line in lines if "trains" in line)


def test_tables_of_detection_have_the_papers_columns() -> None:
    groups = ("head", "common", "tail")
    assert (
        set(TABLES["detection"].columns)
        == set(TABLES["detectors"].columns)
        == {
            *("AP25", "AR25", "AP50", "AR50"),
            *(f"{figure}_{group}" for figure in ("AP25", "AR25") for group in groups),
        }
    )
    assert TABLES["loss"].columns == ("AP25", "AP50", *(f"AP25_{group}" for group in groups))


def test_rows_train_once_and_go_on(tmp_path: Path, trainings: list[Mapping[str, Any]]) -> None:
    rows = {r.name: r for r in ROWS}
    first = run_row(rows["loss-plain"], budget(tmp_path), tmp_path / "out", quiet=True)
    assert first is not None
    assert first["figures"]["AR25"] == 70.0
    assert first["steps"] == 4
    assert (trainings[0]["box_loss"], trainings[0]["options"]["w_iou"]) == ("plain", "0.0")
    with pytest.raises(TrainingStopped, match="SIGTERM"):
        run_row(rows["loss-decoupled"], budget(tmp_path), tmp_path / "out", quiet=True)
    second = run_row(rows["loss-decoupled"], budget(tmp_path), tmp_path / "out", quiet=True)
    assert second is not None
    assert trainings[2]["resumed"] is True
    assert trainings[1]["resumed"] is False
    # a training that goes on has the settings that it began with, the preset's among them
    assert trainings[2]["settings"] == trainings[1]["settings"]
    usual = preset_defaults("detection", "tiny")
    assert all(trainings[2]["settings"][k] == usual[k] for k in ("learning_rate", "weight_decay", "warmup_steps"))
    once = run_row(rows["tasks-detection"], budget(tmp_path), tmp_path / "out", quiet=True)
    same = run_row(rows["detectors-ours"], budget(tmp_path), tmp_path / "out", quiet=True)
    assert once is not None
    assert same is not None
    assert same["figures"] == once["figures"]
    assert len(trainings) == 4  # the same network: nothing was trained again
    for name in ("loss-plain", "detectors-painting"):  # nor does a table mix budgets
        with pytest.raises(ValueError, match="another budget"):
            run_row(rows[name], budget(tmp_path, steps=5), tmp_path / "out", quiet=True)


def test_geometry_rows_have_no_image_weights(tmp_path: Path, trainings: list[Mapping[str, Any]]) -> None:
    for row in chosen_rows(["detectors-fcaf3d"]):
        run_row(row, budget(tmp_path), tmp_path / "out", quiet=True)
    assert trainings[0]["options"] == {"w_iou": "0.0"}
    assert trainings[0]["variant"] == "fcaf3d"
    assert trainings[0]["modality"] == "depth"


def test_rows_say_what_they_lack(tmp_path: Path) -> None:
    (scored,) = chosen_rows(["occlusion-with"])
    with pytest.raises(ValueError, match="--weights must say which"):
        run_row(scored, budget(tmp_path), tmp_path)


_HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_processes_share_a_folder(tmp_path: Path, trainings: list[Mapping[str, Any]]) -> None:
    """A row that another process works on comes last; tables show what all processes have made."""
    out, chosen = tmp_path / "out", chosen_rows(["detectors-fcaf3d", "detectors-decoder", "detectors-painting"])
    trainings.append({})  # the third training is not interrupted
    trainings.append({})
    claim = out / chosen[0].folder() / ".claim"
    claim.parent.mkdir(parents=True)
    other = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(claim)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    order = []

    def started(row: Row) -> None:
        order.append(row)
        if row == chosen[2]:  # the other process ends, without a result
            other.stdin.close()  # type: ignore[union-attr]

    assert run_rows(chosen, budget(tmp_path), out, True, started)
    assert other.wait(timeout=60) == 0
    assert order == [chosen[1], chosen[2], chosen[0]]
    assert run_rows(chosen[:1], budget(tmp_path), out, True)  # there already, and the tables keep the others
    assert [r["name"] for r in json.loads((out / "ablations.json").read_text())] == [r.name for r in chosen]
    assert write_tables(out)[1]["label"] == "+our decoder"
    assert len(trainings) == 2 + 3


def test_rows_of_views_are_asked_for_the_same() -> None:
    rows = chosen_rows(["views"])
    assert {r.truth_views for r in rows} == {max(r.views for r in rows)} == {50}
    assert len({r.folder() for r in rows}) == len(rows)


def test_tables_by_hand() -> None:
    results = [
        {"table": "loss", "label": "plain", "figures": {"AP25": 12.345, "AR25": 50.0}},
        {"table": "detectors", "label": "FCAF3D", "figures": {"AP25": 9.07, "AP50": 4.11, "AR25": float("nan")}},
        {"table": "detectors", "label": "ours", "figures": {"AP25": 16.85, "AP50": 9.77, "AR25": 51.07}},
    ]
    assert markdown(results) == (
        "**Multi-view 3D object detection (paper, Table 2)**\n\n"
        "| | AP25 | AR25 | AP50 |\n|---|---:|---:|---:|\n"
        "| FCAF3D | 9.07 | - | 4.11 |\n| ours | 16.85 | 51.07 | 9.77 |\n\n"
        "**Sparse decoder (paper, Table 13)**\n\n| | AP25 |\n|---|---:|\n| plain | 12.35 |\n"
    ).replace("12.35", f"{12.345:.2f}")


def test_command(tmp_path: Path, trainings: list[Mapping[str, Any]]) -> None:
    app = typer.Typer()
    app.command("ablate")(train_command.ablate)
    app.command("nothing")(lambda: None)
    out = tmp_path / "out"
    chosen = "loss-plain,detectors-ours"
    arguments = ["ablate", "--data", str(tmp_path), "--val", str(tmp_path), "--out", str(out), "--rows", chosen]
    first = CliRunner().invoke(app, [*arguments, "--steps-per-row", "4", "--quiet"])
    assert first.exit_code == train_command.EXIT_STOPPED
    second = CliRunner().invoke(app, [*arguments, "--steps-per-row", "4", "--quiet"])
    assert second.exit_code == 0, second.output
    assert "| w/o Decouple |" in (out / "ablations.md").read_text()
    # one training is the row of two tables
    made = {r["name"] for r in json.loads((out / "ablations.json").read_text())}
    assert made == {"loss-plain", "detectors-ours", "tasks-detection"}


def test_rows_whose_minutes_are_over_go_on_with_the_next_command(
    tmp_path: Path, trainings: list[Mapping[str, Any]]
) -> None:
    """Every row has its turn; their length is that of the steps, whatever the minutes."""
    rows, short = chosen_rows(["loss-plain", "loss-decoupled"]), budget(tmp_path, steps=2, minutes=1e-9)
    assert not run_rows(rows, short, tmp_path / "out", True)
    assert not (tmp_path / "out" / rows[0].folder() / "result.json").exists()
    assert [t["box_loss"] for t in trainings] == ["plain", "decoupled"]
    assert run_rows(rows, dataclasses.replace(short, minutes=5.0), tmp_path / "out", True)
    results = json.loads((tmp_path / "out" / "ablations.json").read_text())
    assert {r["steps"] for r in results} == {2}
    assert all(t["settings"]["epochs"] == 0 and t["settings"]["steps"] == 2 for t in trainings)
