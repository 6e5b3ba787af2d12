"""A layer whose backward gives the input's gradient at once and leaves the weights' for later.

    forward    input ----------------> output                          an ordinary node of the graph
    backward   input's gradient <----- output's gradient               now
    weights    their gradients <------ input and output's gradient     in `WeightWork.run`

The parameters are no inputs of the node, so autograd accumulates nothing for them. For a product the node is
autograd's own, of a weight that wants no gradient, and a hook on it (`wait`) takes the gradient of the
output: that is quicker than a node in Python. Other layers, and products of a value that wants no gradient,
have a node in Python (`deferred`). Calls inside of vmap, torch.func or forward-mode derivatives, and calls
with other parameters than the layer's own, are left to autograd. What is kept is refused if it was changed in
place before its weights used it.

Weights of what torch.utils.checkpoint computes again do not wait: to keep it until `run` would cost more than
it was asked to save.
"""

# Whether saved tensors have hooks can only be read from what torch calls private.
# pyright: reportPrivateUsage=false

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from recycle_runtime.program.copies import has_hooks
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.second_forward import saving_hook

_unsafe_view: Callable[[Tensor, Sequence[int]], Tensor] = torch.ops.aten._unsafe_view.default
_walk_now: Callable[[], int] = torch._C._current_graph_task_id
"""Number of the backward that calls this, -1 outside of any."""
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


def title_of(module: nn.Module, name: str) -> str:
    """Kind and name of a module for messages."""
    kind = type(module).__name__
    return f"{kind} {name}" if name else kind


class Titled(Protocol):
    """A layer that messages name."""

    @property
    def title(self) -> str:
        """Its name there."""
        ...


class Deferrable(Titled, Protocol):
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

    def add(self, unit: Deferrable, value: Tensor | None, version: int, gradient: Tensor) -> None:
        """Keep the input of a layer, if its weights need it, its version, and the gradient of its output."""
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
        self.is_computing = False
        """True while the forward of the stage, or the loss, runs, and weights wait: a walk of autograd that
        begins in there is the user's."""
        self.is_own = False
        """True while `Split` runs a backward."""
        self._walk = -1
        """Autograd's number of that backward."""

    def begin_walk(self, outputs: Sequence[Tensor]) -> None:
        """A backward of these outputs begins: walks that begin within it are the user's."""
        for output in outputs:
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(self._begin)
        self.is_own = True

    def end_walk(self) -> None:
        """It is over."""
        self.is_own, self._walk = False, -1

    def _begin(self, _: Any) -> None:
        self._walk = _walk_now()

    def refuse_others(self, unit: "Titled") -> None:
        """ProgramError if the walk that has come to this layer is one of the user's: autograd would give the
        weights nothing in some of those, and they cannot be told apart."""
        if torch.is_grad_enabled():
            raise ProgramError(f"{unit.title}: {NO_SECOND_DERIVATIVE}", WITHOUT_SPLIT)
        if _walk_now() != self._walk if self.is_own else self.is_computing:
            raise ProgramError(
                f"{unit.title}: the model asks for a gradient by itself (torch.autograd.grad, backward), and "
                "weights of this layer wait in plans with decoupled backwards",
                WITHOUT_SPLIT,
            )

    def take(self, unit: Deferrable, value: Tensor | None, version: int, gradient: Tensor) -> None:
        """Keep what the weights of a layer need, or accumulate at once if nobody collects it."""
        self.refuse_others(unit)
        if (work := self.collecting) is not None:
            work.add(unit, value, version, gradient)
            return
        if value is not None and value._version != version:
            refuse_changed(unit)
        hooked: Hooked = {}
        unit.accumulate(value, gradient, hooked)
        run_hooks(hooked)

    def waits(self, hook: Callable[[Tensor], Any] | None) -> bool:
        """True if weights of the present forward wait, where this hook keeps tensors.

        Not if it is computed again in backward, or is that second time: they would hold what checkpointing
        has been asked to drop.
        """
        return self.defers and not self.is_own and hook is None


NO_SECOND_DERIVATIVE = (
    "a stage with a split backward has no second derivatives; call backward without create_graph"
)
WITHOUT_SPLIT = "leave `decouple` out of the techniques of the job"


