"""Replica drop, as torchft and FT-HSDP do it: a failure costs its replica, the others go on without it.

A replica is a whole pipeline. The others pause until their all-reduce has given up, `replica-pause`; the step
that was under way is in that time. What is left of the replica, and machines that come back or were spare,
form a new replica as soon as they are enough for one, whichever replica they were in: the best that a
scheduler can do for it. The new one starts its processes and copies its state while the others train, and its
joining pauses them for `replica-join`. Both pauses were measured beside ours (docs/gpu.md); a timeout shorter
than the 10 s of torchft's examples shortens the first.

With fewer replicas torchft trains on fewer samples a step, which no policy here counts as a loss: the rate is
that of 1F1B times replicas / D. Checkpoints are written in the background and cost nothing; one is read where
the last replica has failed.
"""

from recycle_compiler.fleet.policies.bookkeeping import WorkClock, grid
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.units import plural


class TorchFt:
    """Replicas by number; machines that are in none are free."""

    name = "torchft"

    def __init__(self, setting: FleetSetting) -> None:
        self._setting, self._costs, self._job = setting, setting.costs, setting.job
        self._copy = max(self._job.parameters) / self._costs.copy_rate
        self._replicas: list[frozenset[Worker]] = []
        self._forming: list[tuple[float, frozenset[Worker]]] = []
        """Times at which groups of workers will have started and copied."""
        self._free: set[Worker] = set()
        self._clock = WorkClock(setting.free_checkpoints_every)
        self.note = (
            "1F1B on whole replicas, re-formed from any machines; a failure pauses "
            f"{self._costs.replica_pause:g} s, a replica that joins {self._costs.replica_join:g} s (both "
            f"{self._costs.origin('replica_pause', 'replica_join')}); smaller batches are not a loss"
        )

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._free = set(grid(self._job) - down)
        self._replicas = list(self._whole())
        return self._rate

    def react(self, change: Change) -> Reaction:
        self._clock.pass_to(change.at, self._rate)
        before = len(self._replicas)
        self._free -= change.failed
        self._replicas = [replica for replica in self._replicas if self._stays(replica, change.failed)]
        self._forming = [(at, group) for at, group in self._forming if self._stays(group, change.failed)]
        self._free |= change.returned
        if before and not self._replicas:
            return self._from_checkpoint(self._clock.back_to_checkpoint())
        if not before:
            return self._from_checkpoint(0.0)
        self._form(change.at)
        dropped = before - len(self._replicas)
        if not dropped:
            return Reaction(self._rate)
        self._clock.pause(self._costs.replica_pause)
        why = f"{plural(dropped, 'replica')} dropped"
        return Reaction(self._rate, self._costs.replica_pause, 0.0, why)

    def due(self) -> float | None:
        return min((at for at, _ in self._forming), default=None)

    def act(self, at: float) -> Reaction:
        self._clock.pass_to(at, self._rate)
        joined = [group for ready, group in self._forming if ready <= at]
        self._forming = [(ready, group) for ready, group in self._forming if ready > at]
        self._replicas += joined
        self._clock.pause(self._costs.replica_join)
        why = f"{plural(len(joined), 'replica')} joined"
        return Reaction(self._rate, self._costs.replica_join, 0.0, why)

    def _from_checkpoint(self, redone: float) -> Reaction:
        """No replica is left: all machines restart, if they are enough for one."""
        for _, group in self._forming:
            self._free |= group
        self._forming = []
        self._replicas = list(self._whole())
        if not self._replicas:
            return Reaction(0.0, 0.0, redone, "too few machines for a replica")
        pause = self._setting.from_checkpoint
        self._clock.pause(pause)
        return Reaction(self._rate, pause, redone, "from a checkpoint")

    def _stays(self, group: frozenset[Worker], failed: frozenset[Worker]) -> bool:
        """True if a group is not hit; who is left of one that is becomes free."""
        if not group & failed:
            return True
        self._free |= group - failed
        return False

    def _whole(self) -> list[frozenset[Worker]]:
        """Groups of free machines, each enough for a replica, that leave no more than there are pipelines."""
        room = self._job.pipelines - len(self._replicas) - len(self._forming)
        free = sorted(self._free)
        groups: list[frozenset[Worker]] = []
        while len(groups) < room and len(free) >= self._job.stages:
            groups.append(frozenset(free[: self._job.stages]))
            del free[: self._job.stages]
        self._free = set(free)
        return groups

    def _form(self, at: float) -> None:
        ready = max(at, self._clock.busy_until) + self._costs.start_up + self._copy
        self._forming += [(ready, group) for group in self._whole()]

    @property
    def _rate(self) -> float:
        whole = self._setting.rate(self._setting.one_f_one_b)
        return whole * len(self._replicas) / self._job.pipelines
