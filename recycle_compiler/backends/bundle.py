"""The streams of all plans of a job to one bundle file, and back to columns."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recycle_compiler.ir.bundled import counted_from, kin, read_columns, read_job
from recycle_compiler.ir.failure import Worker, failed_per_stage, failure_set
from recycle_compiler.ir.job import JobSpec, print_job
from recycle_compiler.ir.ops import Column
from recycle_compiler.ir.streams import Claims, Streams
from recycle_compiler.version import __version__
from recycle_runtime.files import write_whole
from recycle_runtime.plan.bundle import Bundle, ColumnLayout, PlanEntry, join_bundle
from recycle_runtime.plan.bundle_index import Index
from recycle_runtime.plan.codec import (
    LARGEST_NUMBER,
    LARGEST_PLAN,
    NEIGHBOUR,
    PIPELINE,
    TYPE_CODES,
    StreamShape,
)
from recycle_runtime.plan.isa import (
    CONSUMES,
    NONE,
    RECEIVES,
    USES_BUFFER,
    USES_CHUNK,
    USES_MICROBATCH,
    USES_NEIGHBOUR,
    Instruction,
    Opcode,
)


def write_bundle(
    path: str | os.PathLike[str],
    *,
    source: str,
    plans: Sequence[Streams],
    recuts: Sequence[Sequence[Streams]] = (),
) -> None:
    """Write a bundle; whatever happens, `path` is the old file or the whole new one."""
    write_whole(Path(path), bundle_bytes(source=source, plans=plans, recuts=recuts))


def bundle_bytes(*, source: str, plans: Sequence[Streams], recuts: Sequence[Sequence[Streams]] = ()) -> bytes:
    """The bundle of these plans of one job, in this order: the same content on any machine.

    `recuts` are plans of the same model cut otherwise: those of each cut are a bundle within the bundle.
    """
    job = _common_job(plans)
    encoded = [encode_columns(plan) for plan in plans]
    index = Index(
        compiler_version=__version__,
        job_source=source,
        job_text=print_job(job),
        stages=job.stages,
        pipelines=job.pipelines,
        tensor=job.tensor,
        microbatches=job.microbatches,
        chunk_stages=job.chunk_stages,
        cut=job.cut,
        tied_chunks=job.tied_chunks,
        groups=job.groups,
        owners=job.owners,
        slots=job.slots,
        placed_every=job.placed_every,
        plans=tuple(map(_entry, plans)),
        layouts=tuple(layout for layout, _ in encoded),
    )
    nested = [bundle_bytes(source="", plans=each) for each in recuts]
    return join_bundle(index, [data for _, data in encoded], nested)


def encode_columns(streams: Streams) -> tuple[ColumnLayout, bytes]:
    """The columns of a plan as the codec has them; ValueError when an instruction is not well formed."""
    check_fields(streams)
    lengths = np.diff(streams.offsets)
    home = np.repeat([worker.pipeline for worker in streams.workers], lengths)
    columns = list(streams.columns)
    for place in (PIPELINE, NEIGHBOUR):
        columns[place] = counted_from(columns[place], -home, streams.job.pipelines)
    widths = tuple(_width(int(column.max(initial=0))) for column in columns)
    columns = [column + 1 for column in columns]
    columns[1:] = _differences(columns[1:], kin(streams.opcode, lengths))
    # What does not fit wraps around.
    stored = (column.astype(f"<u{width}") for column, width in zip(columns, widths, strict=True))
    data = b"".join(column.tobytes() for column in stored)
    if len(data) > LARGEST_PLAN:
        raise ValueError(f"a plan would have {len(data)} bytes, allowed are {LARGEST_PLAN}")
    return ColumnLayout(widths, tuple(lengths.tolist()), hashlib.sha256(data).digest()), data


def _differences(columns: list[Column], alike: Column) -> list[Column]:
    """From the row before with the same key."""
    order = np.argsort(alike, kind="stable")
    follows = alike[order][1:] == alike[order][:-1]
    found: list[Column] = []
    for column in columns:
        ordered = column[order]
        change = ordered.copy()
        change[1:] -= np.where(follows, ordered[:-1], 0)
        difference = np.empty_like(column)
        difference[order] = change
        found.append(difference)
    return found


def read_streams(bundle: Bundle, plan_index: int) -> Streams:
    """One plan, back in columns; BundleError when its streams cannot be decoded."""
    entry = bundle.plans[plan_index]
    job = read_job(bundle)
    job = job.left_by(failed_per_stage(failure_set(entry.failed), job.stages))
    workers = tuple(Worker(*worker) for worker in bundle.workers(plan_index))
    offsets = np.cumsum([0, *bundle.layouts[plan_index].lengths], dtype=np.int64)
    times = (entry.makespan, entry.period, entry.lower_bound)
    claims = Claims(*times, entry.reason, entry.cut_short, entry.bound_over_cuts)
    columns = read_columns(bundle, plan_index)
    return Streams(job, failure_set(entry.failed), entry.release, claims, workers, offsets, *columns)


def _width(largest: int) -> int:
    """Bytes of a column whose numbers go up to this."""
    return next(width for width in TYPE_CODES if largest + 1 < 1 << 8 * width)


def check_fields(streams: Streams) -> None:
    """An opcode must have the fields it uses, in range, and no others."""
    job, opcode = streams.job, streams.opcode
    if not np.isin(opcode, list(Opcode)).all():
        raise ValueError("an instruction has an unknown opcode")
    # A chunk at the end of the pipeline consumes no message.
    no_inbox = np.isin(opcode, sorted(CONSUMES)) & (streams.inbox == NONE)
    limits = StreamShape(job.chunks, job.stages, job.pipelines, job.microbatches).limits
    for name, values, users, end in zip(
        Instruction._fields[1:],
        (*streams.columns[1:5], np.where(no_inbox, 0, streams.inbox), streams.neighbour),
        (USES_CHUNK, USES_MICROBATCH, USES_MICROBATCH, USES_BUFFER, RECEIVES | CONSUMES, USES_NEIGHBOUR),
        limits[1:],
        strict=True,
    ):
        used = np.isin(opcode, sorted(users))
        bad = np.where(used, (values < 0) | (values >= end), values != NONE)
        if bad.any():
            row = int(bad.argmax())
            culprit = Opcode(int(opcode[row])).name
            raise ValueError(f"instruction {row}, {culprit}, has {name} {int(values[row])}")


def _common_job(plans: Sequence[Streams]) -> JobSpec:
    if not plans:
        raise ValueError("a bundle needs at least one plan")
    job = plans[0].job.unfailed
    shape = (job.stages, job.pipelines, job.tensor, job.microbatches)
    if max(shape) > LARGEST_NUMBER:
        raise ValueError(f"a bundle cannot hold a job of {shape}, allowed are {LARGEST_NUMBER} of each")
    for streams in plans:
        if streams.job.unfailed != job:
            raise ValueError("the plans of a bundle must be of one job")
        grid = (Worker(pipeline, stage) for stage in range(job.stages) for pipeline in range(job.pipelines))
        if streams.workers != tuple(worker for worker in grid if worker not in streams.failed):
            raise ValueError("a plan must have a stream for every worker that has not failed")
    if len({streams.failed for streams in plans}) < len(plans):
        raise ValueError("two plans are for the same failed workers")
    return job


def _entry(streams: Streams) -> PlanEntry:
    claims = streams.claims
    failed = tuple((worker.pipeline, worker.stage) for worker in streams.failed)
    times = (claims.makespan, claims.period, claims.lower_bound)
    over_cuts = claims.bound_over_cuts
    return PlanEntry(failed, streams.release, *times, claims.reason, claims.cut_short, over_cuts)
