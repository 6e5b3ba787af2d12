"""Copies of anything that an optimizer may hold, made so that memory is used again step after step."""

import copy
import weakref
from dataclasses import dataclass
from typing import Any, cast

import torch

_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(slots=True)
class KeptTensor:
    """A copy, and which tensor it is of."""

    copy: torch.Tensor
    original: "weakref.ref[torch.Tensor]"


@dataclass(slots=True)
class KeptObject:
    """A copy of something that is neither a tensor nor a plain value nor a container of these."""

    copy: Any


class Copies:
    """Copies from tensor to tensor, collected so that they run together."""

    def __init__(self) -> None:
        self._pairs: dict[
            tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], list[torch.Tensor]]
        ] = {}

    def add(self, target: torch.Tensor, source: torch.Tensor) -> None:
        targets, sources = self._pairs.setdefault((target.dtype, target.device), ([], []))
        targets.append(target.detach())
        sources.append(source.detach())

    def run(self) -> None:
        together = getattr(torch, "_foreach_copy_", None)
        for targets, sources in self._pairs.values():
            if together is not None:
                together(targets, sources)
                continue
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)


def keep(value: Any, before: Any, copies: Copies) -> Any:
    """What `give_back` needs to restore the value; tensors of the last keeping (`before`) are used again."""
    if isinstance(value, torch.Tensor):
        return _keep_tensor(value, before, copies)
    if type(value) is dict:
        named, old = (
            cast("dict[Any, Any]", value),
            cast("dict[Any, Any]", before if type(before) is dict else {}),
        )
        return {name: keep(item, old.get(name), copies) for name, item in named.items()}
    if type(value) is list or type(value) is tuple:
        items = cast("list[Any] | tuple[Any, ...]", value)
        olds = _items(before, len(items))
        return type(items)(keep(item, old, copies) for item, old in zip(items, olds, strict=True))
    return value if isinstance(value, _PLAIN) else KeptObject(_copied(value))


def give_back(kept: Any, current: Any, copies: Copies) -> Any:
    """The value as it was; a tensor that is still in its place is written to, not replaced."""
    if isinstance(kept, KeptTensor):
        if current is kept.original() and current is not None:
            copies.add(current, kept.copy)
            return current
        return kept.copy.clone()
    if isinstance(kept, KeptObject):
        # Given back once; the next keeping makes a new copy.
        return kept.copy
    if type(kept) is dict:
        named, now = (
            cast("dict[Any, Any]", kept),
            cast("dict[Any, Any]", current if type(current) is dict else {}),
        )
        return {name: give_back(item, now.get(name), copies) for name, item in named.items()}
    if type(kept) is list or type(kept) is tuple:
        items = cast("list[Any] | tuple[Any, ...]", kept)
        nows = _items(current, len(items))
        return type(items)(give_back(item, now, copies) for item, now in zip(items, nows, strict=True))
    return kept


def bytes_of(kept: Any) -> int:
    """Of the tensors in it."""
    if isinstance(kept, KeptTensor):
        return kept.copy.numel() * kept.copy.element_size()
    if type(kept) is dict:
        return sum(bytes_of(item) for item in cast("dict[Any, Any]", kept).values())
    if type(kept) is list or type(kept) is tuple:
        return sum(bytes_of(item) for item in cast("list[Any]", kept))
    return 0


def _keep_tensor(value: torch.Tensor, before: Any, copies: Copies) -> KeptTensor:
    if isinstance(before, KeptTensor) and _alike(before.copy, value):
        kept = before
        kept.original = weakref.ref(value)
    else:
        kept = KeptTensor(torch.empty_like(value, requires_grad=False), weakref.ref(value))
    copies.add(kept.copy, value)
    return kept


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and one.device == other.device
        and one.layout == other.layout
    )


def _items(value: Any, count: int) -> list[Any]:
    if type(value) is not list and type(value) is not tuple:
        return [None] * count
    items = list(cast("list[Any]", value))[:count]
    return items + [None] * (count - len(items))


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError):
        # Locks, streams and process groups: no step changes them.
        return value
