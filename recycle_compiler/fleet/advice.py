"""Advice for a trace: machines of a job, spare ones among them, and the interval of its checkpoints.

Every number of machines that was asked about is led through the trace several times, each time with other
machines drawn from it: with all of them in the job, and with some held back as spares. What costs least for
the wanted throughput is advised. The fleet also says how many failures there are at a time (the tolerance to
compile for), how often peers of one stage are lost together (how many should hold each piece of state), and
how often the job falls back to a checkpoint (the interval).
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from typing import NamedTuple

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.fleet.accounts import GpuHours
from recycle_compiler.fleet.comparison import Batch, Comparison, compare
from recycle_compiler.fleet.machines import Fleet
from recycle_compiler.fleet.policy import Worker
from recycle_compiler.fleet.report import PolicyOutcome
from recycle_compiler.fleet.setting import FleetSetting, best_interval
from recycle_compiler.fleet.state_options import (
    MOST_HOLDERS,
    Failures,
    Losses,
    StateOption,
    best_option,
    state_options,
)
from recycle_compiler.fleet.traces.generated import Machines, Repair, Words, generate

OTHERS = ("nvrx", "torchft", "restart", "varuna", "oobleck")
"""Policies that ours is advised beside: each at its best with the same machines."""
SPARES = (0, 1, 2, 4, 8)
"""Machines that may be held back."""
INTERVALS = {
    "10 min": 600.0, "30 min": 1800.0, "1 h": 3600.0, "3 h": 10_800.0, "8 h": 28_800.0, "1 d": 86_400.0,
    "1 week": 604_800.0,
}  # fmt: skip
"""Seconds between failures of the whole job."""
_FAILURES = 120
"""Of the job, in a trace for one such interval."""
_BACK = 120.0
"""Seconds until a failed machine of such a trace is back: its process failed, or another took its place."""
_HOUR, _YEAR = 3600.0, 365 * 86400.0
_RARE = 0.001
"""Share of the time in which more failures than a tolerance may be there."""


class PolicyResult(NamedTuple):
    """Results of one policy on a number of machines, on average over the draws."""

    policy: str
    machines: int
    spares: int
    throughput: float
    effective_training_time: float
    gpu_hours: GpuHours
    per_million: float
    """GPU-hours paid for a million of what the throughput counts; infinite where nothing is done."""
    checkpoints_read: float
    """Times a year."""

    @property
    def in_job(self) -> int:
        return self.machines - self.spares


class HolderLosses(NamedTuple):
    """Times that all holders of some state may be lost, if so many workers of a stage hold it."""

    holders: int
    times: int
    """In all draws together, at most."""
    with_another: int
    """Of these, times that another machine failed with them, which may have had a copy."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question to be advised on."""

    setting: FleetSetting
    fleet: Callable[[int, int, int], Fleet]
    """Of so many machines, of which so many may be in the job, drawn by a seed."""
    places: int
    """Machines that the job can use."""
    least: int
    """Machines that it needs to run at all."""
    batch: Batch
    machines: range
    draws: int
    seed: int
    wanted: float | None = None
    """Throughput."""
    price: float | None = None
    warm_spares: bool = False
    text: str = ""
    """Of the job; empty where it cannot be read again."""
    file: str = ""
    """Its name: profiles are looked for beside it."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The findings."""

    question: Question
    options: tuple[PolicyResult, ...]
    """Of ours with every number of spares, and of the others, by number of machines."""
    best: PolicyResult | None
    """Of ours; None where the wanted throughput is not reached."""
    tolerance: int
    """Failures at a time that the job should have plans for."""
    most_down: int
    years: float
    """Of all draws together."""
    copies: tuple[HolderLosses, ...]
    copy_seconds: float
    """Until the state of a stage is on another worker."""
    read_back: float
    """Times a year that a checkpoint is read, by the simulations and for the way to keep state."""
    checkpoint_every: float
    """Seconds, by Young and Daly for how often checkpoints are read."""
    by_interval: dict[str, tuple[tuple[str, float], ...]]
    """Effective training time of each policy, by the time between failures."""
    states: tuple[StateOption, ...] = ()
    """Ways to keep the optimizer's state, whole state first."""
    states_note: str = ""
    """Reason why `states` is empty."""

    def of(self, policy: str) -> list[PolicyResult]:
        """The best option of a policy for each number of machines."""
        found: dict[int, PolicyResult] = {}
        for option in self.options:
            known = found.get(option.machines)
            if option.policy == policy and (known is None or _rank(option) < _rank(known)):
                found[option.machines] = option
        return list(found.values())


