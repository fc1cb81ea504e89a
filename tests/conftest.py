"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]

pytest_plugins = ["support.text_encoders"]

os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")  # nodes of tests stay on this machine


def _shared(variable: str, default: Path) -> Path:
    folder = Path(os.environ.get(variable, default))
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent (set {variable})")
    return folder


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Development data that is not part of the repository; tests that need it skip when it is absent."""
    return _shared("EMBODIED_DATA_DIR", REPO.parent / "shared" / "data")


@pytest.fixture(scope="session")
def kitchen_dir(data_dir: Path) -> Path:
    """100 real RGB-D frames in TUM layout."""
    return _shared("EMBODIED_KITCHEN_DIR", data_dir / "kitchen")
