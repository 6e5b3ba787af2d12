"""Bound of a wide stage behind narrower ones, where every stage steps on its own.

Micro-batches reach a stage no faster than the stages before it let them pass: the third F behind a stage with
two workers comes one of their F after the first two. A stage with more workers could begin with the first F
that arrives, but its window opens with that, and closes a period later for all of its workers:

- of `units` micro-batches on n workers with k = ceil(units / n) each at most, units - n (k - 1) workers have
  exactly k, or some worker has more. The last of these workers to begin starts no sooner than so many F have
  arrived, and has the load of k micro-batches before it;
- so the window of the stage opens so much before that as the period is longer than this load, and no more;
- F that set out before the window opens do not exist, so all of the stage's F are that late, and so is what
  comes to the stages behind it, and what comes back.

Counted from the first F of the first stage, whose window closes a period later: its backwards return so much
later, and the last of them still have to leave. The shorter the period, the later windows open, so the least
period that such a chain allows is found by bisection.
"""

from collections.abc import Sequence

import numpy as np

from recycle_compiler.scheduling.bounds.bound import Bound, share_of, times_of
from recycle_compiler.scheduling.bounds.load import ramp_up
from recycle_compiler.scheduling.bounds.one_worker import round_after_round
from recycle_compiler.scheduling.bounds.rounds import leaves, returns
from recycle_compiler.scheduling.problem import Ints, Problem


def feeding_bound(problem: Problem, known: int) -> Bound | None:
    """The bound, if it is more than a period that is known to be one."""
    one_by_one = problem.pools == problem.chunks and not problem.is_tied
    if not (problem.staggered and one_by_one) or _grows_nowhere(problem):
        return None
    high, _ = allowed_by(problem, known)
    if high <= known:
        return None
    low = known
    while high - low > 1:
        middle = (low + high) // 2
        if allowed_by(problem, middle)[0] > middle:
            low = middle
        else:
            high = middle
    # A period shorter by one is too short for some stage that cannot open in time.
    return Bound(high, f"feeding of stage {allowed_by(problem, low)[1]}")


def _grows_nowhere(problem: Problem) -> bool:
    """True if no stage has more workers than each one before it."""
    workers = [len(hosts) for hosts in problem.hosts]
    return all(workers[stage] <= min(workers[:stage]) for stage in range(1, len(workers)))


def allowed_by(problem: Problem, period: int) -> tuple[int, int]:
    """The least period whose end the first stage meets if windows open as late as this period makes them;
    and the last stage that waits for more than its first F."""
    arrived = passed(problem, 0, np.zeros(problem.units, dtype=np.int64))
    opens, late = [0], 0
    for stage in range(1, problem.chunks):
        arrived = arrived + problem.forward[stage - 1] + problem.transfer[stage - 1]
        opened = opens_at(problem, stage, arrived, period)
        late = stage if opened > arrived[0] else late
        opens.append(max(int(arrived[0]), opened))
        arrived = passed(problem, stage, np.maximum(arrived, opens[-1]))
    back = came_back(problem, opens)[0]
    # The last ones of the first stage, from the end of their backwards on.
    return int((back[::-1] + leaves(problem, 0)).max()) + problem.closes(0), late


def came_back(problem: Problem, opens: Sequence[int]) -> list[Ints]:
    """The earliest ends of the backwards of each stage, whose windows open then."""
    found: list[Ints] = []
    back = np.zeros(problem.units, dtype=np.int64)
    for stage in reversed(range(problem.chunks)):
        start = opens[stage] + returns(problem, stage)
        if stage + 1 < problem.chunks:
            start = np.maximum(start, back + problem.transfer[stage])
        back = start + problem.backward[stage]
        found.append(back)
    return found[::-1]


def passed(problem: Problem, stage: int, arrived: Ints) -> Ints:
    """The earliest starts of the stage's F: its workers run one at a time each."""
    return round_after_round(arrived, len(problem.hosts[stage]), problem.forward[stage])


def opens_at(problem: Problem, stage: int, arrived: Ints, period: int) -> int:
    """Earliest time at which the window of a stage opens if it is this long."""
    live, share = len(problem.hosts[stage]), share_of(problem, stage)
    each = sum(times_of(problem, stage))
    if (share + 1) * each + problem.closes(stage) <= period:
        # Some worker may have one more.
        return 0
    crowd = problem.units - live * (share - 1)
    busy = share * each + ramp_up(problem, stage) + problem.closes(stage)
    return int(arrived[crowd - 1]) + busy - period
