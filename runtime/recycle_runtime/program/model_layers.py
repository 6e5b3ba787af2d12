"""A whole model as layers: each worker holds its own, and runs the model's own forward around them.

    worker 0      embed   block 0 | stop
    worker 1      (fake)  (fake)  | block 1   block 2 | stop
    worker 2      (fake)  (fake)    (fake)    (fake)  | block 3   norm   head

A worker runs the forward of the model from the top. What layers before its own would compute has been
computed by others: where their results are used, those that arrived take their place (`forward_trace` knows
which), everything else there is a fake tensor without memory. The code around the layers, which makes masks,
positions and rotary tables of the inputs, runs on every worker. Before the first layer that is not its own
the forward is broken off, and what later layers need goes on. A worker that holds all layers just calls the
model.

A layer that is here is called through a twin: a second object with the same attributes, whose class says
when its call begins and ends. The module itself stays what it was, compiled or checkpointed if it was that,
and while it computes nobody watches.

What crosses a cut is the same wherever it is: a short text that says what the model's inputs look like, its
inputs that are no floating-point tensors, and the values that are used beyond.
"""

# Buffers are replaced where torch keeps them.
# pyright: reportPrivateUsage=false

import copy
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_flatten

from recycle_runtime.program.boxes import Boxes, Side, boxed, replay_calls
from recycle_runtime.program.compiled import compile_alike, unwrapped
from recycle_runtime.program.copies import carry_over
from recycle_runtime.program.cutting import folder
from recycle_runtime.program.deferred_init import Recipes, fill_deferred
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.forward_counts import CountsSeen
from recycle_runtime.program.forward_trace import (
    CallWatch,
    ForwardTrace,
    ForwardWatch,
    Value,
    tensors_in,
    trace,
    user_line,
    watching,
)
from recycle_runtime.program.glue_reads import ReadsSeen, out_of_glue
from recycle_runtime.program.named_inputs import pack_inputs, unpacked
from recycle_runtime.program.outline import LayerCalls, outline

_MOST_TRACES = 8


class _Input(NamedTuple):
    """Name, type and shape of one input of the model."""

    name: str | None
    dtype: torch.dtype
    shape: tuple[int, ...]


