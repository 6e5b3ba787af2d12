"""One stream, and the steps that are made with it: a stage, a group of workers, and a role in a plan."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from recycle_runtime.execution.handlers import StageHandlers
from recycle_runtime.execution.interpreter import Interpreter, RunAgain
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.execution.shapes import Shapes
from recycle_runtime.execution.stage import Stage, StageSteps
from recycle_runtime.execution.tracing import Tracer
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.transport.interface import Grid, Transport


class StepReport(NamedTuple):
    """What a worker has to say about a step."""

    step: int
    loss: float | None
    """Its share of the loss, on the last stage."""
    seconds: float
    repeated: int
    """How often the step was run again because of a late validation."""


class Session:
    """Runs its stream once a step; ends when the group does. `store` is where the group's shapes are told."""

    def __init__(
        self,
        bundle: Bundle,
        plan: int,
        role: Worker,
        stream: Sequence[Instruction],
        stage: Stage,
        grid: Grid,
        transport: Transport,
        store: dist.Store,
        device: torch.device,
        tracer: Tracer | None = None,
        before: Callable[[int], None] | None = None,
        op_times: OpTimes | None = None,
    ) -> None:
        self.transport = transport if tracer is None else tracer.listening(transport)
        self._stage, self._tracer, self._op_times = stage, tracer, op_times
        stage.split.put_off(any(each.opcode is Opcode.BACKWARD_INPUT for each in stream))
        is_first_peer = grid.peers(role[1])[0] == role
        self.steps = StageSteps(stage, self.transport, is_first_peer=is_first_peer)
        self.handlers = StageHandlers(
            bundle,
            role,
            stage.module,
            stage.split,
            stage.program.loss,
            stage.data,
            stage.buffers,
            Shapes(store, role[1], stage.part, stage.arriving),
            self.transport,
            self.steps,
            device,
            stage.seed,
        )
        table = self.handlers.table()
        if op_times is not None:
            table = op_times.around(table)
        if tracer is not None:
            table = tracer.around(table)
        self.interpreter = Interpreter(stream, table, role, plan, bundle.pipelines, before)

    def run(self, step: int) -> StepReport:
        """One step, as often as it takes to make it properly."""
        began = time.perf_counter()
        repeated = 0
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
            return StepReport(step, loss, time.perf_counter() - began, repeated)

    def settle(self) -> None:
        """At a boundary: nothing of the last step is open any more."""
        self.steps.finish()
        self.transport.flush()

    def close(self) -> None:
        """Leave the group; what was under way is dropped."""
        self.drop()
        self.transport.close()

    def drop(self) -> None:
        """What was under way, but not the group."""
        self.handlers.drop()
        # A sum under way would keep the group alive, and the group would wait for it.
        self._stage.stepper.norm.drop()
