"""Networks over MiniLM's layers with weights of their own beside them: where the fixed ones come from, and which are
stored."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from embodied_perceptron.nn.text_encoder import MINILM_SHA256, TextTokenizer, minilm_folder


def load_minilm(network: nn.Module, embedding: str, layers: int, max_tokens: int) -> TextTokenizer:
    """Copy MiniLM's weights into a network over its first ``layers``; returns the tokenizer that goes with them.

    Args:
        network: with parameters ``{embedding}.weight``, ``places.weight``, ``segment``, ``norm`` and, per layer
            ``layers.{k}``, ``query key value attended norm inner outer last_norm``.
        embedding: name of its embedding of tokens.
        layers: how many.
        max_tokens: per text, markers included.

    Raises ``FileNotFoundError`` where the package is not installed, ``ValueError`` when its weights are not the known
    ones.
    """
    folder = minilm_folder()
    path = folder / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != MINILM_SHA256:
        raise ValueError(f"{path} has SHA-256 {digest}, expected {MINILM_SHA256}")
    own = network.state_dict()
    with safe_open(path, "pt") as file, torch.no_grad():
        for name, theirs in _minilm_names(embedding, layers).items():
            own[name].copy_(file.get_tensor(theirs)[0 if name == "segment" else slice(None)])
    return TextTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"), max_tokens, 0)


def trained_parameters(network: nn.Module) -> dict[str, torch.Tensor]:
    """Name -> weight of what is trained, and stored: all else is MiniLM's."""
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def load_trained(network: nn.Module, path: str | Path, kind: str) -> None:
    """Take the trained weights from a safetensors file; ``kind`` names the network in an error.

    Raises ``OSError`` when it cannot be read, ``ValueError`` when it holds other weights than these.
    """
    own = trained_parameters(network)
    with safe_open(path, "pt") as file, torch.no_grad():
        if set(file.keys()) != set(own):
            raise ValueError(f"{path} holds other weights than those of a {kind}")
        for name, value in own.items():
            value.copy_(file.get_tensor(name))


def _minilm_names(embedding: str, layers: int) -> dict[str, str]:
    """Own name of each fixed weight -> its name in MiniLM's file."""
    names = {
        f"{embedding}.weight": "embeddings.word_embeddings.weight",
        "places.weight": "embeddings.position_embeddings.weight",
        "segment": "embeddings.token_type_embeddings.weight",
    }
    parts = {
        "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
        "attended": "attention.output.dense", "norm": "attention.output.LayerNorm", "inner": "intermediate.dense",
        "outer": "output.dense", "last_norm": "output.LayerNorm",
    }  # fmt: skip
    for end in ("weight", "bias"):
        names[f"norm.{end}"] = f"embeddings.LayerNorm.{end}"
        for k in range(layers):
            names |= {f"layers.{k}.{own}.{end}": f"encoder.layer.{k}.{theirs}.{end}" for own, theirs in parts.items()}
    return names