class WholeModel:
    """A model and its layers, built without memory or with it; makes any layers as they are when new."""

    def __init__(self, model: nn.Module, recipes: Recipes | None = None, said: Any = None) -> None:
        self._recipes, self._seed = recipes, 0
        config: Any = getattr(model, "config", None)
        if getattr(config, "use_cache", None):
            # Keys and values of past tokens are for generating.
            config.use_cache = False
        model = unwrapped(model)
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise ProgramError(
                    f"{name or 'the model'} is a ScriptModule, which cannot be copied layer by layer",
                    "give the module that it was made of; torch.compile takes the place of torch.jit.script",
                )
        _install_recorders(model)
        self._model = model
        self.groups: tuple[LayerCalls, ...] = outline(model, said)
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self.owners = self._find_owners()
        """The layers of every parameter."""
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._boxes = Boxes(self.mode, self._built, self._value_of)
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
    def layer_modules(self) -> list[str]:
        """Names of the modules that layers are made of."""
        return [name for group in self.groups for name in group.modules]

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
        self._seed = seed
        return [(self.groups[number].name, self._layer(number, seed)) for number in range(first, last)]

    def faked(self, device: torch.device, dtype: torch.dtype | None = None) -> nn.Module:
        """The model with fake parameters, of this type if it is given; buffers around layers are real."""
        with self._lock:
            if (device, dtype) not in self._faked:
                self._faked[device, dtype] = self._fake(device, dtype)
            return self._faked[device, dtype]

    def assembled(self, fake: nn.Module, layers: "Sequence[ModelLayer]" = ()) -> nn.Module:
        """A model of its own with these layers in it, and fake ones elsewhere."""
        own = {name: module for layer in layers for name, module in layer.own_modules().items()}
        loose = {name: each for layer in layers for name, each in layer.own_parameters().items()}
        memo: dict[int, Any] = {
            id(parameter): loose.get(name, parameter) for name, parameter in fake.named_parameters()
        }
        memo |= {id(buffer): buffer for buffer in fake.buffers() if isinstance(buffer, FakeTensor)}
        for number, group in enumerate(self.groups):
            for name in group.modules:
                module = fake.get_submodule(name)
                if name in own:
                    memo[id(module)] = _twin(own[name], number, name)
        return copy.deepcopy(fake, memo)

    def changed_dtype(self, layer: "ModelLayer") -> torch.dtype | None:
        """Type that the parameters of a layer were converted to, if they were."""
        for parameter, before in layer.types_before:
            if parameter.dtype != before:
                return parameter.dtype
        return None

    def dtype_of(self, name: str) -> torch.dtype:
        """Of a parameter as the model has it."""
        return self._parameters[name].dtype

    def traces(self, key: Any) -> list[ForwardTrace]:
        """Those that are known of such inputs, the last first."""
        return list(self._traces.get(key, ()))

    def trace(
        self, key: Any, model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> ForwardTrace:
        """A new one."""
        with self._lock:
            # It may keep what it computes.
            model = self.assembled(model)
            made = trace(model, self.owners, self.names, self.mode, self._boxes, args, options)
            self._traces[key] = [made, *self._traces.get(key, ())][:_MOST_TRACES]
            return made

    def __deepcopy__(self, _: Any) -> "WholeModel":
        """Copies of layers are layers of the same model."""
        return self

    def _built(self, layer: int, name: str, like: nn.Module) -> nn.Module:
        """A module of a layer as it is when new, in the place and the mode of a fake one."""
        made = self._layer(layer, self._seed, is_shown=True).get_submodule(name)
        tensors = (*made.parameters(), *made.buffers()), (*like.parameters(), *like.buffers())
        for one, other in zip(*tensors, strict=True):
            one.data = one.data.to(other.device, other.dtype)
        for each, other in zip(made.modules(), like.modules(), strict=True):
            each.training = other.training
        return made

    def _value_of(self, name: str, like: torch.Tensor) -> torch.Tensor:
        if name not in self._parameters:
            return torch.zeros_like(like, device=like.device)
        return self._real(name, self._parameters[name], self._seed, {}).detach().to(like.device, like.dtype)

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

    def _layer(self, number: int, seed: int, *, is_shown: bool = False) -> "ModelLayer":
        """`is_shown`: it only shows what its results look like."""
        group = self.groups[number]
        made: dict[nn.Parameter, nn.Parameter] = {}
        modules: dict[str, nn.Module] = {}
        for name in group.modules:
            module = self._modules[name]
            memo: dict[int, Any] = {}
            for inner, parameter in module.named_parameters(remove_duplicate=False):
                memo[id(parameter)] = self._real(f"{name}.{inner}", parameter, seed, made)
            modules[name] = copy.deepcopy(module, memo)
            if not is_shown:
                compile_alike(zip(module.modules(), modules[name].modules(), strict=True))
        loose = {name: self._real(name, self._parameters[name], seed, made) for name in group.parameters}
        return ModelLayer(self, number, modules, loose, self._common_buffers() if number == 0 else {})

    def _real(
        self, name: str, parameter: nn.Parameter, seed: int, made: dict[nn.Parameter, nn.Parameter]
    ) -> nn.Parameter:
        if parameter not in made:
            if parameter.device.type == "meta" and self._recipes is not None:
                # One that has several names is filled by the first of them.
                first = next(each for each, known in self._parameters.items() if known is parameter)
                values = fill_deferred(first, parameter, self._recipes, seed)
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
        self._types: list[tuple[nn.Parameter, torch.dtype]] | None = None
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

    def __getstate__(self) -> dict[str, Any]:
        """A copy runs with modules of its own."""
        state: dict[str, Any] = super().__getstate__()  # pyright: ignore
        return {**state, "_body": None, "_types": None}

    def own_modules(self) -> dict[str, nn.Module]:
        """By their names in the whole model."""
        return {name: self.get_submodule(name) for name in self._names}

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Those that are in none of them."""
        return {name: self.get_parameter(name) for name in self._loose}

    @property
    def types_before(self) -> list[tuple[nn.Parameter, torch.dtype]]:
        """Its floating-point parameters, and what they were in the model."""
        if self._types is None:
            named = [(name, each) for name, each in self.named_parameters() if each.is_floating_point()]
            self._types = [(each, self._whole.dtype_of(name)) for name, each in named]
        return self._types

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


def parts_of(layer: nn.Module) -> list[nn.Module]:
    """The modules of the whole model that a layer is made of."""
    return list(layer.own_modules().values()) if isinstance(layer, ModelLayer) else [layer]


class Body:
    """The whole model around some consecutive layers that are here."""

    def __init__(self, layers: Sequence[ModelLayer]) -> None:
        self._layers = tuple(layers)
        self._whole = layers[0].whole
        self._first, self._last = layers[0].number, layers[-1].number
        self._is_all = self._first == 0 and self._last == len(self._whole.groups) - 1
        self._model: tuple[torch.device, nn.Module] | None = None
        self._inputs: dict[Any, tuple[_Input, ...]] = {}
        self._texts: dict[Any, torch.Tensor] = {}
        self._reads, self._counts = ReadsSeen(), CountsSeen()
        self._told: set[int] = set()
        """Modules that tell what they give, by `id`."""

    def run(
        self, values: Sequence[Any], is_training: bool, before_layer: Callable[[int], None] | None = None
    ) -> Any:
        """From what crosses into the first of the layers to what crosses out of the last."""
        # A text that says what the inputs are called may have stayed on the host.
        device = values[-1].device
        inputs, tensors, crossed = self._unpack(values)
        args = tuple(tensor for each, tensor in zip(inputs, tensors, strict=True) if each.name is None)
        options = {
            each.name: tensor for each, tensor in zip(inputs, tensors, strict=True) if each.name is not None
        }
        dtype = self._whole.changed_dtype(self._layers[0])
        fake = self._whole.faked(device, dtype)
        model = self._assembled(device, fake)
        for each in (fake, model):
            if each.training != is_training:
                each.train(is_training)
        if self._is_all:
            with self._reads.in_glue(inputs, device), self._counts.during(model, self._whole.layer_modules):
                return _Through(before_layer).run(lambda: model(*args, **options))
        key = (inputs, device, dtype, is_training, torch.is_grad_enabled(), _autocast(device))
        for known in self._whole.traces(key):
            try:
                with (
                    self._reads.in_glue(inputs, device),
                    self._counts.during(model, self._whole.layer_modules),
                ):
                    return self._follow(known, model, args, options, inputs, crossed, before_layer)
            except _OtherWay:
                continue
        with self._reads.in_glue(inputs, device):
            fresh = self._whole.trace(key, fake, args, options)
        try:
            with self._reads.in_glue(inputs, device):
                return self._follow(fresh, model, args, options, inputs, crossed, before_layer)
        except _OtherWay as error:
            raise ProgramError(
                f"{error.line}: the forward of {type(model).__name__} goes another way with these values "
                f"than with those that it was looked at with: {error}",
                "let it decide by its inputs, or in the forward of a layer, where nothing is traced",
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
        if len(crossed) != len(known.crossing[self._first]):
            raise _OtherWay(f"{len(crossed)} tensors cross in, not {len(known.crossing[self._first])}")
        arrived = dict(zip(known.crossing[self._first], crossed, strict=True))
        if self._first == 0:
            given = enumerate([*args, *options.values()])
            arrived = {Value(-1, place): each for place, each in given if place in known.inputs}
        args, options = self._with_arrived(args, options, arrived)
        follower = _Follower(known, self._whole.names, self._first, self._last, arrived, before_layer)
        for module in follower.tell:
            self._tell(model.get_submodule(module))
        if self._first == 0 and before_layer is not None:
            before_layer(0)
        try:
            made = follower.run(lambda: model(*args, **options))
        except _Stop:
            return self._pack(inputs, args, options, follower.leaving())
        follower.check(made, "what it returns")
        return made

    def _tell(self, module: nn.Module) -> None:
        """Let a module tell what it gives, from now on."""
        hooks: Any = module._forward_hooks
        if not any(isinstance(hook, _TellSide) for hook in hooks.values()):
            module.register_forward_hook(_TellSide(), with_kwargs=True)

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
            self._model = device, self._whole.assembled(fake, self._layers)
        return self._model[1]

    def _unpack(
        self, values: Sequence[torch.Tensor]
    ) -> tuple[tuple[_Input, ...], list[Any], Sequence[torch.Tensor]]:
        """Descriptions of the model's inputs, those inputs, and other values that have crossed."""
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
            self._placeholder(each, values[-1].device) if each.dtype.is_floating_point else next(rest)
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
            self._texts[inputs, device] = pack_inputs(rows).to(device)
        return (self._texts[inputs, device], *whole, *leaving)


class _Stop(BaseException):
    """The first layer that is not here is reached."""


class _OtherWay(BaseException):
    """The forward does something else than the trace says."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.line = user_line(None)


class _Through(CallWatch):
    """Goes through a forward all layers of which are here."""

    def __init__(self, before_layer: Callable[[int], None] | None) -> None:
        self._before_layer, self._layer = before_layer, -1
        if before_layer is not None:
            self._layer = 0
            before_layer(0)

    def call_here(self, layer: int, name: str, call: Callable[..., Any], args: Any, options: Any) -> Any:
        if self._layer < layer and self._before_layer is not None:
            self._layer = layer
            self._before_layer(layer)
        with out_of_glue():
            return call(*args, **options)

    def call_fake(self, layer: int, name: str, module: nn.Module, args: Any, options: Any) -> Any:
        raise AssertionError(f"{name} is not here")


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
        self._wanted: dict[int, list[Value]] = {}
        """Values that cross out, by the event that makes them."""
        self._crossing = known.crossing[last + 1] if last + 1 < len(known.crossing) else ()
        self.tell: list[str] = []
        """Names of modules here that have to tell what they give."""
        for value in self._crossing:
            self._wanted.setdefault(value.event, []).append(value)
            if value.side and value.event >= self._start:
                side = known.sides[value.event][value.side - 1]
                if not side.attribute:
                    self.tell.append(_joined(known.names[value.event], side.path))
        self._heard: dict[int, list[Any]] = {}
        """Arguments and outputs of the modules in `tell`, in the layer that computes, by `id`."""
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

    def call_fake(self, layer: int, name: str, module: nn.Module, args: Any, options: Any) -> Any:
        if layer > self._last:
            if self.number != self._trace.borders[self._last + 1]:
                raise _OtherWay(f"{name} is called too early")
            raise _Stop
        number = self._next(name)
        made = self._trace.made[number]
        assert made is not None and number < self._start, f"{name} is not here"
        with self.aside():
            replay_calls(module, self._trace.sides[number], None, self._real, self._trace.captures)
        return made.with_real(self._real)

    def call_here(self, layer: int, name: str, call: Callable[..., Any], args: Any, options: Any) -> Any:
        if self._layer < layer:
            self._layer = layer
            if self._before_layer is not None:
                self._before_layer(layer)
        self.check((args, options), f"what {name} is called with")
        self._heard.clear()
        with self.aside():
            made = call(*args, **options)
        number = self._next(name)
        self._check_looks(number, name, made)
        for value in self._wanted.get(number, ()):
            if value.side:
                self._kept[value] = self._side(number, value, call)
        return self._keep(number, made)

    def tell_side(self, module: nn.Module, args: Any, options: Any, output: Any) -> None:
        self._heard.setdefault(id(module), []).append((args, options, output))

    def check(self, value: Any, what: str) -> None:
        """That nothing in it is fake: it would come from a layer that is not here, on a way not seen."""
        if any(isinstance(leaf, FakeTensor) for leaf in tree_flatten(value)[0]):
            raise ProgramError(
                f"{user_line(None)}: {what} comes from another layer on a way that cannot be followed "
                "(a global, a cache)",
                "pass it on as an argument and a result, keep it as an attribute of a module in the layer, "
                "or make one layer of both: LAYERS = [...]",
            )

    def leaving(self) -> list[torch.Tensor]:
        """Values that cross out."""
        made = [self._kept[value] for value in self._crossing]
        self.check(made, f"what layer {self._names[self._last]} hands on")
        return made

    def _check_looks(self, number: int, name: str, made: Any) -> None:
        expected = self._trace.made[number]
        told = [] if expected is None else [_shape_of(leaf) for leaf in expected.leaves]
        given = [_shape_of(leaf) for leaf in tree_flatten(made)[0]]
        if expected is not None and given != told:
            raise ProgramError(
                f"{name} gives {_shown(given)}, and workers without it expect {_shown(told)} for inputs of "
                "these shapes",
                "shapes that a layer gives may depend on the shapes of a micro-batch, and not on its numbers",
            )

    def _side(self, number: int, value: Value, call: Any) -> torch.Tensor:
        """Value that a layer of this process has handed out."""
        sides = self._trace.sides[number]
        side = sides[value.side - 1]
        inner = call.__self__.get_submodule(side.path)
        if side.attribute:
            content: Any = (getattr(inner, side.attribute),)
        else:
            # One that is called several times has told as often, in this order.
            before = [each for each in sides[: value.side - 1] if _is_same_place(each, side)]
            heard = self._heard.get(id(inner), [])
            if len(heard) <= len(before):
                raise _OtherWay(f"{side.path} of {self._trace.names[number]} is not called")
            content = heard[len(before)]
        return tree_flatten(content)[0][value.place]

    def _next(self, name: str) -> int:
        number = self.number
        if number >= len(self._trace.names) or self._trace.names[number] != name:
            raise _OtherWay(f"{name} where {(*self._trace.names, 'its end')[number]} was")
        self.number += 1
        return number

    def _keep(self, number: int, made: Any) -> Any:
        if number in self._wanted:
            leaves = tree_flatten(made)[0]
            for value in self._wanted[number]:
                if not value.side:
                    self._kept[value] = leaves[value.place]
        return made


@dataclass(frozen=True, slots=True)
class _TellSide:
    """A hook that tells a watch what a module inside a layer gives."""

    def __call__(self, module: nn.Module, args: Any, options: Any, output: Any) -> None:
        watch = watching()
        if watch is not None:
            watch.tell_side(module, args, options, output)


def _twin(module: nn.Module, layer: int, name: str) -> nn.Module:
    """An object with the same attributes, calls of which a watch sees; the module stays as it is."""
    kind = type(module)
    called = kind.__call__.__get__(module)

    def call(self: nn.Module, *args: Any, **options: Any) -> Any:
        watch = watching()
        if watch is None:
            return called(*args, **options)
        return watch.call_here(layer, name, called, args, options)

    twin = object.__new__(_with_call(kind, call))
    object.__setattr__(twin, "__dict__", vars(module))
    return twin


def _answer_calls(module: nn.Module, layer: int, name: str) -> None:
    """Let a watch answer calls of a module that has no memory; to everybody else it stays what it is."""
    kind = type(module)

    def call(self: nn.Module, *args: Any, **options: Any) -> Any:
        watch = watching()
        if watch is None:
            return kind.__call__(self, *args, **options)
        return watch.call_fake(layer, name, self, args, options)

    module.__class__ = _with_call(kind, call)


def _with_call(kind: type[Any], call: Callable[..., Any]) -> type[Any]:
    own = {"__call__": call, "__module__": kind.__module__, "boxed_kind": boxed(kind)}
    return type(kind.__name__, (kind,), own)


def _install_recorders(model: nn.Module) -> None:
    """Hooks by which models of `transformers` collect outputs of their layers, if they are to.

    Before the model is copied: else they would be installed on every copy, and once more on layers that move.
    A layer that is compiled is quicker without.
    """
    recorders: Any = sys.modules.get("transformers.utils.output_capturing")
    install = getattr(recorders, "maybe_install_capturing_hooks", None)
    if install is None:
        return
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        wanted = [name for name in dir(config) if name.startswith("output_") and _is_set(config, name)]
        # To install them on a model is to install them on the models in it, whether they have them or not.
        has_some = any(getattr(each, "_output_capturing_hooks_installed", False) for each in module.modules())
        if wanted and hasattr(module, "_can_record_outputs") and not has_some:
            install(module)


def _is_set(config: Any, name: str) -> bool:
    value = getattr(config, name, None)
    return isinstance(value, bool | list | tuple | set) and bool(value)


def _joined(name: str, path: str) -> str:
    return f"{name}.{path}" if path else name


def _is_same_place(one: Side, other: Side) -> bool:
    return (one.path, one.attribute) == (other.path, other.attribute)


def _shape_of(leaf: Any) -> tuple[Any, ...] | None:
    return (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else None


def _shown(looks: Sequence[tuple[Any, ...] | None]) -> str:
    tensors = [f"{str(look[0]).removeprefix('torch.')}{list(look[1])}" for look in looks if look is not None]
    return " ".join(tensors) or "no tensor"


def _named(values: Sequence[torch.Tensor]) -> tuple[list[str | None], Sequence[torch.Tensor]]:
    """Names of inputs, None for those that have none, and the inputs."""
    names: list[str | None] | None = unpacked(values[0])
    return ([None] * len(values), values) if names is None else (names, values[1:])


def _autocast(device: torch.device) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
