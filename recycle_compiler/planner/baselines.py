"""Schedules that plans are compared with: those of the literature for one healthy pipeline, and ReCycle's.

    GPipe     all F, then all B
    1F1B      stage s runs S - 1 - s micro-batches ahead, then one F and one B in turn
    ZB-H1     the same with B split: W stays s micro-batches behind I, so every stage holds S activations
    ZB-H2     twice as far ahead and twice as far behind: 2 S - 1 activations, and no bubble where F = I = W

They are orders of ops, derived from what their authors say about them. In the zero-bubble ones a stage that
runs ahead less far keeps more W back, and fills the time after its last I with them. Times are the earliest
that an order allows; memory is what it takes, whatever the job has.

ReCycle as published:

- The micro-batches of a failed worker go to its live peers in turn.
- Backward is split only on stages with a failure; elsewhere it stays whole.
- The optimizer is staggered.
- Ops run in the order of 1F1B: a backward as soon as there is one, W when nothing else can run.

The published planner settles the order with a MILP that is not public. In its favour several depths of
running ahead are tried and the best counts, and failures lie where they do best: spread evenly, with the rest
on the first stages, the last, those in the middle, or on the fastest. In a large job a try takes long, so
only those are made that won in nearly all of the large jobs that were looked at.

A plan for more failures than there are can be used as well: workers that it counts as failed are standbys. It
is quicker where splitting more backwards gains more than the further workers are worth. So a failure fewer
never makes an iteration longer, as with our own plans.

A rule is no MILP. On the running example (3 pipelines of 4 stages, one failure) it meets the published 30
slots with all techniques and no memory limit, but takes 42 with re-routing alone where 39 are possible.

Each technique can be switched off. Without `decouple` backwards stay whole everywhere, without `stagger` all
stages step behind one barrier, and without `adaptive` a failure takes its whole pipeline out of work.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.state import without_undo
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.build_graph import BuildGraph
from recycle_compiler.passes.one_f_one_b import OneFOneB
from recycle_compiler.passes.route_microbatches import RouteMicrobatches
from recycle_compiler.passes.split_backward import SplitBackward
from recycle_compiler.passes.stagger_optimizer import StaggerOptimizer
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling.budget import Sizes
from recycle_compiler.scheduling.inner_loops import BACKWARD, FORWARD, WEIGHT
from recycle_compiler.scheduling.problem import Ints, Problem, problem_of
from recycle_compiler.scheduling.rules import NO_LIMIT, GreedyRule, RuleSetting, greedy_priority, rule_of
from recycle_compiler.scheduling.timing import Clock

Counts = tuple[int, ...]
"""Failed workers on each stage."""
ALL = Techniques()
Order = list[tuple[int, int]]
"""Ops of one worker in order: kinds and micro-batches."""


@dataclass(frozen=True, slots=True)
class Textbook:
    """Costs of a schedule of the literature; times in ticks."""

    name: str
    makespan: int
    period: int
    """With one barrier for all before the optimizer."""
    staggered_period: int
    """Period if each stage reduces and steps on its own."""
    memory: tuple[int, ...]
    """For each stage, the most that its worker holds."""


def one_f_one_b_period(job: JobSpec) -> int:
    """Ticks per iteration of textbook 1F1B on the healthy grid: coupled backward, one barrier.

    Pipelines do not meet before the barrier, so one of them is enough. Nothing is ever undone, so there is
    room for what a staggered step would keep.
    """
    one = replace(
        without_undo(job.without_rounds),
        pipelines=1,
        failures=0,
        vacant=0,
        techniques=Techniques(adaptive=False, decouple=False, stagger=False),
    )
    return (GRAPH_PASSES >> OneFOneB()).run(Target(one, ())).claims.period


def textbook_schedule(job: JobSpec, name: str) -> Textbook:
    """The schedule of this name (a key of ORDERS), for one pipeline of the job."""
    problem, apart = (_one_pipeline(job, name in _SPLIT, stagger) for stagger in (False, True))
    orders = [ORDERS[name](problem.chunks, problem.units, stage) for stage in range(problem.chunks)]
    flat = _flat(problem, orders)
    barrier, staggered = (Clock(each).time(flat) for each in (problem, apart))
    assert barrier is not None and staggered is not None
    return Textbook(
        name=name,
        makespan=barrier.period - problem.closing,
        period=barrier.period,
        staggered_period=staggered.period,
        memory=tuple(max(_held(problem, stage, order)) for stage, order in enumerate(orders)),
    )


def gpipe(stages: int, microbatches: int, stage: int) -> Order:
    """Everything forward, then everything backward."""
    return _in_turn(microbatches, microbatches, None)


def one_f_one_b(stages: int, microbatches: int, stage: int) -> Order:
    """Backward as soon as it can be."""
    return _in_turn(microbatches, stages - 1 - stage, None)


def zb_h1(stages: int, microbatches: int, stage: int) -> Order:
    """Zero bubble in 1F1B's memory."""
    return _in_turn(microbatches, stages - 1 - stage, stage)


