"""A layer whose backward gives the input's gradient at once and leaves the weights' for later.

    forward    input ----------------> output                          an ordinary node of the graph
    backward   input's gradient <----- output's gradient               now
    weights    their gradients <------ input and output's gradient     in `WeightWork.run`

The parameters are no inputs of the node, so autograd accumulates nothing for them. Tensors are kept by
`save_for_backward` alone, never as attributes of the context: so the engine drops them when the node has
run, and notices if they were changed. Weights of what torch.utils.checkpoint computes again do not wait: to
keep it until `run` would cost more than it was asked to save.
"""

# Whether saved tensors have hooks can only be read from what torch calls private.
# pyright: reportPrivateUsage=false

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from recycle_runtime.program.copies import has_hooks
from recycle_runtime.program.second_forward import saving_hook

Hooked = dict[nn.Parameter, Tensor]
"""Gradients of one micro-batch for parameters with hooks: those see the sum, once."""


def add(parameter: nn.Parameter, gradient: Tensor, hooked: Hooked) -> None:
    """Add a gradient that is not shared."""
    if has_hooks(parameter):
        earlier = hooked.get(parameter)
        hooked[parameter] = gradient if earlier is None else earlier + gradient
    elif parameter.grad is None:
        parameter.grad = gradient.to(getattr(parameter, "grad_dtype", None) or parameter.dtype)
    else:
        parameter.grad.add_(gradient)


def run_hooks(hooked: Hooked) -> None:
    """Let autograd accumulate what has waited for this, and call the hooks."""
    if hooked:
        torch.autograd.backward(
            list(hooked), [each.to(parameter.dtype) for parameter, each in hooked.items()]
        )


class Deferrable(Protocol):
    """One computation with parameters that wait."""

    owner: "Owner"

    @property
    def trained(self) -> list[nn.Parameter]:
        """Those that it adds to the gradients of."""
        ...

    def compute(self, ctx: Any, value: Tensor) -> Tensor:
        """The output. Saves what the weights need, then what the input's gradient needs besides."""
        ...

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        """Backward without the weights."""
        ...

    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None:
        """Add to the gradients of the weights."""
        ...


class Collector(Protocol):
    """Takes what waits."""

    def add(self, unit: Deferrable, value: Tensor | None, gradient: Tensor) -> None:
        """Keep the input of a layer, if its weights need it, and the gradient of its output."""
        ...

    def add_call(self, call: Any) -> None:
        """Keep one call of a module: a `general.Call`."""
        ...


class Owner:
    """One for each stage."""

    def __init__(self) -> None:
        self.defers = True
        """True where weights wait at all."""
        self.lowers = False
        """True if layers keep weights in the precision of autocast even where these do not wait."""
        self.collecting: Collector | None = None
        """Takes what is deferred during backward; without one, nothing is deferred."""
        self.anchor = torch.zeros((), requires_grad=True)
        """Makes an output require a gradient when no input does, so that its node runs in backward."""

    def waits(self, hook: Callable[[Tensor], Any] | None) -> bool:
        """True if weights of the present forward wait, where this hook keeps tensors.

        Not if it is computed again in backward, or is that second time: they would hold what checkpointing
        has been asked to drop.
        """
        return self.defers and self.collecting is None and hook is None


NO_SECOND_DERIVATIVE = (
    "a stage with a split backward has no second derivatives; call backward without create_graph"
)


class Unit(ABC):
    """One layer with a `weight` and perhaps a `bias` that wait, as a `Deferrable`. Subclasses say what is
    computed."""

    def __init__(self, module: nn.Module, owner: Owner) -> None:
        self.owner = owner
        self.module: Any = module
        self.original: Callable[[Tensor], Tensor] = module.forward
        # Faster than asking the module for its attributes, and the same dictionary for its whole life.
        self.parameters: dict[str, nn.Parameter | None] = vars(module)["_parameters"]

    @property
    def weight(self) -> nn.Parameter:
        weight = self.parameters["weight"]
        assert weight is not None
        return weight

    @property
    def trained(self) -> list[nn.Parameter]:
        """Those that it adds to the gradients of."""
        return [each for each in self.parameters.values() if each is not None]

    def forward(self, input: Tensor) -> Tensor:
        """In place of the module's forward."""
        weight, bias = self.parameters["weight"], self.parameters.get("bias")
        is_trained = (weight is not None and weight.requires_grad) or (
            bias is not None and bias.requires_grad
        )
        # What torch.compile traces has one kernel for all gradients.
        if not is_trained or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.original(input)
        if not self.owner.waits(saving_hook()):
            return self.at_once(input)
        return deferred(input, None if input.requires_grad else self.owner.anchor, self)

    def at_once(self, input: Tensor) -> Tensor:
        """In place of the module's forward where weights do not wait."""
        return self.original(input)

    @abstractmethod
    def compute(self, ctx: Any, value: Tensor) -> Tensor: ...

    @abstractmethod
    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor: ...

    @abstractmethod
    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None: ...

    @property
    def bytes_held(self) -> int:
        """Of its weights in a lower precision."""
        return 0

    def refresh(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Casts that are due before a step, from a parameter into the memory of its lower precision."""
        return ()


class _Deferred(torch.autograd.Function):
    """The node of one call."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor | None, unit: Deferrable) -> Tensor:
        ctx.unit = unit
        return unit.compute(ctx, value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(NO_SECOND_DERIVATIVE)
        unit: Deferrable = ctx.unit
        saved = ctx.saved_tensors
        gradient: Tensor = gradients[0]
        work = unit.owner.collecting
        if work is not None:
            work.add(unit, saved[0], gradient)
        else:
            hooked: Hooked = {}
            unit.accumulate(saved[0], gradient, hooked)
            run_hooks(hooked)
        return unit.input_gradient(saved, gradient) if ctx.needs_input_grad[0] else None, None, None


_Apply = Callable[[Tensor, Tensor | None, Deferrable], Tensor]
_transformed: _Apply = _Deferred.apply  # pyright: ignore[reportUnknownMemberType]
_plain: _Apply = super(torch.autograd.Function, _Deferred).apply  # pyright: ignore
are_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active


def deferred(value: Tensor, anchor: Tensor | None, unit: Deferrable) -> Tensor:
    """Its output, from this value; the anchor makes it need a gradient where the value needs none."""
    # `Function.apply` does the same, after a look at arguments that only matter to transforms.
    if are_transforms_active():
        return _transformed(value, anchor, unit)
    return _plain(value, anchor, unit)
