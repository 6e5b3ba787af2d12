"""The timing problem, made from a graph: what bounds, schedulers and the MILP work on.

A micro-batch of any pipeline is one number `unit = pipeline * microbatches + microbatch`. Ops are numbered
`(kind * units + unit) * chunks + chunk`, with kind 0 forward, 1 backward (what the previous chunk waits for:
I where the chunk is split, else all of B) and 2 weight. That is a name and no more: what an op waits for,
where it runs, how long it takes and what memory it holds are read from columns.

Workers that hold the same chunks are a *pool*. Pools whose reductions wait for the same synchronization share
a *window*: they all reduce when the last of their work is done. With one chunk on every worker, none of them
tied, and staggered optimizers, chunk, stage, pool and window are the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import worker_number
from recycle_compiler.ir.graph import Edges, Graph
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import SERVICES, UNSET, OpKind, OpTable
from recycle_compiler.ir.rounds import always_left
from recycle_compiler.scheduling.slow_workers import SlowWorkers

Ints = NDArray[np.int64]

UNLIMITED = -1
ROW_OF_KIND = np.array([0, 1, 1, 2])
"""Of the kinds F, B, I, W: forward, backward or weight."""


class Tasks(NamedTuple):
    """Columns have one value per op number; 0 where there is no such op."""

    worker: Ints
    duration: Ints
    takes: Ints
    """Memory, as the op starts."""
    frees: Ints
    """Memory, as it ends."""
    edges: Edges
    """Between op numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Ops to be timed. Tuples have one value per chunk unless they say otherwise; times in ticks.

    Bounds and the MILP argue about chunks: their times here are the shortest of their ops. Whether that is
    the whole truth says `is_uniform`.
    """

    chunks: int
    pipelines: int
    microbatches: int
    """Per pipeline."""
    staggered: bool
    """Chunks reduce and step on their own, not behind one barrier for all."""
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    """W where the chunk is split, else 0."""
    split: tuple[bool, ...]
    transfer: tuple[int, ...]
    """From chunk c to c + 1 and back; one value fewer than there are chunks."""
    finish: tuple[int, ...]
    """Reduction, optimizer and gathering of the chunk."""
    optimizer: tuple[int, ...]
    activation: tuple[int, ...]
    kept: tuple[int, ...]
    """Part of an activation that stays after `backward` until W is done; 0 where the chunk is not split."""
    capacity: tuple[int, ...]
    """Of the chunk's workers: UNLIMITED or an amount."""
    hosts: tuple[tuple[int, ...], ...]
    """Numbers of the workers that may run micro-batches there."""
    pool: tuple[int, ...]
    """The pool that holds the chunk."""
    window: tuple[int, ...]
    """Of each pool, its window."""
    grain: int
    """The largest step that all times are multiples of: starts and periods are too."""
    is_uniform: bool
    """Ops of a chunk differ in nothing but their micro-batch."""
    worker_capacity: tuple[int, ...]
    """Per worker: UNLIMITED or an amount."""
    tasks: Tasks
    late: Ints
    """Per worker: by how much longer it takes to reduce and step than others of its pool."""
    slow: tuple[int, ...] = ()
    """Workers to which the times of their chunks do not apply; bounds and MILP know nothing of them."""
    has_faster: bool = False
    """True if some of those are faster than their peers."""
    meets: bool = False
    """All workers of a chunk run every op of it together, in rounds."""
    unhidden: tuple[int, ...] = ()
    """Ticks of the last W of each chunk beyond `weight`, since no round follows in whose exchanges they could
    be computed; empty where all W take the same."""
    opens: tuple[int, ...] = ()
    """Earliest start of each pool, where some have to wait; bounds ignore it."""

    @property
    def units(self) -> int:
        return self.pipelines * self.microbatches

    @property
    def ops(self) -> int:
        """Number of ops to be timed."""
        return self.units * (2 * self.chunks + sum(self.split))

    @property
    def workers(self) -> int:
        """All of the grid, failed ones too."""
        return len(self.worker_capacity)

    @property
    def pools(self) -> int:
        return len(self.window)

    @property
    def is_tied(self) -> bool:
        """True if optimizers are staggered and yet some pools reduce together."""
        return self.staggered and len(set(self.window)) < self.pools

    @property
    def pool_finish(self) -> tuple[int, ...]:
        """Per pool: reduction and optimizer of all its chunks."""
        whole = [0] * self.pools
        for pool, finish in zip(self.pool, self.finish, strict=True):
            whole[pool] += finish
        return tuple(whole)

    @property
    def pool_hosts(self) -> tuple[tuple[int, ...], ...]:
        """Per pool: its workers, sorted."""
        found: list[set[int]] = [set() for _ in range(self.pools)]
        for pool, workers in zip(self.pool, self.hosts, strict=True):
            found[pool].update(workers)
        return tuple(tuple(sorted(workers)) for workers in found)

    @property
    def host(self) -> Ints:
        """host[unit, chunk]: the number of the worker that runs it."""
        return self.tasks.worker[: self.units * self.chunks].reshape(self.units, self.chunks)

    @property
    def has_more_edges(self) -> bool:
        """True if some op waits for more than what it needs of its micro-batch."""
        return len(self.tasks.edges.before) > self.ops - self.units

    def closes(self, chunk: int) -> int:
        """From where all W take the same to the end of the window, where chunks step on their own."""
        return self.finish[chunk] + (self.unhidden[chunk] if self.unhidden else 0)

    @property
    def closing(self) -> int:
        """Ticks that it takes to reduce and step behind one barrier for all."""
        return max(self.pool_finish)

    def holdable(self, chunk: int) -> int:
        """Whole activations of a chunk that a worker has room for at once."""
        if self.capacity[chunk] == UNLIMITED or self.activation[chunk] == 0:
            return self.units
        return self.capacity[chunk] // self.activation[chunk]

    @property
    def load(self) -> Ints:
        """Per worker: how long its work on micro-batches takes."""
        return np.bincount(self.tasks.worker, self.tasks.duration, minlength=self.workers).astype(np.int64)


