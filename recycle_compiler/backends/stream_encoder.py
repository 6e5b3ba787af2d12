"""A program's streams in columns to bytes, and decoded fields back to columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.ir.streams import Program
from recycle_runtime.plan import stream_layout as layout
from recycle_runtime.plan.codec import MOST_INSTRUCTIONS, PLAIN, Frame, Machine, encode_fields
from recycle_runtime.plan.isa import CONSUMES, NONE, RECEIVES, USES_BUFFER, USES_MICROBATCH, USES_PEER, Opcode
from recycle_runtime.plan.range_coder import LARGEST_NUMBER


def frame_of(job: JobSpec, worker: Worker) -> Frame:
    """What the codec must know about a worker."""
    return Frame(worker.pipeline, worker.stage == job.stages - 1, job.pipelines, job.microbatches)


def encode_program(program: Program, machine: Machine) -> list[bytes]:
    """The bytes of each worker's stream; ValueError when an instruction is not well formed."""
    check_fields(program)
    fields = _shifted(program.columns, program.workers, program.offsets, -1, program.job.pipelines)
    numbers: Any = np.stack(fields, axis=1).reshape(-1)
    if machine is PLAIN:
        numbers = numbers.tolist()
    bounds: list[int] = (program.offsets * layout.FIELDS).tolist()
    return [
        encode_fields(numbers[first:last], frame_of(program.job, worker), machine)
        for worker, first, last in zip(program.workers, bounds, bounds[1:], strict=False)
    ]


def absolute_columns(
    streams: Sequence[Sequence[int]], workers: Sequence[Worker], offsets: Column, pipelines: int
) -> tuple[Column, ...]:
    """The six columns of decoded streams, with pipelines as users count them."""
    rows = np.concatenate([np.array(stream, dtype=np.int64) for stream in streams]).reshape(-1, layout.FIELDS)
    columns = tuple(np.ascontiguousarray(rows[:, field]) for field in range(layout.FIELDS))
    return _shifted(columns, workers, offsets, 1, pipelines)


def _shifted(
    columns: tuple[Column, ...], workers: Sequence[Worker], offsets: Column, sign: int, pipelines: int
) -> tuple[Column, ...]:
    """Pipelines and peers with the worker's own pipeline added or taken away."""
    homes = sign * np.repeat([worker.pipeline for worker in workers], np.diff(offsets))
    return tuple(
        np.where(column == NONE, NONE, (column + homes) % pipelines)
        if field in (layout.PIPELINE, layout.PEER)
        else column
        for field, column in enumerate(columns)
    )


def check_fields(program: Program) -> None:
    """An opcode must have the fields it uses, in range, and no others: the model relies on it."""
    job, opcode = program.job, program.opcode
    if (longest := int(np.diff(program.offsets).max())) > MOST_INSTRUCTIONS:
        raise ValueError(f"a stream has {longest} instructions, allowed are {MOST_INSTRUCTIONS}")
    if not np.isin(opcode, list(Opcode)).all():
        raise ValueError("an instruction has an unknown opcode")
    limit = LARGEST_NUMBER + 1
    # A stage at the end of the pipeline consumes no message.
    no_inbox = np.isin(opcode, sorted(CONSUMES)) & (program.inbox == NONE)
    for name, values, users, end in (
        ("pipeline", program.pipeline, USES_MICROBATCH, job.pipelines),
        ("microbatch", program.microbatch, USES_MICROBATCH, job.microbatches),
        ("buffer", program.buffer, USES_BUFFER, limit),
        ("inbox", np.where(no_inbox, 0, program.inbox), RECEIVES | CONSUMES, limit),
        ("peer", program.peer, USES_PEER, job.pipelines),
    ):
        used = np.isin(opcode, sorted(users))
        bad = np.where(used, (values < 0) | (values >= end), values != NONE)
        if bad.any():
            row = int(bad.argmax())
            culprit = Opcode(int(opcode[row])).name
            raise ValueError(f"instruction {row}, {culprit}, has {name} {int(values[row])}")
