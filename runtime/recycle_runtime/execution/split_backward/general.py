"""Any module with parameters of its own: its forward builds a graph of its own, which backward walks twice.

    forward    input | detached input --> outputs | output      the graph in between stays inside
    backward   input's gradient <-- walk to the inputs          now
    weights    their gradients <--- walk to the parameters      in `WeightWork.run`

The second walk starts where the way to the parameters leaves the way to the inputs. The whole graph is kept
for it, so this is for modules that have no unit of their own. A module that is not closed, that takes or
gives gradients past its arguments and results, is left to autograd: its parameters get theirs with the input.
"""

# That a module has hooks on its backward can only be read from attributes that torch calls private.
# pyright: reportPrivateUsage=false

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recycle_runtime.execution.split_backward.borders import Border, find_borders, gradients_at
from recycle_runtime.execution.split_backward.deferred import Owner, is_transformed, refuse_changed, title_of
from recycle_runtime.execution.split_backward.products import Products, is_known
from recycle_runtime.program.second_forward import saving_hook

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class UnknownKindError(Exception):
    """A value of another kind, which may hide tensors."""


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with every tensor replaced, in a fixed order."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, _PLAIN):
        return value
    kind: Any = type(value)
    if kind is tuple or kind is list:
        return kind(map_tensors(function, item) for item in value)
    if kind is dict or kind is OrderedDict:
        return kind((key, map_tensors(function, item)) for key, item in value.items())
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*(map_tensors(function, item) for item in value))
    raise UnknownKindError(kind.__name__)


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors of the structure, in the order of `map_tensors`."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(keep, value)
    return found


