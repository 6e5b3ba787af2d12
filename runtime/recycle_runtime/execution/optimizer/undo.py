"""Undo of the last optimizer step, exactly, for any optimizer.

Taken down before a step: the parameters that have a gradient and their state, since a step changes no others;
the options of the groups; numbers, tensors and containers of these among the optimizer's own attributes; the
state of what moves with the steps beside it. It costs as much memory as these take (AdamW in float32: 12
bytes a parameter) and one copy of them a step, always into the same memory: the device's, or the host's.
"""

import copy
import operator
import weakref
from collections import deque
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
    device: torch.device
    """Of the original."""


@dataclass(slots=True)
class KeptReference:
    """A tensor that is kept elsewhere."""

    original: torch.Tensor


@dataclass(slots=True)
class KeptObject:
    """A copy of something that is neither a tensor nor a plain value nor a container of these."""

    copy: Any


class Copies:
    """Copies from tensor to tensor, collected so that they run together."""

    def __init__(self, *, on_host: bool = False) -> None:
        """`on_host`: memory for copies is the host's, whatever device a tensor is on."""
        self._on_host = on_host
        self._pairs: dict[
            tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], list[torch.Tensor]]
        ] = {}

    def add(self, target: torch.Tensor, source: torch.Tensor) -> None:
        targets, sources = self._pairs.setdefault((target.dtype, target.device), ([], []))
        targets.append(target)
        sources.append(source)

    def memory_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """New memory for a copy of a tensor."""
        if self._on_host and tensor.is_cuda:
            return torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=True)
        return torch.empty_like(tensor, requires_grad=False)

    def can_use(self, memory: torch.Tensor, tensor: torch.Tensor) -> bool:
        """True if memory that there is can hold a copy of the tensor."""
        is_there = memory.device.type == "cpu" if self._on_host else memory.device == tensor.device
        return (
            is_there
            and memory.shape == tensor.shape
            and memory.dtype == tensor.dtype
            and memory.layout == tensor.layout
        )

    @property
    def on_cuda(self) -> bool:
        """True if something is copied from a GPU."""
        return any(tensor.is_cuda for _, sources in self._pairs.values() for tensor in sources)

    def versions(self) -> list[int]:
        """Of the tensors that are copied: they move when one is written to."""
        return [tensor._version for _, sources in self._pairs.values() for tensor in sources]  # pyright: ignore[reportPrivateUsage]

    def take(self, others: "Copies") -> None:
        """Those of another collection too."""
        for kind, (targets, sources) in others._pairs.items():
            known = self._pairs.setdefault(kind, ([], []))
            known[0].extend(targets)
            known[1].extend(sources)

    @torch.no_grad()
    def run(self) -> None:
        together = getattr(torch, "_foreach_copy_", None)
        for targets, sources in self._pairs.values():
            if together is not None:
                together(targets, sources, non_blocking=True)
                continue
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source, non_blocking=True)


def keep_for_undo(value: Any, before: Any, copies: Copies) -> Any:
    """Copy for `give_back` to restore the value from; tensors of the last copy (`before`) are used again."""
    if isinstance(value, torch.Tensor):
        return _keep_tensor(value, before, copies)
    if type(value) is dict:
        named, old = (
            cast("dict[Any, Any]", value),
            cast("dict[Any, Any]", before if type(before) is dict else {}),
        )
        return {name: keep_for_undo(item, old.get(name), copies) for name, item in named.items()}
    if type(value) is list or type(value) is tuple:
        items = cast("list[Any] | tuple[Any, ...]", value)
        olds = _items(before, len(items))
        return type(items)(keep_for_undo(item, old, copies) for item, old in zip(items, olds, strict=True))
    return value if isinstance(value, (*_PLAIN, KeptReference)) else KeptObject(_deep_copy(value))


def give_back(kept: Any, current: Any, copies: Copies) -> Any:
    """The value as it was; a tensor that is still in its place is written to, not replaced."""
    if isinstance(kept, KeptTensor):
        if current is kept.original() and current is not None:
            copies.add(current, kept.copy)
            return current
        return kept.copy.to(kept.device, copy=True)
    if isinstance(kept, KeptReference):
        return kept.original
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


def undo_bytes(kept: Any) -> int:
    """Of the tensors in it."""
    if isinstance(kept, KeptTensor):
        return kept.copy.numel() * kept.copy.element_size()
    if type(kept) is dict:
        return sum(undo_bytes(item) for item in cast("dict[Any, Any]", kept).values())
    if type(kept) is list or type(kept) is tuple:
        return sum(undo_bytes(item) for item in cast("list[Any]", kept))
    return 0


def _keep_tensor(value: torch.Tensor, before: Any, copies: Copies) -> KeptTensor:
    if isinstance(before, KeptTensor) and copies.can_use(before.copy, value):
        kept = before
        kept.original, kept.device = weakref.ref(value), value.device
    else:
        kept = KeptTensor(copies.memory_for(value), weakref.ref(value), value.device)
    copies.add(kept.copy, value)
    return kept


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


