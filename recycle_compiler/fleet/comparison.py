"""Leads policies through one trace, one after the other, and gathers what came of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from recycle_compiler.fleet.accounts import Gpus, account
from recycle_compiler.fleet.course import Course, as_seen_by, lead
from recycle_compiler.fleet.machines import Fleet, Strength
from recycle_compiler.fleet.our_plans import healthy_period
from recycle_compiler.fleet.policy import CannotRunError, Policy, make_policy
from recycle_compiler.fleet.report import FleetPoint, FleetReport, LogEntry, PolicyOutcome
from recycle_compiler.fleet.setting import FleetSetting

_HOUR = 3600.0
_NEVER_FAIL = frozenset({"fault-free", "zero-bubble"})
"""References whose machines never fail, whatever the trace says."""


class Batch(NamedTuple):
    """Unit in which users count work, and the amount of it in an iteration."""

    unit: str
    per_iteration: float


def batch_of(setting: FleetSetting, samples: int | None) -> Batch:
    """Samples where their number is known, else micro-batches."""
    if samples is not None:
        return Batch("samples/s", samples)
    return Batch("micro-batches/s", setting.job.pipelines * setting.job.microbatches)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that is the same for all policies."""

    setting: FleetSetting
    fleet: Fleet
    batch: Batch
    warm_spares: bool = False
    """True if processes of spare machines run already when they are needed."""
    price: float | None = None
    """Of a GPU-hour."""

    @property
    def gpus(self) -> int:
        """Of the job."""
        return self.setting.job.present * self.setting.job.tensor

    @property
    def paid(self) -> Gpus:
        tensor, each = self.setting.job.tensor, self.fleet.layout.gpus_each
        whole = self.fleet.workers * tensor + self.fleet.spares * each
        return Gpus(tensor, each, self.gpus, whole)

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
) -> FleetReport:
    """The report of these policies; `on_policy` hears each name first, `on_change` of every change."""
    lives = _lives(comparison.fleet)
    outcomes: list[PolicyOutcome] = []
    reference = comparison.reference
    for name in names:
        if on_policy is not None:
            on_policy(name)
        outcomes.append(_outcome(comparison, name, reference, lives, on_change))
    job, trace = comparison.setting.job, comparison.fleet.trace
    return FleetReport(
        job=job.name,
        trace=trace.name,
        about=trace.about,
        unit=comparison.batch.unit,
        hours=comparison.hours,
        workers=job.present,
        gpus=comparison.gpus,
        reference=reference,
        spare_gpus=comparison.paid.of_fleet - comparison.gpus,
        price=comparison.price,
        gpu_hours_down=_hours_down(comparison, lives),
        outcomes=tuple(outcomes),
    )


def _outcome(
    comparison: Comparison,
    name: str,
    reference: float,
    lives: list[tuple[float, int]],
    on_change: Callable[[], None] | None,
) -> PolicyOutcome:
    fleet = comparison.fleet
    try:
        policy: Policy = make_policy(name, comparison.setting)
        start_up = comparison.setting.costs.start_up
        changes = as_seen_by(name, fleet.changes(), start_up, comparison.warm_spares)
        course = lead(policy, fleet.start, changes, fleet.trace.span, on_change)
    except CannotRunError as error:
        return PolicyOutcome(name, str(error), None)
    strengths = fleet.strengths
    if name in _NEVER_FAIL:
        strengths = (Strength(0.0, comparison.setting.job.present, fleet.spares),)
    saving: float = getattr(policy, "saving", 0.0)
    full_rate = _full_rate(comparison, name, course) / (1 - saving)
    scale = comparison.batch.per_iteration
    average = course.kept / fleet.trace.span * scale
    share = average / reference
    return PolicyOutcome(
        name=name,
        note=policy.note,
        average=average,
        share=share,
        gpu_hours_lost=(1 - share) * comparison.gpus * comparison.hours,
        effective_training_time=course.kept / (full_rate * fleet.trace.span) if full_rate else 0.0,
        gpu_hours=account(course, strengths, comparison.paid, full_rate, saving),
        still=(course.still + saving * course.training) / _HOUR,
        iterations=course.kept,
        redone=course.redone,
        timeline=tuple(_timeline(course, lives, scale)),
        log=tuple(_log(course, comparison.setting.job.workers, scale)),
    )


def _full_rate(comparison: Comparison, name: str, course: Course) -> float:
    """Iterations a second of the policy when nothing has failed, saves included."""
    rates = [stretch.rate for stretch in course.stretches]
    if name == "ours":
        copying = comparison.setting.copying
        rates.append(comparison.reference / comparison.batch.per_iteration * (1 - copying))
    elif comparison.fleet.start.down:
        rates.append(make_policy(name, comparison.setting).begin(frozenset(), 0))
    return max(rates, default=0.0)


def _lives(fleet: Fleet) -> list[tuple[float, int]]:
    """Number of live workers from each time on at which it changes, from 0 on."""
    found: list[tuple[float, int]] = []
    for strength in fleet.strengths:
        if not found or found[-1][1] != strength.workers:
            found.append((strength.at, strength.workers))
    return found


def _hours_down(comparison: Comparison, lives: list[tuple[float, int]]) -> float:
    ends = [at for at, _ in lives[1:]] + [comparison.fleet.trace.span]
    workers = comparison.setting.job.present
    seconds = sum((workers - live) * (end - at) for (at, live), end in zip(lives, ends, strict=True))
    return seconds * comparison.setting.job.tensor / _HOUR


def _timeline(course: Course, lives: list[tuple[float, int]], scale: float) -> Iterator[FleetPoint]:
    """Both step functions in one, and a last point at the end."""
    rates = course.rates()
    moments = sorted({at for at, _ in rates} | {at for at, _ in lives} | {course.span})
    rate_index = live_index = -1
    for moment in moments:
        while rate_index + 1 < len(rates) and rates[rate_index + 1][0] <= moment:
            rate_index += 1
        while live_index + 1 < len(lives) and lives[live_index + 1][0] <= moment:
            live_index += 1
        yield FleetPoint(moment / _HOUR, lives[live_index][1], rates[rate_index][1] * scale)


def _log(course: Course, workers: int, scale: float) -> Iterator[LogEntry]:
    for at, down, reaction in course.log:
        if reaction.why or reaction.pause or reaction.redone:
            rate = reaction.rate * scale
            yield LogEntry(at / _HOUR, workers - down, reaction.pause, reaction.redone, rate, reaction.why)
