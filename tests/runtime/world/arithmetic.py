"""Training with whole numbers: what a layer does to a micro-batch, and what must come of it.

A layer is one number on each tensor-parallel rank, and what counts is their sum. A forward mixes the input
with it, a backward gives a gradient that depends on the micro-batch, on everything that it has passed through
and on the step; an optimizer subtracts the sum. Whoever leaves out a micro-batch, counts one twice, or begins
with another state ends with other numbers. `Chunk`, `Stepper` and what is built on them are the real ones;
what they do with tensors is done here.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch

from recycle_runtime.execution.chunk import Answers, Chunk, Setting
from recycle_runtime.execution.expert_counts import ExpertCounts
from recycle_runtime.execution.optimizer import StepOptions, Stepper, Totals
from recycle_runtime.execution.optimizer.norm import Progress
from recycle_runtime.execution.optimizer.stepper import StepPhase
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode

_PRIME = 1_000_003


def first_value(layer: int, rank: int = 0) -> int:
    """Of a layer that has not been trained."""
    return 1000 + 17 * layer + 5 * rank


def data_of(step: int, microbatch: int) -> int:
    return (step * 7919 + microbatch * 104_729 + 12_345) % _PRIME


def forward(value: int, activation: int) -> int:
    """`value` is the sum over ranks."""
    return (activation * 31 + value) % _PRIME


def backward(value: int, gradient: int) -> int:
    return (gradient * 13 + value + 1) % _PRIME


def weight_gradient(activation: int, gradient: int, rank: int = 0) -> int:
    return (activation + 17 * gradient + 3 * rank) % 1000 + 1


def loss_of(output: int) -> int:
    return output % 1024


class Reference:
    """The same job in a plain loop: the state before each step, and the loss of each."""

    def __init__(self, layers: int, per_step: int, skipped: frozenset[int], ranks: int = 1) -> None:
        self._per_step, self.skipped, self.ranks = per_step, skipped, ranks
        self._states = [
            tuple(tuple(first_value(layer, rank) for layer in range(layers)) for rank in range(ranks))
        ]
        """Before each step: by rank, the number of every layer."""
        self._losses: list[float] = []

    def state(self, step: int, rank: int = 0) -> tuple[int, ...]:
        """Before this step."""
        while len(self._states) <= step:
            self._make_step()
        return self._states[step][rank]

    def loss(self, step: int) -> float:
        self.state(step + 1)
        return self._losses[step]

    def _make_step(self) -> None:
        step, ranks = len(self._states) - 1, self._states[-1]
        values = [sum(column) for column in zip(*ranks, strict=True)]
        sums, loss = self._gradients(step, values)
        made = tuple(
            tuple(v - g for v, g in zip(own, changes, strict=True))
            for own, changes in zip(ranks, sums, strict=True)
        )
        self._states.append(ranks if step in self.skipped else made)
        self._losses.append(float(loss))

    def _gradients(self, step: int, values: list[int]) -> tuple[list[list[int]], int]:
        """By rank, the sum of each layer over all micro-batches; and the loss."""
        sums, loss = [[0] * len(values) for _ in range(self.ranks)], 0
        for microbatch in range(self._per_step):
            activations = [data_of(step, microbatch)]
            for value in values:
                activations.append(forward(value, activations[-1]))
            loss += loss_of(activations[-1])
            gradient = 1
            for number in reversed(range(len(values))):
                for rank, own in enumerate(sums):
                    own[number] += weight_gradient(activations[number], gradient, rank)
                gradient = backward(values[number], gradient)
        return sums, loss


class Number:
    """The parameter of a layer."""

    __slots__ = ("before", "sum", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self.sum: float | None = 0
        """Its gradient; None: none is shown."""
        self.before: int | None = None
        """What undoes the last step; it moves with the layer to another cut."""

    @property
    def grad(self) -> torch.Tensor | None:
        return None if self.sum is None else torch.tensor(self.sum, dtype=torch.float64)

    @grad.setter
    def grad(self, gradient: torch.Tensor | None) -> None:
        self.sum = None if gradient is None else _exact(float(gradient))

    def __repr__(self) -> str:
        return str(self.value)


def _exact(number: float) -> float:
    return int(number) if math.isfinite(number) else number


class _Nothing:
    """Stands for modules, buffers and the like, of which there are none here."""

    def parameters(self) -> Generator[Any]:
        yield from ()

    named_parameters = buffers = named_buffers = parameters
    parts: dict[str, Any]

    def __init__(self) -> None:
        self.parts = {}

    def go_back(self, step: int) -> None: ...

    def begin(self, step: int) -> None: ...

    @contextmanager
    def as_begun(self, step: int) -> Generator[None]:
        yield

    def remove(self) -> None: ...


class LayerStep:
    """The optimizer of one layer."""

    def __init__(self, number: Number) -> None:
        self._number = number
        self.optimizer, self.masters, self.moving = self, None, _Nothing()
        self.state: dict[Any, Any] = {}
        self.param_groups: list[dict[str, Any]] = []
        self._hooks: list[Callable[..., None]] = []

    def register_step_pre_hook(self, hook: Callable[..., None]) -> "_Hook":
        self._hooks.append(hook)
        return _Hook(self._hooks, hook)

    def step(self) -> None:
        for hook in self._hooks:
            hook()
        number = self._number
        if number.sum is not None:
            number.value = cast(int, number.value - number.sum)


class _Hook:
    def __init__(self, hooks: list[Callable[..., None]], hook: Callable[..., None]) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


class _NoExperts:
    """Instead of `execution.resident_experts.ResidentExperts`."""

    stacked: Mapping[int, Any] = {}


class NumberLayer:
    """Instead of `execution.layer.Layer`."""

    state_bytes = 1 << 20
    has_hooks = False
    module = _Nothing()
    computing = torch.nn.Identity()
    untrained: tuple[str, ...] = ()
    shards: tuple[Any, ...] = ()
    owned: Mapping[int, Any] = {}
    experts = _NoExperts()

    def __init__(self, number: int, rank: int = 0) -> None:
        self.number, self.name = number, f"layers.{number}"
        self.title = self.name
        self.weight = Number(first_value(number, rank))
        self.parameters = [self.weight]
        self.parameter_names = [f"{self.name}.weight"]
        self.stepped = LayerStep(self.weight)
        self.buffers = _Nothing()

    @property
    def optimizer(self) -> LayerStep:
        return self.stepped

    def state(self) -> dict[str, Any]:
        return {"value": self.weight.value}

    def load(self, state: dict[str, Any], *, is_stepping: bool = False) -> None:
        self.weight.value = int(state["value"])


class Summand(NamedTuple):
    """Instead of `transport.interface.PeerSum`."""

    tensor: "Gradients"


class Bucket(NamedTuple):
    """Instead of `optimizer.gradients.Bucket`."""

    sums: list[Summand]


class Gradients:
    """Instead of `optimizer.gradients.FlatGradients`."""

    def __init__(self, numbers: Sequence[Number]) -> None:
        self.parameters = list(numbers)
        self.tied_buffers: tuple[Any, ...] = ()
        self.is_shared_out = False
        self._kept: list[float | None] = []

    @property
    def buckets(self) -> list[Bucket]:
        return [Bucket([Summand(self)])]

    @property
    def sums(self) -> tuple[float, ...]:
        return tuple(number.sum or 0 for number in self.parameters)

    def set(self, sums: Sequence[float]) -> None:
        for number, total in zip(self.parameters, sums, strict=True):
            number.sum = total

    def gather(self) -> None: ...

    def sum_experts(self, start_sums: Any) -> None: ...

    def look(self) -> None: ...

    def release(self) -> None: ...

    def zero(self) -> None:
        for number in self.parameters:
            number.sum = 0

    def keep(self) -> None:
        self._kept = [number.sum for number in self.parameters]

    def bring_back(self) -> None:
        for number, kept in zip(self.parameters, self._kept, strict=True):
            number.sum = kept

    def sum_of_squares(self, rank: int) -> float:
        return sum((number.sum or 0) ** 2 for number in self.parameters)

    @contextmanager
    def shown(self, nothing: bool = False) -> Generator[None]:
        hidden = [number.sum for number in self.parameters]
        if nothing:
            for number in self.parameters:
                number.sum = None
        yield
        for number, kept in zip(self.parameters, hidden, strict=True):
            number.sum = kept


class Optimizers:
    """Of all layers of a chunk."""

    def __init__(self, layers: Sequence[NumberLayer]) -> None:
        self._layers = layers
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Any, Any] = {}

    def step(self) -> None:
        for layer in self._layers:
            layer.stepped.step()


class Undo:
    """Of their last step."""

    is_possible = True

    def __init__(self, numbers: Sequence[Number]) -> None:
        self._numbers = numbers

    def save(self) -> None:
        for number in self._numbers:
            number.before = number.value

    def undo(self) -> None:
        for number in self._numbers:
            assert number.before is not None, "the last step cannot be undone"
            number.value, number.before = number.before, None

    def forget(self, why: str) -> None:
        for number in self._numbers:
            number.before = None


class Norm:
    """Instead of `optimizer.norm.NormSum`."""

    def __init__(self) -> None:
        self.first_peer = True
        self._own = Totals(0.0, 0.0)
        self._under_way: Any = None

    def measure(self, squares: float) -> None:
        is_finite = math.isfinite(squares)
        self._own = Totals(float(squares) if is_finite else 0.0, float(not is_finite))
        self._under_way = None

    def start(self, start_sum: Callable[[Totals], Any]) -> None:
        self._under_way = start_sum(self._own if self.first_peer else self._own._replace(squares=0.0))

    @property
    def under_way(self) -> Any:
        """The sum over all workers; None if none is waited for."""
        return self._under_way

    def wait(self) -> Totals:
        assert self._under_way is not None, "the sum was not started"
        return self._under_way.total()

    def own(self) -> Totals:
        return self._own

    def drop(self) -> None:
        self._under_way = None


class NumberStepper(Stepper):
    """The real one, on numbers."""

    def __init__(self, layers: Sequence[NumberLayer], options: StepOptions) -> None:
        numbers = [layer.weight for layer in layers]
        self.options = options
        self.gradients = cast(Any, Gradients(numbers))
        self.optimizer = cast(Any, Optimizers(layers))
        self.undo = cast(Any, Undo(numbers))
        self.norm = cast(Any, Norm())
        self.phase = StepPhase.ACCUMULATING
        self.progress = Progress(0, 0, 0, options.patience)
        self.record = self.totals = None
        self._rank, self._before = 0, self.progress
        self._options_after: list[dict[str, Any]] = []
        self._has_used_sums = False


class NumberData:
    """Instead of the program's data: every micro-batch is known by its number."""

    ends_at: int | None = None
    per_step = 0

    def count_from(self, step: int, item: int) -> None: ...

    def approach(self, step: int) -> None: ...

    def made_before(self, step: int) -> None: ...

    def position(self, step: int) -> None:
        return None

    epoch = position


