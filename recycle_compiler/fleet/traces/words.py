"""The words from which a trace is generated, such as `poisson mtbf=1000h repair=4h`.

    none
    every TIME [repair TIME] [spares N]
    poisson mtbf TIME [repair TIME] [node N[:SHARE]] [rack N[:SHARE]] [spares N]

A word and its value may have a `=` between them.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from recycle_compiler.diagnostics import Span
from recycle_compiler.fleet.traces.durations import UNITS, seconds_of
from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.wording import closest, did_you_mean, one_of, quote

KINDS = ("none", "every", "poisson")
_OPTIONS = {
    "none": ("spares",),
    "every": ("repair", "spares"),
    "poisson": ("mtbf", "repair", "node", "rack", "spares"),
}
_EXAMPLES = {
    "none": "write `none`",
    "every": "write `every 30m`, or `every 30m repair 2h`",
    "poisson": "write `poisson mtbf=1000h repair=4h`",
}
DEFAULT_SHARE = 0.1
"""Of failures, those that take a whole node or rack, where no share is given."""
_MOST_GPUS = 1 << 20
_LEAST_TIME = 1e-3
_WORD = re.compile(r"[^\s=]+|=")


class Group(NamedTuple):
    """Machines that may fail together."""

    gpus: int
    share: float
    """Of failures, those that take the whole group."""


@dataclass(frozen=True, slots=True)
class Words:
    """What was asked for; times in seconds."""

    text: str
    kind: str
    time: float = 0.0
    """Between two failures of the fleet (`every`), or of one GPU on average (`poisson`)."""
    repair: float | None = None
    """None: nobody comes back."""
    groups: tuple[Group, ...] = field(default=())
    """Node and rack, as far as given."""
    spares: int = 0


class _Word(NamedTuple):
    text: str
    span: Span


def is_words(text: str) -> bool:
    """Whether this is meant to generate a trace, rather than a file's name; it may be misspelt."""
    first, *others = text.replace("=", " ").split() or [""]
    if first in KINDS:
        return True
    return bool(others) and closest(first, KINDS) is not None


def parse_words(text: str) -> Words:
    """What the words ask for; CompileError where they are wrong."""
    report = Report(text, "--trace")
    words = [
        _Word(found.group(), Span(1, found.start() + 1, found.end() + 1)) for found in _WORD.finditer(text)
    ]
    parsed = _parse(text, [word for word in words if word.text != "="], report)
    report.raise_if_any()
    if parsed is None:
        raise AssertionError("words were not understood and nothing was said about it")
    return parsed


def _parse(text: str, words: list[_Word], report: Report) -> Words | None:
    kind, rest = words[0], words[1:]
    if kind.text not in KINDS:
        hint = did_you_mean(kind.text, KINDS, "a trace is a file or begins with one of these words")
        report.error("unknown-trace", f"a trace is {one_of(KINDS)}, got {quote(kind.text)}", kind.span, hint)
        return None
    example = _EXAMPLES[kind.text]
    if kind.text == "every":
        # Its time comes first, without a name.
        rest = [_Word("every", kind.span), *rest]
    values = _pairs(kind, rest, example, report)
    if kind.text == "poisson" and "mtbf" not in values and not report.diagnostics:
        report.error("missing", "`poisson` needs the mean time between failures of a GPU", kind.span, example)
    if report.diagnostics:
        return None
    time = {"every": "every", "poisson": "mtbf"}.get(kind.text)
    groups = tuple(_group(values[key], key, report) for key in ("node", "rack") if key in values)
    parsed = Words(
        text=" ".join(text.split()),
        kind=kind.text,
        time=_time(values[time], report) if time else 0.0,
        repair=_time(values["repair"], report) if "repair" in values else None,
        groups=groups,
        spares=_whole(values["spares"].text, values["spares"].span, 0, report) if "spares" in values else 0,
    )
    if not report.diagnostics and sum(group.share for group in groups) > 1:
        message = "the shares of `node` and `rack` are more than 100 % together"
        report.error("range", message, values["rack"].span, "the rest are failures of single machines")
    return parsed


def _pairs(kind: _Word, rest: list[_Word], example: str, report: Report) -> dict[str, _Word]:
    """Names and their values."""
    known = (*_OPTIONS[kind.text], "every") if kind.text == "every" else _OPTIONS[kind.text]
    values: dict[str, _Word] = {}
    for name, value in zip(rest[::2], [*rest[1::2], None], strict=False):
        if name.text not in known:
            hint = did_you_mean(name.text, known, f"{quote(kind.text)} takes {one_of(_OPTIONS[kind.text])}")
            report.error("unknown-word", f"{quote(kind.text)} has no {quote(name.text)}", name.span, hint)
        elif value is None:
            report.error("missing-value", f"{quote(name.text)} has no value", name.span, example)
        elif name.text in values:
            report.error("duplicate", f"{quote(name.text)} is given twice", name.span, "once is enough")
        else:
            values[name.text] = value
    return values


def _time(word: _Word, report: Report) -> float:
    seconds = seconds_of(word.text)
    if seconds is None:
        hint = f"write 1800 for seconds, or `30m`; units are {UNITS}"
        report.error("type", f"this is no time: {quote(word.text)}", word.span, hint)
    elif seconds < _LEAST_TIME:
        report.error("range", f"the time must be at least 1ms, got {quote(word.text)}", word.span)
    else:
        return seconds
    return 1.0


def _group(word: _Word, name: str, report: Report) -> Group:
    gpus, _, share = word.text.partition(":")
    number = share.removesuffix("%")
    part = DEFAULT_SHARE
    if share:
        good = share.endswith("%") and re.fullmatch(r"\d{1,3}(\.\d{1,6})?", number)
        part = float(number) / 100 if good else -1.0
        if not 0 <= part <= 1:
            message = f"the share must be from 0% to 100%, got {quote(share)}"
            report.error("range", message, word.span, f"write `{name}=8:10%`")
    return Group(_whole(gpus, word.span, 1, report), max(0.0, part))


def _whole(text: str, span: Span, least: int, report: Report) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= _MOST_GPUS:
        return int(text)
    message = f"this must be a whole number from {least} to {_MOST_GPUS:,}, got {quote(text)}"
    report.error("type", message, span)
    return least
