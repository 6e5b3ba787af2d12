"""Reduction, optimizer and validation of one worker's stage, as its stream asks for them."""

from collections.abc import Sequence

import torch

from recycle_runtime.optimizer import StepOptions, Stepper, Verdict
from recycle_runtime.program import Program
from recycle_runtime.transport import Transport


class StageStepper:
    """Connects the stepper to the other workers."""

    def __init__(
        self,
        program: Program,
        parameters: Sequence[torch.nn.Parameter],
        transport: Transport,
        *,
        staggered: bool,
        part: int,
        is_first_peer: bool,
    ) -> None:
        options = StepOptions(clip_norm=program.clip_norm, staggered=staggered, recoverable=False)
        optimizer = program.optimizer(parameters) if parameters else None
        self.stepper = Stepper(optimizer, parameters, options, tensor_parallel_rank=part)
        self.stepper.norm.first_peer = is_first_peer
        self._transport = transport

    def reduce(self) -> bool:
        """Sum gradients over peers; False if the last step was made again, and this one must be too."""
        if self.stepper.settle() is Verdict.REDO:
            self.stepper.discard()
            return False
        self.stepper.reduce(self._transport.start_peer_sum)
        return True

    def step(self) -> None:
        self.stepper.step(self._transport.start_sum)

    def validate(self) -> None:
        self.stepper.validate(self._transport.start_sum)

    def finish(self) -> None:
        """After the last step: it stands, or is made again."""
        self.stepper.settle()
