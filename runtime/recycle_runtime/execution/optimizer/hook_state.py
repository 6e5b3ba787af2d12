"""State that hooks of an optimizer keep from step to step: closure variables and their own attributes.

    def optimizer(parameters):
        made, steps = AdamW(parameters), 0
        def slower(*_):
            nonlocal steps
            steps += 1
            made.param_groups[0]["lr"] = rate(steps)
        made.register_step_post_hook(slower)
        return made

Numbers, strings, tensors and containers of these are undone and handed over like any state. Global variables
of a hook cannot be seen here; peers that differ because of them are noticed when they are compared.
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import CellType
from typing import Any, cast

import torch

from recycle_runtime.execution.optimizer.plain_state import NotPlainError, plain

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class HookState:
    """Of all hooks that the program has put on an optimizer, as they are when this is made."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        hooks = [hook for name in _HOOKS for hook in vars(optimizer).get(name, {}).values()]
        held = {tensor for group in optimizer.param_groups for tensor in group["params"]}
        self._places = [place for hook in hooks for place in _places(hook) if _remembers(place.get(), held)]

    @property
    def is_empty(self) -> bool:
        return not self._places

    def state_dict(self) -> dict[str, Any]:
        return {str(number): plain(place.get()) for number, place in enumerate(self._places)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for number, place in enumerate(self._places):
            place.put(state_dict[str(number)])


class _Place:
    """Place of a value: containers and tensors are written to, since others may hold them too."""

    def __init__(self, get: Callable[[], Any], replace: Callable[[Any], None]) -> None:
        self.get, self._replace = get, replace

    def put(self, value: Any) -> None:
        now = self.get()
        if isinstance(now, dict):
            cast("dict[Any, Any]", now).clear()
            cast("dict[Any, Any]", now).update(value)
        elif isinstance(now, list):
            cast("list[Any]", now)[:] = value
        elif isinstance(now, torch.Tensor):
            with torch.no_grad():
                now.copy_(value)
        else:
            self._replace(value)


def _places(hook: Any) -> Iterator[_Place]:
    if isinstance(hook, partial):
        inner = cast("partial[Any]", hook)
        bound: list[Any] = [*inner.args, *inner.keywords.values()]
        yield from (_Place(partial(bound.__getitem__, at), _never) for at in range(len(bound)))
        yield from _places(inner.func)
        return
    owner = getattr(hook, "__self__", None if hasattr(hook, "__code__") else hook)
    if owner is not None and not isinstance(owner, torch.optim.Optimizer | torch.nn.Module):
        attributes = cast("dict[str, Any]", getattr(owner, "__dict__", {}))
        for name in sorted(attributes):
            yield _Place(partial(attributes.__getitem__, name), partial(attributes.__setitem__, name))
    function = getattr(hook, "__func__", hook)
    for cell in cast("tuple[CellType, ...]", getattr(function, "__closure__", None) or ()):
        yield _Place(partial(getattr, cell, "cell_contents", None), partial(setattr, cell, "cell_contents"))


def _remembers(value: Any, held: set[torch.Tensor]) -> bool:
    """True if it is a state, and not the program's own: parameters are undone anyway."""
    if value is None or callable(value) or (isinstance(value, torch.Tensor) and value in held):
        return False
    if isinstance(value, list | tuple) and any(
        isinstance(item, torch.Tensor) for item in cast("list[Any]", value)
    ):
        return False
    try:
        plain(value)
    except NotPlainError:
        return False
    return True


def _never(_: Any) -> None:
    """Do nothing: a value bound to a call cannot be replaced, only written to."""
