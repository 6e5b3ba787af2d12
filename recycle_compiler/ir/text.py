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
"""

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.graph import Graph
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
from recycle_compiler.ir.ops import MICROBATCH_KINDS, UNSET, Op, OpKind, op_table
from recycle_compiler.ir.schedule import Schedule, schedule_order
from recycle_compiler.ir.streams import Claims
from recycle_compiler.ir.target import Target


def print_target(target: Target) -> str:
    """The job and the failed workers."""
    return "target\n" + print_head(target.job, target.failed)


def print_graph(graph: Graph) -> str:
    """One line per op and per edge."""
    lines = ["graph", print_head(graph.job, graph.failed).rstrip("\n")]
    names = [str(op) for op in graph.ops]
    for name, op in zip(names, graph.ops, strict=True):
        worker = "-" if op.worker == UNSET else str(op.worker)
        lines.append(f"op {name} worker {worker} duration {op.duration}")
    for before, after, lag in zip(
        graph.before.tolist(), graph.after.tolist(), graph.lag.tolist(), strict=True
    ):
        lines.append(f"edge {names[before]} {names[after]} lag {lag}")
    return "\n".join(lines) + "\n"


def print_schedule(schedule: Schedule) -> str:
    """One line per worker."""
    unit = schedule.job.ticks_per_unit
    lines = ["schedule", print_head(schedule.job, schedule.failed).rstrip("\n")]
    lines += [print_release(schedule.release, unit), print_claims(schedule.claims, unit)]
    starts = schedule.start.tolist()
    for worker, rows in schedule.worker_starts():
        ops = (schedule.ops[row] for row in range(rows.start, rows.stop))
        cells = (
            f"{print_time(start, unit)} {_label(op)}" for start, op in zip(starts[rows], ops, strict=True)
        )
        lines.append(f"worker {worker}  " + "  ".join(cells))
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
    for number, words in rest:
        try:
            if words[0] == "op":
                _, name, _, worker, _, duration = words
                numbers[name] = len(ops)
                ops.append(_parse_op(name, UNSET if worker == "-" else int(worker), int(duration)))
            elif words[0] == "edge":
                _, before, after, _, lag = words
                edges.append((numbers[before], numbers[after], int(lag)))
            else:
                raise ValueError(f"unknown word {words[0]}")
        except (ValueError, KeyError, IndexError) as cause:
            raise TextError(number, f"not a line of a graph: {cause}") from cause
    columns = np.array(edges, dtype=np.int64).reshape(len(edges), 3)
    return Graph(job, failed, op_table(ops), *(np.ascontiguousarray(columns[:, i]) for i in range(3)))


def parse_schedule(text: str) -> Schedule:
    """Inverse of `print_schedule`."""
    job, failed, rest = split_text(text, "schedule")
    unit = job.ticks_per_unit
    release: tuple[int, ...] | None = None
    claims: Claims | None = None
    ops: list[Op] = []
    starts: list[int] = []
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
            else:
                raise ValueError(f"unknown word {words[0]}")
        except (ValueError, KeyError, IndexError) as cause:
            raise TextError(number, f"not a line of a schedule: {cause}") from cause
    if release is None or claims is None or len(release) != job.stages or not ops:
        raise TextError(0, "a schedule needs its release, claims and worker lines")
    table, start = op_table(ops), np.array(starts, dtype=np.int64)
    order = schedule_order(job, table, start)
    return Schedule(job, failed, table.take(order), start[order], release, claims)


def _parse_op(name: str, worker: int, duration: int) -> Op:
    kind, *parts = name.split(".")
    fields = {part[0]: int(part[1:]) for part in parts if part != "all"}
    return Op(
        OpKind[kind],
        fields.get("p", UNSET),
        fields.get("m", UNSET),
        fields.get("s", UNSET),
        fields.get("w", worker),
        duration,
    )


def _label(op: Op) -> str:
    return f"{op.kind.name}{op.pipeline}.{op.microbatch}" if op.kind in MICROBATCH_KINDS else op.kind.name


def _from_label(label: str, worker: Worker, job: JobSpec) -> Op:
    kind = OpKind[label[0]]
    stage = worker.stage
    if not 0 <= stage < job.stages:
        raise ValueError(f"worker {worker} is outside the grid")
    forward, back, weight = job.forward[stage], job.backward_input[stage], job.backward_weight[stage]
    durations = {
        OpKind.F: forward,
        OpKind.B: back + weight,
        OpKind.I: back,
        OpKind.W: weight,
        OpKind.R: job.reduce[stage],
        OpKind.O: job.optimizer[stage],
    }
    pipeline, _, microbatch = label[1:].partition(".")
    place = (int(pipeline), int(microbatch)) if kind in MICROBATCH_KINDS else (UNSET, UNSET)
    return Op(kind, *place, stage, worker.pipeline, durations[kind])
