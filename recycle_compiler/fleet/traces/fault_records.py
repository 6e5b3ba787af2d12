"""Fault records of a cluster: one JSON list of when a fault of a machine began and ended, and of which kind.

    [{"node_id": "6f24...", "event_time": 3.8955, "event_type": "fault_start",
      "fault_type": {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU xid Error"}}, ...]

This is the form of InfiniteHBD's trace (SIGCOMM'25): times are in days, a machine may have several faults at
a time and is down until the last of them has ended, and machines that never failed are not named. A job needs
fewer machines than were watched, so as many as it needs are drawn by seed. It may need more: then the watched
machines are drawn whole once, and again with all their times shifted alike, which keeps faults that come
together together. A fault that ends at the moment it begins is left out.
"""

import json
import random
import re
from collections import Counter
from math import isfinite
from typing import Any, NamedTuple, cast

from recycle_compiler.diagnostics import Span
from recycle_compiler.fleet.traces.trace import LONGEST, Draw, FleetEvent, FleetTrace
from recycle_compiler.frontend.diagnostics import Mistakes, did_you_mean, quote
from recycle_compiler.ir.units import plural

LOOKS_LIKE = re.compile(r"\s*\[")
WATCHED = 400
"""Servers in InfiniteHBD's trace, as its authors say: 231 are named in the file, 169 never failed."""
_DAY = 86400.0
_STARTS, _ENDS = "fault_start", "fault_end"
_EXAMPLE = (
    'write `{"node_id": "a", "event_time": 3.9, "event_type": "fault_start", '
    '"fault_type": {"Level": "Hardware Failure", "Class": "GPU"}}`'
)
_BLANK = re.compile(r"[\s,]*")
_MOST_KINDS_SHOWN = 4


class _Record(NamedTuple):
    """One element of the list."""

    at: float
    """Seconds."""
    node: str
    starts: bool
    level: str
    kind: str


class _Fault(NamedTuple):
    """One machine is down, from one moment to another."""

    begin: float
    end: float
    kind: str
    """Of the fault that began it."""


def read_fault_records(name: str, source: str, draw: Draw, seed: int, report: Mistakes) -> FleetTrace | None:
    """The trace of as many machines as asked for; None where the report says why not."""
    records = _records(source, report)
    if not records and not report.diagnostics:
        report.error("empty", "the list holds no faults", None, _EXAMPLE)
    kept = [record for record in records if _is_asked_for(record, draw.kinds)]
    if not kept and not report.diagnostics:
        known = sorted({word for record in records for word in (record.level, record.kind)})
        asked = ", ".join(draw.kinds)
        hint = did_you_mean(draw.kinds[0], known, f"the file has {', '.join(known)}")
        report.error("unknown-kind", f"no fault is of kind {quote(asked)}", None, hint)
    named = len({record.node for record in records})
    if draw.watched is not None and draw.watched < named:
        hint = f"it is the number of all machines, with those that never failed: at least {named:,}"
        report.error("range", f"--watched is {draw.watched:,}, and {named:,} machines had faults", None, hint)
    if report.diagnostics:
        return None
    span = max(record.at for record in records)
    if span <= 0:
        report.error("no-time", "all faults are at one moment", None, "a trace lasts a while")
        return None
    faults = _faults(sorted(kept, key=lambda record: record.at), span)
    watched = max(WATCHED if draw.watched is None else draw.watched, len(faults))
    return _drawn(name, span, faults, watched, draw, seed)


def _is_asked_for(record: _Record, kinds: tuple[str, ...]) -> bool:
    words = (record.level.casefold(), record.kind.casefold())
    return not kinds or any(kind.casefold() in words for kind in kinds)


def _records(source: str, report: Mistakes) -> list[_Record]:
    """In the order of the file."""
    decoder = json.JSONDecoder()
    places = _Places(source)
    at = source.index("[") + 1
    found: list[_Record] = []
    while True:
        blank = _BLANK.match(source, at)
        at = blank.end() if blank else at
        if at < len(source) and source[at] == "]":
            return found
        try:
            element, end = decoder.raw_decode(source, at)
        except (json.JSONDecodeError, RecursionError) as error:
            where = error.pos if isinstance(error, json.JSONDecodeError) else at
            report.error("syntax", "this is no JSON", places.span(min(where, len(source) - 1)), _EXAMPLE)
            return found
        record = _record(element, places, at, report)
        if record is not None:
            found.append(record)
        at = end


class _Places:
    """Lines and columns of offsets, which only mistakes ask for."""

    def __init__(self, source: str) -> None:
        self._source = source

    def span(self, offset: int, length: int = 1) -> Span:
        line = self._source.count("\n", 0, offset) + 1
        column = offset - self._source.rfind("\n", 0, offset)
        return Span(line, column, column + length)

    def of_key(self, offset: int, key: str) -> Span:
        """Span of a key of the object at an offset; the object's beginning without it."""
        end = self._source.find("}", offset)
        found = self._source.find(f'"{key}"', offset, None if end < 0 else end)
        return self.span(offset) if found < 0 else self.span(found, len(key) + 2)


