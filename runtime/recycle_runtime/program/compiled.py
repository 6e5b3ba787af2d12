"""Modules that the program has compiled: torch.compile(module) wraps one, module.compile() does not.

A wrapper puts `_orig_mod.` before every name in it. Without it the module is compiled as ever, and its
parameters are called as if it were not.
"""

from typing import Any, cast

import torch


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module without wrappers of torch.compile, at its top and inside; it runs compiled all the same."""
    module = _without_wrapper(module)
    for each in list(module.modules()):
        for name, child in list(each.named_children()):
            if (inner := _without_wrapper(child)) is not child:
                setattr(each, name, inner)
    return module


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calls of it run what torch.compile has made."""
    return vars(module).get("_compiled_call_impl") is not None or _inner(module) is not None


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
