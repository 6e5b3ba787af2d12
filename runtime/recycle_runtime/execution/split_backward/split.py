"""A stage whose backward comes in two halves: the input's gradient now, the weights' when there is time.

Which modules put their weights off, and how: a layer with a unit of its own is the best case. A module that
holds most of its parameters in matrices of its own (attention with packed projections, recurrent layers,
parametrized layers, layers by the user) is deferred whole, or, if it is of `transformers`, product by
product. Everything else is left to autograd: what a module keeps beside its layers (a position table, a
scale), and layers with vectors only, such as norms. The gradients of those fall out of the same kernel as
the input's; to come back for them takes longer, and keeps two activations alive until then. So it is with a
module that would be deferred whole and is small beside another such of the same parent, as the router of a
mixture is beside its experts: the walks cost the host more than its products are worth.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from recycle_runtime.execution.split_backward.autograd_engine import run_backward
from recycle_runtime.execution.split_backward.deferred import (
    Deferrable,
    Hooked,
    Owner,
    Unit,
    refuse_changed,
    run_hooks,
)
from recycle_runtime.execution.split_backward.general import Call, GeneralUnit
from recycle_runtime.execution.split_backward.layers import (
    Convolution,
    ConvolutionUnit,
    EmbeddingUnit,
    LinearUnit,
    TurnedUnit,
    convolution_fits,
    embedding_fits,
    is_turned,
)
from recycle_runtime.program.compiled import is_compiled
from recycle_runtime.program.copies import has_hooks

# Versions of tensors, by which changes in place are noticed, are private to torch.
# pyright: reportPrivateUsage=false

_SMALL = 32
"""Times as many parameters as a module has beside which it is small."""


def choose_units(stage: nn.Module, owner: Owner) -> list[Unit | GeneralUnit]:
    """One for every module whose weights wait; no module belongs to two."""
    chosen = list(_candidates(stage, owner, set()))
    general = [unit for unit in chosen if isinstance(unit, GeneralUnit)]
    inside = {id(module) for unit in general for module in _inside(unit.module)}
    return [unit for unit in chosen if id(unit.module) not in inside]


def _candidates(module: nn.Module, owner: Owner, seen: set[int]) -> Iterator[Unit | GeneralUnit]:
    if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
        return
    seen.add(id(module))
    if is_compiled(module):
        # One kernel computes all its gradients at once.
        return
    unit = _layer_unit(module, owner)
    if unit is not None:
        yield unit
    elif _keeps_its_matrices(module):
        yield GeneralUnit(module, owner)
    else:
        whole = {
            child: _trained(child)
            for child in module.children()
            if _layer_unit(child, owner) is None and _keeps_its_matrices(child)
        }
        largest = max(whole.values(), default=0)
        for child in module.children():
            if child not in whole or _SMALL * whole[child] > largest:
                yield from _candidates(child, owner, seen)


def _trained(module: nn.Module) -> int:
    """Number of its parameters."""
    return sum(each.numel() for each in module.parameters() if each.requires_grad)


def _inside(module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if each is not module]


def _layer_unit(module: nn.Module, owner: Owner) -> Unit | None:
    """A unit for the layer if it computes exactly what torch's layer of that name does."""
    parameters = dict(module.named_parameters(recurse=False))
    weight = parameters.get("weight")
    if type(weight) is not nn.Parameter or not weight.is_floating_point() or "forward" in vars(module):
        return None
    kind = type(module)
    if kind is nn.Linear:
        return LinearUnit(module, owner)
    if is_turned(module):
        return TurnedUnit(module, owner)
    if kind is nn.Embedding and embedding_fits(cast(nn.Embedding, module)):
        return EmbeddingUnit(module, owner)
    if kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) and convolution_fits(cast(Convolution, module)):
        return ConvolutionUnit(cast(Convolution, module), owner)
    return None


def _keeps_its_matrices(module: nn.Module) -> bool:
    """True if at least half of its parameters lie in matrices of its own."""
    if is_parametrized(module):
        return True
    own = sum(
        each.numel() for each in module.parameters(recurse=False) if each.requires_grad and each.dim() > 1
    )
    return own > 0 and 2 * own >= sum(each.numel() for each in module.parameters() if each.requires_grad)


_Kept = tuple[Deferrable, Tensor | None, Tensor, int, int]
"""A layer, its input, the gradient of its output, and the versions of both."""


