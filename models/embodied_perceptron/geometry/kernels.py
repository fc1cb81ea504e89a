"""``njit`` with a cache that tolerates damaged files.

numba does not flush its cache: after a power cut a file may be empty, and numba raises ``EOFError`` at the kernel's
first call on every start. Here the file is logged, and the kernel is compiled and written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
_LOG = logging.getLogger(__name__)
# of boxes that overlap: sine of the angle between planes, between lines: their crossing would have no digits
FLAT, PARALLEL = 1e-12, 1e-9


def njit(**options: Any) -> Callable[[FunctionT], FunctionT]:
    """``numba.njit`` whose ``cache=True`` tolerates damaged files."""
    compiled = numba.njit(**options)

    def decorate(function: FunctionT) -> FunctionT:
        kernel: FunctionT = compiled(function)
        # with NUMBA_DISABLE_JIT this is the plain function
        cache = getattr(kernel, "_cache", None)
        if isinstance(cache, FunctionCache):
            locator = cache._impl.locator
            where = cache.cache_path, cache._impl.filename_base, locator.get_source_stamp()
            cache._cache_file = _TolerantCacheFile(*where)  # type: ignore[no-untyped-call]
        return kernel

    return decorate


class _TolerantCacheFile(IndexDataCacheFile):
    """Treats damaged entries as absent, so that the kernel is compiled and they are overwritten."""

    def _load_index(self) -> Any:
        return self._or_none(super()._load_index, self._index_path) or {}

    def _load_data(self, name: str) -> Any:
        path: str = self._data_path(name)  # type: ignore[no-untyped-call]
        return self._or_none(partial(super()._load_data, name), path)

    @staticmethod
    def _or_none(load: Callable[[], Any], path: str) -> Any:
        try:
            return load()
        except OSError:
            raise  # numba handles it
        except Exception as error:  # damaged data makes pickle raise any exception
            _LOG.warning("%s is damaged (%s): its kernel is compiled again", path, type(error).__name__)
            return None