def problem_of(graph: Graph) -> Problem:
    """The timing problem of a graph whose ops have been routed."""
    job, ops = graph.job, graph.ops
    tasks = _tasks(graph)
    duration = tasks.duration.reshape(3, -1, job.chunks)
    weights = _weights(graph)
    split = tuple(bool(weights[:, chunk].any()) for chunk in range(job.chunks))
    ends = [_finishing(ops, kind, job.chunks) for kind in (OpKind.R, OpKind.O, OpKind.G)]
    finish = tuple(map(sum, zip(*ends, strict=True)))
    hosts = _hosts(graph)
    barriers = _barriers(graph)
    capacity = tuple(UNLIMITED if amount is None else amount for amount in job.capacity)
    problem = Problem(
        chunks=job.chunks,
        pipelines=job.pipelines,
        microbatches=job.microbatches,
        staggered=not bool(((ops.kind == OpKind.S) & (ops.chunk == UNSET)).any()),
        forward=_least(duration[0]),
        backward=_least(duration[1]),
        weight=_least(duration[2], weights),
        split=split,
        transfer=_transfers(job, tasks.edges),
        finish=finish,
        optimizer=ends[1],
        activation=_least(tasks.takes.reshape(3, -1, job.chunks)[0]),
        kept=_least(tasks.frees.reshape(3, -1, job.chunks)[2]),
        capacity=(),
        hosts=hosts,
        pool=(),
        window=barriers,
        grain=int(
            np.gcd.reduce(
                [
                    np.gcd.reduce(tasks.duration),
                    np.gcd.reduce(tasks.edges.lag),
                    *finish,
                    *times_of_overlap(job),
                ]
            )
        ),
        is_uniform=False,
        worker_capacity=tuple(amount for amount in capacity for _ in range(job.pipelines)),
        tasks=tasks,
        late=np.zeros(job.workers, dtype=np.int64),
        meets=job.slots > 0,
        unhidden=unhidden_weights(job, split),
    )
    grouped = _grouped(problem, barriers)
    return replace(grouped, is_uniform=_is_uniform(grouped), late=_late(ops, grouped))


def rerouted(problem: Problem, hosts: tuple[tuple[int, ...], ...], host: Ints) -> Problem:
    """The same ops on other workers: `host[unit, chunk]` of those in `hosts`."""
    barriers = tuple(problem.window[pool] for pool in problem.pool)
    tasks = problem.tasks._replace(worker=np.tile(host.ravel(), 3))
    return _grouped(replace(problem, hosts=hosts, tasks=tasks), barriers)


