"""docs/protocol.md has a table of the messages, and it is that of the code."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from recycle_runtime.protocol.messages import observers, store, wire

PAGE = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
DIRECTIONS: Mapping[str, Any] = {
    "Worker process to coordinator": wire.FromWorker,
    "Coordinator to worker process": wire.ToWorker,
    "Agent to coordinator": wire.FromAgent,
    "Coordinator to agent": wire.ToAgent,
    "Observer to coordinator": observers.FromObserver,
    "Coordinator to observer": observers.ToObserver,
    "Worker process to the store": store.StoreOpen | store.StoreRequest,
    "Store to worker process": store.StoreAnswer,
}


def table(title: str) -> str:
    """As it should stand there."""
    lines = [f"### {title}", "", "| message | fields | what it says |", "|---|---|---|"]
    for kind in get_args(DIRECTIONS[title]) or (DIRECTIONS[title],):
        fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind))
        lines.append(f"| `{wire.type_name(kind)}` | {fields} | {_sentence(kind)} |")
    return "\n".join(lines) + "\n"


def _sentence(kind: type[object]) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


@pytest.mark.parametrize("title", DIRECTIONS)
def test_the_tables_of_messages(title: str, page_part: Callable[[Path, str], None]) -> None:
    page_part(PAGE, table(title))


def test_the_version_on_the_page() -> None:
    assert f"version {wire.VERSION} " in PAGE.read_text(encoding="utf-8")
