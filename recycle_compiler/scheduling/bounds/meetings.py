"""Time of the rounds of a stage whose workers do everything together.

Where peers share experts, the live workers of a stage are one machine. With l of them, u micro-batches are R
rounds, u / l at least, and the machine has each of these F, backwards and W to do. R may be more than it has
to be, so the bound is the least over all R; each further round costs its work.

Rounds are short of R l - u micro-batches in all. So the first r rounds have at least n(r) = u - (R - r) l
micro-batches, and r, since none is empty; so have the last r. From this follows, with what the bound of both
ends knows of the q-th op of a kind on any stage:

- round r begins no sooner than op number n(r) of those that begin one by one can, and at the end of the
  iteration the same holds backwards in time;
- the first F waits for n(1) micro-batches. A stage before it with fewer workers has run several rounds by
  then, and the first F there lies by these rounds further back;
- the last backward has n(1) micro-batches as well, which leave through such a stage in several rounds; and
  where stages step on their own, its window closes by as much sooner as it has opened.

All rounds and what the machine idles at both ends are a span that no plan in rounds goes below.
"""

from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.bounds.both_ends import ends_of_ops, least_idle, starts_of_ops
from recycle_compiler.scheduling.bounds.bound import SpanTerm, ends_of_window, times_of, work_term
from recycle_compiler.scheduling.bounds.rounds import leaves
from recycle_compiler.scheduling.problem import Ints, Problem
from recycle_compiler.scheduling.ways import ends_before, rounds_on, up


class Meetings(NamedTuple):
    name: str = "meetings"
    claim: str = "all workers of a stage run each of its rounds together, and wait for whole rounds to arrive"

    def span(self, problem: Problem, stage: int) -> int:
        return _shortest(problem, stage).span

    def terms(self, problem: Problem, stage: int) -> tuple[SpanTerm, ...]:
        best = _shortest(problem, stage)
        return (
            SpanTerm(best.gathered, f"the first of {best.first} F in a round waits for the last"),
            work_term(problem, stage, best.rounds, noun="round"),
            SpanTerm(best.at_start, "idle at the start, for want of rounds that have arrived or fit memory"),
            SpanTerm(best.at_end, "idle at the end, for want of rounds that can be left until then"),
            *ends_of_window(problem, stage, stage),
        )


class _Machine(NamedTuple):
    """Least time of so many rounds."""

    span: int
    rounds: int
    first: int
    """Micro-batches of the first round, and of the last."""
    gathered: int
    at_start: int
    at_end: int


def _shortest(problem: Problem, stage: int) -> _Machine:
    """The number of rounds that may take least."""
    each, live = sum(times_of(problem, stage)), len(problem.hosts[stage])
    fewest = -(-problem.units // live)
    best = _with_rounds(problem, stage, fewest)
    for rounds in range(fewest + 1, problem.units + 1):
        if rounds * each >= best.span:
            break
        best = min(best, _with_rounds(problem, stage, rounds))
    return best


def _with_rounds(problem: Problem, stage: int, rounds: int) -> _Machine:
    number = np.arange(1, rounds + 1, dtype=np.int64)
    least = np.maximum(number, problem.units - (rounds - number) * len(problem.hosts[stage]))
    first = int(least[0])
    at_start = starts_of_ops(problem, stage, first)
    at_end = ends_of_ops(problem, stage, _leave_together(problem, stage, first))
    work, times = rounds * sum(times_of(problem, stage)), times_of(problem, stage)
    starts, ends = (type(ops)(*(kind[least - 1] for kind in ops)) for ops in (at_start, at_end))
    idle = least_idle(work, 1, times, starts, ends)
    # Behind one barrier for all, what lies before the stage counts; else each window is for itself.
    gathered = 0 if problem.staggered else _gathering(problem, 0, stage, first)
    return _Machine(gathered + work + sum(idle), rounds, first, gathered, *idle)


def _gathering(problem: Problem, earlier: int, stage: int, first: int) -> int:
    """From the arrival of one micro-batch that an earlier stage has sent to that of so many, at least."""
    before = range(earlier, stage)
    rounds = ((each, int(rounds_on(problem, each)[first - 1]) - 1) for each in before)
    return max((more * problem.forward[each] for each, more in rounds), default=0)


def _leave_together(problem: Problem, stage: int, first: int) -> Ints:
    """From the end of the last, last but one ... backward of this stage to the latest end of its window,
    where so many end together, and as many F have begun together."""
    gone = leaves(problem, stage)
    for earlier in range(stage):
        sooner = ends_before(problem, earlier, stage)
        if problem.staggered:
            sooner += _gathering(problem, earlier, stage, first)
        after = problem.weight[earlier] + sooner
        for slow in range(earlier, stage):
            on = up(problem, slow, earlier) + problem.backward[earlier] * (earlier < slow)
            way = up(problem, stage, slow) + rounds_on(problem, slow) * problem.backward[slow] + on
            gone = np.maximum(gone, way + after)
    return np.maximum(gone, gone[first - 1])
