"""Traces that say only how many machines there are: `date, time, count`, one look a line.

    2021-12-11, 11:11:30, 55
    2021-12-11, 11:15:50, 54

Which machine has gone is not known, so it is chosen at random, with a seed. Whoever comes is a new machine.
"""

import random
import re
from dataclasses import replace
from datetime import datetime

from recycle_compiler.fleet.traces.lines import Field, Order, fields, meaningful, whole_line
from recycle_compiler.fleet.traces.trace import MOST_NODES, Event, Trace, natural_names
from recycle_compiler.frontend.diagnostics import Report, quote

_EXAMPLE = "write `2021-12-11, 11:15:50, 54`: date, time, number of machines"
LOOKS_LIKE = re.compile(r"\s*\d{1,4}-\d{1,2}-\d{1,2}\s*,")


def read_count_samples(name: str, source: str, seed: int, report: Report) -> Trace | None:
    """The trace; None where the report says why not."""
    samples = _samples(source, report)
    if report.diagnostics or not samples:
        return None
    generator = random.Random(seed)
    there = natural_names(samples[0][1])
    beginning, made = tuple(there), len(there)
    events: list[Event] = []
    for at, count in samples[1:]:
        while len(there) > count:
            # The last one takes the place of the one that goes, so that the list need not move up.
            index = generator.randrange(len(there))
            there[index], there[-1] = there[-1], there[index]
            events.append(Event(at, there.pop(), added=False))
        if len(there) < count:
            new = natural_names(count - len(there), made)
            made += len(new)
            there += new
            events += [Event(at, node, added=True) for node in new]
    about = f"the trace has counts only: which machine goes is chosen at random, seed {seed}"
    return Trace(name, samples[-1][0], beginning, tuple(events), about=about)


def _samples(source: str, report: Report) -> list[tuple[float, int]]:
    """Seconds since the first look, and how many there are."""
    order = Order(report)
    first: datetime | None = None
    samples: list[tuple[float, int]] = []
    for number, line in meaningful(source):
        parts = fields(number, line)
        if len(parts) != 3:
            message = f"a line has 3 fields, got {len(parts)}"
            report.error("fields", message, whole_line(number, line), _EXAMPLE)
            continue
        moment, count = _moment(parts[0], parts[1], report), _count(parts[2], report)
        if moment is None or count is None:
            continue
        first = first or moment
        at = (moment - first).total_seconds()
        span = replace(parts[0].span, end_column=parts[1].span.end_column)
        if order.check(at, span, f"{moment:%Y-%m-%d %H:%M:%S}"):
            samples.append((at, count))
    if samples and not report.diagnostics and order.latest == 0:
        report.error("no-time", "all looks are at one moment", None, "a trace lasts a while")
    return samples


def _moment(date: Field, time: Field, report: Report) -> datetime | None:
    for field, form, what in ((date, "%Y-%m-%d", "date"), (time, "%H:%M:%S", "time of day")):
        try:
            datetime.strptime(field.text, form)
        except ValueError:
            report.error("type", f"this is no {what}: {quote(field.text)}", field.span, _EXAMPLE)
            return None
    return datetime.strptime(f"{date.text} {time.text}", "%Y-%m-%d %H:%M:%S")


def _count(field: Field, report: Report) -> int | None:
    text = field.text
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        report.error("type", f"the count must be a whole number, got {quote(text)}", field.span, _EXAMPLE)
        return None
    if len(digits) > 9 or not 0 <= int(text) <= MOST_NODES:
        message = f"the count must be from 0 to {MOST_NODES:,}, got {quote(text)}"
        report.error("range", message, field.span, "it is the number of machines that are up")
        return None
    return int(text)