def zb_h2(stages: int, microbatches: int, stage: int) -> Order:
    """Zero bubble in twice that."""
    return _in_turn(microbatches, 2 * (stages - 1 - stage), 2 * stage)


ORDERS: dict[str, Callable[[int, int, int], Order]] = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "ZB-H1": zb_h1,
    "ZB-H2": zb_h2,
}
"""By name: from stages, micro-batches and a stage to what its worker runs."""
_SPLIT = ("ZB-H1", "ZB-H2")


def _in_turn(microbatches: int, ahead: int, behind: int | None) -> Order:
    """`ahead` forwards, then forward, backward and (if split) the W of `behind` micro-batches ago in turn."""
    order: Order = [(FORWARD, microbatch) for microbatch in range(min(ahead, microbatches))]
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            order.append((FORWARD, microbatch + ahead))
        order.append((BACKWARD, microbatch))
        if behind is not None and microbatch >= behind:
            order.append((WEIGHT, microbatch - behind))
    if behind is not None:
        order += [(WEIGHT, late) for late in range(max(0, microbatches - behind), microbatches)]
    return order


def _one_pipeline(job: JobSpec, split: bool, stagger: bool) -> Problem:
    one = replace(
        job,
        pipelines=1,
        failures=0,
        vacant=0,
        capacity=(None,) * job.stages,
        techniques=Techniques(adaptive=False, decouple=split, stagger=stagger),
    )
    return problem_of(GRAPH_PASSES.run(Target(one, ())))


def _flat(problem: Problem, orders: list[Order]) -> Ints:
    """The orders as the inner loops number them, with room for three ops of every micro-batch."""
    flat = np.full((problem.chunks, 3 * problem.units), -1, dtype=np.int64)
    for stage, order in enumerate(orders):
        kinds, microbatches = np.array(order).T
        flat[stage, : len(order)] = (kinds * problem.units + microbatches) * problem.chunks + stage
    return flat.ravel()


def _held(problem: Problem, stage: int, order: Order) -> Iterator[int]:
    """Memory that a worker holds while each of its ops runs."""
    activation, kept = problem.activation[stage], problem.kept[stage]
    held = 0
    for kind, _ in order:
        held += activation if kind == FORWARD else 0
        yield held
        held -= {FORWARD: 0, BACKWARD: activation - kept, WEIGHT: kept}[kind]


def recycle_period(job: JobSpec, planned: Counts, techniques: Techniques = ALL) -> int:
    """Ticks per iteration with as many failures as `planned` has, there, where they do best, or with more."""
    return min(period_with(job, planned, techniques), best_placement(job, sum(planned), techniques)[0])


