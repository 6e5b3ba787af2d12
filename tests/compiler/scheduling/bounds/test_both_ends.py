"""Time that all workers of a stage idle together: never more than the truth, and no less where it matters."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.reference.optima import load_optima
from bench.report import job_path
from recycle_compiler.frontend import load_job, parse_job_text
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.layout import Layout, absent_cells, job_of_layout
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots, Effort
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.bounds import Bound, lower_bound, stage_bounds
from recycle_compiler.scheduling.bounds.both_ends import BothEnds, pooled_idle
from recycle_compiler.scheduling.bounds.rounds import returns
from recycle_compiler.scheduling.problem import Problem, problem_of, rerouted
from recycle_compiler.scheduling.rules import NO_LIMIT, RuleSetting, greedy_priority, rule_of, small_rules
from recycle_compiler.scheduling.timing import Clock
from tests.support.jobs import SLOT, figure3, routed_problem, small_targets, unit_job

OPTIMA = Path(__file__).resolve().parents[3] / "data" / "optima.jsonl"
LIVE_TARGETS = small_targets().filter(lambda target: all(target.hosts))

DEPTHS = st.sampled_from((-NO_LIMIT, -1, 0, 2))
SETTINGS = st.builds(
    RuleSetting,
    ahead=st.sampled_from((0, 1, 3, NO_LIMIT)),
    defer=st.sampled_from((0, 1, 2, NO_LIMIT)),
    depth=st.tuples(DEPTHS, DEPTHS),
    patience=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    patience_at_end=st.integers(0, 300),
    burst=st.integers(0, 150),
    last_first=st.booleans(),
)


def all_bounds(problem: Problem) -> list[Bound]:
    return [bound for stage in range(problem.chunks) for bound in stage_bounds(problem, stage)]


def best_of(bounds: list[Bound], pooled: bool) -> int:
    """The largest bound, of those that pool the workers of a stage or of the others."""
    names = ("both ends", "rounds")
    return max(bound.period for bound in bounds if bound.reason.startswith(names) == pooled)


def slots_idle(problem: Problem) -> list[tuple[int, int]]:
    """At the start and at the end of each stage, by all its workers."""
    idle = [pooled_idle(problem, stage) for stage in range(problem.chunks)]
    return [(start // SLOT, end // SLOT) for start, end in idle]


def test_an_idle_slot_at_the_end() -> None:
    """Three stages with 3, 2 and 3 live workers, eight micro-batches, three activations on a worker.

    Stage 1 has 24 slots of work for two workers. Count backwards from the end of its window; that of stage 0,
    which opens a slot sooner, closes a slot sooner. Of the last three backwards of stage 1 each needs a
    backward and a W on stage 0, so they end no later than 1 + 2 = 3 before the end. For the next three, some
    worker of stage 0 does that twice: 1 + 4 = 5. F is far: 3 for the last backward, 1 that it takes, 2 for F
    and backward on stage 2, so no F within the last 6. W is all that remains, and memory lets two workers
    put off six. Of the last 5 slots of two workers, six W and three backwards fill 9: one is idle, and
    (24 + 1) / 2, rounded up to whole slots, is 13 with one more for the optimizer.

    Stage 0 counts from its start. Its first three backwards have to wait for F, F, F and I, I below: 5 slots.
    The next three come at 7, when stage 2 has served two rounds. The last two are the fourth on some worker
    of stage 1, which holds three: three F, a backward and a W lie before their F there, 3 slots of trip and a
    backward after it, and they come at 1 + 5 + 3 + 1 = 10. By 11 all eight F, all eight backwards and six W
    can be done, 22 of 33 slots: eleven are idle. Stage 2 is the same backwards.
    """
    job = unit_job(3, 4, 2, capacity=3, optimizer=1)
    failed = normal_form((1, 2, 1), 4)
    problem = routed_problem(job, failed)
    assert slots_idle(problem) == [(11, 0), (0, 1), (0, 11)]
    spans = [BothEnds().span(problem, stage) for stage in range(3)]
    assert spans == [-(-35 * SLOT // 3), 25 * SLOT // 2, -(-35 * SLOT // 3)]
    assert lower_bound(problem) == Bound(14 * SLOT, "both ends of stage 1")
    assert best_of(all_bounds(problem), pooled=False) == 13 * SLOT
    claims = plan_failed(job, failed).claims
    assert (claims.period, claims.status, claims.reason) == (14 * SLOT, "optimal", "both ends of stage 1")


def test_the_running_example_with_equal_memory_is_settled() -> None:
    """Two workers of stage 2 idle three slots at the end: (54 + 3) / 2 + 3 = 31.5, and 32 is planned."""
    problem = routed_problem(figure3(4), normal_form((0, 0, 1, 0), 3))
    assert slots_idle(problem)[2] == (0, 3)
    bounds = all_bounds(problem)
    assert (best_of(bounds, pooled=True), best_of(bounds, pooled=False)) == (31_500, 30 * SLOT)


def test_a_backward_that_gives_back_a_part() -> None:
    """One worker a stage, three micro-batches; stage 0 holds 6 and each activation is 4, of which W keeps 2.

    F and backward of stage 1 take 2 slots each, so the first backward comes at 5. The second F has room when
    that one has given back some memory, at 6, and its backward comes at 11. By then two F, a backward and a W
    can be done: seven slots are idle. At the end two W can be put off. The last F ends 6 before the end, and
    a second backward has no room but before it. Of the last 6 slots two W and a backward fill 3: three are
    idle, and 9 + 7 + 3 = 19 slots are what the job takes.
    """
    slow = (SLOT, 2 * SLOT)
    job = replace(
        unit_job(2, 1, 3, optimizer=0),
        forward=slow,
        backward_input=slow,
        backward_weight=slow,
        activation=(4 * SLOT, SLOT),
        kept_for_weight=(2 * SLOT, SLOT),
        capacity=(6 * SLOT, None),
    )
    assert slots_idle(routed_problem(job))[0] == (7, 3)
    assert plan_failed(job, ()).claims.period == 19 * SLOT


def test_between_two_narrow_stages() -> None:
    """Three workers of stage 1 between single ones; six micro-batches; each worker holds 2, W keeps 1.

    At the end a backward must be gone 3 and 5 slots before. Stage 0 closes a slot sooner; its last F ends 6
    slots before it does, with two backwards and two W at most after it. The backward and the W of a third
    micro-batch come before that F: such a backward ends 8 slots before the end, and on stage 1 that is 10. Of
    each of the next ones F, backward and W come on top: 13, 16, 19. F are 3 slots further away, 6, 8, 13, 16,
    19 and 22. All work but one F can be done in the last 22 slots of three workers: 66 - 17 are idle.
    """
    job = replace(
        unit_job(3, 3, 2, capacity=(2, 2, None), optimizer=0),
        activation=(SLOT, 2 * SLOT, SLOT),
        kept_for_weight=(SLOT, SLOT, 0),
    )
    assert slots_idle(routed_problem(job, normal_form((2, 0, 2), 3)))[1] == (0, 49)


def test_the_way_up_past_a_narrow_stage() -> None:
    """Three stages with 3, 2 and 3 live workers, three micro-batches, a slot between stages 0 and 1.

    The window of stage 0 closes 3 slots before that of stage 2. A backward of stage 2 needs one on stage 1,
    the way, a backward and a W on stage 0: it ends 1 + 1 + 2 + 3 = 7 before. Stage 1 runs two of three in
    turn, so that the third has to be gone at 8. F ends a backward sooner, at 8, 8 and 9. Of the last 9 slots
    of three workers, three W, three backwards and two F fill 8: 19 are idle.
    """
    job = replace(unit_job(3, 3, 1, optimizer=0), transfer=(SLOT, 0))
    assert slots_idle(routed_problem(job, normal_form((0, 1, 0), 3)))[2] == (0, 19)


def test_one_stage_loses_what_does_not_divide() -> None:
    """Three micro-batches on two workers, W takes two slots.

    One worker has two: its first backward ends 5 slots before the end, so the last of three F at 6. All other
    work, 11 slots, fits into the last 6: one of 12 is idle.
    """
    job = replace(unit_job(1, 3, 1), backward_weight=(2 * SLOT,))
    assert slots_idle(routed_problem(job, normal_form((1,), 3))) == [(0, 1)]


TIGHT = [
    (
        """
        parallel { pipeline = 3  data = 1 }  batch { microbatches = 3 }  memory { capacity = [12, 7, 9] }
        profile {
          forward = [1, 1, 3]  backward_input = [2, 2, 1]  backward_weight = [3, 3, 3]
          optimizer = [2, 2, 2]  activation = 3  kept_for_weight = [3, 3, 3]
        }
        """,
        (0, 0, 0),
        26,
    ),
    (
        """
        parallel { pipeline = 3  data = 1 }  batch { microbatches = 4 }  memory { capacity = [3, 4, 3] }
        profile {
          forward = [1, 2, 2]  backward_input = [1, 3, 3]  backward_weight = [1, 3, 2]
          optimizer = [0, 0, 0]  activation = 1  kept_for_weight = [1, 1, 1]
        }
        """,
        (0, 0, 0),
        33,
    ),
    (
        """
        parallel { pipeline = 2  data = 2 }  batch { microbatches = 2 }  memory { capacity = [9, 5] }
        profile {
          forward = [2, 1]  backward_input = [2, 1]  backward_weight = [5, 1]
          optimizer = [0, 0]  activation = 4  kept_for_weight = [1, 4]
        }
        """,
        (0, 1),
        21,
    ),
    (
        """
        parallel { pipeline = 3  data = 1 }  batch { microbatches = 6 }  memory { capacity = [6, 8, 5] }
        profile {
          forward = [3, 3, 1]  backward_input = [1, 2, 3]  backward_weight = [2, 1, 3]
          optimizer = [3, 0, 1]  activation = [3, 3, 2]  kept_for_weight = [3, 3, 2]
        }
        """,
        (0, 0, 0),
        56,
    ),
    (
        """
        parallel { pipeline = 2  data = 1 }  batch { microbatches = 4 }  memory { capacity = [4, 2] }
        profile {
          forward = [3, 4]  backward_input = [1, 2]  backward_weight = [2, 1]  transfer = 2
          optimizer = [0, 2]  activation = [2, 1]  kept_for_weight = [1, 1]
        }
        """,
        (0, 0),
        38,
    ),
]


@pytest.mark.parametrize(("blocks", "failed_per_stage", "slots"), TIGHT)
def test_a_plan_meets_the_pooled_bound(blocks: str, failed_per_stage: tuple[int, ...], slots: int) -> None:
    """The other bounds are lower, so nothing in the argument could be left out."""
    job = parse_job_text(f"job tight {{ {blocks} }}", "tight.job")
    failed = normal_form(failed_per_stage, job.pipelines)
    bounds = all_bounds(routed_problem(job, failed))
    assert best_of(bounds, pooled=False) < best_of(bounds, pooled=True) <= slots * SLOT
    claims = plan_failed(job, failed).claims
    assert claims.period == claims.lower_bound == slots * SLOT
    assert claims.reason.startswith(("both ends of stage", "rounds of stage"))


def test_parts_of_activations_add_up() -> None:
    """A capacity of 5 holds an activation of 3 and the 2 that W keeps of another; whole ones only take 18."""
    job = parse_job_text(
        """
        job parts {
          parallel { pipeline = 2  data = 3 }  batch { microbatches = 2 }  memory { capacity = [5, 6] }
          profile {
            forward = [1, 3]  backward_input = [1, 3]  backward_weight = [1, 2]
            optimizer = [0, 1]  activation = 3  kept_for_weight = [2, 3]
          }
        }
        """,
        "parts.job",
    )
    claims = plan_failed(job, ()).claims
    assert claims.period == claims.lower_bound == 17 * SLOT


@st.composite
def routed_anyhow(draw: st.DrawFn) -> Problem:
    """Bounds must hold for every routing, the best and the worst."""
    target = draw(LIVE_TARGETS)
    problem = routed_problem(target.job, target.failed)
    if draw(st.booleans()):
        return problem
    chosen = [[draw(st.sampled_from(hosts)) for hosts in problem.hosts] for _ in range(problem.units)]
    return rerouted(problem, problem.hosts, np.array(chosen, dtype=np.int64))


@settings(max_examples=200)
@given(routed_anyhow(), st.lists(SETTINGS, min_size=1, max_size=4), st.lists(st.integers(0, 71), max_size=4))
def test_no_rule_beats_a_bound(problem: Problem, tuned: list[RuleSetting], numbers: list[int]) -> None:
    clock, grid = Clock(problem), list(small_rules(problem))
    ruled = [(greedy_priority(problem), grid[number % len(grid)]) for number in numbers]
    ruled += [(greedy_priority(problem, each.last_first), rule_of(problem, each)) for each in tuned]
    orders = [clock.loops.place(priority, rule) for priority, rule in ruled]
    found = [clock.time(order) for order in orders if order is not None]
    assert len(found) == len(ruled)
    shortest = min(timed.period for timed in found if timed is not None)
    for bound in all_bounds(problem):
        assert bound.period <= shortest, bound.reason


@settings(max_examples=150)
@given(LIVE_TARGETS)
def test_more_failures_on_a_stage_never_cost_less(target: Target) -> None:
    """The placement of failures relies on it."""
    problem = routed_problem(target.job, target.failed)
    for stage, hosts in enumerate(problem.hosts):
        spans = [
            BothEnds().span(
                replace(problem, hosts=(*problem.hosts[:stage], left, *problem.hosts[stage + 1 :])), stage
            )
            for left in (hosts[failed:] for failed in range(len(hosts)))
        ]
        assert spans == sorted(spans)


POOLED = {208, 215, 659, 1084, 1273, 1323, 1572, 1585, 1648, 1681}
"""Seeds of jobs on which the bounds of one worker are lower."""


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_bounds_against_proven_optima(every: int) -> None:
    """On 2,000 jobs no bound exceeds the best known schedule, and most optima are met."""
    entries = [entry for entry in load_optima(OPTIMA) if entry.seed % every == 0 or entry.seed in POOLED]
    assert len(entries) >= 2_000 // every
    settled, met, pooled = 0, 0, set[int]()
    for entry in entries:
        failed = normal_form(entry.failed_per_stage, entry.job.pipelines)
        bounds = all_bounds(routed_problem(entry.job, failed))
        for bound in bounds:
            assert bound.period <= entry.best, f"seed {entry.seed}: {bound.reason} certifies a lie"
        settled += entry.optimum is not None
        met += max(bound.period for bound in bounds) == entry.optimum
        if best_of(bounds, pooled=True) == entry.optimum:
            pooled.add(entry.seed)
    assert met >= 0.93 * settled
    assert pooled >= POOLED


def test_ops_that_start_no_sooner_than_those_before_them() -> None:
    """Of the backwards of stage 1 here one bound is lower than that of the backward before it."""
    job = load_job(str(job_path("gpt3-3.35b-32"))).spec
    layout = Layout(layers=(3, 3, 6, 6, 12), workers=(2, 2, 4, 4, 8))
    derived = job_of_layout(job, layout)
    graph = GRAPH_PASSES.run(Target(derived, absent_cells(derived, layout)))
    problem = problem_of(graph)
    backward = returns(problem, 1)
    assert (backward[1:] < backward[:-1]).any(), "this example shows nothing any more"
    period = AssignSlots(Effort().quick()).run(graph).claims.period
    assert lower_bound(problem).period <= period
