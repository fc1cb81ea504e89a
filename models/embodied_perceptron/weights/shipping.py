"""From a trained file to a shipped one."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path
from typing import Any

from embodied_perceptron.weights import FOLDER, ShippedWeights, WeightsError, add_weights
from embodied_perceptron.weights.checkpoint import load_checkpoint, save_checkpoint

_ABSOLUTE = re.compile(r"(?<![\w./])/(?:[^\s/=:,'\"]+/)*([^\s/=:,'\"]+)/?")


def without_folders(text: str) -> str:
    """Absolute paths in ``text`` cut to their last part: folders of the machine that trained say nothing elsewhere."""
    return _ABSOLUTE.sub(r"\1", text)


def add_network(name: str, file: str | Path, card: str | Path | None = None, folder: Path = FOLDER) -> ShippedWeights:
    """Ship a network file; folders of the machine that trained it are taken out of its header.

    Raises ``CheckpointError`` when it is no network file, and what
    :func:`~embodied_perceptron.weights.add_weights` raises.
    """
    if not Path(file).is_file():
        raise WeightsError(f"{file} is no file")
    checkpoint = load_checkpoint(file)
    preset = str(checkpoint.config.get("name", ""))
    extra = _scrubbed(checkpoint.extra)
    if extra == checkpoint.extra:
        return add_weights(name, file, preset, card, folder)
    with tempfile.TemporaryDirectory() as temporary:
        clean = Path(temporary) / "clean.safetensors"
        save_checkpoint(clean, dataclasses.replace(checkpoint, extra=extra))
        return add_weights(name, clean, preset, card, folder)


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, dict):
        return {key: _scrubbed(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_scrubbed(entry) for entry in value]
    return value
