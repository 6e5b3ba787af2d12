"""Running statistics of norms (BatchNorm), as one loop over all micro-batches of a step leaves them.

    one process     running = (1 - m) running + m x        for each micro-batch, in their order
    workers         each begins every forward with zeros, and adds up what forwards leave there, weighed by
                    what the micro-batches behind it would have left of it; REDUCE sums that over peers

An update is linear in what was there before, so the sum is what one process has, wherever micro-batches ran
and in whatever order. Peers have equal statistics, and evaluation and checkpoints those of a plain loop.
"""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from recycle_runtime.execution.step_sum import StartSum, StepCounts, StepSum
from recycle_runtime.program.errors import ProgramError

_FIELDS = ("running_mean", "running_var")


class NormStatistics(StepCounts):
    """Those of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        found = ((name, each) for name, each in module.named_modules() if isinstance(each, _NormBase))
        self.norms = [_Norm(name, each) for name, each in found if each.track_running_stats]
        self._active: list[_Norm] = []
        """Those that learn in this step: a norm in evaluation mode stays as it is."""
        self._count = 0
        self.sum = StepSum(self._add, before_late=lambda: self.begin(self._count))

    def begin(self, count: int) -> None:
        """With the buffers that the step begins from."""
        self.sum.drop()
        self._active = [norm for norm in self.norms if norm.learns]
        self._count = count
        for norm in self._active:
            norm.begin()

    def before_forward(self, index: int, share: float) -> None:
        for norm in self._active:
            norm.clear(index)

    def after_forward(self, index: int) -> None:
        for norm in self._active:
            norm.take(index, self._count)

    def start(self, start_sum: StartSum) -> None:
        if self._active and not self.sum.has_begun:
            self.sum.begin(torch.cat([part for norm in self._active for part in norm.parts()]), start_sum)

    def _add(self, whole: torch.Tensor) -> None:
        """Buffers are then those of one process."""
        with torch.no_grad():
            for norm in self._active:
                whole = norm.finish(whole, self._count)
        self._active = []


class _Norm:
    """One norm, within a step."""

    def __init__(self, name: str, module: _NormBase) -> None:
        self._name, self._module = name, module
        self._begun: list[torch.Tensor] = []
        self._totals: list[torch.Tensor] = []
        self._calls: int | None = None
        """In the forward of one micro-batch, once one has been seen."""
        self._forwards = 0
        self._batches = torch.zeros(())
        """`num_batches_tracked` when the step began."""
        self._first = 0
        """The same as a number, where the momentum depends on it."""
        self._before = 0
        """The same before the forward that runs now."""

    @property
    def learns(self) -> bool:
        """True if forwards change it now."""
        module = self._module
        return module.training and module.num_batches_tracked is not None and len(self._running()) == 2

    def begin(self) -> None:
        self._begun = [each.to(_precision(each), copy=True) for each in self._running()]
        self._totals = [torch.zeros_like(each) for each in self._begun]
        self._batches = self._tracked().clone()
        self._first = int(self._batches) if self._module.momentum is None else 0
        self._forwards = 0

    def clear(self, index: int) -> None:
        for each in self._running():
            each.zero_()
        if self._module.momentum is None:
            self._tracked().fill_(self._first + index)
        if self._looks:
            self._before = int(self._tracked())

    def take(self, index: int, count: int) -> None:
        if self._looks:
            self._look(int(self._tracked()) - self._before)
        assert self._calls is not None
        self._forwards += 1
        weight = self._left_of(self._calls * (count - 1 - index), self._first + index + 1, count)
        for total, each in zip(self._totals, self._running(), strict=True):
            total.add_(each, alpha=weight)

    @property
    def _looks(self) -> bool:
        """True if the calls of a forward are counted: on a GPU each look waits for the device."""
        return self._calls is None or not self._tracked().is_cuda

    def _look(self, calls: int) -> None:
        if self._module.momentum is None and calls > 1:
            raise ProgramError(
                f"the norm {self._name} is called {calls} times for a micro-batch and averages over all of "
                "them (momentum=None): its running statistics would not be those of one process",
                "give it a momentum, or make it several norms",
            )
        if self._calls not in (None, calls):
            raise ProgramError(
                f"the norm {self._name} is called {self._calls} times for one micro-batch and {calls} times "
                "for another: its running statistics would not be those of one process",
                "call it alike for all, or give it track_running_stats=False",
            )
        self._calls = calls

    def parts(self) -> list[torch.Tensor]:
        """Tensors that peers add up: both statistics, and the number of calls."""
        calls = torch.full_like(self._totals[0][:1], self._forwards * (self._calls or 0))
        return [*self._totals, calls]

    def finish(self, whole: torch.Tensor, count: int) -> torch.Tensor:
        """Take its own from the beginning of a sum over peers, and give the rest."""
        size = self._totals[0].numel()
        mean, variance, calls, rest = whole.split([size, size, 1, len(whole) - 2 * size - 1])
        momentum = self._module.momentum
        left = self._first / (self._first + count) if momentum is None else (1.0 - momentum) ** calls
        for each, begun, added in zip(self._running(), self._begun, (mean, variance), strict=True):
            each.copy_(begun * left + added)
        self._tracked().copy_(self._batches + calls[0].round().to(self._batches.dtype))
        return rest

    def _left_of(self, calls: int, after: int, count: int) -> float:
        """Of one unit: what so many calls that follow leave of it, the next of them after `after` batches."""
        momentum = self._module.momentum
        return after / (self._first + count) if momentum is None else (1.0 - momentum) ** calls

    def _running(self) -> list[torch.Tensor]:
        found: list[Any] = [getattr(self._module, field) for field in _FIELDS]
        # Autograd keeps statistics for a backward that, in training, has no use for them: these are no writes
        # that it has to know of.
        return [each.data for each in found if each is not None]

    def _tracked(self) -> torch.Tensor:
        tracked = self._module.num_batches_tracked
        assert tracked is not None
        return tracked.data


def _precision(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
