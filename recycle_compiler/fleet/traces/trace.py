"""A trace: which machines there are in the beginning, and when which of them fails or returns."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

MOST_NODES = 1 << 20
LONGEST = 10 * 366 * 86400.0
"""Seconds: ten years."""
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "y": 365 * 86400.0}
UNITS = ", ".join(_SECONDS)
_NUMBER = r"\d{1,15}(?:\.\d{1,9})?"
_PART = re.compile(rf"({_NUMBER})\s*(ms|min|s|m|h|d|y)")
_WHOLE = re.compile(rf"(?:{_NUMBER}|(?:{_NUMBER}\s*(?:ms|min|s|m|h|d|y)\s*)+)", re.ASCII)


class FleetEvent(NamedTuple):
    """One machine comes or goes."""

    at: float
    """Seconds from the beginning of the trace."""
    node: str
    """Its name; `P:S` in traces that name workers instead of machines."""
    added: bool


@dataclass(frozen=True, slots=True)
class FleetTrace:
    """Machines over time. Events are sorted, and possible: who comes was not there, who goes was.

    Events at time 0 belong to the beginning.
    """

    name: str
    """The file, or the words that it was generated from."""
    span: float
    """Seconds."""
    nodes: tuple[str, ...]
    """Those there are before anything happens, in the order in which they get places."""
    events: tuple[FleetEvent, ...]
    whole: bool = False
    """True if the places of the job that `nodes` do not fill have machines too, which never fail."""
    spares: int = 0
    """Machines beyond those of the trace and of the job, which never fail."""
    by_worker: bool = False
    """True if events name workers of the job, which are all there before anything happens."""
    is_recorded: bool = False
    """True if it is of a recorded cluster, of which a job gets a part."""
    is_drawn: bool = False
    """True if its machines, spare ones too, were made or drawn from a recorded cluster for the job."""
    about: str = ""
    """Assumptions made for lack of better knowledge, in a few words."""
    note: str = ""
    """Oddities of the file that have been mended, in a sentence."""

    def lasting(self, seconds: float) -> "FleetTrace":
        """The same for another span: cut off, or with nothing happening after its end."""
        kept = tuple(event for event in self.events if event.at < seconds)
        return replace(self, span=seconds, events=kept)

    def replaced_after(self, seconds: float) -> "FleetTrace":
        """The same where a failed machine is replaced by another after so long, if not repaired before."""
        events: list[FleetEvent] = []
        away: dict[str, float] = {}
        """Time at which each machine that is away will have been replaced."""

        def replace_until(moment: float) -> None:
            for node in sorted(away, key=lambda node: (away[node], node)):
                if away[node] <= moment:
                    events.append(FleetEvent(away.pop(node), node, added=True))

        for event in self.events:
            replace_until(event.at)
            if not event.added:
                away[event.node] = event.at + seconds
                events.append(event)
            elif away.pop(event.node, None) is not None:
                events.append(event)
        replace_until(self.span)
        return replace(self, events=tuple(event for event in events if event.at < self.span))

    def with_spares(self, spares: int) -> "FleetTrace":
        """With so many machines more, of which nothing is known: they never fail."""
        return replace(self, spares=spares)

    def moments(self) -> Iterator[tuple[float, list[FleetEvent]]]:
        """Events that happen at the same moment, together."""
        for at, events in groupby(self.events, key=attrgetter("at")):
            yield at, list(events)


class Draw(NamedTuple):
    """Machines of a recorded cluster that a job gets."""

    machines: int
    """Number that it needs, spares included."""
    watched: int | None = None
    """Number that the recorded cluster has; None leaves it to the format."""
    kinds: tuple[str, ...] = ()
    """Faults that count, by level or class as the file names them; all where none is given."""


class JobGrid(NamedTuple):
    """Facts about the job that a reader needs."""

    pipelines: int
    stages: int
    draw: Draw | None = None
    """None: one machine for each worker."""

    @property
    def drawn(self) -> Draw:
        return self.draw or Draw(self.pipelines * self.stages)


def natural_names(count: int, first: int = 0) -> list[str]:
    """`node0`, `node1`, ..."""
    return [f"node{number}" for number in range(first, first + count)]


def seconds_of(text: str) -> float | None:
    """Seconds; None where the text is no time. A number alone is seconds."""
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        return None
    parts = _PART.findall(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else float(text)


def duration_text(seconds: float) -> str:
    """`2h`, `1h30m`, `45s`: as short as it can be said to the second."""
    whole = round(seconds)
    if whole != seconds and seconds < 60:
        return f"{seconds:g}s"
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
