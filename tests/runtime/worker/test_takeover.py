"""A thread that is never woken is left behind, and another goes on in its place."""

import threading
import time
from pathlib import Path

import pytest

from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.worker.takeover import ActiveThread
from tests.runtime.recovery.watched import Outcome, disturbed

SECONDS = 30.0


class Shown:
    is_waiting = False


class Holder:
    """A thread that waits for other workers when it is told to, as often as it is told to."""

    def __init__(self) -> None:
        self.shown = Shown()
        self.is_there, self.waits, self.wakes, self.is_back = (threading.Event() for _ in range(4))
        threading.Thread(target=self._live, daemon=True).start()
        assert self.is_there.wait(SECONDS)

    def _live(self) -> None:
        self.thread = ActiveThread(self.shown)
        self.is_there.set()
        self.waits.wait()
        self.thread.begin()
        self.wakes.wait()
        self.thread.end()
        self.is_back.set()

    def wait(self) -> None:
        self.waits.set()
        while not self.thread.is_waiting:
            time.sleep(0.001)


def test_nobody_takes_it_from_one_that_works() -> None:
    holder = Holder()
    assert not holder.thread.take_over(0.0)
    holder.wait()
    assert holder.shown.is_waiting and not holder.thread.take_over(3600.0)
    holder.wakes.set()
    assert holder.is_back.wait(SECONDS)
    assert not holder.shown.is_waiting and not holder.thread.take_over(0.0)


def test_one_that_wakes_too_late_does_nothing() -> None:
    holder = Holder()
    holder.wait()
    assert holder.thread.take_over(0.0)
    assert not holder.shown.is_waiting
    assert not holder.thread.take_over(0.0), "nobody waits now"
    holder.wakes.set()
    assert not holder.is_back.wait(0.2)


def test_whoever_has_taken_it_can_lose_it_too() -> None:
    holder = Holder()
    holder.wait()
    assert holder.thread.take_over(0.0)
    holder.thread.begin()
    taken: list[bool] = []
    third = threading.Thread(target=lambda: taken.append(holder.thread.take_over(0.0)))
    third.start()
    third.join(SECONDS)
    assert taken == [True]


def failed_in(outcome: Outcome) -> list[str]:
    """Workers that failed, as far as causes say; one recovery may have several."""
    causes = [one for cause in outcome.causes for one in cause.split(", ")]
    return [one for one in causes if one != "start" and "lost its connection" not in one]


@pytest.mark.slow
def test_no_worker_fails(tmp_path: Path, wide: str) -> None:
    outcome = disturbed(tmp_path, wide, 20, ["half-open=0:1@5.3", "half-open=0:1@12.99"])
    assert len(outcome.faults) == 2 and failed_in(outcome) == []


def test_while_others_die(tmp_path: Path, wide: str) -> None:
    faults = ["half-open=0:1@5.99", "half-open=2:0@5.0", "kill=1:1@5", "kill=1:0@15", "half-open=0:1@15"]
    outcome = disturbed(tmp_path, wide, 30, faults)
    assert len(outcome.faults) == len(faults)
    # A kill in the middle of a recovery need not be a cause of another one.
    assert {cause[:3] for cause in failed_in(outcome)} <= {"1:0", "1:1"}
    assert outcome.rows[-1].live == outcome.rows[0].live - 2


@pytest.mark.slow
def test_at_every_instruction(tmp_path: Path, square: str) -> None:
    length = len(Bundle.read(square).stream(0, (0, 1)))
    faults = [f"half-open=0:1@{5 * at + 5}.{at}" for at in range(length)]
    outcome = disturbed(tmp_path, square, 5 * length + 10, faults)
    assert len(outcome.faults) == length and failed_in(outcome) == []
