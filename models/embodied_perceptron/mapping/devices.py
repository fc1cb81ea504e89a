"""Where arrays live: the processor or an accelerator, by name."""

from __future__ import annotations

import torch

from embodied_perceptron.config import ConfigError


def resolve_device(name: str, what: str = "device") -> torch.device:
    """``auto`` = cuda where available. Raises ``ConfigError``, calling it ``what``, for one that is not available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"{what} {name!r} is not available: {error}") from error
    return device
