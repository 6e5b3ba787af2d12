"""Bookkeeping of policies: who has the state of which stage in memory, and how long work has gone on."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from recycle_compiler.fleet.policy import Worker
from recycle_compiler.ir.job import JobSpec

LEAST_COPY_STEPS = 3
"""From one copy in the memory of nodes to the next: the runtime names the step of a copy two steps ahead."""


def grid(job: JobSpec) -> frozenset[Worker]:
    """All workers of a job."""
    return frozenset((pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages))


def own_stages_first(
    own: Mapping[Worker, int], others: Collection[Worker], wanted: Sequence[int]
) -> dict[Worker, int]:
    """A stage for every worker, so that each has as many as wanted; as many as can be stay on their own.

    Where more are there than wanted, those left over get none.
    """
    there = Counter(own.values())
    serves = dict(own)
    for stage, count in enumerate(wanted):
        if there[stage] > count:
            # As a rule no worker has to move, so they are not looked at one by one.
            members = sorted(machine for machine, served in own.items() if served == stage)
            for machine in members[count:]:
                del serves[machine]
    open_stages = (stage for stage, count in enumerate(wanted) for _ in range(count - there[stage]))
    rest = sorted({*own, *others} - serves.keys())
    return serves | dict(zip(rest, open_stages, strict=False))


class Holders:
    """Workers and the stages they have. Who gets another one has its old state until the copies are done."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._serves: dict[Worker, int] = {}
        self._before: dict[Worker, int] = {}
        """Stage that each worker had in memory when the last copies began."""

    def fail(self, failed: Collection[Worker], is_copying: bool) -> None:
        """These are gone; copies that are under way are in vain."""
        self._serves = dict(self._before if is_copying else self._serves)
        for worker in failed:
            self._serves.pop(worker, None)
        self._before = dict(self._serves)

    def forgotten(self, next_too: bool = False) -> bool:
        """True if no worker has some stage; with `next_too`, all have a copy of the next one too."""
        held = set(self._serves.values())
        if next_too:
            held |= {(stage + 1) % self._stages for stage in held}
        return len(held) < self._stages

    @property
    def workers(self) -> frozenset[Worker]:
        """Workers that have a stage."""
        return frozenset(self._serves)

    def counts(self) -> Counter[int]:
        """Number of workers that have each stage."""
        return Counter(self._serves.values())

    def place(self, live: Collection[Worker], wanted: Sequence[int]) -> list[int]:
        """Every worker gets a stage; the stages that have to be copied, one entry a copy."""
        placed = own_stages_first(self._serves, live, wanted)
        copied = [stage for _, stage in sorted(placed.items() - self._serves.items())]
        self._before, self._serves = self._serves, placed
        return copied

    def join(self, worker: Worker, stage: int) -> None:
        """A worker has got the state of a stage."""
        self._serves[worker] = stage
        self._before = dict(self._serves)

    def start(self, live: Collection[Worker], wanted: Sequence[int]) -> None:
        """Every worker reads a checkpoint, and so no state in memory counts."""
        self._serves = own_stages_first({worker: worker[1] for worker in live}, (), wanted)
        self._before = dict(self._serves)

    def clear(self) -> None:
        """The job stands still, and must start from a checkpoint."""
        self._serves, self._before = {}, {}


