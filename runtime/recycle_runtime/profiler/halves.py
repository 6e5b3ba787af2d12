"""The first half of a micro-batch, which goes through the layers beside the whole one.

Small kernels are less efficient: what two halves take longer than the whole is measured layer by layer, in
turn with it, so that both see the same machine.
"""

from collections.abc import Callable
from typing import Any

import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.profiler.stage_run import StageRun, Tensors
from recycle_runtime.program.loading import Program
from recycle_runtime.program.named_inputs import as_tuple


class Halves:
    """Halves of a micro-batch. If it cannot be halved, `obstacle` says why."""

    def __init__(self, batches: MicroBatches, device: torch.device) -> None:
        self.obstacle = ""
        self._inputs: Tensors = ()
        self._target: Any = None
        if not batches.can_halve(0, 0):
            self.obstacle = "a micro-batch does not have an even number of samples in every tensor"
            return
        data, target = batches.item(0, 0, 0, 2)
        self._inputs = tuple(tensor.to(device) for tensor in as_tuple(data))
        self._target = target.to(device) if isinstance(target, torch.Tensor) else target

    def run(self, program: Program, whole: StageRun) -> StageRun | None:
        """The next layer with half of the samples; `whole` is the same with all of them."""
        if self.obstacle:
            return None
        loss = _loss_against(program, self._target) if whole.is_last else None
        half = StageRun(
            whole.module, self._inputs, is_first=whole.is_first, loss=loss, precision=program.precision
        )
        try:
            with torch.no_grad():
                self._inputs = half.forward(half.fresh_inputs())
        except Exception as error:  # The program's own: whatever it cannot do with half a micro-batch.
            self.obstacle = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return None
        return half


def _loss_against(program: Program, target: Any) -> Callable[[Any], torch.Tensor]:
    return lambda output: program.loss(output, target)
