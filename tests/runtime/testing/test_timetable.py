"""Faults and returns that a run is asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.protocol.messages.members import InjectedFault
from recycle_runtime.testing import faults as of_workers
from recycle_runtime.testing.chaos import chaos
from recycle_runtime.testing.faults import InjectedFaults
from recycle_runtime.testing.timetable import (
    KINDS,
    MIDDLE,
    MOMENTS,
    FaultTimetable,
    PlannedFault,
    PlannedReturn,
    parse_faults,
    parse_returns,
)


def test_kinds_are_those_that_workers_know() -> None:
    assert set(KINDS) == set(of_workers.KINDS)


def test_faults_as_options_give_them() -> None:
    assert parse_faults(["kill=1:2@5", "stop=0:3@7.17", "exit?=0:0@0.take"]) == [
        PlannedFault("kill", (1, 2), 5, MIDDLE),
        PlannedFault("stop", (0, 3), 7, 17),
        PlannedFault("exit?", (0, 0), 0, MOMENTS["take"]),
    ]
    assert parse_returns(["1:2@8"]) == [PlannedReturn((1, 2), 8)]


@pytest.mark.parametrize(
    "word",
    [
        *("", "kill", "kill=", "kill=1:2", "kill=1@2", "kill=1:2@x", "kill=1:2@3.", "kill=1:2@-1"),
        *("kill=1:2@3.now", "pinch=1:2@3", "?=1:2@3", "kill=1:2@3 ", "kill=\u0661:2@3"),
        *("kill=1:2@9999999999", "kill==1:2@3"),
    ],
)
def test_words_that_are_no_faults(word: str) -> None:
    with pytest.raises(ValueError, match=r"must be like|a fault "):
        parse_faults([word])


@given(st.text(max_size=20))
def test_any_words(word: str) -> None:
    for parse in (parse_faults, parse_returns):
        try:
            assert len(parse([word])) == 1
        except ValueError as error:
            assert "\n" not in str(error) or "\n" in word


def test_a_fault_happens_once() -> None:
    planned = FaultTimetable((PlannedFault("kill", (0, 0), 3), PlannedFault("kill", (0, 0), 9)))
    assert planned.faults((0, 0)) == (InjectedFault("kill", 3, -1), InjectedFault("kill", 9, -1))
    assert planned.faults((1, 0)) == ()
    planned.injected((0, 0), InjectedFault("kill", 3, -1))
    assert planned.faults((0, 0)) == (InjectedFault("kill", 9, -1),)


def test_a_worker_returns_as_often_as_it_should() -> None:
    planned = FaultTimetable(
        (), (PlannedReturn((0, 0), 9), PlannedReturn((0, 0), 4), PlannedReturn((1, 0), 6))
    )
    assert planned.due_to_join(3) == []
    assert planned.due_to_join(9) == [(0, 0), (1, 0)]
    planned.started((0, 0))
    assert planned.due_to_join(5) == []
    assert planned.due_to_join(9) == [(1, 0), (0, 0)]
    planned.started((0, 0))
    assert planned.due_to_join(99) == [(1, 0)]


def test_what_was_before_a_restart_has_happened() -> None:
    planned = FaultTimetable(
        (PlannedFault("kill", (0, 0), 3), PlannedFault("kill", (0, 0), 9)),
        (PlannedReturn((0, 0), 4), PlannedReturn((1, 0), 5), PlannedReturn((0, 0), 12)),
    )
    planned.resume(7, [(0, 0)])
    assert planned.faults((0, 0)) == (InjectedFault("kill", 9, -1),)
    assert planned.due_to_join(8) == [(1, 0)]
    assert planned.due_to_join(12) == [(1, 0), (0, 0)]


class Reporter:
    def __init__(self) -> None:
        self.told: list[InjectedFault] = []

    def fault_is_next(self, fault: InjectedFault, *, goes_on: bool) -> None:
        self.told.append(fault)


def test_faults_in_a_step() -> None:
    faults = [
        InjectedFault("socket", 3, 2),
        InjectedFault("socket?", 5, 99),
        InjectedFault("socket", 4, MOMENTS["meet"]),
    ]
    injected, reporter = InjectedFaults(faults), Reporter()
    injected.attach(reporter)

    def armed(step: int, *, is_spared: bool) -> dict[int, InjectedFault]:
        injected.begin_step(step, 10, is_spared=is_spared, is_joining=False)
        return injected.armed

    assert armed(2, is_spared=False) == {}
    assert armed(4, is_spared=False) == {2: faults[0]}
    assert armed(6, is_spared=False) == {2: faults[0], 5: faults[1]}
    assert armed(6, is_spared=True) == {2: faults[0]}
    injected.at("meet", 3)
    assert reporter.told == []


@given(
    seed=st.integers(0, 10**6),
    events=st.integers(0, 200),
    steps=st.integers(2, 300),
    pipelines=st.integers(1, 4),
    stages=st.integers(1, 4),
)
def test_chaos_leaves_every_stage_a_worker(
    seed: int, events: int, steps: int, pipelines: int, stages: int
) -> None:
    found = chaos(seed, events, steps, pipelines, stages, [])
    assert found == chaos(seed, events, steps, pipelines, stages, [])
    faults, returns = parse_faults(found.faults), parse_returns(found.returns)
    assert all(fault.kind.endswith("?") for fault in faults)
    moments = [(fault.step, 0, fault.place) for fault in faults]
    moments += [(planned.step, 1, planned.place) for planned in returns]
    live = {(pipeline, stage) for pipeline in range(pipelines) for stage in range(stages)}
    for step, comes, place in sorted(moments):
        assert 0 <= step < steps
        if comes:
            assert place not in live
            live.add(place)
        else:
            live.remove(place)
        assert {stage for _, stage in live} == set(range(stages))
