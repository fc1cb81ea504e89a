"""``embodied-perceptron evaluate pope|arkitscenerefer|openlex3d|robustness|lifting``: suites on data sets."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from embodied_perceptron.apps.command_line import TaskProgress, in_file, in_folder, user_errors, with_option_groups
from embodied_perceptron.apps.reading_options import with_detectors
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron_training.evaluation.runner.options import Common, Scenes
from embodied_perceptron_training.evaluation.runner.parallel import known_everywhere
from embodied_perceptron_training.reports import figure_table, print_skipped

if TYPE_CHECKING:
    from embodied_perceptron_training.evaluation.suites.scenes import Suite, SuiteRun, SuiteSpec

SCREEN_LINES = 40
DetectorLayout = Annotated[
    str, typer.Option(help="Layout of its outputs, where the file does not tell; see docs/detectors.md.")
]


def register(app: typer.Typer) -> None:
    """Add the suites to ``evaluate``."""
    for suite in (pope, arkitscenerefer, openlex3d, robustness, lifting):
        app.command(suite.__name__)(with_option_groups(suite))


def suite_spec(common: Common, seed: int = 0, training: Path | None = None, **others: Any) -> SuiteSpec:
    """The specification of a suite's run; ``others``: further fields. Raises ``EvaluationError`` for a wrong one."""
    from embodied_perceptron_training.evaluation.suites.scenes import SuiteSpec

    data, weights = (known_everywhere(name, common.cluster) for name in (common.data, common.weights))
    trained = None if training is None else known_everywhere(training, common.cluster)
    return SuiteSpec(data, common.split, weights, common.scenes, common.views, seed, trained, **others)


def pope(
    common: Common,
    seed: Annotated[int, typer.Option(help="Seed: of the random negatives.")] = 0,
    training: Annotated[
        Path | None, in_file("--training-scenes", "--training", help="Scene list of the training set (JSON).")
    ] = None,
    scene_list: Annotated[Path | None, in_file(help="Ask about these scenes instead (JSON).")] = None,
    answers: Annotated[Path | None, in_file(help="Answers to score (JSON): these, not a model's.")] = None,
) -> None:
    """3D-POPE: is there a X? Random, popular and adversarial negatives."""
    with TaskProgress("loading the library"):
        from embodied_perceptron_training.evaluation.suites import pope as suite

    spec = suite_spec(common, seed, training)
    from_files = None
    if answers is not None or scene_list is not None:
        from_files = partial(suite.score_pope_files, spec, scene_list, answers, common.out)
    _suite("pope", common, spec, suite.SUITE, from_files)


def arkitscenerefer(
    common: Common,
    seed: Annotated[int, typer.Option(help="Seed: of the noisy detector.")] = 0,
    references: Annotated[
        Path | None, in_file(help="Records of the published form (JSON), about scans of --data.")
    ] = None,
    answers: Annotated[Path | None, in_file(help="Answers to score (JSON): to --references.")] = None,
    detector: Annotated[Path | None, in_file(help="ONNX file of a 2-D detector: lifted and scored.")] = None,
    detector_layout: DetectorLayout = "",
    cluster_m: Annotated[
        float, typer.Option(min=1e-3, help="Hits so close are of one thing; 0.02 as published.")
    ] = 0.02,
) -> None:
    """ARKitSceneRefer: small objects by expressions; our grounding, a lifted 2-D detector, bounds of lifting."""
    with_detectors(PerceptronConfig(), [detector] if detector else [], [detector_layout] if detector_layout else [])
    with TaskProgress("loading the library"):
        from embodied_perceptron_training.evaluation.suites import arkitscenerefer as suite

    records, file = (None if p is None else known_everywhere(p, common.cluster) for p in (references, detector))
    lifts = {"detector": file or "", "layout": detector_layout, "cluster_m": cluster_m}
    _suite(
        "arkitscenerefer",
        common,
        suite_spec(common, seed, references=records, **lifts),
        suite.SUITE,
        None if answers is None else partial(suite.score_refer_files, references, answers),
    )


