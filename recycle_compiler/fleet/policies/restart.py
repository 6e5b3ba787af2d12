"""Restarts of the whole job on as many whole pipelines as there are machines for.

Machines are interchangeable in a restart: spare ones take the places of those that failed, and one that is
left over waits. The rate is that of 1F1B times pipelines / D, less the time for checkpoints. Whether a
restart is worth it when machines come back is decided as for our moves: by what it gains until the next
change is to be expected.

`restart` ends all processes and goes on from the last checkpoint. Saves stop training; by default they come
at the interval of Young and Daly for the trace's own failures.

`nvrx` restarts inside the processes, as NVRx and DeadPool do: processes of healthy and spare machines stay,
the failed machine's state comes from a peer in data parallelism, and the iteration under way is done again.
It takes `swap` seconds, published for DeadPool. Only where no worker has some stage is a checkpoint read,
which is written in the background and costs nothing.
"""

from recycle_compiler.fleet.policies.bookkeeping import Holders, WorkClock, grid
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.units import plural
from recycle_runtime.plan.moves import ChangeRate


class Restart:
    """Checkpoints, spare machines, whole pipelines."""

    name = "restart"

    def __init__(self, setting: FleetSetting) -> None:
        self._setting, self._costs, self._job = setting, setting.costs, setting.job
        self._again = self._costs.restart + setting.checkpoint_load
        self.saving = setting.saving
        # Saves are part of the rate, so they are part of the time that counts as work.
        self._clock = WorkClock(setting.checkpoint_every + setting.checkpoint_save)
        self.note = f"1F1B on whole pipelines; {setting.saves_text}, {setting.restart_text}"
        self._grid = grid(setting.job)
        self._holders = Holders(setting.job.stages)
        self._used: frozenset[Worker] = frozenset()
        self._pipelines = 0
        self._changes = ChangeRate(self._costs.expected_change)
        self._changes.begin(0.0)

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._holders.start(self._grid - down, [self._possible(down)] * self._job.stages)
        self._take(down)
        return self._rate

    def react(self, change: Change) -> Reaction:
        now = self._rate
        self._clock.pass_to(change.at, now)
        self._changes.change()
        if change.failed & self._used:
            return self._recover(change, now)
        after = self._rate_of(self._possible(change.down))
        save, again = self._cost_of_growing(now)
        gain = (after - now) * self._changes.seconds(change.at)
        if after > now and gain > (save + again) * after:
            if save:
                self._clock.checkpoint()
            self._take(change.down)
            return self._answer(save + again, 0.0, "restarts with more pipelines", save)
        return Reaction(now)

    def _recover(self, change: Change, now: float) -> Reaction:
        redone = self._clock.back_to_checkpoint()
        self._take(change.down)
        if not self._pipelines:
            return Reaction(0.0, 0.0, redone, "too few machines for a pipeline")
        return self._answer(self._costs.detection + self._again, redone, "restarts from a checkpoint")

    def _cost_of_growing(self, now: float) -> tuple[float, float]:
        """Seconds to save, and to start again, before machines that came back are used."""
        return (self._setting.checkpoint_save if now else 0.0), self._again

    def _answer(self, pause: float, redone: float, why: str, saved: float = 0.0) -> Reaction:
        self._clock.pause(pause)
        return Reaction(self._rate, pause, redone, f"{why}: {plural(self._pipelines, 'pipeline')}", saved)

    def _possible(self, down: frozenset[Worker]) -> int:
        return min(self._job.pipelines, (self._job.workers - len(down)) // self._job.stages)

    def _take(self, down: frozenset[Worker]) -> None:
        """Use as many machines as whole pipelines need, those that have a state first."""
        self._pipelines = self._possible(down)
        self._holders.fail(down, is_copying=False)
        self._holders.place(self._grid - down, [self._pipelines] * self._job.stages)
        self._used = self._holders.workers

    @property
    def _rate(self) -> float:
        return self._rate_of(self._pipelines)

    def _rate_of(self, pipelines: int) -> float:
        whole = self._setting.rate(self._setting.one_f_one_b) * (1 - self.saving)
        return whole * pipelines / self._job.pipelines


class InProcessRestart(Restart):
    """Restarts inside the processes, with state from peers."""

    name = "nvrx"

    def __init__(self, setting: FleetSetting) -> None:
        super().__init__(setting)
        self.saving = 0.0
        self._clock = WorkClock(setting.free_checkpoints_every)
        origin = self._costs.origin("swap").replace("published", "published for DeadPool")
        self.note = (
            f"1F1B on whole pipelines; a restart inside the processes takes {self._costs.swap:g} s "
            f"({origin}) and {self._costs.undone:g} iterations, with state from peers; checkpoints cost "
            "nothing"
        )

    def _recover(self, change: Change, now: float) -> Reaction:
        self._holders.fail(change.failed, self._clock.is_paused)
        if not now or self._holders.forgotten() or not self._possible(change.down):
            return super()._recover(change, now)
        redone = min(self._costs.undone / now, self._clock.since_pause)
        self._take(change.down)
        return self._answer(self._costs.swap, redone, "swaps machines")

    def _cost_of_growing(self, now: float) -> tuple[float, float]:
        return 0.0, self._costs.swap if now else self._again
