"""Lower bounds on the period: periods that no schedule can go below.

Most bounds argue about one worker of stage s that hosts at least `ceil(units / live)` micro-batches: some
worker must, however work is routed. Write k for that number and c for the activations it can hold.

- ramp-up: before its first backward the worker can only run F, at most c of them, and that backward comes
  no sooner than a round trip through the later stages after the first F. What c - 1 further F do not fill
  is idle.
- drain: the last backward comes no sooner than a round trip after the last F, and all that can fill that
  time is what memory still holds then.
- early end: a later stage that takes longer to reduce must be done with its backwards sooner. From then on
  the worker has no more to do than what memory holds. That stage may begin later and so end later, but then
  the first backward comes later too, which costs ramp-up.
- tail: once the last backward of s is done, an earlier stage r <= s still needs the backwards from s up to
  r, its own W, reduction and optimizer, while s has only the W it still holds, at most what memory allows.
- tracks: the activations a worker holds at once number at most c, so they can be drawn as c tracks
  of intervals that do not overlap; some track has ceil(k / c) of them, each as long as a round trip at least.
- energy: an activation is held for a round trip at least; all of them must fit into capacity times time.
- rounds (round_bounds.py): F number i + c waits for the room of F number i, so between them lies a round
  trip; before the first of such a chain and after the last the worker has its work to do.
- feed: a later stage is open from the first F there on, and the first backward of the worker comes no sooner
  than from there. Before it lie no more F than memory holds, and between it and the last F all the work
  without which that one has no room. That F, too, has to pass the later stage.
- crowd: unless a worker has more than k, several have exactly k, and each of them has a first and a last
  backward. Where another stage has fewer workers than this crowd, those pass it in rounds: one worker of the
  crowd has its first backward that much later, or the last of their last backwards has that much longer a
  way up. This counts up to what k + 1 micro-batches on one worker would cost.

Where a worker holds several chunks, every bound of one chunk still holds: forget the others, and any schedule
is one of a job in which each chunk has such workers for itself, with its window from its own first F on.
Their load together comes on top. Edges that were added to the graph only take schedules away, so all bounds
stay, and the longest path through them is one more.

Both ends (pool_bounds.py) argues about all live workers of a stage at once: how much of its work can be done
in the first and in the last part of its window, given how fast the other stages and memory let it come. The
rest of that time is idle, and all work and all idle time are shared by the live workers. Rounds
(chain_bounds.py) lead from the first op of a stage over F that wait for each other's room to some F, and from
there to the end.

Ramp-up lies before the first backward, drain after the last F, tail after the last backward. So they add to
the load between them, but ramp-up and drain only where memory is too small for the last F to come before
the first backward.
"""

from dataclasses import dataclass
from functools import lru_cache
from graphlib import TopologicalSorter
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from recycle_compiler.ir.graph import Edges
from recycle_compiler.scheduling.chain_bounds import chained_span, outstanding
from recycle_compiler.scheduling.inner_loops import FAR
from recycle_compiler.scheduling.pool_bounds import pooled_span
from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem, Tasks
from recycle_compiler.scheduling.round_bounds import OneWorker, Spans, last_start, spans_in_rounds
from recycle_compiler.scheduling.ways import head, round_trip, ways_from_first

_FACTS = (
    *("chunks", "pipelines", "microbatches", "staggered"),
    *("forward", "backward", "weight", "split", "transfer", "finish", "optimizer"),
    *("activation", "kept", "capacity", "hosts", "pool", "window", "grain"),
)
"""What bounds are made of: all that is said of chunks."""
_ROUNDS, _BOTH_ENDS = "rounds", "both ends"
_LONG = (_ROUNDS, _BOTH_ENDS)
"""Bounds that take longest to follow."""
_MOST_OPS = 20_000
"""Beyond, paths through edges that were added to the graph are not followed."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A period (in ticks) that no schedule goes below, and why."""

    period: int
    reason: str


def lower_bound(problem: Problem) -> Bound:
    """The best of all bounds."""
    known = _lower_bound(*(getattr(problem, name) for name in _FACTS))
    if not problem.has_more_edges or problem.ops > _MOST_OPS:
        return known
    path = path_bound(problem)
    return path if path.period > known.period else known


