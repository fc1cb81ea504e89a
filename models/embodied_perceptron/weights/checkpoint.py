"""Weights files: safetensors with the configuration and class list of the network; released checkpoints.

No code from a file is executed. Own files hold tensors and JSON only. Released EmbodiedScan checkpoints are pickles
with training logs and configuration objects: everything but tensors and plain values becomes an inert stand-in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pickle
import re
import tempfile
import types
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import nn

from embodied_perceptron.nn.official import OfficialTask, map_state_dict
from embodied_perceptron.recordings import plain_values, tensor_files
from embodied_perceptron.recordings.files import atomic_path
from embodied_perceptron.recordings.tensor_files import TensorFileError, disk_errors, parse_json
from embodied_perceptron.weights import FOLDER, ShippedWeights, WeightsError, add_weights

FORMAT = "embodied_perceptron.weights"
VERSION = 1


class CheckpointError(ValueError):
    """A weights file cannot be used; the message names the file and the reason."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Contents of a weights file.

    Attributes:
        state: state dict of the network.
        config: configuration of the network as plain values.
        classes: names of the detection classes, in the order of the logits.
        extra: other plain values (training command, seeds, figures).
    """

    state: dict[str, torch.Tensor]
    config: dict[str, Any]
    classes: tuple[str, ...]
    extra: dict[str, Any]


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a weights file atomically. Raises ``OSError`` when the folder is missing or not writable."""
    header = {"config": checkpoint.config, "classes": list(checkpoint.classes), "extra": checkpoint.extra}
    metadata = {"format": FORMAT, "version": str(VERSION), "header": json.dumps(header)}
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in checkpoint.state.items()}
    with atomic_path(path) as temporary, disk_errors(path):
        save_file(tensors, str(temporary), metadata=metadata)


