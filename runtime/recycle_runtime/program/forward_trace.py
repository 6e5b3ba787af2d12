"""Dataflow between the layers of a whole model, found by watching its own forward from outside.

A forward is a row of events: calls of the model's layers, and between them the operations of the code
around these, its glue. A trace runs the glue with fake tensors in place of all parameters: they have types
and shapes and no memory, and so has whatever is computed from them. What is computed from token ids, masks
and positions alone is real. A layer is a box: what it gives looks as `boxes` says, and nothing in it is seen.

    event     0 embed   1 add   2 mask   3 layer   4 layer   5 norm   6 head
    made      fake      fake    real     fake      fake      fake     fake

A cut before event 4 is crossed by every fake value that was made before it and is used from there on: here
what event 3 made. What is real is computed again on the other side, from the same ids, by the same code.

Glue that reads a number of a fake tensor (`.item()`, `if hidden.max() > 3`) needs values: then the trace is
made once more with a value beside every fake tensor, by layers as they are when new. A tensor that is read
so crosses all later cuts, so that every worker reads the same.
"""

# Memory is known by an address that torch calls private.
# pyright: reportPrivateUsage=false

import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from recycle_runtime.program.boxes import Boxes, Side, fake_like, replay_calls
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.glue_reads import RANDOM, out_of_glue

_END = 1 << 60
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_NO_ARRAY = ".numpy() is not supported"
"""In torch's words about a fake tensor."""
_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent)


class Value(NamedTuple):
    """A tensor that an event makes; event -1 are the inputs of the model."""

    event: int
    place: int
    side: int = 0
    """0: it is in what the event gives. Others are handed out past that, see `boxes`."""


class Made(NamedTuple):
    """Output of an event, as fake tensors."""

    leaves: tuple[Any, ...]
    shape: TreeSpec

    def with_real(self, real: Mapping[int, torch.Tensor]) -> Any:
        """The same with real tensors in place of some fake ones, which are named by their `id`."""
        return tree_unflatten([real.get(id(leaf), leaf) for leaf in self.leaves], self.shape)


@dataclass(frozen=True, slots=True)
class ForwardTrace:
    """One way through a forward."""

    names: tuple[str, ...]
    """Of the events."""
    made: tuple[Made | None, ...]
    """Of the events; None for what is real."""
    borders: tuple[int, ...]
    """The event at which each layer begins."""
    crossing: tuple[tuple[Value, ...], ...]
    """Values that cross the border before each layer."""
    inputs: Mapping[int, torch.Tensor]
    """Fake ones in place of the inputs that are floating-point tensors, by their place."""
    sides: Mapping[int, tuple[Side, ...]]
    """Values that layers hand out past their results, by event."""
    captures: frozenset[Any]
    """The code of hooks that keep what they are called with."""

    def fake(self, value: Value) -> torch.Tensor:
        """Fake tensor of a value in the trace."""
        if value.event == -1:
            return self.inputs[value.place]
        if value.side:
            return self.sides[value.event][value.side - 1].leaves[value.place]
        made = self.made[value.event]
        assert made is not None
        return made.leaves[value.place]


class CallWatch(ABC):
    """Sees the calls of all layers in one forward."""

    @abstractmethod
    def call_here(self, layer: int, name: str, call: Callable[..., Any], args: Any, options: Any) -> Any:
        """A module of a layer that is here."""

    @abstractmethod
    def call_fake(self, layer: int, name: str, module: nn.Module, args: Any, options: Any) -> Any:
        """A module of a layer that has no memory here."""

    def tell_side(self, module: nn.Module, args: Any, options: Any, output: Any) -> None:  # noqa: B027
        """A module inside a layer that is here has given this."""

    def run(self, call: Callable[[], Any]) -> Any:
        """Run a forward."""
        _active.watch = self
        try:
            return call()
        finally:
            _active.watch = None