def _record(element: Any, places: _Places, at: int, report: Mistakes) -> _Record | None:
    if not isinstance(element, dict):
        report.error("type", "an element of the list must be an object", places.span(at), _EXAMPLE)
        return None
    given = cast(dict[str, Any], element)
    if missing := [key for key in ("node_id", "event_time", "event_type") if key not in given]:
        report.error("missing", f"a fault needs {quote(missing[0])}", places.span(at), _EXAMPLE)
        return None
    node, days, event = given["node_id"], given["event_time"], given["event_type"]
    if not isinstance(node, str) or not 0 < len(node) <= 200:
        where = places.of_key(at, "node_id")
        report.error("type", "`node_id` must be a name of up to 200 characters", where, _EXAMPLE)
        return None
    if isinstance(days, bool) or not isinstance(days, int | float) or not isfinite(days):
        report.error(
            "type", "`event_time` must be a number of days", places.of_key(at, "event_time"), _EXAMPLE
        )
        return None
    if not 0 <= days * _DAY <= LONGEST:
        message = f"`event_time` must be from 0 to {LONGEST / _DAY:.0f} days, got {days:g}"
        report.error("range", message, places.of_key(at, "event_time"), "times are days from the beginning")
        return None
    if event not in (_STARTS, _ENDS):
        hint = did_you_mean(str(event), (_STARTS, _ENDS), _EXAMPLE)
        message = f"`event_type` is `{_STARTS}` or `{_ENDS}`, got {quote(str(event))}"
        report.error("type", message, places.of_key(at, "event_type"), hint)
        return None
    kind = given.get("fault_type")
    words = cast(dict[str, Any], kind) if isinstance(kind, dict) else {}
    level, fault = (str(words.get(key, "unknown")) for key in ("Level", "Class"))
    return _Record(round(days * _DAY, 3), node, event == _STARTS, level, fault)


def _faults(records: list[_Record], span: float) -> dict[str, list[_Fault]]:
    """Times at which each machine was down.

    One whose first record is an end was down from the beginning, one whose last is a start until the end.
    """
    faults: dict[str, list[_Fault]] = {}
    under_way: dict[str, list[_Record]] = {}
    for record in records:
        mine, there = faults.setdefault(record.node, []), under_way.setdefault(record.node, [])
        if record.starts:
            there.append(record)
        elif there:
            # Whichever of several faults has ended: the machine is down from the first start to the last end.
            first = there[0]
            del there[-1]
            if not there:
                _add(mine, _Fault(first.at, record.at, first.kind))
        elif not mine:
            _add(mine, _Fault(0.0, record.at, record.kind))
    for node, there in under_way.items():
        if there:
            _add(faults[node], _Fault(there[0].at, span, there[0].kind))
    return faults


def _add(faults: list[_Fault], fault: _Fault) -> None:
    """One more; joined with the last where that ends as it begins."""
    if faults and fault.begin <= faults[-1].end:
        faults[-1] = faults[-1]._replace(end=fault.end)
    else:
        faults.append(fault)


def _drawn(
    name: str, span: float, faults: dict[str, list[_Fault]], watched: int, draw: Draw, seed: int
) -> FleetTrace:
    chance = random.Random(seed)
    everybody = [*sorted(faults), *(f"never-failed-{number}" for number in range(watched - len(faults)))]
    nodes: list[str] = []
    events: list[FleetEvent] = []
    kinds: Counter[str] = Counter()
    while len(nodes) < draw.machines:
        copy = len(nodes) // watched
        # The first copy has the times of the file.
        shift = chance.uniform(0, span) if copy else 0.0
        # All are put in order, so that a larger draw has the machines of a smaller one and more.
        for node in chance.sample(everybody, watched)[: draw.machines - len(nodes)]:
            drawn = f"{node}+{copy}" if copy else node
            nodes.append(drawn)
            for fault in faults.get(node, ()):
                kinds[fault.kind] += 1
                events += _events(drawn, fault, shift, span)
    events.sort(key=lambda event: (event.at, event.added, event.node))
    common = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(_MOST_KINDS_SHOWN))
    of_them = f": {common}{', ...' if len(kinds) > _MOST_KINDS_SHOWN else ''}" if kinds else ""
    only = f" of kind {', '.join(draw.kinds)}" if draw.kinds else ""
    about = (
        f"{draw.machines:,} of {plural(watched, 'machine')} drawn, seed {seed}, with "
        f"{plural(sum(kinds.values()), 'fault')}{only}{of_them}"
    )
    return FleetTrace(name, span, tuple(nodes), tuple(events), is_recorded=True, is_drawn=True, about=about)


def _events(node: str, fault: _Fault, shift: float, span: float) -> list[FleetEvent]:
    """Of one fault, moved by a shift around the trace's end to its beginning."""
    begin, end = (round(moment + shift, 3) for moment in (fault.begin, fault.end))
    if begin >= span:
        begin, end = round(begin - span, 3), round(end - span, 3)
    pieces = [(begin, end)] if end <= span else [(begin, span), (0.0, round(end - span, 3))]
    found: list[FleetEvent] = []
    for first, last in pieces:
        if last > first:
            found.append(FleetEvent(first, node, added=False))
            if last < span:
                found.append(FleetEvent(last, node, added=True))
    return found
