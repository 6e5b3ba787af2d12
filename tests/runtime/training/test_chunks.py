"""Workers with several chunks of the model train as one process does.

Under plans as the compiler makes them, and with streams that are written by hand: micro-batches one after the
other, as little at once as can be, and from one pipeline to another at every chunk.
"""

from pathlib import Path

import numpy as np
import pytest

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import Worker as GridWorker
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.streams import Claims, Streams
from recycle_runtime.plan.isa import NONE, Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker, cell_number
from tests.compiler.test_sharded import sharded
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import MLP, STEPS, changed, check
from tests.runtime.training.compare import plan_file as compiled_file
from tests.runtime.training.threads import train_in_threads
from tests.support.chunks import chunked_job

PLACEMENTS = [(0, 1, 1, 0), (0, 1, 0, 1), (1, 0, 0), (0, 0)]
"""The stage of each chunk: a V, a loop, one that begins on the last stage, all on one worker."""


def job_with(chunk_stages: tuple[int, ...], techniques: Techniques) -> JobSpec:
    return chunked_job(chunk_stages, 2, 3, techniques=techniques)


class Writer:
    """Writes the streams of a job, worker by worker."""

    def __init__(self, job: JobSpec) -> None:
        self.job = job
        grid = [(pipeline, stage) for stage in range(job.stages) for pipeline in range(job.pipelines)]
        self.streams: dict[Worker, list[Instruction]] = {worker: [] for worker in grid}
        self.buffers: dict[tuple[int, int, int], int] = {}

    def write(self) -> None:
        for pipeline in range(self.job.pipelines):
            for microbatch in range(self.job.microbatches):
                for chunk in range(self.job.chunks):
                    self._forward(pipeline, microbatch, chunk)
                for chunk in reversed(range(self.job.chunks)):
                    self._backward(pipeline, microbatch, chunk)
        for worker, stream in self.streams.items():
            held = [chunk for chunk, stage in enumerate(self.job.chunk_stages) if stage == worker[1]]
            if not self.job.techniques.stagger:
                stream.append(Instruction(Opcode.BARRIER))
            for chunk in reversed(held):
                stream.append(Instruction(Opcode.REDUCE, chunk))
                stream.append(Instruction(Opcode.OPTIMIZER, chunk))
            if self.job.techniques.stagger:
                stream.append(Instruction(Opcode.VALIDATE))

    def _worker(self, pipeline: int, microbatch: int, chunk: int) -> Worker:
        """Every second micro-batch changes to another pipeline at every chunk."""
        turn = chunk if microbatch % 2 else 0
        return (pipeline + turn) % self.job.pipelines, self.job.chunk_stages[chunk]

    def _add(self, opcode: Opcode, unit: tuple[int, int, int], inbox: int = NONE, to: int = NONE) -> None:
        """`unit` is (pipeline, microbatch, chunk); `to` the chunk at the other end."""
        pipeline, microbatch, chunk = unit
        stream = self.streams[self._worker(*unit)]
        neighbour = NONE
        if to != NONE:
            neighbour = cell_number(self._worker(pipeline, microbatch, to), self.job.pipelines)
        receives = opcode in (Opcode.RECV_ACTIVATION, Opcode.RECV_GRADIENT)
        buffer = NONE if receives else self.buffers.setdefault(unit, len(self.buffers))
        stream.append(Instruction(opcode, chunk, pipeline, microbatch, buffer, inbox, neighbour))

    def _forward(self, pipeline: int, microbatch: int, chunk: int) -> None:
        unit, is_last = (pipeline, microbatch, chunk), chunk == self.job.chunks - 1
        if chunk == 0 or is_last:
            self._add(Opcode.LOAD, unit)
        if chunk > 0:
            self._add(Opcode.RECV_ACTIVATION, unit, inbox=0, to=chunk - 1)
        self._add(Opcode.FORWARD, unit, inbox=0 if chunk > 0 else NONE)
        if not is_last:
            self._add(Opcode.SEND_ACTIVATION, unit, to=chunk + 1)

    def _backward(self, pipeline: int, microbatch: int, chunk: int) -> None:
        unit, is_last = (pipeline, microbatch, chunk), chunk == self.job.chunks - 1
        if not is_last:
            self._add(Opcode.RECV_GRADIENT, unit, inbox=0, to=chunk + 1)
        opcode = Opcode.BACKWARD_INPUT if self.job.techniques.decouple else Opcode.BACKWARD
        self._add(opcode, unit, inbox=NONE if is_last else 0)
        if chunk > 0:
            self._add(Opcode.SEND_GRADIENT, unit, to=chunk - 1)
        if self.job.techniques.decouple:
            self._add(Opcode.BACKWARD_WEIGHT, unit)


