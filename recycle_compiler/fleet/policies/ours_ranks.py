"""Ours where the program can run with fewer tensor-parallel ranks: a lost GPU need not cost its worker.

Traces say which machine failed and not how much of it, so the share `one-gpu` of failures takes one GPU of
a worker, as with ntp; of several workers at one moment it takes all. Such a worker fails as any other. It
starts again with the largest number of ranks that divides the job's, half of them mostly, copies its state,
and is a slow worker from then on, which gets as many micro-batches as it has time for, or none. Once the
trace has its machine back it fails again and comes back whole, as in a job whose node is replaced. In a job
in layers it does not start again where another cut without it is faster.

Estimated: with a slow worker a stage is as fast as the best whole shares of its micro-batches let it be, and
the job's rate lies between those of plans without the worker and with a whole one in that proportion. What is
left of a worker is assumed to have room for the whole state, and to keep its full efficiency.
"""

import heapq
import random
from math import inf

from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.units import plural


class OursWithFewerRanks(Ours):
    """Ours, and workers that go on with some of their ranks."""

    name = "ours-ranks"

    def __init__(self, setting: FleetSetting) -> None:
        self._narrow: set[Worker] = set()
        """Machines that have lost a GPU and take part, or are about to."""
        self._starting: list[tuple[float, Worker]] = []
        """Times at which restarted processes will be up again."""
        tensor = setting.job.tensor
        self._left = max((ranks for ranks in range(1, tensor) if tensor % ranks == 0), default=0)
        super().__init__(setting)
        self.note += (
            f"; {100 * setting.costs.one_gpu:.3g} % of failures take one GPU, and the worker goes on with "
            f"{self._left} of {plural(tensor, 'rank')} (assumed), at {self._left}/{tensor} of its speed"
        )

    def react(self, change: Change) -> Reaction:
        # Those of the trace that go on with fewer ranks fail once more when they are whole again.
        healed = change.returned & self._narrow
        self._narrow -= change.failed | healed
        self._starting = [entry for entry in self._starting if entry[1] not in change.failed | healed]
        heapq.heapify(self._starting)
        if len(change.failed) == 1:
            for worker in change.failed - change.from_spares:
                if self._loses_one(change.at, worker):
                    self._narrow.add(worker)
                    heapq.heappush(self._starting, (change.at + self._costs.start_up, worker))
        there = healed & (self._serves.keys() | self._standby.keys())
        return super().react(change._replace(failed=change.failed | there))

    def due(self) -> float | None:
        moment, own = super().due(), self._starting[0][0] if self._starting else inf
        first = min(own, inf if moment is None else moment)
        return None if first == inf else first

    def act(self, at: float) -> Reaction:
        if not (self._starting and self._starting[0][0] <= at):
            return super().act(at)
        started: set[Worker] = set()
        while self._starting and self._starting[0][0] <= at:
            started.add(heapq.heappop(self._starting)[1])
        if self._recuts_do_more(started):
            self._narrow -= started
            return Reaction(self._rate, why=f"{self._left} ranks would add less than another cut")
        none: frozenset[Worker] = frozenset()
        reaction = super().react(Change(at, none, frozenset(started), none, 0))
        return reaction._replace(why=f"with {self._left} of {self._job.tensor} ranks: {reaction.why}")

    def _recuts_do_more(self, started: set[Worker]) -> bool:
        """True if other workers do better under another cut, without those that have lost ranks: there
        layers move to where there is room for them, and a slow worker stays where it is."""
        if len(self._cuts) == 1:
            return False
        live = len(self._serves) + len(self._standby) + len(self._benched)
        layouts = (each for cut in self._known_cuts(live) for each in cut.layouts())
        least = min((period for workers, period in layouts if sum(workers) <= live), default=inf)
        job, own = self._job, self._cuts[0]
        stage = min(started)[1]
        share = self._share(stage, 0, len(started))
        gone = tuple(len(started) if each == stage else 0 for each in range(job.stages))
        without = self._setting.rate(own.periods.exact(gone)) if len(started) < job.pipelines else 0.0
        whole = self._setting.rate(own.periods.healthy)
        return least < inf and self._setting.rate(least) >= without + share * (whole - without)

    def _loses_one(self, at: float, worker: Worker) -> bool:
        """True if this failure takes one GPU; the same at every run with the same seed, and with ntp."""
        chance = random.Random(f"{self._setting.seed} {at!r} {worker}").random()
        return self._left > 0 and chance < self._costs.one_gpu

    @property
    def _rate(self) -> float:
        whole = super()._rate
        narrow = [self._serves[machine] for machine in self._narrow if machine in self._serves]
        if not narrow or not whole:
            return whole
        job, counts = self._cut.job, self._counts
        without = tuple(gone + narrow.count(stage) for stage, gone in enumerate(counts))
        share = min(self._share(stage, counts[stage], narrow.count(stage)) for stage in set(narrow))
        if max(without) >= job.pipelines:
            # Nobody else has that stage.
            return whole * self._left / job.tensor
        least = min(whole, self._setting.rate(self._cut.periods.exact(without)))
        return least + share * (whole - least)

    def _share(self, stage: int, gone: int, narrow: int) -> float:
        """Of a whole worker: what each of the narrow ones of a stage adds to the others."""
        job, slower = self._cut.job, self._job.tensor // max(1, self._left)
        units, others = job.pipelines * job.microbatches, job.pipelines - gone - narrow
        if others <= 0:
            return 1 / slower
        peak = min(
            max(-(-(units - narrow * own) // others), own * slower) for own in range(units // narrow + 1)
        )
        return min(1.0, max(0.0, (units / peak - others) / narrow))
