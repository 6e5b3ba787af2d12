"""Tied parameters: one parameter of the model that several layers use, such as embedding and head of GPT-2.

    found     layers() or model() gives two layers the same Parameter object
    named     TIED = [("wte.weight", "lm_head.weight")] of a program that builds layers or stages one by one

A tie is the names of one parameter, in the order of the model; the first is the name that counts, as in
`named_parameters` of the whole model. A plan may put the layers on different workers, so every layer has a
copy of its own: they begin with the same numbers, and their gradients are summed, so they stay the same.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import nn

from recycle_runtime.program.copies import carry_over
from recycle_runtime.program.errors import ProgramError

Tie = tuple[str, ...]
"""Names of parameters in the whole model that are one."""
NamedLayers = Sequence[tuple[str, nn.Module]]


def told_ties(path: Path, names: Mapping[str, Any]) -> tuple[Tie, ...]:
    """Ties that a program names in TIED."""
    value = names.get("TIED", ())
    good = isinstance(value, list | tuple)
    rows = [_names(row) for row in cast(Iterable[Any], value)] if good else [None]
    if not good or None in rows:
        raise ProgramError(
            f"{path}: TIED must be a list of tuples of names of parameters",
            'such as TIED = [("wte.weight", "lm_head.weight")]',
        )
    ties = tuple(row for row in rows if row is not None)
    every = [name for tie in ties for name in tie]
    if twice := next((name for name in every if every.count(name) > 1), None):
        raise ProgramError(f"{path}: TIED names {twice} twice", "name all that are one in one tuple")
    return ties


def shared_ties(layers: NamedLayers) -> tuple[Tie, ...]:
    """The ties between layers of a model that use the same Parameter object."""
    found: dict[nn.Parameter, list[str]] = {}
    layers_with: dict[nn.Parameter, set[str]] = {}
    for layer, name, parameter in _parameters(layers):
        found.setdefault(parameter, []).append(name)
        layers_with.setdefault(parameter, set()).add(layer)
    return tuple(tuple(names) for parameter, names in found.items() if len(layers_with[parameter]) > 1)


def give_copies(layers: NamedLayers) -> None:
    """Every layer gets a Parameter of its own where it uses one of a layer before it; same numbers."""
    owner: dict[nn.Parameter, str] = {}
    copies: dict[tuple[str, nn.Parameter], nn.Parameter] = {}
    modules = dict(layers)
    for layer, name, parameter in _parameters(layers):
        if owner.setdefault(parameter, layer) == layer:
            continue
        if (layer, parameter) not in copies:
            made = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            carry_over(parameter, made)
            copies[layer, parameter] = made
        folder, _, last = name.removeprefix(f"{layer}.").rpartition(".")
        setattr(modules[layer].get_submodule(folder), last, copies[layer, parameter])


def whole_name(ties: Collection[Tie], name: str) -> str:
    """Name of a parameter in the whole model: of tied ones, the name of the first."""
    return next((tie[0] for tie in ties if name in tie), name)


def tie(program: "Names", layers: NamedLayers) -> tuple[Tie, ...]:
    """All ties of a model whose layers are here, each with a copy for every layer and the same numbers."""
    shared = shared_ties(layers)
    told = [names for names in program.ties if names not in shared]
    give_copies(layers)
    for names in told:
        found = [(name, parameter_called(layers, name)) for name in names]
        if missing := next((name for name, parameter in found if parameter is None), None):
            raise ProgramError(f"{program.path}: TIED names {missing}, and no layer has it")
        first, *copies = (parameter for _, parameter in found if parameter is not None)
        for one in copies:
            take_values(program.path, names, one, first)
    return (*shared, *told)


def parameter_called(layers: NamedLayers, name: str) -> nn.Parameter | None:
    """By its name in the whole model; None if it is in none of these layers."""
    return next((parameter for _, each, parameter in _parameters(layers) if each == name), None)


@torch.no_grad()
def take_values(path: Path, names: Tie, target: nn.Parameter, source: torch.Tensor) -> None:
    """Begin with the numbers of another copy; ProgramError if they cannot be one."""
    if target.shape != source.shape or target.dtype != source.dtype:
        shapes = " and ".join(f"{tuple(each.shape)} of {each.dtype}" for each in (source, target))
        raise ProgramError(f"{path}: {' and '.join(names)} are tied, and cannot be one: {shapes}")
    target.copy_(source)


class Names(Protocol):
    """A program, as far as ties go."""

    @property
    def path(self) -> Path: ...
    @property
    def ties(self) -> tuple[Tie, ...]: ...


def _names(row: Any) -> Tie | None:
    names: list[Any] = list(cast(Iterable[Any], row)) if isinstance(row, list | tuple) else []
    if len(names) < 2 or not all(isinstance(name, str) for name in names):
        return None
    return tuple(cast(list[str], names))


def _parameters(layers: NamedLayers) -> Iterator[tuple[str, str, nn.Parameter]]:
    """Layer, name in the whole model and object of every parameter, one that is used twice each time."""
    for layer, module in layers:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            yield layer, f"{layer}.{name}" if layer else name, parameter
