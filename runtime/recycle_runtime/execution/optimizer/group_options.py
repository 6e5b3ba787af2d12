"""Learning rates and the like: what stands in an optimizer's groups beside their parameters."""

import copy
from typing import Any

import torch

Options = dict[str, Any]

_NOT_OPTIONS = ("params", "param_names")


def groups_of(optimizer: torch.optim.Optimizer) -> list[Options]:
    return optimizer.param_groups


def options_of(group: Options) -> Options:
    """The options of a group, as they are, not copied."""
    return {name: value for name, value in group.items() if name not in _NOT_OPTIONS}


def copied_options(optimizer: torch.optim.Optimizer) -> list[Options]:
    return [
        {name: _copied(value) for name, value in options_of(group).items()} for group in groups_of(optimizer)
    ]


def changes_since(earlier: list[Options], optimizer: torch.optim.Optimizer) -> list[Options]:
    """The options that someone other than the step has set since, a scheduler for one."""
    return [
        {
            name: value
            for name, value in now.items()
            if name not in before or not _is_same(before[name], value)
        }
        for before, now in zip(earlier, copied_options(optimizer), strict=False)
    ]


def apply_changes(changes: list[Options], optimizer: torch.optim.Optimizer) -> None:
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
