"""Commands that readers are told to type exist, with their options; pages of reference say what the code says."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from support.scripts import load_script

import embodied_perceptron
from embodied_perceptron.apps.cli import build_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), ROOT / "CONTRIBUTING.md"]
OWN = ("embodied-perceptron ", "make ", "ros2 launch embodied_perceptron ")


def reference_pages():
    return load_script("docs/reference_pages.py")


def blocks(text):
    """(lines of a block of code, what stands before it) of a page; fenced as sh, or indented in README."""
    for match in re.finditer(r"^```sh\n(.*?)^```|(?:^ {4,}\S[^\n]*\n(?:\n(?= {4}\S))?)+", text, re.M | re.S):
        body = match.group(1) or match.group(0)
        joined = re.sub(r"\\\n\s*", "", body)
        yield [line.strip() for line in joined.splitlines()], text[: match.start()]


def commands():
    """Every command line of ours on the pages."""
    for page in PAGES:
        for lines, _ in blocks(page.read_text()):
            for line in lines:
                if line.startswith(OWN) or (line.startswith("torchrun ") and "apps.cli" in line):
                    yield pytest.param(line, id=f"{page.name}: {line[:60]}")


# on the pages, in folders where nothing is: by tests here and by the pipeline
RUN_BY_A_TEST = (
    "make demo",
    "embodied-perceptron generate --drive --seed 7 --out out/drive",
    "embodied-perceptron doctor out/drive",
    'embodied-perceptron replay out/drive --out out/map --query "the chair closest to the door"',
)
COMMANDS = {parameters.id: parameters for parameters in commands()}


def words_of(line):
    return shlex.split(line, comments=True)


@cache
def click_command():
    return typer.main.get_command(build_app())


def parse(words):
    """Let click read a command line as it would, without running it."""
    command, context, name = click_command(), None, "embodied-perceptron"
    while True:
        context = click.Context(command, parent=context, info_name=name)
        if not hasattr(command, "commands") or (
            words and words[0].startswith("-")
        ):  # typer may bring a click of its own, whose groups are no click.Group
            given, _, _ = command.make_parser(context).parse_args(args=list(words))
            needed = {p.name for p in command.params if p.required}
            absent = [name for name in needed if not isinstance(given.get(name), (str, list, tuple)) or not given[name]]
            assert not absent, f"{' '.join(words)}: {', '.join(absent)} must be given"
            return command
        name, words = words[0], words[1:]
        command = command.commands[name]


@pytest.mark.parametrize("line", COMMANDS.values())
def test_commands_on_the_pages_exist_with_their_options(line):
    words = words_of(line)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert next(w for w in words[1:] if "=" not in w) in targets
    elif words[0] == "ros2":
        known = {name for name, _, _ in reference_pages().launch_arguments(ROOT / "launch" / words[3])}
        if words[3] == "replay.launch.py" or words[3] == "simulate.launch.py":  # what they include takes the rest
            known |= {n for n, _, _ in reference_pages().launch_arguments(ROOT / "launch" / "perceive.launch.py")}
        assert {w.partition(":=")[0] for w in words[4:]} <= known
    else:
        if words[0] == "torchrun":
            words = ["embodied-perceptron", *words[words.index("embodied_perceptron.apps.cli") + 1 :]]
        alternatives = re.fullmatch(r"(\S+(?:\|\S+)+)", words[-1])
        parse([*words[1:-1], alternatives[1].split("|")[0]] if alternatives else [w for w in words[1:] if w != "..."])


def test_what_a_test_is_said_to_run_stands_on_a_page():
    typed = {line for page in PAGES for lines, _ in blocks(page.read_text()) for line in lines}
    assert set(RUN_BY_A_TEST) <= typed


def python_blocks():
    """Programs on the pages that show Python; those of the architecture are none."""
    for page in (ROOT / "README.md", ROOT / "docs" / "reference" / "api.md", ROOT / "docs" / "examples.md"):
        for number, match in enumerate(re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)):
            if page.name == "examples.md" and "perceptron.load" in match[1]:
                continue  # the Python page makes the same calls, on a map of the same configuration
            yield pytest.param(match[1], id=f"{page.name} {number}")


@pytest.mark.parametrize("program", list(python_blocks()))
def test_programs_on_the_pages_run(program, tmp_path, monkeypatch, capsys):
    """As they stand, on a drive of a few frames where they look for one, and on a map of two walls' furniture."""
    from support.small_recording import write_recording

    (tmp_path / "out").mkdir()
    write_recording(tmp_path / "out" / "drive", 6)
    monkeypatch.chdir(tmp_path)
    if "out/map" in program:
        write_small_map(tmp_path / "out" / "map")
    names = {}
    exec(compile(program, "page", "exec"), names)
    if "scene" in names:
        assert len(names["scene"]["objects"]) > 1
        assert capsys.readouterr().out.count(" map\n") == len(names["scene"]["objects"])
    if "perception" in names:
        assert len(names["perception"].objects) > 3
    if "features" in names:
        assert len(names["features"]) == len(names["points_m"]) > 1000
        assert np.isfinite(names["features"]).all(axis=1).mean() > 0.5
        assert len(names["again"].recall().objects) == len(names["perception"].objects)


