"""Pickles from strangers, read without running anything from them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

_SAFE_BUILTINS = {"complex", "bytearray", "set", "frozenset", "slice", "range"}
# every way in which numpy has spelled the rebuilding of its arrays and scalars
_SAFE_GLOBALS = {
    (module, name)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
    for name in ("_reconstruct", "scalar", "_frombuffer")
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("collections", "OrderedDict")}


class UnsafePickleError(ValueError):
    """A pickle that names something beyond plain data; the message says what."""


class RestrictedUnpickler(pickle.Unpickler):
    """Builds what :meth:`allows` names; anything else is replaced by ``stand_in``, or refused where there is none.

    Raises :class:`UnsafePickleError` naming what was refused.
    """

    stand_in: ClassVar[type | None] = None

    def allows(self, module: str, name: str) -> bool:
        """Plain containers, numbers, strings and numpy arrays."""
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
    """Read a pickle that holds plain data only.

    Raises :class:`UnsafePickleError` when it names anything else or is damaged, ``OSError`` when it cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        return RestrictedUnpickler(io.BytesIO(data)).load()
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{path}: {error}") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, ValueError) as error:
        raise UnsafePickleError(f"{path} is damaged or not a pickle: {error!r}") from error
