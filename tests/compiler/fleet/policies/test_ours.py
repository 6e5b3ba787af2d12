"""Our own policy: what it makes of failures, returns, moves and failed stages."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.report import job_path
from recycle_compiler.fleet.course import Course
from recycle_compiler.fleet.our_plans import OurPeriods
from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.policy import Change
from recycle_compiler.fleet.setting import Known, make_setting
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.sharding import Sharding
from recycle_compiler.planner.baselines import best_placement
from recycle_runtime.plan.plan_choice import Planned
from tests.compiler.fleet.policies.settings import TRACES, hours_of
from tests.compiler.fleet.settings import COSTS, PERIODS, course_of, made_fleet, read_fleet, setting
from tests.support.jobs import figure3


def log(course: Course) -> list[tuple[float, float, float, str]]:
    """When, pause, redone, why."""
    return [(at, step.pause, step.redone, step.why) for at, _, step in course.log if step.why]


def run(*lines: str, parameters: int = 0) -> Course:
    return course_of(Ours(setting(parameters=parameters)), read_fleet(*lines))


def test_a_failure_where_the_bundle_has_it() -> None:
    course = run('{"at": 1000, "failed": ["1:0"]}', '{"at": 2000}')
    assert log(course) == [(1000, 3.0, 10.5, "1:0 failed: the plan for these failures")]
    assert course.rates() == [(0, 1 / 21), (989.5, 0), (1003, 1 / 30)]


def test_failures_that_lie_badly_are_planned_for_and_moved_a_step_later() -> None:
    """The length of a step is known from the time before the failures."""
    course = run('{"at": 1000, "failed": ["0:2", "1:2"]}', '{"at": 9000}')
    assert [(at, pause, why) for at, pause, _, why in log(course)] == [
        (1000, 7.0, "0:2, 1:2 failed: waits for a plan for these failures"),
        (pytest.approx(1007 + 57, abs=3), 2.0, "2 workers moved to other stages"),
    ]
    assert course.rates()[-1][1] == 1 / 31


def test_before_any_step_was_timed_four_are_awaited() -> None:
    course = run('{"at": 10, "failed": ["0:2", "1:2"]}', '{"at": 9000}')
    assert log(course)[1][0] == pytest.approx(17 + 4 * 57, abs=12)


def test_no_worker_moves_where_copies_take_too_long() -> None:
    course = run('{"at": 1000, "failed": ["0:2", "1:2"]}', '{"at": 9000}', parameters=10**15)
    assert [why for *_, why in log(course)] == ["0:2, 1:2 failed: waits for a plan for these failures"]


def test_two_failures_at_once_wait_for_a_plan_with_one_for_more() -> None:
    course = run('{"at": 1000, "failed": ["1:0", "0:2"]}', '{"at": 1100}')
    assert [(at, pause, why) for at, pause, _, why in log(course)] == [
        (1000, 3.0, "0:2, 1:0 failed: a plan for more failures, until there is one for these"),
        (1007, 2.0, "a plan for exactly these failures is ready"),
    ]
    assert course.rates()[2] == (1003, 1 / 32)


def test_two_failures_at_once_that_no_plan_covers_wait_for_one() -> None:
    course = run('{"at": 1000, "failed": ["1:3", "0:2"]}', '{"at": 1100}')
    assert log(course)[0][1:] == (7.0, 10.5, "0:2, 1:3 failed: waits for a plan for these failures")


def test_a_return_costs_two_regroupings_and_no_waiting() -> None:
    course = run(
        '{"at": 1000, "failed": ["1:0"]}',
        '{"at": 2000, "returned": ["1:0"]}',
        '{"at": 3000}',
        parameters=7 * 10**9,
    )
    assert log(course)[1:] == [
        (2020, 2.0, 0.0, "1:0 in, copying"),
        (2029, 2.0, 0.0, "1:0 at work"),
    ]
    assert course.rates()[-3:] == [(2022, 1 / 30), (2029, 0.0), (2031, 1 / 21)]


def test_a_return_that_fails_again_on_its_way() -> None:
    course = run(
        '{"at": 1000, "failed": ["1:0"]}',
        '{"at": 2000, "returned": ["1:0"]}',
        '{"at": 2010, "failed": ["1:0"]}',
    )
    assert [why for *_, why in log(course)] == ["1:0 failed: the plan for these failures"]


def test_a_spare_machine_comes_in_like_any_other() -> None:
    names = [f"n{number}" for number in range(13)]
    header = f'{{"nodes": {names!r}}}'.replace("'", '"')
    course = run(header, '{"at": 1000, "failed": ["n4"]}', '{"at": 2000}')
    assert [why for *_, why in log(course)] == [
        "1:0 failed: the plan for these failures",
        "1:0 in, copying",
        "1:0 at work",
    ]


def test_a_failed_stage_goes_back_to_the_checkpoint() -> None:
    course = run('{"at": 1050, "failed": ["0:1", "1:1", "2:1"]}', '{"at": 3000}')
    (entry,) = log(course)
    assert entry == (
        1050,
        41.0,
        50.0,
        "0:1, 1:1, 2:1 failed: no live worker has stage 1: starts from a checkpoint",
    )
    assert course.rates() == [(0, 1 / 21), (1000, 0.0), (1091, 1 / 32)]


def test_a_failed_stage_goes_back_to_copies_in_memory_unless_their_holders_went_with_it() -> None:
    """Stage 1 has its copy on the nodes of 0:1 and 1:2; work since it is half of four steps of 21 s."""
    stage = '"0:1", "1:1", "2:1"'
    costs = replace(COSTS, checkpoint_every=1000.0)
    ours = replace(setting(costs, parameters=10**9), neighbour_copies=4)

    def ends(*lines: str) -> tuple[float, float, str]:
        (*_, (_, pause, redone, why)) = log(course_of(Ours(ours), read_fleet(*lines)))
        return pause, redone, why.rpartition(" from ")[2]

    assert ends(f'{{"at": 1050, "failed": [{stage}]}}', '{"at": 1100}') == (32.0, 43.0, "copies in memory")
    with_holder = f'{{"at": 1050, "failed": [{stage}, "1:2"]}}'
    assert ends(with_holder, '{"at": 1100}') == (41.0, 500.0, "a checkpoint")
    # Where a holder failed before, copies made since are on others; until the next is complete, one is lost.
    before, at_510 = '{"at": 500, "failed": ["1:2"]}', f'{{"at": 510, "failed": [{stage}]}}'
    assert ends(before, f'{{"at": 1050, "failed": [{stage}]}}', '{"at": 1100}')[2] == "copies in memory"
    assert ends(before, at_510, '{"at": 600}')[2] == "a checkpoint"
    # Work since another failure is in no copy yet.
    redone = 43.0 - 10.5 + (510 - 503)
    assert ends('{"at": 500, "failed": ["0:3"]}', at_510, '{"at": 600}') == (32.0, redone, "copies in memory")


def test_too_few_for_every_stage_stand_still_until_somebody_comes() -> None:
    gone = ", ".join(f'"{pipeline}:{stage}"' for pipeline in range(3) for stage in range(3))
    course = run(f'{{"at": 1000, "failed": [{gone}]}}', '{"at": 2000, "returned": ["0:0"]}', '{"at": 3000}')
    assert [why for *_, why in log(course)] == [
        "0:0, 0:1, 0:2 and 6 more failed: no live worker has stage 0, 1, 2: too few workers for every stage, "
        "stands still",
        "workers are back: starts from a checkpoint",
    ]
    assert (950, 0.0) in course.rates()
    assert course.rates()[-1][0] == 2061


def test_whoever_has_started_when_another_fails_comes_in_after_that() -> None:
    course = run(
        '{"at": 1000, "failed": ["1:0"]}',
        '{"at": 2000, "returned": ["1:0"]}',
        '{"at": 2020, "failed": ["0:0"]}',
        '{"at": 3000}',
    )
    assert [(at, why) for at, _, _, why in log(course)][1:] == [
        (2020, "0:0 failed: the plan for these failures"),
        (2023, "1:0 in, copying"),
        (2025, "1:0 at work"),
    ]


def test_a_job_that_begins_with_too_few_workers() -> None:
    course = run('{"nodes": 3}', '{"at": 100, "returned": ["x"]}', '{"at": 500}')
    assert course.rates()[0] == (0.0, 0.0)
    assert course.kept > 0


def test_it_begins_with_the_failures_where_they_cost_least() -> None:
    assert Ours(setting()).begin(frozenset({(1, 2), (2, 3)}), 0) == 1 / 31


def test_periods_grow_with_failures() -> None:
    periods = OurPeriods(setting())
    assert [periods.exact(counts) for counts in PERIODS] == list(PERIODS.values())
    assert periods.at_once((0, 1, 1, 0)) == 32_000
    assert periods.at_once((0, 0, 0, 1)) is None
    assert periods.exact((0, 0, 1, 0)) <= 32_000
    assert periods.exact((2, 2, 2, 2)) >= periods.exact((1, 1, 1, 1)) > periods.healthy


def test_estimates_are_no_better_than_plans() -> None:
    job = figure3(None)
    known = [Planned((0, 0, 0, 0), 21_000)]
    planned = OurPeriods(make_setting(job, known, Known(exact_plans=4)))
    estimated = OurPeriods(make_setting(job, known, Known(exact_plans=0)))
    for counts in ((1, 1, 1, 1), (2, 0, 0, 0)):
        assert planned.exact(counts) == pytest.approx(estimated.exact(counts), rel=0.08)


def test_beyond_the_bundle_failures_of_even_stages_lie_best_when_they_are_even() -> None:
    given = setting()
    most = max(sum(plan.counts) for plan in given.plans)
    periods = OurPeriods(given)
    failed = (most + 1, *(0 for _ in range(given.job.stages - 1)))
    best = periods.best(failed)
    assert not periods.is_planned(most + 1) and sum(best.counts) == most + 1
    assert max(best.counts) - min(best.counts) <= 1
    assert periods.best((most, *failed[1:])) in given.plans


def test_beyond_the_bundle_workers_move_to_where_the_slowest_stage_is_fastest() -> None:
    """Thirteen failures of a bundle for none, as 4 3 3 3; stage 2 has the least to do and can do with two."""
    loaded = load_job(str(job_path("gpt3-3.35b-24"))).spec
    given = make_setting(loaded, [Planned((0, 0, 0, 0), 31_360)], Known(exact_plans=0))
    down = frozenset({*((pipeline, stage) for pipeline in range(3) for stage in range(4)), (3, 0)})
    policy = Ours(given)
    policy.begin(frozenset(), 0)
    failed = policy.react(Change(1e5, down, frozenset(), down, 0))
    due = policy.due()
    assert due is not None
    moved = policy.act(due)
    assert moved.why == "1 worker moved to other stages"
    assert moved.rate / failed.rate > 1.3
    ours, published = 1 / moved.rate, best_placement(loaded, 13)[0] / 1000
    assert ours <= published * (1 + 1e-9)


@settings(max_examples=25)
@given(TRACES, st.integers(0, 10_000))
def test_any_trace_is_survived(words: str, seed: int) -> None:
    fleet = made_fleet(words, hours_of(words), seed)
    course = course_of(Ours(setting()), fleet)
    best = fleet.trace.span / 21
    assert 0 <= course.kept <= best * (1 + 1e-9)
    assert course.redone >= 0


def with_owners(owners: int, *lines: str) -> Course:
    """Copies of the running example's stages take a second; a checkpoint is read in 10."""
    given = setting(parameters=10**9)
    none = (0,) * 4
    sharding = Sharding(owners, (3,) * 4, none, none, none, none, none)
    policy = Ours(replace(given, job=replace(given.job, sharding=sharding)))
    return course_of(policy, read_fleet(*lines))


def test_one_owner_takes_its_shards_with_it() -> None:
    course = with_owners(1, '{"at": 1000, "failed": ["1:0"]}', '{"at": 2000}')
    why = "1:0 failed: all owners of a shard of stage 0 may be gone: starts from a checkpoint"
    assert log(course) == [(1000, 1.0 + 30 + 10, 50, why)]


@pytest.mark.parametrize(("seconds", "times"), [(0, 1), (3, 1), (4, 0)])
def test_two_owners_that_fail_one_before_another_has_the_state(seconds: int, times: int) -> None:
    """Regrouping takes two seconds and the state one."""
    course = with_owners(
        2,
        '{"at": 1000, "failed": ["1:0"]}',
        f'{{"at": {1000 + seconds}, "failed": ["2:0"]}}',
        '{"at": 2000}',
    )
    assert sum("starts from a checkpoint" in why for *_, why in log(course)) == times


def test_two_failures_of_unlike_stages_leave_an_owner_of_every_shard() -> None:
    course = with_owners(2, '{"at": 1000, "failed": ["1:0", "2:1"]}', '{"at": 2000}')
    assert not any("checkpoint" in why for *_, why in log(course))