def write_small_map(folder):
    from support.online_world import config, walk

    from embodied_perceptron.apps.replay import write_perception

    folder.mkdir()
    live = embodied_perceptron.Perceptron(config())
    for posed in walk(2, 8):
        live.integrate(posed)
        live.perceive()
    live.save(folder / "map.safetensors")
    write_perception(folder, live.recall(), np.zeros((0, 3)), {})


def test_no_page_links_out_of_the_site():
    """Files of the repository are pages of the site too, or their link would be dead there."""
    hook = reference_pages()
    for page in (ROOT / "docs").glob("*.md"):
        markdown = hook.on_page_markdown(page.read_text(), None, None, None)
        assert "](../" not in markdown, page.name
    assert {"reference/security_policy.md", "reference/weights.md"} <= set(hook.PAGES)


def test_the_page_of_commands_has_ranges_and_no_hidden_options():
    page = reference_pages().commands_page()
    assert "--reader" not in page, "it is hidden"
    assert "render-recording" not in page
    section = page.partition("## embodied-perceptron generate\n")[2].partition("\n## ")[0]
    assert "| `--homes` | `20` | at least 1 |" in section
    assert "| `--home-version`, `--version` |  | at least 1, at most 2 |" in section
    assert "has to be given" in section
    assert "at least -" not in page


def test_codes_on_the_page_of_exit_codes_are_those_of_the_programs():
    from embodied_perceptron.apps import command_line
    from embodied_perceptron_training.training.train_command import EXIT_STOPPED

    codes = set(map(int, re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "exit_codes.md").read_text(), re.M)))
    ours = {value for name, value in vars(command_line).items() if name.startswith("EXIT_")} | {EXIT_STOPPED}
    assert ours <= codes


