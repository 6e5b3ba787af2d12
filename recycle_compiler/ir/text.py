"""Text of targets, graphs, schedules and streams: exact, readable, and read back by `parse_*`.

Every text starts with its level and the resolved job. A schedule has one line per worker, times in the
unit of the job:

    schedule
    job figure3
    ...
    failed 2:2
    release 0 1 2 3
    claims makespan 29 period 30 lower_bound 30 cut_short no reason load of stage 2
    worker 0:0  0 F0.0  1 F0.1  8 I0.0 ... 27 R  27 O

`SF5` is service in the sixth round of forwards on the chunk, without a micro-batch.

An op on a chunk whose number is not that of its worker's stage says so: `F0.0.c3`, `R.c3`. In a graph such an
op names its worker as `1:0`, not by its pipeline alone.

Streams have one line per instruction:

    worker 0:0
        0  load              p0 m0    b0
        1  forward           p0 m0    b0
"""

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from recycle_compiler.ir.failure import FailureSet, Worker, failure_set, worker_at, worker_number
from recycle_compiler.ir.graph import Graph, memory_of
from recycle_compiler.ir.job import PER_CHUNK, JobSpec, TextError, parse_job, print_job
from recycle_compiler.ir.ops import MICROBATCH_KINDS, SERVICES, UNSET, Op, OpKind, op_duration, op_table
from recycle_compiler.ir.rounds import with_overlap
from recycle_compiler.ir.schedule import Schedule, WorkEdge, schedule_order
from recycle_compiler.ir.streams import Claims, Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.written_ops import WrittenOps
from recycle_runtime.plan.assembly import AssemblyError, assemble, disassemble
from recycle_runtime.plan.isa import Instruction


