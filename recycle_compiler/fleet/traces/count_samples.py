"""Traces that say only how many machines there are: `date, time, count` or `seconds,count`, one look a line.

    2021-12-11, 11:11:30, 55          seconds,count
    2021-12-11, 11:15:50, 54          0,55
                                      260,54

Which machine has gone is not known, so it is chosen at random, with a seed. Whoever comes is a new machine.
Lines may be in any order. Seconds count from anywhere; the line that names the columns may be missing.
"""

import random
import re
from dataclasses import replace
from datetime import datetime
from itertools import islice
from math import isfinite, nan
from typing import NamedTuple

from recycle_compiler.diagnostics import Span
from recycle_compiler.fleet.traces.lines import LineField, Times, fields, meaningful, whole_line
from recycle_compiler.fleet.traces.trace import MOST_NODES, FleetEvent, FleetTrace, natural_names
from recycle_compiler.frontend.diagnostics import Mistakes, quote

_DATED = "write `2021-12-11, 11:15:50, 54`: date, time, number of machines"
_PLAIN = "write `260,54`: seconds, number of machines"
_IS_DATED = re.compile(r"\s*\d{1,4}-\d{1,2}-\d{1,2}\s*,")
_HEADER = re.compile(r"\s*seconds\s*,\s*\w+\s*$")
_IS_PLAIN = re.compile(r"\s*[-+\d.eE]+\s*,\s*[-+\d.]+\s*$")
LOOKS_LIKE = re.compile("|".join(each.pattern for each in (_IS_DATED, _HEADER, _IS_PLAIN)))


class _Look(NamedTuple):
    """One line."""

    at: float
    """Seconds, from anywhere."""
    machines: int
    span: Span
    """Of the time."""


def read_count_samples(name: str, source: str, seed: int, report: Mistakes) -> FleetTrace | None:
    """The trace; None where the report says why not."""
    looks = _looks(source, report)
    if report.diagnostics:
        return None
    first = min((look.at for look in looks), default=0.0)
    times = Times(report)
    checked = [(look.at - first, look.machines) for look in looks if times.check(look.at - first, look.span)]
    if not report.diagnostics and times.latest == 0:
        report.error("no-time", "all looks are at one moment", None, "a trace lasts a while")
    if report.diagnostics:
        return None
    samples = sorted(checked, key=lambda sample: sample[0])
    generator = random.Random(seed)
    there = natural_names(samples[0][1])
    beginning, made = tuple(there), len(there)
    events: list[FleetEvent] = []
    for at, count in samples[1:]:
        while len(there) > count:
            # The last one takes the place of the one that goes, so that the list need not move up.
            index = generator.randrange(len(there))
            there[index], there[-1] = there[-1], there[index]
            events.append(FleetEvent(at, there.pop(), added=False))
        if len(there) < count:
            new = natural_names(count - len(there), made)
            made += len(new)
            there += new
            events += [FleetEvent(at, node, added=True) for node in new]
    about = f"the trace has counts only: which machine goes is chosen at random, seed {seed}"
    return FleetTrace(name, samples[-1][0], beginning, tuple(events), about=about, note=times.note)


def _looks(source: str, report: Mistakes) -> list[_Look]:
    """In the order of the file."""
    lines = list(meaningful(source))
    first = lines[0][1]
    headers = 1 if _HEADER.match(first) else 0
    is_plain = not _IS_DATED.match(first)
    looks: list[_Look] = []
    for number, line in islice(lines, headers, None):
        parts = fields(number, line)
        if len(parts) != (2 if is_plain else 3):
            message = f"a line has {2 if is_plain else 3} fields, got {len(parts)}"
            report.error("fields", message, whole_line(number, line), _PLAIN if is_plain else _DATED)
            continue
        look = _plain(parts, report) if is_plain else _dated(parts, report)
        if look is not None:
            looks.append(look)
    return looks


def _plain(parts: list[LineField], report: Mistakes) -> _Look | None:
    time, count = parts[0], _count(parts[1], report, _PLAIN)
    try:
        at = float(time.text) if len(time.text) < 30 and "_" not in time.text else nan
    except ValueError:
        at = nan
    if not isfinite(at):
        report.error("type", f"the time must be seconds, got {quote(time.text)}", time.span, _PLAIN)
        return None
    return None if count is None else _Look(at, count, time.span)


def _dated(parts: list[LineField], report: Mistakes) -> _Look | None:
    moment, count = _moment(parts[0], parts[1], report), _count(parts[2], report, _DATED)
    if moment is None or count is None:
        return None
    span = replace(parts[0].span, end_column=parts[1].span.end_column)
    return _Look((moment - datetime.min).total_seconds(), count, span)


def _moment(date: LineField, time: LineField, report: Mistakes) -> datetime | None:
    for field, form, what in ((date, "%Y-%m-%d", "date"), (time, "%H:%M:%S", "time of day")):
        try:
            datetime.strptime(field.text, form)
        except ValueError:
            report.error("type", f"this is no {what}: {quote(field.text)}", field.span, _DATED)
            return None
    return datetime.strptime(f"{date.text} {time.text}", "%Y-%m-%d %H:%M:%S")


def _count(field: LineField, report: Mistakes, example: str) -> int | None:
    text = field.text
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        report.error("type", f"the count must be a whole number, got {quote(text)}", field.span, example)
        return None
    if len(digits) > 9 or not 0 <= int(text) <= MOST_NODES:
        message = f"the count must be from 0 to {MOST_NODES:,}, got {quote(text)}"
        report.error("range", message, field.span, "it is the number of machines that are up")
        return None
    return int(text)
