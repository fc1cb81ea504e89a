"""Atomic writing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from embodied_perceptron.recordings import files
from embodied_perceptron.recordings.files import atomic_path

DEAD = 2**31 - 1  # no process has this number


def test_replaces_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("one")

    def fail_halfway() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    with atomic_path(tmp_path / "strict") as temporary:
        temporary.chmod(0o600)
    assert (tmp_path / "strict").stat().st_mode == ordinary.stat().st_mode


def test_stale_leftovers_go_and_fresh_ones_stay(tmp_path: Path) -> None:
    stale, fresh = tmp_path / f".a.txt.{DEAD}-00.tmp", tmp_path / f".a.txt.{DEAD}-01.tmp"
    stale.touch()
    fresh.touch()
    os.utime(stale, (0, 0))
    with atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert not stale.exists()
    assert fresh.exists()


def test_missing_folder_is_an_oserror_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"), atomic_path(tmp_path / "absent" / "a.txt"):
        pass


@pytest.mark.parametrize("name", ["*", "a", "[ab]", "a.txt"])
def test_files_of_others_stay(tmp_path: Path, name: str) -> None:
    others = [".a.txt.notes.tmp", f".a.safetensors.{DEAD}-00.tmp", ".b.tmp", f".other.{DEAD}-00.tmp", ".a.backup.tmp"]
    for other in others:
        (tmp_path / other).touch()
        os.utime(tmp_path / other, (0, 0))
    with atomic_path(tmp_path / name) as temporary:
        temporary.write_text("new")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, name])


def test_a_clock_that_is_set_during_a_write_takes_no_file_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, now_s = tmp_path / "a.txt", time.time()
    of_another = tmp_path / f".a.txt.{os.getppid()}-00.tmp"  # whose writer lives
    of_another.touch()
    with atomic_path(path) as temporary:
        temporary.write_text("first")
        monkeypatch.setattr(files.time, "time", lambda: now_s + 3600)
        with atomic_path(path) as another:  # a second writer
            another.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, of_another.name])
