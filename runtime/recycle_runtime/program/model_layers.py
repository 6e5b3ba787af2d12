"""A whole model as layers: each worker holds its own, and runs the model's own forward around them.

    worker 0      embed   block 0 | stop
    worker 1      (fake)  (fake)  | block 1   block 2 | stop
    worker 2      (fake)  (fake)    (fake)    (fake)  | block 3   norm   head

A worker runs the forward of the model from the top. What layers before its own would compute has been
computed by others: where their results are used, those that arrived take their place (`forward_trace` knows
which), everything else there is a fake tensor without memory. The code around the layers, which makes masks,
positions and rotary tables of the inputs, runs on every worker. Before the first layer that is not its own
the forward is broken off, and what later layers need goes on.

What crosses a cut is the same wherever it is: a short text that says what the model's inputs look like, its
inputs that are no floating-point tensors, and the values that are used beyond.
"""

# Buffers are replaced where torch keeps them.
# pyright: reportPrivateUsage=false

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_flatten

from recycle_runtime.program.copies import carry_over
from recycle_runtime.program.cutting import folder
from recycle_runtime.program.deferred_init import Recipes, fill
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.forward_trace import (
    ForwardTrace,
    ForwardWatch,
    Value,
    tensors_in,
    trace,
    watched,
    watching,
)
from recycle_runtime.program.named_inputs import packed, unpacked
from recycle_runtime.program.outline import LayerCalls, outline

_MOST_TRACES = 8


class _Input(NamedTuple):
    """What one input of the model looks like."""

    name: str | None
    dtype: torch.dtype
    shape: tuple[int, ...]


