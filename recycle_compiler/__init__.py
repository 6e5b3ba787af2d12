"""recyclec: a compiler from a training job to pipeline schedules that survive failures.

From Python, `import recycle_compiler as recyclec`, then `recyclec.compile`, `read`, `load` and `parse`: see
`recycle_compiler.library`, which is loaded when one of them is first used.
"""

from typing import TYPE_CHECKING, Any

from recycle_compiler.version import __version__

if TYPE_CHECKING:
    from recycle_compiler.library import CompiledBundle, Plan, compile, load, parse, read

__all__ = ["CompiledBundle", "Plan", "__version__", "compile", "load", "parse", "read"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recycle_compiler import library

    return getattr(library, name)
