"""Journals with damaged lines, or with what no coordinator has written: one sentence, or one warning."""

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.coordinator.journal import JournalError
from recycle_runtime.coordinator.last_generation import check_fits, remembered
from recycle_runtime.coordinator.outlives import read_journal
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.coordinator.step_rows import told_since
from recycle_runtime.plan.plan_book import PlanBook
from tests.runtime.coordinator.lone_service import Job
from tests.runtime.recovery.plans_for_tests import fake_bundle

SOUND: list[dict[str, Any]] = [
    {"begins": [None, 0, 0]},
    {
        "generation": 1, "step": 0, "places": [[0, 0], [0, 1], [1, 0], [1, 1]], "job": "", "setup": None,
        "plan": [0, 0, 0, 0], "roles": [[0, 0], [0, 1], [1, 0], [1, 1]],
    },
    {"row": 0, "told": {"step": 0}},
    {"standby": [[1, 1]]},
    {"layer_bytes": [4, 4]},
    {"saving": "folder"},
    {"done": [[0, 0], 0], "error": None},
    {
        "generation": 2, "step": 1, "places": [[0, 0], [0, 1]], "cells": [[0, 0], [0, 1]],
        "plan": [0, 1, 0, 0], "roles": [[0, 0], [0, 1]], "joiners": [[[1, 0], [1, 0]]],
    },
    {"row": 1},
]  # fmt: skip


def written(folder: Path, *rows: object) -> Path:
    path = folder / "journal.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def book() -> PlanBook:
    return PlanBook(fake_bundle(2, 2, [[], [(1, 0), (1, 1)]]))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"generation": "x", "step": 3, "places": []}, "generation: expected int, got str"),
        ({"generation": float("inf"), "step": 3, "places": []}, "generation: expected int, got float"),
        ({"generation": 3}, "generation without step"),
        ({"generation": 3, "step": 1, "places": 7}, "places: expected array, got int"),
        ({"generation": 3, "step": 1, "places": [[0]]}, r"places\[0\]: expected array of length 2, got 1"),
        ({"generation": 3, "step": 1, "places": [], "plan": [0, 0, 0, 0]}, "plan without roles"),
        ({"generation": 3, "step": 1, "places": [], "cells": [[0, 0]]}, "cells has 1 values, not 0"),
        ({"row": None, "told": {}}, "row: expected int, got null"),
        ({"told": {}}, "told without row"),
        ({"ended": 3}, "ended: expected object, got int"),
        ({"copied": 1}, "copied: expected array, got int"),
        ({"begins": [1, 2]}, "begins: expected array of length 3, got 2"),
        ({"done": [[0, 0], 0]}, "done without error"),
        ({"bundle": "a", "slow": []}, "slow without live"),
    ],
)
def test_what_no_line_says(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    path = written(tmp_path, *SOUND, row)
    with pytest.raises(JournalError, match=rf"journal.jsonl:10: damaged: {says}"):
        read_journal(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"places": [[9, 9], [0, 1]]}, "the job has no worker 9:9"),
        ({"places": [[0, 1], [0, 1]]}, "one of them twice"),
        ({"plan": [7, 0, 0, 0]}, "there is no plan 0 of bundle 7"),
        ({"plan": [0, 9, 0, 0]}, "there is no plan 9 of bundle 0"),
        ({"cells": [[0, 0], [5, 1]]}, "where its plan has none"),
        ({"roles": [[0, 0], [7, 1]]}, "parts that its plan does not have"),
    ],
)
def test_what_does_not_fit_the_plans(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = written(tmp_path, *SOUND[:7], {**SOUND[7], **changes}, SOUND[8])
    lines = read_journal(path)
    state = remembered(lines)
    assert state is not None
    with pytest.raises(JournalError, match=f"journal.jsonl:8: damaged, or of another job: .*{says}"):
        check_fits(lines, state, book())


def test_a_coordinator_ends_with_the_sentence(tmp_path: Path, square: str) -> None:
    (tmp_path / "state").mkdir()
    path = written(tmp_path / "state", {**SOUND[1], "plan": [7, 9, 0, 0]})
    with pytest.raises(JournalError, match=r"journal.jsonl:1: .*there is no plan 9 of bundle 7"):
        Job(tmp_path, square, relay=False)
    path.write_text('{"copied": 1}\n', encoding="utf-8")
    with pytest.raises(JournalError, match=r"journal.jsonl:1: damaged: copied: expected array"):
        Job(tmp_path, square, relay=False)


def test_many_damaged_lines_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\xff\n" * 400 + b'{"row": 1, "told": 3}\n{"row": 2, "told": {}}\n')
    with caplog.at_level(logging.WARNING):
        assert remembered(read_journal(path)) is None
        assert [record.getMessage() for record in caplog.records] == [
            f"{path}:1: damaged, and left out, as are 399 lines after it"
        ]
        caplog.clear()
        assert told_since(read_journal(path), 2) == []
    assert f"{path}:402: damaged, and left out" in caplog.text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
NAMES = st.sampled_from(
    sorted({name for row in SOUND for name in row} | {"ended", "copied", "saved", "slow"})
)


@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), NAMES, VALUES), max_size=3))
def test_whatever_a_line_says(changes: list[tuple[int, str, Any]]) -> None:
    """A job goes on, has nothing to go on from, or ends with a sentence."""
    rows = [dict(row) for row in SOUND]
    for number, name, value in changes:
        rows[number][name] = value
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), *rows)
        rows_of_all = book()
        try:
            lines = read_journal(path)
            told_since(lines, 0)
            state = remembered(lines)
            if state is not None:
                check_fits(lines, state, rows_of_all)
                StateMachine(rows_of_all, 1, 30, set(rows_of_all.grid), 0.0).remember(state, lines)
        except JournalError as error:
            assert f"{path}:" in str(error)


@given(st.binary(max_size=200))
def test_whatever_bytes_there_are(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(data)
        try:
            read_journal(path)
        except JournalError as error:
            assert f"{path}:" in str(error)