def with_times_of(problem: Problem, job: JobSpec) -> Problem:
    """The same work, with the times and the memory of a job that failures have changed."""
    if job.sharding is None:
        return problem
    if job.exchange:
        problem = _with_exchanges_of(problem, job)
    capacity = tuple(UNLIMITED if amount is None else amount for amount in job.capacity)
    finish = tuple(map(sum, zip(job.reduce, job.optimizer, job.gather, strict=True)))
    changed = replace(
        problem,
        finish=finish,
        optimizer=job.optimizer,
        grain=gcd(problem.grain, *finish),
        worker_capacity=tuple(amount for amount in capacity for _ in range(job.pipelines)),
    )
    return _grouped(changed, tuple(problem.window[pool] for pool in problem.pool))


def _with_exchanges_of(problem: Problem, job: JobSpec) -> Problem:
    """The same ops of chunks that are all alike, where fewer or more tokens travel."""
    split = np.array(problem.split)
    left = [always_left(job, chunk) for chunk in range(job.chunks)]
    times = (
        np.array(job.forward),
        np.array(job.backward_input) + np.where(split, 0, job.backward_weight),
        np.where(split, left, 0),
    )
    duration = np.stack(times)[:, None, :].repeat(problem.units, axis=1).ravel()
    forward, backward, weight = (tuple(each.tolist()) for each in times)
    return replace(
        problem,
        forward=forward,
        backward=backward,
        weight=weight,
        grain=gcd(problem.grain, *forward, *backward, *weight, *times_of_overlap(job)),
        tasks=problem.tasks._replace(duration=duration),
        unhidden=unhidden_weights(job, split),
    )


def slowed(problem: Problem, slow: SlowWorkers) -> Problem:
    """The problem with the times that slow workers take. A reduction is not their own work."""
    duration, late = problem.tasks.duration.copy(), problem.late.copy()
    workers = tuple(worker_number(one.worker, problem.pipelines) for one in slow)
    for one, worker in zip(slow, workers, strict=True):
        own = np.flatnonzero(problem.tasks.worker == worker)
        each, where = np.unique(duration[own], return_inverse=True)
        duration[own] = np.array([one.stretched(int(ticks)) for ticks in each], dtype=np.int64)[where]
        held = [
            ticks for ticks, hosts in zip(problem.optimizer, problem.hosts, strict=True) if worker in hosts
        ]
        late[worker] += sum(one.stretched(ticks) - ticks for ticks in held)
    grain = np.gcd.reduce([problem.grain, *np.unique(duration), *np.unique(late)])
    return replace(
        problem,
        tasks=problem.tasks._replace(duration=duration),
        late=late,
        grain=int(grain),
        is_uniform=False,
        slow=workers,
        has_faster=any(one.factor < 1 for one in slow),
    )


def chunk_grain(problem: Problem) -> int:
    """The grain that the times of chunks alone would have."""
    return gcd(*problem.forward, *problem.backward, *problem.weight, *problem.transfer, *problem.finish)


def op_numbers(job: JobSpec, ops: OpTable) -> Ints:
    """The number of every op of a table; UNSET for those that are not work on a micro-batch."""
    unit = ops.pipeline * job.microbatches + ops.microbatch
    kind = ROW_OF_KIND[np.minimum(ops.kind, OpKind.W)]
    number = (kind * job.pipelines * job.microbatches + unit) * job.chunks + ops.chunk
    return np.where(ops.kind <= OpKind.W, number, UNSET)


