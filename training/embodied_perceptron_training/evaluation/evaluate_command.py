"""``embodied-perceptron evaluate ...``: progress while it runs, a table at the end, everything else in its folder."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from embodied_perceptron.apps.command_line import (
    CommandError,
    TaskProgress,
    add_dev_command,
    add_former_name,
    in_file,
    in_folder,
    out_file,
    out_folder,
    user_errors,
    with_option_groups,
    writable_file,
)
from embodied_perceptron.apps.reading_options import with_detectors
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.weights import weights_file
from embodied_perceptron_training.evaluation.recordings.label_command import label
from embodied_perceptron_training.evaluation.recordings.recording_command import mission_score, recording
from embodied_perceptron_training.evaluation.runner.options import (
    DEGRADE_HELP,
    PROCESSES,
    TASKS,
    VIEWS,
    VIEWS_HELP,
    Common,
    DataSet,
    FittedSplit,
    FittedWeights,
    MetricsFolder,
    Processes,
    Scenes,
    Task,
    Views,
    Weights,
)
from embodied_perceptron_training.evaluation.runner.parallel import known_everywhere
from embodied_perceptron_training.evaluation.runner.results_command import results
from embodied_perceptron_training.evaluation.suites.commands import register as register_suites
from embodied_perceptron_training.evaluation.suites.grand_command import grand
from embodied_perceptron_training.evaluation.suites.referring import referring
from embodied_perceptron_training.reports import figure_table, write_metrics

Metric = Literal["detection", "grounding", "occupancy"]
evaluate_app = typer.Typer(help="Score weights on a data set, or predictions from files.", no_args_is_help=True)
evaluate_app.command("referring")(referring)
evaluate_app.command("recording")(recording)
evaluate_app.command("grand")(grand)


@evaluate_app.command("files")
def files(
    metric: Annotated[Metric, typer.Option(help="What the files hold.")],
    predictions: Annotated[Path, in_file(help="Predictions to score: JSON.")],
    ground_truth: Annotated[Path, in_file(help="JSON of the ground truth.")],
    out: MetricsFolder = None,
) -> None:
    """Score predictions from JSON files; figures in percent.

    detection: {"classes": [names], "scenes": {id: {"boxes": [9 numbers each], "labels": [indices of classes], "scores":
    [numbers]}}}; the ground truth without scores, optionally with "groups": {"head": [names]}.

    occupancy: {"scenes": {id: {"labels": [0 = free, 1 = the first class, 255 = unknown]}}}; the ground truth may have
    "mask": [1 = observed] in each scene, and "classes": [names].

    grounding: {"queries": [{"boxes": [9 numbers each, the best first], "scores": [numbers]}]}, one for each query of
    the ground truth: {"queries": [{"box": [9 numbers], "hard": false, "view_dependent": false, "unique": true}]}.

    A box is center x, y, z, size dx, dy, dz in metres, and three angles in radians (rotations about z, x, y).
    Optional: scores of grounding, "mask", "groups", and the three flags.
    """
    # torch loads only when needed
    from embodied_perceptron_training.evaluation.runner.prediction_files import evaluate_files

    with user_errors():
        figures = evaluate_files(metric, predictions, ground_truth)
    title = f"{metric}: {predictions.name} against {ground_truth.name}"
    Console().print(figure_table(title, ("figure", "%"), ((name, f"{v:.2f}") for name, v in figures.items())))
    if out is not None:
        write_metrics(out, figures)


@evaluate_app.command("calibrate")
def calibrate_score(
    data: DataSet,
    weights: FittedWeights,
    split: FittedSplit = "val",
    write: Annotated[bool, typer.Option("--write", help="Store it in the weights file: the best score.")] = False,
    scenes: Scenes = None,
    views: Views = VIEWS,
    every: Annotated[int, typer.Option(min=1, help="Perceive after so many views.")] = 2,
    precision: Annotated[
        float,
        typer.Option(
            "--wanted-precision",
            "--precision",
            min=0.0,
            max=1.0,
            help="Of what is published with a name; 0 = the best F1.",
        ),
    ] = 0.0,
    workers: Processes = PROCESSES,
    out: Annotated[Path | None, out_folder(help="Folder to write: metrics.json, reliability.csv and .png.")] = None,
) -> None:
    """Choose the score from which boxes are published, by F1 or precision of the objects of final maps, and measure the
    reliability of published scores."""
    if write:
        writable_file(weights_file(weights))
    with TaskProgress("loading the library"):
        from embodied_perceptron_training.evaluation.calibration.score_thresholds import run_calibration
        from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec

    spec = EvaluationSpec(str(data), split, weights, ("detection",), scenes, views)
    figures = run_calibration(spec, write, every, workers, precision, out)
    if out is not None:
        write_metrics(out, figures)


@evaluate_app.command("calibrate-scores")
def calibrate_scores(
    data: Annotated[
        Path, in_folder(help="Data set in EmbodiedScan's layout: homes with harder sensors than those of training.")
    ],
    weights: FittedWeights,
    split: FittedSplit = "val",
    also: Annotated[list[Path] | None, in_folder(help="Further homes, of the same split; may be repeated.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Store it in the weights file: the model.")] = False,
    scenes: Scenes = None,
    views: Views = VIEWS,
    workers: Processes = PROCESSES,
    out: MetricsFolder = None,
) -> None:
    """Confidence calibration: probabilities that name and box are right, from score, map and context. Run before
    ``calibrate``."""
    if write:
        writable_file(weights_file(weights))
    with TaskProgress("loading the library"):
        from embodied_perceptron_training.evaluation.calibration.confidence_fit import run_confidence_fit
        from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec

    folders = [data, *(also or ())]
    specs = [EvaluationSpec(str(folder), split, weights, ("detection",), scenes, views) for folder in folders]
    figures = run_confidence_fit(specs, write, workers)
    if out is not None:
        write_metrics(out, figures)


@evaluate_app.command("calibrate-witnesses")
def calibrate_witnesses(
    recordings: Annotated[
        list[Path],
        typer.Argument(exists=True, file_okay=False, help="Simulated recordings: generate --drive --home-version 2."),
    ],
    detector: Annotated[list[Path], in_file(help="ONNX file of a 2-D detector; repeatable.")],
    out: Annotated[Path, out_file(help="File to write: witnesses.json.")],
    detector_layout: Annotated[
        list[str] | None, typer.Option(help="Layout of its outputs, where the files do not tell; for each of them.")
    ] = None,
    perceive_every: Annotated[
        float, typer.Option(min=0.1, help="Look for objects every so many seconds: these perceptions are used.")
    ] = 4.0,
) -> None:
    """Fit confusions and posterior weights of 2-D detectors, for use with the shipped network.

    At least two homes are needed, since the fit is validated on homes left out. `lift: {witnesses: FILE}` uses it.
    """
    if len({folder.resolve() for folder in recordings}) < max(2, len(recordings)):
        raise CommandError("calibrate-witnesses needs two different recordings or more: one at a time is left out")

    settings = with_detectors(PerceptronConfig(), detector, detector_layout)
    from embodied_perceptron.inference.posterior import detector_model_json
    from embodied_perceptron.recordings.files import write_atomically
    from embodied_perceptron_training.evaluation.calibration.detector_fit import cross_validated, fit, record_home

    with TaskProgress("replaying homes") as shown, user_errors():
        homes = []
        for number, folder in enumerate(recordings):
            shown.update(number, len(recordings), str(folder))
            homes.append(record_home(folder, settings, perceive_every))
        model, report = fit(homes), cross_validated(homes)
    measured = {
        "homes": len(homes),
        "places": sum(len(home.hypotheses) for home in homes),
        "log_loss": {"network": round(report.log_loss[0], 4), "all": round(report.log_loss[1], 4)},
        "reliability": [[round(value, 3) for value in row] for row in report.curve],
    }
    flags = " ".join(f"--detector {file.name}" for file in detector)
    source = f"embodied-perceptron evaluate calibrate-witnesses HOMES {flags} --out witnesses.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, detector_model_json(model, source, measured).encode())
    typer.echo(json.dumps(measured, indent=1))


def card(
    weights: Weights,
    out: Annotated[Path, out_file(help="File to write: Markdown.")],
    results: Annotated[list[Path], typer.Option(exists=True, help="Folder of an evaluation; may be repeated.")],
    training: Annotated[
        list[Path] | None, typer.Option(exists=True, help="run.json of the training; may be repeated.")
    ] = None,
) -> None:
    """Write the model card of weights from their evaluations and the record of their training."""
    from embodied_perceptron.recordings.files import write_atomically
    from embodied_perceptron_training.evaluation.runner.model_card import model_card

    text = model_card(weights_file(weights), results, training or ())
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.encode())
    typer.echo(f"{out}: {len(text.splitlines())} lines")


@evaluate_app.command("all")
@with_option_groups
def evaluate_tasks(
    common: Common,
    data: DataSet,
    out: Annotated[Path, out_folder(help="Folder to write: metrics, tables and pictures.")],
    only: Annotated[Task | None, typer.Option(help="Only this: a task.")] = None,
    views: Annotated[
        int | None,
        typer.Option(min=1, help=f"{VIEWS_HELP} Default: {VIEWS}; with paper weights 50, occupancy 20."),
    ] = None,
    turn_seed: Annotated[int | None, typer.Option(help="Turn and move every scene at random.")] = None,
    prompts: Annotated[str, typer.Option(help="Sentences: embodiedscan_<split>_<PROMPTS>.json.")] = "vg",
    common_classes: Annotated[
        bool, typer.Option("--common-classes", help="Only the 20 classes of the paper's monocular benchmark.")
    ] = False,
    detections: Annotated[
        str,
        typer.Option(
            help="COCO file of 2-D detections: lifted into the map. A file for all scenes, or the name of a file in "
            "each scene's folder: `generate` writes detections.json, the true ones."
        ),
    ] = "",
    degrade: Annotated[str, typer.Option(help=DEGRADE_HELP)] = "",
    products: Annotated[
        Literal["float32", "tf32", "bfloat16", "float16"],
        typer.Option(help="Round the factors of products to this, as a GPU does, to see what accuracy that costs."),
    ] = "float32",
    pictures: Annotated[
        int, typer.Option("--scene-pictures", "--pictures", min=0, help="So many of the best and worst scenes.")
    ] = 2,
) -> None:
    """Evaluate detection, occupancy and grounding in one replay of each scene, or one task with --only.

    detection: boxes of whole scenes, from all views together; continuous-detection: after each view, against what the
    views so far show; monocular-detection: from single views. occupancy: semantic, from all views together;
    continuous-occupancy: after each view. grounding: sentences about objects, by the decoder alone, by relations alone,
    and by both as deployed.
    """
    with TaskProgress("loading the library"):
        from embodied_perceptron_training.evaluation.runner.detections import Degradation, write_degraded
        from embodied_perceptron_training.evaluation.runner.evaluate import ALL_TASKS, EvaluationSpec
        from embodied_perceptron_training.evaluation.runner.report import run_evaluation

    folder, weights = (known_everywhere(name, common.cluster) for name in (data, common.weights))
    tasks = ALL_TASKS if only is None else (only,)
    settings = (common.split, weights, tasks, common.scenes, views or 0, turn_seed, prompts)
    if degrade and not Path(detections).is_file():
        raise CommandError("--degrade needs one file of --detections for all scenes")
    if degrade:
        out.mkdir(parents=True, exist_ok=True)
        detections = str(write_degraded(detections, out / "detections.json", Degradation.of_text(degrade)))
    spec = EvaluationSpec(folder, *settings, common=common_classes, detections=detections, products=products)
    command = shlex.join(["embodied-perceptron", *sys.argv[1:]])
    run_evaluation("all" if only is None else only, spec, out, common.cluster, command, pictures)


for _task in TASKS:
    add_former_name(evaluate_app, _task, f"evaluate all --only {_task}", evaluate_tasks, path="evaluate ", only=_task)
add_former_name(evaluate_app, "card", "dev card", card, path="evaluate ")
register_suites(evaluate_app)


def register(app: typer.Typer) -> None:
    """Add the sub-commands to ``app``."""
    app.add_typer(evaluate_app, name="evaluate")
    app.command("label")(label)
    add_dev_command(app, "results", results, former="results")
    add_dev_command(app, "mission-score", mission_score, former="mission-score")
    add_dev_command(app, "card", card)