def read_tensors(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read tensors and metadata of any safetensors file. Raises as :func:`load_checkpoint`."""
    try:
        tensors, metadata, _ = tensor_files.read_tensors(path)
    except TensorFileError as error:
        raise CheckpointError(f"not a safetensors file: {error}") from error
    return tensors, metadata


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a weights file.

    Raises ``CheckpointError`` when it is truncated, of another format or version, or has weights that are not finite;
    ``OSError`` when it cannot be opened.
    """
    state, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} holds no network weights: its format is {metadata.get('format')!r}")
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(f"{path} has version {metadata.get('version')}, this program reads {VERSION}")
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            wrong = int((~torch.isfinite(value)).sum())
            raise CheckpointError(f"{path}: {wrong} of the {value.numel()} numbers of {name} are not finite")
    try:
        header = parse_json(metadata["header"])
        classes = tuple(plain_values.words(name, "a class") for name in header["classes"])
        return Checkpoint(state, header["config"], classes, header["extra"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} has no readable header: {error!r}") from error


def state_digest(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 over names, types and values of all tensors; the header does not count."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def load_into(module: nn.Module, state: Mapping[str, torch.Tensor], source: str) -> None:
    """Load ``state`` into ``module``. Raises ``CheckpointError`` with all missing, unknown or misshapen parameters."""
    own = module.state_dict()
    counters = {name for name in own if name.endswith("num_batches_tracked")}
    missing = sorted(set(own) - set(state) - counters)
    unknown = sorted(set(state) - set(own))
    misshapen = [
        f"{name} is {tuple(state[name].shape)}, the network has {tuple(own[name].shape)}"
        for name in sorted(set(own) & set(state))
        if own[name].shape != state[name].shape
    ]
    problems = [
        f"{label}: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''} ({len(names)})"
        for label, names in (("missing", missing), ("unknown", unknown), ("of another shape", misshapen))
        if names
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit this network; " + "; ".join(problems))
    module.load_state_dict(dict(state), strict=False)


# --------------------------------------------------------------------------------------------------------------------
# untrusted pickles, read without executing anything

_SAFE_BUILTINS = {"complex", "bytearray", "set", "frozenset", "slice", "range"}
# names under which numpy versions rebuild arrays and scalars
_SAFE_GLOBALS = {
    (module, name)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
    for name in ("_reconstruct", "scalar", "_frombuffer")
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("collections", "OrderedDict")}


class UnsafePickleError(ValueError):
    """A pickle names something beyond plain data; the message says what."""


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickler for the names of :meth:`allows`; others become ``stand_in``, or are refused where it is None.

    Raises :class:`UnsafePickleError` with the refused name.
    """

    stand_in: ClassVar[type | None] = None

    def allows(self, module: str, name: str) -> bool:
        """Return True for plain containers, numbers, strings and numpy arrays."""
        if (module, name) in _SAFE_GLOBALS or (module == "builtins" and name in _SAFE_BUILTINS):
            return True
        return module == "numpy.dtypes" and name.endswith("DType")

    def find_class(self, module: str, name: str) -> Any:
        if self.allows(module, name):
            return super().find_class(module, name)
        if self.stand_in is not None:
            return self.stand_in
        raise UnsafePickleError(f"the pickle asks for {module}.{name}, which is not plain data")


def load_plain_pickle(path: str | Path) -> Any:
    """Read a pickle of plain data.

    Raises :class:`UnsafePickleError` when it names anything else or is damaged, ``OSError`` when it cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        return RestrictedUnpickler(io.BytesIO(data)).load()
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{path}: {error}") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, ValueError) as error:
        raise UnsafePickleError(f"{path} is damaged or not a pickle: {error!r}") from error


# --------------------------------------------------------------------------------------------------------------------
# released checkpoints


@dataclass(frozen=True, eq=False)
class OfficialImport:
    """A released state dict with own parameter names.

    Attributes:
        state: the renamed state dict.
        unused: released keys without a counterpart, sorted.
    """

    state: dict[str, torch.Tensor]
    unused: tuple[str, ...]


def load_official(state_dict: Mapping[str, torch.Tensor], task: OfficialTask) -> OfficialImport:
    """Map a released EmbodiedScan state dict to own parameter names.

    Raises ``CheckpointError`` with a few of its keys when none is known.
    """
    state, unused = map_state_dict(state_dict, task)
    if not state:
        raise CheckpointError(f"no key of this state dict belongs to a {task} model, e.g. {sorted(state_dict)[:5]}")
    return OfficialImport(state, tuple(sorted(unused)))


def read_official_file(path: str | Path) -> dict[str, torch.Tensor]:
    """Read the state dict of a released ``.pth`` file without executing anything from it.

    Raises ``CheckpointError`` when the file is not a torch checkpoint or has no state dict.
    """
    try:
        # weights_only=True refuses these files; the restricted unpickler replaces the objects that it refuses
        data = torch.load(str(path), map_location="cpu", weights_only=False, pickle_module=_restricted_pickle())
    except (RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is not a readable torch checkpoint: {error}") from error
    state = data.get("state_dict", data) if isinstance(data, dict) else None
    if not isinstance(state, dict) or not all(isinstance(k, str) for k in state):
        raise CheckpointError(f"{path} holds no state dict, but a {type(data).__name__}")
    tensors = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors")
    return tensors


class _Inert:
    """Inert stand-in for any class of a foreign file."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __setstate__(self, _state: Any) -> None:
        pass

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Inert:
        return self

    def __setitem__(self, _key: Any, _value: Any) -> None:
        pass

    def __hash__(self) -> int:
        return id(self)

    def append(self, _value: Any) -> None:
        """Ignore list items."""

    def extend(self, _values: Any) -> None:
        """Ignore list items."""


_TENSORS = {("collections", "OrderedDict"), ("torch", "Size")} | {
    ("torch._utils", f"_rebuild_{kind}") for kind in ("tensor_v2", "parameter")
}
_STORAGES = {
    ("torch", f"{kind}Storage")
    for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
}


class _CheckpointUnpickler(RestrictedUnpickler):
    """Unpickler of tensors and plain containers; other objects become inert."""

    stand_in = _Inert

    def allows(self, module: str, name: str) -> bool:
        return (module, name) in _TENSORS | _STORAGES


def _restricted_pickle() -> types.ModuleType:
    """Build a replacement of the pickle module for ``torch.load``."""
    module = types.ModuleType("restricted_pickle")
    module.Unpickler = _CheckpointUnpickler  # type: ignore[attr-defined]
    module.UnpicklingError = pickle.UnpicklingError  # type: ignore[attr-defined]

    def load(file: Any, **kwargs: Any) -> Any:
        return _CheckpointUnpickler(file, **kwargs).load()

    def loads(data: bytes, **kwargs: Any) -> Any:
        return load(io.BytesIO(data), **kwargs)

    module.load, module.loads = load, loads  # type: ignore[attr-defined]
    return module


# --------------------------------------------------------------------------------------------------------------------
# shipping a trained file

_ABSOLUTE = re.compile(r"(?<![\w./])/(?:[^\s/=:,'\"]+/)*([^\s/=:,'\"]+)/?")


def without_folders(text: str) -> str:
    """Cut absolute paths in ``text`` to their last part."""
    return _ABSOLUTE.sub(r"\1", text)


def add_network(name: str, file: str | Path, card: str | Path | None = None, folder: Path = FOLDER) -> ShippedWeights:
    """Add a network file to the package, without the folders of the training machine in its header.

    Raises ``CheckpointError`` when it is not a network file; further as :func:`.add_weights`.
    """
    if not Path(file).is_file():
        raise WeightsError(f"{file} is not a file")
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
