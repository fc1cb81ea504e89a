"""From a weights file to something that answers: network, vocabulary, calibration, encoders, device.

    inference = load_inference("tiny")                      a shipped name, or the path of a weights file
    inference = load_inference("mine.safetensors", "cuda")

The text encoder is read when the first sentence comes: a robot that is asked nothing does not pay for it.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from embodied_perceptron.categories import OCCUPANCY_CLASSES
from embodied_perceptron.checkpoint import Checkpoint, CheckpointError
from embodied_perceptron.config import NetworkOptions
from embodied_perceptron.fusion.devices import resolve_device
from embodied_perceptron.nn.folding import folded
from embodied_perceptron.nn.inference import NetworkInference
from embodied_perceptron.nn.presets import PRESETS, NetworkConfig
from embodied_perceptron.nn.text_encoder import TextEncoder, TextFeatures, TransformerTextEncoder, text_encoder
from embodied_perceptron.nn.weights import read_network
from embodied_perceptron.weights import weights_file

Backend = Literal["torch", "onnx"]
DEFAULT_MIN_SCORE = 0.1
_CPU = ("CPUExecutionProvider",)


def load_inference(
    weights: str | Path,
    device: str = "cpu",
    *,
    min_score: float | None = None,
    feature_dtype: torch.dtype = torch.float16,
    image_backend: Backend = "torch",
    text_backend: Backend = "torch",
    providers: Sequence[str] = _CPU,
    threads: int = 1,
    preset: str | None = None,
    classes: Sequence[str] | None = None,
) -> NetworkInference:
    """The network of a weights file, ready to look.

    What the file's ``extra`` may say: ``occupancy_classes`` (names, label 1 first; default: the benchmark's), and
    ``calibration``, kept whole as ``inference.calibration``; of it ``calibration["detection"]["min_score"]`` is the
    score from which a box is an object.

    Args:
        weights: a shipped name or a path; see :func:`embodied_perceptron.weights.weights_file`.
        device: "cpu", "cuda", "cuda:0"; "auto" = cuda where available.
        min_score: overrides the calibrated one.
        feature_dtype: of a keyframe's image features.
        image_backend, text_backend: run that encoder by torch on ``device``, or by ONNX Runtime with ``providers``.
        providers: of ONNX Runtime in order of preference.
        threads: of ONNX Runtime on the CPU; 0 = as many as cores.
        preset, classes: what the caller counts on; None = whatever the file holds.

    Raises ``WeightsError`` for a name that is not shipped or a shipped file that is damaged, ``CheckpointError`` for a
    file that is none, is damaged, or is of another preset or class list than asked for, ``OSError`` when it cannot be
    opened, ``ConfigError`` for a device that is not available, ``ValueError`` for a provider that is not.
    """
    file = weights_file(weights)
    target = resolve_device(device, "network device")
    network, checkpoint = read_network(file)
    _check_expected(file, network.config, checkpoint, preset, classes)
    network, config = folded(network), network.config
    text: TextEncoder | None = None
    if config.grounding is not None:
        name, channels = config.grounding.text_encoder, config.grounding.text_channels
        text = LazyTextEncoder(channels, lambda: _text(name, target, text_backend, providers, threads))
    images = None
    if image_backend == "onnx" and network.image_encoder is not None:
        images = _onnx_images(network.image_encoder, providers, threads)
    calibration = _calibration(file, checkpoint)
    try:
        return NetworkInference(
            network.to(target),
            checkpoint.classes,
            _occupancy_classes(file, config, checkpoint),
            text,
            image_encoder=images,
            feature_dtype=feature_dtype,
            calibration=calibration,
            min_score=_min_score(calibration) if min_score is None else min_score,
        )
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error


def inference_from_options(options: NetworkOptions) -> NetworkInference | None:
    """What the ``network`` section of a configuration asks for; None without weights. Raises as above."""
    if not options.weights:
        return None
    return load_inference(
        options.weights,
        options.device,
        min_score=options.min_score,
        feature_dtype=torch.float16 if options.features == "float16" else torch.float32,
        image_backend=options.image_backend,
        text_backend=options.text_backend,
        providers=options.providers,
        threads=options.threads,
    )


class LazyTextEncoder:
    """A text encoder that is made when the first text comes; one attempt at a time, from any thread.

    Args:
        channels: of the features it will give.
        make: builds it.

    :meth:`encode` raises what ``make`` raises (a package that is not installed, for example), again at each call, and
    ``ValueError`` when what was made gives other channels.
    """

    def __init__(self, channels: int, make: Callable[[], TextEncoder]) -> None:
        self.channels = channels
        self._make = make
        self._made: TextEncoder | None = None
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> TextFeatures:
        """See :class:`TextEncoder`."""
        return self.made().encode(texts)

    def made(self) -> TextEncoder:
        """The encoder itself."""
        with self._lock:
            if self._made is None:
                encoder = self._make()
                if encoder.channels != self.channels:
                    raise ValueError(f"the network reads {self.channels} text channels, got {encoder.channels}")
                self._made = encoder
            return self._made

    def release(self) -> None:
        """Forget it; the next text makes it anew."""
        with self._lock:
            self._made = None


# --------------------------------------------------------------------------------------------------------------------


def _check_expected(
    file: Path, config: NetworkConfig, checkpoint: Checkpoint, preset: str | None, classes: Sequence[str] | None
) -> None:
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if preset is not None and config.name != preset:
        raise CheckpointError(f"{file} holds a {config.name} network, expected {preset}")
    if classes is not None and tuple(classes) != checkpoint.classes:
        missing = [name for name in classes if name not in checkpoint.classes]
        detail = f"it lacks {', '.join(missing[:8])}" if missing else "theirs is longer or in another order"
        raise CheckpointError(
            f"{file} has {len(checkpoint.classes)} classes, not the {len(classes)} that are expected: {detail}"
        )


def _occupancy_classes(file: Path, config: NetworkConfig, checkpoint: Checkpoint) -> tuple[str, ...]:
    if config.occupancy is None:
        return ()
    names = checkpoint.extra.get("occupancy_classes", OCCUPANCY_CLASSES)
    if not isinstance(names, Sequence) or isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise CheckpointError(f"{file}: occupancy_classes must be names, got {names!r:.100}")
    if len(names) != config.occupancy.num_classes:
        raise CheckpointError(
            f"{file}: the network has {config.occupancy.num_classes} occupancy classes, the file names {len(names)}"
        )
    return tuple(names)


def _calibration(file: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    calibration = checkpoint.extra.get("calibration", {})
    if not isinstance(calibration, dict):
        raise CheckpointError(f"{file}: calibration must be a mapping, got {calibration!r:.100}")
    return calibration


def _min_score(calibration: Mapping[str, Any]) -> float:
    detection = calibration.get("detection")
    value = detection.get("min_score") if isinstance(detection, dict) else None
    return float(value) if isinstance(value, (int, float)) else DEFAULT_MIN_SCORE


def _text(name: str, device: torch.device, backend: Backend, providers: Sequence[str], threads: int) -> TextEncoder:
    encoder = text_encoder(name)
    if backend == "torch":
        return encoder.to(device)
    return _onnx_text(encoder, providers, threads)


def _onnx_images(encoder: Any, providers: Sequence[str], threads: int) -> Any:
    """The same encoder run by ONNX Runtime; its file is written to a folder that is gone afterwards."""
    from embodied_perceptron.nn.onnx_export import OnnxImageEncoder, export_image_encoder

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.onnx"
        export_image_encoder(encoder, path)
        return OnnxImageEncoder(path, providers, threads)


def _onnx_text(encoder: TransformerTextEncoder, providers: Sequence[str], threads: int) -> TextEncoder:
    from embodied_perceptron.nn.onnx_export import OnnxTextEncoder, export_text_encoder

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.onnx"
        export_text_encoder(encoder, path)
        return OnnxTextEncoder(path, providers, threads)
