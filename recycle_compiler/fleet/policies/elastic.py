"""Elastic: a failure costs its whole pipeline until it is repaired; the others share the batch.

The rate is (D - pipelines hit) / D of fault-free 1F1B. What a change costs is taken to be the same as ours:
detection, regroup, half an iteration. A pipeline that is whole again gets its state from another one, and all
wait for that. What a pipeline that stands by has in memory grows old. If no worker is left that has a stage
as it is now, the job goes on from a checkpoint; checkpoints cost nothing.
"""

from recycle_compiler.fleet.policies.bookkeeping import WorkClock
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.units import plural


class Elastic:
    """Only whole pipelines train."""

    name = "elastic"

    def __init__(self, setting: FleetSetting) -> None:
        self._setting, self._costs, self._job = setting, setting.costs, setting.job
        self._rows = [[(p, s) for s in range(self._job.stages)] for p in range(self._job.pipelines)]
        """The workers of each pipeline."""
        self._hit: frozenset[int] = frozenset()
        self._current: set[Worker] = set()
        """Workers that have the state of their stage as it is now."""
        self._is_forgotten = False
        """True if the state of some stage is in no worker's memory."""
        self._clock = WorkClock(setting.free_checkpoints_every)
        self._copy = max(self._job.parameters) / self._costs.copy_rate
        self.note = (
            "1F1B on the pipelines that are whole; a change pauses as long as ours "
            f"({setting.costs.origin('detection', 'regroup')})"
        )

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._hit = _pipelines(down)
        self._current = self._whole()
        return self._rate

    def react(self, change: Change) -> Reaction:
        self._clock.pass_to(change.at, self._rate)
        before = self._hit
        if self._rate and not self._clock.is_paused:
            self._current = self._whole()
        self._current -= change.failed
        struck = _pipelines(change.failed) - before
        redone = 0.0
        if struck:
            # An iteration at the rate so far.
            redone = min(self._costs.undone / self._rate, self._clock.since_pause)
        self._hit = _pipelines(change.down)
        forgets = self._nobody_left() and not self._is_forgotten
        if forgets:
            self._is_forgotten, redone = True, self._clock.back_to_checkpoint()
        healed = (before | struck) - self._hit
        if self._is_forgotten and healed:
            self._is_forgotten = False
            return self._answer(
                self._costs.restart + self._setting.checkpoint_load, redone, "from a checkpoint"
            )
        pause = (self._costs.detection + self._costs.regroup if struck else 0.0) + (
            self._costs.regroup + self._copy if healed else 0.0
        )
        words = [
            f"{plural(len(struck), 'pipeline')} dropped" if struck else "",
            f"{len(healed)} whole again" if healed else "",
            "no worker has some stage: waits for a whole pipeline" if forgets else "",
        ]
        return self._answer(pause, redone, ", ".join(word for word in words if word))

    def _nobody_left(self) -> bool:
        """True if no worker has the state of some stage."""
        return len({stage for _, stage in self._current}) < self._job.stages

    def _whole(self) -> set[Worker]:
        """Every worker in pipelines that train."""
        return set[Worker]().union(*(row for number, row in enumerate(self._rows) if number not in self._hit))

    def _answer(self, pause: float, redone: float, why: str) -> Reaction:
        self._clock.pause(pause)
        return Reaction(self._rate, pause, redone, why)

    @property
    def _rate(self) -> float:
        whole = self._job.pipelines - len(self._hit)
        return self._setting.rate(self._setting.one_f_one_b) * whole / self._job.pipelines


def _pipelines(workers: frozenset[Worker]) -> frozenset[int]:
    return frozenset(pipeline for pipeline, _ in workers)
