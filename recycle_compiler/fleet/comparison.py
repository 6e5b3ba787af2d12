"""Leads policies through one trace, one after the other, and gathers what came of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from recycle_compiler.fleet.course import Course, as_seen_by, lead
from recycle_compiler.fleet.machines import Fleet
from recycle_compiler.fleet.our_plans import healthy_period
from recycle_compiler.fleet.policy import CannotRunError, Policy, make_policy
from recycle_compiler.fleet.report import Entry, Outcome, Point, Report
from recycle_compiler.fleet.setting import Setting

_HOUR = 3600.0


class Batch(NamedTuple):
    """What users count, and how much of it an iteration is."""

    unit: str
    per_iteration: float


def batch_of(setting: Setting, samples: int | None) -> Batch:
    """Samples where their number is known, else micro-batches."""
    if samples is not None:
        return Batch("samples/s", samples)
    return Batch("micro-batches/s", setting.job.pipelines * setting.job.microbatches)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that is the same for all policies."""

    setting: Setting
    fleet: Fleet
    batch: Batch

    @property
    def gpus(self) -> int:
        return self.setting.job.workers * self.setting.job.tensor

    @property
    def hours(self) -> float:
        return self.fleet.trace.span / _HOUR

    @property
    def reference(self) -> float:
        """Throughput of our plan without failures."""
        return self.setting.rate(healthy_period(self.setting)) * self.batch.per_iteration


def compare(
    comparison: Comparison,
    names: Sequence[str],
    on_policy: Callable[[str], None] | None = None,
    on_change: Callable[[], None] | None = None,
) -> Report:
    """The report of these policies; `on_policy` hears each name first, `on_change` of every change."""
    lives = list(_lives(comparison))
    outcomes: list[Outcome] = []
    reference = comparison.reference
    for name in names:
        if on_policy is not None:
            on_policy(name)
        outcomes.append(_outcome(comparison, name, reference, lives, on_change))
    job, trace = comparison.setting.job, comparison.fleet.trace
    return Report(
        job=job.name,
        trace=trace.name,
        about=trace.about,
        unit=comparison.batch.unit,
        hours=comparison.hours,
        workers=job.workers,
        gpus=comparison.gpus,
        reference=reference,
        gpu_hours_down=_hours_down(comparison, lives),
        outcomes=tuple(outcomes),
    )


def _outcome(
    comparison: Comparison,
    name: str,
    reference: float,
    lives: list[tuple[float, int]],
    on_change: Callable[[], None] | None,
) -> Outcome:
    fleet = comparison.fleet
    try:
        policy: Policy = make_policy(name, comparison.setting)
        changes = as_seen_by(name, fleet.changes(), comparison.setting.costs.start_up)
        course = lead(policy, fleet.start, changes, fleet.trace.span, on_change)
    except CannotRunError as error:
        return Outcome(name, str(error), None)
    scale = comparison.batch.per_iteration
    average = course.kept / fleet.trace.span * scale
    share = average / reference
    return Outcome(
        name=name,
        note=policy.note,
        average=average,
        share=share,
        gpu_hours_lost=(1 - share) * comparison.gpus * comparison.hours,
        still=course.still / _HOUR,
        iterations=course.kept,
        redone=course.redone,
        timeline=tuple(_timeline(course, lives, scale)),
        log=tuple(_log(course, comparison.setting.job.workers, scale)),
    )


def _lives(comparison: Comparison) -> Iterator[tuple[float, int]]:
    """When how many workers are up, from 0 on."""
    workers, span = comparison.setting.job.workers, comparison.fleet.trace.span
    last = workers - len(comparison.fleet.start.down)
    yield 0.0, last
    for change in comparison.fleet.changes():
        live = workers - len(change.down)
        if live != last and change.at < span:
            yield change.at, live
        last = live


def _hours_down(comparison: Comparison, lives: list[tuple[float, int]]) -> float:
    ends = [at for at, _ in lives[1:]] + [comparison.fleet.trace.span]
    workers = comparison.setting.job.workers
    seconds = sum((workers - live) * (end - at) for (at, live), end in zip(lives, ends, strict=True))
    return seconds * comparison.setting.job.tensor / _HOUR


def _timeline(course: Course, lives: list[tuple[float, int]], scale: float) -> Iterator[Point]:
    """Both step functions in one, and a last point at the end."""
    rates = course.rates()
    moments = sorted({at for at, _ in rates} | {at for at, _ in lives} | {course.span})
    rate_index = live_index = -1
    for moment in moments:
        while rate_index + 1 < len(rates) and rates[rate_index + 1][0] <= moment:
            rate_index += 1
        while live_index + 1 < len(lives) and lives[live_index + 1][0] <= moment:
            live_index += 1
        yield Point(moment / _HOUR, lives[live_index][1], rates[rate_index][1] * scale)


def _log(course: Course, workers: int, scale: float) -> Iterator[Entry]:
    for at, down, reaction in course.log:
        if reaction.why or reaction.pause or reaction.redone:
            rate = reaction.rate * scale
            yield Entry(at / _HOUR, workers - down, reaction.pause, reaction.redone, rate, reaction.why)
