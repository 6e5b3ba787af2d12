"""Contents of a bundle, as values of the compiler: its job, and the streams of a plan in numpy columns.

The runtime reads one worker's stream with the standard library; this reads those of a whole plan at once.
"""

import numpy as np
from numpy.typing import ArrayLike

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.groups import any_layout_of
from recycle_compiler.ir.job import JobSpec, TextError, parse_job
from recycle_compiler.ir.ops import Column
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.codec import NEIGHBOUR, OPCODE, PIPELINE
from recycle_runtime.plan.isa import NONE, Instruction, Opcode


def read_job(bundle: Bundle) -> JobSpec:
    """The job that the bundle was made for, with every number resolved."""
    try:
        job = parse_job(bundle.job_text.splitlines())
    except TextError as cause:
        raise BundleError(f"damaged: its job cannot be read: {cause}") from cause
    names = (
        "stages",
        "pipelines",
        "tensor",
        "microbatches",
        "chunk_stages",
        "cut",
        "tied_chunks",
        "groups",
        "owners",
    )
    if any(getattr(job, name) != getattr(bundle, name) for name in names):
        raise BundleError("damaged: its job and its index do not have the same shape")
    return job


def layout_name(bundle: Bundle, recut: Bundle, plan: int) -> str:
    """`2x2,2x4`, or `2x2,2x4 in halves` where a re-cut splits micro-batches; `3x2,3x2@6+6x1@2` for groups."""
    layout = any_layout_of(read_job(recut), failure_set(recut.plans[plan].failed))
    return f"{layout}{' in halves' if bundle.split(recut) == 2 else ''}"


def read_columns(bundle: Bundle, plan: int) -> list[Column]:
    """The fields of all instructions of a plan, worker after worker; BundleError when one is out of range."""
    data, widths, rows = bundle.columns(plan)
    lengths = bundle.layouts[plan].lengths
    columns: list[Column] = []
    start = 0
    for width in widths:
        columns.append(np.frombuffer(data, f"<u{width}", rows, start).astype(np.int64))
        start += rows * width
    alike = kin(columns[OPCODE], lengths)
    columns[1:] = _sums(columns[1:], alike, widths[1:])
    columns = [column - 1 for column in columns]
    for name, column, limit in zip(Instruction._fields, columns, bundle.shape.limits, strict=True):
        if rows and (int(column.max()) >= limit or (name == "opcode" and int(column.min()) < 1)):
            raise BundleError(f"damaged: plan {plan} has an instruction with a {name} out of range")
    home = np.repeat([pipeline for pipeline, _ in bundle.workers(plan)], lengths)
    for place in (PIPELINE, NEIGHBOUR):
        columns[place] = counted_from(columns[place], home, bundle.pipelines)
    return columns


def kin(opcode: Column, lengths: ArrayLike) -> Column:
    """A key for each row that is equal for the rows of one stream with the same opcode."""
    streams = np.asarray(lengths)
    largest = max(256, max(Opcode) + 2)
    return np.repeat(np.arange(len(streams)), streams) * largest + opcode


def counted_from(numbers: Column, home: Column, pipelines: int) -> Column:
    """Pipelines, or numbers of workers, with the pipeline of each shifted by the worker's own."""
    shifted = numbers - numbers % pipelines + (numbers + home) % pipelines
    return np.where(numbers == NONE, NONE, shifted)


def _sums(columns: list[Column], alike: Column, widths: tuple[int, ...]) -> list[Column]:
    """The numbers of columns from their differences to the row before with the same key."""
    order = np.argsort(alike, kind="stable")
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = alike[order][1:] != alike[order][:-1]
    group = np.cumsum(first) - 1
    found: list[Column] = []
    for column, width in zip(columns, widths, strict=True):
        total = np.cumsum(column[order])
        before = (total - column[order])[first][group]
        numbers = np.empty_like(column)
        numbers[order] = (total - before) & ((1 << 8 * width) - 1)
        found.append(numbers)
    return found
