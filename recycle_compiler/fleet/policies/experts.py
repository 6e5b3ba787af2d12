"""Systems for mixtures of experts, for jobs whose peers share experts.

`expert-parallel` is plain expert parallelism: every expert is on one worker of a stage. A failed worker takes
its experts along, so all restart from the last checkpoint, as `restart` does: on whole pipelines, with the
experts spread over fewer workers. That their number need not divide by the workers, and that workers need
room for more of them, is left out, in its favour.

`lazarus`, after its abstract and the summaries of it (arXiv 2407.04656), keeps every expert on several
workers, so placed that as few groups of workers as possible are all that must not fail together. Here every
`expert-copies` peers of a stage have the same experts. While each group has a live worker the others go on,
all of them: it has no pipelines, so its rate is that of 1F1B times live workers / all workers, as if work
could be spread at once. After every change experts are placed again. No figure for that pause was at hand: it
gets `communicator`, the shortest that any system publishes, and experts travel for nothing. Where all workers
of a group fail within one pause, experts are lost and a checkpoint is read; checkpoints cost nothing.

Imbalance of popularity slows neither.
"""

from recycle_compiler.fleet.policies.bookkeeping import WorkClock, grid
from recycle_compiler.fleet.policies.restart import Restart
from recycle_compiler.fleet.policy import CannotRunError, Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.units import plural

_NO_EXPERTS = "the job has no experts: `experts { slots = ... }`"


class ExpertParallel(Restart):
    """Every expert once."""

    name = "expert-parallel"

    def __init__(self, setting: FleetSetting) -> None:
        if not setting.job.slots:
            raise CannotRunError(_NO_EXPERTS)
        super().__init__(setting)
        self.note = f"every expert on one worker of a stage, lost with it; {self.note}"


class Lazarus:
    """Groups of peers with the same experts."""

    name = "lazarus"

    def __init__(self, setting: FleetSetting) -> None:
        if not setting.job.slots:
            raise CannotRunError(_NO_EXPERTS)
        self._setting, self._costs, self._job = setting, setting.costs, setting.job
        self._copies = max(1, round(setting.costs.expert_copies))
        self._whole = setting.rate(setting.one_f_one_b)
        self._clock = WorkClock(setting.free_checkpoints_every)
        self._live: set[Worker] = set()
        self._groups: list[frozenset[Worker]] = []
        self.note = (
            f"1F1B x live workers / all workers; every expert on {self._copies} workers or more; a change "
            f"pauses {self._costs.communicator:g} s (assumed, as ElasWave), and experts travel for nothing"
        )

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._live = set(grid(self._job) - down)
        self._place()
        return self._rate

    def react(self, change: Change) -> Reaction:
        before = self._rate
        self._clock.pass_to(change.at, before)
        if not self._clock.is_paused:
            self._place()
        self._live = (self._live - change.failed) | change.returned
        if before and any(not group & self._live for group in self._groups):
            return self._from_checkpoint(self._clock.back_to_checkpoint())
        if not before:
            return self._from_checkpoint(0.0)
        if not change.failed and not change.returned:
            return Reaction(before)
        redone = min(self._costs.undone / before, self._clock.since_pause) if change.failed else 0.0
        self._clock.pause(self._costs.communicator)
        why = f"experts placed on {plural(len(self._live), 'worker')}"
        return Reaction(self._rate, self._costs.communicator, redone, why)

    def _from_checkpoint(self, redone: float) -> Reaction:
        self._place()
        if not self._rate:
            return Reaction(0.0, 0.0, redone, "a stage has no worker")
        pause = self._setting.from_checkpoint
        self._clock.pause(pause)
        return Reaction(self._rate, pause, redone, "experts are lost: from a checkpoint")

    def _place(self) -> None:
        """Groups of so many live peers each; those left over join the last one."""
        self._groups = []
        for stage in range(self._job.stages):
            peers = sorted(worker for worker in self._live if worker[1] == stage)
            count = max(1, len(peers) // self._copies)
            for group in range(count):
                end = None if group == count - 1 else (group + 1) * self._copies
                self._groups.append(frozenset(peers[group * self._copies : end]))

    @property
    def _rate(self) -> float:
        stages = {stage for _, stage in self._live}
        return self._whole * len(self._live) / self._job.workers if len(stages) == self._job.stages else 0.0
