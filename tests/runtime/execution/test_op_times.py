"""Ops are timed without what they wait for; a slow worker is slow in all that it computes."""

import time
from collections.abc import Callable

import pytest
import torch

from recycle_runtime.execution.interpreter import Handler
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.testing.faults import KINDS, PACE, SLOW, Pace
from recycle_runtime.transport.guarded import guarded

CPU = torch.device("cpu")


class Shown:
    is_waiting = False


class Clock:
    """Time that goes on when somebody works or sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.work)

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def run(times: OpTimes, opcode: Opcode, work: Callable[[], None]) -> None:
    def handler(_: Instruction) -> None:
        work()

    table: dict[Opcode, Handler] = {opcode: handler}
    times.around(table)[opcode](Instruction(opcode))


def test_waiting_is_no_work_but_for_a_reduction(clock: Clock) -> None:
    times, shown = OpTimes(CPU, Shown(), Pace()), Shown()

    def waits_and_works() -> None:
        guarded(lambda: clock.work(5.0), times.waits)
        clock.work(1.0)

    times.begin()
    for opcode in (Opcode.FORWARD, Opcode.BACKWARD_INPUT, Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.LOAD):
        run(times, opcode, waits_and_works)
    assert times.take() == pytest.approx({"F": 1.0, "I": 1.0, "R": 6.0, "O": 1.0})
    assert times.take() == {} and not shown.is_waiting


def test_the_median_of_a_step_and_of_no_other(clock: Clock) -> None:
    times = OpTimes(CPU, Shown(), Pace())
    for seconds in ((7.0, 8.0, 9.0), (1.0, 2.0, 30.0)):
        times.begin()
        for each in seconds:
            run(times, Opcode.BACKWARD_WEIGHT, lambda each=each: clock.work(each))
    assert times.take() == pytest.approx({"W": 2.0})


def test_others_still_see_that_it_waits() -> None:
    shown = Shown()
    times = OpTimes(CPU, shown, Pace())
    times.waits.is_waiting = True
    assert shown.is_waiting and times.waits.is_waiting
    times.waits.is_waiting = False
    assert not shown.is_waiting


def test_a_slow_worker_takes_longer_for_work_alone(clock: Clock) -> None:
    pace = Pace()
    pace.factor = 3.0
    times = OpTimes(CPU, Shown(), pace)

    def waits_and_works() -> None:
        guarded(lambda: clock.work(5.0), times.waits)
        clock.work(1.0)

    times.begin()
    run(times, Opcode.FORWARD, waits_and_works)
    assert clock.now == pytest.approx(108.0)
    run(times, Opcode.REDUCE, waits_and_works)
    assert clock.now == pytest.approx(114.0)
    assert times.take() == pytest.approx({"F": 3.0, "R": 6.0})


def test_the_fault_changes_the_pace_of_the_process() -> None:
    assert PACE.factor == 1.0
    try:
        KINDS["slow"]()
        assert PACE.factor == SLOW > 2
    finally:
        PACE.factor = 1.0