def openlex3d(
    common: Common,
    predictions: Annotated[
        Path | None, in_folder(help="Predictions to score: maps as <scene>.npz, and prompts.npz.")
    ] = None,
) -> None:
    """OpenLex3D: tiers of labels; top-N frequency, set ranking, retrieval; for our export or maps from files."""
    with TaskProgress("loading the library"):
        from embodied_perceptron_training.evaluation.suites import openlex3d as suite

    spec = suite_spec(common)
    _suite(
        "openlex3d",
        common,
        spec,
        suite.SUITE,
        None if predictions is None else partial(suite.score_openlex3d_files, spec, predictions, common.out),
    )


def robustness(
    common: Common,
    scenes: Scenes = 6,
    views: Annotated[
        int, typer.Option(min=1, help="Views of a scene: one of each of so many targets, for every factor.")
    ] = 4,
    levels: Annotated[int, typer.Option(min=2, help="Of each factor.")] = 5,
    detector: Annotated[Path | None, in_file(help="ONNX file of a 2-D detector: scored too.")] = None,
    detector_layout: DetectorLayout = "",
) -> None:
    """BEHAVIOR Vision Suite: AP while one factor changes (articulation, lighting, visibility, zoom, pitch, orbit)."""
    with_detectors(PerceptronConfig(), [detector] if detector else [], [detector_layout] if detector_layout else [])
    with TaskProgress("loading the library"):
        from embodied_perceptron_training.evaluation.suites import robustness as suite

    file = "" if detector is None else known_everywhere(detector, common.cluster)
    spec = suite_spec(common, levels=levels, detector=file, layout=detector_layout)
    _suite("robustness", common, spec, suite.SUITE)


def lifting(common: Common, seed: Annotated[int, typer.Option(help="Seed: of the degraded detections.")] = 0) -> None:
    """Lifting of 2-D detections: the map of homes with perfect boxes, perfect masks, degraded ones, and without.

    Homes of `generate` have their true detections beside them. recall: objects whose box covers 24 x 24 pixels in at
    least 3 views, found under their name with IoU 0.25; located: under any name; precision: published names that are
    right.
    """
    with TaskProgress("loading the library"):
        from embodied_perceptron_training.evaluation.suites import lifting as suite

    _suite("lifting", common, suite_spec(common, seed), suite.SUITE)


def _suite(
    title: str,
    common: Common,
    spec: SuiteSpec,
    suite: Suite[Any],
    from_files: Callable[[], tuple[dict[str, float], dict[str, object]]] | None = None,
) -> None:
    """Run or read, print, and write. Raises ``CommandError`` for a wrong file or data set."""
    from embodied_perceptron_training.evaluation.suites.report import write_suite_report

    console, out = Console(), common.out
    command = shlex.join(["embodied-perceptron", *sys.argv[1:]])
    skipped: Mapping[str, str] = {}
    done: SuiteRun[Any] | None = None
    with user_errors():
        out.mkdir(parents=True, exist_ok=True)  # fails early if the folder cannot be written
        if from_files is not None:
            figures, facts = from_files()
        else:
            with TaskProgress(title) as progress:
                done = suite.run(spec, common.cluster, progress.update)
            figures, skipped = done.figures, done.skipped
            facts = {
                "data": f"{len(done.results)} scenes of {Path(spec.data).name} ({spec.split}), {spec.views} views each",
                "weights": Path(spec.weights).name,
                **done.notes,
                "seconds": round(done.seconds, 1),
            }
        write_suite_report(out, title, figures, facts, skipped, command)
        if done is not None:
            suite.write(spec, done, out)
    console.print(title, style="bold")
    for table in _on_one_screen(figures):
        console.print(table)
    print_skipped(console, skipped)
    console.print(f"all {len(figures)} figures and tables in {out / 'metrics.md'}", markup=False)


def _on_one_screen(figures: Mapping[str, float]) -> list[Table]:
    """The first tables of the figures that fit one screen; in narrow ones the groups are rows."""
    from embodied_perceptron_training.evaluation.suites.report import tables_of

    shown, lines = [], 0
    for groups, rows in tables_of(figures):
        turned = len(groups) > len(rows)
        columns = [name for name, _ in rows] if turned else groups
        body = [(g, [values[k] for _, values in rows]) for k, g in enumerate(groups)] if turned else rows
        lines += len(body) + 2
        if shown and lines > SCREEN_LINES:
            break
        table = figure_table("", ("%", *columns), ((name, *(f"{v:.2f}" for v in values)) for name, values in body))
        table.box = None
        shown.append(table)
    return shown
