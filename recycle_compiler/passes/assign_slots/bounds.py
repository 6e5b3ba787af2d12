"""Lower bounds on the period: what no schedule can beat, whatever it does.

Every bound below argues about one worker of stage s that hosts at least `ceil(units / live)` micro-batches:
some worker must, however work is routed. Write k for that number and c for the activations it can hold.

- ramp-up: before its first backward the worker can only run F, at most c of them, and that backward comes
  no sooner than a round trip through the later stages after the first F. What c - 1 further F do not fill
  is idle.
- tail: once the last backward of s is done, an earlier stage r <= s still needs the backwards from s up to
  r, its own W, reduction and optimizer, while s has only the W it still holds, at most what memory allows.
- tracks: the activations a worker holds at once number at most c, so they can be drawn as c tracks
  of intervals that do not overlap; some track has ceil(k / c) of them, each as long as a round trip at least.
- energy: an activation is held for a round trip at least; all of them must fit into capacity times time.

Ramp-up lies before the first backward and tail after the last one, so both add to the load between them.
"""

from dataclasses import dataclass

from recycle_compiler.passes.assign_slots.problem import UNLIMITED, Problem


@dataclass(frozen=True, slots=True)
class Bound:
    """A period (in ticks) that no schedule goes below, and why."""

    period: int
    reason: str


def lower_bound(problem: Problem) -> Bound:
    """The best of all bounds."""
    bounds = [bound for stage in range(problem.stages) for bound in stage_bounds(problem, stage)]
    return max(bounds, key=lambda bound: bound.period)


def stage_bounds(problem: Problem, stage: int) -> list[Bound]:
    """What the workers of one stage impose, with the live peers they have."""
    live = len(problem.hosts[stage])
    share = -(-problem.units // live)
    return [
        Bound(_whole(problem, stage, share), f"load of stage {stage}"),
        *_tails(problem, stage, share),
        Bound(_tracks(problem, stage, share), f"memory of stage {stage}"),
    ]


def round_trip(problem: Problem, stage: int) -> int:
    """From the end of an F on this stage to the earliest start of its backward."""
    later = range(stage + 1, problem.stages)
    compute = sum(problem.forward[j] + problem.backward[j] for j in later)
    return compute + 2 * sum(problem.transfer[j] for j in range(stage, problem.stages - 1))


def ramp_up(problem: Problem, stage: int, share: int) -> int:
    """Idle time before the first backward of a worker with this many micro-batches."""
    fill = min(share, _holdable(problem, stage)) - 1
    return max(0, round_trip(problem, stage) - fill * problem.forward[stage])


def _holdable(problem: Problem, stage: int) -> int:
    """Whole activations that fit at once."""
    if problem.capacity[stage] == UNLIMITED or problem.activation[stage] == 0:
        return problem.units
    return problem.capacity[stage] // problem.activation[stage]


def _deferrable(problem: Problem, stage: int) -> int:
    """W that can be outstanding when the last backward ends: the last micro-batch is whole until then."""
    if problem.capacity[stage] == UNLIMITED or problem.kept[stage] == 0:
        return problem.units
    return 1 + (problem.capacity[stage] - problem.activation[stage]) // problem.kept[stage]


def _work(problem: Problem, stage: int, share: int) -> int:
    return share * (problem.forward[stage] + problem.backward[stage] + problem.weight[stage])


def _head(problem: Problem, first: int, stage: int) -> int:
    """From the start of an F on stage `first` to its earliest arrival on `stage`."""
    return sum(problem.forward[j] + problem.transfer[j] for j in range(first, stage))


def _whole(problem: Problem, stage: int, share: int) -> int:
    """All work of the worker, with the ramp-up; without stagger also what lies before and after it."""
    busy = ramp_up(problem, stage, share) + _work(problem, stage, share)
    if problem.staggered:
        return busy + problem.finish[stage]
    return _head(problem, 0, stage) + busy + max(problem.finish)


def _tails(problem: Problem, stage: int, share: int) -> list[Bound]:
    """For every earlier stage: its window must hold the way down, the work here, and the way back up."""
    late = min(share, _deferrable(problem, stage)) * problem.weight[stage]
    busy = ramp_up(problem, stage, share) + _work(problem, stage, share) - late
    bounds: list[Bound] = []
    for first in range(stage):
        way_up = sum(problem.backward[j] + problem.transfer[j] for j in range(first, stage))
        way_up += problem.weight[first]
        if problem.staggered:
            period = _head(problem, first, stage) + busy + way_up + problem.finish[first]
        else:
            period = _head(problem, 0, stage) + busy + way_up + max(problem.finish)
        bounds.append(Bound(period, f"tail of stage {stage} through stage {first}"))
    return bounds


def _tracks(problem: Problem, stage: int, share: int) -> int:
    """Memory alone: too few activations at once to hide the round trip."""
    tracks = max(1, min(share, _holdable(problem, stage)))
    trip = problem.forward[stage] + round_trip(problem, stage) + problem.backward[stage]
    whole = problem.kept[stage] == problem.activation[stage]
    held = trip + problem.weight[stage] if whole else trip
    rounds = -(-share // tracks)
    busy = rounds * held + (0 if whole else problem.weight[stage])
    if problem.capacity[stage] != UNLIMITED:
        energy = share * (problem.activation[stage] * trip + problem.kept[stage] * problem.weight[stage])
        busy = max(busy, -(-energy // problem.capacity[stage]))
    if problem.staggered:
        return busy + problem.finish[stage]
    return _head(problem, 0, stage) + busy + max(problem.finish)
