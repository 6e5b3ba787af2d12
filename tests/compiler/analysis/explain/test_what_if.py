"""Suggested changes: which are tried, and what is told of them."""

from dataclasses import replace

import pytest

from recycle_compiler.analysis.explain.what_if import (
    BOUNDS,
    NONE,
    PLANS,
    JobVariant,
    WhatIfOutcome,
    changes_to,
    mode_for,
    what_if,
)
from recycle_compiler.backends.replay import replay
from recycle_compiler.cli.commands.explain import WHAT_IF
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import Techniques
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from tests.compiler.analysis.explain.hand_made import ONE_PIPELINE, hand_made
from tests.support.jobs import ALL, SLOT, figure3, unit_job

DESCENDING = (4, 3, 2, 1)


def planned(capacity: tuple[int | None, ...] | None, *failed: tuple[int, int]) -> Schedule:
    """A plan of the running example."""
    return replay(plan_failed(figure3(capacity), failure_set(failed)))


def named(outcomes: tuple[WhatIfOutcome, ...]) -> dict[str, WhatIfOutcome]:
    return {outcome.what: outcome for outcome in outcomes}


def test_changes_in_their_order() -> None:
    job = replace(figure3(DESCENDING), transfer=(0, SLOT, 0))
    assert [(change.what, change.relaxes) for change in changes_to(job, 2)] == [
        ("with 1 more activation on stage 2", True),
        ("with 2 more activations on stage 2", True),
        ("with 1 more activation on stage 0", True),
        ("with 2 more activations on stage 0", True),
        ("with 1 more activation on every stage", True),
        ("with 2 more activations on every stage", True),
        ("without `adaptive`", False),
        ("without `decouple`", False),
        ("without `stagger`", False),
        ("with transfers that take no time", True),
        ("with 7 micro-batches in each pipeline", False),
    ]


def test_what_is_off_is_tried_on_and_what_is_free_is_not_tried() -> None:
    job = figure3(None, Techniques(adaptive=True, decouple=False, stagger=True))
    assert [change.what for change in changes_to(job, 0)] == [
        "without `adaptive`",
        "with `decouple`",
        "without `stagger`",
        "with 7 micro-batches in each pipeline",
    ]


def test_memory_is_added_in_whole_activations() -> None:
    job = replace(figure3((4, None, 2, 1)), activation=(SLOT, SLOT, 2 * SLOT, SLOT))
    on_every_stage = [change for change in changes_to(job, 2) if "2 more activations on every" in change.what]
    assert [change.job.capacity for change in on_every_stage] == [(6 * SLOT, None, 6 * SLOT, 3 * SLOT)]


def test_more_memory_includes_less() -> None:
    less, more, other = (
        JobVariant("", figure3(capacity), relaxes=True)
        for capacity in ((4, 3, 2, 1), (4, None, 2, 2), (5, 3, 2, 1))
    )
    assert more.includes(less)
    assert not less.includes(more)
    assert not other.includes(more)
    assert not JobVariant("", figure3(4, replace(ALL, stagger=False)), True).includes(less)


def test_running_example_with_more_memory() -> None:
    """The ramp-up of stage 0 costs three slots at four activations; two more fill two of them."""
    found = what_if(planned(DESCENDING, (2, 0)), 0, PLANS)
    outcomes = named(found.outcomes)
    best = outcomes["with 2 more activations on stage 0"]
    assert (best.period, best.lower_bound, round(best.gain, 4)) == (
        31 * SLOT,
        31 * SLOT,
        round(33 / 31 - 1, 4),
    )
    worst = outcomes["without `decouple`"]
    assert worst.lower_bound == 39 * SLOT
    assert worst.period is not None
    assert worst.gain == 33 * SLOT / worst.period - 1
    gains = [outcome.gain for outcome in found.outcomes]
    assert gains == sorted(gains, reverse=True)
    assert min(map(abs, gains)) >= 0.001
    assert found.reference == 33 * SLOT


def test_what_buys_no_more_is_left_out() -> None:
    """One more activation on the last stage lets it put one more W off; on the others, too, is of no use."""
    outcomes = named(what_if(planned(DESCENDING), 3, PLANS).outcomes)
    assert outcomes["with 1 more activation on stage 3"].period == 26 * SLOT
    assert "with 1 more activation on every stage" not in outcomes
    assert outcomes["with 2 more activations on every stage"].period == 25 * SLOT


def test_one_more_micro_batch_is_judged_per_micro_batch() -> None:
    """Fault-free, seven instead of six take three slots more."""
    outcome = named(what_if(planned(DESCENDING), 3, PLANS).outcomes)["with 7 micro-batches in each pipeline"]
    assert (outcome.period, outcome.microbatches) == (30 * SLOT, 7)
    assert round(outcome.gain, 6) == round((27 / 6) / (30 / 7) - 1, 6)


def test_bounds_alone_never_promise_less_than_plans() -> None:
    schedule = planned(DESCENDING, (2, 0))
    most = named(what_if(schedule, 0, BOUNDS).outcomes)
    assert all(outcome.period is None for outcome in most.values())
    for what, outcome in named(what_if(schedule, 0, PLANS).outcomes).items():
        if what in most:
            assert most[what].gain >= outcome.gain
    assert most["with 1 more activation on stage 0"].lower_bound == 32 * SLOT


def test_a_plan_that_stopped_near_its_bound_is_planned_again() -> None:
    """A gain that can be had without any change is not to the credit of a change."""
    found = what_if(hand_made(ONE_PIPELINE), 0, PLANS)
    outcomes = named(found.outcomes)
    again = outcomes["as it is, planned again with `gap = 0%`"]
    assert again.period == found.reference < 19 * SLOT
    assert again.gain == 19 * SLOT / found.reference - 1
    no_transfers = outcomes["with transfers that take no time"]
    assert no_transfers.period is not None
    assert no_transfers.gain == found.reference / no_transfers.period - 1


def test_nothing_is_tried_when_nobody_asks() -> None:
    assert what_if(planned(None), 0, NONE).outcomes == ()


@pytest.mark.parametrize(("microbatches", "mode"), [(4, PLANS), (1_700, BOUNDS)])
def test_large_plans_are_judged_by_bounds(microbatches: int, mode: str) -> None:
    job = unit_job(4, 1, microbatches)
    assert mode_for(replay(plan_failed(job, (), effort=replace(Effort(), rules=1, most_moves=0)))) == mode


def test_the_command_line_knows_the_same_ways() -> None:
    assert WHAT_IF == (PLANS, BOUNDS, NONE)
