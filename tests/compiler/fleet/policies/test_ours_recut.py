"""Our own policy on a job in layers: re-routed at once, cut anew when that pays."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.course import Course
from recycle_compiler.fleet.our_plans import fastest_period, healthy_period
from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.setting import ChangeCosts, CutPlans, FleetSetting, Known, make_setting
from recycle_compiler.ir.failure import failed_per_stage
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import absent_cells, job_of_layout, parse_layout
from recycle_runtime.plan.plan_choice import Planned
from tests.compiler.fleet.policies.settings import TRACES, hours_of
from tests.compiler.fleet.settings import COSTS, course_of, made_fleet, read_fleet
from tests.support.jobs import figure3

GIGABYTE = 10**9
OWN = {(0, 0, 0, 0): 21_000, (1, 0, 0, 0): 30_000, (1, 1, 1, 1): 33_000, (2, 2, 2, 2): 63_000}
OTHERS = {"3x4,3x4,2x3": 24_000, "4x5,4x5": 26_000, "4x2,4x2": 60_000, "8x2": 90_000}
"""Layouts and their periods in ticks; a slot is a second."""
LADDER = ("4x6,4x6", "2x2,2x2,2x2,1x2,1x2", "3x3,3x3,2x3", "2x2,2x2,2x2,2x2", "4x3,4x3", "4x2,4x2")
"""Layouts without a cell to spare, for 12 to 4 workers."""


def layered_job(layer_bytes: int = GIGABYTE) -> JobSpec:
    """The running example with two layers on each stage."""
    half, none = (500,) * 8, (0,) * 8
    costs = LayerCosts(
        half, half, half, (1500,) * 8, none, (0,) * 7, half, half, (layer_bytes,) * 8, none, None
    )
    own = (2 * layer_bytes,) * 4
    return replace(figure3(None), parameters=own, cut=(2, 2, 2, 2), layer_costs=costs)


def layered(
    layer_bytes: int = GIGABYTE, costs: ChangeCosts = COSTS, others: Mapping[str, int] = OTHERS
) -> FleetSetting:
    job = layered_job(layer_bytes)
    plans = [Planned(counts, period) for counts, period in OWN.items()]
    recuts: list[CutPlans] = []
    for text, period in others.items():
        layout = parse_layout(text)
        derived = job_of_layout(job, layout)
        counts = failed_per_stage(absent_cells(derived, layout), derived.stages)
        recuts.append(CutPlans(derived, (Planned(counts, period),)))
    return make_setting(job, plans, Known(costs=costs, exact_plans=0), recuts)


def run(
    *lines: str, layer_bytes: int = GIGABYTE, others: Mapping[str, int] = OTHERS
) -> list[tuple[float, float, float, str]]:
    """When, pause, seconds of an iteration from then on, why."""
    course = course_of(Ours(layered(layer_bytes, others=others)), read_fleet(*lines))
    return [
        (at, step.pause, round(1 / step.rate, 6) if step.rate else 0.0, step.why)
        for at, _, step in course.log
        if step.why
    ]


def test_survivors_go_on_at_once_and_are_cut_anew_while_they_train() -> None:
    """Layers of 1 GB at 1 GB/s: a worker gets at most two, so they travel for two or three seconds."""
    failed, travel, switch = run('{"at": 1000, "failed": ["1:0"]}', '{"at": 9000}')
    assert failed == (1000, 3.0, 30.0, "1:0 failed: the plan for these failures")
    assert travel == (1033, 0.0, 30.0, "layers travel to 3x4,3x4,2x3")
    assert 1034 <= switch[0] <= 1037
    assert switch[1:] == (2.0, 24.0, "cut to 3x4,3x4,2x3")


def test_nothing_travels_where_it_takes_too_long() -> None:
    (failed,) = run('{"at": 1000, "failed": ["1:0"]}', '{"at": 9000}', layer_bytes=10**13)
    assert failed[3] == "1:0 failed: the plan for these failures"


def test_a_failure_in_the_middle_of_the_move_makes_it_come_to_nothing() -> None:
    said = run(
        '{"at": 1000, "failed": ["1:0"]}',
        '{"at": 1100, "failed": ["1:1"]}',
        '{"at": 2000}',
        layer_bytes=100 * GIGABYTE,
    )
    words = [why for *_, why in said]
    assert words[:3] == [
        "1:0 failed: the plan for these failures",
        "layers travel to 3x4,3x4,2x3",
        "1:1 failed: the plan for these failures",
    ]
    assert "cut to 3x4,3x4,2x3" not in words
    assert words[-1] == "cut to 4x5,4x5"


def test_a_return_in_the_middle_of_the_move_makes_it_come_to_nothing() -> None:
    said = run(
        '{"at": 1000, "failed": ["1:0"]}',
        '{"at": 1100, "returned": ["1:0"]}',
        '{"at": 9000}',
        layer_bytes=100 * GIGABYTE,
    )
    # Under its own cut no worker has more to do than in the beginning.
    assert [why for *_, why in said] == [
        "1:0 failed: the plan for these failures",
        "layers travel to 3x4,3x4,2x3",
        "1:0 in, copying",
        "1:0 at work",
    ]


def test_who_has_no_place_in_the_new_plan_has_no_work_before_it_has_copied_its_layers() -> None:
    """Eight of eleven workers are faster than all; four layers of 1 GB are copied in 4 s."""
    said = run('{"at": 1000, "failed": ["1:0"]}', '{"at": 9000}', others={"4x4,4x4": 22_000})
    travel, switch, joined = said[1:]
    assert travel[3] == "layers travel to 4x4,4x4"
    assert switch[1:] == (2.0, 22.0, "cut to 4x4,4x4")
    assert joined[0] == switch[0] + 2 + 4 and joined[1] == 2.0
    assert joined[3].endswith("at work") and joined[3].count(":") == 3


def test_a_failure_of_who_copies_its_layers() -> None:
    """It is not waited for, and the others go on as they were."""
    quiet = ('{"at": 1000, "failed": ["1:0"]}', '{"at": 9000}')
    others = {"4x4,4x4": 22_000}
    *_, joined = run(*quiet, layer_bytes=10 * GIGABYTE, others=others)
    late = joined[3].split(",")[0]
    lost = f'{{"at": {joined[0] - 10}, "failed": ["{late}"]}}'
    *_, failed, joined = run(quiet[0], lost, quiet[1], layer_bytes=10 * GIGABYTE, others=others)
    assert failed[2:] == (22.0, f"{late} failed: the plan for these failures")
    assert joined[3].endswith("at work") and joined[3].count(":") == 2


def test_whoever_comes_back_joins_under_the_cut_of_now_and_then_the_own_one_is_best() -> None:
    said = run('{"at": 1000, "failed": ["1:0"]}', '{"at": 2000, "returned": ["1:0"]}', '{"at": 9000}')
    words = [why for *_, why in said]
    assert words[-4:] == [
        "1:0 in, copying",
        "1:0 at work",
        "layers travel to 2x3,2x3,2x3,2x3",
        "cut to 2x3,2x3,2x3,2x3",
    ]
    assert said[-1][2] == 21.0


def test_beyond_the_bundle_the_fastest_cut_is_made_on_demand() -> None:
    """The bundle is for four failures; five leave seven workers, for which it has no cut."""
    given = layered()
    few = replace(given, plans=given.plans[:-1], recuts=given.recuts[:1])
    gone = ", ".join(f'"{worker}"' for worker in ("0:0", "0:1", "0:2", "0:3", "1:0"))
    course = course_of(Ours(few), read_fleet(f'{{"at": 1000, "failed": [{gone}]}}', '{"at": 90000}'))
    failed, travel, switch = [(at, step) for at, _, step in course.log if step.why][-3:]
    layout = parse_layout(travel[1].why.removeprefix("layers travel to "))
    assert sum(layout.workers) <= 7 and sum(layout.layers) == 8 and min(layout.workers) >= 2
    # Plans for the next failure come first, then the search for a cut.
    assert travel[0] >= failed[0] + (4 + 6) * COSTS.planning
    assert switch[1].why == f"cut to {layout}" and switch[1].rate > failed[1].rate


def test_too_few_for_the_own_stages_start_under_another_cut() -> None:
    """Three of four stages' worth of workers are gone; two workers hold all layers of one stage."""
    gone = ", ".join(f'"{pipeline}:{stage}"' for pipeline in range(3) for stage in range(3))
    said = run(f'{{"at": 1000, "failed": [{gone}]}}', '{"at": 2000}')
    why = "0:0, 0:1, 0:2 and 6 more failed: no live worker has stage 0, 1, 2: starts from a checkpoint"
    assert said[0][1:] == (41.0, 90.0, why)


