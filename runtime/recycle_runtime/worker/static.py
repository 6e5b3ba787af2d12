"""One worker process: takes its stream out of the bundle and trains with it, step after step."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from recycle_runtime.execution.session import Session, StepReport
from recycle_runtime.execution.stage import Stage
from recycle_runtime.execution.tracing import Tracer
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.plan.message_counts import most_waiting
from recycle_runtime.program.loading import load_program
from recycle_runtime.transport.choose import Way, choose_way, place_of
from recycle_runtime.transport.cuda_ipc import CudaIpcTransport, CudaSharedDevice
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Grid, Transport
from recycle_runtime.transport.nccl import join_over_nccl, set_environment


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


Connect = Callable[[WorkerOptions, dist.Store, Grid, Sequence[Instruction]], Transport]
"""Joins the other workers."""


def connect(
    options: WorkerOptions, store: dist.Store, grid: Grid, stream: Sequence[Instruction]
) -> Transport:
    """Over gloo on CPU, over NCCL between GPUs, and on the device between processes that share one."""
    patience = timedelta(seconds=options.timeout)
    common = (store, "first", grid, options.worker, options.part, patience)
    if options.device == "cpu":
        return GlooTransport(*common)
    device, rank = device_of(options), grid.rank(options.worker, options.part)
    if choose_way(store, "first", rank, grid.size, place_of(device), patience) is Way.NCCL:
        return join_over_nccl(*common, device, stream)
    return CudaIpcTransport(*common, CudaSharedDevice(device), most_waiting(stream, grid.pipelines))


class TrainingWorker:
    """A worker that runs one plan from the first step to the last; a failure of another ends it."""

    def __init__(self, options: WorkerOptions, store: dist.Store, join: Connect = connect) -> None:
        self.options = options
        bundle = Bundle.read(options.bundle)
        program = load_program(options.program)
        device = device_of(options)
        stream = bundle.stream(options.plan, options.worker)
        grid = Grid(bundle.workers(options.plan), bundle.tensor, bundle.pipelines)
        self.transport = join(options, store, grid, stream)
        self.tracer = Tracer(device) if options.trace else None
        self.stage = Stage(
            program,
            bundle,
            options.worker[1],
            options.seed,
            device,
            part=options.part,
            group=self.transport.tensor_group,
            recoverable=False,
        )
        self.session = Session(
            bundle,
            options.plan,
            options.worker,
            stream,
            self.stage,
            grid,
            self.transport,
            store,
            device,
            self.tracer,
        )

    @property
    def module(self) -> torch.nn.Module:
        return self.stage.module

    def train(self, report: Callable[[StepReport], None]) -> None:
        """All steps; the last one is settled before this returns."""
        for step in range(self.options.steps):
            report(self.session.run(step))
        self.session.settle()


def device_of(options: WorkerOptions) -> torch.device:
    """The device of a worker process; it becomes the current one."""
    if options.device == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    # The first backward finds no context in autograd's thread and makes one, as it should.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
    if ":" in options.device:
        # Whoever names a GPU has one for each worker.
        set_environment()
    device = torch.device("cuda", torch.device(options.device).index or 0)
    torch.cuda.set_device(device)
    return device
