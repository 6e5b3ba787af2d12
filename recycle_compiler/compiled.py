"""Functions compiled by numba, kept on disk from run to run where that is possible."""

from importlib import import_module
from types import FunctionType
from typing import Any


def compile_function(function: FunctionType, **names: Any) -> Any:
    """The compiled function, with other globals under these names.

    Importing numba takes a good part of a second, so callers wait until it pays.
    """
    numba: Any = import_module("numba")
    known = {**function.__globals__, **names} if names else function.__globals__
    changed = FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    changed.__qualname__, changed.__module__ = function.__qualname__, function.__module__
    try:
        return numba.njit(cache=True)(changed)
    except RuntimeError:
        # There is no folder that the cache can be written to.
        return numba.njit(changed)