def best_placement(
    job: JobSpec, failures: int, techniques: Techniques = ALL, step: int = 1
) -> tuple[int, Counts]:
    """The shortest period with this many failures or more, in ticks, and where its plan has them.

    Of plans for more failures, those for every `step`-th number are looked at.
    """
    best = _placed(job, failures, techniques)
    more = failures
    while (more := (more // step + 1) * step) <= job.stages * (job.pipelines - 1):
        if _least(job, more) >= best[0]:
            break
        best = min(best, _placed(job, more, techniques), key=_period)
    return best


def _period(placed: tuple[int, Counts]) -> int:
    return placed[0]


@lru_cache(maxsize=4096)
def _placed(job: JobSpec, failures: int, techniques: Techniques) -> tuple[int, Counts]:
    """The shortest period of a plan for exactly this many failures, and where they lie then."""
    placements = sorted(set(spread(job, failures)))
    return min((period_with(job, counts, techniques), counts) for counts in placements)


def _least(job: JobSpec, failures: int) -> int:
    """Ticks that no plan for this many failures, or for more, can beat: the work of the busiest worker."""
    live = job.pipelines - failures // job.stages
    each = -(-job.pipelines * job.microbatches // live)
    return each * max(_busy(job, stage) for stage in range(job.stages))


def is_large_baseline(job: JobSpec) -> bool:
    """True if a try takes so long that few of them are made."""
    return 3 * job.workers * job.microbatches > Sizes.LARGE


def spread(job: JobSpec, failures: int) -> Iterator[Counts]:
    """As even as can be; the rest on those in the middle, the fastest, the first stages or the last."""
    stages = job.stages
    each, more = divmod(failures, stages)
    yield _even(stages, each, range((stages - more) // 2, (stages - more) // 2 + more))
    yield _even(stages, each, sorted(range(stages), key=lambda stage: (_busy(job, stage), stage))[:more])
    if not is_large_baseline(job):
        yield _even(stages, each, range(more))
        yield _even(stages, each, range(stages - more, stages))


@lru_cache(maxsize=4096)
def period_with(job: JobSpec, counts: Counts, techniques: Techniques = ALL) -> int:
    """Ticks per iteration with these failures on the stages: the best of several tries."""
    problem = problem_with(job, counts, techniques)
    clock = Clock(problem)
    priority = greedy_priority(problem)
    best: int | None = None
    for rule in _rules(problem, few=is_large_baseline(job)):
        # Nothing shorter is sought within a try than would be better than those before it.
        order = clock.loops.place(priority, rule)
        assert order is not None, "in a plain graph every rule finds an order"
        timed = clock.time(order, None if best is None else best - 1)
        best = best if timed is None else timed.period
    assert best is not None
    return best


def problem_with(job: JobSpec, counts: Counts, techniques: Techniques = ALL) -> Problem:
    """The timing problem with whole backwards except on stages with failures.

    A step is undone by arithmetic, as published, from nothing that takes room.
    """
    coupled = replace(without_undo(job.without_rounds), techniques=replace(techniques, decouple=False))
    hit = (chunk for chunk, stage in enumerate(job.chunk_stages) if counts[stage])
    split = tuple(hit) if techniques.decouple else ()
    passes = BuildGraph() >> SplitBackward(split) >> StaggerOptimizer() >> RouteMicrobatches()
    graph = passes.run(Target(coupled, normal_form(counts, job.pipelines)))
    return problem_of(graph)


def _rules(problem: Problem, few: bool) -> Iterator[GreedyRule]:
    """Rules to try, by how far a stage runs ahead, whether it puts off W, and patience for a better op."""
    defers, waits = ((NO_LIMIT,), (0,)) if few else ((NO_LIMIT, 0), (0, 100))
    for ahead, defer, patience in product((0, 1, 2, problem.chunks), defers, waits):
        yield rule_of(problem, RuleSetting(ahead, defer, patience=(patience, patience)))


def _even(stages: int, each: int, more: Collection[int]) -> Counts:
    return tuple(each + (stage in more) for stage in range(stages))


def _busy(job: JobSpec, stage: int) -> int:
    """Ticks of one micro-batch on a stage."""
    both = zip(job.forward, job.backward_input, job.backward_weight, strict=True)
    return sum(sum(each) for chunk, each in zip(job.chunk_stages, both, strict=True) if chunk == stage)
