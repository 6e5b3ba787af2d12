"""The inner loops, set up for one problem: flat arrays, scratch space, and plain or compiled functions."""

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_compiler.scheduling import inner_loops, moves, tabu
from recycle_compiler.scheduling.budget import Sizes
from recycle_compiler.scheduling.inner_loops import OpGroup, ReplicaState, WorkerState
from recycle_compiler.scheduling.problem import Ints, Problem
from recycle_compiler.scheduling.rules import GreedyRule

_TOGETHER = 16
"""Pools whose reach is computed in one pass."""


class Where(NamedTuple):
    """Selection of neighbours that may be swapped."""

    first_pool: int
    last_pool: int
    since: int = 0
    """Only ops that start from then on."""
    gain: int = 0
    """Least gain of a swap, in ticks."""
    odds: int = 100
    """In percent: how many of those that could be swapped are."""
    seed: int = 1
    """Seed of the choice among possible swaps."""


class MoveBudget(NamedTuple):
    """Limits of a search that moves ops along their workers."""

    budget: int
    """Ops that may be timed."""
    slack: int
    """By how much each worker may miss its deadline: then it is done."""
    warmth: int
    """Orders that are later than the best one by this much are kept at first, and fewer and fewer then."""
    idle: int
    """Moves that are kept and lead to nothing better, before it ends."""
    reach: int = 4
    """Places that an op moves by at most."""
    seed: int = 1


class Searching(NamedTuple):
    """Limits of a tabu search."""

    budget: int
    """Ops that may be timed."""
    slack: int
    """By how much each worker may miss its deadline: then it is done."""
    reach: int = 8
    """Places that an op moves by at most."""
    sample: int = 30
    """Moves of which the best is made."""
    tenure: int = 10
    """Turns, up to twice as many, in which an op that has moved does not move again."""
    seed: int = 1


class _Replicas(NamedTuple):
    """Replicas of chunks, one for each chunk on a worker, sorted by worker, then by chunk."""

    worker: Ints
    chunk: Ints
    of_op: Ints
    hosted: Ints
    """Micro-batches."""
    needs: Ints
    """Room that a worker must have before it takes an F."""


class _Prepared(NamedTuple):
    """Priorities in the form that list scheduling needs: many rules are tried with the same ones."""

    priority: Ints
    values: Any
    """Of every op."""
    least: Any
    """Of every kind."""
    entering: Any
    """The F that wait for nothing, as their replicas take them."""
    entry: Ints
    """Index in `entering` of the first F of each replica."""


class PoolReach(NamedTuple):
    """Of one order: when every worker that has ops begins and ends, as pools open at one time or another."""

    pool_of: Any
    late: Any
    """By how much it takes longer to reduce and step than its peers."""
    always_first: Any
    """It never begins sooner, whenever pools open."""
    always_last: Any
    after_first: Any
    """As many entries in a row for each worker as there are pools: how long after their release."""
    after_last: Any


