"""The file of `--metrics`: every line is strict JSON, whatever happened."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.launcher.metrics_file import MetricsFile
from recycle_runtime.protocol.messages.observers import Hello, JobEnded, JobEvent, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled


def refuse(word: str) -> float:
    raise ValueError(word)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def row(step: int, loss: float = 0.5) -> StepRow:
    return StepRow(
        step, loss, 0.25, 4, "0 0", 0.125, samples=8, tokens=64, learning_rate=0.1, choices=8, dropped=1
    )


def test_what_a_row_says(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with MetricsFile(str(path)) as file:
        for message in (JobEvent("one"), JobEvent("two"), row(0), row(1), StepSettled(1, 3.0, False)):
            file.take(message)
    first, second = rows(path)
    assert first == {
        "step": 0, "loss": 0.5, "learning_rate": 0.1, "gradient_norm": None, "skipped": None,
        "seconds": 0.25, "data_wait": 0.125, "live": 4, "plan": "0 0", "event": "one; two",
        "samples_per_second": 32.0, "tokens_per_second": 256.0, "dropped": 0.125,
    }  # fmt: skip
    assert (second["learning_rate"], second["gradient_norm"], second["skipped"]) == (0.1, 3.0, False)


def test_what_became_of_a_step_may_come_first(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with MetricsFile(str(path)) as file:
        for message in (StepSettled(0, math.nan, True), row(0, math.nan), row(1, math.inf)):
            file.take(message)
    names = ("loss", "not_finite", "gradient_norm", "skipped")
    first, second = ([each[name] for name in names] for each in rows(path))
    assert first == [None, "nan", None, True]
    assert second == [None, "inf", None, None]


@pytest.mark.parametrize("before", ["", '{"step": 0}\n', '{"step": 0}\n{"ste', '{"st'])
def test_a_run_appends(tmp_path: Path, before: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(before)
    with MetricsFile(str(path)) as file:
        file.take(row(7))
    assert [each["step"] for each in rows(path)] == [0, 7][before.count("\n") == 0 :]


def test_a_full_disk_is_told_at_the_end() -> None:
    with MetricsFile("/dev/full") as file:
        file.take(row(0))
        file.take(row(1))
        file.take(row(2))
    assert file.error == "cannot write /dev/full: no space left on device"


def norms(path: Path, *news: ToObserver) -> list[tuple[int, float | None]]:
    """Of the rows that are written when all this has come, and the file is still open."""
    path.unlink(missing_ok=True)
    with MetricsFile(str(path)) as file:
        for message in news:
            file.take(message)
        return [(each["step"], each["gradient_norm"]) for each in rows(path)]


def settled(step: int, norm: float | None = None) -> StepSettled:
    return StepSettled(step, float(step) if norm is None else norm, is_skipped=False)


def test_rows_and_what_became_of_steps_come_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert norms(path, settled(0), settled(1), row(0), row(1)) == [(0, 0.0), (1, 1.0)]
    assert norms(path, row(0), row(1), settled(0), settled(1)) == [(0, 0.0), (1, 1.0)]
    assert norms(path, row(0), row(1), settled(1), settled(0)) == [(0, 0.0), (1, 1.0)]
    assert norms(path, row(0), settled(1), settled(2), settled(0), row(1)) == [(0, 0.0), (1, 1.0)]


def test_what_became_of_many_steps_may_come_before_their_rows(tmp_path: Path) -> None:
    """Found once: workers made 40 steps while the coordinator was gone, and the one that says what became of
    them came back first: rows of all but the last 16 lacked their norms."""
    steps = range(400)
    told = norms(tmp_path / "run.jsonl", *map(settled, steps), *map(row, steps))
    assert told == [(step, float(step)) for step in steps]


def test_a_row_does_not_wait_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert norms(path, row(0), row(1)) == []
    assert [each["step"] for each in rows(path)] == [0, 1], "at the end"
    assert norms(path, row(0), row(1), settled(1), row(2)) == [(0, None), (1, 1.0)]
    assert norms(path, row(0), row(1), JobEnded(None, False, None, 2)) == [(0, None), (1, None)]


def test_a_job_that_went_back_to_a_copy_makes_its_steps_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    before = (row(4), settled(4), row(5), settled(6, 0.25))
    again = (Hello(9, 5), row(5), settled(5), row(6), settled(6, 0.5))
    assert norms(path, *before, *again) == [(4, 4.0), (5, None), (5, 5.0), (6, 0.5)]
    assert norms(path, settled(5), Hello(9, 5), row(5)) == [(5, 5.0)], "only another coordinator"


def test_a_file_that_was_removed_is_begun_anew_and_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with MetricsFile(str(path)) as file:
        for step in range(6):
            if step == 4:
                path.unlink()
            file.take(StepSettled(step, 1.0, False))
            file.take(row(step))
            assert (file.error is not None) == (step >= 4)
    assert [each["step"] for each in rows(path)] == [4, 5]
    assert file.error == f"{path}: somebody has removed this file during the run, with the rows in it"


def told(first: int, last: int, seconds: float = 0.25) -> list[StepRow]:
    """Rows of these steps, as a journal has them."""
    return [replace(row(step), seconds=seconds) for step in range(first, last)]


_AGAIN = told(3, 5, seconds=0.5)


@pytest.mark.parametrize(
    ("there", "journal", "after"),
    [
        ([], told(0, 3), [0, 1, 2]),
        (told(0, 4), told(0, 6), [0, 1, 2, 3, 4, 5]),
        (told(0, 4), told(0, 4), [0, 1, 2, 3]),
        (told(0, 4), told(0, 2), [0, 1, 2, 3]),
        (told(0, 6), [*told(0, 6), *_AGAIN], [0, 1, 2, 3, 4, 5, 3, 4]),
        ([*told(0, 6), *_AGAIN], [*told(0, 6), *_AGAIN], [0, 1, 2, 3, 4, 5, 3, 4]),
        (told(0, 2, seconds=7.0), told(0, 2), [0, 1, 0, 1]),
    ],
    ids=["all", "some", "none", "journal-lost", "made-again", "made-again-and-there", "of-another-job"],
)
def test_rows_that_were_told_and_not_written(
    tmp_path: Path, there: list[StepRow], journal: list[StepRow], after: list[int]
) -> None:
    path = tmp_path / "run.jsonl"
    with MetricsFile(str(path)) as file:
        for each in there:
            file.take(each)
    with path.open("a") as other:
        other.write('["of somebody else"]\n[]\nwords\n{"step": [0]}\n{"ste')
    with MetricsFile(str(path)) as file:
        file.catch_up(journal)
        file.catch_up(journal)
    lines = [line for line in path.read_text().splitlines() if '"loss"' in line]
    assert [json.loads(line)["step"] for line in lines] == after


def test_rows_that_were_told_and_not_written_say_what_became_of_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with MetricsFile(str(path)) as file:
        file.take(row(0))
    settled = [StepSettled(step, 0.5 + step, is_skipped=step == 2) for step in range(3)]
    journal = [row(0), row(1), settled[0], row(2), settled[1], row(3), settled[2]]
    with MetricsFile(str(path)) as file:
        file.catch_up(journal)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = [(each["step"], each.get("gradient_norm"), each.get("skipped")) for each in rows]
    assert found[1:] == [(1, 1.5, False), (2, 2.5, True), (3, None, None)]


def test_what_is_no_file_gets_new_rows_alone() -> None:
    reader, writer = os.pipe()
    with MetricsFile(f"/dev/fd/{writer}") as file:
        file.catch_up(told(0, 3))
        file.take(row(3))
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert [json.loads(line)["step"] for line in pipe] == [3]