class WorkClock:
    """Seconds of work. What a return to a checkpoint costs is an expected value: half a cycle.

    Where in a cycle a failure falls is chance, and should not hang on whether a trace's times and those of
    checkpoints have a common divisor.
    """

    def __init__(self, checkpoint_cycle: float) -> None:
        self._cycle = checkpoint_cycle
        """From one checkpoint to the next, with the save where the policy's rate includes it."""
        self.now = 0.0
        self.worked = 0.0
        """Since the start, or since a checkpoint that was taken or gone back to."""
        self.busy_until = 0.0
        """Time at which the last pause ends."""

    def pass_to(self, at: float, rate: float) -> None:
        """Time has gone on, at this rate once the pause was over."""
        if rate > 0:
            self.worked += max(0.0, at - max(self.now, self.busy_until))
        self.now = at

    def pause(self, seconds: float) -> None:
        """From now on; a longer one that is under way stays."""
        self.busy_until = max(self.busy_until, self.now + seconds)

    @property
    def is_paused(self) -> bool:
        return self.now < self.busy_until

    @property
    def since_pause(self) -> float:
        """Seconds of work since the last pause or checkpoint, whichever is later; 0 during a pause."""
        return min(self.worked, max(0.0, self.now - self.busy_until))

    def back_to_checkpoint(self) -> float:
        """Work since the last checkpoint, on average, which has to be redone."""
        redone = self.since_checkpoint()
        self.worked = 0.0
        return redone

    def checkpoint(self) -> None:
        """One is taken now, besides the regular ones."""
        self.worked = 0.0

    def since_checkpoint(self) -> float:
        """Work since the last one, on average."""
        return min(self.worked, self._cycle / 2)


class CopiesInMemory:
    """The newest copy of every stage in the memory of two nodes, as `recycle-run --neighbour-copies` has it.

    The first worker of a stage copies it on its own node and sends it to one of the next stage, where
    possible in another pipeline and so on another node. In each generation the first copy is complete when it
    has travelled, and those after it have the same holders. As with checkpoints, a failure is taken to fall
    into the middle of a cycle.
    """

    def __init__(self, steps: int, travel: float) -> None:
        """A copy every so many steps (0: none), which takes so many seconds to the other node."""
        self._steps, self._travel = max(steps, LEAST_COPY_STEPS) if steps else 0, travel
        self._holders: list[set[Worker]] = []
        """Of each stage, in the newest copy that is complete."""
        self._making: list[set[Worker]] = []
        """The same of this generation."""
        self._step = self._taken_at = 0.0
        """Seconds of a step, and when the first copy of this generation is taken."""
        self._copied_work = 0.0
        """Work by the clock when the newest complete copy was taken."""

    def generation(self, clock: WorkClock, step: float, serves: Mapping[Worker, int]) -> None:
        """A new one has begun: a copy of the last one that was not complete is given up."""
        if not self._steps:
            return
        self._pass(clock)
        members: dict[int, list[Worker]] = {}
        for worker, stage in sorted(serves.items()):
            members.setdefault(stage, []).append(worker)
        own = {stage: workers[0] for stage, workers in members.items()}
        ring = [*sorted(own)[1:], min(own, default=0)]
        self._making = [
            {own[stage], next((one for one in members[after] if one[0] != own[stage][0]), own[after])}
            for stage, after in zip(sorted(own), ring, strict=True)
        ]
        self._step, self._taken_at = step, max(clock.now, clock.busy_until) + LEAST_COPY_STEPS * step

    def failed(self, clock: WorkClock, workers: Collection[Worker]) -> None:
        """Copies in the memory of these are gone."""
        if not self._steps:
            return
        self._pass(clock)
        for holders in (*self._holders, *self._making):
            holders.difference_update(workers)

    def age(self, clock: WorkClock) -> float | None:
        """Seconds of work since the newest copy; None where a stage of it is lost or a checkpoint newer."""
        if not self._holders or not all(self._holders):
            return None
        age = clock.worked - self._copied_work
        return age if age <= clock.since_checkpoint() else None

    def go_back(self, clock: WorkClock, age: float | None) -> None:
        """The job starts from the copy of this age, or from a checkpoint."""
        if age is None:
            self._holders = []
        else:
            clock.worked = self._copied_work

    def _pass(self, clock: WorkClock) -> None:
        if self._making and self._taken_at + self._travel <= clock.now:
            self._holders = self._making
            cycle = self._travel + self._steps * self._step / 2
            self._copied_work = clock.worked - min(clock.now - self._taken_at, cycle)
