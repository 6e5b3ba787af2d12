"""Jobs whose workers hold several chunks, and the rules of a schedule checked from scratch."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from recycle_compiler.ir.job import JobSpec, SolverOptions, Techniques
from recycle_compiler.ir.ops import Op, OpKind
from recycle_compiler.ir.schedule import Schedule
from tests.support.jobs import ALL, SLOT, unit_job


def chunked_job(
    chunk_stages: tuple[int, ...],
    pipelines: int,
    microbatches: int,
    capacity: int | None = None,
    techniques: Techniques = ALL,
    transfer: int = 0,
) -> JobSpec:
    """Every op takes one slot and every activation is one; capacity in activations."""
    one = (SLOT,) * len(chunk_stages)
    each = ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "activation")
    return replace(
        unit_job(max(chunk_stages) + 1, pipelines, microbatches, capacity, techniques),
        name="chunked",
        chunk_stages=chunk_stages,
        kept_for_weight=one,
        transfer=(transfer * SLOT,) * (len(chunk_stages) - 1),
        parameters=(0,) * len(chunk_stages),
        **dict.fromkeys(each, one),
    )


@st.composite
def chunked_jobs(draw: st.DrawFn, microbatches: int = 4) -> JobSpec:
    """Uneven times, memory tight or loose, any techniques; each stage holds one chunk or more."""
    order = draw(st.sampled_from([(0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1), (0, 1, 0), (1, 0), (0, 0)]))
    stages, pipelines = max(order) + 1, draw(st.integers(1, 2))

    def times(least: int, most: int, count: int = len(order)) -> tuple[int, ...]:
        return tuple(SLOT * draw(st.integers(least, most)) for _ in range(count))

    activation = times(1, 2)
    held = [sum(a for a, s in zip(activation, order, strict=True) if s == stage) for stage in range(stages)]
    return JobSpec(
        name="chunked",
        stages=stages,
        pipelines=pipelines,
        tensor=1,
        microbatches=draw(st.integers(1, microbatches)),
        unit="slot",
        memory_unit="count",
        forward=times(1, 3),
        backward_input=times(1, 3),
        backward_weight=times(1, 3),
        optimizer=times(0, 2),
        reduce=times(0, 2),
        transfer=times(0, 2, len(order) - 1),
        activation=activation,
        kept_for_weight=tuple(draw(st.integers(0, amount)) for amount in activation),
        capacity=tuple(draw(st.one_of(st.none(), st.integers(amount, 3 * amount))) for amount in held),
        parameters=(0,) * len(order),
        techniques=Techniques(*(draw(st.booleans()) for _ in range(3))),
        failures=0,
        solver=SolverOptions(),
        chunk_stages=order,
    )


def broken_rules(schedule: Schedule) -> list[str]:
    """Faults of a schedule, checked op by op and sharing nothing with the compiler."""
    rows = list(schedule.rows())
    found = [*_overlaps(rows), *_early(schedule, rows), *_too_much_held(schedule, rows)]
    return [*found, *_late_steps(rows), *_long_windows(schedule, rows)]


Row = tuple[Op, int, int]


def _overlaps(rows: list[Row]) -> list[str]:
    found: list[str] = []
    for worker in {op.worker for op, _, _ in rows}:
        mine = sorted((start, end) for op, start, end in rows if op.worker == worker)
        found += [f"{worker} does two things at {b[0]}" for a, b in pairwise(mine) if a[1] > b[0]]
    return found


def _early(schedule: Schedule, rows: list[Row]) -> list[str]:
    job, found = schedule.job, list[str]()
    times = {(op.kind, op.pipeline, op.microbatch, op.chunk): (start, end) for op, start, end in rows}

    def end_of(kinds: tuple[OpKind, ...], pipeline: int, microbatch: int, chunk: int) -> int:
        places = ((kind, pipeline, microbatch, chunk) for kind in kinds)
        return next(times[place][1] for place in places if place in times)

    for op, start, _ in rows:
        place, backward = (op.pipeline, op.microbatch), (OpKind.B, OpKind.I)
        if op.kind is OpKind.F and op.chunk > 0:
            ready = end_of((OpKind.F,), *place, op.chunk - 1) + job.transfer[op.chunk - 1]
        elif op.kind is OpKind.W:
            ready = end_of((OpKind.I,), *place, op.chunk)
        elif op.kind in backward and op.chunk == job.chunks - 1:
            ready = end_of((OpKind.F,), *place, op.chunk)
        elif op.kind in backward:
            ready = end_of(backward, *place, op.chunk + 1) + job.transfer[op.chunk]
        else:
            continue
        if start < ready:
            found.append(f"{op} starts at {start}, before {ready}")
    return found


def _too_much_held(schedule: Schedule, rows: list[Row]) -> list[str]:
    job, found = schedule.job, list[str]()
    for worker in {op.worker for op, _, _ in rows}:
        capacity, held = job.capacity[worker // job.pipelines], 0
        for op, start, _ in sorted((row for row in rows if row[0].worker == worker), key=lambda row: row[1:]):
            whole, kept = job.activation[op.chunk], job.kept_for_weight[op.chunk]
            held += whole if op.kind is OpKind.F else 0
            if capacity is not None and held > capacity:
                found.append(f"{worker} holds {held} at {start}")
            held -= {OpKind.B: whole, OpKind.I: whole - kept, OpKind.W: kept}.get(op.kind, 0)
    return found


def _late_steps(rows: list[Row]) -> list[str]:
    """R of a chunk waits for all work on it, and O for all its R."""
    found: list[str] = []
    for kind, awaited in ((OpKind.R, range(OpKind.S)), (OpKind.O, (OpKind.R,))):
        for op, start, _ in rows:
            if op.kind is kind:
                ends = [end for one, _, end in rows if one.kind in awaited and one.chunk == op.chunk]
                found += [f"{op} starts at {start}, too early"] * (start < max(ends))
    return found


def _long_windows(schedule: Schedule, rows: list[Row]) -> list[str]:
    """A worker is done within the period; without stagger all step behind one barrier, and begin together."""
    stagger = schedule.job.techniques.stagger
    first = min(start for _, start, _ in rows)
    last = max(end for op, _, end in rows if op.kind < OpKind.S)
    found: list[str] = []
    if not stagger and any(start < last for op, start, _ in rows if op.kind > OpKind.S):
        found.append("a worker steps before the barrier")
    for worker in {op.worker for op, _, _ in rows}:
        mine = [(start, end) for op, start, end in rows if op.worker == worker]
        opens = min(start for start, _ in mine) if stagger else first
        if max(end for _, end in mine) - opens > schedule.claims.period:
            found.append(f"{worker} needs more than a period")
    return found