def test_the_reference_is_the_fastest_plan_without_failures() -> None:
    given = layered()
    assert healthy_period(given) == 21_000
    faster = CutPlans(given.recuts[0].job, (Planned((0, 0, 0), 50_000), Planned((2, 2, 3), 20_000)))
    assert healthy_period(replace(given, recuts=(faster,))) == 20_000
    assert [fastest_period(given, failures) for failures in (0, 1, 2, 8, 10, 12)] == [
        21_000, 24_000, 26_000, 60_000, 90_000, None
    ]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(TRACES, st.integers(0, 10_000))
def test_any_trace_is_survived(words: str, seed: int) -> None:
    fleet = made_fleet(words, hours_of(words), seed)
    course: Course = course_of(Ours(layered()), fleet)
    assert 0 <= course.kept <= fleet.trace.span / 20 * (1 + 1e-9)
    assert course.redone >= 0


@settings(max_examples=40, deadline=None)
@example(
    # With two failures the own cut takes 31,000: what moves no bytes saves too little to pay, others do.
    [21_000, 30_693, 30_693, 30_999, 30_693, 30_693],
    [(pipeline, stage) for pipeline in range(3) for stage in range(4)],
)
@given(
    st.lists(st.integers(21_000, 90_000), min_size=len(LADDER), max_size=len(LADDER)),
    st.permutations([(pipeline, stage) for pipeline in range(3) for stage in range(4)]),
)
def test_a_day_after_a_failure_no_plan_for_as_many_workers_or_fewer_is_faster(
    periods: list[int], order: list[tuple[int, int]]
) -> None:
    """Whatever the plans of the bundle take: so no number of workers gives less than a smaller one's plan."""
    day = 86_400
    lines = [
        f'{{"at": {number * day}, "failed": ["{pipeline}:{stage}"]}}'
        for number, (pipeline, stage) in enumerate(order[:8], start=1)
    ]
    setting = layered(GIGABYTE // 1000, others=dict(zip(LADDER, periods, strict=True)))
    course = course_of(Ours(setting), read_fleet(*lines, f'{{"at": {9 * day}}}'))
    for failures in range(9):
        evening = (failures + 1) * day - 1
        rate = next(one.rate for one in course.stretches if one.begin <= evening < one.end)
        fastest = fastest_period(setting, failures)
        # Less than a pause is worth in a day is left.
        assert fastest is not None and 1000 / rate <= fastest * 1.0002
