"""docs/protocol.md has a table of the messages, and it is that of the code."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

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


def table() -> str:
    """As it should stand there; `python -m tests.runtime.protocol.test_protocol_page` prints it."""
    lines: list[str] = []
    for title, direction in DIRECTIONS.items():
        lines += [f"### {title}", "", "| message | fields | what it says |", "|---|---|---|"]
        for kind in get_args(direction) or (direction,):
            fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind))
            lines.append(f"| `{wire.type_name(kind)}` | {fields} | {_sentence(kind)} |")
        lines.append("")
    return "\n".join(lines)


def _sentence(kind: type[object]) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def test_the_table_of_messages() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")


def test_the_version_on_the_page() -> None:
    assert f"version {wire.VERSION} " in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(table())
