"""Data that the user's code changes between two steps: every step gets it as it is when the step begins."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.data.batches import Batches
from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program
from recycle_runtime.worker.requests import Requests

PER_STEP = 4
SECONDS = 120.0


def unused(*_: Any) -> Any:
    raise AssertionError


def opened(**names: Any) -> MicroBatches:
    """Of a script, which gives its data with every step."""
    needed = dict.fromkeys(("build_stage", "loss", "optimizer", "data"), unused)
    program = Program(Path("train.py"), needed | names)
    program.data_comes_later = True
    return MicroBatches(program, 0, PER_STEP)


class Noisy:
    """Micro-batches by number, times something that the body of the loop changes."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.drawn: list[int] = []
        self.next_step = threading.Event()

    def __call__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.drawn.append(number)
        if number >= PER_STEP:
            self.next_step.set()
        return torch.full((2,), self.factor * number), torch.zeros(2)


def make(data: MicroBatches, source: Any, step: int, indices: range = range(PER_STEP)) -> list[float]:
    """One step of a worker: the first number of every input."""
    data.use(source, step)
    data.expect(step, indices)
    return [float(data.item(step, index)[0][0]) for index in indices]


@pytest.mark.usefixtures("drawn_once")
def test_nothing_is_drawn_before_the_body_of_the_loop_has_run() -> None:
    noisy, data = Noisy(), opened()
    for step in range(5):
        numbers = range(step * PER_STEP, (step + 1) * PER_STEP)
        noisy.factor = 0.5**step
        assert make(data, noisy, step) == [noisy.factor * number for number in numbers]
        assert sorted(noisy.drawn) == list(range(numbers.stop))


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize("ahead", [True, False])
def test_programs_with_on_step_have_a_body_too(ahead: bool) -> None:
    noisy, data = Noisy(), opened(on_step=unused, DRAW_AHEAD=ahead)
    assert make(data, noisy, 0) == [0.0, 1.0, 2.0, 3.0]
    if ahead:
        assert noisy.next_step.wait(SECONDS)
    else:
        assert noisy.drawn == [0, 1, 2, 3]


def test_processes_draw_ahead() -> None:
    """Their source is theirs, as with a DataLoader."""
    pairs = [(torch.tensor(float(number)), torch.tensor(0.0)) for number in range(40)]
    assert opened()._opened_on(Batches(pairs, 1, workers=1)).is_apart  # pyright: ignore[reportPrivateUsage]
    assert not opened()._opened_on(Batches(pairs, 1)).is_apart  # pyright: ignore[reportPrivateUsage]


def pairs_of(first: int, count: int = PER_STEP) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((2,), float(first + number)), torch.zeros(2)) for number in range(count)]


def test_a_list_may_be_filled_anew_and_grow() -> None:
    data, buffer = opened(), pairs_of(0)
    assert make(data, buffer, 0) == [0.0, 1.0, 2.0, 3.0]
    buffer[:] = pairs_of(10)
    assert make(data, buffer, 1) == [10.0, 11.0, 12.0, 13.0]
    buffer += pairs_of(14, 2)
    assert make(data, buffer, 2) == [12.0, 13.0, 14.0, 15.0]


@pytest.mark.parametrize("before", [range(2), range(0)])
def test_a_step_that_is_made_again_has_the_list_as_it_was(before: range) -> None:
    """Also those micro-batches that another worker had read, which has failed."""
    data, buffer = opened(), pairs_of(0)
    make(data, buffer, 0, before)
    buffer[:] = pairs_of(10)
    data.made_before(0)
    assert make(data, buffer, 0) == [0.0, 1.0, 2.0, 3.0]
    assert make(data, buffer, 1) == [10.0, 11.0, 12.0, 13.0]


def test_a_step_that_is_made_again_with_other_data_is_refused() -> None:
    noisy, data = Noisy(), opened()
    make(data, noisy, 0)
    make(data, noisy, 1, range(2))
    data.made_before(1)
    assert make(data, noisy, 1, range(1, 4)) == [5.0, 6.0, 7.0]
    noisy.factor = 0.5
    data.made_before(1)
    with pytest.raises(
        ProgramError, match=r"^train\.py: micro-batch 4 of the data is not what it was"
    ) as error:
        make(data, noisy, 1)
    assert "report.loss" in error.value.hint


def test_scripts_go_on_when_their_worker_has_made_a_step() -> None:
    requests = Requests()
    requests.made(3)
    assert not requests.was_made(2), "there is no script"
    requests.arrive(0, 0, (0, 0), 1, is_main=True)
    assert requests.was_made(2) and not requests.was_made(3)
    requests.arrive(2, 0, (0, 0), 2, is_main=True)
    assert requests.was_made(2), "step 2 is made again"


def test_draw_ahead_is_yes_or_no() -> None:
    with pytest.raises(ProgramError, match="DRAW_AHEAD must be True or False, got 2"):
        opened(DRAW_AHEAD=2)