def test_the_python_page_has_everything_public():
    """What it documents can be imported, and every public name and member of the perceptron is documented."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    documented = re.findall(r"^::: ([\w.]+)$", page, re.M)
    for path in documented:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(path)
    for name in embodied_perceptron.__all__:
        assert re.search(rf"\b{name}\b", page), f"the Python page lacks {name}"
    for name, member in inspect.getmembers(embodied_perceptron.Perceptron):
        if not name.startswith("_"):
            text = inspect.getdoc(member.fget if isinstance(member, property) else member)
            assert text, f"Perceptron.{name} is not documented"
            assert not text.startswith("See "), f"Perceptron.{name} sends its reader away"
    config = importlib.import_module("embodied_perceptron.config")
    members = re.findall(r"^        - (\w+)$", page, re.M)
    assert all(hasattr(config, name) for name in members)
    sections = {type(getattr(config.PerceptronConfig(), f.name)).__name__ for f in fields(config.PerceptronConfig)}
    assert sections <= set(members)


def scripts():
    """Every benchmark that a page tells to run."""
    for page in PAGES:
        for lines, _ in blocks(page.read_text()):
            for line in lines:
                words = words_of(line) if "python" in line else []
                words = [word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word)]
                if words[:1] == ["python"]:
                    yield pytest.param(words[1:], id=f"{page.name}: {line[:60]}")


@pytest.mark.parametrize("words", list(scripts()))
def test_benchmarks_on_the_pages_exist_with_their_options(words):
    source = (ROOT / words[0]).read_text() + (ROOT / "benchmarks" / "_report.py").read_text()
    for word in words[1:]:
        assert not word.startswith("--") or f'"{word}"' in source, f"{words[0]} has no {word}"


def test_figures_are_those_of_the_records():
    """docs/results.md and the README's table are what the records in docs/results/ render to."""
    from embodied_perceptron_training.evaluation.runner import results

    folder = ROOT / "docs" / "results"
    intro, sections = results.read_layout(folder)
    records = results.read_records(folder)
    for name, record in records.items():
        assert set(results.keys_of(sections, name)) <= set(record.figures)
    page, readme = ROOT / "docs" / "results.md", (ROOT / "README.md").read_text()
    assert page.read_text() == results.render_page(intro, sections, records), "run: embodied-perceptron dev results"
    assert readme == results.render_readme(readme, sections, records), "run: embodied-perceptron dev results"
    table = readme.partition(results.README_BEGIN)[2].partition(results.README_END)[0]
    rows = re.findall(r"^\| \[.*?\]\(docs/results\.md#(.*?)\)", table, re.M)
    assert len(rows) == 10
    headings = {results.anchor(title) for title in re.findall(r"^## (.*)$", page.read_text(), re.M)}
    assert set(rows) <= headings


def test_the_card_of_the_shipped_weights_is_what_the_records_say():
    from embodied_perceptron.weights import weights_file
    from embodied_perceptron_training.evaluation.runner.model_card import model_card

    weights = weights_file("tiny")
    records = [ROOT / "docs" / "results" / f"test_homes_{version}.json" for version in (1, 2)]
    text = model_card(weights, records, [weights.with_name("tiny.training.json")])
    assert weights.with_suffix(".md").read_text() == text, "run: embodied-perceptron dev card, see CONTRIBUTING"


def test_pages_are_short():
    """A reader has five minutes."""
    words = {page: len((ROOT / page).read_text().split()) for page in ("README.md", "docs/training.md")}
    assert words["README.md"] <= 1000
    assert words["docs/training.md"] <= 1200
    assert len((ROOT / "models/embodied_perceptron/weights/tiny.md").read_text().split()) <= 500
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]
    assert all(len(re.findall(r"^- ", release, re.M)) <= 10 for release in releases)


def test_reasons_on_the_troubleshooting_page_are_those_of_the_node():
    pytest.importorskip("tf2_msgs", reason="the node's messages, which make setup builds")
    from embodied_perceptron.sensors.synchronizer import DropReason
    from embodied_perceptron_ros.node.inputs import OVERLOAD, TOOK_TOO_LONG

    known = {v for k, v in vars(DropReason).items() if k.isupper()} | {OVERLOAD, TOOK_TOO_LONG}
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = [
        reason for cell in re.findall(r"dropped ((?:`\w+`(?:, )?)+)", page) for reason in re.findall(r"`(\w+)`", cell)
    ]
    assert named
    assert set(named) <= known


