"""The schedules of ReCycle as published, which ours are measured against.

- The micro-batches of a failed worker go to its live peers in turn.
- Backward is split only on stages that have lost a worker; elsewhere it stays whole.
- The optimizer is staggered.
- Ops run in the order of 1F1B: a backward as soon as there is one, W when nothing else can run.

The published planner settles the order with a MILP that is not public. In its favour several depths of
running ahead are tried and the best counts, and failures lie where they do best: spread evenly, with the rest
on the first stages, the last, those in the middle, or on the fastest. In a large job a try takes long, so
only those are made that won in nearly all of the large jobs that were looked at.

A rule is no MILP. On the running example (3 pipelines of 4 stages, one failure) it meets the published 30
slots with all techniques and no memory limit, but takes 42 with re-routing alone where 39 are possible.

Each technique can be switched off. Without `decouple` backwards stay whole everywhere, without `stagger` all
stages step behind one barrier, and without `adaptive` a failure takes its whole pipeline out of work.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.route_microbatches import routes
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling.problem import Problem, problem_of
from recycle_compiler.scheduling.rules import NO_LIMIT, Rule, Setting, greedy_priority, rule_of
from recycle_compiler.scheduling.timing import Clock

Counts = tuple[int, ...]
"""Failed workers on each stage."""
ALL = Techniques()
_LARGE = 20_000
"""Ops of a large job."""


def recycle_period(job: JobSpec, planned: Counts, techniques: Techniques = ALL) -> int:
    """Ticks per iteration with as many failures as `planned` has, there or spread evenly."""
    placements = sorted({planned, *spread(job, sum(planned))})
    return min(period_with(job, counts, techniques) for counts in placements)


def best_placement(job: JobSpec, failures: int, techniques: Techniques = ALL) -> tuple[int, Counts]:
    """The shortest period with this many failures, in ticks, and where they lie then."""
    placements = sorted(set(spread(job, failures)))
    return min((period_with(job, counts, techniques), counts) for counts in placements)


def is_large(job: JobSpec) -> bool:
    """Whether a try takes so long that few of them are made."""
    return 3 * job.workers * job.microbatches > _LARGE


def spread(job: JobSpec, failures: int) -> Iterator[Counts]:
    """As even as can be; the rest on those in the middle, the fastest, the first stages or the last."""
    stages = job.stages
    each, more = divmod(failures, stages)
    yield _even(stages, each, range((stages - more) // 2, (stages - more) // 2 + more))
    yield _even(stages, each, sorted(range(stages), key=lambda stage: (_busy(job, stage), stage))[:more])
    if not is_large(job):
        yield _even(stages, each, range(more))
        yield _even(stages, each, range(stages - more, stages))


@lru_cache(maxsize=4096)
def period_with(job: JobSpec, counts: Counts, techniques: Techniques = ALL) -> int:
    """Ticks per iteration with these losses on the stages: the best of several tries."""
    problem = problem_with(job, counts, techniques)
    clock = Clock(problem)
    priority = greedy_priority(problem)
    best: int | None = None
    for rule in _rules(problem, few=is_large(job)):
        # Nothing shorter is sought within a try than would beat those before it.
        timed = clock.time(clock.loops.place(priority, rule), None if best is None else best - 1)
        best = best if timed is None else timed.period
    assert best is not None
    return best


def problem_with(job: JobSpec, counts: Counts, techniques: Techniques = ALL) -> Problem:
    """The timing problem with whole backwards but on stages with losses."""
    coupled = replace(job, techniques=replace(techniques, decouple=False))
    problem = _healthy(coupled)
    hosts = Target(coupled, normal_form(counts, job.pipelines)).hosts
    split = tuple(techniques.decouple and losses > 0 for losses in counts)

    def where_split(yes: tuple[int, ...], no: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a if apart else b for apart, a, b in zip(split, yes, no, strict=True))

    return replace(
        problem,
        hosts=hosts,
        host=routes(coupled, hosts).reshape(-1, job.chunks),
        split=split,
        backward=where_split(job.backward_input, problem.backward),
        weight=where_split(job.backward_weight, problem.weight),
        kept=where_split(job.kept_for_weight, problem.kept),
    )


@lru_cache(maxsize=4)
def _healthy(job: JobSpec) -> Problem:
    """Without failures."""
    return problem_of(job, (), GRAPH_PASSES.run(Target(job, ())).ops)


def _rules(problem: Problem, few: bool) -> Iterator[Rule]:
    """What varies: how far a stage runs ahead, whether it puts off W, and patience for a better op."""
    defers, waits = ((NO_LIMIT,), (0,)) if few else ((NO_LIMIT, 0), (0, 100))
    for ahead, defer, patience in product((0, 1, 2, problem.stages), defers, waits):
        yield rule_of(problem, Setting(ahead, defer, patience=(patience, patience)))


def _even(stages: int, each: int, more: Collection[int]) -> Counts:
    return tuple(each + (stage in more) for stage in range(stages))


def _busy(job: JobSpec, stage: int) -> int:
    return job.forward[stage] + job.backward_input[stage] + job.backward_weight[stage]