class WholeModel:
    """A model and its layers, built without memory or with it; makes any layers as they are when new."""

    def __init__(self, model: nn.Module, recipes: Recipes | None = None, said: Any = None) -> None:
        self._model, self._recipes = model, recipes
        config: Any = getattr(model, "config", None)
        if getattr(config, "use_cache", None):
            # Keys and values of past tokens are for generating.
            config.use_cache = False
        self.groups: tuple[LayerCalls, ...] = outline(model, said)
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self.owners = self._find_owners()
        """The layers of every parameter."""
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._faked: dict[tuple[torch.device, torch.dtype | None], nn.Module] = {}
        self._traces: dict[Any, list[ForwardTrace]] = {}
        self._lock = threading.RLock()

    @property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """The names of each parameter that several layers have, each of them under a name of its own."""
        same: dict[nn.Parameter, list[str]] = {}
        for name, parameter in self._parameters.items():
            same.setdefault(parameter, []).append(name)
        return tuple(tuple(names) for names in same.values() if 1 < len(names) == len(self.owners[names[0]]))

    @property
    def names(self) -> list[str]:
        """Of the layers."""
        return [group.name for group in self.groups]

    @property
    def parameter_counts(self) -> list[int]:
        """Of the layers, and one for each layer itself."""
        return [
            1
            + sum(self._parameters[name].numel() for name, owners in self.owners.items() if number in owners)
            for number in range(len(self.groups))
        ]

    def build(self, first: int, last: int, seed: int) -> "list[tuple[str, nn.Module]]":
        """Layers first .. last - 1, each with memory of its own."""
        return [(self.groups[number].name, self._layer(number, seed)) for number in range(first, last)]

    def faked(self, device: torch.device, dtype: torch.dtype | None = None) -> nn.Module:
        """The model with fake parameters, of this type if it is given; buffers around layers are real."""
        with self._lock:
            if (device, dtype) not in self._faked:
                self._faked[device, dtype] = self._fake(device, dtype)
            return self._faked[device, dtype]

    def changed_dtype(self, layer: "ModelLayer") -> torch.dtype | None:
        """What the parameters of a layer were turned into, if they were."""
        for name, parameter in layer.named_parameters():
            if parameter.is_floating_point() and parameter.dtype != self._parameters[name].dtype:
                return parameter.dtype
        return None

    def traces(self, key: Any) -> list[ForwardTrace]:
        """Those that are known of such inputs, the last first."""
        return list(self._traces.get(key, ()))

    def trace(
        self, key: Any, model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> ForwardTrace:
        """A new one."""
        with self._lock:
            made = trace(model, self.owners, self.names, self.mode, args, options)
            self._traces[key] = [made, *self._traces.get(key, ())][:_MOST_TRACES]
            return made

    def _find_owners(self) -> dict[str, frozenset[int]]:
        owners: dict[str, set[int]] = {name: set() for name in self._parameters}
        for number, group in enumerate(self.groups):
            inside = tuple(f"{name}." for name in group.modules)
            for name in owners:
                if name in group.parameters or (inside and name.startswith(inside)):
                    owners[name].add(number)
        same: dict[nn.Parameter, set[int]] = {}
        for name, parameter in self._parameters.items():
            same.setdefault(parameter, set()).update(owners[name])
        return {name: frozenset(same[parameter]) for name, parameter in self._parameters.items()}

    def _layer(self, number: int, seed: int) -> "ModelLayer":
        group = self.groups[number]
        made: dict[nn.Parameter, nn.Parameter] = {}
        modules: dict[str, nn.Module] = {}
        for name in group.modules:
            module = self._modules[name]
            memo: dict[int, Any] = {}
            for inner, parameter in module.named_parameters(remove_duplicate=False):
                memo[id(parameter)] = self._real(f"{name}.{inner}", parameter, seed, made)
            modules[name] = copy.deepcopy(module, memo)
            _report_calls(modules[name], number, name)
        loose = {name: self._real(name, self._parameters[name], seed, made) for name in group.parameters}
        return ModelLayer(self, number, modules, loose, self._common_buffers() if number == 0 else {})

    def _real(
        self, name: str, parameter: nn.Parameter, seed: int, made: dict[nn.Parameter, nn.Parameter]
    ) -> nn.Parameter:
        if parameter not in made:
            if parameter.device.type == "meta" and self._recipes is not None:
                # One that has several names is filled by the first of them.
                first = next(each for each, known in self._parameters.items() if known is parameter)
                values = fill(first, parameter, self._recipes, seed)
            else:
                values = parameter.detach().clone()
            made[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
            carry_over(parameter, made[parameter])
        return made[parameter]

    def _common_buffers(self) -> dict[str, torch.Tensor]:
        """Those around the layers that a state dict has."""
        inside = tuple(f"{name}." for group in self.groups for name in group.modules)
        return {
            name: tensor.detach().clone()
            for name, tensor in self._model.state_dict(keep_vars=True).items()
            if name not in self._parameters and not name.startswith(inside)
        }

    def _fake(self, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
        memo: dict[int, Any] = {}
        for parameter in self._parameters.values():
            fake = self._fake_tensor(parameter, device, dtype)
            memo[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
        inside = [self._modules[name] for group in self.groups for name in group.modules]
        for module in inside:
            for buffer in module.buffers():
                memo[id(buffer)] = self._fake_tensor(buffer, device, dtype)
        model = copy.deepcopy(self._model, memo)
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and not isinstance(buffer, FakeTensor):
                    module._buffers[name] = buffer.to(device)
        for number, group in enumerate(self.groups):
            for name in group.modules:
                _answer_calls(model.get_submodule(name), number, name)
        return model

    def _fake_tensor(
        self, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None
    ) -> FakeTensor:
        wanted = dtype if tensor.is_floating_point() else None
        return FakeTensor(self.mode, torch.empty_like(tensor.detach(), device="meta", dtype=wanted), device)


class ModelLayer(nn.Module):
    """One layer of a whole model; its parameters have the names of the whole model."""

    has_whole_names = True

    def __init__(
        self,
        whole: WholeModel,
        number: int,
        modules: Mapping[str, nn.Module],
        parameters: Mapping[str, nn.Parameter],
        buffers: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__()
        self._whole, self.number = whole, number
        self._names = tuple(modules)
        self._loose = tuple(parameters)
        self._buffer_names = tuple(buffers)
        self._body: Body | None = None
        self._put(self, modules, parameters, buffers)

    def put_into(self, root: nn.Module) -> None:
        """Register all that it holds with another module, under the names of the whole model."""
        self._put(root, self.own_modules(), self.own_parameters(), self._own_buffers())

    def _own_buffers(self) -> dict[str, torch.Tensor]:
        return {name: self.get_buffer(name) for name in self._buffer_names}

    @staticmethod
    def _put(
        root: nn.Module,
        modules: Mapping[str, nn.Module],
        parameters: Mapping[str, nn.Parameter],
        buffers: Mapping[str, torch.Tensor],
    ) -> None:
        for name, module in modules.items():
            place, last = folder(root, name)
            place.add_module(last, module)
        for name, parameter in parameters.items():
            place, last = folder(root, name)
            place.register_parameter(last, parameter)
        for name, buffer in buffers.items():
            place, last = folder(root, name)
            place.register_buffer(last, buffer)

    @property
    def whole(self) -> WholeModel:
        return self._whole

    def own_modules(self) -> dict[str, nn.Module]:
        """By their names in the whole model."""
        return {name: self.get_submodule(name) for name in self._names}

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Those that are in none of them."""
        return {name: self.get_parameter(name) for name in self._loose}

    def report_after_hooks(self) -> None:
        """Hooks that were added belong to the calls of its modules: the end of a call is told after them."""
        for module in self.own_modules().values():
            hooks = module._forward_hooks
            for key in [key for key, hook in hooks.items() if isinstance(hook, _ReportEnd)]:
                hooks.move_to_end(key)  # pyright: ignore

    def join(self, layers: "Sequence[nn.Module]") -> "Body":
        """Several layers that follow one another as one."""
        return Body([layer for layer in layers if isinstance(layer, ModelLayer)])

    def forward(self, *values: Any) -> Any:
        """Of this layer alone."""
        if self._body is None:
            # Kept out of sight of nn.Module: it is made of what is registered here.
            object.__setattr__(self, "_body", Body([self]))
        assert self._body is not None
        return self._body.run(values, self.training)


class Body:
    """The whole model around some consecutive layers that are here."""

    def __init__(self, layers: Sequence[ModelLayer]) -> None:
        self._layers = tuple(layers)
        self._whole = layers[0].whole
        self._first, self._last = layers[0].number, layers[-1].number
        self._model: tuple[torch.device, nn.Module] | None = None
        self._inputs: dict[Any, tuple[_Input, ...]] = {}
        self._texts: dict[Any, torch.Tensor] = {}

    def run(
        self, values: Sequence[Any], is_training: bool, before_layer: Callable[[int], None] | None = None
    ) -> Any:
        """From what crosses into the first of the layers to what crosses out of the last."""
        device = values[0].device
        inputs, tensors, crossed = self._unpack(values)
        args = tuple(tensor for each, tensor in zip(inputs, tensors, strict=True) if each.name is None)
        options = {
            each.name: tensor for each, tensor in zip(inputs, tensors, strict=True) if each.name is not None
        }
        dtype = self._whole.changed_dtype(self._layers[0])
        fake = self._whole.faked(device, dtype)
        key = (inputs, device, dtype, is_training, torch.is_grad_enabled(), _autocast(device))
        model = self._assembled(device, fake)
        for each in (fake, model):
            if each.training != is_training:
                each.train(is_training)
        for known in self._whole.traces(key):
            try:
                return self._follow(known, model, args, options, inputs, crossed, before_layer)
            except _OtherWay:
                continue
        fresh = self._whole.trace(key, fake, args, options)
        try:
            return self._follow(fresh, model, args, options, inputs, crossed, before_layer)
        except _OtherWay as error:
            raise ProgramError(
                f"the forward of {type(model).__name__} goes another way with values than with shapes alone: "
                f"{error}",
                "let it decide by its inputs, or inside a layer",
            ) from None

    def _follow(
        self,
        known: ForwardTrace,
        model: nn.Module,
        args: tuple[Any, ...],
        options: dict[str, Any],
        inputs: tuple[_Input, ...],
        crossed: Sequence[torch.Tensor],
        before_layer: Callable[[int], None] | None,
    ) -> Any:
        arrived = dict(zip(known.crossing[self._first], crossed, strict=True))
        args, options = self._with_arrived(args, options, arrived)
        follower = _Follower(known, self._whole.names, self._first, self._last, arrived, before_layer)
        if self._first == 0 and before_layer is not None:
            before_layer(0)
        try:
            made = watched(follower, lambda: model(*args, **options))
        except _Stop:
            return self._pack(inputs, args, options, follower.leaving())
        follower.check(made, "what it returns")
        return made

    def _with_arrived(
        self, args: tuple[Any, ...], options: dict[str, Any], arrived: Mapping[Value, torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs that are floating-point tensors cross like any value that is used beyond."""
        values = [*args, *options.values()]
        values = [arrived.get(Value(-1, place), each) for place, each in enumerate(values)]
        return tuple(values[: len(args)]), dict(zip(options, values[len(args) :], strict=True))

    def _assembled(self, device: torch.device, fake: nn.Module) -> nn.Module:
        """The model with the modules of its own layers, and fake ones elsewhere."""
        if self._model is None or self._model[0] != device:
            own = {name: module for layer in self._layers for name, module in layer.own_modules().items()}
            loose = {name: each for layer in self._layers for name, each in layer.own_parameters().items()}
            memo: dict[int, Any] = {
                id(parameter): loose.get(name, parameter) for name, parameter in fake.named_parameters()
            }
            for group in self._whole.groups:
                for name in group.modules:
                    module = fake.get_submodule(name)
                    memo[id(module)] = own.get(name, module)
            self._model = device, copy.deepcopy(fake, memo)
        return self._model[1]

    def _unpack(
        self, values: Sequence[torch.Tensor]
    ) -> tuple[tuple[_Input, ...], list[Any], Sequence[torch.Tensor]]:
        """What the model's inputs look like, those inputs, and what else has crossed."""
        if self._first == 0:
            names, tensors = _named(values)
            looks = (
                _Input(name, tensor.dtype, tuple(tensor.shape))
                for name, tensor in zip(names, tensors, strict=True)
            )
            return tuple(looks), list(tensors), ()
        inputs = self._read(values)
        rest = iter(values[1:])
        tensors = [
            self._placeholder(each, values[0].device) if each.dtype.is_floating_point else next(rest)
            for each in inputs
        ]
        return inputs, tensors, tuple(rest)

    def _placeholder(self, look: _Input, device: torch.device) -> torch.Tensor:
        empty = torch.empty(look.shape, dtype=look.dtype, device="meta")
        return FakeTensor(self._whole.mode, empty, device)

    def _read(self, values: Sequence[torch.Tensor]) -> tuple[_Input, ...]:
        """The text that crossed; on a GPU it is read once for all that look alike."""
        key = None if values[0].device.type == "cpu" else tuple((each.dtype, each.shape) for each in values)
        if key is None or key not in self._inputs:
            rows: list[tuple[str | None, str, list[int]]] = unpacked(values[0])
            made = tuple(_Input(name, getattr(torch, dtype), tuple(shape)) for name, dtype, shape in rows)
            if key is None:
                return made
            self._inputs[key] = made
        return self._inputs[key]

    def _pack(
        self,
        inputs: tuple[_Input, ...],
        args: tuple[Any, ...],
        options: dict[str, Any],
        leaving: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        tensors = [*args, *options.values()]
        whole = [each for each in tensors if not each.is_floating_point()]
        device = next(each.device for each in (*tensors, *leaving))
        if (inputs, device) not in self._texts:
            rows = [[each.name, str(each.dtype).removeprefix("torch."), each.shape] for each in inputs]
            self._texts[inputs, device] = packed(rows).to(device)
        return (self._texts[inputs, device], *whole, *leaving)


class _Stop(BaseException):
    """The first layer that is not here is reached."""


class _OtherWay(BaseException):
    """The forward does something else than the trace says."""


class _Follower(ForwardWatch):
    """Goes through a forward as a trace says, from the first layer that is here to the last."""

    def __init__(
        self,
        known: ForwardTrace,
        names: Sequence[str],
        first: int,
        last: int,
        arrived: Mapping[Value, torch.Tensor],
        before_layer: Callable[[int], None] | None,
    ) -> None:
        super().__init__()
        self._trace, self._names, self._first, self._last = known, names, first, last
        self._start = known.borders[first]
        self._real = {id(known.fake(value)): tensor for value, tensor in arrived.items()}
        self._wanted: dict[int, list[int]] = {}
        """Places of what crosses out, by the event that makes it."""
        self._crossing = known.crossing[last + 1] if last + 1 < len(known.crossing) else ()
        for value in self._crossing:
            self._wanted.setdefault(value.event, []).append(value.place)
        self._kept: dict[Value, torch.Tensor] = dict(arrived)
        self._before_layer = before_layer
        self._layer = 0 if first == 0 else -1

    def operation(self, name: str, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        number = self.number
        if number < self._start and self._trace.names[number] == name:
            made = self._trace.made[number]
            if made is not None:
                self.number += 1
                return made.with_real(self._real)
        result = func(*args, **options)
        return self._keep(self._next(name), result) if tensors_in(result) else result

    def call_fake(
        self, layer: int, name: str, call: Callable[[], Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if layer > self._last:
            if self.number != self._trace.borders[self._last + 1]:
                raise _OtherWay(f"{name} is called too early")
            raise _Stop
        number = self._next(name)
        made = self._trace.made[number]
        assert made is not None and number < self._start, f"{name} is not here"
        return made.with_real(self._real)

    def enter(self, layer: int, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self._layer < layer:
            self._layer = layer
            if self._before_layer is not None:
                self._before_layer(layer)
        self.check((args, options), f"what {name} is called with")
        self.inside = True

    def leave(self, name: str, made: Any) -> Any:
        self.inside = False
        return self._keep(self._next(name), made)

    def check(self, value: Any, what: str) -> None:
        """That nothing in it is fake: it would come from a layer that is not here, on a way not seen."""
        if any(isinstance(leaf, FakeTensor) for leaf in tree_flatten(value)[0]):
            raise ProgramError(
                f"{what} comes from another layer on a way that cannot be followed (an attribute, a global, "
                "a cache)",
                "pass it on as an argument and a result, or make one layer of both: LAYERS = [...]",
            )

    def leaving(self) -> list[torch.Tensor]:
        """What crosses out."""
        made = [self._kept[value] for value in self._crossing]
        self.check(made, f"what layer {self._names[self._last]} hands on")
        return made

    def _next(self, name: str) -> int:
        number = self.number
        if number >= len(self._trace.names) or self._trace.names[number] != name:
            raise _OtherWay(f"{name} where {(*self._trace.names, 'its end')[number]} was")
        self.number += 1
        return number

    def _keep(self, number: int, made: Any) -> Any:
        if number in self._wanted:
            leaves = tree_flatten(made)[0]
            for place in self._wanted[number]:
                self._kept[Value(number, place)] = leaves[place]
        return made


@dataclass(frozen=True, slots=True)
class _Report:
    """Tells a watch that a module of a layer begins."""

    layer: int
    name: str

    def __call__(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        watch = watching()
        if watch is not None:
            watch.enter(self.layer, self.name, args, options)


@dataclass(frozen=True, slots=True)
class _ReportEnd:
    """And that it has ended."""

    name: str

    def __call__(self, module: nn.Module, args: tuple[Any, ...], made: Any) -> Any:
        watch = watching()
        return made if watch is None else watch.leave(self.name, made)


def _report_calls(module: nn.Module, layer: int, name: str) -> None:
    module.register_forward_pre_hook(_Report(layer, name), with_kwargs=True)
    module.register_forward_hook(_ReportEnd(name))


def _answer_calls(module: nn.Module, layer: int, name: str) -> None:
    """Let a watch answer calls of a module that has no memory; to everybody else it stays what it is."""
    kind = type(module)

    def call(self: nn.Module, *args: Any, **options: Any) -> Any:
        watch = watching()
        if watch is None:
            return kind.__call__(self, *args, **options)
        return watch.call_fake(layer, name, lambda: kind.__call__(self, *args, **options), args, options)

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def _named(values: Sequence[torch.Tensor]) -> tuple[list[str | None], Sequence[torch.Tensor]]:
    """Names of inputs, None for those that have none, and the inputs."""
    names: list[str | None] | None = unpacked(values[0])
    return ([None] * len(values), values) if names is None else (names, values[1:])


def _autocast(device: torch.device) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