def print_time(ticks: int, ticks_per_unit: int) -> str:
    """Ticks in the job's unit, as an exact decimal."""
    whole, rest = divmod(ticks, ticks_per_unit)
    if not rest:
        return str(whole)
    digits = len(str(ticks_per_unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


def parse_time(word: str, ticks_per_unit: int) -> int:
    """Inverse of `print_time`."""
    if _TIME.fullmatch(word) is None:
        raise ValueError(f"{word} is not a time")
    ticks = Fraction(word) * ticks_per_unit
    if ticks.denominator != 1:
        raise ValueError(f"{word} is not a whole number of ticks")
    if abs(ticks) > _MOST_TICKS:
        raise ValueError(f"{word} is longer than any iteration")
    return int(ticks)


_TIME = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")
_MOST_TICKS = 1 << 60
"""Largest total time of all ops of a job."""


def print_release(release: Sequence[int], unit: int) -> str:
    """The line of window openings."""
    return "release " + " ".join(print_time(time, unit) for time in release)


def print_claims(claims: Claims, unit: int) -> str:
    """The line of claims."""
    numbers = (f"{name} {print_time(getattr(claims, name), unit)}" for name in _CLAIMED_TIMES)
    cut = "yes" if claims.cut_short else "no"
    over = f" over_cuts {print_time(claims.bound_over_cuts, unit)}" if claims.bound_over_cuts else ""
    return f"claims {' '.join(numbers)} cut_short {cut}{over} reason {claims.reason}"


def parse_claims(words: Sequence[str], unit: int) -> Claims:
    """Parse the words after `claims`."""
    names, values, rest = words[0:8:2], words[1:8:2], words[8:]
    over_cuts = 0
    if rest[:1] == ["over_cuts"]:
        over_cuts, rest = parse_time(rest[1], unit), rest[2:]
    if tuple(names) != (*_CLAIMED_TIMES, "cut_short") or rest[0] != "reason":
        raise ValueError("claims are out of order")
    makespan, period, bound = (parse_time(value, unit) for value in values[:3])
    return Claims(makespan, period, bound, " ".join(rest[1:]), values[3] == "yes", over_cuts)


_CLAIMED_TIMES = ("makespan", "period", "lower_bound")


def print_head(job: JobSpec, failed: FailureSet) -> str:
    """The job and the failed workers."""
    return print_job(job) + " ".join(("failed", *map(str, failed))) + "\n"


def split_text(text: str, level: str) -> tuple[JobSpec, FailureSet, list[tuple[int, list[str]]]]:
    """The job, the failed workers, and the numbered lines after them."""
    lines = text.splitlines()
    if not lines or lines[0] != level:
        raise TextError(1, f"expected `{level}`")
    heads = [index for index, line in enumerate(lines) if line.split()[:1] == ["failed"]]
    if not heads:
        raise TextError(0, "the line of failed workers is missing")
    try:
        job = parse_job(lines[1 : heads[0]])
    except TextError as error:
        raise TextError(error.line and error.line + 1, error.what) from error
    for name in PER_CHUNK:
        if any((value or 0) > _MOST_TICKS for value in getattr(job, name)):
            raise TextError(0, f"{name} is larger than that of any job")
    try:
        failed = failure_set(parse_worker(word) for word in lines[heads[0]].split()[1:])
    except ValueError as cause:
        raise TextError(heads[0] + 1, str(cause)) from cause
    if outside := [worker for worker in failed if not _is_in_grid(worker, job)]:
        raise TextError(heads[0] + 1, f"worker {outside[0]} has failed, which is outside the grid")
    rest = [(number, line.split()) for number, line in enumerate(lines, start=1)][heads[0] + 1 :]
    return job, failed, [(number, words) for number, words in rest if words]


def _is_in_grid(worker: Worker, job: JobSpec) -> bool:
    return 0 <= worker.pipeline < job.pipelines and 0 <= worker.stage < job.stages


def parse_worker(word: str) -> Worker:
    """`pipeline:stage`."""
    pipeline, _, stage = word.partition(":")
    try:
        return Worker(int(pipeline), int(stage))
    except ValueError:
        raise ValueError(f"{word} is not a worker, as 0:1 is") from None


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
    written = WrittenOps(job, failed)
    for number, words in rest:
        try:
            if words[0] == "release":
                release = tuple(parse_time(word, unit) for word in words[1:])
            elif words[0] == "claims":
                claims = parse_claims(words[1:], unit)
            elif words[0] == "worker":
                for start, op in _parse_worker_line(number, words, job, written):
                    starts.append(start)
                    ops.append(op)
            elif words[0] == "edge":
                _, *names, _, lag = words
                before, after = (_parse_op(name, "-", 0, job)[:4] for name in names)
                edges.append(WorkEdge(before, after, parse_time(lag, unit)))
            else:
                raise ValueError(f"unknown word {words[0]}")
        except (ValueError, KeyError, IndexError) as cause:
            raise TextError(number, f"not a line of a schedule: {cause}") from cause
    last = len(text.splitlines())
    if release is None or claims is None or len(release) != job.stages or not ops:
        raise TextError(last, "a schedule needs its release, claims and worker lines")
    written.check_whole(last)
    table, start = with_overlap(job, op_table(ops)), np.array(starts, dtype=np.int64)
    order = schedule_order(table, start)
    return Schedule(job, failed, table.take(order), start[order], release, claims, tuple(edges))


def _parse_worker_line(
    line: int, words: list[str], job: JobSpec, written: WrittenOps
) -> Iterator[tuple[int, Op]]:
    """The start of each op, and the op."""
    if len(words) % 2:
        what = "the line of a worker has its name, and pairs of a start and an op"
        raise TextError(line, what, len(words) - 1)
    word = 1
    try:
        worker = parse_worker(words[word])
        written.begin(worker, line)
        for pair in range(2, len(words), 2):
            word = pair
            start = parse_time(words[word], job.ticks_per_unit)
            word = pair + 1
            op = _from_label(words[word], worker, job)
            written.add(op, worker, words[word], word)
            yield start, op
    except ValueError as cause:
        raise TextError(line, str(cause), word) from cause


def op_name(op: Op, job: JobSpec) -> str:
    """An op of a graph by all that tells it from others: `F.p0.m1.s2`, `R.s2.w0`."""
    chunk = f"s{op.chunk}" if job.has_chunk_per_stage else f"c{op.chunk}"
    if op.kind in MICROBATCH_KINDS:
        return f"{op.kind.name}.p{op.pipeline}.m{op.microbatch}.{chunk}"
    if op.kind is OpKind.S:
        return f"S.{chunk}" if op.chunk >= 0 else "S.all"
    if op.kind in SERVICES:
        return f"{op.kind.name}.m{op.microbatch}.{chunk}.w{_worker_name(op, job)}"
    return f"{op.kind.name}.{chunk}.w{_worker_name(op, job)}"


def op_label(op: Op, job: JobSpec) -> str:
    """An op of a known worker: `F0.3`, `R`, with its chunk where that is not the stage of the worker."""
    batch = f"{op.pipeline}.{op.microbatch}" if op.kind in MICROBATCH_KINDS else ""
    batch = str(op.microbatch) if op.kind in SERVICES else batch
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


_LABEL = re.compile(r"(S[FBIW]|[FBIWROG])(?:(\d+)(?:\.(\d+))?)?(?:\.c(\d+))?")


def _from_label(label: str, worker: Worker, job: JobSpec) -> Op:
    found = _LABEL.fullmatch(label)
    if found is None:
        raise ValueError(f"unknown op {label}")
    kind = OpKind[found[1]]
    chunk = worker.stage if found[4] is None else int(found[4])
    if not (_is_in_grid(worker, job) and 0 <= chunk < job.chunks):
        raise ValueError(f"{label} of worker {worker} is outside the grid")
    numbers = [int(group) for group in found.group(2, 3) if group is not None]
    if len(numbers) != (2 if kind in MICROBATCH_KINDS else int(kind in SERVICES)):
        raise ValueError(f"{label} is not an op on a micro-batch, or on none")
    if kind in SERVICES and not (job.slots and numbers[0] < job.pipelines * job.microbatches):
        raise ValueError(f"{label} is of a round that the job does not have")
    pipeline, microbatch = (UNSET, UNSET, *numbers)[-2:]
    if kind in MICROBATCH_KINDS and not (pipeline < job.pipelines and microbatch < job.microbatches):
        raise ValueError(f"{label} is of a micro-batch that the job does not have")
    number = worker_number(worker, job.pipelines)
    return Op(kind, pipeline, microbatch, chunk, number, op_duration(job, kind, chunk))


def print_streams(streams: Streams) -> str:
    """One line per instruction."""
    unit = streams.job.ticks_per_unit
    head = ["streams", print_head(streams.job, streams.failed).rstrip("\n")]
    head += [print_release(streams.release, unit), print_claims(streams.claims, unit)]
    bodies = (disassemble(stream, worker, streams.job.pipelines) for worker, stream in streams.items())
    return "\n".join(head) + "\n" + "".join(bodies)


def parse_streams(text: str) -> Streams:
    """Inverse of `print_streams`."""
    job, failed, rest = split_text(text, "streams")
    unit = job.ticks_per_unit
    if [words[0] for _, words in rest[:2]] != ["release", "claims"]:
        raise TextError(0, "streams need their release and claims lines")
    try:
        release = tuple(parse_time(word, unit) for word in rest[0][1][1:])
        claims = parse_claims(rest[1][1][1:], unit)
    except (ValueError, IndexError) as cause:
        raise TextError(rest[0][0], f"not a line of streams: {cause}") from cause
    lines = text.splitlines()
    workers: list[Worker] = []
    streams: list[tuple[Instruction, ...]] = []
    for first, last in _blocks(rest):
        try:
            worker, stream = assemble("\n".join(lines[first - 1 : last]), job.pipelines)
        except AssemblyError as cause:
            raise TextError(first - 1 + cause.line, cause.what) from cause
        workers.append(Worker(*worker))
        streams.append(stream)
    table = np.array([row for stream in streams for row in stream], dtype=np.int64).reshape(
        -1, len(Instruction._fields)
    )
    offsets = np.array([0, *accumulate(len(stream) for stream in streams)], dtype=np.int64)
    columns = (np.ascontiguousarray(column) for column in table.T)
    return Streams(job, failed, release, claims, tuple(workers), offsets, *columns)


def _blocks(rest: list[tuple[int, list[str]]]) -> list[tuple[int, int]]:
    """First and last line of each worker's stream."""
    heads = accumulate(int(words[0] == "worker") for _, words in rest[2:])
    numbered = zip(heads, (number for number, _ in rest[2:]), strict=True)
    blocks = ([number for _, number in group] for _, group in groupby(numbered, key=lambda pair: pair[0]))
    return [(block[0], block[-1]) for block in blocks]


Level = Target | Graph | Schedule | Streams

_PRINTERS: dict[type, Callable[[Any], str]] = {
    Target: print_target,
    Graph: print_graph,
    Schedule: print_schedule,
    Streams: print_streams,
}
_PARSERS: dict[str, Callable[[str], Level]] = {
    "target": parse_target,
    "graph": parse_graph,
    "schedule": parse_schedule,
    "streams": parse_streams,
}


def print_level(value: Level) -> str:
    """The exact text of a value."""
    return _PRINTERS[type(value)](value)


def parse_level(text: str) -> Level:
    """The value of a text; its first line says the level."""
    level = text.partition("\n")[0]
    if level not in _PARSERS:
        raise TextError(1, f"expected one of {', '.join(_PARSERS)}, got `{level[:40]}`")
    return _PARSERS[level](text)
