"""Threads that draw ahead, and the end of the process."""

import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from recycle_runtime.data.ahead import UNSURE, Ahead, InThread
from recycle_runtime.data.private_random import preserved
from recycle_runtime.program.host_random import HOST

SECONDS = 120.0


class Paced:
    """Draws an item whenever it may."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.drawn: list[int] = []

    def draw(self, numbers: Iterator[int]) -> Iterator[tuple[int, int]]:
        for number in numbers:
            assert self.may.acquire(timeout=SECONDS)
            self.drawn.append(number)
            yield number, number

    def close(self) -> None:
        pass


def test_the_item_under_way_is_the_last() -> None:
    paced = Paced()
    ahead = Ahead(paced)
    ahead.expect(range(1_000))
    paced.may.release()
    assert ahead.take(0) == 0
    thread = ahead.stop()
    assert thread is not None
    paced.may.release(1_000)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert paced.drawn in ([0], [0, 1])


def test_one_that_was_stopped_goes_on_when_it_is_asked() -> None:
    paced = Paced()
    paced.may.release(1_000)
    ahead = Ahead(paced)
    ahead.expect(range(3))
    assert ahead.take(1) == 1
    ahead.stop()
    assert ahead.take(7) == 7


def test_items_are_made_ready_in_the_background() -> None:
    def get(number: int) -> int:
        if number == 2:
            raise ValueError("no such item")
        return number

    by = set[str]()

    def ready(item: int) -> str:
        by.add(threading.current_thread().name)
        return f"item {item}"

    ahead = Ahead(InThread(get, threading.Lock()), ready)
    ahead.expect(range(3))
    assert [ahead.take(number) for number in (1, 0)] == ["item 1", "item 0"]
    assert isinstance(ahead.take(2).error, ValueError)
    assert by == {"data"}


_ENDS_WHILE_IT_DRAWS = """
import torch
from recycle_runtime.data.ahead import DrawnAhead

generator = torch.Generator().manual_seed(0)
ahead = DrawnAhead(lambda number: torch.randn(64, 64, generator=generator) @ torch.ones(64, 64), 0)
ahead.expect(range(1_000_000))
ahead.take(0), ahead.take(1)
"""


@pytest.mark.slow
def test_a_process_that_draws_ahead_ends_well() -> None:
    """Before, four of five were aborted."""
    for _ in range(4):
        command = [sys.executable, "-c", _ENDS_WHILE_IT_DRAWS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")


class Forwards:
    """Seeds the generators of the process until it is told to stop, as a model does before its layers."""

    def __init__(self) -> None:
        self.seeded = threading.Semaphore(0)
        self.may = threading.Semaphore(0)
        self._is_over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Forwards":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self.may.release()
        self._thread.join()

    def once(self) -> None:
        """Another one, from any thread."""
        self.may.release()
        assert self.seeded.acquire(timeout=SECONDS)

    def _run(self) -> None:
        while self.may.acquire(timeout=SECONDS) and not self._is_over:
            HOST.seed(5)
            self.seeded.release()


@pytest.mark.parametrize("is_random", [False, True])
def test_a_thread_knows_its_own_draws_from_the_seeds_of_forwards(is_random: bool) -> None:
    with preserved(), Forwards() as forwards:

        def get(number: int) -> int:
            forwards.once()
            if is_random:
                random.random()
            forwards.once()
            return number

        items = dict(InThread(get, threading.Lock()).draw(iter(range(3))))
    assert items == {number: UNSURE if is_random else number for number in range(3)}
