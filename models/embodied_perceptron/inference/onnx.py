"""Encoders as ONNX files, and encoders run by ONNX Runtime (CPU, CUDA, TensorRT).

A file is self-contained: normalisation, strides and channels, or the tokenizer, are in its metadata.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import nn

from embodied_perceptron.nn.image_encoder import ImageEncoder, check_images, empty_levels, prepare_images
from embodied_perceptron.nn.text_encoder import TextFeatures, TextTokenizer, TransformerTextEncoder, finish
from embodied_perceptron.recordings.files import atomic_path

OPSET = 17  # understood by the TensorRT of current Jetson releases
CPU = ("CPUExecutionProvider",)
_METADATA_KEY = "embodied_perceptron"
_STOP_S = 5.0  # for runs to stop at the end of the program


def export_image_encoder(encoder: ImageEncoder, path: str | Path) -> None:
    """Write an image encoder with dynamic numbers of views and image sizes (multiples of 32).

    Raises ``OSError`` when the file cannot be written.
    """
    names = [f"level{i}" for i in range(len(encoder.strides))]
    axes = {"images": {0: "views", 2: "height", 3: "width"}}
    axes |= {name: {0: "views", 2: f"{name}_height", 3: f"{name}_width"} for name in names}
    metadata = {
        "kind": "image",
        "out_channels": list(encoder.out_channels),
        "strides": list(encoder.strides),
        "mean": encoder.mean.tolist(),
        "std": encoder.std.tolist(),
    }
    _export(encoder, (torch.zeros(1, 3, 64, 96),), ["images"], names, axes, metadata, path)


def export_text_encoder(encoder: TransformerTextEncoder, path: str | Path) -> None:
    """Write a text encoder with its tokenizer and dynamic numbers of texts and tokens.

    Raises ``OSError`` when the file cannot be written.
    """
    tokenizer = encoder.tokenizer
    metadata = {
        "kind": "text",
        "channels": encoder.channels,
        "max_tokens": tokenizer.max_tokens,
        "pad_id": tokenizer.pad_id,
        "tokenizer": tokenizer.definition,
    }
    example = (torch.full((2, 5), 7), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    axes = {name: {0: "texts", 1: "tokens"} for name in ("ids", "mask", "features")}
    _export(encoder, example, ["ids", "mask"], ["features"], axes, metadata, path)


def _export(
    module: nn.Module,
    example: tuple[torch.Tensor, ...],
    inputs: list[str],
    outputs: list[str],
    axes: dict[str, dict[int, str]],
    metadata: dict[str, Any],
    path: str | Path,
) -> None:
    import onnx

    still = copy.deepcopy(module).cpu().eval().requires_grad_(False)
    with atomic_path(path) as temporary:
        with torch.no_grad(), _quiet():
            # the tracing exporter takes two seconds, the newer one a minute
            torch.onnx.export(
                still, example, str(temporary), input_names=inputs, output_names=outputs, dynamic_axes=axes,
                opset_version=OPSET, dynamo=False,
            )  # fmt: skip
        model = onnx.load(str(temporary))
        onnx.checker.check_model(model)
        entry = model.metadata_props.add()
        entry.key, entry.value = _METADATA_KEY, json.dumps(metadata)
        temporary.write_bytes(model.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the tracer's warnings about Python conditions, which only check inputs here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def open_session(path: str | Path, providers: Sequence[str] = CPU, threads: int = 0) -> Any:
    """An ``onnxruntime.InferenceSession`` on the first of ``providers``, without fallback.

    Raises ``ValueError`` for an unavailable provider, ``FileNotFoundError`` without the file, ``RuntimeError`` when the
    first provider cannot be set up, and the errors of ONNX Runtime for an invalid file.
    """
    import onnxruntime

    available = onnxruntime.get_available_providers()
    missing = [name for name in providers if name not in available]
    if missing or not providers:
        raise ValueError(f"ONNX Runtime providers {missing or list(providers)} are not available: {available}")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no ONNX file at {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    if session.get_providers()[0] != providers[0]:
        # ONNX Runtime only warns when it falls back to the CPU, for example without a CUDA library
        raise RuntimeError(f"{providers[0]} could not be set up: {path} would run on {session.get_providers()}")
    return session


_running: set[Any] = set()  # options of the runs in progress


def run_session(session: Any, outputs: Sequence[str] | None, feed: Mapping[str, NDArray[Any]]) -> list[Any]:
    """``session.run``; at the end of the program it is stopped (between two nodes) and raises ONNX Runtime's error."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    _running.add(options)
    try:
        found: list[Any] = session.run(outputs, feed, options)
        return found
    finally:
        _running.discard(options)


@atexit.register
def _stop_runs() -> None:
    """Stop the runs of daemon threads, which would abort the process while the runtime is unloaded."""
    for options in tuple(_running):
        options.terminate = True
    end_s = time.monotonic() + _STOP_S
    while _running and time.monotonic() < end_s:
        time.sleep(0.01)


class _OnnxEncoder:
    """An encoder exported by this project; results are on the CPU.

    Args:
        path: written by an export function of this module.
        providers: of ONNX Runtime in order of preference, for example ``("TensorrtExecutionProvider",
            "CUDAExecutionProvider")``.
        threads: for operators on the CPU; 0 = as many as cores.

    Raises ``ValueError`` for an unavailable provider or a file of another kind, ``RuntimeError`` when the first
    provider cannot be set up.
    """

    kind: ClassVar[str]

    def __init__(self, path: str | Path, providers: Sequence[str] = CPU, threads: int = 0) -> None:
        self._session = open_session(path, providers, threads)
        text = self._session.get_modelmeta().custom_metadata_map.get(_METADATA_KEY)
        self.metadata: dict[str, Any] = json.loads(text) if text else {}
        if self.metadata.get("kind") != self.kind:
            raise ValueError(f"{path} holds no {self.kind} encoder of this project: {self.metadata.get('kind')!r}")

    def _run(self, **inputs: torch.Tensor) -> list[torch.Tensor]:
        arrays = {name: value.detach().cpu().numpy() for name, value in inputs.items()}
        return [torch.from_numpy(array) for array in run_session(self._session, None, arrays)]


class OnnxImageEncoder(_OnnxEncoder):
    """Replacement of an :class:`ImageEncoder` for inference."""

    kind = "image"

    def prepare(self, colors: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """See :meth:`ImageEncoder.prepare`."""
        return prepare_images(colors, size, *(torch.tensor(self.metadata[name]) for name in ("mean", "std")))

    def __call__(self, images: torch.Tensor) -> list[torch.Tensor]:
        """See :meth:`ImageEncoder.forward`."""
        check_images(images)
        if not len(images):
            return empty_levels(images, self.metadata["out_channels"], self.metadata["strides"])
        return self._run(images=images)


class OnnxTextEncoder(_OnnxEncoder):
    """A text encoder run by ONNX Runtime; needs the ``tokenizers`` package, not ``transformers``."""

    kind = "text"

    @property
    def channels(self) -> int:
        """Of its features."""
        return int(self.metadata["channels"])

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """Of the encoder that was exported."""
        return TextTokenizer(self.metadata["tokenizer"], self.metadata["max_tokens"], self.metadata["pad_id"])

    def encode(self, texts: Sequence[str]) -> TextFeatures:
        """See :class:`embodied_perceptron.nn.text_encoder.TextEncoder`."""
        batch = self.tokenizer(texts)
        if not len(texts):
            return finish(batch, torch.zeros(0, 0, self.channels))
        (tokens,) = self._run(ids=batch.ids, mask=batch.mask)
        return finish(batch, tokens)
