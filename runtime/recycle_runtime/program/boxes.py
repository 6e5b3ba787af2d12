"""A layer as a box: what it gives for what it is called with, and nothing of how.

    look      its module runs on fake tensors; where its code needs values, a layer with memory runs once on
              numbers of these shapes, and one that is alike is not run again
    compute   the layer as it is when new runs on values, for a trace that needs them

Some layers hand out more than they return: hooks collect what a module inside gives (router logits), or a
module keeps it as an attribute (`self.aux_loss = ...`). These are its sides. Where a layer is not here, hooks
are called and attributes are set with what has arrived in their place.
"""

# Hooks can only be read from attributes that torch calls private.
# pyright: reportPrivateUsage=false

import logging
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

_OWN_HOOK = -1
_NO_ATTRIBUTES = frozenset(vars(nn.Module()))


@dataclass(frozen=True, slots=True)
class Side:
    """Values that one call of a layer hands out past its result."""

    path: str
    """Of a module inside the layer's module; empty for itself."""
    attribute: str
    """That holds it; empty for what hooks of the module are called with: arguments, options, output."""
    leaves: tuple[Any, ...]
    shape: TreeSpec
    codes: frozenset[Any] = frozenset()
    """Of the hooks."""


@dataclass(frozen=True, slots=True)
class BoxCall:
    """One call of a layer, as fake tensors."""

    made: Any
    sides: tuple[Side, ...]
    values: Mapping[int, torch.Tensor]
    """Real tensors beside fake ones, by `id` of the fake tensor, where values were computed."""


class Boxes:
    """The layers of a model, all of which look like this from outside."""

    def __init__(
        self,
        mode: FakeTensorMode,
        build: Callable[[int, str, nn.Module], nn.Module],
        value_of: Callable[[str, torch.Tensor], torch.Tensor],
    ) -> None:
        """`build` makes a module of a layer with memory where a fake one is, `value_of` a parameter."""
        self._mode, self._build, self.values_of = mode, build, value_of
        self._alike: dict[Any, tuple[list[Any], BoxCall]] = {}

    def look(self, layer: int, name: str, module: nn.Module, args: Any, options: Any) -> BoxCall:
        """Output of the layer for fake arguments."""
        leaves = tree_flatten((args, options))[0]
        key = (boxed(type(module)), *map(_look, module.parameters()), module.training, *map(_look, leaves))
        if key not in self._alike:
            try:
                with _quiet():
                    return self._faked(_box(module, args, options), {}, {})
            except Exception:
                # It looks at values, or calls what knows no fake tensors; if neither, it raises once more.
                box = self.compute(layer, name, module, (args, options), _with_numbers)
            self._alike[key] = leaves, BoxCall(box.made, box.sides, {})
        before, box = self._alike[key]
        return self._again(box, before, leaves)

    def compute(
        self, layer: int, name: str, module: nn.Module, arguments: Any, with_values: Callable[[Any], Any]
    ) -> BoxCall:
        """Output of the layer for values in place of fake arguments."""
        given = with_values(arguments)
        pairs = list(zip(tree_flatten(given)[0], tree_flatten(arguments)[0], strict=True))
        known = {id(value): told for value, told in pairs if isinstance(told, FakeTensor)}
        values: dict[int, torch.Tensor] = {}
        with _random_preserved():
            box = _box(self._build(layer, name, module), *given)
            return self._faked(box, known, values)

    def _faked(self, box: BoxCall, known: dict[int, Any], values: dict[int, torch.Tensor]) -> BoxCall:
        """Fake tensors in place of all that have values: whoever has not this layer must get them."""
        held: list[torch.Tensor] = []

        def fake(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
                return leaf
            if id(leaf) not in known:
                known[id(leaf)] = made = fake_like(self._mode, leaf)
                values[id(made)] = leaf.detach()
                held.append(leaf)
            return known[id(leaf)]

        return _mapped_box(box, fake, values)

    def _again(self, box: BoxCall, before: list[Any], now: list[Any]) -> BoxCall:
        """The same for other arguments that look alike."""
        known = {id(old): new for old, new in zip(before, now, strict=True)}

        def fresh(leaf: Any) -> Any:
            if isinstance(leaf, FakeTensor) and id(leaf) not in known:
                known[id(leaf)] = fake_like(self._mode, leaf)
            return known.get(id(leaf), leaf) if isinstance(leaf, torch.Tensor) else leaf

        return _mapped_box(box, fresh, {})


def boxed(kind: type[Any]) -> Any:
    """The class of a module whose calls somebody answers."""
    return vars(kind).get("boxed_kind", kind)


def fake_like(mode: FakeTensorMode, tensor: torch.Tensor) -> FakeTensor:
    """A fake tensor that looks the same, and was not computed."""
    empty = torch.empty_like(tensor.detach(), device="meta")
    made = FakeTensor(mode, empty, tensor.device)
    if tensor.is_floating_point():
        made.requires_grad_(tensor.requires_grad)
    return made


def code_of(hook: Any) -> Any:
    """Code that hooks made in one place have in common."""
    return getattr(hook, "__code__", type(hook))


def replay_calls(
    module: nn.Module,
    sides: tuple[Side, ...],
    made: Any,
    real: Mapping[int, Any] | None = None,
    captures: frozenset[Any] | None = None,
) -> Any:
    """Hand the sides out as the layer would have, with `real` in place of some fake tensors; the result.

    Of hooks, those are called that keep something, or all while it is not known which these are.
    """
    for side in sides:
        inner = module.get_submodule(side.path)
        content: Any = tree_unflatten([(real or {}).get(id(leaf), leaf) for leaf in side.leaves], side.shape)
        if side.attribute:
            setattr(inner, side.attribute, content[0])
            continue
        args, options, given = content
        output = _hooked(inner, args, options, given, captures)
        made = made if side.path else output
    return made


def _hooked(module: nn.Module, args: Any, options: Any, output: Any, captures: frozenset[Any] | None) -> Any:
    for number, hook in list(module._forward_hooks.items()):
        if captures is not None and code_of(hook) not in captures:
            continue
        call = cast("Callable[..., Any]", hook)
        more = (options,) if number in module._forward_hooks_with_kwargs else ()
        try:
            changed = call(module, args, *more, output)
        except Exception:
            # It wants values: then it keeps nothing that anybody computes with.
            continue
        output = output if changed is None else changed
    return output


@contextmanager
def _listening(module: nn.Module) -> Generator[list[tuple[str, Any, frozenset[Any]]]]:
    """Hooks are not called, but what they would be called with is kept."""
    heard: list[tuple[str, Any, frozenset[Any]]] = []
    before: list[tuple[nn.Module, Any, Any]] = []
    for path, each in module.named_modules():
        if not each._forward_hooks:
            continue
        before.append((each, each._forward_hooks, each._forward_hooks_with_kwargs))
        codes = frozenset(map(code_of, each._forward_hooks.values()))

        def hear(
            _: nn.Module, args: Any, options: Any, output: Any, path: str = path, codes: Any = codes
        ) -> None:
            heard.append((path, (args, options, output), codes))

        each._forward_hooks = OrderedDict({_OWN_HOOK: cast(Any, hear)})
        each._forward_hooks_with_kwargs = OrderedDict({_OWN_HOOK: True})
    try:
        yield heard
    finally:
        for each, hooks, with_options in before:
            each._forward_hooks, each._forward_hooks_with_kwargs = hooks, with_options


def _box(module: nn.Module, args: Any, options: Any) -> BoxCall:
    earlier = {place: _ids(value) for place, value in _attributes(module)}
    with _listening(module) as heard:
        made = boxed(type(module)).__call__(module, *args, **options)
    sides = [Side(path, "", *_flat(content), codes) for path, content, codes in heard]
    for place, value in _attributes(module):
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(value)[0]) and (
            earlier.get(place) != _ids(value)
        ):
            sides.insert(0, Side(*place, *_flat((value,))))
    return BoxCall(made, tuple(sides), {})


