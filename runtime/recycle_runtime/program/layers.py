"""A program's model by layers: built with the same numbers under every cut, and which chunk gets which.

    layers      0 1 2 3 4 5 6 7        the order of the program
    cut 3,3,2   [0 1 2][3 4 5][6 7]    layers of each chunk

What a layer is filled with depends on seed and number of the layer alone, and so do the names of its
parameters. So chunks of one cut can be made of those of another.
"""

import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch

from recycle_runtime.program.copies import refuse_hooks, refuse_wrappers
from recycle_runtime.program.cutting import Stage, balance, parameter_count
from recycle_runtime.program.deferred_init import Recipes, recording
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.host_random import HOST, seed_all
from recycle_runtime.program.loading import NamedLayer, Program
from recycle_runtime.program.model_layers import WholeModel, parts_of
from recycle_runtime.program.ties import parameter_called, take_values, tie, whole_name
from recycle_runtime.weights.fill import fill_layers
from recycle_runtime.weights.safetensors import WeightsError

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"\w+(\.\w+)*", re.ASCII)


def seed_of(seed: int, number: int) -> int:
    """Of the random numbers that a stage or a layer is built with."""
    return (seed * 1_000_003 + number) % (1 << 63)


def build_layers(
    program: Program, seed: int, first: int = 0, last: int | None = None, group: Any = None
) -> list[NamedLayer]:
    """Layers first .. last - 1 of the model, or all of them: the same numbers whichever are built."""
    if (whole := _whole_model(program, seed)) is not None:
        built = whole.build(first, len(whole.groups) if last is None else last, seed)
        for module in (each for _, layer in built for each in parts_of(layer)):
            program.compiled(module)
        _check(program, built)
        return _filled(program, built)
    if program.gives == "layers":
        # All of them, as the program makes them: each draws where the one before it has left off.
        seed_all(seed_of(seed, 0))
        everything = program.layers(group)
        _check(program, everything)
        program.part_names = frozenset(name for _, layer in everything for name, _ in layer.named_modules())
        program.ties = tie(program, everything)
        return _filled(program, everything[first:last])
    built = []
    for number in range(first, layer_count(program) if last is None else last):
        seed_all(seed_of(seed, number))
        built += program.build_layers(number, number + 1, group)
    _check(program, built)
    _begin_as_first(program, seed, built, group)
    return _filled(program, built)


def _begin_as_first(program: Program, seed: int, built: list[NamedLayer], group: Any) -> None:
    """A copy of a tied parameter begins with the numbers of the first, whose layer is built for that."""
    for names in program.ties:
        copies = [one for name in names[1:] if (one := parameter_called(built, name)) is not None]
        if not copies:
            continue
        first = parameter_called(built, names[0])
        number = 0
        while first is None and number < layer_count(program):
            seed_all(seed_of(seed, number))
            first = parameter_called(program.build_layers(number, number + 1, group), names[0])
            number += 1
        if first is None:
            raise ProgramError(f"{program.path}: TIED names {names[0]}, and no layer has it")
        for one in copies:
            take_values(program.path, names, one, first)


def layer_count(program: Program) -> int:
    """Of all layers of the model."""
    if (whole := _whole_model(program, 0)) is not None:
        return len(whole.groups)
    if program.gives == "layers":
        return len(program.layers())
    if program.layer_count is None:
        raise ProgramError(
            f"{program.path}: it does not say how many layers there are",
            "define LAYER_COUNT beside build_layers",
        )
    return program.layer_count


def name_prefix(name: str, layer: torch.nn.Module) -> str:
    """Prefix of the names of a layer's parameters in the whole model, or nothing."""
    return "" if getattr(layer, "has_whole_names", False) else name


def _whole_model(program: Program, seed: int) -> WholeModel | None:
    """Of a program that gives one; made once in a process."""
    key = "whole model"
    if program.gives == "model" and key not in program.made:
        program.made[key] = _without_memory(program)
    if program.gives != "model":
        return None
    made: WholeModel | None = program.made[key]
    if made is not None:
        return made
    # Built as it comes, with all its memory: what fills one parameter needs others.
    if (key, seed) not in program.made:
        seed_all(seed_of(seed, 0))
        model = program.model()
        program.made[key, seed] = None if model is None else _outlined(program, model)
    return program.made[key, seed]


