"""Functions compiled by numba, kept on disk from run to run where that is possible."""

from importlib import import_module
from types import FunctionType
from typing import Any


def compile_function(function: FunctionType) -> Any:
    """The compiled function. Importing numba takes a good part of a second, so callers wait until it pays."""
    numba: Any = import_module("numba")
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        # There is no folder that the cache can be written to.
        return numba.njit(function)
