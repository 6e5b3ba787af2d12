"""One worker process: takes its stream out of the bundle and trains with it, step after step."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from recycle_runtime.assembly import Worker
from recycle_runtime.batches import MicroBatches
from recycle_runtime.bundle import Bundle
from recycle_runtime.handlers import StageHandlers
from recycle_runtime.interpreter import Interpreter, RunAgain
from recycle_runtime.isa import Instruction, Opcode
from recycle_runtime.message_counts import most_waiting
from recycle_runtime.program import Program, load_program
from recycle_runtime.shapes import Shapes
from recycle_runtime.split_backward import prepare
from recycle_runtime.stage_stepper import StageStepper
from recycle_runtime.tracing import Tracer
from recycle_runtime.transport import Transport
from recycle_runtime.transport.cuda_ipc import CudaIpcTransport
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.grid import Grid


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker is told when it starts."""

    bundle: str
    program: str
    plan: int
    """Which plan of the bundle."""
    worker: Worker
    part: int
    """Which of the worker's tensor-parallel processes."""
    steps: int
    seed: int
    device: str
    trace: bool
    timeout: float
    """Seconds to wait for others before giving up."""


class StepReport(NamedTuple):
    """What a worker has to say about a step."""

    step: int
    loss: float | None
    """Its share of the loss, on the last stage."""
    seconds: float
    repeated: int
    """How often the step was run again because of a late validation."""


Connect = Callable[[WorkerOptions, dist.Store, Grid, Sequence[Instruction]], Transport]
"""Joins the other workers."""


def connect(
    options: WorkerOptions, store: dist.Store, grid: Grid, stream: Sequence[Instruction]
) -> Transport:
    """Over gloo on CPU; between processes that share a GPU, on the device."""
    patience = timedelta(seconds=options.timeout)
    place = (options.worker, options.part)
    if options.device == "cpu":
        return GlooTransport(store, "first", grid, *place, patience)
    waiting = most_waiting(stream, options.worker[1])
    return CudaIpcTransport(store, "first", grid, *place, patience, torch.device("cuda", 0), waiting)


def build_module(program: Program, stage: int, stages: int, seed: int, group: Any = None) -> torch.nn.Module:
    """A stage as every peer of it starts: the same numbers on each of them."""
    torch.manual_seed((seed * 1_000_003 + stage) % (1 << 63))
    return program.build_stage(stage, stages, group)


class TrainingWorker:
    """The stage, its stream, and what they need."""

    def __init__(self, options: WorkerOptions, store: dist.Store, join: Connect = connect) -> None:
        self.options = options
        bundle = Bundle.read(options.bundle)
        program = load_program(options.program)
        stage, device = options.worker[1], _device(options)
        stream = bundle.stream(options.plan, options.worker)
        grid = Grid(bundle.workers(options.plan), bundle.tensor)
        self.transport = join(options, store, grid, stream)
        module = build_module(program, stage, bundle.stages, options.seed, self.transport.tensor_group)
        self.module = module.to(device)
        per_step = bundle.pipelines * bundle.microbatches
        edge = stage in (0, bundle.stages - 1)
        data = MicroBatches(program, options.seed, per_step, keep_items=edge)
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        staggered = any(instruction.opcode is Opcode.VALIDATE for instruction in stream)
        self.stepper = StageStepper(
            program,
            parameters,
            self.transport,
            staggered=staggered,
            part=options.part,
            is_first_peer=grid.peers(stage)[0] == options.worker,
        )
        self._handlers = StageHandlers(
            bundle,
            options.worker,
            self.module,
            prepare(self.module),
            program.loss,
            data,
            Shapes(store, stage),
            self.transport,
            self.stepper,
            device,
            options.seed,
        )
        self.tracer = Tracer(device) if options.trace else None
        table = self._handlers.table()
        if self.tracer is not None:
            table = self.tracer.around(table)
        self.interpreter = Interpreter(stream, table, options.worker, options.plan)

    def train(self, report: Callable[[StepReport], None]) -> None:
        """All steps; the last one is settled before this returns."""
        for step in range(self.options.steps):
            report(self._one_step(step))
        self.stepper.finish()
        self.transport.flush()

    def _one_step(self, step: int) -> StepReport:
        began = time.perf_counter()
        repeated = 0
        while True:
            self._handlers.begin(step)
            if self.tracer is not None:
                self.tracer.begin(step)
            try:
                self.interpreter.run(step)
            except RunAgain:
                repeated += 1
                self.transport.flush()
                continue
            loss = self._handlers.end()
            return StepReport(step, loss, time.perf_counter() - began, repeated)


def _device(options: WorkerOptions) -> torch.device:
    if options.device == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    # The first backward finds no context in autograd's thread and makes one, as it should.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
    return torch.device("cuda", 0)
