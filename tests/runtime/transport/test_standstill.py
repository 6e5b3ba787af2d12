"""That everybody waits is noticed, though everybody lives; that somebody works is no standstill."""

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.transport.cuda_ipc import CudaIpcTransport, SharedCounters
from recycle_runtime.transport.interface import Grid, TensorSpec
from recycle_runtime.transport.standstill import LONGEST_LOOK, StandstillError, WaitBoard
from tests.runtime.transport.shared_host import SharedHost
from tests.runtime.transport.workers import in_threads

SECONDS = 0.3
WORKERS = [(0, 0), (0, 1), (0, 2)]
GRID = Grid(WORKERS, 1, 1, (0, 1, 2))
PATIENCE = timedelta(seconds=120)


def test_all_wait() -> None:
    numbers, time = [0, 0], [0.0]
    sides = [WaitBoard(numbers, 0, 2, me, SECONDS, lambda: time[0]) for me in range(2)]
    with sides[0].waiting():
        sides[0].look()
        for _ in range(100):
            # The other one works.
            time[0] += LONGEST_LOOK
            sides[0].look()
        with sides[1].waiting(), pytest.raises(StandstillError, match="all 2 processes"):
            for _ in range(100):
                time[0] += LONGEST_LOOK
                sides[0].look()
    assert numbers[1] == 0


def test_one_that_was_stopped_itself_starts_counting_anew() -> None:
    numbers, time = [0, 0], [0.0]
    sides = [WaitBoard(numbers, 0, 2, me, SECONDS, lambda: time[0]) for me in range(2)]
    with sides[0].waiting(), sides[1].waiting():
        sides[0].look()
        time[0] += 1000.0
        sides[0].look()


def test_short_waits_of_the_others_are_progress() -> None:
    numbers, time = [0, 0], [0.0]
    sides = [WaitBoard(numbers, 0, 2, me, SECONDS, lambda: time[0]) for me in range(2)]
    with sides[0].waiting():
        for _ in range(100):
            with sides[1].waiting():
                time[0] += LONGEST_LOOK
                sides[0].look()


def _uncounted(counter: int) -> None:
    """Say nothing of it."""


class Forgetful:
    """A transport whose first message to a worker is written and never counted."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def send(self, worker: tuple[int, int], tensor: torch.Tensor) -> None:
        counters: SharedCounters = self._inner._counters
        add, counters.add = counters.add, _uncounted
        try:
            self._inner.send(worker, [tensor])
        finally:
            counters.add = add


def joined() -> list[Any]:
    device, store = SharedHost(), dist.HashStore()
    made: dict[int, Any] = {}

    def join(number: int) -> None:
        made[number] = CudaIpcTransport(
            store, "group", GRID, WORKERS[number], 0, PATIENCE, device, {}, SECONDS
        )

    in_threads([lambda number=number: join(number) for number in range(3)])
    return [made[number] for number in range(3)]


def test_a_lost_message_is_found_by_all_who_wait() -> None:
    """The first waits for a gradient, the second for the lost message, the third in the barrier."""
    first, second, third = joined()
    specs = [TensorSpec((4,), torch.float64)]
    told: list[str] = []

    def wait(work: Any) -> None:
        try:
            work()
        except RuntimeError as error:
            told.append(str(error))

    def sender() -> None:
        Forgetful(first).send(WORKERS[1], torch.ones(4, dtype=torch.float64))
        wait(first.receive(WORKERS[1], specs).wait)
        # As a worker does that has to leave: gloo's barrier of the third ends too.
        first.close()

    def receiver() -> None:
        wait(second.receive(WORKERS[0], specs).wait)
        second.close()

    threads = [
        threading.Thread(target=target, daemon=True)
        for target in (sender, receiver, lambda: wait(third.barrier))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE.total_seconds())
    assert len([words for words in told if "a message is lost" in words]) == 2
    third.close()


def test_a_worker_that_computes_for_long_is_waited_for() -> None:
    first, second, third = joined()
    specs = [TensorSpec((4,), torch.float64)]
    value = torch.arange(4, dtype=torch.float64)
    computed = threading.Event()

    def sender() -> None:
        computed.wait(4 * SECONDS)
        first.send(WORKERS[1], [value])
        first.barrier()

    def receiver() -> None:
        (got,) = second.receive(WORKERS[0], specs).wait()
        assert torch.equal(got, value)
        second.barrier()

    in_threads([sender, receiver, third.barrier])
    for transport in (first, second, third):
        transport.close()
