"""A job whose ops take other times than planned: what is asked for, what is taken, what is left alone."""

from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.isa import Opcode
from tests.runtime.coordinator.fake_job import FakeJob
from tests.runtime.coordinator.in_process import InProcess

STEPS = 300
OPTIONS = AdaptationOptions(mtbf=0.001, replan=0.05, replan_every=20)


def job_with(options: AdaptationOptions = OPTIONS) -> tuple[FakeJob, InProcess]:
    replanner = InProcess()
    job = FakeJob(STEPS, options, replanner)
    replanner.book, replanner.files = job.book, job.files
    return job, replanner


def standbys(job: FakeJob) -> list[tuple[int, int]]:
    assignment = job.coordinator.assignment
    assert assignment is not None
    failed = job.book.bundles[assignment.bundle].plans[assignment.plan].failed
    return [place for place, role in assignment.roles.items() if role in failed]


def test_times_as_planned_are_left_alone() -> None:
    job, replanner = job_with()
    job.run(STEPS)
    assert (replanner.requests, job.events) == (0, [])


def test_that_everything_is_slower_is_left_alone() -> None:
    job, replanner = job_with()
    job.run(15)
    job.stage_factors = dict.fromkeys(range(3), 4.0)
    job.run(STEPS)
    assert replanner.requests == 0


def test_what_gains_too_little_is_asked_for_less_and_less_often() -> None:
    job, replanner = job_with()
    job.run(15)
    job.stage_factors = {0: 0.25}
    job.run(STEPS)
    # Stages 1 and 2 are as full as before, so nothing can be gained.
    assert 1 <= replanner.requests <= 5
    assert len(job.events) == replanner.requests
    assert all(event.startswith("op times have moved by ") for event in job.events)
    assert all(event.endswith("% asked for: not taken") for event in job.events)
    assert job.rows == list(range(STEPS))


def test_it_can_be_switched_off() -> None:
    job, replanner = job_with(AdaptationOptions(replan=None))
    job.slow = {(1, 1): 5.0}
    job.run(STEPS)
    assert replanner.requests == 0


def loads(job: FakeJob) -> dict[Worker, int]:
    """Micro-batches of each worker."""
    assignment = job.coordinator.assignment
    assert assignment is not None
    bundle = job.book.bundles[assignment.bundle]
    return {
        place: sum(each.opcode is Opcode.FORWARD for each in bundle.stream(assignment.plan, role))
        for place, role in assignment.roles.items()
    }


def test_a_slow_worker_has_less_to_do_as_long_as_it_is_slow() -> None:
    job, _ = job_with()
    job.run(10)
    assert set(loads(job).values()) == {4}
    job.slow = {(1, 1): 2.0}
    job.run(60)
    event = job.events[0]
    assert event.startswith("1:1 takes 1.")
    assert "a plan in which 1:1 has less to do saves " in event
    assert event.endswith("taken, with a lighter load")
    light = loads(job)
    assert 0 < light[1, 1] < 4 < light[0, 1] and light[1, 1] + light[0, 1] + light[2, 1] == 12
    job.slow = {}
    job.run(140)
    assert "1:1 is as fast as its peers again: a new plan for all workers saves " in job.events[-1]
    assert job.events[-1].endswith(": taken")
    assert set(loads(job).values()) == {4}
    job.run(STEPS)
    assert job.result == (None,) and job.rows == list(range(STEPS))


def test_one_that_gets_slower_still_has_still_less_to_do() -> None:
    job, _ = job_with()
    job.run(10)
    job.slow = {(1, 1): 1.8}
    job.run(60)
    before = loads(job)[1, 1]
    job.slow = {(1, 1): 8.0}
    job.run(150)
    assert loads(job).get((1, 1), 0) < before < 4


def test_a_loss_ends_a_plan_that_was_made_for_all_until_all_are_back() -> None:
    job, _ = job_with()
    job.run(10)
    job.slow = {(1, 1): 2.0}
    job.run(60)
    fitted = job.coordinator.assignment
    job.kill((0, 2))
    job.run(3)
    assert loads(job)[1, 1] == 4
    assert job.book.assign(job.book.grid) == fitted
    job.run(STEPS)
    assert job.result == (None,) and job.rows == list(range(STEPS))


def test_a_slow_worker_watches_if_that_is_faster_and_comes_back_when_it_is_well() -> None:
    job, replanner = job_with()
    replanner.may_be_lighter = False
    job.run(10)
    job.slow = {(1, 1): 3.0}
    job.run(60)
    (event,) = job.events
    assert event.startswith("1:1 takes 1.8 times as long as its peers: a new plan for all workers saves ")
    assert "a plan with 1:1 on standby saves " in event and event.endswith("taken, with a standby")
    assert standbys(job) == [(1, 1)]
    job.slow = {}
    job.run(120)
    assert standbys(job) == []
    assert job.events[1].startswith("1:1 is as fast as its peers again: a new plan for all workers saves ")
    assert job.events[1].endswith(": taken")
    job.run(STEPS)
    assert job.result == (None,) and job.rows == list(range(STEPS))
    assert len(job.members) == 9 and all(fake.applied == STEPS for fake in job.members.values())


def test_a_little_slow_is_left_alone_if_to_do_without_is_worse() -> None:
    job, replanner = job_with()
    job.run(10)
    # Stage 0 has time to spare: twice as long is still less than the other stages take.
    job.slow = {(1, 0): 2.2}
    job.run(80)
    assert replanner.requests >= 1
    assert standbys(job) == []
    assert all(event.endswith("not taken") for event in job.events)


def test_a_standby_that_fails_and_a_failure_while_it_is_one() -> None:
    for victim in ((1, 1), (0, 2)):
        job, replanner = job_with()
        replanner.may_be_lighter = False
        job.run(10)
        job.slow = {(1, 1): 3.0}
        job.run(60)
        assert standbys(job) == [(1, 1)]
        job.kill(victim)
        job.run(STEPS + 100)
        assert job.result == (None,) and job.rows == list(range(STEPS))


def test_a_loss_while_plans_are_made_puts_an_end_to_that() -> None:
    job, replanner = job_with()
    job.run(10)
    job.slow = {(1, 1): 3.0}
    while not replanner.requests:
        job.deliver()
        job.step()
    job.kill((0, 0))
    job.run(STEPS + 50)
    assert job.result == (None,) and job.rows == list(range(STEPS))
