"""Ways to keep the optimizer's state that a job may choose from, with the plans and the losses of each.

    whole       every worker of a stage has all of it: lost when all of them are
    N owners    each shard is with N workers of its stage: lost when these are, which leaves room for
                activations and makes steps shorter, but for the sum and the new weights that travel

Owners change memory and times, and so the plans: each choice is planned quickly, with all workers and with as
many failures as the tolerance says, under the fastest cut of a job in layers. Between these two numbers of
failures rates are interpolated. A loss of all holders costs a restart and half a checkpoint interval.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from recycle_compiler.fleet.setting import FleetSetting
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
_MOST_OWNERS = 4
_ALIKE = 1.001
"""A rate that is no more above that of whole state does not outweigh what sharding adds to a job."""


class StateOption(NamedTuple):
    """One way to keep the state."""

    owners: int
    """Of each shard; 0: every worker has the whole state."""
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
    rate: float
    """Iterations a second over the trace, restarts from checkpoints included."""
    why: str = ""
    """Why there is no plan."""

    @property
    def name(self) -> str:
        return f"{self.owners} owners" if self.owners > 1 else "1 owner" if self.owners else "whole"


class Failures(NamedTuple):
    """Failures that a choice has to do with."""

    tolerance: int
    shares: Mapping[int, float]
    """Share of the time in which so many workers are down."""
    losses: Sequence[float]
    """Times a year that all of 1, 2, ... holders of a piece of state are lost together, at most."""


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
    """Whole state, then from one owner on, up to as many as a stage has workers. CompileError if the text
    cannot be read again, as where its profile is gone."""
    most = min(setting.job.pipelines, _MOST_OWNERS)
    for owners in range(most + 1):
        job = parse_job_text(with_owners(text, name, owners), name)
        on_option(f"{owners} owners" if owners else "whole state")
        yield _option(job, owners, setting, failures)


def _option(job: JobSpec, owners: int, setting: FleetSetting, failures: Failures) -> StateOption:
    holders = owners or setting.job.pipelines
    losses = failures.losses[min(holders, len(failures.losses)) - 1] if failures.losses else 0.0
    held = max((sum(one.parts.values()) for one in held_by_stage(job)), default=None)
    try:
        job = started(job)
        whole, failed = _periods(job, failures.tolerance)
    except (NoPlanError, NoStartError) as error:
        return StateOption(owners, holders, None, None, held, losses, 0.0, str(error))
    rates = [setting.rate(whole), setting.rate(failed)]
    most = max(1, failures.tolerance)
    mean = sum(
        share * (rates[0] + (rates[1] - rates[0]) * min(down, most) / most)
        for down, share in failures.shares.items()
    )
    lost = setting.costs.restart + setting.checkpoint_load + setting.free_checkpoints_every / 2
    return StateOption(
        owners, holders, whole, failed, held, losses, mean * max(0.0, 1 - losses * lost / _YEAR)
    )


def _periods(job: JobSpec, tolerance: int) -> tuple[int, int]:
    """Of quick plans with all workers and with so many failures; a failure never makes a step shorter."""
    guard = Guard(job.solver.time_limit_ns)
    with running(1) as run:
        most = min(job.vacant + tolerance, job.stages * (job.pipelines - 1))
        costs = measure_costs(job, most, run, guard) if most else None
        found = [
            min(
                plan_count(job, count, costs, guard, effort=Effort().quick()).claims.period,
                _under_another_cut(job, job.workers - count),
            )
            for count in (job.vacant, most)
        ]
    return found[0], max(found)


_UNKNOWN = 1 << 60


def _under_another_cut(job: JobSpec, workers: int) -> int:
    found = fastest_layout(job, workers) if can_recut(job) else None
    return _UNKNOWN if found is None or found[1] is None else found[1]


def best_option(options: Sequence[StateOption]) -> StateOption | None:
    """The fastest over the trace; whole state where nothing is really faster. None where none has a plan."""
    planned = [option for option in options if option.period is not None]
    fastest = max(planned, key=lambda option: (option.rate, -option.owners), default=None)
    whole = next((option for option in planned if not option.owners), None)
    if fastest is None or whole is None:
        return fastest
    return whole if fastest.rate <= whole.rate * _ALIKE else fastest