def option_groups(optimizer: HasGroups) -> list[Options]:
    return optimizer.param_groups


def group_options(group: Options) -> Options:
    """The options of a group, as they are, not copied."""
    return {name: value for name, value in group.items() if name not in _NOT_OPTIONS}


def copied_options(optimizer: HasGroups) -> list[Options]:
    return [
        {name: _copied(value) for name, value in group_options(group).items()}
        for group in option_groups(optimizer)
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
    for change, group in zip(changes, option_groups(optimizer), strict=False):
        for name, value in change.items():
            current = group.get(name)
            if isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor):
                current.copy_(value)
            else:
                group[name] = value


def _copied(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


class UndoError(RuntimeError):
    """Only the last step can be undone, and only once."""


class _Routine:
    """Findings and copies of the last save: the next one mostly finds the same tensors in the same places,
    and to check that takes a tenth of the time of going through everything."""

    def __init__(self, parameters: list[torch.Tensor], state: dict[Any, Any]) -> None:
        self._parameters = parameters
        self._idle = [parameter.grad is None for parameter in parameters]
        self._keys = len(state)
        self._entries: list[tuple[Any, dict[Any, Any]]] = []
        self._tensors: list[tuple[dict[Any, Any], Any, torch.Tensor]] = []
        self._values: list[tuple[dict[Any, Any], Any, dict[Any, Any]]] = []
        self._is_complete = True
        """False where something is neither tensor nor plain value: then every save goes through all."""

    def watch(self, key: Any, entry: Any, kept: Any) -> None:
        """One entry of the state, and what is kept of it."""
        if type(entry) is not dict:
            self._is_complete = False
            return
        named = cast("dict[Any, Any]", entry)
        self._entries.append((key, named))
        for name, value in named.items():
            if isinstance(value, torch.Tensor):
                self._tensors.append((named, name, value))
            else:
                self._is_complete = self._is_complete and isinstance(value, _PLAIN)
                self._values.append((named, name, kept))

    def fits(self, parameters: list[torch.Tensor], state: dict[Any, Any]) -> bool:
        """True if everything is where it was; what is no tensor is then taken down."""
        is_same = (
            self._is_complete
            and len(parameters) == len(self._parameters)
            and len(state) == self._keys
            and all(map(operator.is_, parameters, self._parameters))
            and [parameter.grad is None for parameter in parameters] == self._idle
            and all(state.get(key) is entry for key, entry in self._entries)
            and sum(len(entry) for _, entry in self._entries) == len(self._tensors) + len(self._values)
            and all(entry.get(name) is value for entry, name, value in self._tensors)
            and all(isinstance(entry.get(name, state), _PLAIN) for entry, name, _ in self._values)
        )
        if is_same:
            for entry, name, kept in self._values:
                kept[name] = entry[name]
        return is_same


class Undo:
    """Call `save` before each step of the optimizer; `undo` takes back what happened since."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, beside: Stateful | None = None, *, on_host: bool = False
    ) -> None:
        """`beside` moves with the steps; its state is plain values. `on_host`: copies are in its memory."""
        self._optimizer, self._beside, self._on_host = optimizer, beside, on_host
        self._beside_state: Any = None
        self._parameters: dict[torch.Tensor, Any] = {}
        self._state: dict[Any, Any] = {}
        self._groups: list[Any] = []
        self._attributes: dict[str, Any] = {}
        self._changing: list[torch.Tensor] = []
        self._changing_state: list[Any] = []
        self._had_state: frozenset[Any] = frozenset()
        self._routine: _Routine | None = None
        self._large = Copies()
        """Of parameters and what the optimizer keeps of them."""
        self._versions: list[int] = []
        """Of what has been copied ahead of the next save; nothing if nothing has."""
        self._why_not = "no step has been made yet"

    @property
    def bytes_held(self) -> int:
        return undo_bytes(
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
    def save(self, copies: Copies | None = None) -> None:
        """Take down what the coming step may change, in place of what the last one did.

        With `copies` it is the caller who runs them, before the step.
        """
        collected = Copies(on_host=self._on_host) if copies is None else copies
        parameters, state = self._all_parameters(), cast("dict[Any, Any]", self._optimizer.state)
        if self._routine is None or not self._routine.fits(parameters, state):
            self._routine = self._go_through(parameters, state)
            self._versions = []
        if not self._versions or self._versions != self._large.versions():
            collected.take(self._large)
        self._versions = []
        self._groups = keep_for_undo(
            [group_options(group) for group in option_groups(self._optimizer)], self._groups, collected
        )
        self._attributes = keep_for_undo(self._own_attributes(), self._attributes, collected)
        if self._beside is not None:
            self._beside_state = keep_for_undo(self._beside.state_dict(), self._beside_state, collected)
        if copies is None:
            collected.run()
        self._why_not = ""

    def save_ahead(self, copies: Copies) -> None:
        """Take down what is large now: the next save finds it there, unless something changes before it.

        Until then there is nothing that could be undone.
        """
        self._why_not = "only a part of it has been taken down"
        parameters, state = self._all_parameters(), cast("dict[Any, Any]", self._optimizer.state)
        if self._routine is not None and self._routine.fits(parameters, state):
            copies.take(self._large)
            self._versions = self._large.versions()

    def _go_through(self, parameters: list[torch.Tensor], state: dict[Any, Any]) -> _Routine:
        """Find everything that a step may change, and memory for a copy of it."""
        idle = {parameter for parameter in parameters if parameter.grad is None}
        self._changing = [parameter for parameter in parameters if parameter not in idle]
        self._changing_state = [key for key in state if key not in idle]
        self._had_state = frozenset(state)
        self._parameters = {key: kept for key, kept in self._parameters.items() if key in set(parameters)}
        self._state = {key: kept for key, kept in self._state.items() if key in self._had_state}
        self._large = Copies(on_host=self._on_host)
        routine = _Routine(parameters, state)
        for parameter in self._changing:
            self._parameters[parameter] = keep_for_undo(
                parameter, self._parameters.get(parameter), self._large
            )
        for key in self._changing_state:
            self._state[key] = keep_for_undo(state[key], self._state.get(key), self._large)
            routine.watch(key, state[key], self._state[key])
        return routine

    @torch.no_grad()
    def undo(self) -> None:
        """Everything is as it was at the last `save`."""
        if self._why_not:
            raise UndoError(f"cannot undo: {self._why_not}")
        if len(self._groups) != len(option_groups(self._optimizer)):
            raise UndoError("cannot undo: the optimizer's groups have changed since the step")
        copies = Copies()
        for parameter in self._changing:
            copies.add(parameter, self._parameters[parameter].copy)
        self._undo_state(copies)
        for group, kept in zip(option_groups(self._optimizer), self._groups, strict=True):
            _replace(group, group_options(group), kept, copies)
        _replace(vars(self._optimizer), self._own_attributes(), self._attributes, copies)
        if self._beside is not None:
            # A copy, since it may keep what it is given.
            self._beside.load_state_dict(give_back(self._beside_state, None, copies))
        copies.run()
        self._why_not = "the last step has been undone already, and only that one is kept"

    def forget(self, why: str) -> None:
        """There is nothing to go back to; memory stays, for the next step."""
        self._why_not = why
        self._versions = []

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
        return [parameter for group in option_groups(self._optimizer) for parameter in group["params"]]

    def _own_attributes(self) -> dict[str, Any]:
        """Those that a step may change, in containers of which copies can be made."""
        own: dict[str, Any] = {}
        parameters: set[torch.Tensor] | None = None
        for name, value in vars(self._optimizer).items():
            if name in _OF_TORCH:
                continue
            if isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool):
                own[name] = value
            elif isinstance(value, _CONTAINERS) and _is_data(value):
                parameters = set(self._all_parameters()) if parameters is None else parameters
                own[name] = _with_references(value, parameters)
        return own


def _replace(target: dict[str, Any], current: dict[str, Any], kept: dict[str, Any], copies: Copies) -> None:
    """Make the named entries of the target what they were, and remove those that were not there."""
    for name in current.keys() - kept.keys():
        del target[name]
    for name, item in kept.items():
        given = give_back(item, current.get(name), copies)
        live = target.get(name)
        # One that others may refer to stays the same object.
        if isinstance(live, dict) and isinstance(given, dict):
            cast("dict[Any, Any]", live).clear()
            cast("dict[Any, Any]", live).update(cast("dict[Any, Any]", given))
        elif isinstance(live, list | deque) and isinstance(given, list):
            cast("list[Any]", live).clear()
            cast("list[Any]", live).extend(cast("list[Any]", given))
        else:
            target[name] = given


_CONTAINERS = (dict, list, tuple, set, deque)
_OF_TORCH = frozenset(vars(torch.optim.SGD([torch.zeros(0, requires_grad=True)], lr=0.0)))
"""Attributes of every optimizer: its groups and state, which are kept apart, and hooks."""


def _is_data(value: Any) -> bool:
    """True if it is made of tensors and plain values alone."""
    if isinstance(value, dict):
        return all(map(_is_data, cast("dict[Any, Any]", value).values()))
    if isinstance(value, set):
        return all(isinstance(item, _PLAIN) for item in cast("set[Any]", value))
    if isinstance(value, _CONTAINERS):
        return all(map(_is_data, cast("list[Any]", value)))
    return isinstance(value, (*_PLAIN, torch.Tensor))


def _with_references(value: Any, parameters: set[torch.Tensor]) -> Any:
    """The same in containers that `keep_for_undo` knows; parameters are kept elsewhere."""
    if isinstance(value, dict):
        named = cast("dict[Any, Any]", value)
        return {name: _with_references(item, parameters) for name, item in named.items()}
    if isinstance(value, list | deque):
        return [_with_references(item, parameters) for item in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple(_with_references(item, parameters) for item in cast("tuple[Any, ...]", value))
    return KeptReference(value) if isinstance(value, torch.Tensor) and value in parameters else value