def advise(question: Question, on_run: Callable[[str], None] | None = None) -> Advice:
    """Lead all of them through the trace; `on_run` hears what comes next."""
    options: list[PolicyResult] = []
    for machines in question.machines:
        held_back = max(0, machines - question.places)
        if on_run is not None:
            on_run(f"{machines} machines")
        for spares in sorted({max(held_back, spares) for spares in SPARES}):
            if machines - spares >= question.least:
                options += _options(question, ("ours",), machines, spares)
        options += _options(question, OTHERS, machines, held_back)
    ours = [option for option in options if option.policy == "ours"]
    good = [option for option in ours if question.wanted is None or option.throughput >= question.wanted]
    best = min(good, key=_rank, default=None)
    shown = best or max(ours, key=lambda option: option.throughput)
    fleets = [_fleet(question, shown.machines, shown.spares, draw) for draw in range(question.draws)]
    if on_run is not None:
        on_run("failure rates")
    copy = _copy_seconds(question.setting)
    tolerance, watched = _tolerance(fleets), sum(fleet.trace.span for fleet in fleets)
    copies = tuple(holder_losses(fleets, copy, question.setting.job.pipelines))
    years = watched / _YEAR
    losses = tuple(Losses(one.times / years, one.with_another / years) for one in copies)
    failures = Failures(tolerance, _shares_down(fleets), losses, years)
    states, states_note = _states(question, failures, on_run)
    state = best_option(states)
    read = shown.checkpoints_read + (0.0 if state is None else state.read_back)
    # Where no draw went back to a checkpoint, as if the next year would: no more is known.
    interval = best_interval(question.setting.checkpoint_save, watched / max(1.0, read * years))
    return Advice(
        question,
        tuple(options),
        best,
        tolerance,
        max(_most_down(fleet) for fleet in fleets),
        years,
        copies,
        copy,
        read,
        interval,
        dict(_by_interval(question)),
        states,
        states_note,
    )


def _states(
    question: Question, failures: Failures, on_run: Callable[[str], None] | None
) -> tuple[tuple[StateOption, ...], str]:
    """The ways to keep the state, or why they are not compared."""
    job = question.setting.job
    if not question.text.strip():
        return (), "the file does not have the text of its job"
    if not job.techniques.adaptive or job.pipelines == 1:
        return (), "no worker has a peer that could take its work"

    def hear(name: str) -> None:
        if on_run is not None:
            on_run(name)

    try:
        return tuple(state_options(question.text, question.file, question.setting, failures, hear)), ""
    except CompileError as error:
        return (), error.diagnostics[0].message


def _shares_down(fleets: Sequence[Fleet]) -> dict[int, float]:
    """Share of the time in which so many workers are down."""
    times: Counter[int] = Counter()
    for fleet in fleets:
        for down, seconds in _down_times(fleet):
            times[down] += round(seconds)
    return {down: seconds / max(1, times.total()) for down, seconds in times.items()}


def _rank(option: PolicyResult) -> tuple[float, int, int]:
    return option.per_million, option.machines, option.spares


def _fleet(question: Question, machines: int, spares: int, draw: int) -> Fleet:
    return question.fleet(machines, min(machines - spares, question.places), question.seed + draw)


def _options(
    question: Question, policies: Sequence[str], machines: int, spares: int
) -> Iterator[PolicyResult]:
    runs: dict[str, list[tuple[PolicyOutcome, float]]] = {}
    for draw in range(question.draws):
        fleet = _fleet(question, machines, spares, draw)
        setting = replace(
            question.setting,
            failure_interval=fleet.mean_time_between_failures,
            seed=question.seed + draw,
        )
        comparison = Comparison(setting, fleet, question.batch, question.warm_spares)
        for outcome in compare(comparison, policies).outcomes:
            if outcome.average is not None:
                runs.setdefault(outcome.name, []).append((outcome, fleet.trace.span))
    for policy, found in runs.items():
        outcomes = [outcome for outcome, _ in found]
        work = sum(span * (outcome.average or 0.0) for outcome, span in found)
        paid = sum(outcome.gpu_hours.total for outcome in outcomes)
        read = sum(len(outcome.checkpoints_read) for outcome in outcomes)
        yield PolicyResult(
            policy,
            machines,
            spares,
            fmean(outcome.average or 0.0 for outcome in outcomes),
            fmean(outcome.effective_training_time for outcome in outcomes),
            GpuHours(*(fmean(column) for column in zip(*(one.gpu_hours for one in outcomes), strict=True))),
            1e6 * paid / work if work else inf,
            read * _YEAR / sum(span for _, span in found),
        )


