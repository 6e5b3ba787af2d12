"""The simple policies, and how they stand to each other."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.course import Course
from recycle_compiler.fleet.policies.elastic import Elastic
from recycle_compiler.fleet.policies.references import FaultScaled, fault_free, zero_bubble
from recycle_compiler.fleet.policies.restart import Restart
from recycle_compiler.fleet.report import report_table
from recycle_compiler.fleet.setting import ChangeCosts
from tests.compiler.fleet.settings import COSTS, course_of, made_fleet, read_fleet, report_of, setting

NO_COSTS = ChangeCosts(
    detection=0,
    regroup=0,
    undone=0,
    start_up=0,
    planning=0,
    checkpoint_every=1e9,
    checkpoint_save=0,
    checkpoint_load=0,
    restart=0,
)
WHOLE = 1 / 30
"""1F1B, iterations a second."""


def rates(course: Course) -> list[tuple[float, Any]]:
    return [(at, pytest.approx(rate)) for at, rate in course.rates()]


def test_those_who_never_fail() -> None:
    trace = read_fleet('{"at": 1000, "failed": ["1:0"]}', '{"at": 2100}')
    assert course_of(fault_free(setting()), trace).kept == pytest.approx(70)
    assert course_of(zero_bubble(setting()), trace).kept == pytest.approx(100)


def test_fault_scaled_goes_with_the_workers() -> None:
    trace = read_fleet('{"at": 1000, "failed": ["1:0", "1:1", "2:0"]}', '{"at": 2000}')
    assert rates(course_of(FaultScaled(setting()), trace)) == [(0, WHOLE), (1000, WHOLE * 9 / 12)]


def test_elastic_drops_a_pipeline_and_takes_it_back() -> None:
    trace = read_fleet(
        '{"at": 1000, "failed": ["1:0"]}',
        '{"at": 1500, "failed": ["1:3"]}',
        '{"at": 2000, "returned": ["1:0"]}',
        '{"at": 2500, "returned": ["1:3"]}',
        '{"at": 3000}',
    )
    course = course_of(Elastic(setting(parameters=5 * 10**9)), trace)
    assert rates(course) == [(0, WHOLE), (985, 0), (1003, WHOLE * 2 / 3), (2520, 0), (2527, WHOLE)]


def test_elastic_stands_still_when_every_pipeline_is_hit() -> None:
    trace = read_fleet(
        '{"at": 1000, "failed": ["0:0", "1:1", "2:2"]}', '{"at": 2000, "returned": ["1:1"]}', '{"at": 3000}'
    )
    course = course_of(Elastic(setting()), trace)
    assert rates(course) == [(0, WHOLE), (985, 0), (2022, WHOLE / 3)]


def test_elastic_goes_back_to_a_checkpoint_when_a_stage_has_failed() -> None:
    trace = read_fleet(
        '{"at": 1050, "failed": ["0:0", "1:0", "2:0"]}', '{"at": 2000, "returned": ["1:0"]}', '{"at": 3000}'
    )
    course = course_of(Elastic(setting()), trace)
    assert rates(course) == [(0, WHOLE), (1000, 0), (2060, WHOLE / 3)]
    assert "no worker has some stage" in course.log[0].reaction.why


def test_elastic_cannot_use_what_a_waiting_pipeline_remembers() -> None:
    """Two pipelines have stood by for a while when a stage of the last one fails."""
    trace = read_fleet(
        '{"at": 1000, "failed": ["0:1"]}',
        '{"at": 2000, "failed": ["1:2"]}',
        '{"at": 3000, "failed": ["2:0"]}',
        '{"at": 4000, "returned": ["0:1"]}',
        '{"at": 5000}',
    )
    assert course_of(Elastic(setting()), trace).log[-1].reaction.why == "from a checkpoint"


def test_restart_loses_what_no_checkpoint_has() -> None:
    trace = read_fleet('{"at": 1050, "failed": ["0:0"]}', '{"at": 3000}')
    whole = WHOLE * 100 / 110
    assert rates(course_of(Restart(setting()), trace)) == [
        (0, whole),
        (1050 - (100 + 10) / 2, 0),
        (1050 + 1 + 30 + 10, whole * 2 / 3),
    ]


@pytest.mark.parametrize("at", [1099, 1100, 1101])
def test_what_a_restart_loses_does_not_hang_on_the_second(at: int) -> None:
    course = course_of(Restart(setting()), read_fleet(f'{{"at": {at}, "failed": ["0:0"]}}', '{"at": 3000}'))
    assert course.log[0].reaction.redone == 55


def test_no_more_is_lost_than_was_done_since_the_last_restart() -> None:
    trace = read_fleet(
        '{"at": 20, "failed": ["0:0"]}',
        '{"at": 91, "failed": ["0:1"]}',
        '{"at": 92, "failed": ["0:2", "0:3", "1:0"]}',
        '{"at": 300}',
    )
    course = course_of(Restart(setting()), trace)
    assert [entry.reaction.redone for entry in course.log] == [20, 30, 0]


def test_restart_uses_spares() -> None:
    names = ", ".join(f'"n{number}"' for number in range(13))
    trace = read_fleet(f'{{"nodes": [{names}]}}', '{"at": 1050, "failed": ["n0"]}', '{"at": 3000}')
    whole = WHOLE * 100 / 110
    assert rates(course_of(Restart(setting()), trace))[-1] == (1091, whole)


def test_restart_does_not_mind_the_failure_of_a_machine_that_waits() -> None:
    trace = read_fleet('{"at": 1000, "failed": ["0:0"]}', '{"at": 1500, "failed": ["2:3"]}', '{"at": 3000}')
    assert len(course_of(Restart(setting()), trace).rates()) == 3


def test_restart_takes_back_machines_where_that_pays() -> None:
    lines = ('{"at": 1000, "failed": ["0:0"]}', '{"at": 1500, "returned": ["0:0"]}', '{"at": 9000}')
    course = course_of(Restart(setting()), read_fleet(*lines))
    assert course.rates()[-1] == (1550, pytest.approx(WHOLE * 100 / 110))
    rushed = replace(COSTS, expected_change=0.001)
    soon = read_fleet('{"at": 1, "failed": ["0:0"]}', '{"at": 150, "returned": ["0:0"]}', '{"at": 9000}')
    assert course_of(Restart(setting(rushed)), soon).rates()[-1][1] < WHOLE * 0.7


@settings(max_examples=20)
@given(
    st.sampled_from(["every 20m", "every 30m repair 2h", "poisson mtbf=30h repair=1h node=4:20%"]),
    st.integers(0, 10_000),
)
def test_how_they_stand_to_each_other(words: str, seed: int) -> None:
    names = ("ours", "elastic", "restart", "fault-scaled", "fault-free", "zero-bubble")
    report = report_of(made_fleet(words, seed=seed), *names)
    average = {outcome.name: outcome.average or 0.0 for outcome in report.outcomes}
    slack = 1 + 1e-9
    assert average["ours"] <= average["zero-bubble"] * slack
    assert average["restart"] <= average["fault-scaled"] * slack
    assert average["elastic"] <= average["fault-scaled"] * slack
    assert average["fault-scaled"] <= average["fault-free"] * slack
    for outcome in report.outcomes:
        assert outcome.average is not None
        steps = [(point.hours, point.throughput) for point in outcome.timeline]
        area = sum(rate * (end - at) for (at, rate), (end, _) in pairwise(steps))
        assert area == pytest.approx(outcome.average * 12)
        assert outcome.timeline[0].hours == 0
        assert outcome.timeline[-1].hours == 12


@settings(max_examples=20)
@given(st.sampled_from(["every 1h repair 2h", "poisson mtbf=60h repair=1h"]), st.integers(0, 10_000))
def test_ours_is_ahead_where_changes_cost_nothing(words: str, seed: int) -> None:
    given = setting(NO_COSTS)
    report = report_of(made_fleet(words, seed=seed), "ours", "elastic", "restart", given=given)
    ours, *others = (outcome.average or 0.0 for outcome in report.outcomes)
    assert all(ours >= other for other in others)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(
        [
            "every 20m",
            "poisson mtbf=20h repair=1h node=2:20% rack=6:20%",
            "poisson mtbf=3h repair=2m spares=3",
            "poisson mtbf=30m repair=2m rack=6:30%",
        ]
    ),
    st.integers(0, 10_000),
)
def test_everybody_survives_any_trace(words: str, seed: int) -> None:
    names = ("recycle", "oobleck", "bamboo", "varuna", "elastic", "restart")
    report = report_of(made_fleet(words, 3, seed), *names)
    assert all(outcome.average is None or outcome.average >= 0 for outcome in report.outcomes)


def test_the_table_says_how_more_than_everything_is_possible() -> None:
    report = report_of(made_fleet("none"), "fault-free")
    (outcome,) = report.outcomes
    assert "More than 100 %" not in report_table(report)
    ahead = replace(report, outcomes=(replace(outcome, share=1.1),))
    assert "More than 100 %: a policy that cuts the model anew" in report_table(ahead)


def test_notes_say_what_was_measured_and_what_users_gave() -> None:
    names = ("ours", "torchft", "nvrx", "oobleck", "restart")
    ours, torchft, nvrx, oobleck, restart = (
        one.note
        for one in report_of(made_fleet("none"), *names, given=setting(ChangeCosts(swap=9.0))).outcomes
    )
    assert "0.155 s (measured)" in ours and "(both measured)" in torchft and "9 s (given)" in nvrx
    assert "2.0 s (published)" in oobleck and "(assumed)" in restart
    changed = ChangeCosts(regroup=3.0, replica_join=2.0, reconfiguration=5.0, checkpoint_save=7.0)
    ours, torchft, nvrx, oobleck, restart = (
        one.note for one in report_of(made_fleet("none"), *names, given=setting(changed)).outcomes
    )
    assert "(given)" in ours and "(both given)" in torchft and "40 s (published for DeadPool)" in nvrx
    assert "5.0 s (given)" in oobleck and "checkpoint of 7 s (given)" in restart
