"""A program's model by layers: built with the same numbers under every cut, and which chunk gets which.

    layers      0 1 2 3 4 5 6 7        the order of the program
    cut 3,3,2   [0 1 2][3 4 5][6 7]    layers of each chunk

What a layer is filled with depends on seed and number of the layer alone, and so do the names of its
parameters. So chunks of one cut can be made of those of another.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from recycle_runtime.program.cutting import Stage, balance, parameter_count
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import NamedLayer, Program
from recycle_runtime.weights.fill import fill
from recycle_runtime.weights.safetensors import WeightsError

_NAME = re.compile(r"\w+(\.\w+)*", re.ASCII)


def seed_of(seed: int, number: int) -> int:
    """Of the random numbers that a stage or a layer is built with."""
    return (seed * 1_000_003 + number) % (1 << 63)


def build_layers(
    program: Program, seed: int, first: int = 0, last: int | None = None, group: Any = None
) -> list[NamedLayer]:
    """Layers first .. last - 1 of the model, or all of them: the same numbers whichever are built."""
    if program.gives == "layers":
        # All of them, as the program makes them: each draws where the one before it has left off.
        torch.manual_seed(seed_of(seed, 0))
        everything = program.layers(group)
        _check(program, everything)
        return _filled(program, everything[first:last])
    built: list[NamedLayer] = []
    for number in range(first, layer_count(program) if last is None else last):
        torch.manual_seed(seed_of(seed, number))
        built += program.build_layers(number, number + 1, group)
    _check(program, built)
    return _filled(program, built)


def layer_count(program: Program) -> int:
    """Of all layers of the model."""
    if program.gives == "layers":
        return len(program.layers())
    if program.layer_count is None:
        raise ProgramError(
            f"{program.path}: it does not say how many layers there are",
            "define LAYER_COUNT beside build_layers",
        )
    return program.layer_count


def layers_of(cut: Sequence[int]) -> list[range]:
    """The numbers of the layers of every chunk."""
    return [range(first, last) for first, last in pairwise(accumulate(cut, initial=0))]


def chunk_layers(
    program: Program, cut: Sequence[int], chunk: int, chunks: int, seed: int, group: Any = None
) -> list[tuple[int, NamedLayer]]:
    """The layers of one chunk with their numbers; an empty cut makes chunks that are about alike."""
    if program.gives == "layers":
        everything = build_layers(program, seed, group=group)
        costs = [parameter_count(layer) for _, layer in everything]
        numbers = layers_of(_checked(program, cut, costs, chunks))[chunk]
        return [(number, everything[number]) for number in numbers]
    if cut and program.layer_count is None:
        numbers = layers_of(cut)[chunk]
    else:
        # Nothing is known about layers that are not built.
        costs = [1] * layer_count(program)
        numbers = layers_of(_checked(program, cut, costs, chunks))[chunk]
    return list(zip(numbers, build_layers(program, seed, numbers.start, numbers.stop, group), strict=True))


def _checked(program: Program, cut: Sequence[int], costs: Sequence[int], chunks: int) -> Sequence[int]:
    """The cut, if it is one of these layers; without one, that whose largest chunk is smallest."""
    if not cut:
        try:
            return [len(part) for part in balance(costs, chunks)]
        except ValueError as error:
            raise ProgramError(f"{program.path}: {error}") from None
    if sum(cut) != len(costs):
        raise ProgramError(
            f"{program.path}: the plan cuts {sum(cut)} layers, and the program has {len(costs)}",
            "they must be the layers of the job: embedding and head are layers of their own",
        )
    return cut


def filled_stage(program: Program, stage: torch.nn.Module) -> torch.nn.Module:
    """A whole stage, with the weights that the program names."""
    _filled(program, [("", stage)])
    return stage


def _filled(program: Program, layers: list[NamedLayer]) -> list[NamedLayer]:
    if program.weights is not None:
        for name, layer in layers:
            try:
                fill(layer, name, program.weights)
            except WeightsError as error:
                raise ProgramError(f"{program.path}: {error}") from None
    return layers


def _check(program: Program, layers: Sequence[NamedLayer]) -> None:
    names = [name for name, _ in layers]
    reserved = Stage((), spread=True)
    for name in names:
        if _NAME.fullmatch(name) is None or hasattr(reserved, name.partition(".")[0]):
            raise ProgramError(
                f"{program.path}: a layer cannot be called {name!r}",
                "names are words of letters, digits and _ with dots between them, such as `blocks.3`",
            )
        above = [name[:place] for place, letter in enumerate(name) if letter == "."]
        if names.count(name) > 1 or set(above) & set(names):
            raise ProgramError(f"{program.path}: two layers are called {name}, or one lies in the other")
    _refuse_shared(program, layers)


def _refuse_shared(program: Program, layers: Iterable[NamedLayer]) -> None:
    owner: dict[torch.Tensor, str] = {}
    for name, layer in layers:
        for inner, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if owner.setdefault(tensor, name) != name:
                raise ProgramError(
                    f"{program.path}: {inner} of layer {name} is in layer {owner[tensor]} too, and a plan "
                    "may put them on two workers, which would train two copies",
                    "give each layer its own, or make one layer of both",
                )
