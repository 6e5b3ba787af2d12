"""Data by index in whole runs: every worker draws what it loads, once, whoever fails or comes back."""

import os
from pathlib import Path

import pytest

from recycle_runtime.data.reading import COMPARED
from tests.runtime.checkpoint.runs import plans
from tests.runtime.checkpoint.runs import run as run_with
from tests.runtime.recovery.watched import PROGRAMS, check, run
from tests.runtime.training.alone import train_alone
from tests.support.jobs import unit_job

BY_INDEX = str(PROGRAMS / "by_index.py")
PER_STEP = 4


def drawn(folder: Path) -> list[list[int]]:
    """By each process of a run but this one, in the order in which it was drawn."""
    notes = sorted(path for path in folder.iterdir() if path.name != str(os.getpid()))
    found = [[int(line) for line in path.read_text().split()] for path in notes]
    for path in folder.iterdir():
        path.unlink()
    return found


def drawn_by_number(folder: Path) -> list[list[int]]:
    """The same, each once: the first ones were drawn twice, to be compared, and no others."""
    found = drawn(folder)
    once = [list(dict.fromkeys(numbers)) for numbers in found]
    assert [len(numbers) for numbers in found] == [len(numbers) + COMPARED for numbers in once]
    return once


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "drawn"
    folder.mkdir()
    monkeypatch.setenv("DRAWN", str(folder))
    return folder


def test_a_failure_and_a_return(tmp_path: Path, notes: Path) -> None:
    """Three stages: workers in the middle draw nothing, and learn how long micro-batches are."""
    bundle = plans(tmp_path / "three.plan", unit_job(3, 2, 2), [(1, 0)])
    steps = 100
    alone = train_alone(BY_INDEX, 3, PER_STEP, steps)
    outcome = run(tmp_path / "run", bundle, BY_INDEX, steps, ["kill=1:0@3"], ["1:0@6"])
    check(tmp_path / "run", outcome, alone)
    processes = drawn_by_number(notes)
    # Those of the first and of the last stage, and the one that came back; it draws nothing of the past.
    assert outcome.rows[-1].live == 6 and len(processes) == 5
    assert min(map(min, processes)) == 0 and sum(min(numbers) >= 6 * PER_STEP for numbers in processes) == 1
    # All that was needed was drawn for each of the two ends, and hardly more: what was drawn ahead for a plan
    # that was not used any more.
    together = [number for numbers in processes for number in numbers]
    assert set(together) == set(range(steps * PER_STEP))
    assert 2 * steps * PER_STEP <= len(together) <= 2 * steps * PER_STEP + 4 * PER_STEP


@pytest.mark.slow
def test_a_run_that_goes_on_draws_nothing_of_the_past(tmp_path: Path, notes: Path) -> None:
    bundle = plans(tmp_path / "two.plan", unit_job(2, 2, 2))
    steps = 8
    alone = train_alone(BY_INDEX, 2, PER_STEP, steps)
    options = {"checkpoint": str(tmp_path / "kept"), "checkpoint_every": 4}
    begun, _ = run_with(bundle, BY_INDEX, 4, **options)
    first = drawn_by_number(notes)
    ended, _ = run_with(bundle, BY_INDEX, steps, resume=True, **options)
    later = drawn_by_number(notes)
    losses = [row.loss for row in (*begun.steps, *ended.steps)]
    assert losses == pytest.approx(alone.losses, rel=1e-9)
    for found, expected in ((first, range(16)), (later, range(16, 32))):
        together = sorted(number for numbers in found for number in numbers)
        assert together == sorted(2 * list(expected))
        assert [len(numbers) for numbers in found] == [8] * 4
    assert all(row.data_wait >= 0 for row in ended.steps)


@pytest.mark.slow
def test_a_stream_stands_where_others_stood(tmp_path: Path, notes: Path) -> None:
    """Both where a worker comes back and where a run goes on: hardly anything of the past is drawn."""
    program = str(PROGRAMS / "streamed.py")
    bundle = plans(tmp_path / "two.plan", unit_job(2, 2, 2), [(1, 0)])
    steps, more = 60, 4
    alone = train_alone(program, 2, PER_STEP, steps + more)
    options = {"checkpoint": str(tmp_path / "kept"), "checkpoint_every": 30}
    begun, _ = run_with(bundle, program, steps, faults=("kill=1:0@3",), returns=("1:0@6",), **options)
    first = drawn(notes)
    ended, _ = run_with(bundle, program, steps + more, resume=True, **options)
    later = drawn(notes)
    losses = [row.loss for row in (*begun.steps, *ended.steps)]
    assert losses == pytest.approx(alone.losses, rel=1e-9)
    assert begun.steps[-1].live == 4
    assert sum(min(numbers) >= 3 * PER_STEP for numbers in first) == 1
    assert [min(numbers) for numbers in later] == [steps * PER_STEP] * 4
