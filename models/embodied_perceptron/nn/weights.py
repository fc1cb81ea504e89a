"""A network as a file, and a network from a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from embodied_perceptron.checkpoint import Checkpoint, CheckpointError, load_checkpoint, load_into, save_checkpoint
from embodied_perceptron.config import config_from_dict
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import NetworkConfig, with_current_decoding


def save_network(
    path: str | Path,
    network: PerceptionNetwork,
    classes: tuple[str, ...],
    extra: dict[str, Any] | None = None,
    half: bool = True,
) -> None:
    """Write weights, configuration and detection classes, atomically.

    ``half`` stores matrices and kernels in half precision; norms, biases and statistics stay exact, for they are small
    and a variance may lie outside of what half precision can say. Raises ``ValueError`` when the number of classes is
    not the network's, ``OSError`` when the file cannot be written.
    """
    check_classes(network.config, classes)
    state = network.state_dict()
    if half:
        state = {k: v.half() if v.ndim > 1 and v.dtype == torch.float32 else v for k, v in state.items()}
    config = dataclasses.asdict(network.config)
    save_checkpoint(path, Checkpoint(dict(state), config, classes, {} if extra is None else extra))


def load_network(path: str | Path) -> tuple[PerceptionNetwork, tuple[str, ...]]:
    """The network of a weights file, in evaluation mode, and its detection classes. Raises as :func:`read_network`."""
    network, checkpoint = read_network(path)
    return network, checkpoint.classes


def read_network(path: str | Path) -> tuple[PerceptionNetwork, Checkpoint]:
    """The network of a weights file, in evaluation mode, and all that the file holds; boxes are decoded as its preset
    decodes today.

    Raises ``CheckpointError`` when the file is damaged, is no such file, or its parts do not fit together; ``OSError``
    when it cannot be opened.
    """
    checkpoint = load_checkpoint(path)
    try:
        config = with_current_decoding(config_from_dict(NetworkConfig, checkpoint.config, f"{path}: config"))
        check_classes(config, checkpoint.classes)
        network = PerceptionNetwork(config)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    load_into(network, checkpoint.state, str(path))
    return network.eval(), checkpoint


def check_classes(config: NetworkConfig, classes: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless there is one distinct name per class of the network."""
    if len(classes) != config.num_classes:
        raise ValueError(f"the network has {config.num_classes} classes, but {len(classes)} names are given")
    twice = sorted({name for name in classes if classes.count(name) > 1})
    if twice:
        raise ValueError(f"class names must differ, given twice: {', '.join(twice)}")