def _flat(value: Any) -> tuple[tuple[Any, ...], TreeSpec]:
    leaves, shape = tree_flatten(value)
    return tuple(leaves), shape


def _attributes(module: nn.Module) -> Iterator[tuple[tuple[str, str], Any]]:
    """Attributes of modules beside parameters, buffers and parts."""
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if name not in _NO_ATTRIBUTES and isinstance(value, torch.Tensor | list | tuple | dict):
                yield (path, name), value


def _ids(value: Any) -> list[int]:
    return [id(leaf) for leaf in tree_flatten(value)[0]]


def _mapped_box(box: BoxCall, change: Callable[[Any], Any], values: Mapping[int, torch.Tensor]) -> BoxCall:
    leaves, shape = tree_flatten(box.made)
    made = tree_unflatten([change(leaf) for leaf in leaves], shape)
    sides = (
        Side(each.path, each.attribute, tuple(map(change, each.leaves)), each.shape, each.codes)
        for each in box.sides
    )
    return BoxCall(made, tuple(sides), values)


def _look(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return type(leaf), tuple(leaf.shape), leaf.dtype, leaf.device, leaf.requires_grad
    return leaf if isinstance(leaf, int | float | str | bool | None) else id(leaf)


def _with_numbers(arguments: Any) -> Any:
    """The same with some numbers in place of what fake tensors do not have."""
    leaves, shape = tree_flatten(arguments)
    made: dict[int, torch.Tensor] = {}
    for leaf in leaves:
        if isinstance(leaf, FakeTensor) and id(leaf) not in made:
            made[id(leaf)] = _numbers(leaf)
    return tree_unflatten([made.get(id(leaf), leaf) for leaf in leaves], shape)


def _numbers(fake: FakeTensor) -> torch.Tensor:
    """The same in all processes: between -1 and 1, or 0."""
    kind = dict[str, Any](dtype=fake.dtype, device=fake.device)
    if not fake.is_floating_point():
        return torch.zeros(fake.shape, **kind)
    made = torch.linspace(-1, 1, max(fake.numel(), 1), device=fake.device)[: fake.numel()].reshape(fake.shape)
    return made.to(fake.dtype).requires_grad_(fake.requires_grad)


@contextmanager
def _quiet() -> Generator[None]:
    """torch writes a traceback of every op that fails on fake tensors."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


@contextmanager
def _random_preserved() -> Generator[None]:
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield
