"""A worker without recovery: one plan from the first step to the last; the failure of another ends it."""

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from recycle_runtime.execution.chunk import build_chunks
from recycle_runtime.execution.session import Role, Session, StepReport
from recycle_runtime.execution.tracing import Tracer
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.messages.steps import ChunkGradients
from recycle_runtime.protocol.trained_chunks import TrainedChunks
from recycle_runtime.state.ownership import ownership_of
from recycle_runtime.transport.choose import connect, device_of
from recycle_runtime.transport.interface import Grid, Transport, grid_of
from recycle_runtime.transport.rank_mesh import belong_to_worker, standing_group
from recycle_runtime.worker.options import WorkerOptions

_log = logging.getLogger(__name__)

Join = Callable[[WorkerOptions, dist.Store, Grid, Sequence[Instruction]], Transport]
"""Joins the other workers."""


def join(options: WorkerOptions, store: dist.Store, grid: Grid, stream: Sequence[Instruction]) -> Transport:
    """The transport that suits the job's devices."""
    timeout = timedelta(seconds=options.timeout)
    return connect(store, grid, options.worker, options.tp_rank, stream, device_of(options.device), timeout)


class _Counts(NamedTuple):
    """Share of a worker in the sums of a chunk that it holds."""

    trained: int
    without: int
    gives_back: bool


class FixedPlanWorker:
    """`recycle-run worker`, and what tests train with; it may hold several chunks."""

    def __init__(self, options: WorkerOptions, store: dist.Store, join: Join = join) -> None:
        self.options = options
        bundle = Bundle.read(options.bundle)
        self._count = len(bundle.chunk_stages)
        program = load_program(options.program)
        device = device_of(options.device)
        stream = bundle.stream(options.plan, options.worker)
        grid = grid_of(bundle, bundle.workers(options.plan))
        self.transport = join(options, store, grid, stream)
        group = None
        if bundle.tensor > 1:
            belong_to_worker(options.tp_rank, bundle.tensor, device)
            group = standing_group(options.tp_rank, bundle.tensor)
            group.stand_before(self.transport.tensor_group, threading.Event())
        self.tracer = Tracer(device) if options.trace else None
        self.chunks = build_chunks(
            program,
            bundle,
            options.worker[1],
            options.seed,
            device,
            tp_rank=options.tp_rank,
            group=group,
            recoverable=False,
        )
        """By number."""
        next(iter(self.chunks.values())).data.ends_at = options.steps
        role = Role(bundle, options.plan, options.worker, stream, grid)
        owners = ownership_of(role, self.chunks, self.transport)
        self.session = Session(
            role, self.chunks, self.transport, store, device, self.tracer, ownership=owners
        )

    @property
    def modules(self) -> dict[int, torch.nn.Module]:
        """By the number of their chunk."""
        return {number: chunk.module for number, chunk in self.chunks.items()}

    def train(self, report: Callable[[StepReport], None]) -> None:
        """All steps that the chunks have not seen; the last one is settled before this returns."""
        self.session.agree()
        first = next(iter(self.chunks.values())).applied
        for step in range(first, self.options.steps):
            made = self.session.run(step)
            if step == first:
                self._check_gradients(step)
            report(made)
        self.session.settle()

    def _check_gradients(self, step: int) -> None:
        """After the first step: whether anything is trained, which only all workers together know."""
        counts = torch.zeros(self._count, len(_Counts._fields), dtype=torch.float64)
        for each in self.session.gradients(step):
            own = _Counts(each.trained, each.without, each.gives_back)
            counts[each.chunk] = torch.tensor(own, dtype=torch.float64)
        pending = self.transport.start_sum(counts)
        if pending is not None:
            pending.wait()
        reached = TrainedChunks(
            step,
            [
                ChunkGradients(chunk, int(trained), int(without), (), gives_back=bool(gives_back))
                for chunk, (trained, without, gives_back) in enumerate(counts)
            ],
            "chunk",
        )
        if (mistake := reached.mistake()) is not None:
            raise ProgramError(f"{self.options.program}: {mistake}")
        for warning in reached.warnings():
            _log.warning("%s", warning.removeprefix("warning: "))