@lru_cache(maxsize=16)
def _lower_bound(*facts: Any) -> Bound:
    """Placements are compared by their bounds before they are planned, and routes do not matter here."""
    nothing = np.empty(0, dtype=np.int64)
    problem = Problem(
        **dict(zip(_FACTS, facts, strict=True)),
        is_uniform=False,
        worker_capacity=(),
        tasks=Tasks(nothing, nothing, nothing, nothing, Edges(nothing, nothing, nothing)),
        late=nothing,
    )
    bounds = [
        (bound.period, not bound.reason.startswith(_LONG), -len(hosts), bound)
        for stage, hosts in enumerate(problem.hosts)
        for bound in stage_bounds(problem, stage)
    ]
    bounds += [(bound.period, True, 0, bound) for bound in shared_bounds(problem)]
    # Of equal bounds, the one of the stage with most failures says most, but a short argument comes first.
    best = max(bounds, key=lambda entry: entry[:3])[3]
    # Every earliest schedule is made of whole grains.
    return Bound(-(-best.period // problem.grain) * problem.grain, best.reason)


def stage_bounds(problem: Problem, stage: int) -> list[Bound]:
    """What the workers of one stage impose, with the live peers they have."""
    live = len(problem.hosts[stage])
    share = -(-problem.units // live)
    full = problem.units - live * (share - 1)
    # Either `full` workers have exactly a share, or some worker has more than that.
    more = int(_worker_bounds(problem, stage, share + 1, 1).max())
    alone, crowded = (_worker_bounds(problem, stage, share, crowd) for crowd in (1, full))
    periods = np.maximum(alone, np.minimum(crowded, more)).tolist()
    # Where workers hold several chunks, what is numbered here are chunks.
    noun = "stage" if len(set(problem.pool)) == problem.chunks else "chunk"
    reasons = (
        f"load of {noun} {stage}",
        *(f"tail of {noun} {stage} through {noun} {first}" for first in range(stage)),
        f"memory of {noun} {stage}",
    )
    return [
        *(Bound(period, reason) for period, reason in zip(periods, reasons, strict=True)),
        Bound(_window(problem, stage, pooled_span(problem, stage)), f"{_BOTH_ENDS} of {noun} {stage}"),
        Bound(_window(problem, stage, chained_span(problem, stage)), f"{_ROUNDS} of {noun} {stage}"),
        *(
            Bound(period, f"feed of {noun} {stage} to {noun} {later}")
            for later, period in _fed(problem, stage)
        ),
    ]


def shared_bounds(problem: Problem) -> list[Bound]:
    """The load of workers that hold several chunks: all their work, and what all their chunks take to end."""
    bounds: list[Bound] = []
    for pool, workers in enumerate(problem.pool_hosts):
        chunks = [chunk for chunk in range(problem.chunks) if problem.pool[chunk] == pool]
        if len(chunks) == 1:
            continue
        each = sum(problem.forward[c] + problem.backward[c] + problem.weight[c] for c in chunks)
        busy = -(-problem.units * each // len(workers))
        if problem.staggered:
            period = busy + problem.pool_finish[pool]
        else:
            period = head(problem, 0, chunks[0]) + busy + problem.closing
        bounds.append(Bound(period, f"load of the workers with chunks {', '.join(map(str, chunks))}"))
    return bounds + tied_bounds(problem)


def tied_bounds(problem: Problem) -> list[Bound]:
    """Of chunks that reduce together: the first is open until the work of the others is done.

    Some worker of a later one has an even share of all micro-batches, and cannot begin before one of them has
    come all the way from the first.
    """
    window = [problem.window[pool] for pool in problem.pool]
    pairs = combinations(range(problem.chunks), 2) if problem.is_tied else ()
    bounds: list[Bound] = []
    for first, later in pairs:
        if window[first] == window[later]:
            share = -(-problem.units // len(problem.hosts[later]))
            busy = head(problem, first, later) + _work(problem, later, share)
            bounds.append(Bound(busy + problem.finish[first], f"stage {first}, tied to stage {later}"))
    return bounds


def path_bound(problem: Problem) -> Bound:
    """The longest path through the edges of the graph between two ops of one window.

    A window is open from the start of the first of them at the latest, and closes no sooner than the end of
    the second and of its chunk's reduction and step.
    """
    before, after, lag = problem.tasks.edges
    size = len(problem.tasks.duration)
    # Tied pools open on their own, so a path between two of them says nothing about either.
    pools = np.arange(problem.pools) if problem.is_tied else np.array(problem.window)
    window = pools[list(problem.pool)][np.arange(size) % problem.chunks]
    # [op, window]: the longest path to the op's start from the start of an op of the window.
    length = np.full((size, int(window.max()) + 1), -FAR, dtype=np.int64)
    length[np.arange(size), window] = 0
    into: dict[int, list[tuple[int, int]]] = {}
    for first, then, ticks in zip(before.tolist(), after.tolist(), lag.tolist(), strict=True):
        into.setdefault(then, []).append((first, ticks))
    duration = problem.tasks.duration
    sorter = TopologicalSorter({then: [first for first, _ in edges] for then, edges in into.items()})
    for then in sorter.static_order():
        for first, ticks in into.get(then, ()):
            np.maximum(length[then], length[first] + duration[first] + ticks, out=length[then])
    ends = length[np.arange(size), window] + duration
    ends += np.array(problem.finish)[np.arange(size) % problem.chunks]
    if not problem.staggered:
        ends += problem.closing - np.array(problem.finish)[np.arange(size) % problem.chunks]
    longest = int(ends.max())
    return Bound(-(-longest // problem.grain) * problem.grain, "the longest path through the graph")


def _worker_bounds(problem: Problem, stage: int, share: int, crowd: int) -> Ints:
    """What must hold for some worker out of a crowd that have this many micro-batches each.

    Its load, its tails through every earlier stage, its memory.
    """
    load, memory = _whole(problem, stage, share, crowd), _memory(problem, stage, share, crowd)
    return np.array([load, *_tails(problem, stage, share, crowd), memory], dtype=np.int64)


class _Columns(NamedTuple):
    """What is said of chunks, as arrays."""

    forward: Ints
    backward: Ints
    weight: Ints
    finish: Ints
    live: Ints
    """Workers."""
    down: Ints
    """From chunk 0 to each: F and transfers."""
    way_up: Ints
    """Back from there: backwards and transfers."""


@lru_cache(maxsize=4)
def _columns(problem: Problem) -> _Columns:
    down, way_up = (np.array(way, dtype=np.int64) for way in ways_from_first(problem))
    forward, backward, weight, finish = (
        np.array(values, dtype=np.int64)
        for values in (problem.forward, problem.backward, problem.weight, problem.finish)
    )
    live = np.array([len(hosts) for hosts in problem.hosts], dtype=np.int64)
    return _Columns(forward, backward, weight, finish, live, down, way_up)


@lru_cache(maxsize=8)
def ramp_up(problem: Problem, stage: int, share: int, crowd: int = 1) -> int:
    """Idle time before the first backward of some worker in a crowd with this many micro-batches each."""
    trip = round_trip(problem, stage)
    if crowd > 1 and stage + 1 < problem.chunks:
        of, later = _columns(problem), slice(stage + 1, None)
        # The first backwards of the crowd pass a later stage in rounds. The last of them finds that stage
        # busy with the others' F on its way down, and with their backwards on its way up.
        path = of.down[later] - of.down[stage] + of.way_up[later] - of.way_up[stage]
        rounds = -(-crowd // of.live[later])
        work = path + rounds * (of.forward[later] + of.backward[later])
        behind = trip + (rounds - 1) * np.maximum(of.forward[later], of.backward[later])
        here = problem.forward[stage] + problem.backward[stage]
        trip = max(int(work.max()) - here, int(behind.max()))
    return max(0, trip - _fill(problem, stage, share))


def _fill(problem: Problem, stage: int, share: int) -> int:
    """What F can fill of the round trip of the first one."""
    return (min(share, problem.holdable(stage)) - 1) * problem.forward[stage]


def _deferrable(problem: Problem, stage: int) -> int:
    """W that can be outstanding when the last backward ends: the last micro-batch is whole until then."""
    if problem.capacity[stage] == UNLIMITED or problem.kept[stage] == 0:
        return problem.units
    return 1 + (problem.capacity[stage] - problem.activation[stage]) // problem.kept[stage]


@lru_cache(maxsize=8)
def _slack_at_end(problem: Problem, stage: int, share: int) -> int:
    """Outstanding work beyond the round trip of the last F; where negative, the worker idles that long."""
    wait = round_trip(problem, stage) + problem.backward[stage]
    return outstanding(problem, stage, share) - wait


def _ends_apart(problem: Problem, stage: int, share: int) -> bool:
    """The last F comes after the first backward, because memory cannot hold all micro-batches at once."""
    return share > problem.holdable(stage)


def _work(problem: Problem, stage: int, share: int) -> int:
    return share * (problem.forward[stage] + problem.backward[stage] + problem.weight[stage])


def _window(problem: Problem, stage: int, busy: int) -> int:
    """The period, when this stage takes so long from its first op to its last."""
    if problem.staggered:
        return busy + problem.finish[stage]
    return head(problem, 0, stage) + busy + problem.closing


def _whole(problem: Problem, stage: int, share: int, crowd: int) -> int:
    """All work of the worker and its idle time; without stagger also what lies before it."""
    drain = max(0, problem.weight[stage] - _slack_at_end(problem, stage, share))
    early = _after_early_end(problem, stage, share)

    def idle(ramp: int) -> int:
        if not _ends_apart(problem, stage, share):
            return max(ramp, drain)
        # So much later a stage may begin before the first backward comes later than after this ramp-up.
        spare = ramp + _fill(problem, stage, share) - round_trip(problem, stage)
        return ramp + max(drain, early - spare)

    longest = idle(ramp_up(problem, stage, share, crowd))
    if not problem.staggered:
        late = int(_begins_late(problem, stage, crowd).max(initial=0))
        longest = max(longest, late + idle(ramp_up(problem, stage, share)))
    return _window(problem, stage, longest + _work(problem, stage, share))


def _after_early_end(problem: Problem, stage: int, share: int) -> int:
    """Idle time from the last backward of a later stage to the end of this one's window, if that stage begins
    as soon as it can; where negative, there is work for all of that time."""
    later = slice(stage + 1, None)
    if not problem.staggered or stage + 1 == problem.chunks:
        return 0
    of = _columns(problem)
    begins = of.down[later] - of.down[stage]
    sooner = of.finish[later] + of.weight[later] - problem.finish[stage] - begins
    return int(sooner.max()) - outstanding(problem, stage, share, least=0)


def _begins_late(problem: Problem, stage: int, crowd: int) -> Ints:
    """By how much some worker of the crowd begins later than it could, seen from every earlier stage.

    The first F of each of them passes all stages from there on in rounds.
    """
    of = _columns(problem)
    again = -(-crowd // of.live[:stage]) - 1
    return np.maximum.accumulate((again * of.forward[:stage])[::-1])[::-1]


def _tails(problem: Problem, stage: int, share: int, crowd: int) -> Ints:
    """For every earlier stage: its window must hold the way down, the work here, and the way back up.

    Of a crowd, one worker is late at the start and one must be early at the end, perhaps not the same one.
    """
    busy, crowded = (
        max(
            _busy_to_last_backward(problem, stage, share, size),
            _in_rounds(problem, stage, share, size).to_last_backward,
        )
        for size in (1, crowd)
    )
    of = _columns(problem)
    backward, weight = of.backward[:stage], of.weight[:stage]
    # The last backwards of the crowd pass every stage on the way in rounds.
    again = -(-crowd // of.live[:stage]) - 1
    # The longest that the crowd holds up a stage between, on the way from here to each of them.
    held_up = np.zeros(stage, dtype=np.int64)
    held_up[:-1] = np.maximum.accumulate((again * backward)[:0:-1])[::-1]
    early = np.maximum(held_up, again * (backward + weight))
    way_up = of.way_up[stage] - of.way_up[:stage] + weight
    late = np.maximum(crowded - busy, _begins_late(problem, stage, crowd))
    window = busy + np.maximum(late, early) + way_up
    if problem.staggered:
        return of.down[stage] - of.down[:stage] + window + of.finish[:stage]
    return of.down[stage] + window + problem.closing


def _busy_to_last_backward(problem: Problem, stage: int, share: int, crowd: int) -> int:
    """From the start of the stage to the last backward of the worker."""
    ramp = ramp_up(problem, stage, share, crowd)
    late = min(share, _deferrable(problem, stage)) * problem.weight[stage]
    slack = _slack_at_end(problem, stage, share)
    # What remains to be done after the last backward, less the idle time that leaving it costs.
    apart = _ends_apart(problem, stage, share)
    saved = ramp - min(late, slack) if apart else max(ramp - late, -slack)
    return _work(problem, stage, share) + saved


def _memory(problem: Problem, stage: int, share: int, crowd: int) -> int:
    """Too few activations at once to hide the round trip, alone or with the work between."""
    rounds = _window(problem, stage, _in_rounds(problem, stage, share, crowd).whole)
    return max(rounds, _tracks(problem, stage, share))


@lru_cache(maxsize=8)
def _in_rounds(problem: Problem, stage: int, share: int, crowd: int) -> Spans:
    """What a worker takes that has to wait for room, round after round."""
    if problem.capacity[stage] == UNLIMITED or problem.activation[stage] == 0:
        return Spans(0, 0)
    return spans_in_rounds(_one_worker(problem, stage, share, crowd))


def _one_worker(problem: Problem, stage: int, share: int, crowd: int = 1) -> OneWorker:
    slack = _slack_at_end(problem, stage, share)
    weight = problem.weight[stage]
    return OneWorker(
        share,
        problem.forward[stage],
        problem.backward[stage],
        weight,
        round_trip(problem, stage),
        ramp_up(problem, stage, share, crowd),
        max(0, weight - slack),
        min(share, _deferrable(problem, stage)) * weight,
        slack,
        problem.capacity[stage],
        problem.activation[stage],
        problem.kept[stage],
    )


def until_last_forward(problem: Problem, stage: int) -> int:
    """From the first backward of a worker with its share to its last F, where memory does not hold all."""
    share = -(-problem.units // len(problem.hosts[stage]))
    return last_start(_one_worker(problem, stage, share))


def _fed(problem: Problem, stage: int) -> list[tuple[int, int]]:
    """The later stage that waits longest for a worker of this one with little memory, and the period then."""
    share = -(-problem.units // len(problem.hosts[stage]))
    if stage + 1 == problem.chunks or not _ends_apart(problem, stage, share):
        return []
    of, later = _columns(problem), slice(stage + 1, None)
    # There: from an F to the end of its backward; from there on the way up to the start of one here.
    beyond = (of.forward + of.backward)[-1] - (of.forward + of.backward)[later]
    trip = (of.down + of.way_up)[-1] - (of.down + of.way_up)[later] + beyond
    passed = of.forward[later] + trip + of.backward[later]
    back = of.way_up[later] - of.way_up[stage] - problem.backward[stage]
    between = until_last_forward(problem, stage)
    arrives = passed + back + between + of.down[later] - of.down[stage]
    window = arrives + passed + of.weight[later]
    closing = of.finish[later] if problem.staggered else of.down[later] + problem.closing
    longest = int((window + closing).argmax())
    return [(stage + 1 + longest, int((window + closing)[longest]))]


def _tracks(problem: Problem, stage: int, share: int) -> int:
    """Memory alone."""
    tracks = max(1, min(share, problem.holdable(stage)))
    trip = problem.forward[stage] + round_trip(problem, stage) + problem.backward[stage]
    whole = problem.kept[stage] == problem.activation[stage]
    held = trip + problem.weight[stage] if whole else trip
    rounds = -(-share // tracks)
    busy = rounds * held + (0 if whole else problem.weight[stage])
    if problem.capacity[stage] > 0:
        energy = share * (problem.activation[stage] * trip + problem.kept[stage] * problem.weight[stage])
        busy = max(busy, -(-energy // problem.capacity[stage]))
    return _window(problem, stage, busy)
