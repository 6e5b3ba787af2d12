"""The text of whatever level a value is at, and back."""

from collections.abc import Callable
from typing import Any

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job_text import TextError
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.streams_text import parse_streams, print_streams
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import (
    parse_graph,
    parse_schedule,
    parse_target,
    print_graph,
    print_schedule,
    print_target,
)

Level = Target | Graph | Schedule | Streams

_PRINTERS: dict[type, Callable[[Any], str]] = {
    Target: print_target,
    Graph: print_graph,
    Schedule: print_schedule,
    Streams: print_streams,
}
_PARSERS: dict[str, Callable[[str], Level]] = {
    "target": parse_target,
    "graph": parse_graph,
    "schedule": parse_schedule,
    "streams": parse_streams,
}


def print_level(value: Level) -> str:
    """The exact text of a value."""
    return _PRINTERS[type(value)](value)


def parse_level(text: str) -> Level:
    """The value of a text; its first line says the level."""
    level = text.partition("\n")[0]
    if level not in _PARSERS:
        raise TextError(1, f"expected one of {', '.join(_PARSERS)}, got `{level[:40]}`")
    return _PARSERS[level](text)