def _tasks(graph: Graph) -> Tasks:
    number = op_numbers(graph.job, graph.ops)
    work = number != UNSET
    size = 3 * graph.job.pipelines * graph.job.microbatches * graph.job.chunks
    worker, duration, takes, frees = (np.zeros(size, dtype=np.int64) for _ in range(4))
    for column, values in (
        (worker, graph.ops.worker),
        (duration, graph.ops.duration),
        (takes, graph.takes),
        (frees, graph.frees),
    ):
        column[number[work]] = values[work]
    assert worker.min() >= 0, "an op has no worker yet"
    of_forward = np.tile(worker[: size // 3], 3)
    there = number[work]
    assert (worker[there] == of_forward[there]).all(), "a backward is not where its activation is"
    between = work[graph.before] & work[graph.after]
    # What serves in a round takes no micro-batch on: a plan in rounds is a plan of the same work without it.
    served = np.isin(graph.ops.kind, SERVICES)
    _check_ends(graph, ~(between | served[graph.before] | served[graph.after]))
    if times_of_overlap(graph.job):
        # The best case: what may be computed in exchanges takes no time.
        left = [always_left(graph.job, chunk) for chunk in range(graph.job.chunks)]
        weights = duration.reshape(3, -1, graph.job.chunks)[2]
        np.minimum(weights, left, out=weights)
    edges = Edges(number[graph.before[between]], number[graph.after[between]], graph.lag[between])
    taken, freed = (column.reshape(3, -1).sum(axis=0) for column in (takes, frees))
    assert (taken == freed).all(), "memory that is taken is not given back, or other memory is"
    return Tasks(of_forward, duration, takes, frees, edges)


def times_of_overlap(job: JobSpec) -> tuple[int, ...]:
    """Times that decide what is left of W; none where nothing of them is computed in exchanges."""
    return (*job.exchange_left, *job.backward_weight) if any(job.exchange_left) else ()


def unhidden_weights(job: JobSpec, split: Iterable[bool]) -> tuple[int, ...]:
    """Of a chunk that is alone on its workers, the last round is one of backwards, and its W follow."""
    if not times_of_overlap(job) or not job.has_chunk_per_stage:
        return ()
    return tuple(
        ticks - always_left(job, chunk) if is_split else 0
        for chunk, (ticks, is_split) in enumerate(zip(job.backward_weight, split, strict=True))
    )


_ENDS = (
    (OpKind.B, OpKind.S),
    (OpKind.W, OpKind.S),
    (OpKind.S, OpKind.R),
    (OpKind.R, OpKind.O),
    (OpKind.O, OpKind.G),
)


def _check_ends(graph: Graph, chosen: NDArray[np.bool_]) -> None:
    """Windows end as the scheduler knows it: B or W, then S, R, O and G, each at once after the other."""
    kinds = len(OpKind)
    pairs = graph.ops.kind[graph.before[chosen]] * kinds + graph.ops.kind[graph.after[chosen]]
    known = [before * kinds + after for before, after in _ENDS]
    assert np.isin(pairs, known).all(), "an edge ties work to S, R, O or G in a way that cannot be scheduled"
    assert not graph.lag[chosen].any(), "S, R, O and G follow without a lag"


def _weights(graph: Graph) -> NDArray[np.bool_]:
    """Mask of the [unit, chunk] that have a W."""
    job, ops = graph.job, graph.ops
    weights = np.zeros((job.pipelines, job.microbatches, job.chunks), dtype=np.bool_)
    chosen = ops.kind == OpKind.W
    weights[ops.pipeline[chosen], ops.microbatch[chosen], ops.chunk[chosen]] = True
    return weights.reshape(-1, job.chunks)


def _least(values: Ints, where: NDArray[np.bool_] | None = None) -> tuple[int, ...]:
    """Per chunk, the least of its ops; 0 if it has none."""
    if where is None:
        return tuple(values.min(axis=0).tolist())
    far = np.iinfo(np.int64).max
    least = values.min(axis=0, where=where, initial=far)
    return tuple(np.where(least == far, 0, least).tolist())


def _finishing(ops: OpTable, kind: OpKind, chunks: int) -> tuple[int, ...]:
    """Least ticks of R, O or G of each chunk; 0 where there is none."""
    rows = [ops.duration[(ops.kind == kind) & (ops.chunk == chunk)] for chunk in range(chunks)]
    return tuple(int(times.min()) if len(times) else 0 for times in rows)


def _transfers(job: JobSpec, edges: Edges) -> tuple[int, ...]:
    """The least lag between each chunk and the next; every micro-batch has to follow the chunks."""
    chunks, span = job.chunks, job.pipelines * job.microbatches * job.chunks
    before, after, lag = edges
    down = (after == before + 1) & (after < span) & (after % chunks > 0)
    up = (before == after + 1) & (after >= span) & (before < 2 * span) & (before % chunks > 0)
    within = after == before + span
    turn = within & (before < span) & (before % chunks == chunks - 1)
    follows = np.zeros(3 * span, dtype=np.bool_)
    follows[after[down | up | turn | (within & (before >= span))]] = True
    starts = np.arange(3 * span) % chunks == 0
    assert (follows | starts)[:span].all() and follows[span : 2 * span].all(), "a data dependency is missing"
    least = np.full(chunks, np.iinfo(np.int64).max)
    np.minimum.at(least, before[down] % chunks, lag[down])
    np.minimum.at(least, after[up] % chunks, lag[up])
    return tuple(least.tolist()[: chunks - 1])


def _hosts(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Workers that may run each chunk: those that the failures leave, and those that a pass has added."""
    ops, workers = graph.ops, graph.job.workers
    forward = ops.kind == OpKind.F
    used: list[int] = np.unique(ops.chunk[forward] * workers + ops.worker[forward]).tolist()
    found: list[set[int]] = [set(hosts) for hosts in graph.target.hosts]
    for place in used:
        found[place // workers].add(place % workers)
    return tuple(tuple(sorted(hosts)) for hosts in found)


def _barriers(graph: Graph) -> tuple[int, ...]:
    """For each chunk a number of what its reductions wait for: equal where they wait for the same."""
    ops = graph.ops
    keys: list[set[int]] = [set() for _ in range(graph.job.chunks)]
    for sync, other in ((graph.after, graph.before), (graph.before, graph.after)):
        tied = ops.kind[sync] == OpKind.S
        pairs: list[int] = np.unique(sync[tied] * graph.job.chunks + ops.chunk[other[tied]]).tolist()
        for pair in pairs:
            keys[pair % graph.job.chunks].add(pair // graph.job.chunks)
    return _components(keys)


def _grouped(problem: Problem, barriers: tuple[int, ...]) -> Problem:
    """The problem with the pools and windows that its hosts and barriers make."""
    hosts = [set(workers) for workers in problem.hosts]
    pool = _components(hosts)
    # Barriers are keys below zero, workers are not.
    window = _components([workers | {-1 - one} for workers, one in zip(hosts, barriers, strict=True)])
    capacity = tuple(
        min((problem.worker_capacity[worker] for worker in workers), key=_room, default=UNLIMITED)
        for workers in problem.hosts
    )
    firsts = [pool.index(number) for number in range(max(pool) + 1)]
    return replace(problem, pool=pool, window=tuple(window[chunk] for chunk in firsts), capacity=capacity)


def _room(capacity: int) -> tuple[bool, int]:
    """Orders capacities: the largest first, since bounds must hold for whoever has most."""
    return capacity != UNLIMITED, -capacity


def _components(keys: list[set[int]]) -> tuple[int, ...]:
    """A number for each chunk, the same for two of them that share a key or are joined by others that do."""
    label = list(range(len(keys)))
    owner: dict[int, int] = {}
    for chunk, mine in enumerate(keys):
        for key in mine:
            other = label[owner.setdefault(key, chunk)]
            if other != label[chunk]:
                old, new = max(other, label[chunk]), min(other, label[chunk])
                label = [new if one == old else one for one in label]
    numbers = {one: number for number, one in enumerate(sorted(set(label)))}
    return tuple(numbers[one] for one in label)


def _late(ops: OpTable, problem: Problem) -> Ints:
    """By how much longer each worker takes to reduce and step than its pool does at least."""
    ends = ops.kind > OpKind.S
    whole = np.bincount(ops.worker[ends], ops.duration[ends], minlength=problem.workers).astype(np.int64)
    late = np.zeros(problem.workers, dtype=np.int64)
    for finish, workers in zip(problem.pool_finish, problem.pool_hosts, strict=True):
        late[list(workers)] = whole[list(workers)] - finish
    return late


def _is_uniform(problem: Problem) -> bool:
    """True if what is said of chunks is all there is to say."""
    tasks, shape = problem.tasks, (3, problem.units, problem.chunks)
    kept, whole = np.array(problem.kept), np.array(problem.activation)
    rest = np.where(problem.split, whole - kept, whole)
    nothing = np.zeros(problem.chunks, dtype=np.int64)
    columns = (
        (tasks.duration, (problem.forward, problem.backward, problem.weight)),
        (tasks.takes, (whole, nothing, nothing)),
        (tasks.frees, (nothing, rest, kept)),
    )
    if any((column.reshape(shape) != np.array(each)[:, None, :]).any() for column, each in columns):
        return False
    chunk = tasks.edges.after % problem.chunks
    crosses = tasks.edges.before % problem.chunks != chunk
    first = np.minimum(chunk, tasks.edges.before % problem.chunks)
    lag = np.where(crosses, np.array([*problem.transfer, 0])[first], 0)
    same_room = all(
        len({problem.worker_capacity[worker] for worker in workers}) == 1 for workers in problem.hosts
    )
    return len(lag) == problem.ops - problem.units and bool((tasks.edges.lag == lag).all()) and same_room
