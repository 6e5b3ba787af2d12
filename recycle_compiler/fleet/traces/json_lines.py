"""Traces of our own: one JSON object a line.

    {"nodes": 24}
    {"at": "30m", "failed": ["node3", "node4"]}
    {"at": "1h30m", "returned": ["node3"], "failed": ["node9"]}
    {"at": "12h"}

Times are seconds or such as `1h30m`. The first line may say which machines there are: a number (then they
are called node0, node1, ...) or a list of names. Without it the job has all its machines in the beginning,
and those that fail before they return are among them. Names like `1:2` are workers of the job, pipeline
and stage, and need no first line. A line without failures and returns says how long the trace lasts. But for
the first, lines may be in any order.
"""

import json
import re
from dataclasses import replace
from math import inf
from typing import Any, NoReturn, cast

from recycle_compiler.diagnostics import Span
from recycle_compiler.fleet.traces.lines import Presence, Times, meaningful, whole_line
from recycle_compiler.fleet.traces.trace import (
    MOST_NODES,
    UNITS,
    FleetEvent,
    FleetTrace,
    JobGrid,
    natural_names,
    seconds_of,
)
from recycle_compiler.frontend.diagnostics import Mistakes, did_you_mean, quote, shorten

_EXAMPLE = 'write `{"at": "1h30m", "failed": ["node3"], "returned": []}`'
_KEYS = ("at", "failed", "returned")
_WORKER = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
LOOKS_LIKE = re.compile(r"\s*\{")


def read_json_lines(name: str, source: str, grid: JobGrid, report: Mistakes) -> FleetTrace | None:
    """The trace; None where the report says why not."""
    reader = _Reader(grid, report)
    for number, line in meaningful(source):
        reader.line(number, line)
    return reader.trace(name)


