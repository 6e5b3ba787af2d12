"""What a worker process holds of a model: its chunks, which outlive groups, plans and failures."""

from collections.abc import Callable
from typing import Any

import torch

from recycle_runtime.execution.kept_buffers import BufferHistory
from recycle_runtime.execution.optimizer import StepOptions, Stepper, Totals
from recycle_runtime.execution.split_backward import Split, prepare
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.program.loading import Program
from recycle_runtime.program.microbatches import MicroBatches
from recycle_runtime.protocol.messages import Report, Sums
from recycle_runtime.transport.interface import TensorSpec


class Chunk:
    """Module, optimizer and data of one chunk, as every worker that holds it has them."""

    def __init__(
        self,
        program: Program,
        bundle: Bundle,
        number: int,
        data: MicroBatches,
        seed: int,
        device: torch.device,
        *,
        tp_rank: int = 0,
        group: Any = None,
        recoverable: bool = True,
    ) -> None:
        self.program, self.number, self.data = program, number, data
        self.tp_rank, self.seed = tp_rank, seed
        self.count = len(bundle.chunk_stages)
        """Of all chunks of the model."""
        self.is_fresh = True
        """As built from the seed, and no part of any run yet."""
        self.arriving: dict[str, tuple[TensorSpec, ...]] = {}
        """What comes in from the previous chunk, by the shape of the micro-batch, as far as it is known."""
        self.is_whole = True
        """False while another's state is on its way here."""
        self.on_settled: Callable[[], None] | None = None
        """Called when the last step stands and nothing of the next one has been used: a time to copy it."""
        self.module = build_module(program, number, self.count, seed, group).to(device)
        self.split: Split = prepare(self.module)
        self.buffers = BufferHistory(self.module)
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        options = StepOptions(
            clip_norm=program.clip_norm, staggered=_is_staggered(bundle, number), recoverable=recoverable
        )
        optimizer = program.optimizer(parameters) if parameters else None
        self.stepper = Stepper(optimizer, parameters, options, tensor_parallel_rank=tp_rank)

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.number == self.count - 1

    @property
    def is_part_of_run(self) -> bool:
        """False for one whose worker waits to join."""
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
                assert sums is not None, "no worker knows the verdict on the last step"
                self.stepper.settle(Totals(*sums))
            self.stepper.discard()
        assert self.applied == step, f"this worker stands at step {self.applied}, not {step}"
        self.buffers.go_back(step)
        self.is_fresh = False

    def know(self, sums: Sums | None) -> None:
        """Keep the verdict on the last step, for workers that may still lack it after the next failure."""
        if sums is not None:
            self.stepper.totals = Totals(*sums)

    def state(self) -> dict[str, Any]:
        """Everything that makes this chunk what it is, between two steps; nothing is copied."""
        return {
            "model": self.module.state_dict(),
            "optimizer": self.stepper.optimizer.state_dict(),
            "stepper": self.stepper.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a state that was read or received."""
        self.module.load_state_dict(state["model"])
        self.buffers.forget()
        if self.stepper.gradients.parameters:
            self.stepper.optimizer.load_state_dict(state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        self.is_whole = True
        self.is_fresh = False

    @property
    def state_bytes(self) -> int:
        """About how many bytes a copy takes: parameters, buffers and what the optimizer keeps."""
        kept = (value for state in self.stepper.optimizer.state.values() for value in state.values())
        tensors = [*self.module.parameters(), *self.module.buffers()]
        tensors += [value for value in kept if isinstance(value, torch.Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def build_chunks(
    program: Program,
    bundle: Bundle,
    stage: int,
    seed: int,
    device: torch.device,
    *,
    tp_rank: int = 0,
    group: Any = None,
    recoverable: bool = True,
) -> dict[int, Chunk]:
    """Those that a worker of this stage holds, by number, in the order of the model."""
    numbers = [number for number, held_by in enumerate(bundle.chunk_stages) if held_by == stage]
    per_step = bundle.pipelines * bundle.microbatches
    # Inputs enter the first chunk and targets the last; between them, shapes are enough.
    has_edge = bool({0, len(bundle.chunk_stages) - 1} & set(numbers))
    data = MicroBatches(program, seed, per_step, keep_items=has_edge)
    return {
        number: Chunk(
            program, bundle, number, data, seed, device,
            tp_rank=tp_rank, group=group, recoverable=recoverable,
        )
        for number in numbers
    }  # fmt: skip


def build_module(program: Program, chunk: int, chunks: int, seed: int, group: Any = None) -> torch.nn.Module:
    """A chunk as every worker that holds it starts: the same numbers on each of them."""
    torch.manual_seed((seed * 1_000_003 + chunk) % (1 << 63))
    return program.build_stage(chunk, chunks, group)


def _is_staggered(bundle: Bundle, chunk: int) -> bool:
    """Whether the plans step before the norm is known; all plans of a job do, or none."""
    stage = bundle.chunk_stages[chunk]
    worker = next(worker for worker in bundle.workers(0) if worker[1] == stage)
    return any(instruction.opcode is Opcode.VALIDATE for instruction in bundle.stream(0, worker))
