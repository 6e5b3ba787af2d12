"""The part of a model that a worker process holds: it outlives groups, plans and failures."""

from collections.abc import Callable
from typing import Any

import torch

from recycle_runtime.execution.kept_buffers import BufferHistory
from recycle_runtime.execution.optimizer import StepOptions, Stepper, Totals, Verdict
from recycle_runtime.execution.split_backward import Split, prepare
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.program.loading import Program
from recycle_runtime.program.microbatches import MicroBatches
from recycle_runtime.protocol.messages import Report, Sums
from recycle_runtime.transport.interface import TensorSpec, Transport


class Stage:
    """Module, optimizer and data of one stage, as every peer of it has them."""

    def __init__(
        self,
        program: Program,
        bundle: Bundle,
        stage: int,
        seed: int,
        device: torch.device,
        *,
        part: int = 0,
        group: Any = None,
        recoverable: bool = True,
    ) -> None:
        self.program, self.stage, self.part, self.seed = program, stage, part, seed
        self.is_fresh = True
        """As built from the seed, and no part of any run yet."""
        self.arriving: dict[str, tuple[TensorSpec, ...]] = {}
        """What comes in from the stage before, by the shape of the micro-batch, as far as it is known."""
        self.is_whole = True
        """False while another's state is on its way here."""
        self.on_settled: Callable[[], None] | None = None
        """Called when the last step stands and nothing of the next one has been used: a time to copy it."""
        self.module = build_module(program, stage, bundle.stages, seed, group).to(device)
        self.split: Split = prepare(self.module)
        self.buffers = BufferHistory(self.module)
        is_edge = stage in (0, bundle.stages - 1)
        per_step = bundle.pipelines * bundle.microbatches
        self.data = MicroBatches(program, seed, per_step, keep_items=is_edge)
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        options = StepOptions(
            clip_norm=program.clip_norm, staggered=_is_staggered(bundle, stage), recoverable=recoverable
        )
        optimizer = program.optimizer(parameters) if parameters else None
        self.stepper = Stepper(optimizer, parameters, options, tensor_parallel_rank=part)

    @property
    def is_part_of_run(self) -> bool:
        """False for one that waits to join."""
        return self.is_whole and not self.is_fresh

    @property
    def applied(self) -> int:
        """Steps that the parameters have seen."""
        return self.stepper.progress.steps

    def report(self) -> Report:
        """What this process can offer when the survivors agree where to go on."""
        if not self.is_whole:
            return Report(None, is_fresh=False)
        known = self.stepper.totals
        own = self.stepper.unsettled
        return Report(
            self.applied,
            self.is_fresh,
            None if known is None else Sums(*known),
            self.applied - (own is not None),
            None if own is None else Sums(*own),
        )

    def settled(self) -> None:
        """The state is that after `applied` steps, whatever has been computed of the next one."""
        if self.on_settled is not None:
            self.on_settled()

    def stand(self, step: int, sums: Sums | None) -> None:
        """Go back to where `step` begins, with the verdict on the step before it; gradients are dropped."""
        if self.applied == step + 1:
            self.stepper.rollback()
            self.know(sums)
        else:
            if self.stepper.unsettled is not None:
                assert sums is not None, "nobody knows the verdict on the last step"
                self.stepper.settle(Totals(*sums))
            self.stepper.discard()
        assert self.applied == step, f"this worker stands at step {self.applied}, not {step}"
        self.buffers.go_back(step)
        self.is_fresh = False

    def know(self, sums: Sums | None) -> None:
        """Keep the verdict on the last step, for others who may still lack it after the next failure."""
        if sums is not None:
            self.stepper.totals = Totals(*sums)


class StageSteps:
    """Reduction, optimizer and validation as a stream asks for them, in one group of workers."""

    def __init__(self, stage: Stage, transport: Transport, *, is_first_peer: bool) -> None:
        self._stage, self._stepper, self._transport = stage, stage.stepper, transport
        self._stepper.norm.first_peer = is_first_peer

    def reduce(self) -> bool:
        """Sum gradients over peers; False if the last step was made again, and this one must be too."""
        verdict = self._stepper.settle()
        self._stage.settled()
        if verdict is Verdict.REDO:
            self._stepper.discard()
            return False
        self._stepper.reduce(self._transport.start_peer_sum)
        return True

    def step(self) -> None:
        self._stepper.step(self._transport.start_sum)

    def validate(self) -> None:
        self._stepper.validate(self._transport.start_sum)

    def finish(self) -> None:
        """At a boundary: the last step stands, or is made again."""
        self._stepper.settle()
        self._stage.settled()


def build_module(program: Program, stage: int, stages: int, seed: int, group: Any = None) -> torch.nn.Module:
    """A stage as every peer of it starts: the same numbers on each of them."""
    torch.manual_seed((seed * 1_000_003 + stage) % (1 << 63))
    return program.build_stage(stage, stages, group)


def _is_staggered(bundle: Bundle, stage: int) -> bool:
    """Whether the plans step before the norm is known; all plans of a job do, or none."""
    worker = next(worker for worker in bundle.workers(0) if worker[1] == stage)
    return any(instruction.opcode is Opcode.VALIDATE for instruction in bundle.stream(0, worker))
