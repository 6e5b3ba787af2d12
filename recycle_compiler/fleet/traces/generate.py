"""Traces made up from words, with a seed: the same words, machines and seed give the same trace."""

import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import NamedTuple

from recycle_compiler.diagnostics import CompileError, Diagnostic, Span
from recycle_compiler.fleet.traces.trace import Event, Trace, natural_names
from recycle_compiler.fleet.traces.words import Words

_MOST_EVENTS = 1_000_000
_DIGITS = 3
"""Of the seconds in a generated trace."""


class Machines(NamedTuple):
    """What may fail: the machines of the job, in the order in which they carry its workers."""

    number: int
    gpus_each: int


def generate(words: Words, machines: Machines, span: float, seed: int) -> Trace:
    """The trace that the words ask for; all machines are there in the beginning."""
    machines = machines._replace(number=machines.number + words.spares)
    names = natural_names(machines.number)
    _check_size(words, machines, span)
    happening = _Happening(machines.number, names, span)
    chance = random.Random(seed)
    if words.kind == "every":
        moments = (turn * words.time for turn in count(1))
        events = happening.events(moments, lambda: happening.somebody(chance), lambda: words.repair)
    elif words.kind == "poisson":
        events = happening.events(
            _poisson_moments(words, machines, chance),
            lambda: _struck(words, machines, chance, happening),
            lambda: None if words.repair is None else chance.expovariate(1 / words.repair),
        )
    else:
        events = iter(())
    about = "" if words.kind == "none" else f"which machine fails is chosen at random, seed {seed}"
    return Trace(words.text, span, tuple(names), tuple(events), about=about)


class _Happening:
    """Who is up, while a trace is being made."""

    def __init__(self, machines: int, names: list[str], span: float) -> None:
        self._names, self._span = names, span
        self._up = list(range(machines))
        self._position: dict[int, int] = {machine: machine for machine in self._up}
        """Of those who are up, in that list."""
        self._returns: list[tuple[float, int]] = []

    def is_up(self, machine: int) -> bool:
        return machine in self._position

    def somebody(self, chance: random.Random) -> list[int]:
        """One of those who are up, each as likely as the others."""
        return [chance.choice(self._up)] if self._up else []

    def events(
        self,
        moments: Iterable[float],
        victims: Callable[[], Iterable[int]],
        repair: Callable[[], float | None],
    ) -> Iterator[Event]:
        """What happens until the end, if these fall at these moments and are away for so long."""
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
                yield Event(at, self._names[machine], added=False)
        yield from self._come_back(self._span)

    def _come_back(self, until: float) -> Iterator[Event]:
        while self._returns and self._returns[0][0] <= until:
            at, machine = heapq.heappop(self._returns)
            self._position[machine] = len(self._up)
            self._up.append(machine)
            if at < self._span:
                yield Event(at, self._names[machine], added=True)

    def _fall(self, machine: int) -> None:
        position, last = self._position.pop(machine), self._up.pop()
        if last != machine:
            self._up[position], self._position[last] = last, position


def _poisson_moments(words: Words, machines: Machines, chance: random.Random) -> Iterator[float]:
    """Failures of all machines, as if all were up; those of machines that are down do not happen."""
    at, mean = 0.0, words.time / (machines.number * machines.gpus_each)
    while True:
        at += chance.expovariate(1 / mean)
        yield at


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
