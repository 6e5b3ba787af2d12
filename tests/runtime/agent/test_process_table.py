"""Notes that an agent writes down for the one after it."""

from pathlib import Path

import pytest

from recycle_runtime.agent.process_table import ProcessTable, Row
from recycle_runtime.protocol.messages.members import Member

FIRST, SECOND, THIRD = (Member((pipeline, 0), 0) for pipeline in range(3))


def test_lines_are_taken_and_free_again(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path / "processes.json", 2)
    table.add(Row(FIRST, 0, 11))
    assert table.free_line() == 1
    table.add(Row(SECOND, 1, 12))
    assert table.free_line() is None
    assert (table.row_of(SECOND), table.row_of(THIRD)) == (Row(SECOND, 1, 12), None)
    assert (table.remove(0), table.remove(0)) == (FIRST, None)
    assert table.free_line() == 0
    table.remove(1)
    table.failed(0)
    assert table.free_line() == 1, "a device may be at fault where processes fail"


def test_the_next_agent_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "processes.json"
    table = ProcessTable(path, 2)
    assert table.written() == ()
    table.add(Row(FIRST, 0, 11))
    table.add(Row(SECOND, 1, 12))
    table.rename(FIRST, THIRD)
    table.rename(FIRST, SECOND)
    again = ProcessTable(path, 2)
    assert set(again.written()) == {Row(SECOND, 1, 12), Row(THIRD, 0, 11)}
    assert again.rows == ()
    table.forget()
    table.forget()
    assert again.written() == ()


@pytest.mark.parametrize("text", ["", "{}", "[[1, 2]]", '[[[[0, 0], 0], 0, "x"]]'])
def test_what_cannot_be_read_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "processes.json").write_text(text)
    assert ProcessTable(tmp_path / "processes.json", 2).written() == ()
