"""Networks as files, and predictors from files: network, vocabulary, calibration, encoders, device.

    predictor = load_inference("tiny")                      a shipped name, or the path of a weights file
    predictor = load_inference("mine.safetensors", "cuda")

For inference, batch norms are folded into the convolutions. The text encoder is loaded with the first sentence.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.overrides import TorchFunctionMode

from embodied_perceptron.config import NetworkOptions, ScorePolicy, config_from_dict
from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.inference.naming import Naming, shift_between
from embodied_perceptron.inference.predictor import Predictor, check_classes
from embodied_perceptron.mapping.devices import resolve_device
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import NetworkConfig, with_current_decoding
from embodied_perceptron.nn.text_encoder import TextEncoder, TextFeatures, text_encoder
from embodied_perceptron.sparse.conv import SparseActivation, SparseBatchNorm, SparseConv, SparseTransposedConv
from embodied_perceptron.sparse.tensor import empty_columns
from embodied_perceptron.weights import weights_file
from embodied_perceptron.weights.categories import OCCUPANCY_CLASSES
from embodied_perceptron.weights.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    load_into,
    save_checkpoint,
)

ModuleT = TypeVar("ModuleT", bound=nn.Module)
DEFAULT_MIN_SCORE = 0.1
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
_BESIDE_WEIGHTS = 2**20  # numbers of a network that are not in its file
_MOST = 1_000_000  # largest number in a network's configuration


def save_network(
    path: str | Path,
    network: PerceptionNetwork,
    classes: tuple[str, ...],
    extra: dict[str, Any] | None = None,
    half: bool = True,
) -> None:
    """Write weights, configuration and detection classes, atomically.

    ``half`` stores matrices and kernels in half precision; norms, biases and statistics stay exact: they are small, and
    a variance may exceed the range of half precision. Raises ``ValueError`` for another number of classes than the
    network's, ``OSError`` when the file cannot be written.
    """
    check_classes(network.config, classes)
    state = network.state_dict()
    if half:
        state = {k: v.half() if v.ndim > 1 and v.dtype == torch.float32 else v for k, v in state.items()}
    config = dataclasses.asdict(network.config)
    save_checkpoint(path, Checkpoint(dict(state), config, classes, {} if extra is None else extra))


def load_network(path: str | Path) -> tuple[PerceptionNetwork, tuple[str, ...]]:
    """Load a network in evaluation mode, and its detection classes. Raises as :func:`read_network`."""
    network, checkpoint = read_network(path)
    return network, checkpoint.classes


def read_network(path: str | Path) -> tuple[PerceptionNetwork, Checkpoint]:
    """Load a network in evaluation mode, and the contents of its file; boxes are decoded by the present preset.

    Raises ``CheckpointError`` for a damaged or other file and for parts that do not fit together; ``OSError`` when it
    cannot be opened.
    """
    checkpoint = load_checkpoint(path)
    try:
        config = with_current_decoding(config_from_dict(NetworkConfig, checkpoint.config, f"{path}: config"))
        check_classes(config, checkpoint.classes)
        _check_counts(dataclasses.asdict(config), "config")
        held = sum(value.numel() for value in checkpoint.state.values())
        with _MemoryLimit(2 * held + _BESIDE_WEIGHTS):
            network = PerceptionNetwork(config)
    except (ValueError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    load_into(network, checkpoint.state, str(path))
    return network.eval(), checkpoint


def _check_counts(value: Any, name: str) -> None:
    """Raise ``ValueError`` for an implausible number: lists of that length would be made before any weight."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_counts(inner, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_counts(inner, name)
    elif isinstance(value, (int, float)) and not abs(value) <= _MOST:
        raise ValueError(f"{name} must be a number up to {_MOST}, got {value!r:.40}")


