"""Atomic writing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embodied_perceptron.recordings.files import atomic_path


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
    stale, fresh = tmp_path / ".a.txt.1-00.tmp", tmp_path / ".a.txt.2-00.tmp"
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
