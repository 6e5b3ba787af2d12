"""One stream, and the steps that are made with it: chunks, a group of workers, a role in a plan."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.device_copies import mark_on
from recycle_runtime.execution.evaluation import EvaluationData, EvaluationHandlers, evaluate
from recycle_runtime.execution.gradient_reach import gradients_of
from recycle_runtime.execution.handlers import OpHandlers
from recycle_runtime.execution.interpreter import Interpreter, RunAgain
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.execution.shapes import Looks, Shapes
from recycle_runtime.execution.steps import Owners, OwnersLacking, WorkerSteps
from recycle_runtime.execution.tracing import Tracer
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.program.precision import Precision
from recycle_runtime.protocol.messages.steps import ChunkGradients
from recycle_runtime.transport.interface import Grid, Transport


class Role(NamedTuple):
    """Stream that a process runs: its plan, its worker, and the grid of workers."""

    bundle: Bundle
    plan: int
    worker: Worker
    stream: Sequence[Instruction]
    grid: Grid


_ENDS = 2
"""Chunks that load their micro-batches: the first and the last."""


class StepReport(NamedTuple):
    """Report of a worker on a step."""

    step: int
    loss: float | None
    """Its share of the loss, where the last chunk is."""
    seconds: float
    repeated: int
    """Number of times that the step was run again because of a late validation."""
    data_wait: float = 0.0
    """Seconds of these that it waited for data."""


class Session:
    """Runs its stream once a step; ends when the group does. `store` passes on the group's shapes."""

    def __init__(
        self,
        role: Role,
        chunks: Mapping[int, Chunk],
        transport: Transport,
        store: dist.Store,
        device: torch.device,
        tracer: Tracer | None = None,
        before: Callable[[int], None] | None = None,
        op_times: OpTimes | None = None,
        ownership: Mapping[int, Owners] | None = None,
    ) -> None:
        self.transport = transport if tracer is None else tracer.listening(transport)
        self._tracer, self._op_times = tracer, op_times
        for number, chunk in chunks.items():
            splits = any(
                each.opcode is Opcode.BACKWARD_INPUT and each.chunk == number for each in role.stream
            )
            chunk.split.defer_weights(splits)
            is_bf16 = chunk.program.precision is Precision.BF16
            chunk.split.lower_weights(is_bf16 or device.type == "cuda")
        answers_for = {number: role.grid.holders(number)[0] == role.worker for number in chunks}
        self.steps = WorkerSteps(
            chunks,
            self.transport,
            answers_for,
            role.grid.tied_sum,
            has_peers=role.grid.has_peers,
            ownership=ownership,
            sums=role.grid.sums,
        )
        shapes = {
            number: Shapes(store, number, chunk.tp_rank, chunk.arriving, chunk.setting.ranks)
            for number, chunk in chunks.items()
        }
        held = next(iter(chunks.values()))
        self.data = held.data
        looks = _looks(role, store, held) if held.count > _ENDS else None
        self.handlers = OpHandlers(
            role.bundle, role.worker, chunks, shapes, self.transport, self.steps, device, looks
        )
        self.loads = self.handlers.loads(role.stream)
        """The micro-batches of a step that this stream loads, in its order."""
        if role.bundle.slots:
            self.handlers.overlap(role.bundle, role.stream)
        self._role, self._chunks, self._device = role, chunks, device
        self._evaluation = EvaluationHandlers(
            role.bundle, role.worker, chunks, shapes, self.transport, self.steps, device
        )
        table = self.handlers.table()
        if op_times is not None:
            table = op_times.around(table)
        if tracer is not None:
            table = tracer.around(table)
        self.interpreter = Interpreter(
            role.stream, table, role.worker, role.plan, role.bundle.pipelines, before
        )

    def agree(
        self,
        on_change: Callable[[OwnersLacking | None], None] | None = None,
        go_on: Callable[[], None] | None = None,
    ) -> None:
        """Before the first step: who owns which shards of optimizer state; `on_change` hears when others are
        held here, and of owners that are missing, `go_on` raises an error if the group is to be left."""
        self.steps.agree(on_change, go_on)

    def run(self, step: int) -> StepReport:
        """One step, as often as it takes to make it properly."""
        began = time.perf_counter()
        repeated = 0
        self.data.take_waited()
        self.data.on_wait = None if self._tracer is None else self._tracer.waited_for_data
        self.data.expect(step, self.loads)
        while True:
            self.handlers.begin(step)
            if self._tracer is not None:
                self._tracer.begin(step)
            if self._op_times is not None:
                self._op_times.begin()
            try:
                self.interpreter.run(step)
            except RunAgain:
                repeated += 1
                self.transport.flush()
                continue
            loss = self.handlers.end()
            return StepReport(step, loss, time.perf_counter() - began, repeated, self.data.take_waited())

    def gradients(self, step: int) -> tuple[ChunkGradients, ...]:
        """Parameters that gradients of this step, which is the last one, have reached, by chunk."""
        return gradients_of(self._chunks.values(), step, self.handlers.gives_back)

    def evaluate(self, data: EvaluationData, before: Callable[[int], None] | None = None) -> float | None:
        """Forwards alone, between two steps; what this worker adds to the sum of their losses."""
        role, table = self._role, self._evaluation.table()
        bundle = role.bundle
        self.settle()
        return evaluate(
            self._evaluation,
            data,
            self._chunks,
            lambda stream: Interpreter(stream, table, role.worker, role.plan, bundle.pipelines, before),
            role.stream,
            bundle.pipelines * bundle.microbatches,
            bundle.microbatches,
            in_rounds=bundle.slots > 0,
        )

    def settle(self) -> None:
        """At a boundary: nothing of the last step is open any more, and all that others had to send for it is
        here. A process that leaves when all have come so far cuts off nobody."""
        self.steps.finish()
        self.transport.flush()
        if (mark := mark_on(self._device)) is not None:
            # Weights of the last step may still be on their way: the device waits for them, and not the host.
            mark.synchronize()

    def take_back_broken(self) -> None:
        """The group was aborted: no step counts that was made with what an abort has left."""
        self.steps.take_back_broken()

    def close(self) -> None:
        """Leave the group; what was under way is dropped."""
        self.drop()
        self.transport.close()

    def drop(self) -> None:
        """Drop the work under way, but not the group."""
        self.handlers.drop()
        self._evaluation.drop()
        self.steps.drop()


def _looks(role: Role, store: dist.Store, held: Chunk) -> Looks:
    """Between the workers of a plan that load micro-batches for the first chunk and all others."""
    bundle = role.bundle
    loaded_by = {
        each.pipeline * bundle.microbatches + each.microbatch: worker
        for worker in bundle.workers(role.plan)
        if worker[1] in bundle.holders[0]
        for each in bundle.stream(role.plan, worker)
        if each.opcode is Opcode.LOAD and each.chunk == 0
    }
    return Looks(store, held.tp_rank, role.worker, loaded_by, held.setting.ranks)