class WeightWork:
    """Holds what the weights of one micro-batch need, from backward-input until `run`."""

    __slots__ = ("_calls", "_layers")

    def __init__(self) -> None:
        self._layers: list[_Kept] = []
        self._calls: dict[GeneralUnit, list[Call]] = {}

    def add(self, unit: Deferrable, value: Tensor | None, version: int, gradient: Tensor) -> None:
        """Keep the input of a layer, if its weights need it, its version, and the gradient of its output."""
        self._layers.append((unit, value, gradient, version, gradient._version))

    def add_call(self, call: Call) -> None:
        """Keep one call of a module."""
        self._calls.setdefault(call.unit, []).append(call)

    @property
    def held_bytes(self) -> int:
        """Of the tensors that are kept; what the graph of a call has saved is not counted."""
        sizes: dict[int, int] = {}
        for tensor in self._tensors():
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        return sum(sizes.values())

    def cut(self, groups: Sequence[Sequence[Tensor]]) -> "list[WeightWork]":
        """The same in one part for each group of parameters, and one more: after the first so many parts
        nothing adds to gradients of the first so many groups."""
        parts = [WeightWork() for _ in range(len(groups) + 1)]
        layers, self._layers = self._layers, []
        calls, self._calls = self._calls, {}
        begin = 0
        for part, group in zip(parts, groups, strict=False):
            wanted = set(group)
            if any(not wanted.isdisjoint(call.parameters) for each in calls.values() for call in each):
                # Calls come after layers, all of them.
                part._layers, part._calls = layers[begin:], calls
                begin, calls = len(layers), {}
                break
            adds = (number for number, (unit, *_) in enumerate(layers) if not wanted.isdisjoint(unit.trained))
            end = max((1 + number for number in adds), default=0)
            part._layers, begin = layers[begin:end], max(begin, end)
        parts[-1]._layers, parts[-1]._calls = layers[begin:], calls
        return parts

    @property
    def pieces(self) -> int:
        """Of all that is left, those that can be computed one by one, at any time: what one layer's weights
        need, or the weights at one border of a call; weights that have hooks are not among them."""
        return sum(1 for _ in self._simple_layers()) + sum(1 for _ in self._simple_borders())

    def run_some(self, count: int) -> int:
        """Compute so many pieces, if there are so many; how many."""
        done = 0
        for number in list(self._simple_layers())[: max(0, count)]:
            _accumulate(self._layers[number - done], {})
            del self._layers[number - done]
            done += 1
        for call in list(self._simple_borders())[: max(0, count - done)]:
            call.take_border().accumulate()
            done += 1
            if not call.borders:
                # Its graph is not needed any more.
                self._calls[call.unit].remove(call)
        self._calls = {unit: calls for unit, calls in self._calls.items() if calls}
        return done

    def _simple_layers(self) -> Iterator[int]:
        return (
            number for number, (unit, *_) in enumerate(self._layers) if not any(map(has_hooks, unit.trained))
        )

    def _simple_borders(self) -> Iterator[Call]:
        """The call of each."""
        for calls in self._calls.values():
            if not any(has_hooks(parameter) for call in calls for parameter in call.parameters):
                yield from (call for call in calls for _ in call.borders or ())

    @property
    def is_empty(self) -> bool:
        return not self._layers and not self._calls

    def run(
        self, groups: Sequence[Sequence[Tensor]] = (), after_group: Callable[[], None] = lambda: None
    ) -> None:
        """Accumulate every put-off gradient; what a layer needed is dropped as soon as it has run.

        `after_group` is called when all gradients of the first group of parameters are complete, of the
        second and so on.
        """
        if not groups:
            self._run()
            return
        for number, part in enumerate(self.cut(groups)):
            part._run()
            if number < len(groups):
                after_group()

    def _run(self) -> None:
        layers, self._layers = self._layers[::-1], []
        calls, self._calls = self._calls, {}
        hooked: Hooked = {}
        with torch.no_grad():
            while layers:
                _accumulate(layers.pop(), hooked)
        while calls:
            _run_calls(calls.pop(next(iter(calls))))
        run_hooks(hooked)

    def drop(self) -> None:
        """Forget everything."""
        self._layers.clear()
        self._calls.clear()

    def _tensors(self) -> Iterator[Tensor]:
        for _, value, gradient, *_ in self._layers:
            yield gradient
            if value is not None:
                yield value
        for calls in self._calls.values():
            for call in calls:
                yield from call.kept()


def _accumulate(kept: _Kept, hooked: Hooked) -> None:
    unit, value, gradient, version, gradient_version = kept
    if gradient._version != gradient_version or (value is not None and value._version != version):
        refuse_changed(unit)
    unit.accumulate(value, gradient, hooked)


