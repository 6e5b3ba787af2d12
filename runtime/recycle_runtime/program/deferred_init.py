"""Builds a model without the memory of its parameters, and fills any of them later.

    with recording() as recipes:          parameters become meta tensors as soon as a module gets them;
        model = program.model()           what initialises them is written down, not done
    fill(name, parameter, recipes, seed)  done now, with random numbers that depend on seed and name alone

So every worker fills its own layers with the same numbers, whichever they are, and holds no others. Whatever
the program does to its parameters while it builds them counts: `reset_parameters`, `model.apply(init)`,
`nn.init`, a Hugging Face model's `_init_weights`. A parameter made of values
(`nn.Parameter(torch.randn(...))`, weights read from a file) keeps them. Buffers are computed as ever.
"""

# Memory is known by an address that torch calls private.
# pyright: reportPrivateUsage=false

import threading
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

_DERIVED = ("aten::_to_copy", "aten::clone", "aten::stack")
"""Functions that make parameters of others: in another precision, or of many experts one."""
_EMPTY = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")


@dataclass(frozen=True, slots=True)
class _Place:
    """A part of the memory of a parameter."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    of: "Recipe | None" = None
    """The tensor that fills that memory, where it is not the parameter's own."""


@dataclass(frozen=True, slots=True)
class _Call:
    """An operation that changed a parameter, or made it of another; places stand for memory."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe of the values in some memory."""

    like: torch.Tensor
    """All of it, as a meta tensor."""
    calls: tuple[_Call, ...] = ()
    values: torch.Tensor | None = None
    """Values that it was made of, where that was more than memory."""
    derived: _Call | None = None
    """The function that made it of other parameters."""
    unknown: str = ""
    """The operation that takes other tensors, which are not known here."""


class Recipes(TorchDispatchMode):
    """Of all parameters that were built while it was in force, by their memory."""

    def __init__(self) -> None:
        super().__init__()
        self._recipes: dict[int, Recipe] = {}
        self._untouched: dict[int, torch.Tensor] = {}
        """Memory that nobody has written to. Held, since an address must not be given to others."""

    def of(self, parameter: torch.Tensor) -> Recipe | None:
        """None for one that was built otherwise."""
        return self._recipes.get(_memory(parameter))

    def is_unknown(self, parameter: torch.Tensor) -> bool:
        """True if it takes more than this parameter to fill it."""
        recipe = self.of(parameter)
        return recipe is not None and bool(recipe.unknown)

    def take(self, parameter: nn.Parameter) -> None:
        """Turn it into a meta tensor, as the same object, and keep what it was made of."""
        if _is_meta(parameter):
            return
        untouched = self._untouched.pop(_memory(parameter), None) is not None
        empty = torch.empty_like(parameter.detach(), device="meta")
        values: Any = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        torch.utils.swap_tensors(parameter, values)
        self._recipes[_memory(parameter)] = Recipe(
            parameter.detach(), values=None if untouched else values.detach()
        )

    def end(self) -> None:
        """Nothing more is built."""
        self._untouched.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        made = func(*args, **options)
        name = func._schema.name
        if name in _EMPTY and not _is_meta(made):
            self._untouched[_memory(made)] = made.new_empty(0).set_(made.untyped_storage())
        elif name in _DERIVED:
            self._derive(made, func, args, options)
        elif func._schema.is_mutable:
            self._note(func, args, options)
        return made

    def _derive(self, made: Any, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        given = [leaf for leaf in tree_flatten(args)[0] if isinstance(leaf, torch.Tensor)]
        sources = [self._recipes.get(_memory(tensor)) for tensor in given]
        known = [recipe for recipe in sources if recipe is not None]
        if not known or len(known) < len(sources) or _memory(made) in map(_memory, given):
            return

        def place(tensor: torch.Tensor) -> _Place:
            return replace(_place(tensor), of=self._recipes[_memory(tensor)])

        call = _Call(func, tree_map_only(torch.Tensor, place, args), options)
        unknown = next((recipe.unknown for recipe in known if recipe.unknown), "")
        self._recipes[_memory(made)] = Recipe(made.detach(), derived=call, unknown=unknown)

    def _note(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        for value in _changed(func, args, options):
            self._untouched.pop(_memory(value), None)
            recipe = self._recipes.get(_memory(value))
            if recipe is not None:
                self._recipes[_memory(value)] = _with_call(recipe, value, func, args, options)


def _with_call(
    recipe: Recipe, target: torch.Tensor, func: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> Recipe:
    unknown = recipe.unknown

    def noted(value: torch.Tensor) -> Any:
        nonlocal unknown
        if _memory(value) == _memory(target):
            return _place(value)
        if _is_meta(value):
            unknown = func._schema.name
        return value.detach().clone()

    arguments: Any = tree_map_only(torch.Tensor, noted, args)
    call = _Call(func, arguments, tree_map_only(torch.Tensor, noted, options))
    return replace(recipe, calls=(*recipe.calls, call), unknown=unknown)


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

    nn.Module.register_parameter = register
    try:
        with recipes, _Plain():
            yield recipes
    finally:
        recipes.end()
        nn.Module.register_parameter = original


def fill_deferred(name: str, parameter: torch.Tensor, recipes: Recipes, seed: int) -> torch.Tensor:
    """Initial value of a parameter of this name; `parameter` is the meta tensor it was built as."""
    recipe = recipes.of(parameter)
    if recipe is None:
        return torch.zeros(parameter.shape, dtype=parameter.dtype)
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed((seed * 1_000_003 + zlib.crc32(name.encode())) % (1 << 63))
        made = _filled(recipe)
    return made.as_strided(parameter.size(), parameter.stride(), parameter.storage_offset())


def _filled(recipe: Recipe) -> torch.Tensor:
    assert not recipe.unknown, f"initialised by {recipe.unknown} of other tensors"
    if recipe.derived is not None:
        made = _called(recipe.derived, recipe.like)
    elif recipe.values is not None:
        made = recipe.values.clone()
    else:
        made = torch.zeros(recipe.like.shape, dtype=recipe.like.dtype)
    for call in recipe.calls:
        _called(call, made)
    return made


def _called(call: _Call, memory: torch.Tensor) -> torch.Tensor:
    def real(place: _Place) -> torch.Tensor:
        whole = memory if place.of is None else _filled(place.of)
        return whole.as_strided(place.size, place.stride, place.offset)

    options = {key: value for key, value in call.options.items() if key != "device"}
    arguments: Any = tree_map_only(_Place, real, call.arguments)
    return call.function(*arguments, **tree_map_only(_Place, real, options))


def _place(tensor: torch.Tensor) -> _Place:
    return _Place(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


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