class _MemoryLimit(TorchFunctionMode):
    """Limit the numbers that a network allocates to about those of its file, whatever the file's header says. Raises
    ``ValueError`` before memory is allocated."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self._most = self._left = numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES:
            size = kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args)
            self._left -= abs(math.prod(size))
        elif func is torch.arange:
            self._left -= max((abs(int(value)) for value in args), default=0)
        if self._left < 0:
            raise ValueError(f"its configuration makes a network of more than {self._most} numbers, the file has fewer")
        return func(*args, **kwargs)


def fold_batch_norms(module: ModuleT, products: torch.dtype = torch.float32, on_cpu: bool = True) -> ModuleT:
    """A copy for inference: batch norms folded into the convolutions before them, weights of image convolutions in
    channels-last order and, for the CPU, faster layers for grids and ELU. Outputs agree up to rounding (1e-6 of their
    range; 1e-2 where ``products``, of :class:`GridConv` and of crowded sites, are bfloat16).

    A batch norm is folded into the convolution registered directly before it; others stay.
    """
    module = copy.deepcopy(module).eval().requires_grad_(False)
    for parent in module.modules():
        for (name, conv), (norm_name, norm) in itertools.pairwise(list(parent.named_children())):
            fused = _fused(conv, norm)
            if fused is not None:
                setattr(parent, name, fused)
                setattr(parent, norm_name, nn.Identity())
        parts = list(parent.named_children())
        for (_, conv), (_, norm), (name, after) in zip(parts, parts[1:], parts[2:], strict=False):
            elu = isinstance(after, SparseActivation) and type(after.function) is nn.ELU and after.function.alpha == 1.0
            folds = elu and isinstance(norm, nn.Identity) and not on_cpu
            if folds and isinstance(conv, (SparseConv, SparseTransposedConv)):
                conv.then = "elu"
                setattr(parent, name, nn.Identity())
    for parent in module.modules():
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.Conv2d):
                part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            elif isinstance(part, SparseConv):
                part.freeze(products)
            elif not on_cpu:
                continue
            elif type(part) is nn.Conv3d:
                setattr(parent, name, GridConv(part, products))
            elif type(part) is nn.ConvTranspose3d and GridSplit.serves(part):
                setattr(parent, name, GridSplit(part))
            elif type(part) is nn.ELU and part.alpha == 1.0:
                setattr(parent, name, QuickElu())
    return module


class QuickElu(nn.Module):
    """ELU for inference on the CPU, by ``exp`` instead of the slower ``expm1``: equal to 1e-7."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape."""
        return torch.maximum(x, x.clamp(max=0.0).exp().sub(1.0))


