"""Traces of named machines: `milliseconds,add|remove,node`, one event a line.

    0,add,node1
    0,add,node2
    1800000,remove,node2

Machines that are added at the earliest time are those of the beginning. Lines may be in any order.
"""

import re
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from recycle_compiler.diagnostics import Span
from recycle_compiler.fleet.traces.lines import LineField, Presence, Times, fields, meaningful, whole_line
from recycle_compiler.fleet.traces.trace import FleetEvent, FleetTrace
from recycle_compiler.frontend.diagnostics import Mistakes, did_you_mean, quote

_KINDS = ("add", "remove")
_EXAMPLE = "write `1800000,remove,node7`: milliseconds, `add` or `remove`, a name"
LOOKS_LIKE = re.compile(r"\s*[-+\d.eE]+\s*,\s*[A-Za-z]")


class _Row(NamedTuple):
    """One line."""

    at: float
    node: LineField
    added: bool


def read_node_events(name: str, source: str, report: Mistakes) -> FleetTrace | None:
    """The trace; None where the report says why not."""
    times, presence = Times(report), Presence(report)
    rows = sorted(_rows(source, times, report), key=attrgetter("at"))
    beginning: list[str] = []
    events: list[FleetEvent] = []
    for at, node, added in rows:
        if not (presence.add if added else presence.remove)(node.text, node.span):
            continue
        if added and at == rows[0].at:
            beginning.append(node.text)
        else:
            events.append(FleetEvent(at - rows[0].at, node.text, added))
    if report.diagnostics or not rows:
        return None
    span = rows[-1].at - rows[0].at
    if not span:
        report.error("no-time", "all events happen at one moment", Span(1, 1, 2), "a trace lasts a while")
        return None
    return FleetTrace(name, span, tuple(beginning), tuple(events), note=times.note)


def _rows(source: str, times: Times, report: Mistakes) -> Iterator[_Row]:
    """In the order of the file."""
    for number, line in meaningful(source):
        parts = fields(number, line)
        if len(parts) != 3:
            message = f"a line has 3 fields, got {len(parts)}"
            report.error("fields", message, whole_line(number, line), _EXAMPLE)
            continue
        at = _milliseconds(parts[0], report)
        if not _is_known(parts[1], report) or not _has_name(parts[2], report) or at is None:
            continue
        if times.check(at, parts[0].span):
            yield _Row(at, parts[2], parts[1].text == "add")


def _milliseconds(field: LineField, report: Mistakes) -> float | None:
    try:
        value = float(field.text) if len(field.text) < 30 and "_" not in field.text else None
    except ValueError:
        value = None
    if value is None or value != value:
        report.error("type", f"the time must be milliseconds, got {quote(field.text)}", field.span, _EXAMPLE)
        return None
    if value < 0:
        message = f"the time must be at least 0, got {field.text}"
        report.error("range", message, field.span, "times count from the beginning of the trace")
        return None
    return value / 1000


def _is_known(field: LineField, report: Mistakes) -> bool:
    if field.text in _KINDS:
        return True
    hint = did_you_mean(field.text, _KINDS, _EXAMPLE)
    report.error("type", f"an event is `add` or `remove`, got {quote(field.text)}", field.span, hint)
    return False


def _has_name(field: LineField, report: Mistakes) -> bool:
    if field.text and len(field.text) <= 200:
        return True
    what = (
        "has no name" if not field.text else f"has a name of {len(field.text):,} characters, 200 are allowed"
    )
    report.error("type", f"the machine {what}", field.span, _EXAMPLE)
    return False