class NumberChunk(Chunk):
    """The real one, made of numbers."""

    def __init__(
        self, setting: Setting, bundle: Bundle, number: int, layers: Sequence[Any], data: Any
    ) -> None:
        self.setting, self.number, self.data = setting, number, data
        self.layers = tuple(layers)
        self.count, self.cut, self.tensor = len(bundle.chunk_stages), bundle.cut, bundle.tensor
        self.is_fresh = self.is_whole = self.is_shared_out = True
        self.answers = Answers()
        self.arriving = {}
        self.on_settled = None
        self.graphs, self.cannot_capture = {}, ""
        nothing: Any = _Nothing()
        self.module = self.split = self.buffers = nothing
        self.step_counts, self.expert_counts = [], ExpertCounts(torch.nn.Module())
        options = StepOptions(staggered=_is_staggered(bundle, number), patience=2)
        self.stepper = NumberStepper(cast("Sequence[NumberLayer]", self.layers), options)


def _is_staggered(bundle: Bundle, chunk: int) -> bool:
    """True if the plans step before the norm is known."""
    stage = bundle.chunk_stages[chunk]
    worker = next(worker for worker in bundle.workers(0) if worker[1] == stage)
    return any(instruction.opcode is Opcode.VALIDATE for instruction in bundle.stream(0, worker))
