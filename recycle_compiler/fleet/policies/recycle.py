"""ReCycle as published: micro-batches of failed workers go to peers; the speed depends on the count alone.

Failure normalization: for every number of failures there is one plan, and workers move between stages until
the failures lie as it has them. A plan for more failures is used where it is quicker; workers that it has no
work for stand by with the state of their stage. A worker that moves, or comes back, copies the stage's
parameters from a peer while the others wait; copies run side by side. What noticing and regrouping takes is
not published and is taken to be as quick as ours; half an iteration is done again after a failure. Where no
worker is left that has the state of a stage, the job goes on from a checkpoint; checkpoints cost nothing.
"""

from collections import Counter
from functools import lru_cache

from recycle_compiler.fleet.policies.bookkeeping import Holders, WorkClock, grid
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.units import plural
from recycle_compiler.planner.baselines import ALL, Counts, best_placement, is_large_baseline, spread

_PLANS_OF_LARGE = 48
"""Numbers of failures that are planned for in a large job; between two of them the period is interpolated."""


class RecyclePlans:
    """One plan for each number of failures: its period in ticks, and where it has the failures."""

    def __init__(self, job: JobSpec, techniques: Techniques = ALL) -> None:
        self._job, self._techniques = job, techniques
        self.plan = lru_cache(None)(self._make_plan)

    def _make_plan(self, failures: int) -> tuple[float, Counts] | None:
        job = self._job
        most = job.stages * (job.pipelines - 1)
        if failures > most:
            return None
        step = max(1, job.workers // _PLANS_OF_LARGE) if is_large_baseline(job) else 1
        below = failures // step * step
        above = min(most, below + step)
        if failures in (below, above):
            return best_placement(job, failures, self._techniques, step)
        low, high = self.plan(below), self.plan(above)
        assert low is not None and high is not None
        if sum(low[1]) >= failures:
            return low
        share = (failures - below) / (above - below)
        return low[0] + share * (high[0] - low[0]), next(spread(job, failures))


class Recycle:
    """One run, with the techniques that are on."""

    def __init__(self, setting: FleetSetting, techniques: Techniques = ALL) -> None:
        self.name = "recycle"
        self.note = (
            f"as published, with {', '.join(techniques.names) or 'nothing'}; pauses as ours "
            f"({setting.costs.origin('detection', 'regroup')}), and copies are waited for"
        )
        self._setting = setting
        self._grid = grid(setting.job)
        self._plan = RecyclePlans(setting.job, techniques).plan
        self._holders = Holders(setting.job.stages)
        self._clock = WorkClock(setting.free_checkpoints_every)
        self._period: float | None = None
        """Ticks; None while the job stands still."""

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._start(down)
        return self._rate

    def react(self, change: Change) -> Reaction:
        self._clock.pass_to(change.at, self._rate)
        if not change.failed and not change.returned:
            return Reaction(self._rate)
        self._holders.fail(change.failed, self._clock.is_paused)
        if self._holders.forgotten():
            return self._from_checkpoint(change)
        return self._go_on(change)

    def _go_on(self, change: Change) -> Reaction:
        costs, plan = self._setting.costs, self._plan(len(change.down))
        assert plan is not None and self._period is not None
        noticed, redone = 0.0, 0.0
        if change.failed:
            noticed = costs.detection
            redone = min(costs.undone * self._setting.seconds(self._period), self._clock.since_pause)
        self._period, failed = plan
        live = self._grid - change.down
        copied = self._holders.place(live, self._wanted(failed, len(live)))
        copying = max((self._setting.job.parameters[stage] for stage in copied), default=0) / costs.copy_rate
        pause = noticed + costs.regroup + copying
        self._clock.pause(pause)
        why = f"plan for {plural(len(change.down), 'failure')}"
        if copied:
            why += f", {len(copied)} {'copies' if len(copied) > 1 else 'copy'}"
        return Reaction(self._rate, pause, redone, why)

    def _from_checkpoint(self, change: Change) -> Reaction:
        """No worker has the state of some stage."""
        redone = self._clock.back_to_checkpoint()
        self._start(change.down)
        failures = plural(len(change.down), "failure")
        if self._period is None:
            why = f"{failures}: a stage is without a worker, stands still"
            return Reaction(0.0, 0.0, redone, why)
        pause = self._setting.from_checkpoint
        self._clock.pause(pause)
        why = f"no worker has the state of a stage: from a checkpoint, plan for {failures}"
        return Reaction(self._rate, pause, redone, why)

    def _start(self, down: frozenset[Worker]) -> None:
        """Every worker where the plan wants it, without a state to keep."""
        plan = self._plan(len(down))
        if plan is None:
            self._period = None
            self._holders.clear()
            return
        self._period, failed = plan
        self._holders.clear()
        live = self._grid - down
        self._holders.start(live, self._wanted(failed, len(live)))

    @property
    def _rate(self) -> float:
        return 0.0 if self._period is None else self._setting.rate(self._period)

    def _wanted(self, failed: Counts, live: int) -> list[int]:
        return workers_wanted(failed, live, self._holders.counts(), self._setting.job.pipelines)


def workers_wanted(failed: Counts, live: int, there: Counter[int], pipelines: int) -> list[int]:
    """Workers on each stage: those that a plan has work for, and standbys where they need no copy."""
    wanted = [pipelines - gone for gone in failed]
    for _ in range(live - sum(wanted)):
        open_stages = (stage for stage, count in enumerate(wanted) if count < pipelines)
        wanted[max(open_stages, key=lambda stage: (there[stage] - wanted[stage], -stage))] += 1
    return wanted
