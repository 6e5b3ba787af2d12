"""Steps that the loops of a script are given, by themselves and where a worker joins."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from recycle_runtime.protocol.messages.steps import StepRow
from recycle_runtime.trainer import context
from recycle_runtime.trainer.trainer import Trainer
from recycle_runtime.worker.requests import ScriptStart

TOTALS = (10, 20)


class FakeRequests:
    """A group that makes every step at once; `begun` is where its other scripts have begun their loops."""

    def __init__(self, start: ScriptStart, begun: Mapping[int, int]) -> None:
        self._start, self._begun = start, begun
        self.made: list[int] = []
        self.wanted: list[tuple[int, int | None]] = []
        self.is_main = True

    def begin(self) -> ScriptStart:
        return self._start

    def want(self, steps: int, begins: int | None) -> int:
        self.wanted.append((steps, begins))
        return len(self.wanted) - 1

    def loop_begins(self, call: int) -> int | None:
        return self._begun.get(call)

    def make(self, step: int, data: Any) -> None:
        self.made.append(step)

    def keep(self, step: int, snapshot: bytes) -> None: ...

    def forget_rows(self, step: int) -> None: ...

    def row(self, step: int) -> StepRow:
        return StepRow(step, 0.5, 0.1, 1, "0")


def same(index: int) -> int:
    return index


class FakeLife:
    worker = (0, 0)

    def start(self, program: Any, seed: int | None) -> None: ...


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(requests: FakeRequests) -> Trainer:
        inside = context.Context(cast(Any, FakeLife()), cast(Any, requests), Path("train.py"))
        monkeypatch.setattr(context, "_current", inside)
        return Trainer([], loss=lambda output, target: output, optimizer=lambda parameters: parameters)

    return make


def loops(trainer: Trainer, leaves: int) -> list[list[int]]:
    """Two loops; the first is left after step `leaves`, by what every worker sees of that step."""
    seen: list[list[int]] = []
    for number, total in enumerate(TOTALS):
        seen.append([])
        for _ in trainer.steps(total):
            report = trainer.step(same)
            seen[number].append(report.step)
            if number == 0 and report.step == leaves:
                trainer.stop()
    return seen


@pytest.mark.parametrize("leaves", [4, 99])
def test_one_loop_goes_on_where_the_one_before_was_left(trainer: Any, leaves: int) -> None:
    requests = FakeRequests(ScriptStart(0, is_made=False, run_begins=0), {})
    first, second = loops(trainer(requests), leaves)
    end = min(leaves + 1, TOTALS[0])
    assert first == list(range(end)) and second == list(range(end, TOTALS[1]))
    assert requests.made == list(range(TOTALS[1]))
    assert requests.wanted == [(TOTALS[0], 0), (TOTALS[1], end)]


@pytest.mark.parametrize(
    ("last", "begun", "expected"),
    [
        (3, {0: 0}, (3, 5)),  # The others are in the first loop.
        (4, {0: 0, 1: 5}, (4, 5)),  # They have just left it: its last body is entered once more.
        (5, {0: 0, 1: 5}, (5, 5)),  # They are in the second.
        (14, {0: 0, 1: 5}, (14, 5)),
    ],
)
def test_a_worker_that_joins_finds_the_loop_of_the_others(
    trainer: Any, last: int, begun: dict[int, int], expected: tuple[int, int]
) -> None:
    requests = FakeRequests(ScriptStart(last, is_made=True, run_begins=0), begun)
    first, second = loops(trainer(requests), 4)
    begins, border = expected
    assert first == list(range(begins, border)) and second == list(range(max(begins, border), TOTALS[1]))
    assert requests.made == list(range(last + 1, TOTALS[1])), "the last step of the others is made already"


def test_nothing_is_known_of_loops_in_an_old_checkpoint(trainer: Any) -> None:
    requests = FakeRequests(ScriptStart(12, is_made=True, run_begins=13), {})
    assert loops(trainer(requests), 99) == [[], list(range(12, TOTALS[1]))]
