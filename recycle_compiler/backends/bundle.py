"""Programs of all plans to one bundle file, and back to columns."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recycle_compiler import __version__
from recycle_compiler.backends.stream_encoder import absolute_columns, encode_program
from recycle_compiler.ir.bundled_job import read_job
from recycle_compiler.ir.failure import Worker, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.job_text import print_job
from recycle_compiler.ir.streams import Claims, Program
from recycle_compiler.stream_machines import machine_for
from recycle_runtime.files import write_whole
from recycle_runtime.plan.bundle import Bundle, BundleError, PlanEntry, join_bundle
from recycle_runtime.plan.bundle_index import Blob, Index
from recycle_runtime.plan.codec import decode_fields


def write_bundle(path: str | os.PathLike[str], *, source: str, programs: Sequence[Program]) -> None:
    """Write a bundle; whatever happens, `path` is the old file or the whole new one."""
    write_whole(Path(path), bundle_bytes(source=source, programs=programs))


def bundle_bytes(*, source: str, programs: Sequence[Program]) -> bytes:
    """The bundle of these plans of one job, in this order: the same bytes on any machine."""
    job = _common_job(programs)
    machine = machine_for(sum(len(program.opcode) for program in programs))
    numbers: dict[tuple[bytes, int], int] = {}
    references: list[tuple[int, ...]] = []
    for program in programs:
        lengths: list[int] = np.diff(program.offsets).tolist()
        streams = zip(encode_program(program, machine), lengths, strict=True)
        references.append(tuple(numbers.setdefault(stream, len(numbers)) for stream in streams))
    offset = 0
    blobs: list[Blob] = []
    for data, instructions in numbers:
        blobs.append(Blob(offset, len(data), instructions))
        offset += len(data)
    index = Index(
        compiler_version=__version__,
        job_source=source,
        job_text=print_job(job),
        stages=job.stages,
        pipelines=job.pipelines,
        tensor=job.tensor,
        microbatches=job.microbatches,
        plans=tuple(map(_entry, programs)),
        blobs=tuple(blobs),
        references=tuple(references),
    )
    return join_bundle(index, b"".join(data for data, _ in numbers))


def read_program(bundle: Bundle, plan_index: int) -> Program:
    """One plan, back in columns; BundleError when one of its streams cannot be decoded."""
    job = read_job(bundle)
    entry = bundle.plans[plan_index]
    workers = tuple(Worker(*worker) for worker in bundle.workers(plan_index))
    machine = machine_for(bundle.instructions)
    streams: list[Sequence[int]] = []
    lengths = [0]
    for worker in workers:
        data, count = bundle.encoded(plan_index, worker)
        fields = decode_fields(data, count, bundle.frame(worker), machine)
        if fields is None:
            raise BundleError(bundle.undecodable(plan_index, worker))
        streams.append(fields)
        lengths.append(count)
    claims = Claims(entry.makespan, entry.period, entry.lower_bound, entry.reason, entry.cut_short)
    offsets = np.cumsum(lengths, dtype=np.int64)
    columns = absolute_columns(streams, workers, offsets, job.pipelines)
    return Program(job, failure_set(entry.failed), entry.release, claims, workers, offsets, *columns)


def _common_job(programs: Sequence[Program]) -> JobSpec:
    if not programs:
        raise ValueError("a bundle needs at least one plan")
    job = programs[0].job
    for program in programs:
        if program.job != job:
            raise ValueError("the plans of a bundle must be of one job")
        grid = (Worker(pipeline, stage) for stage in range(job.stages) for pipeline in range(job.pipelines))
        if program.workers != tuple(worker for worker in grid if worker not in program.failed):
            raise ValueError("a plan must have a stream for every worker that has not failed")
    if len({program.failed for program in programs}) < len(programs):
        raise ValueError("two plans are for the same failed workers")
    return job


def _entry(program: Program) -> PlanEntry:
    claims = program.claims
    failed = tuple((worker.pipeline, worker.stage) for worker in program.failed)
    times = (claims.makespan, claims.period, claims.lower_bound)
    return PlanEntry(failed, program.release, *times, claims.reason, claims.cut_short)
