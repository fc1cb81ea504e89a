"""Each reader meets damaged and hostile files: it reads what is left, or refuses in one sentence naming the file."""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from support.small_recording import write_recording
from support.wild_recordings import CASES, RECORDINGS, changed_copy, frames_read

FRAMES = 3
EXAMPLES = {"MCAP": 8, "SQLite": 8, "ROS 1": 8}  # definitions of messages take long to read


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """A valid recording for each reader, by name."""
    root = tmp_path_factory.mktemp("recordings")
    twin = write_recording(root / "twin", FRAMES, color_extension=".png")
    return {name: make(root / str(i), twin) for i, (name, make) in enumerate(RECORDINGS.items())}


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_reader_survives_wild_files(name, recordings):
    assert frames_read(recordings[name], False) == FRAMES

    @settings(
        max_examples=EXAMPLES.get(name, 16),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(CASES)
    def survives(case):
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("error")
            frames_read(changed_copy(recordings[name], Path(folder) / "a", case), case["tolerant"])

    survives()