def test_every_parameter_has_its_row():
    from embodied_perceptron_ros.node.parameters import CAMERA_DECLARATIONS, DECLARATIONS

    page = reference_pages().parameters_page()
    for name in [*DECLARATIONS, *(f"<camera>.{n}" for n in CAMERA_DECLARATIONS)]:
        assert f"\n| `{name}` |" in page
    assert "| `obstacles_range_m` | `3.0` | m | 0.5 to 20 | yes |" in page
    assert "| `bond_heartbeat_period` | `0.1` | s | 0 to 10 |" in page
    assert "| `volume.voxel_size_m` | `0.02` | m | in [0.001, 1] | edge length of a map voxel. |" in page
    assert (
        "| `volume.max_range_m` | `5.0` | m | 0 &lt;= min_range_m &lt; max_range_m; radius_m must be at least max"
        in page
    )
    assert "| `grid.class_costs` | `{}` |" in page
    assert "| `objects.min_cells` | `20` |  | at least 1 |" in page
    assert "| `objects.box_memory` | `2.0` |" in page  # parts of a section have no names in its keys
    assert "&lt;" not in "".join(re.findall(r"`[^`]*`", page))  # backticks show it as it stands


def test_every_number_has_a_range():
    """On the page, and so in the checks: a value that nothing bounds is refused by nobody."""
    from dataclasses import fields

    from embodied_perceptron.config import PerceptronConfig, config_parts
    from embodied_perceptron_ros.node.parameters import CAMERA_DECLARATIONS, DECLARATIONS

    def is_number(value):
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    range_of = reference_pages().range_of
    without = []
    for section in fields(PerceptronConfig):
        for cls, names in config_parts(type(getattr(PerceptronConfig(), section.name))):
            without += [name for name in names if is_number(getattr(cls(), name)) and not range_of(cls, name)]
    for name, declaration in {**DECLARATIONS, **CAMERA_DECLARATIONS}.items():
        if is_number(declaration.default) and (declaration.low is None or declaration.high is None):
            without.append(name)
    assert without == []


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="make docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "first_map.html").is_file()


# after the first map, in its folder: what stands for a user's own recording is that drive
WALK = (
    "embodied-perceptron replay FOLDER_OR_BAG --out out/run --query 'the table by the window'",
    'embodied-perceptron replay RECORDING --direct --classes "chair,sofa,display screen" --out out/run',
    "embodied-perceptron evaluate recording --recording FOLDER_OR_BAG --labels labels.json --out out/score",
    "embodied-perceptron export-bag out/drive --out out/drive_bag",
)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a drive is rendered and mapped four times, on a machine that may do other things
def test_the_pages_work_as_typed(tmp_path):
    """The first map's second chapter, line by line, in an empty folder, and what follows of it on other pages."""

    def typed(line):
        words = words_of(re.sub(r"FOLDER_OR_BAG|RECORDING", "out/drive", line))
        command = [sys.executable, "-m", "embodied_perceptron.apps.cli", *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert len(done.stdout.splitlines()) <= 45, f"{line} prints more than a screen"
        return done

    page = (ROOT / "docs" / "first_map.md").read_text()
    lines = [line for found, _ in blocks(page) for line in found if line.startswith("embodied-perceptron ")]
    chapter = [line for line in lines if "out/" in line]
    assert [words_of(line)[1] for line in chapter] == ["generate", "doctor", "replay"]
    for line in chapter:
        done = typed(line)
        assert done.stderr or "doctor" not in line  # it says what it does while it does it
    (answer,) = json.loads((tmp_path / "out" / "map" / "groundings.json").read_text())
    assert answer["status"] == "FOUND", answer  # a tutorial's question has an answer
    truth = json.loads((tmp_path / "out" / "drive" / "scene.json").read_text())["objects"]
    words = answer["text"].split()
    assert {words[1], words[-1]} <= {thing["label"] for thing in truth}
    typed("embodied-perceptron label labels.json --from-objects out/map/objects.json")
    for line in WALK:
        typed(line)
    bag = typed("embodied-perceptron doctor out/drive_bag")
    assert "0 errors" in bag.stdout