def plan_file(folder: Path, job: JobSpec) -> str:
    writer = Writer(job)
    writer.write()
    rows = [instruction for stream in writer.streams.values() for instruction in stream]
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    lengths = [len(stream) for stream in writer.streams.values()]
    plan = Streams(
        job,
        failure_set([]),
        (0,) * job.stages,
        Claims(1, 1, 1, "none"),
        tuple(GridWorker(pipeline, stage) for pipeline, stage in writer.streams),
        np.concatenate([[0], np.cumsum(lengths)]),
        *columns,
    )
    assert not list(plan.verify())
    path = folder / "chunks.plan"
    write_bundle(path, source="", plans=[plan])
    return str(path)


def check_chunks_train(job: JobSpec, plan: str, program: str = MLP) -> None:
    alone = train_alone(program, job.chunks, job.pipelines * job.microbatches, STEPS)
    losses, workers = train_in_threads(plan, program, 0, STEPS)
    for (_, stage), worker in workers.items():
        held = [chunk for chunk, on in enumerate(job.chunk_stages) if on == stage]
        assert list(worker.modules) == held
        for chunk, module in worker.modules.items():
            check(alone, losses, module.state_dict(), chunk)


@pytest.mark.parametrize(
    ("chunk_stages", "decouple", "stagger"),
    list(zip(PLACEMENTS, [True, False, False, True], [False, False, True, True], strict=True)),
    ids=str,
)
def test_equal_to_one_process(
    tmp_path: Path, chunk_stages: tuple[int, ...], decouple: bool, stagger: bool
) -> None:
    job = job_with(chunk_stages, Techniques(adaptive=True, decouple=decouple, stagger=stagger))
    check_chunks_train(job, plan_file(tmp_path, job))


@pytest.mark.parametrize(
    ("chunk_stages", "stagger"), list(zip(PLACEMENTS[:2], [False, True], strict=True)), ids=str
)
def test_compiled_plans(tmp_path: Path, chunk_stages: tuple[int, ...], stagger: bool) -> None:
    job = job_with(chunk_stages, Techniques(adaptive=True, decouple=True, stagger=stagger))
    check_chunks_train(job, compiled_file(tmp_path, job, [(1, 1)]))


@pytest.mark.parametrize("stagger", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_optimizer_state_in_shards(tmp_path: Path, stagger: bool) -> None:
    """Weights of all chunks are gathered once the norm is known, or as each chunk is stepped."""
    program = changed(tmp_path, MLP, "CLIP_NORM = 0.5")
    job = sharded(chunked_job((0, 1, 1, 0), 3, 2, techniques=Techniques(True, True, stagger)))
    check_chunks_train(job, compiled_file(tmp_path, job, [(1, 1)]), program)


@pytest.mark.parametrize(("clip", "stagger"), [(0.5, False), (2.0, True)])
def test_the_norm_is_that_of_all_chunks(tmp_path: Path, clip: float, stagger: bool) -> None:
    """Clipped by a norm that no worker has alone: before the step, or after it was made and undone."""
    program = changed(tmp_path, MLP, f"CLIP_NORM = {clip}")
    job = job_with((0, 1, 1, 0), Techniques(adaptive=True, decouple=True, stagger=stagger))
    check_chunks_train(job, plan_file(tmp_path, job), program)
