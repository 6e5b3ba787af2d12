"""Text of targets, graphs and schedules: exact, readable, and read back by `parse_*`.

Every text starts with its level and the resolved job. A schedule has one line per worker, times in the
unit of the job:

    schedule
    job figure3
    ...
    failed 2:2
    release 0 1 2 3
    claims makespan 29 period 30 lower_bound 30 cut_short no reason load of stage 2
    worker 0:0  0 F0.0  1 F0.1  8 I0.0 ... 27 R  27 O

An op on a chunk whose number is not that of its worker's stage says so: `F0.0.c3`, `R.c3`. In a graph such an
op names its worker as `1:0`, not by its pipeline alone.
"""

import re

import numpy as np

from recycle_compiler.ir.failure import Worker, worker_at, worker_number
from recycle_compiler.ir.graph import Graph, memory_of
from recycle_compiler.ir.head_text import (
    parse_claims,
    parse_time,
    parse_worker,
    print_claims,
    print_head,
    print_release,
    print_time,
    split_text,
)
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.job_text import TextError
from recycle_compiler.ir.ops import MICROBATCH_KINDS, UNSET, Op, OpKind, op_duration, op_table
from recycle_compiler.ir.schedule import Schedule, WorkEdge, schedule_order
from recycle_compiler.ir.streams import Claims
from recycle_compiler.ir.target import Target


def print_target(target: Target) -> str:
    """The job and the failed workers."""
    return "target\n" + print_head(target.job, target.failed)


def print_graph(graph: Graph) -> str:
    """One line per op and per edge; memory where it is not what the job says."""
    lines = ["graph", print_head(graph.job, graph.failed).rstrip("\n")]
    names = [op_name(op, graph.job) for op in graph.ops]
    usual_takes, usual_frees = memory_of(graph.job, graph.ops)
    usual = ((graph.takes == usual_takes) & (graph.frees == usual_frees)).tolist()
    takes, frees = graph.takes.tolist(), graph.frees.tolist()
    for row, (name, op) in enumerate(zip(names, graph.ops, strict=True)):
        worker = "-" if op.worker == UNSET else _worker_name(op, graph.job)
        memory = "" if usual[row] else f" takes {takes[row]} frees {frees[row]}"
        lines.append(f"op {name} worker {worker} duration {op.duration}{memory}")
    for before, after, lag in zip(
        graph.before.tolist(), graph.after.tolist(), graph.lag.tolist(), strict=True
    ):
        lines.append(f"edge {names[before]} {names[after]} lag {lag}")
    return "\n".join(lines) + "\n"


def print_schedule(schedule: Schedule) -> str:
    """One line per worker, and one per edge that a pass has added."""
    unit = schedule.job.ticks_per_unit
    lines = ["schedule", print_head(schedule.job, schedule.failed).rstrip("\n")]
    lines += [print_release(schedule.release, unit), print_claims(schedule.claims, unit)]
    starts = schedule.start.tolist()
    for worker, rows in schedule.worker_starts():
        ops = (schedule.ops[row] for row in range(rows.start, rows.stop))
        cells = (
            f"{print_time(start, unit)} {op_label(op, schedule.job)}"
            for start, op in zip(starts[rows], ops, strict=True)
        )
        lines.append(f"worker {worker}  " + "  ".join(cells))
    for before, after, lag in schedule.edges:
        names = (op_name(Op(*place, UNSET, 0), schedule.job) for place in (before, after))
        lines.append(f"edge {' '.join(names)} lag {print_time(lag, unit)}")
    return "\n".join(lines) + "\n"


def parse_target(text: str) -> Target:
    """Inverse of `print_target`."""
    job, failed, rest = split_text(text, "target")
    if rest:
        raise TextError(rest[0][0], "a target ends with its failed workers")
    return Target(job, failed)


def parse_graph(text: str) -> Graph:
    """Inverse of `print_graph`."""
    job, failed, rest = split_text(text, "graph")
    ops: list[Op] = []
    numbers: dict[str, int] = {}
    edges: list[tuple[int, int, int]] = []
    memory: dict[int, tuple[int, int]] = {}
    for number, words in rest:
        try:
            if words[0] == "op":
                _, name, _, worker, _, duration = words[:6]
                if words[6:]:
                    _, taken, _, freed = words[6:]
                    memory[len(ops)] = (int(taken), int(freed))
                numbers[name] = len(ops)
                ops.append(_parse_op(name, worker, int(duration), job))
            elif words[0] == "edge":
                _, before, after, _, lag = words
                edges.append((numbers[before], numbers[after], int(lag)))
            else:
                raise ValueError(f"unknown word {words[0]}")
        except (ValueError, KeyError, IndexError) as cause:
            raise TextError(number, f"not a line of a graph: {cause}") from cause
    columns = np.array(edges, dtype=np.int64).reshape(len(edges), 3)
    table = op_table(ops)
    if len(table) and table.chunk.max() >= job.chunks:
        raise TextError(0, "an op lies on a chunk that the job does not have")
    takes, frees = memory_of(job, table)
    for row, (taken, freed) in memory.items():
        takes[row], frees[row] = taken, freed
    before, after, lag = (np.ascontiguousarray(columns[:, index]) for index in range(3))
    return Graph(job, failed, table, before, after, lag, takes, frees)


