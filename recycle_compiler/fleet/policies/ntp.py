"""Nonuniform tensor parallelism (NTP, arXiv 2504.06095): a worker that has lost a GPU goes on with the rest.

As published, a data-parallel replica with failed GPUs trains at a smaller tensor-parallel width and
contributes in proportion to the GPUs that it has left. A pipeline is as fast as its slowest worker, so
workers with a GPU less are packed into as few pipelines as possible, and whole machines that are left over
take their places.

Assumed: traces say which machine failed and not how much of it, so a share of the failures, `one-gpu`, takes
one GPU of a worker, chosen at random by seed, time and worker; all others take the whole worker, and so do
those of several workers at one moment, whose cause is larger than a GPU. What is left fits the memory of the
remaining GPUs, power is not raised, and the GPUs left keep their full efficiency. The machine is repaired
when the trace says so. Groups are formed again in a restart inside the processes, `swap` seconds, with lost
shards from peers: the paper's abstract gives no time. Everything else is as with nvrx. What the runtime of
recyclec does is `ours-ranks`.
"""

import random

from recycle_compiler.fleet.policies.restart import InProcessRestart
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting


class NonuniformTensor(InProcessRestart):
    """Whole pipelines, some of them with a GPU less for some workers."""

    name = "ntp"

    def __init__(self, setting: FleetSetting) -> None:
        super().__init__(setting)
        self._reduced: frozenset[Worker] = frozenset()
        """Workers with a GPU less, which the trace has as down."""
        self._seen = self._taken = (setting.job.workers, 0)
        """Workers that can train, and how many of them are reduced: now, and when pipelines were formed."""
        self.note = (
            f"1F1B on whole pipelines; {100 * setting.costs.one_gpu:.3g} % of failures take one GPU, and its "
            f"pipeline goes on with {setting.job.tensor - 1} of {setting.job.tensor} (assumed); forming "
            f"groups takes {setting.costs.swap:g} s (assumed, as nvrx)"
        )

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._seen = (self._job.workers - len(down), 0)
        return super().begin(down, spare)

    def react(self, change: Change) -> Reaction:
        is_one = len(change.failed) == 1
        lost = {worker for worker in change.failed if is_one and self._loses_one(change.at, worker)}
        self._reduced = (self._reduced - change.failed | lost) & change.down
        down = change.down - self._reduced
        self._seen = (self._job.workers - len(down), len(self._reduced))
        return super().react(change._replace(down=down))

    def _loses_one(self, at: float, worker: Worker) -> bool:
        """True if this failure takes one GPU; the same at every run with the same seed."""
        chance = random.Random(f"{self._setting.seed} {at!r} {worker}").random()
        return self._job.tensor > 1 and chance < self._costs.one_gpu

    def _take(self, down: frozenset[Worker]) -> None:
        super()._take(down)
        self._taken = self._seen

    @property
    def _rate(self) -> float:
        return self._rate_with(*self._taken)

    def _rate_of(self, pipelines: int) -> float:
        return self._rate_with(*self._seen)

    def _rate_with(self, live: int, reduced: int) -> float:
        """Reduced workers in as few pipelines as possible, or in none where that is faster."""
        job = self._job
        pipelines = min(job.pipelines, live // job.stages)
        needed = max(0, reduced - (live - pipelines * job.stages))
        slower = -(-needed // job.stages)
        whole = min(job.pipelines, (live - reduced) // job.stages)
        each = self._setting.rate(self._setting.one_f_one_b) / job.pipelines
        return each * max(pipelines - slower / job.tensor, whole)