class _Reader:
    def __init__(self, grid: JobGrid, report: Mistakes) -> None:
        self._grid, self._report = grid, report
        self._times, self._presence = Times(report), Presence(report)
        self._nodes: list[str] | None = None
        """As the first line has them."""
        self._mentioned: list[str] = []
        """Machines of the beginning that only their failure tells of."""
        self._seen: set[str] = set()
        self._said: list[tuple[FleetEvent, Span]] = []
        """Events as the lines have them, and where."""
        self._events: list[FleetEvent] = []
        self._by_worker: bool | None = None
        self._lines = 0

    def trace(self, name: str) -> FleetTrace | None:
        for event, span in sorted(self._said, key=lambda said: said[0].at):
            self._event(event, span)
        if self._report.diagnostics:
            return None
        if not self._times.latest:
            self._report.error("no-time", "nothing happens after time 0", None, _EXAMPLE)
            return None
        trace = FleetTrace(name, self._times.latest, (), tuple(self._events), note=self._times.note)
        if self._by_worker:
            return replace(trace, by_worker=True)
        if self._nodes is not None:
            return replace(trace, nodes=tuple(self._nodes))
        about = "the trace does not say which machines there are, so the job has all its own"
        return replace(trace, nodes=tuple(self._mentioned), whole=True, about=about)

    def line(self, number: int, text: str) -> None:
        span = whole_line(number, text)
        entry = self._parse(number, text, span)
        if entry is None:
            return
        self._lines += 1
        if "nodes" in entry and self._lines == 1:
            self._begin(entry, text, span)
            return
        for key in entry:
            if key not in _KEYS:
                hint = "`nodes` stands alone on the first line" if key == "nodes" else ""
                hint = hint or did_you_mean(key, _KEYS, _EXAMPLE)
                self._report.error("unknown-key", f"unknown key {quote(key)}", _find(text, key, span), hint)
                return
        at = self._time(entry, text, span)
        if at is None or not self._times.check(at, _find(text, entry["at"], span)):
            return
        for key, added in (("failed", False), ("returned", True)):
            for node in self._names(entry.get(key, []), key, text, span):
                self._said.append((FleetEvent(at, node, added), _find(text, node, span)))

    def _parse(self, number: int, text: str, span: Span) -> dict[str, Any] | None:
        try:
            entry: Any = json.loads(text, parse_constant=_refuse, object_pairs_hook=_without_doubles)
        except _DoubledKeyError as error:
            key = str(error)
            where = _find(text, key, span, last=True)
            self._report.error("duplicate", f"{quote(key)} is given twice", where, "put all into one list")
            return None
        except json.JSONDecodeError as error:
            message = f"this is no JSON: {error.msg[0].lower()}{error.msg[1:]}"
            self._report.error("syntax", message, Span(number, error.colno, error.colno + 1), _EXAMPLE)
            return None
        except (ValueError, RecursionError):
            self._report.error("syntax", "this is no JSON that can be read", span, _EXAMPLE)
            return None
        if not isinstance(entry, dict):
            self._report.error("type", f"a line is a JSON object, got {_spell(entry)}", span, _EXAMPLE)
            return None
        return cast(dict[str, Any], entry)

    def _begin(self, entry: dict[str, Any], text: str, span: Span) -> None:
        nodes: Any = entry["nodes"]
        where = _find(text, nodes, span)
        hint = 'write `{"nodes": 24}`, which calls them node0 to node23, or the list of their names'
        if len(entry) > 1:
            self._report.error("unknown-key", "`nodes` stands alone on its line", span, hint)
        elif isinstance(nodes, int) and not isinstance(nodes, bool):
            if not 0 <= nodes <= MOST_NODES:
                message = f"nodes must be from 0 to {MOST_NODES:,}, got {_spell(nodes)}"
                self._report.error("range", message, where, hint)
                return
            self._nodes = natural_names(nodes)
            if nodes:
                self._presence.hint = f'`{{"nodes": {nodes}}}` calls the machines node0 to node{nodes - 1}'
        elif isinstance(nodes, list):
            self._nodes = self._names(nodes, "nodes", text, span)
        else:
            message = f"nodes must be a number or a list of names, got {_spell(nodes)}"
            self._report.error("type", message, where, hint)
            return
        self._by_worker = False
        for node in self._nodes or []:
            self._presence.add(node, _find(text, node, span))

    def _time(self, entry: dict[str, Any], text: str, span: Span) -> float | None:
        if "at" not in entry:
            self._report.error("missing", "the line has no `at`", span, _EXAMPLE)
            return None
        value: Any = entry["at"]
        at = seconds_of(value) if isinstance(value, str) else _number(value)
        if at is None:
            message = f"at must be seconds or a time, got {_spell(value)}"
            hint = f"write 5400 or `1h30m`; units are {UNITS}"
            self._report.error("type", message, _find(text, value, span), hint)
        elif at < 0:
            message = f"at must be at least 0, got {_spell(value)}"
            hint = "times count from the beginning of the trace"
            self._report.error("range", message, _find(text, value, span), hint)
            at = None
        return at

    def _names(self, value: Any, key: str, text: str, span: Span) -> list[str]:
        if not isinstance(value, list):
            self._report.error(
                "type", f"{key} must be a list, got {_spell(value)}", _find(text, value, span), _EXAMPLE
            )
            return []
        names: list[str] = []
        for item in cast(list[Any], value):
            if isinstance(item, str) and 0 < len(item) <= 200:
                names.append(item)
            elif isinstance(item, int) and not isinstance(item, bool) and 0 <= item < MOST_NODES:
                names.append(f"node{item}")
            else:
                message = f"{key} holds names of machines or workers, got {_spell(item)}"
                self._report.error("type", message, _find(text, item, span), _EXAMPLE)
        return names

    def _event(self, event: FleetEvent, span: Span) -> None:
        at, node, added = event
        worker = _WORKER.fullmatch(node)
        if self._by_worker is None:
            self._by_worker = worker is not None
            if worker is not None:
                workers = ((p, s) for p in range(self._grid.pipelines) for s in range(self._grid.stages))
                self._presence.there.update({f"{p}:{s}": 0 for p, s in workers})
        if self._by_worker != (worker is not None):
            kinds = ("workers", "a machine") if self._by_worker else ("machines", "a worker")
            message = f"the lines before name {kinds[0]}, {quote(node)} is {kinds[1]}"
            self._report.error("mixed", message, span, "`P:S` is a worker; any other name is a machine")
            return
        if worker is not None:
            pipeline, stage = map(int, worker.groups())
            if pipeline >= self._grid.pipelines or stage >= self._grid.stages:
                message = (
                    f"worker {node} does not exist: pipelines are 0 to {self._grid.pipelines - 1}, "
                    f"stages 0 to {self._grid.stages - 1}"
                )
                self._report.error("range", message, span, "workers are written pipeline:stage")
                return
            node = f"{pipeline}:{stage}"
        elif self._nodes is None and node not in self._seen and not added:
            self._mentioned.append(node)
            self._presence.there[node] = 0
        self._seen.add(node)
        if (self._presence.add if added else self._presence.remove)(node, span):
            self._events.append(FleetEvent(at, node, added))


def _number(value: Any) -> float | None:
    """As seconds; without end where it is too large for any."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


class _DoubledKeyError(ValueError):
    """A key that an object has twice."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DoubledKeyError(key)
        found[key] = value
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


def _spell(value: Any) -> str:
    return shorten(
        json.dumps(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    )


def _find(text: str, value: Any, span: Span, last: bool = False) -> Span:
    """Span of the first, or last, occurrence of a value in its line; the whole line where there is none."""
    for spelled in (json.dumps(value, ensure_ascii=False), str(value).removeprefix("node")):
        begin = text.rfind(spelled) if last else text.find(spelled)
        if spelled and begin >= 0:
            return replace(span, column=begin + 1, end_column=begin + 1 + len(spelled))
    return span