def refuse_changed(unit: Titled) -> NoReturn:
    """The input of a layer, or its output's gradient, is not what it was: its weights cannot wait."""
    raise ProgramError(
        f"{unit.title}: its input, or the gradient of its output, was changed in place before the gradients "
        "of its weights were computed, which wait in plans with decoupled backwards",
        f"give the layer a tensor of its own (clone), or {WITHOUT_SPLIT}",
    )


class Unit(ABC):
    """One layer with a `weight` and perhaps a `bias` that wait, as a `Deferrable`. Subclasses say what is
    computed."""

    def __init__(self, module: nn.Module, owner: Owner) -> None:
        self.owner = owner
        self.module: Any = module
        self.name = ""
        """In the stage."""
        self.original: Callable[[Tensor], Tensor] = module.forward
        # Faster than asking the module for its attributes, and the same dictionary for its whole life.
        self.parameters: dict[str, nn.Parameter | None] = vars(module)["_parameters"]
        self._own = self.parameters["weight"], self.parameters.get("bias")

    @property
    def title(self) -> str:
        """Name of the layer for messages."""
        return title_of(self.module, self.name)

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
        if not self.has_own(weight, bias) or is_transformed():
            return self.original(input)
        if input.is_nested or not self.owner.waits(saving_hook()):
            # Rows of nested tensors cannot be counted.
            return self.at_once(input)
        if not input.requires_grad:
            return deferred(input, self.owner.anchor, self)
        return self.waiting(input)

    def has_own(self, weight: Tensor | None, bias: Tensor | None) -> bool:
        """False if others are there, perhaps for one call only, as torch.func.functional_call has it."""
        return weight is self._own[0] and bias is self._own[1]

    def waiting(self, input: Tensor) -> Tensor:
        """The output, of an input that wants a gradient, where weights wait."""
        return deferred(input, None, self)

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
        output = unit.compute(ctx, value)
        # Autograd lets nobody change a view in place that such a node has made.
        return _unsafe_view(output, output.shape) if output._is_view() else output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        unit: Deferrable = ctx.unit
        saved = ctx.saved_tensors
        value, gradient = saved[0], gradients[0]
        unit.owner.take(unit, value, 0 if value is None else value._version, gradient)
        return unit.input_gradient(saved, gradient) if ctx.needs_input_grad[0] else None, None, None


class _Waiting:
    """Hook on the node of a product: its weights get what they need when its output's gradient is there."""

    __slots__ = ("_unit", "_value", "_version")

    def __init__(self, unit: Deferrable, value: Tensor | None) -> None:
        self._unit, self._value = unit, value
        self._version = 0 if value is None else value._version

    def __call__(self, _: Any, gradients: tuple[Tensor | None]) -> None:
        (gradient,) = gradients
        if gradient is None:
            return
        unit = self._unit
        unit.owner.take(unit, self._value, self._version, gradient)
        if unit.owner.is_own:
            # The graph may be held for longer.
            self._value = None


def wait(output: Tensor, unit: Deferrable, value: Tensor | None) -> None:
    """Let the weights of a unit, which has made this of the value, get their gradients from the output's."""
    # Whoever changes a view in place gives it another node: that of its base stays.
    base: Any = output._base if output._is_view() else output
    node = base.grad_fn
    assert node is not None
    # Behind the hooks that a user sets on the output or on the node: those may change the gradient.
    node.register_hook(_Waiting(unit, value))


_Apply = Callable[[Tensor, Tensor | None, Deferrable], Tensor]
_apply: _Apply = super(torch.autograd.Function, _Deferred).apply  # pyright: ignore
"""`Function.apply` does the same, after a look at arguments that only matter to transforms."""
_are_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active


def is_transformed() -> bool:
    """True inside of vmap and torch.func, and where forward-mode derivatives are computed."""
    return _are_transforms_active() or forward_ad._current_level >= 0


def deferred(value: Tensor, anchor: Tensor | None, unit: Deferrable) -> Tensor:
    """Its output, from this value; the anchor makes it need a gradient where the value needs none."""
    return _apply(value, anchor, unit)