def _run_calls(calls: Sequence[Call]) -> None:
    """All calls of one module in one micro-batch."""
    for call in calls:
        call.check()
    parameters = list(dict.fromkeys(parameter for call in calls for parameter in call.parameters))
    # A walk that ends at a parameter calls its hooks, so there must be one walk for all.
    if not any(has_hooks(parameter) for parameter in parameters):
        for border in (border for call in calls for border in call.borders or ()):
            border.accumulate()
        calls = [call for call in calls if call.borders is None]
    outputs = [output for call in calls for output in call.outputs]
    gradients = [gradient for call in calls for gradient in call.gradients]
    if outputs:
        torch.autograd.backward(outputs, gradients, inputs=parameters)


def prepare(module: nn.Module) -> "Split":
    """Let the module's layers put their weights off. Called as ever, it still trains as ever.

    Whatever changes the layers themselves (parametrizations, hooks in place of weights, a new forward) must
    come before.
    """
    if any(isinstance(_forward(each), Unit | GeneralUnit) for each in module.modules()):
        raise ValueError("this module has a split backward already; call remove() on that first")
    if any(is_lazy(parameter) for parameter in module.parameters()):
        raise ValueError("a lazy layer does not know its shape yet; run the module once before it is split")
    return Split(module)


class Split:
    """The backward of one stage."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._owner = Owner()
        self._units = choose_units(module, self._owner)
        names = {id(each): name for name, each in module.named_modules()}
        for unit in self._units:
            unit.name = names[id(unit.module)]
        self._before = [vars(unit.module).get("forward") for unit in self._units]
        self._defers = self._lowers = False
        self.defer_weights(True)

    @property
    def defers(self) -> bool:
        """True if weights wait."""
        return self._defers

    def defer_weights(self, wanted: bool) -> None:
        """False: from the next forward on the module is as it was, which is quicker where no weights wait."""
        if wanted is self._defers:
            return
        self._defers = wanted
        self._put_in_place()

    def lower_weights(self, wanted: bool) -> None:
        """Keep weights of Linear layers in the precision of autocast from one step to the next, or stop doing
        so; of effect where no weights wait."""
        if wanted is self._lowers:
            return
        self._lowers = wanted
        self._put_in_place()

    @property
    def bytes_held(self) -> int:
        """Of the weights that layers keep in a lower precision."""
        return sum(unit.bytes_held for unit in self._units)

    def refresh(self) -> None:
        """Before a step: cast the weights that layers keep in a lower precision, all together."""
        due = [pair for unit in self._units if self._is_used(unit) for pair in unit.refresh()]
        if due:
            copy: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage]
            with torch.no_grad():
                copy([target for target, _ in due], [parameter for _, parameter in due])

    def _is_used(self, unit: Unit | GeneralUnit) -> bool:
        return self._defers or (self._lowers and isinstance(unit, LinearUnit))

    def _put_in_place(self) -> None:
        self._owner.defers, self._owner.lowers = self._defers, self._lowers
        for unit, before in zip(self._units, self._before, strict=True):
            if self._defers:
                unit.module.forward = unit.forward
            elif self._is_used(unit) and isinstance(unit, LinearUnit):
                unit.module.forward = unit.at_once
            elif _forward(unit.module) is unit:
                del unit.module.forward
                if before is not None:
                    unit.module.forward = before

    def compute(self, code: Callable[..., Any], *arguments: Any) -> Any:
        """Call the module, or the loss: a gradient that is asked for in there is refused where it comes by
        weights that wait."""
        owner = self._owner
        before, owner.is_computing = owner.is_computing, self._defers
        try:
            return code(*arguments)
        finally:
            owner.is_computing = before

    def backward_input(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> WeightWork:
        """Gradients of the inputs, into their `.grad`; what is returned computes those of the weights.

        The gradients given are kept until then: nobody may write to them. If this raises, nothing is kept.
        """
        work = WeightWork()
        self._owner.collecting = work
        try:
            self.backward(outputs, gradients)
        except BaseException:
            work.drop()
            raise
        finally:
            self._owner.collecting = None
        return work

    def backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """All gradients at once; those of weights are still added in place."""
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        if not pairs:
            return
        outputs, gradients = [output for output, _ in pairs], [gradient for _, gradient in pairs]
        if not self._defers:
            run_backward(outputs, gradients)
            return
        self._owner.begin_walk(outputs)
        try:
            run_backward(outputs, gradients)
        finally:
            self._owner.end_walk()

    def remove(self) -> None:
        """Give the modules their own forward back, for good."""
        self.defer_weights(False)
        self.lower_weights(False)
        self._units, self._before = [], []


def _forward(module: nn.Module) -> object:
    return getattr(vars(module).get("forward"), "__self__", None)
