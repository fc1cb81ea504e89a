"""Compiled kernels that survive a damaged cache.

numba keeps compiled code on the disk, and flushes none of it: after a power cut an index or a kernel may be empty, and
numba then raises ``EOFError`` whenever the kernel is first called, at every start. Here such a file is named in the log
and the kernel compiled anew, which writes it anew.
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


def njit(**options: Any) -> Callable[[FunctionT], FunctionT]:
    """``numba.njit``, whose ``cache=True`` does not fail for what is damaged on the disk."""
    compiled = numba.njit(**options)

    def decorate(function: FunctionT) -> FunctionT:
        kernel: FunctionT = compiled(function)
        # where numba is switched off (NUMBA_DISABLE_JIT) it gives the function itself
        cache = getattr(kernel, "_cache", None)
        if isinstance(cache, FunctionCache):
            locator = cache._impl.locator
            where = cache.cache_path, cache._impl.filename_base, locator.get_source_stamp()
            cache._cache_file = _TolerantCacheFile(*where)  # type: ignore[no-untyped-call]
        return kernel

    return decorate


class _TolerantCacheFile(IndexDataCacheFile):
    """Damaged entries are as absent ones: the kernel is compiled, and written over them."""

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
            raise  # numba knows what to do
        except Exception as error:  # bytes of any kind make pickle raise anything
            _LOG.warning("%s is damaged (%s): its kernel is compiled anew", path, type(error).__name__)
            return None
