"""Functions compiled by numba, kept on disk from run to run where that is possible."""

import logging
import time
from importlib import import_module
from types import FunctionType
from typing import Any

_LOGGER = logging.getLogger(__name__)


def compile_function(function: FunctionType, **names: Any) -> Any:
    """The compiled function, with other globals under these names.

    Importing numba takes a good part of a second, so callers wait until it pays.
    """
    began = time.perf_counter()
    numba: Any = import_module("numba")
    _LOGGER.debug("numba for %s: loaded in %.3f s", function.__qualname__, time.perf_counter() - began)
    known = {**function.__globals__, **names} if names else function.__globals__
    changed = FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    changed.__qualname__, changed.__module__ = function.__qualname__, function.__module__
    try:
        cached = numba.njit(cache=True)(changed)
    except RuntimeError as error:
        # There is no folder that the cache can be written to.
        _LOGGER.debug("numba for %s: no cache: %s", function.__qualname__, error)
        return numba.njit(changed)
    _LOGGER.debug("numba for %s: cache in %s", function.__qualname__, cached.stats.cache_path)
    return cached
