"""Restart: stop at every failure, put spare machines in place, go on from the last checkpoint.

Machines are interchangeable in a restart, so as many whole pipelines run as there are machines for; a machine
that is left over waits. The rate is that of 1F1B times pipelines / D, less the time for checkpoints. Whether
a restart is worth it when machines come back is decided as for our moves: by what it gains until the next
change is to be expected.
"""

from recycle_compiler.fleet.policies.bookkeeping import WorkClock
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import Setting
from recycle_compiler.ir.units import plural
from recycle_runtime.plan.moves import ChangeRate


class Restart:
    """Checkpoints, spare machines, whole pipelines."""

    name = "restart"

    def __init__(self, setting: Setting) -> None:
        self._setting, self._costs, self._job = setting, setting.costs, setting.job
        self._again = self._costs.restart + setting.checkpoint_load
        self._pipelines = 0
        self._used: set[Worker] = set()
        # Saves are part of the rate, so they are part of the time that counts as work.
        self._clock = WorkClock(self._costs.checkpoint_every + setting.checkpoint_save)
        self._changes = ChangeRate(self._costs.expected_change)
        self._changes.begin(0.0)
        self.note = (
            f"1F1B on whole pipelines; a checkpoint of {setting.checkpoint_save:.0f} s every "
            f"{self._costs.checkpoint_every:.0f} s, a restart takes {self._again:.0f} s"
        )

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._man(down)
        return self._rate(self._pipelines)

    def react(self, change: Change) -> Reaction:
        now = self._rate(self._pipelines)
        self._clock.pass_to(change.at, now)
        self._changes.change()
        if change.failed & self._used:
            redone = self._clock.back_to_checkpoint()
            self._man(change.down)
            if not self._pipelines:
                return Reaction(0.0, 0.0, redone, "too few machines for a pipeline")
            return self._answer(self._costs.detection + self._again, redone, "restarts after a failure")
        after = self._rate(self._possible(change.down))
        save = self._setting.checkpoint_save if now else 0.0
        gain = (after - now) * self._changes.seconds(change.at)
        if after > now and gain > (save + self._again) * after:
            self._clock.checkpoint()
            self._man(change.down)
            return self._answer(save + self._again, 0.0, "restarts with more pipelines")
        return Reaction(now)

    def _answer(self, pause: float, redone: float, why: str) -> Reaction:
        self._clock.pause(pause)
        return Reaction(
            self._rate(self._pipelines), pause, redone, f"{why}: {plural(self._pipelines, 'pipeline')}"
        )

    def _possible(self, down: frozenset[Worker]) -> int:
        return min(self._job.pipelines, (self._job.workers - len(down)) // self._job.stages)

    def _man(self, down: frozenset[Worker]) -> None:
        """Use as many machines as whole pipelines need."""
        self._pipelines = self._possible(down)
        grid = ((p, s) for p in range(self._job.pipelines) for s in range(self._job.stages))
        live = [worker for worker in grid if worker not in down]
        self._used = set(live[: self._pipelines * self._job.stages])

    def _rate(self, pipelines: int) -> float:
        every, save = self._costs.checkpoint_every, self._setting.checkpoint_save
        whole = self._setting.rate(self._setting.one_f_one_b) * every / (every + save)
        return whole * pipelines / self._job.pipelines