def _without_memory(program: Program) -> WholeModel | None:
    """None if some of its parameters cannot be filled one by one."""
    # A number that is written down with what fills a parameter must be the same in all processes.
    HOST.seed(seed_of(0, 0))
    with warnings.catch_warnings(), recording() as recipes:
        try:
            model = program.model()
        except ProgramError as error:
            # It may want to look at its numbers.
            _LOGGER.info("the model is built with all its memory: %s", error)
            return None
    if model is None:
        return None
    unknown = [name for name, each in model.named_parameters() if recipes.is_unknown(each)]
    if unknown:
        _LOGGER.info("the model is built with all its memory: %s is made of other tensors", unknown[0])
        return None
    return _outlined(program, model, recipes)


def _outlined(program: Program, model: torch.nn.Module, recipes: Recipes | None = None) -> WholeModel:
    if isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
        _LOGGER.warning("%s: torch.compile of the whole model has no effect: it is cut first", program.path)
        model = inner
    refuse_wrappers(program.path, model)
    made = (name for name, each in model.named_parameters() if hasattr(each, "placements"))
    if name := next(made, None):
        raise ProgramError(
            f"{program.path}: {name} of the whole model is a DTensor, and the model is cut before that",
            "give parallelize(module, mesh), which is called with each layer of a worker: in a script "
            "recycle.Trainer(..., parallelize=...)",
        )
    try:
        whole = WholeModel(model, recipes, program.said_layers)
    except ProgramError as error:
        raise ProgramError(f"{program.path}: {error}", error.hint) from None
    tied = [name for names in whole.ties for name in names]
    shared = [name for name, owners in whole.owners.items() if len(owners) > 1 and name not in tied]
    if shared:
        first, *_, last = sorted(whole.owners[shared[0]])
        raise ProgramError(
            f"{program.path}: {shared[0]} is used by layers {whole.names[first]} and {whole.names[last]}, "
            "and a plan may put them on two workers, which would train two copies",
            "give each layer its own module; modules may share a parameter, as in b.weight = a.weight",
        )
    program.ties = (*whole.ties, *(names for names in program.ties if names not in whole.ties))
    program.part_names = frozenset(name for name, _ in model.named_modules(remove_duplicate=False))
    return whole


def layers_of(cut: Sequence[int]) -> list[range]:
    """The numbers of the layers of every chunk."""
    return [range(first, last) for first, last in pairwise(accumulate(cut, initial=0))]


def chunk_layers(
    program: Program, cut: Sequence[int], chunk: int, chunks: int, seed: int, group: Any = None
) -> list[tuple[int, NamedLayer]]:
    """The layers of one chunk with their numbers; an empty cut makes chunks that are about alike."""
    whole = _whole_model(program, seed)
    if program.gives == "layers":
        everything = build_layers(program, seed, group=group)
        costs = [parameter_count(layer) for _, layer in everything]
        numbers = layers_of(_checked(program, cut, costs, chunks))[chunk]
        return [(number, everything[number]) for number in numbers]
    if whole is not None:
        costs = whole.parameter_counts
        numbers = layers_of(_checked(program, cut, costs, chunks))[chunk]
    elif cut and program.layer_count is None:
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
    refuse_wrappers(program.path, layers)
    refuse_hooks(program.path, _named_parameters(layers), program.ties)
    if program.weights is not None:
        for name, layer in layers:
            try:
                fill_layers(
                    layer, name_prefix(name, layer), program.weights, partial(whole_name, program.ties)
                )
            except WeightsError as error:
                raise ProgramError(f"{program.path}: {error}") from None
    return layers


def _named_parameters(layers: Iterable[NamedLayer]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """By their names in the whole model."""
    for name, layer in layers:
        prefix = name_prefix(name, layer)
        for inner, parameter in layer.named_parameters():
            yield f"{prefix}.{inner}" if prefix else inner, parameter


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
    """Modules and buffers of two layers; parameters may be tied."""
    owner: dict[torch.Tensor | torch.nn.Module, str] = {}
    for name, layer in layers:
        modules = ((inner, module) for inner, module in layer.named_modules() if _has_parameters(module))
        for inner, shared in (*modules, *layer.named_buffers()):
            if owner.setdefault(shared, name) != name:
                what = f"layer {name} is layer {owner[shared]} once more"
                if inner:
                    what = f"{inner} of layer {name} is in layer {owner[shared]} too"
                raise ProgramError(
                    f"{program.path}: {what}, and a plan may put them on two workers, which have two copies",
                    "give each layer its own; parameters alone may be shared, as in b.weight = a.weight",
                )


def _has_parameters(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None