class Trial:
    """Records one ordinary call of a module, made on aliases of its inputs."""

    def __init__(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        self._module = module
        self._aliases = {id(tensor): tensor.view_as(tensor) for tensor in inputs}
        self._versions = self._changes()
        # Not only their numbers: those are given out again.
        self._remembered = _remembered(module)

    def alias(self, tensor: Tensor) -> Tensor:
        """Tensor to call the module with in place of an input."""
        return self._aliases.get(id(tensor), tensor)

    def shows_closed(self, result: Any) -> bool:
        """True if it takes gradients from its results alone, to its inputs and parameters alone."""
        try:
            outputs = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
        except UnknownKindError:
            return False
        if any(output.grad_fn is None for output in outputs) or self._changes() != self._versions:
            return False
        known = {id(tensor) for tensor in self._remembered}
        if any(id(tensor) not in known for tensor in _remembered(self._module)):
            return False
        starts: set[Any] = {alias.grad_fn for alias in self._aliases.values()}
        own = {id(parameter) for parameter in self._module.parameters()}
        return all(id(leaf) in own for leaf in _leaves(outputs, starts))

    def shows_products(self, result: Any) -> bool:
        """True if no gradient comes to a matrix of the module in any other way."""
        try:
            outputs = [tensor for tensor in tensors_of(result) if tensor.requires_grad]
        except UnknownKindError:
            return False
        matrices = {id(each) for each in self._module.parameters() if each.requires_grad and each.dim() > 1}
        starts: set[Any] = {alias.grad_fn for alias in self._aliases.values()}
        return all(id(leaf) not in matrices for leaf in _leaves(outputs, starts))

    def _changes(self) -> list[int]:
        return [alias._version for alias in self._aliases.values()]  # pyright: ignore[reportPrivateUsage]


def _leaves(outputs: Iterable[Tensor], starts: set[Any]) -> Iterable[Tensor]:
    """Every leaf that gets a gradient from the outputs, except through the given nodes."""
    waiting: list[Any] = [output.grad_fn for output in outputs]
    seen = set(starts)
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(each for each, _ in node.next_functions)


def _remembered(module: nn.Module) -> list[Tensor]:
    """Computed tensors in the attributes of the module and what is in it."""
    found: list[Tensor] = []
    for each in module.modules():
        for value in vars(each).values():
            try:
                found += tensors_of(value)
            except UnknownKindError:
                continue
    return [tensor for tensor in found if tensor.grad_fn is not None]


class GeneralUnit:
    """One module, with everything in it.

    Its first call runs as ever, to see whether the module is closed. One of a known kind is called once more
    before: that shows whether its matrices are used in products that can wait.
    """

    def __init__(self, module: nn.Module, owner: Owner) -> None:
        self.owner = owner
        self.module: Any = module
        self.original: Callable[..., Any] = module.forward
        self.name = ""
        """In the stage."""
        self.closed: bool | None = None
        self.has_borders = True
        self._products = Products(owner, self, module)
        self._by_products: bool | None = None if is_known(module) else False

    @property
    def title(self) -> str:
        """Name of the module for messages."""
        return title_of(self.module, self.name)

    @property
    def bytes_held(self) -> int:
        """Of its weights in a lower precision."""
        return self._products.bytes_held

    def refresh(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Casts that are due before a step, from a parameter into the memory of its lower precision."""
        return self._products.refresh()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """In place of the module's forward."""
        if self._by_products and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return self._products.run(lambda: self.original(*args, **kwargs))
        inputs = self._inputs(args, kwargs)
        if inputs is None or not (trained := self._trained()):
            return self.original(*args, **kwargs)
        if self._by_products is None:
            trial = Trial(self.module, inputs)
            args, kwargs = map_tensors(trial.alias, (args, kwargs))
            result = self._products.run(lambda: self.original(*args, **kwargs))
            self._by_products = trial.shows_products(result)
            return result
        if self.closed is None:
            trial = Trial(self.module, inputs)
            args, kwargs = map_tensors(trial.alias, (args, kwargs))
            result = self.original(*args, **kwargs)
            self.closed = trial.shows_closed(result)
            return result
        call = Call(self, trained, args, kwargs, inputs)
        anchor = None if inputs else self.owner.anchor
        outputs = iter(_enclosed(call, anchor, *inputs))
        # The outputs lead to the call; if it held them, a forward without backward would never be freed.
        result, call.result = call.result, None
        return map_tensors(lambda _: next(outputs), result)

    def _inputs(self, args: Any, kwargs: Any) -> list[Tensor] | None:
        """The tensors that want a gradient, each once; None if nothing is to be deferred."""
        if self.closed is False or not torch.is_grad_enabled():
            return None
        if torch.compiler.is_compiling() or is_transformed() or not self.owner.waits(saving_hook()):
            return None
        try:
            tensors = tensors_of((args, kwargs))
        except UnknownKindError:
            return None
        return list({id(tensor): tensor for tensor in tensors if tensor.requires_grad}.values())

    def _trained(self) -> Sequence[nn.Parameter]:
        """Parameters that want a gradient; none if a module inside has hooks on its backward, which two walks
        would call twice, or if something computed stands for a parameter."""
        found: dict[int, nn.Parameter] = {}
        for module in self.module.modules():
            if module is not self.module and (module._backward_hooks or module._backward_pre_hooks):
                return ()
            for parameter in module._parameters.values():
                if parameter is not None and parameter.grad_fn is not None:
                    return ()
                if parameter is not None and parameter.requires_grad:
                    found[id(parameter)] = parameter
        return list(found.values())


class Call:
    """One call of a module: from its arguments to its results, then from gradients to gradients."""

    def __init__(
        self,
        unit: GeneralUnit,
        parameters: Sequence[nn.Parameter],
        args: Any,
        kwargs: Any,
        inputs: Sequence[Tensor],
    ) -> None:
        self.unit, self.parameters = unit, parameters
        self.arguments: Any = (args, kwargs)
        self.leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        self._inner = {id(tensor): leaf for tensor, leaf in zip(inputs, self.leaves, strict=True)}
        self.result: Any = None
        self.outputs: Sequence[Tensor] = ()
        self.gradients: Sequence[Tensor] = ()
        self._versions: Sequence[int] = ()
        self.borders: Sequence[Border] | None = None

    def run(self) -> list[Tensor]:
        """Forward, on inputs that belong to the inner graph."""
        args, kwargs = map_tensors(lambda tensor: self._inner.get(id(tensor), tensor), self.arguments)
        self.arguments = None
        self._inner = {}
        with torch.enable_grad():
            result = self.unit.original(*args, **kwargs)
        self.outputs = tensors_of(result)
        detached = [output.detach() for output in self.outputs]
        given = iter(detached)
        self.result = map_tensors(lambda _: next(given), result)
        return detached

    def take(self, gradients: Sequence[Tensor | None]) -> None:
        """Keep the outputs that have a gradient, and it."""
        pairs = [(o, g) for o, g in zip(self.outputs, gradients, strict=True) if g is not None]
        self.outputs = [output for output, _ in pairs]
        self.gradients = [gradient for _, gradient in pairs]
        self._versions = [gradient._version for gradient in self.gradients]

    def input_gradients(self) -> Sequence[Tensor | None]:
        """Backward without the parameters; the graph stays."""
        if not self.leaves or not self.outputs:
            return [None] * len(self.leaves)
        self.borders = self._find_borders()
        edges = [edge for border in self.borders or () for edge in border.edges]
        found = gradients_at([*self.leaves, *edges], self.outputs, self.gradients)
        rest = iter(found[len(self.leaves) :])
        for border in self.borders or ():
            border.gradients = [next(rest) for _ in border.edges]
        return found[: len(self.leaves)]

    def _find_borders(self) -> Sequence[Border] | None:
        if not self.unit.has_borders:
            return None
        borders = find_borders(self.outputs, self.leaves, self.parameters)
        self.unit.has_borders = borders is not None
        return borders

    def take_border(self) -> Border:
        """The first one, which whoever takes it accumulates."""
        self.check()
        assert self.borders
        first, *self.borders = self.borders
        return first

    def all_gradients(self) -> Sequence[Tensor | None]:
        """Those of the inputs; those of the parameters are accumulated."""
        if self.outputs:
            torch.autograd.backward(self.outputs, self.gradients, inputs=[*self.leaves, *self.parameters])
        return [leaf.grad for leaf in self.leaves]

    def kept(self) -> Iterator[Tensor]:
        """The tensors it holds, besides those that its graph has saved."""
        yield from self.outputs
        yield from self.gradients
        for border in self.borders or ():
            yield from (gradient for gradient in border.gradients if gradient is not None)

    def check(self) -> None:
        """A gradient that came to a leaf on its own did not go on to where the input came from; one that was
        kept must not have been changed."""
        if any(g._version != before for g, before in zip(self.gradients, self._versions, strict=True)):
            refuse_changed(self.unit)
        if any(leaf.grad is not None for leaf in self.leaves):
            kind = type(self.unit.module).__name__
            raise RuntimeError(
                f"{kind} was given a gradient past its results; return every tensor that the loss needs"
            )


class _Enclosed(torch.autograd.Function):
    """The node of one call."""

    @staticmethod
    def forward(ctx: Any, call: Call, anchor: Tensor | None, *inputs: Tensor) -> tuple[Tensor, ...]:
        detached = call.run()
        ctx.call = call
        ctx.set_materialize_grads(False)
        pairs = zip(call.outputs, detached, strict=True)
        ctx.mark_non_differentiable(*(outside for inside, outside in pairs if not inside.requires_grad))
        return tuple(detached)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call: Call | None = ctx.call
        if call is None:
            raise RuntimeError("backward a second time through the same graph")
        call.unit.owner.refuse_others(call.unit)
        ctx.call = None
        call.take(gradients)
        work = call.unit.owner.collecting
        if work is None:
            return None, None, *call.all_gradients()
        wanted = call.input_gradients()
        work.add_call(call)
        return None, None, *wanted


_enclosed: Callable[..., Sequence[Tensor]] = _Enclosed.apply  # pyright: ignore[reportUnknownMemberType]
