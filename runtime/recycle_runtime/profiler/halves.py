"""The first half of a micro-batch, which goes through the layers beside the whole one.

Small kernels are less efficient: what two halves take longer than the whole is measured layer by layer, in
turn with it, so that both see the same machine.
"""

import torch

from recycle_runtime.profiler.passing import AlikeMicroBatches, Passing
from recycle_runtime.profiler.stage_run import StageRun
from recycle_runtime.program.loading import Program


class Halves:
    """Halves of a micro-batch. If it cannot be halved, `obstacle` says why."""

    def __init__(self, program: Program, kind: AlikeMicroBatches, device: torch.device) -> None:
        self.obstacle = ""
        self._half = None if kind.half is None else Passing(program, kind.half, device)
        if self._half is None:
            self.obstacle = "a micro-batch does not have an even number of samples in every tensor"

    def run(self, whole: StageRun) -> StageRun | None:
        """The next layer with half of the samples; `whole` is the same with all of them."""
        if self.obstacle or self._half is None:
            return None
        half = self._half.run(whole.module, is_first=whole.is_first, is_last=whole.is_last)
        try:
            self._half.pass_on(half)
        except Exception as error:  # The program's own: whatever it cannot do with half a micro-batch.
            self.obstacle = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return None
        return half