class GridConv(nn.Module):
    """A convolution of dense 3-D grids of one sample, for inference on the CPU.

    torch takes a slow path for small inputs without a batch (five times the time at 20x20x8 cells), is faster with the
    channels of a cell side by side (by a third from 16 to 16 of them), and slow for pointwise layers.

    Args:
        conv: whose parameters and numbers it takes over.
        products: dtype of products: bfloat16 takes half of the time on a processor that supports it
            (:func:`cpu_products`). Sums are float32, inputs and outputs keep their type; pointwise layers, which
            classify, are exact.
    """

    def __init__(self, conv: nn.Conv3d, products: torch.dtype = torch.float32) -> None:
        super().__init__()
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            raise ValueError(f"only padding with zeros is supported, got {conv.padding} {conv.padding_mode}")
        self.weight, self.bias = conv.weight, conv.bias
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.groups = conv.groups
        self._products = products
        self._rounded: torch.Tensor | None = None  # the weights for these products
        matrix: torch.Tensor | None = None
        if conv.kernel_size == conv.stride == (1, 1, 1) and conv.padding == (0, 0, 0) and conv.groups == 1:
            rows = conv.weight.detach().flatten(1)
            matrix = functional.pad(rows, (0, 0, 0, empty_columns(len(rows))))
        self.matrix: torch.Tensor | None
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, Cin, X, Y, Z) -> (B, Cout, X', Y', Z')."""
        if self.matrix is not None:
            out = functional.linear(x.movedim(1, -1), self.matrix)[..., : len(self.weight)].movedim(-1, 1)
            return out if self.bias is None else out.add_(self.bias[:, None, None, None])
        if x.dtype == torch.float32 and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            if not self.weight.is_contiguous(memory_format=torch.channels_last_3d):  # once
                with torch.inference_mode(False):  # a tensor like any other, which may be moved and stored
                    ordered = self.weight.detach().contiguous(memory_format=torch.channels_last_3d)
                    self.weight = nn.Parameter(ordered, requires_grad=False)
            if self._rounded is None:
                with torch.inference_mode(False):
                    self._rounded = self.weight.detach().to(self._products)
            bias = None if self.bias is None else self.bias.to(self._products)
            x = x.to(self._products).contiguous(memory_format=torch.channels_last_3d)
            return torch.mkldnn_convolution(
                x, self._rounded, bias, self.padding, self.stride, self.dilation, self.groups
            ).float()
        return functional.conv3d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class GridSplit(nn.Module):
    """A transposed convolution that splits every cell of a dense 3-D grid, for inference on the CPU: one matrix
    product, where torch's own takes five times as long.

    Args:
        conv: source of parameters; see :meth:`serves`.
    """

    def __init__(self, conv: nn.ConvTranspose3d) -> None:
        super().__init__()
        if not self.serves(conv):
            raise ValueError(f"its kernel must be its stride, without padding and groups, got {conv}")
        self.out_channels, self.edges = conv.out_channels, conv.stride
        self.weight, self.bias = conv.weight, conv.bias
        self.matrix: torch.Tensor
        self.register_buffer("matrix", conv.weight.detach().permute(0, 2, 3, 4, 1).flatten(1), persistent=False)

    @staticmethod
    def serves(conv: nn.ConvTranspose3d) -> bool:
        """Whether every output depends on one input."""
        plain = conv.padding == conv.output_padding == (0, 0, 0) and conv.dilation == (1, 1, 1)
        return plain and conv.kernel_size == conv.stride and conv.groups == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, Cin, X, Y, Z) -> (B, Cout, a X, b Y, c Z) for edges a, b, c."""
        (a, b, c), (batch, _, *size) = self.edges, x.shape
        parts = (x.movedim(1, -1) @ self.matrix).view(batch, *size, a, b, c, self.out_channels)
        cells = parts.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(batch, a * size[0], b * size[1], c * size[2], -1)
        return (cells if self.bias is None else cells + self.bias).movedim(-1, 1)


def cpu_products(precision: Literal["float32", "auto"]) -> torch.dtype:
    """Type of the products of voxel convolutions on this CPU: bfloat16 with ``auto`` and instructions for it."""
    known = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    multiplies = any(asked is not None and asked() for asked in known)
    return torch.bfloat16 if precision == "auto" and multiplies else torch.float32


def _fused(conv: nn.Module, norm: nn.Module) -> nn.Module | None:
    """A convolution with its batch norm folded in; None for other modules."""
    if isinstance(conv, (SparseConv, SparseTransposedConv)) and isinstance(norm, SparseBatchNorm):
        return _fused_sparse(conv, norm.bn)
    if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
        return fuse_conv_bn_eval(conv, norm)
    if isinstance(conv, (nn.Conv3d, nn.ConvTranspose3d)) and isinstance(norm, nn.BatchNorm3d):
        return fuse_conv_bn_eval(conv, norm, transpose=isinstance(conv, nn.ConvTranspose3d))
    return None


def _fused_sparse(conv: SparseConv | SparseTransposedConv, norm: nn.BatchNorm1d) -> nn.Module:
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = norm.weight * torch.rsqrt(variance + norm.eps)  # (Cout,)
    bias = torch.zeros_like(mean) if conv.bias is None else conv.bias[0]
    conv.kernel = nn.Parameter(conv.kernel * scale, requires_grad=False)
    conv.bias = nn.Parameter((norm.bias + (bias - mean) * scale)[None], requires_grad=False)
    return conv


def load_inference(
    weights: str | Path,
    device: str = "cpu",
    options: NetworkOptions | None = None,
) -> Predictor:
    """Load the predictor of a weights file.

    The file's ``extra`` may have ``occupancy_classes`` (names, label 1 first; default: the benchmark's) and
    ``calibration``. Of the latter ``["detection"]["min_score"]`` is the publishing threshold,
    ``["nameless_min_score"]`` the threshold of unnamed boxes with equal precision, ``["even_score"]`` the score at
    which a box is as likely right as wrong, and ``["reliability"]`` a
    :class:`~embodied_perceptron.inference.confidence_calibration.ConfidenceCalibration`.

    Args:
        weights: a shipped name or a path; see :func:`embodied_perceptron.weights.weights_file`.
        device: "cpu", "cuda", "cuda:0"; "auto" = a GPU that is present and works.
        options: threshold, features, precision and encoders; None = the usual ones. ``weights`` and ``device`` of it
            are not read.

    Raises ``WeightsError`` for a name that is not shipped or a damaged shipped file, ``CheckpointError`` for a file of
    another kind or a damaged one, ``OSError`` when it cannot be opened, ``ConfigError`` for an unavailable device,
    ``ValueError`` for an unavailable provider.
    """
    options = NetworkOptions() if options is None else options
    file = weights_file(weights)
    target = resolve_device(device, "network device")
    network, checkpoint = read_network(file)
    on_cpu = runs_compiled(torch.empty(0, device=target))
    network, config = fold_batch_norms(network, cpu_products(options.precision), on_cpu), network.config
    text: TextEncoder | None = None
    if config.grounding is not None:
        make = functools.partial(_text, config.grounding.text_encoder, options)
        text = LazyTextEncoder(config.grounding.text_channels, make, target)
    images = None
    if options.image_backend == "onnx" and network.image_encoder is not None:
        images = _by_onnx("image", network.image_encoder, options)
    calibration = checkpoint.extra.get("calibration", {})
    if not isinstance(calibration, dict):
        raise CheckpointError(f"{file}: calibration must be a mapping, got {calibration!r:.100}")
    spare = None if target.type == "cpu" else copy.deepcopy(network)
    try:
        scores, naming = _scoring(calibration, options.min_score)
        predictor = Predictor(
            network.to(target),
            checkpoint.classes,
            _occupancy_classes(file, config, checkpoint),
            text,
            image_encoder=images,
            feature_dtype=torch.float16 if options.features == "float16" else torch.float32,
            calibration=calibration,
            scores=scores,
        )
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error
    predictor.naming, predictor.spare = naming, spare
    return predictor


def inference_from_options(options: NetworkOptions) -> Predictor | None:
    """Load the predictor of the ``network`` section of a configuration; None without weights. Raises as
    :func:`load_inference`."""
    return load_inference(options.weights, options.device, options) if options.weights else None


class LazyTextEncoder:
    """A text encoder that is loaded with the first text; thread-safe.

    Args:
        channels: of its features.
        make: loads it on a device.
        device: of the encoder.

    Each call of :meth:`encode` tries again and raises the errors of ``make`` (a missing package, for example), and
    ``ValueError`` for an encoder with other channels.
    """

    def __init__(self, channels: int, make: Callable[[torch.device], TextEncoder], device: torch.device) -> None:
        self.channels = channels
        self._make, self._device = make, device
        self._made: TextEncoder | None = None
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> TextFeatures:
        """See :class:`TextEncoder`."""
        return self.made().encode(texts)

    def made(self) -> TextEncoder:
        """The loaded encoder."""
        with self._lock:
            if self._made is None:
                encoder = self._make(self._device)
                if encoder.channels != self.channels:
                    raise ValueError(f"the network reads {self.channels} text channels, got {encoder.channels}")
                self._made = encoder
            return self._made

    def use_cpu(self) -> None:
        """Unload it; later texts load it on the CPU."""
        self._device = torch.device("cpu")
        self.release()

    def release(self) -> None:
        """Unload it until the next text."""
        with self._lock:
            self._made = None


def _occupancy_classes(file: Path, config: NetworkConfig, checkpoint: Checkpoint) -> tuple[str, ...]:
    if config.occupancy is None:
        return ()
    names = checkpoint.extra.get("occupancy_classes", OCCUPANCY_CLASSES)
    if not isinstance(names, Sequence) or isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise CheckpointError(f"{file}: occupancy_classes must be names, got {names!r:.100}")
    return tuple(names)


def _scoring(calibration: Mapping[str, Any], min_score: float | None) -> tuple[ScorePolicy, Naming]:
    """Score thresholds and naming of a calibration. Raises ``ValueError`` for an invalid score."""
    detection = calibration.get("detection")
    scores = detection if isinstance(detection, dict) else {}
    known, nameless, even = (
        float(value) if isinstance(value, (int, float)) else None
        for value in (scores.get(key) for key in ("min_score", "nameless_min_score", "even_score"))
    )
    calibrated = DEFAULT_MIN_SCORE if known is None else known
    even = even if even is not None and 0.0 < even < 1.0 else 0.0
    policy = ScorePolicy(calibrated if min_score is None else min_score, even=even)
    reliability = calibration.get("reliability")
    if "reliability" in calibration:
        policy = policy.of_probabilities()
    if nameless is None or (isinstance(reliability, dict) and reliability.get("things")):
        return policy, Naming()  # unnamed boxes are calibrated themselves
    return policy, Naming(shift=shift_between(nameless, calibrated))


def _text(name: str, options: NetworkOptions, device: torch.device) -> TextEncoder:
    encoder = text_encoder(name)
    return encoder.to(device) if options.text_backend == "torch" else _by_onnx("text", encoder, options)


def _by_onnx(kind: Literal["image", "text"], encoder: Any, options: NetworkOptions) -> Any:
    """The same encoder run by ONNX Runtime, through a temporary file."""
    from embodied_perceptron.inference import onnx

    images = kind == "image"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kind}.onnx"
        (onnx.export_image_encoder if images else onnx.export_text_encoder)(encoder, path)
        return (onnx.OnnxImageEncoder if images else onnx.OnnxTextEncoder)(path, options.providers, options.threads)
