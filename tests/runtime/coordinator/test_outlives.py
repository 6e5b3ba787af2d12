"""Everything that workers say, and every field of the journal, has its row in the table of what outlives a
coordinator; docs/protocol.md has that table."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

from recycle_runtime import coordinator
from recycle_runtime.coordinator.outlives import FIELDS, TABLE
from recycle_runtime.coordinator.participants import PARTICIPANTS
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.protocol.messages.steps import SaidAgain
from recycle_runtime.protocol.messages.wire import FromWorker, type_name
from tests.runtime.recovery.plans_for_tests import fake_bundle

PAGE = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
SOURCE = Path(str(coordinator.__file__)).parent


def table() -> str:
    """As it should stand there."""
    lines = ["| what | messages | in the journal | said again | not needed |", "|---|---|---|---|---|"]
    for memory in TABLE:
        said = ", ".join(f"`{type_name(kind)}`" for kind in memory.said)
        fields = ", ".join(f"`{name}`" for name in memory.journal)
        lines.append(f"| {memory.what} | {said} | {fields} | {memory.again} | {memory.lost} |")
    return "\n".join(lines) + "\n"


def test_the_table_on_the_page(page_part: Callable[[Path, str], None]) -> None:
    page_part(PAGE, table())


def test_every_message_of_workers_has_one_row() -> None:
    rows = Counter(kind for memory in TABLE for kind in memory.said)
    assert rows == Counter(get_args(FromWorker))


def test_every_row_has_a_column() -> None:
    assert [memory.what for memory in TABLE if not (memory.journal or memory.again or memory.lost)] == []
    assert len(FIELDS) == sum(len(memory.journal) for memory in TABLE), "a field in two rows"


def test_what_recall_asks_for_is_said_again() -> None:
    again = {kind for memory in TABLE if memory.again for kind in memory.said}
    assert set(get_args(SaidAgain)) <= again


def written() -> Iterator[tuple[str, str]]:
    """Fields in calls of `write(name=...)` and `Note({"name": ...})`, with their files."""
    for path in sorted(SOURCE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="write"), keywords=[_, *_] as keywords):
                    names = [keyword.arg for keyword in keywords]
                    yield from ((path.name, name) for name in names if name is not None)
                case ast.Call(func=ast.Name(id="Note"), args=[ast.Dict(keys=keys)]):
                    values = [key.value for key in keys if isinstance(key, ast.Constant)]
                    yield from ((path.name, str(value)) for value in values)
                case _:
                    pass


def test_every_field_that_is_written_is_declared_and_every_declared_one_is_written() -> None:
    found = {name for _, name in written()}
    assert found == set(FIELDS)


def test_what_a_participant_hears_is_in_its_own_rows() -> None:
    """And nobody else hears it."""
    book = PlanBook(fake_bundle(1, 1, [[]]))
    job = StateMachine(book, 1, 5, set(book.grid), 0.0)
    opened = [type(participant) for participant in job.participants]
    for participant in job.participants:
        mine = {kind for memory in participant.memory for kind in memory.said}
        assert set(participant.hears()) <= mine
    assert [kind for kind in PARTICIPANTS if kind in opened] == opened
