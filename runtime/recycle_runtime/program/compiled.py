"""Modules that the program has compiled: torch.compile(module) wraps one, module.compile() does not.

A wrapper puts `_orig_mod.` before every name in it. Without it the module is compiled as ever, and its
parameters are called as if it were not. A copy of a module loses what it was compiled to: it is compiled
again, with the options of the original.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module without wrappers of torch.compile, at its top and inside; it runs compiled all the same."""
    module = _without_wrapper(module)
    for each in list(module.modules()):
        for name, child in list(each.named_children()):
            if (inner := _without_wrapper(child)) is not child:
                setattr(each, name, inner)
    return module


def is_compiled(module: torch.nn.Module) -> bool:
    """True if calls of it run what torch.compile has made."""
    return vars(module).get("_compiled_call_impl") is not None or _inner(module) is not None


def compile_alike(pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Let calls of copies run compiled where those of the originals do; pairs of an original and its copy."""
    for original, copy in pairs:
        made = vars(original).get("_compiled_call_impl")
        if made is not None and vars(copy).get("_compiled_call_impl") is None:
            # Only a module of torch may have none: then the options are torch's own.
            again = _compiler_of(made) or torch.compile
            cast(Any, copy)._compiled_call_impl = again(copy._call_impl)  # pyright: ignore[reportPrivateUsage]


def compile_layer(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Compile a module that has something to fuse: one of torch's layers alone gains nothing by it."""
    is_single = type(module).__module__.startswith("torch.nn.") and not list(module.children())
    if not is_single and not any(map(is_compiled, module.modules())):
        module.compile(**options)


def _compiler_of(made: Any) -> Any:
    """Compiler of a compiled function, to be called with another function."""
    cells: Any = getattr(made, "__closure__", None) or ()
    found = [cell.cell_contents for cell in cells]
    return next((each for each in found if type(each).__name__ == "OptimizeContext"), None)


def _inner(module: torch.nn.Module) -> torch.nn.Module | None:
    children = vars(module).get("_modules", {})
    is_wrapper = type(module).__name__ == "OptimizedModule" and "dynamo_ctx" in vars(module)
    return children.get("_orig_mod") if is_wrapper else None


def _without_wrapper(module: torch.nn.Module) -> torch.nn.Module:
    inner = _inner(module)
    if inner is None:
        return module
    wrapper: Any = module
    plain: Any = inner
    # As module.compile() does, with the options that the wrapper was made with.
    plain._compiled_call_impl = wrapper.dynamo_ctx(plain._call_impl)
    return cast(torch.nn.Module, plain)
