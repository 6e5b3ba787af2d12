"""ReCycle's techniques used as published, as a baseline for our plans.

- The micro-batches of a failed worker go to its live peers in turn.
- Backward is split only on stages that have lost a worker; elsewhere it stays whole.
- The optimizer is staggered.
- Ops run in the order of 1F1B: a backward as soon as there is one, W when nothing else can run.

The published planner settles the order with a MILP that is not public. In its favour several depths of
running ahead are tried and the best counts, and failures lie where they do best: as in our plan, or spread
evenly.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots.problem import Problem, problem_of
from recycle_compiler.passes.assign_slots.rules import NO_LIMIT, Rule, Setting, greedy_priority, rule_of
from recycle_compiler.passes.assign_slots.timing import Clock
from recycle_compiler.passes.pipeline import run_passes
from recycle_compiler.passes.registry import GRAPH_PASSES

Counts = tuple[int, ...]


def recycle_period(job: JobSpec, planned: Counts) -> int:
    """Ticks per iteration with as many failures as `planned` has, there or spread evenly."""
    return min(_period(job, counts) for counts in sorted({planned, *_spread(job.stages, sum(planned))}))


def _spread(stages: int, failures: int) -> Iterator[Counts]:
    """As even as can be; what does not divide goes to the first stages, the last, or those in the middle."""
    each, more = divmod(failures, stages)
    for first in (0, stages - more, (stages - more) // 2):
        yield tuple(each + (first <= stage < first + more) for stage in range(stages))


def _period(job: JobSpec, counts: Counts) -> int:
    problem = problem_with(job, counts)
    clock = Clock(problem)
    priority = greedy_priority(problem)
    periods: list[int] = []
    for rule in _rules(problem):
        timed = clock.time(clock.loops.place(priority, rule))
        assert timed is not None
        periods.append(timed.period)
    return min(periods)


def _rules(problem: Problem) -> Iterator[Rule]:
    """What varies: how far a stage runs ahead, whether it puts off W, and patience for a better op."""
    for ahead, defer, patience in product((0, 1, 2, problem.stages), (NO_LIMIT, 0), (0, 100)):
        yield rule_of(problem, Setting(ahead, defer, patience=(patience, patience)))


def problem_with(job: JobSpec, counts: Counts) -> Problem:
    """The timing problem with whole backwards but on stages with losses."""
    coupled = replace(job, techniques=Techniques(adaptive=True, decouple=False, stagger=True))
    failed = normal_form(counts, job.pipelines)
    problem = problem_of(coupled, failed, run_passes(GRAPH_PASSES, Target(coupled, failed)).ops)
    split = tuple(losses > 0 for losses in counts)

    def where_split(yes: tuple[int, ...], no: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a if apart else b for apart, a, b in zip(split, yes, no, strict=True))

    return replace(
        problem,
        split=split,
        backward=where_split(job.backward_input, problem.backward),
        weight=where_split(job.backward_weight, problem.weight),
        kept=where_split(job.kept_for_weight, problem.kept),
    )
