"""Published figures: records, the page and the README's table; those of the project are current."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.runner.results import (
    README_BEGIN,
    README_END,
    anchor,
    flat_figures,
    keys_of,
    new_record,
    pick,
    read_layout,
    read_record,
)

LAYOUT = """
intro: What it is.
sections:
  - title: Speed, and more
    needs: patience
    columns: {one: fast, two: slow}
    rows:
      - {name: a frame, key: ms, unit: ms, readme: "a frame, one / two"}
      - {name: only one, key: [runs/*/s, ""], unit: s, digits: 2}
  - title: Shares
    needs: nothing
    rows:
      - {name: right, source: slow, key: share, unit: "%", scale: 100}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """docs/results of a small project, without records."""
    path = tmp_path / "docs" / "results"
    path.mkdir(parents=True)
    (path / "page.yaml").write_text(LAYOUT)
    (tmp_path / "README.md").write_text(f"# Small\n\n{README_BEGIN}\nold\n{README_END}\n\nThe end.\n")
    return path


def bench(path: Path, **data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


def run(folder: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(build_app(), ["dev", "results", "--folder", str(folder), *words])
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def add(folder: Path, name: str, file: Path) -> tuple[int, str]:
    command = f"python benchmarks/{name}.py --out /home/me/{name}.json"
    return run(folder, "--add", str(file), "--name", name, "--command", command, "--machine", "a lap top")


def test_from_a_benchmarks_file_to_the_pages(folder: Path, tmp_path: Path) -> None:
    code, said = add(folder, "fast", bench(tmp_path / "a.json", ms=1234.56, runs=[{"s": 1}, {"s": 2}], more=1))
    assert code != 0
    assert "there is no record 'slow'" in said  # the page needs both
    assert add(folder, "slow", bench(tmp_path / "b.json", ms=2, share=0.5))[0] == 0
    record = read_record(folder / "fast.json")
    assert record.figures == {"ms": 1234.56, "runs/*/s": 1.5}  # what the page shows, no more
    assert record.command == "python benchmarks/fast.py --out fast.json"  # no folders of the machine
    assert (record.machine, len(record.date)) == ("a lap top", 10)
    page = folder.with_suffix(".md").read_text()
    assert "| a frame | ms | 1,234.6 | 2.0 |" in page
    assert "| only one | s | 1.50 |  |" in page
    assert "| right | % | 50.0 |" in page
    assert "*Needs patience.*\n\n```sh\npython benchmarks/fast.py --out fast.json\npython benchmarks/slow.py" in page
    readme = (tmp_path / "README.md").read_text()
    assert "| [a frame, one / two](docs/results.md#speed-and-more) | 1,234.6 / 2.0 ms |" in readme
    assert "old" not in readme
    assert readme.endswith(f"{README_END}\n\nThe end.\n")


def test_a_page_that_is_not_current_is_named(folder: Path, tmp_path: Path) -> None:
    add(folder, "fast", bench(tmp_path / "a.json", ms=1, runs=[{"s": 1}]))
    add(folder, "slow", bench(tmp_path / "b.json", ms=2, share=0.5))
    assert run(folder, "--check") == (0, "")
    path = tmp_path / "README.md"
    path.write_text(path.read_text().replace("1.0 / 2.0", "1.1 / 2.0"))
    code, said = run(folder, "--check")
    assert code == 1
    assert "README.md is not current" in said
    assert "results.md" not in said
    assert "1.1 / 2.0" in path.read_text()  # nothing is written


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    wrong = bench(tmp_path / "a.json", ms=float("nan"), runs=[])
    with pytest.raises(ValueError, match="ms is nan"):
        new_record(wrong, ["ms"], "1", "", "", "", "c")
    with pytest.raises(EvaluationError, match=r"no figure 'runs/\*/s'"):
        new_record(wrong, ["runs/*/s"], "1", "", "", "", "c")
    with pytest.raises(EvaluationError, match="does not tell its command"):
        new_record(wrong, [], "1", "", "", "")
    assert "shows nothing of a record 'slower'" in add(folder, "slower", wrong)[1]
    assert "belong together" in run(folder, "--name", "fast")[1]
    bench(folder / "fast.json", command="c")
    with pytest.raises(EvaluationError, match="must have commit, date, figures, machine, version"):
        read_record(folder / "fast.json")
    (folder / "page.yaml").write_text(LAYOUT.replace("needs: patience", "need: patience"))
    with pytest.raises(EvaluationError, match=r"page\.yaml.*'need'"):
        read_layout(folder)
    (folder / "page.yaml").write_text(LAYOUT.replace('[runs/*/s, ""]', "[runs/*/s]"))
    with pytest.raises(EvaluationError, match="'only one' has 1 keys for 2 records"):
        keys_of(read_layout(folder)[1], "fast")


def test_records_that_nothing_shows_are_refused(folder: Path, tmp_path: Path) -> None:
    add(folder, "fast", bench(tmp_path / "a.json", ms=1, runs=[{"s": 1}]))
    add(folder, "slow", bench(tmp_path / "b.json", ms=2, share=0.5))
    (folder / "lost.json").write_text((folder / "slow.json").read_text())
    assert "shows nothing of the records lost" in run(folder)[1]


def test_an_evaluation_tells_its_command_and_data(tmp_path: Path) -> None:
    record = {
        "command": "embodied-perceptron evaluate all --data /home/me/test",
        "version": "1.2.3",
        "split": "test",
        "scenes": 3,
        "first_scene": "a",
        "last_scene": "c",
        "views": 20,
        "generator_version": 2,
        "turn_seed": None,
        "weights": {"tensors": "abc"},
        "true_classes_unknown_to_the_network": ["piano"],
    }
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "metrics.json").write_text(json.dumps({"AP25": 41.26, "grounding/top1": None}))
    made = new_record(tmp_path, ["AP25"], "2.0.0", "abc1234", "a lap top", "2026-01-02")
    assert made.command == "embodied-perceptron evaluate all --data test"
    assert made.data == "3 homes of version 2 (test: a to c), 20 views each"
    assert made.figures == {"AP25": 41.26}
    assert (made.version, made.weights) == ("2.0.0", "abc")
    assert list(made.notes) == ["True classes that the network does not know count as missed: piano."]


def test_nested_json_is_flat() -> None:
    data = {"a": [{"b": 1}, {"b": 4}], "c": True, "d": None, "e": "text"}
    assert dict(flat_figures(data)) == {"a/0/b": 1.0, "a/1/b": 4.0, "c": 1.0}
    assert pick(dict(flat_figures(data)), "a/*/b") == 2.5


def test_anchors_are_those_of_the_pages() -> None:
    assert anchor("Speed on a CPU") == "speed-on-a-cpu"
    assert anchor("What, a (small) thing?") == "what-a-small-thing"
