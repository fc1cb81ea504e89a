"""Read the text encoder beside everything else: activation does not wait for it, nor (mostly) the first sentence.

Kernels are compiled by the library: :mod:`embodied_perceptron.apps.warm_up`.
"""

from __future__ import annotations

import threading
from typing import Any

from embodied_perceptron.apps.warm_up import WarmUpStoppedError, warm_up
from embodied_perceptron.perceptron import Perceptron

__all__ = ["LanguagePreparation", "WarmUpStoppedError", "warm_up"]


class LanguagePreparation:
    """One attempt in a thread of its own. When it fails that is logged, once; the first sentence tries again.

    A sentence that comes while the encoder is read waits for the rest of it.
    """

    def __init__(self, perceptron: Perceptron, logger: Any) -> None:
        self._perceptron = perceptron
        self._logger = logger
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="language", daemon=True)

    def start(self) -> None:
        """Begin, unless it was stopped before."""
        self._thread.start()

    def stop(self, wait: bool = True) -> None:
        """End it, or wait until what has begun is read: a few seconds. A process that ends need not ``wait``."""
        self._stopping.set()
        if wait and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        if self._stopping.is_set():
            return
        try:
            self._perceptron.prepare_language()
        except Exception as error:  # whatever a package that is missing or broken raises: the node goes on without
            reason = f"{type(error).__name__}: {error}"
            self._logger.warning(f"the text encoder could not be read; the first sentence tries again: {reason}")