def _down_times(fleet: Fleet) -> Iterator[tuple[int, float]]:
    """Workers that are down, and for how many seconds."""
    ends = [*(strength.at for strength in fleet.strengths[1:]), fleet.trace.span]
    for strength, end in zip(fleet.strengths, ends, strict=True):
        yield max(0, fleet.workers - strength.workers), end - strength.at


def _most_down(fleet: Fleet) -> int:
    return max(down for down, _ in _down_times(fleet))


def _tolerance(fleets: Sequence[Fleet]) -> int:
    """Failures that are exceeded in very little of the time."""
    left, shares = 1.0, _shares_down(fleets)
    for down in sorted(shares):
        left -= shares[down]
        if left <= _RARE:
            return down
    return 0


def _copy_seconds(setting: FleetSetting) -> float:
    return setting.costs.regroup + setting.copy_travel


def holder_losses(fleets: Sequence[Fleet], seconds: float, pipelines: int) -> Iterator[HolderLosses]:
    """Failures of one stage that come within the time in which a lost copy is replaced."""
    clusters: Counter[int] = Counter()
    with_another: Counter[int] = Counter()
    for fleet in fleets:
        machine_of = {worker: place for place in fleet.layout.places for worker in place}
        failed = [(change.at, worker) for change in fleet.changes() for worker in change.failed]
        moments = [at for at, _ in failed]
        by_stage: dict[int, list[tuple[float, Worker]]] = {}
        for at, worker in failed:
            by_stage.setdefault(worker[1], []).append((at, worker))
        for one_after_another in by_stage.values():
            for cluster in _clusters(one_after_another, seconds):
                clusters[len(cluster)] += 1
                machines = {machine_of[worker] for _, worker in cluster}
                first = bisect_left(moments, cluster[0][0] - seconds)
                last = bisect_right(moments, cluster[-1][0] + seconds)
                with_another[len(cluster)] += any(
                    machine_of[worker] not in machines for _, worker in failed[first:last]
                )
    for holders in range(1, min(pipelines, MOST_HOLDERS) + 1):
        yield HolderLosses(
            holders,
            *(
                sum(times for size, times in found.items() if size >= holders)
                for found in (clusters, with_another)
            ),
        )


def _clusters(failed: Sequence[tuple[float, Worker]], seconds: float) -> Iterator[list[tuple[float, Worker]]]:
    """Failures in order of time, those of which each follows the one before it within so long together."""
    cluster: list[tuple[float, Worker]] = []
    for one in failed:
        if cluster and one[0] - cluster[-1][0] > seconds:
            yield cluster
            cluster = []
        cluster.append(one)
    if cluster:
        yield cluster


def _by_interval(question: Question) -> Iterator[tuple[str, tuple[tuple[str, float], ...]]]:
    """With failures of single machines that are back soon, so that it is failures that cost and not
    absence."""
    layout = question.fleet(question.places, question.places, question.seed).layout
    machines = Machines(len(layout.places), layout.gpus_each)
    found: dict[str, list[tuple[str, float]]] = {}
    for name, interval in INTERVALS.items():
        words = Words(name, "poisson", interval * machines.number * machines.gpus_each, Repair(_BACK))
        fleet = Fleet(generate(words, machines, interval * _FAILURES, question.seed), layout)
        setting = replace(question.setting, failure_interval=fleet.mean_time_between_failures)
        for outcome in compare(Comparison(setting, fleet, question.batch), ("ours", *OTHERS)).outcomes:
            if outcome.average is not None:
                found.setdefault(outcome.name, []).append((name, outcome.effective_training_time))
    for policy, points in found.items():
        yield policy, tuple(points)
