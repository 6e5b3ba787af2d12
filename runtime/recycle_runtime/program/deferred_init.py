"""Builds a model without the memory of its parameters, and fills any of them later.

    with recording() as recipes:          parameters become meta tensors as soon as a module gets them;
        model = program.model()           what initialises them is written down, not done
    fill(name, parameter, recipes, seed)  done now, with random numbers that depend on seed and name alone

So every worker fills its own layers with the same numbers, whichever they are, and holds no others. Whatever the
program does to its parameters while it builds them counts: `reset_parameters`, `model.apply(init)`,
`nn.init`, a Hugging Face model's `_init_weights`. A parameter made of values (`nn.Parameter(torch.randn(...))`,
weights read from a file) keeps them. Buffers are computed as ever.
"""

import threading
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

_EMPTY = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")


class UnknownFillError(Exception):
    """What initialises a parameter cannot be done for it alone."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A part of the memory of a parameter."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Call:
    """An operation that changed a parameter; its places stand for the parameter's memory."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(slots=True)
class Recipe:
    """What initialises one parameter."""

    calls: list[_Call] = field(default_factory=list[_Call])
    values: torch.Tensor | None = None
    """What it was made of, where that was more than memory."""
    unknown: str = ""
    """The operation that cannot be done for this parameter alone."""


class Recipes(TorchDispatchMode):
    """Of all parameters that were built while it was in force, by their memory."""

    def __init__(self) -> None:
        super().__init__()
        self._recipes: dict[int, Recipe] = {}
        self._held: list[torch.Tensor] = []
        """Memory is known by its address, so it must not be given to others."""
        self._untouched: set[int] = set()

    def of(self, parameter: torch.Tensor) -> Recipe | None:
        """None for one that was built otherwise."""
        return self._recipes.get(_memory(parameter))

    def take(self, parameter: nn.Parameter) -> None:
        """Turn it into a meta tensor, as the same object, and keep what it was made of."""
        if _is_meta(parameter) or _memory(parameter) in self._recipes:
            return
        untouched = _memory(parameter) in self._untouched
        self._untouched.discard(_memory(parameter))
        empty = torch.empty_like(parameter.detach(), device="meta")
        values: Any = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        torch.utils.swap_tensors(parameter, values)
        self._held.append(parameter)
        self._recipes[_memory(parameter)] = Recipe(values=None if untouched else values.detach())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        made = func(*args, **options)
        if func._schema.name in _EMPTY:
            if not _is_meta(made):
                self._untouched.add(_memory(made))
                self._held.append(made.new_empty(0).set_(made.untyped_storage()))
        elif func._schema.is_mutable:
            self._note(func, args, options)
        return made

    def _note(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        for value in _changed(func, args, options):
            self._untouched.discard(_memory(value))
            recipe = self._recipes.get(_memory(value))
            if recipe is not None:
                self._add(recipe, value, func, args, options)

    def _add(
        self, recipe: Recipe, target: torch.Tensor, func: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        def noted(value: torch.Tensor) -> Any:
            if _memory(value) == _memory(target):
                return _Place(tuple(value.shape), value.stride(), value.storage_offset())
            if _is_meta(value):
                recipe.unknown = func._schema.name
            return value.detach().clone()

        arguments = cast(tuple[Any, ...], tree_map_only(torch.Tensor, noted, args))
        recipe.calls.append(_Call(func, arguments, tree_map_only(torch.Tensor, noted, options)))


class _Plain(TorchFunctionMode):
    """Says of no tensor that it is a meta tensor: some ways to initialise do nothing for those."""

    _ASKED: Any = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return False if func == self._ASKED else func(*args, **(kwargs or {}))


@contextmanager
def recording() -> Generator[Recipes]:
    """Parameters that this thread gives to modules in here hold no memory."""
    recipes, owner, original = Recipes(), threading.get_ident(), nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and threading.get_ident() == owner:
            recipes.take(param)
        original(self, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        with recipes, _Plain():
            yield recipes
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def fill(name: str, parameter: torch.Tensor, recipes: Recipes, seed: int) -> torch.Tensor:
    """What a parameter of this name holds when it is new; `parameter` is the meta tensor it was built as."""
    made = torch.zeros(parameter.shape, dtype=parameter.dtype)
    recipe = recipes.of(parameter)
    if recipe is None:
        return made
    if recipe.unknown:
        raise UnknownFillError(f"{name} is initialised by {recipe.unknown} of other tensors")
    if recipe.values is not None:
        made.copy_(recipe.values)

    def real(place: _Place) -> torch.Tensor:
        return made.as_strided(place.size, place.stride, place.offset)

    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed((seed * 1_000_003 + zlib.crc32(name.encode())) % (1 << 63))
        for call in recipe.calls:
            options = _without_device(tree_map_only(_Place, real, call.options))
            call.function(*tree_map_only(_Place, real, call.arguments), **options)
    return made


def _without_device(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "device"}


def _is_meta(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta"


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _changed(func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that an operation writes to."""
    found: list[torch.Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else options.get(argument.name)
        found += [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]
    return found
