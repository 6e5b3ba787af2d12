"""ReCycle as published: micro-batches of the lost go to peers; the speed depends on the count alone.

Failure normalization: for every number of failures there is one plan, and workers move between stages until
the losses lie as it has them. A worker that moves, or comes back, copies the stage's parameters from a peer
while the others wait; copies run side by side. What noticing and regrouping takes is not published and is
taken to be as quick as ours; half an iteration is done again after a loss.
"""

from functools import lru_cache

from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.recycle_schedules import ALL, Counts, best_placement, is_large, spread
from recycle_compiler.fleet.setting import Setting
from recycle_compiler.ir.job import Techniques

_PLANS_OF_LARGE = 48
"""Numbers of failures that are planned for in a large job; between two of them the period is interpolated."""


class Recycle:
    """One run, with the techniques that are on."""

    def __init__(self, setting: Setting, techniques: Techniques = ALL) -> None:
        self.name = "recycle"
        self.note = f"as published, with {', '.join(techniques.names) or 'nothing'}; copies are waited for"
        self._setting = setting
        self._techniques = techniques
        self._plan = lru_cache(None)(self._make_plan)
        self._down: frozenset[Worker] = frozenset()
        self._counts: Counts = (0,) * setting.job.stages
        """Where the losses lie after moves."""

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._down = down
        plan = self._plan(len(down))
        if plan is None:
            return 0.0
        period, self._counts = plan
        return self._setting.rate(period)

    def react(self, change: Change) -> Reaction:
        costs, before = self._setting.costs, self._plan(len(self._down))
        self._down = change.down
        plan = self._plan(len(change.down))
        if plan is None:
            return Reaction(0.0, why=f"{len(change.down)} failures leave a stage without a worker")
        period, planned = plan
        if not change.lost and not change.returned:
            return Reaction(self._setting.rate(period))
        copied = self._copied(change, planned)
        self._counts = planned
        noticed = costs.detection if change.lost else 0.0
        redone = costs.undone * self._setting.seconds(before[0]) if before and change.lost else 0.0
        copying = max(copied, default=0) / costs.copy_rate
        why = f"plan for {len(change.down)} failures" + (f", {len(copied)} copies" if copied else "")
        return Reaction(self._setting.rate(period), noticed + costs.regroup + copying, redone, why)

    def _copied(self, change: Change, planned: Counts) -> list[int]:
        """Bytes of each copy: of those who come back, and of those who move to another stage."""
        parameters = self._setting.job.parameters
        now = list(self._counts)
        for _, stage in change.lost:
            now[stage] += 1
        for _, stage in change.returned:
            now[stage] -= 1
        back = [parameters[stage] for _, stage in sorted(change.returned)]
        moved = [
            parameters[stage]
            for stage, (have, want) in enumerate(zip(now, planned, strict=True))
            for _ in range(max(0, have - want))
        ]
        return back + moved

    def _make_plan(self, failures: int) -> tuple[float, Counts] | None:
        job = self._setting.job
        most = job.stages * (job.pipelines - 1)
        if failures > most:
            return None
        step = max(1, job.workers // _PLANS_OF_LARGE) if is_large(job) else 1
        below = failures // step * step
        above = min(most, below + step)
        if failures in (below, above):
            return best_placement(job, failures, self._techniques)
        low, high = self._plan(below), self._plan(above)
        assert low is not None and high is not None
        share = (failures - below) / (above - below)
        return low[0] + share * (high[0] - low[0]), next(spread(job, failures))


def make(setting: Setting) -> Recycle:
    """A run with all three techniques."""
    return Recycle(setting)
