"""Leads a policy through a trace: when it makes progress, and how much of it is kept.

A policy is asked at every change, and, if it has something in mind for later (a copy that will have arrived,
a plan that will be ready), also then. A pause that is under way is not forgotten by a change in it: the
longer one counts. Work that has to be redone is taken off where it was done: the last of it first.

Machines that come have to start their processes first. A policy that restarts all processes at every
change has that time in its restarts, and sees a machine at once. All others see a worker as down until it has
started, be it one that returns or one on a spare machine.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from recycle_compiler.fleet.policy import AT_ONCE, Change, Policy, Reaction, Worker

_LEAST = 1e-9
"""Seconds; what is shorter is rounding."""


@runtime_checkable
class ActsLater(Protocol):
    """Further methods of a policy that acts between changes."""

    def due(self) -> float | None:
        """Time of the next action, in seconds from the beginning; None: not before the next change."""
        ...

    def act(self, at: float) -> Reaction:
        """It is that time, and no change came before it."""
        ...


class Start(NamedTuple):
    """The fleet before anything happens."""

    down: frozenset[Worker]
    spare: int


Use = Literal["training", "reconfiguring", "saving", "waiting"]
"""States of a job: `saving` only where it stops for a checkpoint besides the regular ones, `waiting` where it
cannot run until machines come back."""


class Logged(NamedTuple):
    """A reaction, when it was, and how many workers were down from then on."""

    at: float
    down: int
    reaction: Reaction


@dataclass(slots=True)
class Stretch:
    """A time in which nothing changes. What is undone later is the end of it."""

    begin: float
    end: float
    rate: float
    """Iterations a second."""
    kept_until: float
    """From here to the end the work is redone later."""
    use: Use = "training"

    @property
    def kept(self) -> float:
        """Iterations."""
        return (self.kept_until - self.begin) * self.rate

    @property
    def redone(self) -> float:
        return (self.end - self.kept_until) * self.rate


class Course(NamedTuple):
    """Course of a policy through a trace; times in seconds."""

    span: float
    stretches: tuple[Stretch, ...]
    log: tuple[Logged, ...]

    @property
    def kept(self) -> float:
        """Iterations that did not have to be redone."""
        return sum(stretch.kept for stretch in self.stretches)

    @property
    def redone(self) -> float:
        return sum(stretch.redone for stretch in self.stretches)

    @property
    def training(self) -> float:
        """Seconds with progress."""
        return sum(stretch.end - stretch.begin for stretch in self.stretches if stretch.rate)

    @property
    def still(self) -> float:
        """Seconds without progress."""
        return sum(stretch.end - stretch.begin for stretch in self.stretches if stretch.rate == 0)

    def rates(self) -> list[tuple[float, float]]:
        """Rate of kept work from each time on at which it changes, from 0 on."""
        steps: list[tuple[float, float]] = []
        for stretch in self.stretches:
            pieces = (
                (stretch.begin, stretch.kept_until, stretch.rate),
                (stretch.kept_until, stretch.end, 0.0),
            )
            for begin, end, rate in pieces:
                if end > begin and (not steps or steps[-1][1] != rate):
                    steps.append((begin, rate))
        return steps


def lead(
    policy: Policy,
    start: Start,
    changes: Iterable[Change],
    span: float,
    on_change: Callable[[], None] | None = None,
) -> Course:
    """The course of a policy that has seen nothing yet; changes are sorted, and those after the span ignored.

    CannotRunError where it cannot run the job at all.
    """
    record = _Record(policy.begin(start.down, start.spare))
    later = policy if isinstance(policy, ActsLater) else None
    down = len(start.down)
    for change in changes:
        if change.at >= span:
            break
        _act_until(later, change.at, record, down)
        down = len(change.down)
        record.take(change.at, policy.react(change), down)
        if on_change is not None:
            on_change()
    _act_until(later, span, record, down)
    return record.finish(span)


def _act_until(policy: ActsLater | None, end: float, record: "_Record", down: int) -> None:
    """Let the policy do what it wants to do before this moment."""
    while policy is not None and (due := policy.due()) is not None and due < end:
        at = max(due, record.asked)
        record.take(at, policy.act(at), down)


class _Record:
    """Stretches so far, and what goes on after them."""

    def __init__(self, rate: float) -> None:
        self.asked = 0.0
        """Time at which the last reaction was taken."""
        self._now = 0.0
        self._rate = rate
        self._paused_until = self._saving_until = 0.0
        self._stretches: list[Stretch] = []
        self._with_work: list[Stretch] = []
        """Those of which something is still kept, so that no empty one is searched."""
        self._log: list[Logged] = []

    def take(self, at: float, reaction: Reaction, down: int) -> None:
        """This is what happens now."""
        if min(reaction.rate, reaction.pause, reaction.redone, reaction.saved) < 0:
            raise ValueError(f"nothing of a reaction may be negative: {reaction}")
        self.asked = at
        if reaction == Reaction(self._rate):
            # Nothing has changed, and a trace may have very many changes that are none for this policy.
            return
        self._pass(at)
        self._undo(reaction.redone)
        self._saving_until = max(self._saving_until, at + reaction.saved)
        self._paused_until = max(self._paused_until, at + reaction.pause)
        self._rate = reaction.rate
        self._log.append(Logged(at, down, reaction))

    def finish(self, span: float) -> Course:
        self._pass(span)
        return Course(span, tuple(self._stretches), tuple(self._log))

    def _pass(self, until: float) -> None:
        """Time goes on."""
        resumes = min(until, max(self._now, self._paused_until))
        saved = min(resumes, max(self._now, self._saving_until))
        self._add(self._now, saved, 0.0, "saving")
        self._add(saved, resumes, 0.0, "reconfiguring")
        self._add(resumes, until, self._rate, "training" if self._rate else "waiting")
        self._now = until

    def _add(self, begin: float, end: float, rate: float, use: Use) -> None:
        if end <= begin:
            return
        stretch = Stretch(begin, end, rate, end, use)
        self._stretches.append(stretch)
        if rate > 0:
            self._with_work.append(stretch)

    def _undo(self, seconds: float) -> None:
        while seconds > _LEAST and self._with_work:
            last = self._with_work[-1]
            length = last.kept_until - last.begin
            if length > seconds + _LEAST:
                last.kept_until -= seconds
                return
            last.kept_until = last.begin
            seconds -= length
            self._with_work.pop()


def as_seen_by(
    policy: str, changes: Iterable[Change], start_up: float, warm_spares: bool = False
) -> Iterator[Change]:
    """The changes as a policy of this name gets to know them; processes of warm spares have started
    before."""
    if policy in AT_ONCE or not start_up:
        return iter(changes)
    return _after_start_up(changes, start_up, warm_spares)


def _after_start_up(changes: Iterable[Change], start_up: float, warm: bool) -> Iterator[Change]:
    ready: dict[Worker, float] = {}
    """Time at which each starting worker will be ready."""
    down: frozenset[Worker] = frozenset()
    spare = 0
    for change in changes:
        yield from _started(ready, change.at, down, spare)
        failed = change.failed - ready.keys()
        for worker in change.failed:
            ready.pop(worker, None)
        returned = frozenset(worker for worker, at in ready.items() if at <= change.at)
        for worker in returned:
            del ready[worker]
        at_once = change.from_spares if warm else frozenset[Worker]()
        returned |= at_once
        ready.update(dict.fromkeys(sorted(change.returned - at_once), change.at + start_up))
        if failed or returned or change.spare != spare:
            down_now = change.down | ready.keys()
            yield Change(change.at, failed, returned, down_now, change.spare, at_once)
        down, spare = change.down, change.spare
    yield from _started(ready, float("inf"), down, spare)


def _started(
    ready: dict[Worker, float], until: float, down: frozenset[Worker], spare: int
) -> Iterator[Change]:
    """Those who have started before this moment, and are not there for longer."""
    while ready and (at := min(ready.values())) < until:
        returned = frozenset(worker for worker, moment in ready.items() if moment == at)
        for worker in returned:
            del ready[worker]
        yield Change(at, frozenset(), returned, down | ready.keys(), spare)
