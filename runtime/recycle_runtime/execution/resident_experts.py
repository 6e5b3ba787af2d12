"""Stacked parameters of experts, of which a worker has those of its slots alone.

    built       weight [experts, ...]     all of them, until owners of shards have taken what they own
    here        weight [slots, ...]       what forwards compute with, sent by the owners of rows
    owned       rows of [experts, ...]    with the owners of shards, in memory of their own

So an expert's state is nowhere but with its owners, and its weights are besides in the slots that it has.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from recycle_runtime.execution.optimizer.shards import Rows, Shard, StoredShard
from recycle_runtime.experts.shared import SharedExperts
from recycle_runtime.program.copies import has_hooks

EXPERTS = "experts"
"""In the state of a shard: experts that are rows of it, by the parameter's name: the first, and weights."""
FIRST, WEIGHTS = "first", "weights"


class Stacked(NamedTuple):
    """A parameter that has a row for every expert of a layer."""

    number: int
    """Among the parameters of its layer."""
    name: str
    parameter: nn.Parameter
    experts: SharedExperts
    shape: torch.Size
    """With all experts."""


class ResidentExperts:
    """Those of a layer, if it has any."""

    def __init__(
        self, module: nn.Module, names: Sequence[str], parameters: Sequence[nn.Parameter], slots: int
    ) -> None:
        """`parameters` of the layer that are trained, and their names."""
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self.stacked: dict[int, Stacked] = {}
        """By number."""
        for experts in module.modules() if slots else ():
            if not isinstance(experts, SharedExperts):
                continue
            own = list(experts.parameters())
            if not all(_is_stacked(each, numbers, experts) for each in own):
                # What is not trained, or called with gradients, stays whole on every worker.
                continue
            for each in own:
                number = numbers[each]
                self.stacked[number] = Stacked(number, names[number], each, experts, each.shape)
        self._slots = slots
        self._built: dict[int, torch.Tensor] = {}
        """All rows of each, as built or as read."""

    def __bool__(self) -> bool:
        return bool(self.stacked)

    @property
    def layers(self) -> list[SharedExperts]:
        """Modules whose parameters have the rows of slots."""
        return list(dict.fromkeys(each.experts for each in self.stacked.values()))

    def take_slots(self) -> None:
        """From now on there is memory for slots; what was built is kept aside."""
        for experts in self.layers:
            experts.resident = tuple(slot % experts.experts for slot in range(self._slots))
        for each in self.stacked.values():
            self._built[each.number] = each.parameter.data
            rows = torch.tensor(each.experts.resident, device=each.parameter.device)
            each.parameter.data = each.parameter.data.index_select(0, rows)

    def without(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a module but for these."""
        names = {each.name for each in self.stacked.values()}
        return {name: value for name, value in state.items() if name not in names}

    def take(self, state: Mapping[str, torch.Tensor]) -> None:
        """All rows, as they were read, where the state of the module has them."""
        for each in self.stacked.values():
            if each.name in state:
                self._built[each.number] = state[each.name]
            else:
                self._built.pop(each.number, None)

    def forget(self) -> None:
        """Owners have what they own."""
        self._built.clear()

    def here(self) -> dict[str, torch.Tensor]:
        """Contents of slots, by name."""
        return {each.name: each.parameter for each in self.stacked.values()}

    def whole(self, number: int) -> torch.Tensor:
        """All rows of one, as built or read; zeros where that is not known."""
        each = self.stacked[number]
        built = self._built.get(number)
        return each.parameter.data.new_zeros(()).expand(each.shape) if built is None else built

    def give_back(self) -> None:
        """Every worker has all of them after all."""
        for experts in self.layers:
            experts.resident = None
        for each in self.stacked.values():
            each.parameter.data = self._built[each.number]
        self.stacked.clear()
        self._built.clear()

    def rows(self, number: int, rows: Rows, *, is_empty: bool = False) -> nn.Parameter:
        """Some rows of a parameter, in memory of their own; as built or read, as far as that is known."""
        each = self.stacked[number]
        built = None if is_empty else self._built.get(number)
        size = [rows.last - rows.first, *each.shape[1:]]
        values = each.parameter.data.new_zeros(size)
        if built is not None:
            values.copy_(rows.of(built))
        made = nn.Parameter(values)
        for name, value in vars(each.parameter).items():
            # What the program has written on a parameter counts for its optimizer too.
            setattr(made, name, value)
        if (dtype := getattr(each.parameter, "grad_dtype", made.dtype)) != made.dtype:
            cast(Any, made).grad_dtype = dtype
        return made

    def owned_state(self, shard: Shard, rows: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Weights of the rows of a shard, by name; nothing is copied."""
        return {
            each.name: {FIRST: shard[each.number].first, WEIGHTS: rows[each.number].detach()}
            for each in self.stacked.values()
            if shard[each.number]
        }

    @torch.no_grad()
    def load_owned(self, state: Mapping[str, Any], rows: Sequence[torch.Tensor]) -> None:
        """The other way round."""
        for each in self.stacked.values():
            if each.name in state:
                rows[each.number].copy_(state[each.name][WEIGHTS])

    @torch.no_grad()
    def load_stored(self, stored: Sequence[StoredShard], shard: Shard, rows: Sequence[torch.Tensor]) -> None:
        """Rows of a shard from shards that have them, where these have weights."""
        for each, first, value in self._stored(stored, shard):
            wanted = shard[each.number]
            begin, end = max(first, wanted.first), min(first + len(value), wanted.last)
            if begin < end:
                target = rows[each.number][begin - wanted.first : end - wanted.first]
                target.copy_(value[begin - first : end - first])

    def _stored(
        self, stored: Sequence[StoredShard], shard: Shard
    ) -> Iterator[tuple[Stacked, int, torch.Tensor]]:
        for found in stored:
            meets = [
                each
                for each in self.stacked.values()
                if max(found.rows[each.number].first, shard[each.number].first)
                < min(found.rows[each.number].last, shard[each.number].last)
            ]
            weights = found.read().get(EXPERTS, {}) if meets else {}
            for each in meets:
                if each.name in weights:
                    yield each, weights[each.name][FIRST], weights[each.name][WEIGHTS]


def whole_experts(
    stored: Sequence[StoredShard], names: Sequence[str], shapes: Sequence[torch.Size]
) -> dict[str, torch.Tensor]:
    """All rows of parameters whose weights are with the shards of their optimizer, by name."""
    found: dict[str, torch.Tensor] = {}
    for each in stored:
        if not any(each.rows):
            continue
        for name, part in each.read().get(EXPERTS, {}).items():
            weights, first = part[WEIGHTS], part[FIRST]
            whole = found.setdefault(name, weights.new_empty(shapes[names.index(name)]))
            whole[first : first + len(weights)] = weights
    return found


def _is_stacked(parameter: nn.Parameter, numbers: Mapping[nn.Parameter, int], experts: SharedExperts) -> bool:
    is_plain = type(parameter) is nn.Parameter and not has_hooks(parameter)
    return is_plain and parameter in numbers and parameter.shape[:1] == (experts.experts,)
