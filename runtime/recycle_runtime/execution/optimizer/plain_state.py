"""The state of an object as plain values: what can be copied, compared, written to a file and sent.

tensors, numbers, strings, None, and dictionaries, lists and tuples of these
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch.optim.lr_scheduler import LRScheduler

from recycle_runtime.execution.local_tensors import local, put_into_wholes

_PLAIN = (bool, int, float, complex, str, bytes)


class Stateful(Protocol):
    """Something that moves with the steps, such as a scheduler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


class NotPlainError(TypeError):
    """A state holds what no other process can be given."""


def plain(value: Any, where: str = "") -> Any:
    """The same without types of its own: what numpy calls a number is one; NotPlainError if it cannot be."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return local(value.detach())
    if isinstance(value, Mapping):
        rows = cast("Mapping[Any, Any]", value).items()
        return {plain(key, where): plain(item, _inside(where, key)) for key, item in rows}
    if isinstance(value, list | tuple):
        items = [plain(item, _inside(where, number)) for number, item in enumerate(cast("list[Any]", value))]
        return tuple(items) if isinstance(value, tuple) else items
    return _number(value, where)


def _number(value: Any, where: str) -> Any:
    for kind in _PLAIN:
        if isinstance(value, kind):
            without_name: Any = kind
            return without_name(value)
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return value.item()
    place = f" under {where}" if where else ""
    raise NotPlainError(f"its state has a value of type {type(value).__name__}{place}")


def _inside(where: str, key: object) -> str:
    return f"{where}/{key}" if where else str(key)


def state_of(mover: Stateful) -> dict[str, Any]:
    """Of a scheduler without the functions in it, which are the program's; of anything else as it says."""
    state = mover.state_dict()
    if not isinstance(mover, LRScheduler):
        return plain(state)
    return {name: _of_schedule(value, name) for name, value in state.items() if not _is_the_programs(value)}


def load_state(mover: Stateful, state: dict[str, Any]) -> None:
    """Load the result of `state_of`; the mover may keep the tensors in it."""
    if not isinstance(mover, LRScheduler):
        mover.load_state_dict(put_into_wholes(mover.state_dict(), state))
        return
    now = mover.state_dict()
    mover.load_state_dict({name: _into_schedule(now.get(name), value) for name, value in state.items()})


def _is_the_programs(value: Any) -> bool:
    return callable(value) and not isinstance(value, torch.Tensor | LRScheduler)


def _of_schedule(value: Any, where: str) -> Any:
    if isinstance(value, LRScheduler):
        # Wrappers of other schedulers (warm-up, then something else) often keep them like this.
        return state_of(value)
    if isinstance(value, list) and any(isinstance(item, LRScheduler) for item in cast("list[Any]", value)):
        return [state_of(item) for item in cast("list[Any]", value)]
    return plain(value, where)


def _into_schedule(now: Any, value: Any) -> Any:
    if isinstance(now, LRScheduler):
        load_state(now, value)
        return now
    if isinstance(now, list) and any(isinstance(item, LRScheduler) for item in cast("list[Any]", now)):
        for item, state in zip(cast("list[Any]", now), value, strict=True):
            load_state(item, state)
        return cast("list[Any]", now)
    # Milestones of MultiStepLR.
    return Counter[Any](value) if isinstance(now, Counter) else value
