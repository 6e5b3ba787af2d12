"""Undo of the last optimizer step, exactly, for any optimizer.

Taken down before a step: the parameters that have a gradient and their state, since a step changes no others;
the options of the groups; plain numbers and tensors among the optimizer's own attributes; the state of what
moves with the steps beside it. It costs as much memory as these take (AdamW in float32: 12 bytes a parameter)
and one copy of them a step, always into the same memory.
"""

import copy
import weakref
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from recycle_runtime.execution.optimizer.plain_state import Stateful

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
    return value if isinstance(value, _PLAIN) else KeptObject(_deep_copy(value))


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


def _deep_copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError):
        # Locks, streams and process groups: no step changes them.
        return value


Options = dict[str, Any]

_NOT_OPTIONS = ("params", "param_names")


class HasGroups(Protocol):
    """An optimizer, or several as one."""

    @property
    def param_groups(self) -> list[Options]: ...


def groups_of(optimizer: HasGroups) -> list[Options]:
    return optimizer.param_groups


def options_of(group: Options) -> Options:
    """The options of a group, as they are, not copied."""
    return {name: value for name, value in group.items() if name not in _NOT_OPTIONS}


def copied_options(optimizer: HasGroups) -> list[Options]:
    return [
        {name: _copied(value) for name, value in options_of(group).items()} for group in groups_of(optimizer)
    ]


def changes_since(earlier: list[Options], optimizer: HasGroups) -> list[Options]:
    """The options that someone other than the step has set since, a scheduler for one."""
    return [
        {
            name: value
            for name, value in now.items()
            if name not in before or not _is_same(before[name], value)
        }
        for before, now in zip(earlier, copied_options(optimizer), strict=False)
    ]


def apply_changes(changes: list[Options], optimizer: HasGroups) -> None:
    for change, group in zip(changes, groups_of(optimizer), strict=False):
        for name, value in change.items():
            current = group.get(name)
            if isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor):
                current.copy_(value)
            else:
                group[name] = value


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


class UndoError(RuntimeError):
    """Only the last step can be undone, and only once."""


class Undo:
    """Call `save` before each step of the optimizer; `undo` takes back what happened since."""

    def __init__(self, optimizer: torch.optim.Optimizer, beside: Stateful | None = None) -> None:
        """`beside` moves with the steps; its state is plain values."""
        self._optimizer, self._beside = optimizer, beside
        self._beside_state: Any = None
        self._parameters: dict[torch.Tensor, Any] = {}
        self._state: dict[Any, Any] = {}
        self._groups: list[Any] = []
        self._attributes: dict[str, Any] = {}
        self._changing: list[torch.Tensor] = []
        self._changing_state: list[Any] = []
        self._had_state: frozenset[Any] = frozenset()
        self._why_not = "no step has been made yet"

    @property
    def bytes_held(self) -> int:
        return bytes_of(
            [
                list(self._parameters.values()),
                list(self._state.values()),
                self._groups,
                self._attributes,
                self._beside_state,
            ]
        )

    @property
    def is_possible(self) -> bool:
        return not self._why_not

    @torch.no_grad()
    def save(self) -> None:
        """Take down what the coming step may change, in place of what the last one did."""
        copies = Copies()
        parameters = self._all_parameters()
        idle = {parameter for parameter in parameters if parameter.grad is None}
        state = cast("dict[Any, Any]", self._optimizer.state)
        self._changing = [parameter for parameter in parameters if parameter not in idle]
        self._changing_state = [key for key in state if key not in idle]
        self._had_state = frozenset(state)
        self._parameters = {key: kept for key, kept in self._parameters.items() if key in set(parameters)}
        self._state = {key: kept for key, kept in self._state.items() if key in self._had_state}
        for parameter in self._changing:
            self._parameters[parameter] = keep(parameter, self._parameters.get(parameter), copies)
        for key in self._changing_state:
            self._state[key] = keep(state[key], self._state.get(key), copies)
        self._groups = keep([options_of(group) for group in groups_of(self._optimizer)], self._groups, copies)
        self._attributes = keep(self._own_attributes(), self._attributes, copies)
        if self._beside is not None:
            self._beside_state = keep(self._beside.state_dict(), self._beside_state, copies)
        copies.run()
        self._why_not = ""

    @torch.no_grad()
    def undo(self) -> None:
        """Everything is as it was at the last `save`."""
        if self._why_not:
            raise UndoError(f"cannot undo: {self._why_not}")
        if len(self._groups) != len(groups_of(self._optimizer)):
            raise UndoError("cannot undo: the optimizer's groups have changed since the step")
        copies = Copies()
        for parameter in self._changing:
            copies.add(parameter, self._parameters[parameter].copy)
        self._undo_state(copies)
        for group, kept in zip(groups_of(self._optimizer), self._groups, strict=True):
            _replace(group, options_of(group), kept, copies)
        _replace(vars(self._optimizer), self._own_attributes(), self._attributes, copies)
        if self._beside is not None:
            # A copy, since it may keep what it is given.
            self._beside.load_state_dict(give_back(self._beside_state, None, copies))
        copies.run()
        self._why_not = "the last step has been undone already, and only that one is kept"

    def forget(self, why: str) -> None:
        """There is nothing to go back to; memory stays, for the next step."""
        self._why_not = why

    def _undo_state(self, copies: Copies) -> None:
        state = cast("dict[Any, Any]", self._optimizer.state)
        for key in [key for key in state if key not in self._had_state]:
            del state[key]
        for key in self._changing_state:
            current = state.get(key)
            restored = give_back(self._state[key], current, copies)
            if type(current) is dict and type(restored) is dict:
                entries = cast("dict[Any, Any]", current)
                entries.clear()
                entries.update(cast("dict[Any, Any]", restored))
            else:
                state[key] = restored

    def _all_parameters(self) -> list[torch.Tensor]:
        return [parameter for group in groups_of(self._optimizer) for parameter in group["params"]]

    def _own_attributes(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self._optimizer).items()
            if isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)
        }


def _replace(target: dict[str, Any], current: dict[str, Any], kept: dict[str, Any], copies: Copies) -> None:
    """Make the named entries of the target what they were, and remove those that were not there."""
    for name in current.keys() - kept.keys():
        del target[name]
    for name, item in kept.items():
        target[name] = give_back(item, target.get(name), copies)
