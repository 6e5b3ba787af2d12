"""Traces generated from a few words, such as `poisson mtbf=1000h repair=4h`, and a seed.

    none
    every TIME [repair TIME] [spares N]
    poisson mtbf TIME [repair TIME[:MEAN]] [node N[:SHARE]] [rack N[:SHARE]] [burst SHARE:TIME] [spares N]
    poisson rates NAME [...]

`rates` names a published cluster whose failure rate, repair times and bursts are taken where no other word
says them. A repair time with a mean is the median of a lognormal distribution. A burst is a failure that
follows another within a time.

A word and its value may have a `=` between them. The same words, machines and seed give the same trace.
"""

import heapq
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from math import log, sqrt
from typing import NamedTuple

from recycle_compiler.diagnostics import CompileError, Diagnostic, Span
from recycle_compiler.fleet.traces.trace import UNITS, FleetEvent, FleetTrace, natural_names, seconds_of
from recycle_compiler.frontend.diagnostics import Mistakes, any_of, closest, did_you_mean, quote

KINDS = ("none", "every", "poisson")
_OPTIONS = {
    "none": ("spares",),
    "every": ("repair", "spares"),
    "poisson": ("mtbf", "rates", "repair", "node", "rack", "burst", "spares"),
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
_MOST_EVENTS = 1_000_000
_DIGITS = 3
"""Of the seconds in a generated trace."""


class Repair(NamedTuple):
    """Seconds that machines are away."""

    typical: float
    """The mean; the median where a mean is given beside it."""
    mean: float | None = None
    """Of a lognormal distribution."""

    def draw(self, chance: random.Random) -> float:
        if self.mean is None:
            return chance.expovariate(1 / self.typical)
        return chance.lognormvariate(log(self.typical), sqrt(2 * log(self.mean / self.typical)))


class Burst(NamedTuple):
    """Failures that follow others."""

    share: float
    """Of failures, those that another one follows."""
    within: float
    """Seconds."""


class Rates(NamedTuple):
    """Failures of a cluster, as published."""

    mtbf: float
    """Seconds between failures of one GPU."""
    repair: Repair
    burst: Burst | None
    source: str


_DAY = 86400.0
_RECORDED_REPAIR = Repair(0.85 * _DAY, 5.5 * _DAY)
"""Median and mean over the 584 faults of InfiniteHBD's trace."""
RATES = {
    "llama3": Rates(
        16_384 * 54 * _DAY / 419,
        _RECORDED_REPAIR,
        None,
        "419 unexpected interruptions in 54 days on 16,384 GPUs (Llama 3, arXiv 2407.21783); "
        "repair times, which it does not state, from InfiniteHBD",
    ),
    "infinitehbd": Rates(
        8 * 400 * 348.98 * _DAY / 584,
        _RECORDED_REPAIR,
        Burst(81 / 583, 90.0),
        "584 faults of 400 servers of 8 GPUs in 349 days, 81 of them within 90 s of another (InfiniteHBD, "
        "SIGCOMM'25)",
    ),
}
"""By the name that users write."""


class FailureGroup(NamedTuple):
    """Machines that may fail together."""

    gpus: int
    share: float
    """Of failures, those that take the whole group."""


@dataclass(frozen=True, slots=True)
class Words:
    """Trace that was asked for, as parsed; times in seconds."""

    text: str
    kind: str
    time: float = 0.0
    """Between two failures of the fleet (`every`), or of one GPU on average (`poisson`)."""
    repair: Repair | None = None
    """None: no machine comes back."""
    groups: tuple[FailureGroup, ...] = field(default=())
    """Node and rack, as far as given."""
    burst: Burst | None = None
    source: str = ""
    """Origin of published rates."""
    spares: int = 0


class _Word(NamedTuple):
    text: str
    span: Span


def is_words(text: str) -> bool:
    """True if this is meant to generate a trace, rather than a file's name; it may be misspelt."""
    first, *others = text.replace("=", " ").split() or [""]
    if first in KINDS:
        return True
    return bool(others) and closest(first, KINDS) is not None


def parse_words(text: str) -> Words:
    """Request that the words stand for; CompileError where they are wrong."""
    report = Mistakes(text, "--trace")
    words = [
        _Word(found.group(), Span(1, found.start() + 1, found.end() + 1)) for found in _WORD.finditer(text)
    ]
    parsed = _parse(text, [word for word in words if word.text != "="], report)
    report.raise_if_any()
    if parsed is None:
        raise AssertionError("words were not understood and nothing was said about it")
    return parsed


def _parse(text: str, words: list[_Word], report: Mistakes) -> Words | None:
    kind, rest = words[0], words[1:]
    if kind.text not in KINDS:
        hint = did_you_mean(kind.text, KINDS, "a trace is a file or begins with one of these words")
        report.error("unknown-trace", f"a trace is {any_of(KINDS)}, got {quote(kind.text)}", kind.span, hint)
        return None
    example = _EXAMPLES[kind.text]
    if kind.text == "every":
        # Its time comes first, without a name.
        rest = [_Word("every", kind.span), *rest]
    values = _pairs(kind, rest, example, report)
    rates = _rates(values["rates"], report) if "rates" in values else None
    needs_time = kind.text == "poisson" and "mtbf" not in values and rates is None
    if needs_time and not report.diagnostics:
        report.error("missing", "`poisson` needs the mean time between failures of a GPU", kind.span, example)
    if report.diagnostics:
        return None
    time = {"every": "every", "poisson": "mtbf"}.get(kind.text, "")
    groups = tuple(_group(values[key], key, report) for key in ("node", "rack") if key in values)
    repair, burst = rates and rates.repair, rates and rates.burst
    if "repair" in values:
        repair = _repair(values["repair"], kind.text, report)
    if "burst" in values:
        burst = _burst(values["burst"], report)
    known = rates.mtbf if rates else 0.0
    parsed = Words(
        text=" ".join(text.split()),
        kind=kind.text,
        time=_time(values[time], report) if time in values else known,
        repair=repair,
        groups=groups,
        burst=burst,
        source=rates.source if rates else "",
        spares=_whole(values["spares"].text, values["spares"].span, 0, report) if "spares" in values else 0,
    )
    if not report.diagnostics and sum(group.share for group in groups) > 1:
        message = "the shares of `node` and `rack` are more than 100 % together"
        report.error("range", message, values["rack"].span, "the rest are failures of single machines")
    return parsed


def _pairs(kind: _Word, rest: list[_Word], example: str, report: Mistakes) -> dict[str, _Word]:
    """Names and their values."""
    known = (*_OPTIONS[kind.text], "every") if kind.text == "every" else _OPTIONS[kind.text]
    values: dict[str, _Word] = {}
    for name, value in zip(rest[::2], [*rest[1::2], None], strict=False):
        if name.text not in known:
            hint = did_you_mean(name.text, known, f"{quote(kind.text)} takes {any_of(_OPTIONS[kind.text])}")
            report.error("unknown-word", f"{quote(kind.text)} has no {quote(name.text)}", name.span, hint)
        elif value is None:
            report.error("missing-value", f"{quote(name.text)} has no value", name.span, example)
        elif name.text in values:
            report.error("duplicate", f"{quote(name.text)} is given twice", name.span, "once is enough")
        else:
            values[name.text] = value
    return values


def _time(word: _Word, report: Mistakes) -> float:
    seconds = seconds_of(word.text)
    if seconds is None:
        hint = f"write 1800 for seconds, or `30m`; units are {UNITS}, and numbers have up to 15 digits"
        report.error("type", f"this is no time: {quote(word.text)}", word.span, hint)
    elif seconds < _LEAST_TIME:
        hint = "write `30m`; `none` is a trace in which nothing fails"
        report.error("range", f"the time must be at least 1ms, got {quote(word.text)}", word.span, hint)
    else:
        return seconds
    return 1.0


def _rates(word: _Word, report: Mistakes) -> Rates | None:
    if word.text not in RATES:
        hint = did_you_mean(word.text, RATES, _EXAMPLES["poisson"])
        report.error("type", f"rates are {any_of(tuple(RATES))}, got {quote(word.text)}", word.span, hint)
    return RATES.get(word.text)


def _repair(word: _Word, kind: str, report: Mistakes) -> Repair:
    typical, colon, mean = word.text.partition(":")
    first = _time(_Word(typical, word.span), report)
    if not colon:
        return Repair(first)
    if kind == "every":
        message = f"repairs of `every` all take one time, got {quote(word.text)}"
        report.error("type", message, word.span, "write `repair 2h`")
        return Repair(first)
    second = _time(_Word(mean, word.span), report)
    if second <= first and not report.diagnostics:
        message = f"the mean must be above the median, got {quote(word.text)}"
        report.error("range", message, word.span, "write `repair=20h:5d`: median, mean")
    return Repair(first, second)


def _burst(word: _Word, report: Mistakes) -> Burst:
    share, _, within = word.text.partition(":")
    good = re.fullmatch(r"\d{1,2}(\.\d{1,6})?%", share)
    if not good or not within:
        message = f"a burst is a share under 100% and a time, got {quote(word.text)}"
        report.error("type", message, word.span, "write `burst=14%:90s`")
        return Burst(0.0, 1.0)
    return Burst(float(share[:-1]) / 100, _time(_Word(within, word.span), report))


def _group(word: _Word, name: str, report: Mistakes) -> FailureGroup:
    gpus, _, share = word.text.partition(":")
    number = share.removesuffix("%")
    part = DEFAULT_SHARE
    if share:
        good = share.endswith("%") and re.fullmatch(r"\d{1,3}(\.\d{1,6})?", number)
        part = float(number) / 100 if good else -1.0
        if not 0 <= part <= 1:
            message = f"the share must be from 0% to 100%, got {quote(share)}"
            report.error("range", message, word.span, f"write `{name}=8:10%`")
    return FailureGroup(_whole(gpus, word.span, 1, report), max(0.0, part))


def _whole(text: str, span: Span, least: int, report: Mistakes) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= _MOST_GPUS:
        return int(text)
    message = f"this must be a whole number from {least} to {_MOST_GPUS:,}, got {quote(text)}"
    report.error("type", message, span, "write digits alone, as in `spares=2` or `node=8:20%`")
    return least


class Machines(NamedTuple):
    """Machines that may fail: those of the job, in the order in which they carry its workers."""

    number: int
    gpus_each: int


def generate(words: Words, machines: Machines, span: float, seed: int) -> FleetTrace:
    """The trace that the words ask for; all machines are there in the beginning."""
    machines = machines._replace(number=machines.number + words.spares)
    names = natural_names(machines.number)
    _check_size(words, machines, span)
    happening = _Happening(machines.number, names, span)
    chance = random.Random(seed)
    repair = words.repair
    if words.kind == "every":
        away = (lambda: None) if repair is None else (lambda: repair.typical)
        moments = (turn * words.time for turn in count(1))
        events = happening.events(moments, lambda: happening.one_that_is_up(chance), away)
    elif words.kind == "poisson":
        events = happening.events(
            _poisson_moments(words, machines, chance),
            lambda: _struck(words, machines, chance, happening),
            lambda: None if repair is None else repair.draw(chance),
        )
    else:
        events = iter(())
    about = "" if words.kind == "none" else f"which machine fails is chosen at random, seed {seed}"
    if words.source:
        about += f"; rates: {words.source}"
    return FleetTrace(words.text, span, tuple(names), tuple(events), is_drawn=True, about=about)


class _Happening:
    """Machines that are up, while a trace is being made."""

    def __init__(self, machines: int, names: list[str], span: float) -> None:
        self._names, self._span = names, span
        self._up = list(range(machines))
        self._position: dict[int, int] = {machine: machine for machine in self._up}
        """Of those who are up, in that list."""
        self._returns: list[tuple[float, int]] = []

    def is_up(self, machine: int) -> bool:
        return machine in self._position

    def one_that_is_up(self, chance: random.Random) -> list[int]:
        """One of those who are up, each as likely as the others."""
        return [chance.choice(self._up)] if self._up else []

    def events(
        self,
        moments: Iterable[float],
        victims: Callable[[], Iterable[int]],
        repair: Callable[[], float | None],
    ) -> Iterator[FleetEvent]:
        """Events until the end, if failures happen at these moments and machines are away for so long."""
        for moment in moments:
            at = round(moment, _DIGITS)
            if at >= self._span:
                break
            yield from self._come_back(at)
            fallen = [machine for machine in victims() if self.is_up(machine)]
            away = repair() if fallen else None
            for machine in fallen:
                self._fall(machine)
                if away is not None:
                    heapq.heappush(self._returns, (round(at + away, _DIGITS), machine))
                yield FleetEvent(at, self._names[machine], added=False)
        yield from self._come_back(self._span)

    def _come_back(self, until: float) -> Iterator[FleetEvent]:
        while self._returns and self._returns[0][0] <= until:
            at, machine = heapq.heappop(self._returns)
            self._position[machine] = len(self._up)
            self._up.append(machine)
            if at < self._span:
                yield FleetEvent(at, self._names[machine], added=True)

    def _fall(self, machine: int) -> None:
        position, last = self._position.pop(machine), self._up.pop()
        if last != machine:
            self._up[position], self._position[last] = last, position


def _poisson_moments(words: Words, machines: Machines, chance: random.Random) -> Iterator[float]:
    """Failures of all machines, as if all were up; those of machines that are down do not happen."""
    share, within = words.burst or Burst(0.0, 0.0)
    mean = words.time / (machines.number * machines.gpus_each)
    # Those that follow others are among the failures of the rate.
    first, following = mean / (1 - share), list[float]()
    at = chance.expovariate(1 / first)
    while True:
        moment = heapq.heappop(following) if following and following[0] < at else at
        yield moment
        if moment == at:
            at += chance.expovariate(1 / first)
        if share and chance.random() < share:
            heapq.heappush(following, moment + chance.uniform(0, within))


def _struck(words: Words, machines: Machines, chance: random.Random, happening: _Happening) -> Iterable[int]:
    """Whom a failure takes: a machine, or with it those of its node or rack."""
    machine, cause = chance.randrange(machines.number), chance.random()
    if not happening.is_up(machine):
        return ()
    for group in words.groups:
        if cause < group.share:
            size = max(1, group.gpus // machines.gpus_each)
            first = machine - machine % size
            return range(first, min(first + size, machines.number))
        cause -= group.share
    return (machine,)


def _check_size(words: Words, machines: Machines, span: float) -> None:
    """Refuse what would take ages and show nothing."""
    if words.kind == "none":
        return
    failures = span / words.time * (machines.number * machines.gpus_each if words.kind == "poisson" else 1)
    if failures > _MOST_EVENTS:
        message = f"this would be about {failures:.2g} failures, at most {_MOST_EVENTS:,} are allowed"
        hint = "let failures be rarer, or simulate fewer hours"
        where = Span(1, 1, len(words.text) + 1)
        raise CompileError([Diagnostic("too-large", message, where, hint)], words.text, "--trace")
