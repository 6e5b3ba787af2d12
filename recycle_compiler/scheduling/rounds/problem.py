"""The timing problem of a plan in rounds, made from a graph.

All live workers of a stage do the same at the same time, so a stage is one machine. Its ops are rounds: op
`first[line] + k` is round k of a *line*, which is all that one chunk does of one part, forward, backward or
weight. Rounds of a line follow each other in order; an order of a machine says how its lines interleave.
A round waits for all that one of its micro-batches waits for.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import failed_per_stage
from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.ops import SERVICES, UNSET, OpKind
from recycle_compiler.ir.rounds import PART, turn_of
from recycle_compiler.scheduling.rounds.routes import Shape
from recycle_runtime.plan.overlap import MOST_ROUNDS

Ints = NDArray[np.int64]
UNLIMITED = -1
PARTS = 3
WEIGHT = 2


@dataclass(frozen=True, slots=True, eq=False)
class RoundsProblem:
    """Rounds to be timed; times in ticks."""

    machines: int
    """The stages."""
    staggered: bool
    """Stages step on their own, not behind one barrier for all."""
    first: Ints
    """Of each line, its first op; and behind the last line the number of ops."""
    machine: Ints
    """Of each line."""
    part: Ints
    """Of each line: 0 forward, 1 backward, 2 weight."""
    duration: Ints
    """Of each line; so are the next three."""
    exchange: Ints
    """Ticks of a round that exchange tokens, in which W are computed; 0 of a weight."""
    takes: Ints
    frees: Ints
    capacity: Ints
    """Of each machine; UNLIMITED or an amount."""
    finish: Ints
    """Of each machine: reduction, step and gathering of all its chunks."""
    grain: int
    """The largest step that all times are multiples of."""
    waits_first: Ints
    """Of each op, where what it waits for begins in the next two; and their number."""
    waits: Ints
    lag: Ints
    line: Ints
    """Of each op."""
    op_of_row: Ints
    """Of each row of the graph's ops, its round; UNSET for what is of none."""

    @property
    def ops(self) -> int:
        return int(self.first[-1])

    @property
    def lines(self) -> int:
        return len(self.machine)

    @property
    def load(self) -> Ints:
        """Of each machine, what its rounds take together, whatever of W is computed in exchanges."""
        room = np.zeros(self.machines, dtype=np.int64)
        np.maximum.at(room, self.machine, self.exchange)
        hidden = np.where(self.part == WEIGHT, MOST_ROUNDS * room[self.machine], 0)
        least = np.maximum(0, self.duration - hidden) * np.diff(self.first)
        return np.bincount(self.machine, least, minlength=self.machines).astype(np.int64)

    @property
    def floor(self) -> int:
        """No order has a shorter period."""
        finish = self.finish if self.staggered else np.full(self.machines, self.finish.max())
        return int((self.load + finish).max())


def rounds_problem(graph: Graph, shape: Shape) -> RoundsProblem:
    """The problem of a graph whose micro-batches are in rounds of these sizes."""
    job, ops = graph.job, graph.ops
    number, part = _numbers(graph, shape), PART[ops.kind]
    counts = np.zeros((job.chunks, PARTS), dtype=np.int64)
    there = part != UNSET
    np.maximum.at(counts, (ops.chunk[there], part[there]), number[there] + 1)
    chunk_of, part_of = np.nonzero(counts)
    first = np.concatenate([[0], np.cumsum(counts[chunk_of, part_of])])
    line_of = np.full((job.chunks, PARTS), UNSET, dtype=np.int64)
    line_of[chunk_of, part_of] = np.arange(len(chunk_of))
    line = np.where(there, line_of[ops.chunk, part], UNSET)
    op_of_row = np.where(there, first[line] + number, UNSET)
    duration, takes, frees = (np.zeros(len(chunk_of), dtype=np.int64) for _ in range(3))
    exchange = np.array(job.exchange_left or (0,) * job.chunks, dtype=np.int64)[chunk_of]
    exchange[part_of == WEIGHT] = 0
    for values, column in ((duration, ops.duration), (takes, graph.takes), (frees, graph.frees)):
        np.maximum.at(values, line[there], column[there])
    waits_first, waits, lag = _waits(graph, op_of_row, int(first[-1]))
    live = job.pipelines - np.array(failed_per_stage(graph.failed, job.stages))
    assert (live > 0).all(), "a stage has no worker"
    ends = [duration_of for kind in (OpKind.R, OpKind.O, OpKind.G) for duration_of in _ends(graph, kind)]
    finish = np.zeros(job.stages, dtype=np.int64)
    for chunk, ticks in ends:
        finish[job.chunk_stages[chunk]] += ticks
    return RoundsProblem(
        machines=job.stages,
        staggered=not bool(((ops.kind == OpKind.S) & (ops.chunk == UNSET)).any()),
        first=first,
        machine=np.array(job.chunk_stages, dtype=np.int64)[chunk_of],
        part=part_of.astype(np.int64),
        duration=duration,
        exchange=exchange,
        takes=takes,
        frees=frees,
        capacity=np.array([UNLIMITED if room is None else room for room in job.capacity], dtype=np.int64),
        finish=finish,
        grain=int(np.gcd.reduce(np.concatenate([duration, exchange, lag, finish]))),
        waits_first=waits_first,
        waits=waits,
        lag=lag,
        line=np.repeat(np.arange(len(chunk_of)), np.diff(first)),
        op_of_row=op_of_row,
    )


def _numbers(graph: Graph, shape: Shape) -> Ints:
    """Of each op, the number of its round on its chunk; anything for what is of no round."""
    ops = graph.ops
    round_of = np.stack([np.repeat(np.arange(len(sizes)), sizes) for sizes in shape])
    own = round_of[ops.chunk, np.where(ops.kind <= OpKind.W, turn_of(graph.job, ops), 0)]
    return np.where(np.isin(ops.kind, SERVICES), ops.microbatch, own)


def _waits(graph: Graph, op_of_row: Ints, ops: int) -> tuple[Ints, Ints, Ints]:
    """Rounds that each round waits for, and how long after their end it may begin."""
    before, after = op_of_row[graph.before], op_of_row[graph.after]
    between = (before != UNSET) & (after != UNSET)
    pairs, where = np.unique(after[between] * ops + before[between], return_inverse=True)
    lag = np.zeros(len(pairs), dtype=np.int64)
    np.maximum.at(lag, where.ravel(), graph.lag[between])
    return np.searchsorted(pairs // ops, np.arange(ops + 1)), pairs % ops, lag


def _ends(graph: Graph, kind: OpKind) -> list[tuple[int, int]]:
    """The chunks that have such an op, and how long it takes."""
    ops = graph.ops
    found = {int(ops.chunk[row]): int(ops.duration[row]) for row in np.flatnonzero(ops.kind == kind).tolist()}
    return sorted(found.items())