def parse_schedule(text: str) -> Schedule:
    """Inverse of `print_schedule`."""
    job, failed, rest = split_text(text, "schedule")
    unit = job.ticks_per_unit
    release: tuple[int, ...] | None = None
    claims: Claims | None = None
    ops: list[Op] = []
    starts: list[int] = []
    edges: list[WorkEdge] = []
    for number, words in rest:
        try:
            if words[0] == "release":
                release = tuple(parse_time(word, unit) for word in words[1:])
            elif words[0] == "claims":
                claims = parse_claims(words[1:], unit)
            elif words[0] == "worker":
                worker = parse_worker(words[1])
                for start, label in zip(words[2::2], words[3::2], strict=True):
                    starts.append(parse_time(start, unit))
                    ops.append(_from_label(label, worker, job))
            elif words[0] == "edge":
                _, *names, _, lag = words
                before, after = (_parse_op(name, "-", 0, job)[:4] for name in names)
                edges.append(WorkEdge(before, after, parse_time(lag, unit)))
            else:
                raise ValueError(f"unknown word {words[0]}")
        except (ValueError, KeyError, IndexError) as cause:
            raise TextError(number, f"not a line of a schedule: {cause}") from cause
    if release is None or claims is None or len(release) != job.stages or not ops:
        raise TextError(0, "a schedule needs its release, claims and worker lines")
    table, start = op_table(ops), np.array(starts, dtype=np.int64)
    order = schedule_order(table, start)
    return Schedule(job, failed, table.take(order), start[order], release, claims, tuple(edges))


def op_name(op: Op, job: JobSpec) -> str:
    """An op of a graph by all that tells it from others: `F.p0.m1.s2`, `R.s2.w0`."""
    chunk = f"s{op.chunk}" if job.has_chunk_per_stage else f"c{op.chunk}"
    if op.kind in MICROBATCH_KINDS:
        return f"{op.kind.name}.p{op.pipeline}.m{op.microbatch}.{chunk}"
    if op.kind is OpKind.S:
        return f"S.{chunk}" if op.chunk >= 0 else "S.all"
    return f"{op.kind.name}.{chunk}.w{_worker_name(op, job)}"


def op_label(op: Op, job: JobSpec) -> str:
    """An op of a known worker: `F0.3`, `R`, with its chunk where that is not the stage of the worker."""
    batch = f"{op.pipeline}.{op.microbatch}" if op.kind in MICROBATCH_KINDS else ""
    chunk = "" if op.worker // job.pipelines == op.chunk else f".c{op.chunk}"
    return f"{op.kind.name}{batch}{chunk}"


def _worker_name(op: Op, job: JobSpec) -> str:
    """The pipeline of its worker, with the stage where that is not the number of the op's chunk."""
    worker = worker_at(op.worker, job.pipelines)
    return str(worker.pipeline) if worker.stage == op.chunk else str(worker)


def _parse_op(name: str, worker: str, duration: int, job: JobSpec) -> Op:
    kind, *parts = name.split(".")
    fields = {part[0]: part[1:] for part in parts if part != "all"}
    chunk = int(fields.get("s", fields.get("c", UNSET)))
    pipeline, microbatch = int(fields.get("p", UNSET)), int(fields.get("m", UNSET))
    if worker == "-":
        return Op(OpKind[kind], pipeline, microbatch, chunk, UNSET, duration)
    place = parse_worker(worker) if ":" in worker else Worker(int(worker), chunk)
    number = worker_number(place, job.pipelines)
    return Op(OpKind[kind], pipeline, microbatch, chunk, number, duration)


_LABEL = re.compile(r"([FBIWRO])(?:(\d+)\.(\d+))?(?:\.c(\d+))?")


def _from_label(label: str, worker: Worker, job: JobSpec) -> Op:
    found = _LABEL.fullmatch(label)
    if found is None:
        raise ValueError(f"unknown op {label}")
    kind = OpKind[found[1]]
    chunk = worker.stage if found[4] is None else int(found[4])
    if not (0 <= worker.stage < job.stages and 0 <= chunk < job.chunks):
        raise ValueError(f"{label} of worker {worker} is outside the grid")
    if (kind in MICROBATCH_KINDS) != (found[2] is not None):
        raise ValueError(f"{label} is not an op on a micro-batch, or on none")
    place = (UNSET, UNSET) if found[2] is None else (int(found[2]), int(found[3]))
    number = worker_number(worker, job.pipelines)
    return Op(kind, *place, chunk, number, op_duration(job, kind, chunk))