class ForwardWatch(TorchFunctionMode, CallWatch):
    """Sees every event of one forward; subclasses say what becomes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        """Of the next event."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.operation(_name(func), func, args, kwargs or {})

    @abstractmethod
    def operation(self, name: str, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """One of the glue; it is an event if it gives tensors."""

    def run(self, call: Callable[[], Any]) -> Any:
        with self:
            return super().run(call)

    @contextmanager
    def aside(self) -> Generator[None]:
        """While a layer computes: to torch, and to what it compiles, it is as if nobody watched."""
        if _get_current_function_mode() is not self:
            yield
            return
        self.__exit__(None, None, None)
        try:
            with out_of_glue():
                yield
        finally:
            self.__enter__()


_active = threading.local()


def watching() -> CallWatch | None:
    """Watch on the forward that runs in this thread; None without one."""
    return getattr(_active, "watch", None)


def trace(
    model: nn.Module,
    owners: Mapping[str, frozenset[int]],
    names: Sequence[str],
    mode: FakeTensorMode,
    boxes: Boxes,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> ForwardTrace:
    """One forward of a model with fake parameters, whose layers have these names; `owners` has the layers of
    every parameter."""
    tracer = _Tracer(model, owners, names, mode, boxes)
    try:
        try:
            return _traced(tracer, args, options)
        except _NEEDS_VALUES:
            tracer = _Tracer(model, owners, names, mode, boxes, with_values=True)
            return _traced(tracer, args, options)
    except (*_NEEDS_VALUES, RuntimeError) as error:
        if not isinstance(error, _NEEDS_VALUES) and _NO_ARRAY not in str(error):
            raise
        raise ProgramError(
            f"{user_line(error)}: the forward of {type(model).__name__} looks at values that its layers "
            f"have computed, between {tracer.place}, in a way that cannot be followed",
            "do that in the forward of a layer, where nothing is traced",
        ) from None


def _traced(tracer: "_Tracer", args: tuple[Any, ...], options: dict[str, Any]) -> ForwardTrace:
    model = tracer.model
    inputs = [each for each in tree_flatten((args, options))[0] if isinstance(each, torch.Tensor)]
    versions = [tensor._version for tensor in inputs]
    faked = {id(each): fake_like(tracer.mode, each) for each in inputs if each.is_floating_point()}
    leaves, shape = tree_flatten((args, options))
    args, options = tree_unflatten([faked.get(id(leaf), leaf) for leaf in leaves], shape)
    for place, each in enumerate(inputs):
        if each.is_floating_point():
            tracer.take_input(place, faked[id(each)], each)
    made = tracer.run(lambda: model(*args, **options))
    if [tensor._version for tensor in inputs] != versions:
        raise ProgramError(
            f"the forward of {type(model).__name__} changes its inputs in place, outside of its layers",
            "let it change a copy",
        )
    return tracer.finish(made)


class _Tracer(ForwardWatch):
    def __init__(
        self,
        model: nn.Module,
        owners: Mapping[str, frozenset[int]],
        names: Sequence[str],
        mode: FakeTensorMode,
        boxes: Boxes,
        *,
        with_values: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.mode = model, mode
        self._model, self._names, self._boxes = type(model).__name__, names, boxes
        self._parameters = {
            id(parameter): (name, owners[name])
            for name, parameter in model.named_parameters(remove_duplicate=False)
        }
        self._layer = 0
        self._last = names[0]
        self._events: list[str] = []
        self._made: list[Made | None] = []
        self._sides: dict[int, tuple[Side, ...]] = {}
        self._borders = [0]
        self._inputs: dict[int, torch.Tensor] = {}
        self._values: dict[int, Value] = {}
        self._held: list[Any] = []
        """Tensors are known by their address while they live."""
        self._uses: dict[Value, int] = {}
        """The last event that uses a value."""
        self._changed: dict[int, float] = {}
        """The last event that changed memory in place, or when between two of them."""
        self._beside: dict[int, torch.Tensor] | None = {} if with_values else None
        """A tensor with values for each fake one, by `id`, where they are needed."""

    @property
    def place(self) -> str:
        following = self._names[self._layer + 1] if self._layer + 1 < len(self._names) else "its end"
        return f"{self._last} and {following}"

    def take_input(self, place: int, tensor: torch.Tensor, like: torch.Tensor) -> None:
        self._inputs[place] = tensor
        if self._beside is not None:
            # Only the first worker has the values. All must go the same way, so none looks at them.
            numbers = torch.randn(like.shape, generator=torch.Generator().manual_seed(place))
            self._beside[id(tensor)] = numbers.to(like.device, like.dtype)
        self._know(tensor, Value(-1, place))

    def _know(self, tensor: torch.Tensor, value: Value) -> None:
        self._values[id(tensor)] = value
        self._held.append(tensor)

    def operation(self, name: str, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        given = tensors_in((args, options))
        versions = [tensor._version for tensor in given]
        made = self._made_by(func, args, options, given)
        changed = [
            tensor for tensor, version in zip(given, versions, strict=True) if tensor._version != version
        ]
        if name in RANDOM:
            made = self._drawn(made, changed)
        if changed:
            # The name for the result of `x += y` is a new one, in a watched forward too.
            made = _mapped(made, lambda tensor: self._renamed(tensor) if _among(tensor, changed) else tensor)
        results = tensors_in(made)
        if any(isinstance(tensor, FakeTensor) for tensor in (*results, *changed)):
            self._use(given)
        for tensor in changed:
            self._changed[_memory(tensor)] = self.number if results else self.number - 0.5
        if results:
            self._add(name, made)
        return made

    def _made_by(
        self, func: Any, args: tuple[Any, ...], options: dict[str, Any], given: Sequence[torch.Tensor]
    ) -> Any:
        if self._beside is None or not any(isinstance(tensor, FakeTensor) for tensor in given):
            return func(*args, **options)
        real = self._with_values((args, options))
        value = func(*real[0], **real[1])
        try:
            made = func(*args, **options)
        except _NEEDS_VALUES:
            # Whoever computes it reads the same: what it is read from goes to all of them.
            self._use(given, _END)
            known = {id(each): tensor for tensor in given for each in [self._beside.get(id(tensor))]}
            made = _mapped(value, lambda each: known.get(id(each), fake_like(self.mode, each)))
        for one, other in zip(tensors_in(made), tensors_in(value), strict=False):
            if isinstance(one, FakeTensor):
                self._beside[id(one)] = other
                self._held.append(one)
        return made

    def _with_values(self, value: Any) -> Any:
        """The same with values in place of fake tensors; parameters are as in layers that are new."""
        assert self._beside is not None
        beside = self._beside

        def real(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, FakeTensor) and id(tensor) not in beside:
                name = self._parameters.get(id(tensor), ("", frozenset[int]()))[0]
                beside[id(tensor)] = self._boxes.values_of(name, tensor)
                self._held.append(tensor)
            return beside.get(id(tensor), tensor)

        return _mapped(value, real)

    def _renamed(self, tensor: torch.Tensor) -> torch.Tensor:
        made = tensor.view_as(tensor)
        if self._beside is not None and id(tensor) in self._beside:
            self._beside[id(made)] = self._beside[id(tensor)]
        return made

    def call_here(self, layer: int, name: str, call: Callable[..., Any], args: Any, options: Any) -> Any:
        raise AssertionError(f"{name} has memory in a trace")

    def call_fake(self, layer: int, name: str, module: nn.Module, args: Any, options: Any) -> Any:
        self._begin(layer, name)
        self._use(tensors_in((args, options)))
        holders = _holders((args, options))
        with self.aside():
            if self._beside is None:
                box = self._boxes.look(layer, name, module, args, options)
            else:
                box = self._boxes.compute(layer, name, module, (args, options), self._with_values)
                self._beside.update(box.values)
                self._held.append(box)
            made = replay_calls(module, box.sides, box.made)
        number = self.number
        _check_seen(name, made)
        for holder, before in holders:
            if _kept_in(holder) > before:
                raise ProgramError(
                    f"{name} puts tensors into the {type(holder).__name__} that it is called with, which "
                    "other workers do not see",
                    "give them as results of the layer, or leave the cache out (use_cache=False)",
                )
        self._add(name, made, is_layer=True)
        self._sides[number] = box.sides
        for place, side in enumerate(box.sides, 1):
            for inner, leaf in enumerate(side.leaves):
                if self._is_new(leaf):
                    self._know(leaf, Value(number, inner, place))
        return made

    def finish(self, made: Any) -> ForwardTrace:
        """The trace, when the forward has given this."""
        missing = self._names[len(self._borders) :]
        if missing:
            raise ProgramError(
                f"the forward of {self._model} does not call {missing[0]}",
                "leave out what is not used, or name the layers in the order of their calls: LAYERS = [...]",
            )
        self.number = _END
        self._use(tensors_in(made))
        crossing = tuple(
            tuple(sorted(value for value, last in self._uses.items() if value.event < border <= last))
            for border in self._borders
        )
        return ForwardTrace(
            tuple(self._events),
            tuple(self._made),
            tuple(self._borders),
            ((), *crossing[1:]),
            self._inputs,
            self._sides,
            self._captures(),
        )

    def _captures(self) -> frozenset[Any]:
        """The code of hooks whose output somebody has used later, past the layer that comes next."""
        found: set[Any] = set()
        for event, sides in self._sides.items():
            following = [border for border in self._borders if border > event]
            near = following[1] if len(following) > 1 else _END
            for side in sides:
                uses = [
                    (value, self._uses.get(value, -1)) for value in map(self._value, side.leaves) if value
                ]
                if any(last >= (event + 1 if value.side else near) for value, last in uses):
                    found |= side.codes
        return frozenset(found)

    def _value(self, leaf: Any) -> Value | None:
        return self._values.get(id(leaf))

    def _begin(self, layer: int, name: str) -> None:
        if layer == self._layer + 1:
            self._layer = layer
            self._borders.append(self.number)
        elif layer != self._layer:
            raise ProgramError(
                f"the forward of {self._model} calls {name} after {self._last}, which is "
                + (
                    "a later layer: a module used in two places cannot be cut"
                    if layer < self._layer
                    else f"not the layer before it: {self._names[self._layer + 1]} comes between them"
                ),
                "name the layers in the order of their calls, or make one layer of several modules: "
                'LAYERS = ["embed", "blocks", ["norm", "head"]]'
                + ("" if layer < self._layer else "; leave out of the model what is never called"),
            )
        self._last = name

    def _drawn(self, made: Any, changed: Sequence[torch.Tensor]) -> Any:
        """Drawn once, where it belongs, and carried: drawn again it would be something else."""
        if any(not isinstance(tensor, FakeTensor) for tensor in changed):
            raise ProgramError(
                f"{user_line(None)}: the forward of {self._model} fills a tensor with random numbers in "
                "place, outside of its layers",
                "do that inside a layer, or use torch.rand and the like",
            )
        return _mapped(
            made,
            lambda tensor: tensor if isinstance(tensor, FakeTensor) else self._hidden(tensor),
        )

    def _hidden(self, tensor: torch.Tensor) -> torch.Tensor:
        made = fake_like(self.mode, tensor)
        if self._beside is not None:
            self._beside[id(made)] = tensor
            self._held.append(made)
        return made

    def _use(self, given: Sequence[torch.Tensor], last: int | None = None) -> None:
        number = self.number if last is None else last
        for tensor in given:
            known = self._parameters.get(id(tensor))
            if known is not None and self._layer not in known[1]:
                raise ProgramError(
                    f"{user_line(None)}: parameter {known[0]} is used in layer {self._names[self._layer]}, "
                    f"and it is taken for one of {self._names[min(known[1])]}",
                    f"say where it belongs: LAYERS = [..., [..., {known[0]!r}], ...]",
                )
            value = self._values.get(id(tensor))
            if value is not None:
                self._check_unchanged(tensor, value)
                self._uses[value] = max(number, self._uses.get(value, -1))

    def _check_unchanged(self, tensor: torch.Tensor, value: Value) -> None:
        """Refuse values changed in place under their old name: another worker's value cannot replace them."""
        changed = self._changed.get(_memory(tensor), -1)
        crosses = any(changed < border <= self.number for border in self._borders)
        if changed > value.event and crosses:
            raise ProgramError(
                f"{user_line(None)}: this uses what the forward of {self._model} changed in place before "
                f"layer {self._names[self._layer]}",
                "change it in a layer, or give the result a name: x = x.add(y) in place of x.add_(y)",
            )

    def _add(self, name: str, made: Any, *, is_layer: bool = False) -> None:
        leaves, shape = tree_flatten(made)
        self._events.append(name)
        is_fake = is_layer or any(isinstance(leaf, FakeTensor) for leaf in leaves)
        self._made.append(Made(tuple(leaves), shape) if is_fake else None)
        for place, leaf in enumerate(leaves):
            # What is given back unchanged is what it was.
            if self._is_new(leaf):
                self._know(leaf, Value(self.number, place))
        self.number += 1

    def _is_new(self, leaf: Any) -> bool:
        return (
            isinstance(leaf, FakeTensor) and id(leaf) not in self._values and id(leaf) not in self._parameters
        )


def _holders(given: Any) -> list[tuple[Any, int]]:
    """Objects that torch does not look into, and how many tensors each has."""
    leaves = [each for each in tree_flatten(given)[0] if not isinstance(each, torch.Tensor | nn.Module)]
    return [
        (each, _kept_in(each)) for each in leaves if hasattr(each, "__dict__") and not isinstance(each, type)
    ]


def _kept_in(holder: Any) -> int:
    return len(tensors_in(list(vars(holder).values())))


def _check_seen(name: str, made: Any) -> None:
    """That no tensor of what a layer gives is out of sight."""
    for leaf in tree_flatten(made)[0]:
        kept = [] if isinstance(leaf, torch.Tensor) else [*getattr(leaf, "__dict__", {}).values()]
        if isinstance(leaf, Iterator) or tensors_in(kept):
            kind = type(leaf).__name__
            raise ProgramError(
                f"{name} gives a {kind}, and what tensors are in it cannot be seen",
                "let it give tensors, tuples, lists or dictionaries of them"
                + (f", or call torch.export.register_dataclass({kind})" if is_dataclass(leaf) else ""),
            )


def user_line(error: BaseException | None) -> str:
    """The innermost line on the way here, or to the error, that is neither torch's nor ours."""
    frames = traceback.extract_stack() if error is None else traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith((_TORCH, _OWN, "<")):
            return f"{frame.filename}:{frame.lineno}"
    return "forward"


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def _name(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    # An attribute of tensors: all are read by functions of one name.
    return f"{getattr(func.__self__, '__name__', '')}" if name == "__get__" else name


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    leaves, shape = tree_flatten(value)
    changed = [change(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return tree_unflatten(changed, shape)


def _among(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    return isinstance(tensor, FakeTensor) and any(tensor is other for other in others)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
