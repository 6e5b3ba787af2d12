"""Ways to keep state that a job may choose from, with the plans and the losses of each.

    whole       every worker of a stage has all of it: lost when all of them are. In a job in layers the least
                number of workers on a stage is `redundancy`; fewer leave more freedom to cut
    N owners    each shard of the optimizer's state is with N workers of its stage: lost when these are, which
                leaves room for activations and makes steps shorter, but for the sum and the new weights that
                travel
    copies      either of them with a copy of every stage in the memory of two nodes, every so many steps: a
                loss goes back to the copy, unless the second node fails as well

Owners and redundancy change memory and times, and so the plans: each choice is planned quickly, with all
workers and with as many failures as the tolerance says, under the fastest cut of a job in layers. Between
these two numbers of failures rates are interpolated. Where nothing is copied, a loss of all holders costs a
restart and half a checkpoint interval; with copies, a restart and half the steps between two of them, and
each copy a pause.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from recycle_compiler.fleet.policies.bookkeeping import LEAST_COPY_STEPS
from recycle_compiler.fleet.setting import FleetSetting, best_interval
from recycle_compiler.frontend.load import parse_for_format, parse_job_text
from recycle_compiler.frontend.syntax import Block
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.state import held_by_stage
from recycle_compiler.planner.compile import NoPlanError, plan_count
from recycle_compiler.planner.placement import measure_costs
from recycle_compiler.planner.recut import can_recut, fastest_layout
from recycle_compiler.planner.start import NoStartError, started
from recycle_compiler.planner.worker_processes import running
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.search import Effort

_YEAR = 365 * 86400.0
MOST_HOLDERS = 4
"""That choices are compared with."""
_ALIKE = 1.001
"""Rates that are no further apart count as equal: that does not outweigh what shards, copies or fewer holders
bring along."""


class StateOption(NamedTuple):
    """One way to keep the state."""

    owners: int
    """Of each shard; 0: every worker has the whole state."""
    redundancy: int | None
    """Workers of a stage at least; None where the job keeps its cut."""
    copy_steps: int | None
    """Steps from one copy in the memory of nodes to the next; None: no such copies."""
    holders: int
    """Workers that have each piece of state."""
    period: int | None
    """Ticks of a step with all workers; None where there is no plan."""
    period_failed: int | None
    """The same with as many failures as are tolerated."""
    held: int | None
    """Bytes of state on the worker that has most of it; None where the job does not say."""
    losses: float
    """Times a year that all holders of some state may be lost, at most."""
    read_back: float
    """Times a year that a checkpoint may have to be read, at most."""
    rate: float
    """Iterations a second over the trace, with copies and what follows losses."""
    lost: float = 0.0
    """Share of the time that losses cost."""
    why: str = ""
    """Reason why there is no plan."""

    @property
    def name(self) -> str:
        return option_name(self.owners, self.redundancy)


class Losses(NamedTuple):
    """Times a year that all of so many holders of a piece of state are lost together, at most."""

    all_holders: float
    and_copy: float
    """Times a year that another machine is lost with all holders, which may be the one that has a copy."""


class Failures(NamedTuple):
    """Failures that a choice has to do with."""

    tolerance: int
    shares: Mapping[int, float]
    """Share of the time in which so many workers are down."""
    losses: Sequence[Losses]
    """With 1, 2, ... holders."""
    years: float
    """That were watched."""


class _Plans(NamedTuple):
    """Quick plans of a choice."""

    whole: int
    """Ticks of a step with all workers."""
    failed: int
    """With as many failures as are tolerated."""
    holders: int
    """Workers on a stage, at least."""


def with_owners(text: str, name: str, owners: int) -> str:
    """The text of a job with another `optimizer` block; 0 owners: whole state. CompileError if it is none."""
    job = parse_for_format(text, name)
    lines = text.splitlines(keepends=True)
    place = (job.braces.close.line - 1, job.braces.close.column - 1)
    end = place
    for entry in job.braces.entries:
        if isinstance(entry, Block) and entry.head.text == "optimizer" and entry.braces is not None:
            place = (entry.head.span.line - 1, entry.head.span.column - 1)
            end = (entry.braces.close.line - 1, entry.braces.close.end_column - 1)
    before = "".join(lines[: place[0]]) + lines[place[0]][: place[1]]
    after = lines[end[0]][end[1] :] + "".join(lines[end[0] + 1 :])
    block = f"optimizer {{ state = sharded  owners = {owners} }}" if owners else "optimizer { state = whole }"
    return f"{before}\n{block}\n{after}"


def state_options(
    text: str, name: str, setting: FleetSetting, failures: Failures, on_option: Callable[[str], None]
) -> Iterator[StateOption]:
    """Whole state, then from one owner on, up to as many as a stage has workers; each with the redundancy of
    the job and others that are no fewer than the owners, without copies and with them. Peers that share
    experts have no whole state. CompileError if the text cannot be read again: its profile may be gone."""
    most = min(setting.job.pipelines, MOST_HOLDERS)
    for owners in range(1 if setting.job.slots else 0, most + 1):
        job = parse_job_text(with_owners(text, name, owners), name)
        redundancies: list[int | None] = [job.redundancy if can_recut(job) else None]
        if redundancies[0] is not None:
            redundancies += [each for each in range(max(1, owners), most + 1) if each != job.redundancy]
        on_option(option_name(owners, redundancies[0]))
        held = max((sum(one.parts.values()) for one in held_by_stage(job)), default=None)
        try:
            job = started(job)
            planned = list(_planned(job, redundancies, failures.tolerance))
        except (NoPlanError, NoStartError) as error:
            none = StateOption(owners, redundancies[0], None, owners, None, None, held, 0, 0, 0)
            yield none._replace(why=str(error))
            continue
        for number, (redundancy, plans) in enumerate(zip(redundancies, planned, strict=True)):
            if plans in planned[:number]:
                # What is allowed there too is what is fastest anyway.
                continue
            holders = min(owners or plans.holders, plans.holders)
            plain = StateOption(owners, redundancy, None, holders, plans.whole, plans.failed, held, 0, 0, 0)
            yield from _with_losses(plain, job, setting, failures)


def option_name(owners: int, redundancy: int | None) -> str:
    words = f"{owners} owners" if owners > 1 else "1 owner" if owners else "whole"
    return words if redundancy is None else f"{words}, redundancy {redundancy}"


def _with_losses(
    plain: StateOption, job: JobSpec, setting: FleetSetting, failures: Failures
) -> Iterator[StateOption]:
    """The choice without copies and with them."""
    assert plain.period is not None and plain.period_failed is not None
    losses = failures.losses[min(plain.holders, len(failures.losses)) - 1]
    rates = [setting.rate(plain.period), setting.rate(plain.period_failed)]
    most = max(1, failures.tolerance)
    mean = sum(
        share * (rates[0] + (rates[1] - rates[0]) * min(down, most) / most)
        for down, share in failures.shares.items()
    )
    costs, step, copied = setting.costs, setting.seconds(plain.period), max(job.parameters)
    from_disk = setting.from_checkpoint + setting.free_checkpoints_every / 2
    lost = min(1.0, losses.all_holders * from_disk / _YEAR)
    plain = plain._replace(losses=losses.all_holders)
    yield plain._replace(read_back=losses.all_holders, rate=mean * (1 - lost), lost=lost)
    pause = copied / costs.memory_rate
    # Where no loss was seen, as if there had been one: no more is known.
    steps = _copy_steps(step, pause, max(losses.all_holders, 1 / failures.years))
    # A copy counts once it has travelled, and travels back.
    from_copy = costs.detection + costs.restart + 2 * copied / costs.copy_rate + steps * step / 2
    lost = min(1.0, (losses.all_holders * from_copy + losses.and_copy * from_disk) / _YEAR)
    training = steps * step / (steps * step + pause)
    rate = mean * training * (1 - lost)
    yield plain._replace(copy_steps=steps, read_back=losses.and_copy, rate=rate, lost=lost)


def _copy_steps(step: float, pause: float, losses: float) -> int:
    """Steps between two copies that lose least to pauses and to steps made again."""
    return max(LEAST_COPY_STEPS, round(best_interval(pause, _YEAR / losses) / step))


def _planned(job: JobSpec, redundancies: Sequence[int | None], tolerance: int) -> Iterator[_Plans]:
    """Quick plans with all workers and with so many failures; a failure never makes a step shorter."""
    guard = Guard(job.solver.time_limit_ns)
    most = min(job.vacant + tolerance, job.stages * (job.pipelines - 1))
    counts = (job.vacant, most)
    with running(1) as run:
        costs = measure_costs(job, most, run, guard) if most else None
        own = [
            plan_count(job, count, costs, guard, effort=Effort().quick()).claims.period for count in counts
        ]
    cuts = [_under_other_cuts(job, redundancies, job.workers - count) for count in counts]
    for redundancy in redundancies:
        found = [
            min((period, -job.pipelines), other[redundancy]) for period, other in zip(own, cuts, strict=True)
        ]
        (whole, _), (failed, _) = found
        yield _Plans(whole, max(whole, failed), min(-few for _, few in found))


_UNKNOWN = 1 << 60


def _under_other_cuts(
    job: JobSpec, redundancies: Sequence[int | None], workers: int
) -> dict[int | None, tuple[int, int]]:
    """For each redundancy, ticks of a step and how many workers hold each layer, as a negative number."""
    none = (_UNKNOWN, 0)
    if not can_recut(job):
        return dict.fromkeys(redundancies, none)
    found: dict[int | None, tuple[int, int]] = {}
    fastest = none
    for redundancy in sorted(each for each in redundancies if each is not None):
        if redundancy > -fastest[1]:
            layout, period = fastest_layout(replace(job, redundancy=redundancy), workers) or (None, None)
            fastest = none if layout is None or period is None else (period, -min(layout.workers))
        # Otherwise the fastest with fewer holders has enough of them.
        found[redundancy] = fastest
    return found


def best_option(options: Sequence[StateOption]) -> StateOption | None:
    """Of those that are as fast over the trace as any, but for little: whole state before shards, then what
    is lost least, then the first. None where none has a plan."""
    fastest = max((option.rate for option in options if option.period is not None), default=None)
    if fastest is None:
        return None
    alike = (option for option in options if option.rate * _ALIKE >= fastest)
    return min(alike, key=lambda option: (option.owners > 0, option.losses))


def checkpoints_at_par(setting: FleetSetting, one: StateOption, other: StateOption) -> float | None:
    """Seconds between checkpoints with which a choice that loses state is as fast as one that loses less.

    None where no longer interval makes them so, or either goes back to copies in memory."""
    if one.copy_steps or other.copy_steps:
        return None
    rates = [each.rate / (1 - each.lost) for each in (one, other) if each.lost < 1]
    if len(rates) < 2:
        return None
    lost = rates[0] * one.losses - rates[1] * other.losses
    each = _YEAR * (rates[0] - rates[1]) / lost if lost > 0 else 0.0
    every = 2 * (each - setting.from_checkpoint)
    return every if every > setting.free_checkpoints_every else None
