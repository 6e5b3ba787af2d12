"""What a worker does once per iteration for its parameters, measured as it is done in training."""

from typing import Any

import torch

from recycle_runtime.execution.optimizer import StepOptions, Stepper, Totals
from recycle_runtime.profiler.timing import NOTHING, Stopwatch, Timing
from recycle_runtime.program.loading import Program

_WARM_UP = 2
_CALM = Totals(0.0, 0.0)
"""A norm that lets every step stand."""


class OptimizerRun:
    """The optimizer of one stage, with its gradients in the place where training has them."""

    def __init__(self, program: Program, module: torch.nn.Module) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._optimizer = program.optimizer(self._parameters) if self._parameters else None
        self._stepper = Stepper(self._optimizer, self._parameters, StepOptions(program.clip_norm))

    @property
    def gradient_bytes(self) -> int:
        """What is summed over peers."""
        return sum(flat.numel() * flat.element_size() for flat in self._stepper.gradients.buffers)

    @property
    def state_bytes(self) -> int:
        """What the optimizer keeps beside the parameters."""
        if self._optimizer is None:
            return 0
        states: list[dict[str, Any]] = list(self._optimizer.state.values())
        kept = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(value.numel() * value.element_size() for value in kept)

    def time(self, watch: Stopwatch, repeat: int) -> Timing:
        """Of a step, with what makes it possible to take it back."""
        if self._optimizer is None:
            return NOTHING
        times = [self._one_step(watch) for _ in range(_WARM_UP + repeat)]
        return Timing.of(times[_WARM_UP:])

    def _one_step(self, watch: Stopwatch) -> int:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.fill_(1e-3)
        self._stepper.reduce(_nobody_else)
        _, time = watch.time(lambda: self._stepper.step(_nobody_else))
        self._stepper.settle(_CALM)
        return time


def _nobody_else(_: torch.Tensor) -> None:
    """The sum over one worker."""
