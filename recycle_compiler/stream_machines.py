"""What runs the stream model: the runtime's plain functions, or compiled copies of them for large bundles.

The copies work on numpy arrays in place of lists: the same bytes, many times faster, after a moment to load
them, most of it for the compiler itself, and several seconds to make them the first time on a machine.
"""

import hashlib
import inspect
import sys
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_runtime.plan import isa, range_coder, stream_layout, stream_model
from recycle_runtime.plan.codec import PLAIN, Machine

COMPILE_FROM = 200_000
"""Instructions from which loading the compiled functions pays."""
LOADED_FROM = 20_000
"""The same, where planning has loaded the compiler already."""


def machine_for(
    instructions: int, compile_from: int = COMPILE_FROM, loaded_from: int = LOADED_FROM
) -> Machine:
    """The faster one for so many instructions; callers who need numba anyway say from where on it pays."""
    enough = loaded_from if "numba" in sys.modules else compile_from
    return compiled_machine() if instructions >= enough else PLAIN


@cache
def compiled_machine() -> Machine:
    """Compiled now, or on an earlier run: the result is kept beside the runtime or in the user's cache."""
    functions = _compile_modules(range_coder, stream_model)
    contexts: Any = np.array(PLAIN.contexts, dtype=np.int64)
    names = ("start_encoding", "start_decoding", "code_stream", "finish")
    return Machine(_zeros, contexts, *(functions[name] for name in names))


def _zeros(size: int) -> Any:
    return np.zeros(size, dtype=np.int64)


def _compile_modules(*modules: ModuleType) -> dict[str, Any]:
    """Compiled copies of the functions of these modules, which call each other and nothing else."""
    # The cache on disk looks at a function's own file only; a digest in its name covers all that it uses.
    sources = "".join(map(inspect.getsource, (isa, stream_layout, *modules)))
    digest = hashlib.sha256(sources.encode()).hexdigest()[:12]
    scope: dict[str, Any] = {}
    for module in modules:
        scope |= vars(module)
    compiled: dict[str, Any] = {}
    for name, value in scope.items():
        if isinstance(value, FunctionType):
            copy = FunctionType(value.__code__, scope, name)
            copy.__qualname__ = f"{name}_{digest}"
            compiled[name] = compile_function(copy)
    # The copies look up what they call here, when they are first called.
    scope |= compiled
    return compiled
