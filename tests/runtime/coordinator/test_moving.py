"""A job that moves its workers, and what becomes of it when somebody dies meanwhile."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from tests.runtime.coordinator.fake_job import FakeJob, heavy_bundle, planned

LONG = AdaptationOptions(mtbf=3600.0, replan=None)
SHORT = AdaptationOptions(mtbf=0.001, replan=None)
STEPS = 60


def finish(job: FakeJob) -> None:
    """To the end: no step missing, none made twice, every worker where it should be."""
    for _ in range(3 * STEPS):
        if job.result is None:
            job.run(1)
    assert job.result == (None,)
    assert job.rows == list(range(STEPS))
    assert {member.worker[1] for member in job.members} == {0, 1, 2}
    assert all(fake.applied == STEPS for fake in job.members.values())


def test_plans_have_the_loss_where_it_costs_least() -> None:
    by_count = [[stage for _, stage in plan.failed] for plan in heavy_bundle().plans]
    assert by_count[1] == [0]


def test_a_worker_takes_the_free_place_when_that_pays() -> None:
    job = FakeJob(STEPS, LONG)
    job.run(5)
    job.kill((1, 1))
    job.run(10)
    (event,) = job.events
    assert event.startswith("move 0:0 to 1:1 saves ") and event.endswith(" expected: moved")
    assert job.moves == [((0, 0), (1, 1))]
    assert job.book.counts([member.worker for member in job.members]) == (1, 0, 0)
    finish(job)
    assert len(job.events) == 1, "it is weighed once"


def test_nobody_moves_to_the_place_of_a_worker_that_is_started_again() -> None:
    job = FakeJob(STEPS, LONG)
    job.run(5)
    job.kill((1, 1))
    job.started.add((1, 1))
    job.run(10)
    assert not (job.events or job.moves)
    job.join((1, 1))
    finish(job)
    assert len(job.members) == job.book.pipelines * job.book.stages


def test_workers_move_to_where_there_is_a_plan_if_none_can_be_made() -> None:
    job = FakeJob(STEPS, LONG)
    job.can_plan = False
    job.run(5)
    job.kill((1, 1))
    job.run(1)
    assert job.moves == [((0, 0), (1, 1))]
    job.kill((2, 1))
    job.run(1)
    assert job.moves[1:] == [((1, 0), (2, 1))]
    job.kill((2, 2))
    job.run(5)
    assert job.book.counts(job.coordinator.roster.whole()) == (2, 0, 1)
    # There are no plans for four failures.
    job.kill((0, 2))
    job.run(1)
    assert job.result is not None and "recyclec is not installed here (0:2 was killed)" in str(job.result[0])


@pytest.mark.parametrize(("before", "awaited"), [(5, 1), (2, 4)])
def test_moves_wait_for_one_step_where_steps_were_timed_before_else_for_four(
    before: int, awaited: int
) -> None:
    job = FakeJob(STEPS, LONG)
    job.run(before)
    job.kill((1, 1))
    steps = 0
    while not job.events:
        job.run(1)
        steps += 1
    assert steps == awaited
    finish(job)


def test_nobody_moves_when_the_next_change_is_near() -> None:
    job = FakeJob(STEPS, SHORT)
    job.run(5)
    job.kill((1, 1))
    job.run(10)
    (event,) = job.events
    assert event.startswith("move 0:0 to 1:1 saves ") and event.endswith(" expected: not moved")
    assert job.moves == []
    finish(job)


def test_nothing_is_said_where_losses_lie_best_already() -> None:
    job = FakeJob(STEPS, LONG)
    job.run(5)
    job.kill((1, 0))
    finish(job)
    assert job.events == [] and job.moves == []


def test_a_run_that_begins_with_a_loss_moves_too() -> None:
    job = FakeJob(STEPS, LONG, failed=((1, 1),))
    job.run(10)
    assert job.events[0].endswith("moved")
    finish(job)


def test_beyond_the_bundle_a_plan_made_since_is_moved_to() -> None:
    job = FakeJob(STEPS, LONG)
    job.run(5)
    for victim in ((0, 1), (1, 1), (0, 2), (1, 2)):
        job.kill(victim)
    job.run(10)
    assert job.moves == [] and not job.book.is_planned(4)
    job.book.add(planned(((0, 0), (1, 0), (0, 1), (0, 2))))
    job.run(10)
    assert len(job.moves) == 2
    assert job.book.counts([member.worker for member in job.members]) == (2, 1, 1)
    finish(job)


@pytest.mark.parametrize("victim", [(0, 0), (0, 1), (2, 1), (1, 0)])
def test_a_death_before_the_boundary_leaves_the_move_out_or_makes_it(victim: Worker) -> None:
    job = FakeJob(STEPS, LONG)
    job.run(5)
    job.kill((1, 1))
    while not job.events:
        job.run(1)
    job.kill(victim)
    finish(job)


@settings(max_examples=150)
@given(st.integers(0, 120), st.sampled_from([(0, 0), (1, 1), (0, 1), (2, 1), (1, 0), (2, 2)]))
def test_whichever_worker_dies_at_whichever_moment_of_a_move_no_step_is_missing(
    moment: int, victim: Worker
) -> None:
    """The mover under both its names, the donor, the other peer, those left behind, a stranger."""
    job = FakeJob(STEPS, LONG)
    job.run(5)
    job.kill((1, 1))
    while not job.events:
        job.run(1)
    for _ in range(moment):
        if job.mail or job.wanted:
            job.deliver_one()
        else:
            job.step()
    if victim in [member.worker for member in job.members]:
        job.kill(victim)
    finish(job)
