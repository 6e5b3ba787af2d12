"""Ops are timed without what they wait for; a slow worker is slow in all that it computes."""

import time
from collections.abc import Callable

import pytest
import torch

from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.execution.interpreter import Handler
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.protocol.messages.members import InjectedFault
from recycle_runtime.testing.faults import SLOWDOWN, InjectedFaults
from recycle_runtime.transport.guarded import guarded
from recycle_runtime.worker.takeover import ActiveThread

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
    times, shown = OpTimes(CPU), Shown()
    waits = ActiveThread(shown, times.resume)

    def waits_and_works() -> None:
        guarded(lambda: clock.work(5.0), waits)
        clock.work(1.0)

    times.begin()
    for opcode in (Opcode.FORWARD, Opcode.BACKWARD_INPUT, Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.LOAD):
        run(times, opcode, waits_and_works)
    assert times.take() == pytest.approx({"F": 1.0, "I": 1.0, "R": 6.0, "O": 1.0})
    assert times.take() == {} and not shown.is_waiting


def test_the_median_of_a_step_and_of_no_other(clock: Clock) -> None:
    times = OpTimes(CPU)
    for seconds in ((7.0, 8.0, 9.0), (1.0, 2.0, 30.0)):
        times.begin()
        for each in seconds:
            run(times, Opcode.BACKWARD_WEIGHT, lambda each=each: clock.work(each))
    assert times.take() == pytest.approx({"W": 2.0})


def test_a_slow_worker_takes_longer_for_work_alone(clock: Clock) -> None:
    hooks = Hooks()
    hooks.slowdown = 3.0
    times = OpTimes(CPU, hooks)
    waits = ActiveThread(Shown(), times.resume)

    def waits_and_works() -> None:
        guarded(lambda: clock.work(5.0), waits)
        clock.work(1.0)

    times.begin()
    run(times, Opcode.FORWARD, waits_and_works)
    assert clock.now == pytest.approx(108.0)
    run(times, Opcode.REDUCE, waits_and_works)
    assert clock.now == pytest.approx(114.0)
    assert times.take() == pytest.approx({"F": 3.0, "R": 6.0})


def test_the_fault_slows_the_process_down() -> None:
    faults = InjectedFaults([InjectedFault("slow", 0, 0)])
    faults.begin_step(0, 1, is_spared=False, is_joining=False)
    assert faults.slowdown == 1.0
    faults.before_instruction(0)
    assert faults.slowdown == SLOWDOWN > 2
    assert Hooks.slowdown == 1.0