class Loops:
    """Problem in the form that the loops run fastest on."""

    def __init__(self, problem: Problem, compiled: bool = False) -> None:
        """Compiled where that pays: in a large problem, or if a caller says that it has long to do."""
        self.problem = problem
        self._compiled = compiled or problem.ops >= Sizes.COMPILED
        tasks = problem.tasks
        self.duration = tasks.duration
        self.workers = problem.workers
        self.size = len(tasks.duration)
        """Op numbers."""
        replicas = _replicas_of(problem)
        present = _present(problem)
        self._length = np.bincount(tasks.worker[present], minlength=self.workers)
        self._most = int(replicas.hosted.max())
        self.width = 3 * int(np.bincount(replicas.worker, replicas.hosted, minlength=self.workers).max())
        self._replicas = replicas
        self._prepared: _Prepared | None = None
        self._lists_of_replicas(replicas)
        self._rows_of_ops(problem)
        self._capacity = self._native(np.array(problem.worker_capacity, dtype=np.int64))
        hosts = problem.pool_hosts
        self.pool_of = np.zeros(self.workers, dtype=np.int64)
        """Of each worker; 0 for who holds nothing."""
        for pool, workers in enumerate(hosts):
            self.pool_of[list(workers)] = pool
        self._pools = (
            self._native(np.cumsum([0, *map(len, hosts)])),
            self._native(np.array([worker for workers in hosts for worker in workers], dtype=np.int64)),
        )
        self.late = problem.late if problem.staggered else np.zeros(self.workers, dtype=np.int64)
        """By how much longer than its pool each worker takes to reduce and step."""

    def _lists_of_replicas(self, replicas: _Replicas) -> None:
        firsts = np.searchsorted(replicas.worker, np.arange(self.workers + 1))
        capacity = np.array(self.problem.worker_capacity, dtype=np.int64)
        self._opens = np.zeros(self.workers, dtype=np.int64)
        for opens, workers in zip(self.problem.opens, self.problem.pool_hosts, strict=False):
            self._opens[list(workers)] = opens
        held = np.zeros(self.workers, dtype=np.int64)
        self._worker_columns = (firsts[:-1], firsts[1:], capacity, held, self._opens)
        self._worker_of = self._native(np.tile(replicas.worker, 3))
        self._queues = tuple(self._scratch(3 * len(replicas.worker) * self._most) for _ in range(3))

    def _rows_of_ops(self, problem: Problem) -> None:
        """Set up the data of every op, and the edges that find no place there."""
        tasks, worker, edges = problem.tasks, problem.tasks.worker, problem.tasks.edges
        before, after, lag = edges
        crossing = worker[before] != worker[after]
        source, source_lag, more = _picked(after, before, lag, self.size)
        follower, follower_lag, rest = _picked(before, after, lag, self.size)
        second, second_lag, further = _picked(before[rest], after[rest], lag[rest], self.size)
        further = rest[further]
        across = np.flatnonzero(crossing)
        wakes, _, others = _picked(before[across], worker[after[across]], lag[across], self.size)
        others = across[others]
        feeder = np.where((source >= 0) & (worker[source] != worker), worker[source], -1)
        self.waits_for = np.bincount(after, minlength=self.size)
        ops = np.arange(self.size)
        # In the order of the fields of a group.
        facts: list[Ints] = [tasks.duration, tasks.takes, tasks.takes - tasks.frees]
        for other, ticks in ((source, source_lag), (follower, follower_lag), (second, second_lag)):
            facts += [np.where(other >= 0, other - ops, 0).astype(np.int64), ticks]
        group, first = _grouped(facts, problem)
        self._groups = self._table([column[first] for column in facts])
        queue = np.repeat(np.arange(3), self.size // 3) * len(self._replicas.worker) + self._replicas.of_op
        of_queue = np.zeros(3 * len(self._replicas.worker), dtype=np.int64)
        of_queue[queue] = group
        differ = bool((of_queue[queue] != group).any())
        self._extra = differ or len(more) > 0 or len(further) > 0 or len(others) > 0
        self._functions = _functions(self._compiled, self._extra)
        self._group_of, self._queue_of, self._wakes, self._feeder, self._unit_of = map(
            self._short, (group, queue, wakes, feeder, ops // problem.chunks % problem.units)
        )
        self._group_of_queue = self._group_of if self._extra else self._short(of_queue)
        self._more = self._lists(after[more], before[more], lag[more])
        self._further = self._lists(before[further], after[further], lag[further])
        self._wakes_more = self._lists(before[others], worker[after[others]])
        self._worker_of_op = self._native(worker)
        entries = np.flatnonzero(self.waits_for[: self.size // 3] == 0)
        replica = self._replicas.of_op[entries]
        replicas = np.arange(len(self._replicas.worker))
        firsts = np.searchsorted(np.sort(replica), replicas) + replicas
        # One place more for each replica before, for the -1 that ends its list.
        self._entries = (entries, replica, np.arange(len(entries)) + np.sort(replica), firsts)

    def _lists(self, owner: Ints, *columns: Ints) -> tuple[Any, ...]:
        """Index of the first entry of each op, and the columns in that order."""
        order = np.argsort(owner, kind="stable")
        firsts = np.searchsorted(owner[order], np.arange(self.size + 1))
        return self._native(firsts), *(self._native(column[order]) for column in columns)

    def _table(self, columns: list[Ints]) -> Any:
        """Groups as rows: records where the loops are compiled, else named tuples of plain integers."""
        if not self._compiled:
            return list(map(OpGroup, *(column.tolist() for column in columns)))
        return _records(OpGroup._fields, columns)

    def _rows(self, kind: type[ReplicaState] | type[WorkerState], columns: Sequence[Ints]) -> Any:
        """Replicas or workers as rows that a loop may change."""
        if not self._compiled:
            return list(map(kind, *(column.tolist() for column in columns)))
        return _records([field.name for field in fields(kind)], columns)

    def _short(self, values: Ints) -> Any:
        """A column of small numbers: half as wide, it leaves more room in the cache."""
        return values.astype(np.int32) if self._compiled else values.tolist()

    @property
    def has_more_edges(self) -> bool:
        """True if ops may have more edges than a group has room for, or ops of a replica differ."""
        return self._extra

    @property
    def unopened(self) -> Ints:
        """Releases of pools that hold no worker back longer than the problem does."""
        if self.problem.opens:
            return np.array(self.problem.opens, dtype=np.int64)
        return np.full(self.problem.pools, -max(0, int(self.late.max())), dtype=np.int64)

    def place(self, priority: Ints, rule: GreedyRule) -> Ints | None:
        """The order that list scheduling finds: one row per worker, -1 after its last op.

        None where edges that were added to the graph leave a rule no way on.
        """
        found = self.schedule(priority, rule)
        return None if found is None else found[0]

    def schedule(self, priority: Ints, rule: GreedyRule) -> tuple[Ints, Ints, Ints] | None:
        """The order that list scheduling finds, the end of every op there, and of every worker.

        An op may end later than the order needs: its worker may have waited for one that then came later.
        """
        problem, chunk = self.problem, self._replicas.chunk
        replicas = len(chunk)
        order = self._scratch(self.workers * self.width, -1)
        end = self._scratch(self.size, -1)
        if self._prepared is None or self._prepared.priority is not priority:
            self._prepared = self._prepare(priority)
        prepared = self._prepared
        rules = (column[chunk] for column in rule)
        values = (self._replicas.needs, *rules, self._replicas.hosted, prepared.entry)
        replica_rows = self._rows(ReplicaState, values)
        worker_rows = self._rows(WorkerState, self._worker_columns)
        total = self._functions[0](
            self.workers,
            replicas,
            self.width,
            self._most,
            self._worker_of,
            self._queue_of,
            self._group_of_queue,
            self._groups,
            *self._further,
            prepared.values,
            prepared.least,
            prepared.entering,
            self._native(self.waits_for.copy()) if self._extra else self._scratch(0),
            self._scratch(self.size if self._extra else 0),
            *self._queues,
            self._scratch(3 * replicas),
            order,
            end,
            replica_rows,
            worker_rows,
            self._no_events(),
        )
        if total < problem.ops:
            assert self._extra, f"list scheduling placed {total} of {problem.ops} ops"
            return None
        busy = worker_rows["busy_until"].copy() if self._compiled else [row.busy_until for row in worker_rows]
        return _array(order), _array(end), _array(busy)

    def _no_events(self) -> Any:
        """A heap, or a tree with a leaf for every worker, in which workers only begin that have to wait."""
        bits = self.workers.bit_length()
        begins = [(int(self._opens[w]) << bits) + int(w) for w in np.flatnonzero(self._opens)]
        if not self._compiled:
            return sorted([*begins, inner_loops.NEVER])
        leaves = 1 << self.workers.bit_length()
        tree = np.arange(2 * leaves, dtype=np.int64) % leaves + inner_loops.NEVER
        tree[0] = leaves
        for event in begins:
            inner_loops.tree_push(tree, event)
        return tree

    def _prepare(self, priority: Ints) -> "_Prepared":
        ops, replica, place, firsts = self._entries
        entering = np.full(len(ops) + len(firsts), -1, dtype=np.int64)
        entering[place] = ops[np.lexsort((priority.ravel()[ops], replica))]
        values, least = priority.ravel(), priority.min(axis=(1, 2))
        return _Prepared(priority, self._native(values), self._native(least), self._native(entering), firsts)

    def earliest(self, order: Ints, release: Ints) -> Ints:
        """The earliest end of every op, -1 where there is none; pools open at their release.

        A worker that takes longer to step than its peers comes later by that much.
        """
        timed = self.timed(order, release)
        assert timed is not None, "the orders of some workers wait for each other"
        return timed[0]

    def timed(self, order: Ints, release: Ints) -> tuple[Ints, Ints] | None:
        """The earliest end of every op and of every worker; None if the orders wait for each other."""
        end = self._scratch(self.size, -1)
        free = self._native(np.maximum(release[self.pool_of] + self.late, 0))
        timed = self._functions[1](
            self.workers,
            self.width,
            self._group_of,
            self._groups,
            self._wakes,
            *self._more,
            *self._wakes_more,
            self._native(order),
            free,
            end,
            self._native(np.arange(self.workers, dtype=np.int64) * self.width),
            self._native(np.arange(self.workers - 1, -1, -1, dtype=np.int64)),
            self._scratch(self.workers, 1),
        )
        if timed < self.problem.ops:
            return None
        return _array(end), _array(free)

    def windows(self, release: Ints, reach: "PoolReach") -> tuple[Ints, Ints]:
        """For each pool, the start of its first op and the end of its last."""
        first, last = self._scratch(len(release), inner_loops.FAR), self._scratch(len(release))
        self._functions[6](self._native(release), *reach, first, last)
        return _array(first), _array(last)

    def reach(self, order: Ints, end: Ints, free: Ints) -> "PoolReach":
        """Dependence of the ends of a timed order, of ops and workers, on the opening of pools."""
        busy = np.flatnonzero(order[:: self.width] >= 0)
        ops = order[busy * self.width]
        first, last = self._after_releases(order, end)
        columns = (
            self.pool_of[busy],
            self.late[busy],
            end[ops] - self.duration[ops],
            free[busy],
            (first[:, busy] - self.duration[ops]).T.ravel(),
            last[:, busy].T.ravel(),
        )
        return PoolReach(*map(self._native, columns))

    def _after_releases(self, order: Ints, end: Ints) -> tuple[Ints, Ints]:
        """[pool, worker]: how long after the pool opens the worker's first op and its last end at least.

        `end` are ends that the order may have. Far below 0 where an op does not depend on the pool.
        """
        in_turn = np.argsort(end, kind="stable")[np.count_nonzero(end < 0) :]
        first, last = np.empty((2, self.problem.pools, self.workers), dtype=np.int64)
        for pools in np.array_split(np.arange(self.problem.pools), -(-self.problem.pools // _TOGETHER)):
            opens = np.where(self.pool_of[:, None] == pools, self.late[:, None], -inner_loops.FAR)
            free, after = self._native(opens.ravel()), self._scratch(self.size * len(pools))
            self._functions[5](
                len(pools),
                self._native(in_turn),
                self._worker_of_op,
                self._group_of,
                self._groups,
                *self._more,
                free,
                after,
            )
            first[pools] = _array(after).reshape(-1, len(pools))[order[:: self.width]].T
            last[pools] = _array(free).reshape(-1, len(pools)).T
        return first, last

    def latest(self, order: Ints, deadline: Ints) -> tuple[Ints, Ints]:
        """The latest start of every op under the pools' deadlines, and its latest end.

        The latest end ignores what its worker does next.
        """
        due = self._scratch(self.size, inner_loops.FAR)
        late = self._scratch(self.size, inner_loops.FAR)
        timed = self._functions[2](
            self.workers,
            self.width,
            self._group_of,
            self._groups,
            self._feeder,
            *self._further,
            *self._more[:2],
            self._worker_of_op,
            self._native(order),
            self._native(deadline[self.pool_of]),
            due,
            late,
            self._native(np.arange(self.workers, dtype=np.int64) * self.width + self._length - 1),
            self._native(np.arange(self.workers, dtype=np.int64)),
            self._scratch(self.workers, 1),
        )
        assert timed == self.problem.ops, "the orders of some workers wait for each other"
        return _array(late), _array(due)

    def swapped(self, order: Ints, times: tuple[Ints, Ints, Ints], where: Where) -> Ints | None:
        """The order with some neighbours swapped; `times` are ends, latest ends and latest starts."""
        changed = self._native(order.copy())
        swaps = self._functions[3](
            self.width,
            *self._pools,
            self._unit_of,
            self._group_of,
            self._groups,
            *self._more,
            self._capacity,
            *map(self._native, times),
            *where,
            changed,
        )
        return _array(changed) if swaps > 0 else None

    def moved(self, order: Ints, release: Ints, deadline: Ints, moving: MoveBudget) -> tuple[Ints, int, int]:
        """The order after moves of single ops, by how much its workers together miss the deadlines of their
        pools, and how many ops were timed for it.

        Pools open at their release.
        """
        changed, end = self._native(order.copy()), self.earliest(order, release)
        bits = self.size.bit_length()
        coarse = max(0, int(end.max()).bit_length() + 1 + bits - 62)
        left, spent = self._functions[4](
            *self._graph,
            *self._before_moves(changed, order, end, release, deadline),
            self._scratch(3 * moving.idle),
            self._scratch(self.size + 1),
            *(self._scratch(self.size) for _ in range(7)),
            coarse,
            bits,
            moving.slack,
            moving.warmth,
            moving.reach,
            moving.seed,
            moving.budget,
        )
        return _array(changed), left, spent

    def searched(
        self, order: Ints, release: Ints, deadline: Ints, searching: Searching
    ) -> tuple[Ints, int, int]:
        """The best order of a tabu search, by how much its latest worker misses the deadline of its pool, and
        how many ops were timed for it. Pools open at their release."""
        end = self.earliest(order, release)
        # Times in between may be later than all there are now.
        horizon = 2 * max(int(end.max()), int(deadline.max()))
        bits = self.size.bit_length()
        coarse = max(0, horizon.bit_length() + 2 + bits - 62)
        best = self._native(order.copy())
        worst, _, spent = self._functions[7](
            *self._graph,
            *self._before_moves(self._native(order.copy()), order, end, release, deadline),
            best,
            self._scratch(self.size + 1),
            *(self._scratch(self.size) for _ in range(5)),
            *(self._scratch(4 * searching.reach * _MOST_BLOCKS) for _ in range(2)),
            coarse,
            bits,
            horizon,
            searching.slack,
            searching.reach,
            searching.sample,
            searching.tenure,
            searching.seed,
            searching.budget,
        )
        return _array(best), worst, spent

    @property
    def _graph(self) -> tuple[Any, ...]:
        """Arguments of the loops that move single ops."""
        assert not self._extra, "moves know nothing of further edges"
        sizes, groups = (self.workers, self.width), (self._group_of, self._groups)
        return *sizes, *groups, self._worker_of_op, self._capacity, self._native(self._length)

    def _before_moves(
        self, changed: Any, order: Ints, end: Ints, release: Ints, deadline: Ints
    ) -> tuple[Any, ...]:
        """Times at which workers may begin and have to end, an order to be `changed`, and the times and
        places of its ops."""
        ops = np.flatnonzero(order >= 0)
        place_of = np.zeros(self.size, dtype=np.int64)
        place_of[order[ops]] = ops
        opens, ends = np.maximum(release[self.pool_of] + self.late, 0), deadline[self.pool_of]
        latest = self.latest(order, deadline)[0] + self.duration
        places = map(self._native, (end, place_of, self._held(order), latest))
        return self._native(opens), self._native(ends), changed, *places

    def _held(self, order: Ints) -> Ints:
        """Memory that its worker holds as each op starts."""
        tasks = self.problem.tasks
        rows = order.reshape(self.workers, self.width)
        change = np.where(rows >= 0, (tasks.takes - tasks.frees)[rows], 0)
        before = np.cumsum(change, axis=1) - change
        held = np.zeros(self.size, dtype=np.int64)
        held[order[order >= 0]] = before.ravel()[order >= 0]
        return held

    def _native(self, values: Ints) -> Any:
        return values if self._compiled else values.tolist()

    def _scratch(self, size: int, fill: int = 0) -> Any:
        return np.full(size, fill, dtype=np.int64) if self._compiled else [fill] * size


def _records(names: Sequence[str], columns: Sequence[Ints]) -> Any:
    """One record per row; what no column is given for is 0."""
    rows = np.zeros(len(columns[0]), dtype=[(name, np.int64) for name in names])
    for name, column in zip(names, columns, strict=False):
        rows[name] = column
    return rows


def _grouped(columns: list[Ints], problem: Problem) -> tuple[Ints, Ints]:
    """A group for every op, and of each group an op that is in it."""
    shape = (3, problem.units, problem.chunks)
    if all((column.reshape(shape) == column.reshape(shape)[:, :1]).all() for column in columns):
        # Ops of a kind on a chunk are alike, as in every graph that nobody has touched.
        kind, _, chunk = np.indices(shape)
        first = np.arange(3)[:, None] * problem.units * problem.chunks + np.arange(problem.chunks)
        return (kind * problem.chunks + chunk).ravel(), first.ravel()
    _, first, group = np.unique(np.array(columns), axis=1, return_index=True, return_inverse=True)
    return group.ravel(), first


def _picked(of: Ints, other: Ints, lag: Ints, size: int) -> tuple[Ints, Ints, Ints]:
    """For every op its first edge: the other end, -1 if there is none, and the lag; and the other edges."""
    order = np.argsort(of, kind="stable")
    is_first = np.diff(of[order], prepend=-1) != 0
    chosen = order[is_first]
    found, ticks = np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=np.int64)
    found[of[chosen]], ticks[of[chosen]] = other[chosen], lag[chosen]
    return found, ticks, order[~is_first]


def _present(problem: Problem) -> Ints:
    """The numbers of the ops that there are."""
    there = np.ones((3, problem.units, problem.chunks), dtype=np.bool_)
    there[2] = np.array(problem.split)
    return np.flatnonzero(there)


def _replicas_of(problem: Problem) -> _Replicas:
    forwards = slice(problem.units * problem.chunks)
    chunk = np.arange(problem.units * problem.chunks) % problem.chunks
    place = problem.tasks.worker[forwards] * problem.chunks + chunk
    replicas, of_op, hosted = np.unique(place, return_inverse=True, return_counts=True)
    worker, chunk = np.divmod(replicas, problem.chunks)
    needs = np.zeros(len(replicas), dtype=np.int64)
    np.maximum.at(needs, of_op, problem.tasks.takes[forwards])
    # What comes later to the same worker must find room, or nothing would ever be given back.
    for replica in reversed(range(len(replicas) - 1)):
        if worker[replica] == worker[replica + 1]:
            needs[replica] += needs[replica + 1]
    return _Replicas(worker, chunk, np.tile(of_op, 3), hosted, needs)


def _array(values: Any) -> Ints:
    return np.asarray(values, dtype=np.int64)


@cache
def _functions(compiled: bool, extra: bool) -> tuple[Any, ...]:
    """The loops, plain or compiled, for graphs with further edges or without."""
    return tuple(_function(loop, compiled, extra) for loop in _LOOPS)


def _function(loop: Any, compiled: bool, extra: bool) -> Any:
    name = f"{loop.__name__}_with_more_edges" if extra else loop.__name__
    made = FunctionType(loop.__code__, {**loop.__globals__, "EXTRA": extra}, name)
    # What numba keeps on disk it finds again by this name.
    made.__qualname__, made.__module__ = name, loop.__module__
    return compile_function(made, **_trees()) if compiled else made


@cache
def _trees() -> dict[str, Any]:
    queue_op = compile_function(moves.queue_op, heap_in=compile_function(moves.heap_in))
    heaps = {"queue_op": queue_op, "heap_out": compile_function(moves.heap_out)}
    return {
        "heappush": compile_function(inner_loops.tree_push),
        "heappop": compile_function(inner_loops.tree_pop),
        **heaps,
        "draw": compile_function(moves.draw),
        "time_again": compile_function(tabu.time_again, **heaps),
        "latest_again": compile_function(tabu.latest_again, **heaps),
    }


_MOST_BLOCKS = 1_000
"""Of a critical path, in which moves are looked for."""
_LOOPS: tuple[Any, ...] = (
    inner_loops.list_schedule,
    inner_loops.earliest_times,
    inner_loops.latest_times,
    inner_loops.swap_neighbours,
    moves.move_ops,
    inner_loops.reach_of_releases,
    inner_loops.windows_of_releases,
    tabu.search_tabu,
)
