"""Our own policy where the bundle has plans in groups of pipelines."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.course import Course
from recycle_compiler.fleet.our_plans import OurCut, fastest_period, our_cuts
from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.setting import CutPlans, FleetSetting
from recycle_compiler.ir.failure import failed_per_stage
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups, parse_any_layout
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.plan_choice import Planned
from tests.compiler.fleet.policies.settings import TRACES, hours_of
from tests.compiler.fleet.policies.test_ours_recut import GIGABYTE, layered
from tests.compiler.fleet.settings import course_of, made_fleet, read_fleet

LAYOUT = "4x5,4x5@16+8x1@2"
"""Of eleven workers; ten alone are in the bundle with 26 slots."""
PERIOD = 23_000


def in_groups(layer_bytes: int = GIGABYTE) -> FleetSetting:
    """With a plan for eleven workers that is faster than any under one cut, and one that covers a failure."""
    given = layered(layer_bytes)
    layout = parse_any_layout(LAYOUT)
    assert isinstance(layout, GroupedLayout)
    job = job_of_groups(given.job, layout)
    counts = failed_per_stage(absent_of_groups(job, layout), job.stages)
    covering = tuple(gone + (stage < 2) for stage, gone in enumerate(counts))
    plans = (Planned(counts, PERIOD), Planned(covering, 29_000))
    return replace(given, recuts=(CutPlans(job, plans), *given.recuts))


def groups_of_bundle() -> OurCut:
    return our_cuts(in_groups())[1]


def run(*lines: str, layer_bytes: int = GIGABYTE) -> list[tuple[float, str]]:
    """Seconds of an iteration from then on, why."""
    course = course_of(Ours(in_groups(layer_bytes)), read_fleet(*lines))
    return [
        (round(1 / step.rate, 6) if step.rate else 0.0, step.why) for _, _, step in course.log if step.why
    ]


def test_layers_travel_to_groups() -> None:
    assert fastest_period(in_groups(), 1) == PERIOD
    said = run('{"at": 1000, "failed": ["1:0"]}', '{"at": 9000}')
    assert said[1:] == [(30.0, f"layers travel to {LAYOUT}"), (23.0, f"cut to {LAYOUT}")]


def test_and_back_when_all_are_there_again() -> None:
    said = run('{"at": 1000, "failed": ["1:0"]}', '{"at": 2000, "returned": ["1:0"]}', '{"at": 9000}')
    assert said[-1] == (21.0, "cut to 2x3,2x3,2x3,2x3")


def test_who_holds_all_layers_takes_longest_to_copy() -> None:
    cut = groups_of_bundle()
    assert cut.ranges == ((0, 4), (4, 8), (0, 8))
    assert [cut.state_bytes(stage) for stage in range(3)] == [4 * GIGABYTE, 4 * GIGABYTE, 8 * GIGABYTE]
    assert cut.text((5, 5, 1)) == LAYOUT
    # Five workers have 16 micro-batches of four layers, one has two of eight: each F, I and W half a slot.
    width = cut.job.pipelines
    assert cut.loads.ticks(0, width - 5) == 4 * 4 * 1500 + 4 * 1500
    assert cut.loads.ticks(2, width - 1) == 2 * 8 * 1500 + 8 * 1500


def test_one_group_goes_on_alone() -> None:
    """One worker holds all layers; without it the others go on with the plan of their own cut, at once."""
    alone: dict[str, list[tuple[float, str]]] = {}
    for pipeline in range(3):
        for stage in range(4):
            name = f"{pipeline}:{stage}"
            if name == "1:0":
                continue
            said = run(
                '{"at": 1000, "failed": ["1:0"]}', f'{{"at": 5000, "failed": ["{name}"]}}', '{"at": 5010}'
            )
            assert said[-1][1].startswith(f"{name} failed")
            if "goes on alone" in said[-1][1]:
                alone[name] = said
            else:
                # It was planned ahead, and is no slower than the plan that covers it.
                assert said[-1][0] <= 29.0
    (said,) = alone.values()
    assert said[-1][0] == 26.0


def test_a_stage_of_both_groups_is_lost() -> None:
    """All workers of eleven but two: no group has all its stages."""
    gone = [f'"{pipeline}:{stage}"' for pipeline in range(3) for stage in range(4)][2:]
    said = run(
        '{"at": 1000, "failed": ["0:0"]}', f'{{"at": 5000, "failed": [{", ".join(gone)}]}}', '{"at": 9000}'
    )
    assert any("stands still" in why or "checkpoint" in why for _, why in said)


@pytest.mark.parametrize("failures", [(1, 0, 0), (0, 2, 0)])
def test_a_plan_that_is_not_there_is_estimated_near_one_that_is_made(failures: tuple[int, ...]) -> None:
    given = in_groups()
    job = given.recuts[0].job
    layout = parse_any_layout(LAYOUT)
    assert isinstance(layout, GroupedLayout)
    absent = failed_per_stage(absent_of_groups(job, layout), job.stages)
    whole = plan_failed(job, absent_of_groups(job, layout))
    plans = (Planned(absent, whole.claims.period),)
    cut = our_cuts(replace(given, recuts=(CutPlans(job, plans),)))[1]
    counts = tuple(map(sum, zip(absent, failures, strict=True)))
    fewer = replace(layout.groups[0], workers=(5 - failures[0], 5 - failures[1]))
    exact = GroupedLayout((fewer, layout.groups[1]), layout.shares)
    made = plan_failed(job, absent_of_groups(job, exact)).claims.period
    assert cut.periods.exact(counts) == pytest.approx(made, rel=0.15)


@settings(max_examples=25, deadline=None)
@given(TRACES, st.integers(0, 10_000))
@example("poisson mtbf=20h repair=1h node=2:20% rack=6:20%", 450)
def test_any_trace_is_survived(words: str, seed: int) -> None:
    fleet = made_fleet(words, hours_of(words), seed)
    course: Course = course_of(Ours(in_groups()), fleet)
    assert 0 <= course.kept <= fleet.trace.span / 20 * (1 + 1e-9)
    assert course.redone >= 0
