"""Bamboo: every worker also holds its successor's layers and runs their forward, so that it can take over.

- Every micro-batch takes a worker its successor's forward longer. Bubbles hide none of it: those of 1F1B lie
  before a worker's first forward and behind its last backward, where there is no micro-batch to run twice.
  Bamboo was published at 0.71 of fault-free 1F1B with hardly a failure, and a forward is a third of a
  micro-batch's work, which leaves 0.75; so all of it must have been paid for. Only where the successor's
  stage or another is slower, a worker catches up while it waits for that.
- The gradients of the copy are reduced and its weights stepped as well, so that it stays like the original.
- The successor's weights and optimizer state must fit as well, with one activation of it in the making.
- A failed worker's predecessor takes its stage over at once. It ran both forwards already and now runs both
  backwards, and all wait for it; so where full pipelines of the live workers are faster, they are formed at a
  global rendezvous, and workers that are left over stand by for the next failure. The same happens where two
  neighbours fail, so that no worker of the pipeline holds a stage any more.
- A stage is forgotten where all its workers and all their predecessors are gone; then the job goes on from a
  checkpoint. Checkpoints cost nothing.
"""

from dataclasses import replace
from functools import lru_cache

from recycle_compiler.fleet.policies.bookkeeping import Holders, WorkClock, grid
from recycle_compiler.fleet.policy import CannotRunError, Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting, on_pipelines
from recycle_compiler.frontend.capacity import spell_amount
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.state import with_whole_state, without_undo
from recycle_compiler.ir.units import percent, plural
from recycle_compiler.planner.baselines import one_f_one_b_period


class Bamboo:
    """One run with a redundant successor on every worker."""

    def __init__(self, setting: FleetSetting) -> None:
        self.name = "bamboo"
        self._setting = setting
        self._grid = grid(setting.job)
        self._period = lru_cache(None)(self._period_of)
        self._grouped = 0
        """Pipelines that run."""
        self._taken: tuple[int, ...] = ()
        """Stages that the predecessor of a failed worker runs besides its own, each in another pipeline."""
        self._standing_by = 0
        self._holders = Holders(setting.job.stages)
        self._clock = WorkClock(setting.free_checkpoints_every)
        slowed = self._period(setting.job.pipelines) / setting.one_f_one_b - 1
        known = "" if any(setting.job.parameters) else "; whether it fits the memory is not known"
        self.note = (
            f"redundant forwards take {percent(slowed)} more time than 1F1B{known}; a rendezvous takes "
            f"{setting.costs.rendezvous:g} s ({setting.costs.origin('rendezvous')})"
        )
        if setting.job.stages == 1:
            self.note = "1F1B: one stage has no successor to run redundantly"

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        self._check_memory()
        self._rendezvous(down)
        self._start(down)
        return self._rate()

    def react(self, change: Change) -> Reaction:
        costs, before = self._setting.costs, self._rate()
        self._clock.pass_to(change.at, before)
        if not change.failed and not change.returned:
            return Reaction(before)
        self._holders.fail(change.failed, self._clock.is_paused)
        if self._holders.forgotten(next_too=True):
            return self._from_checkpoint(change.down)
        if not change.returned and self._take_over(change.failed):
            self._place(change.down)
            return self._answer(costs.detection + costs.regroup, 0.0, "taken over")
        self._rendezvous(change.down)
        redone = min(0.5 / before, self._clock.since_pause) if before and change.failed else 0.0
        if self._grouped:
            self._place(change.down)
        return self._answer(costs.rendezvous, redone, f"rendezvous, {self._words}")

    def _from_checkpoint(self, down: frozenset[Worker]) -> Reaction:
        """No worker has the state of some stage."""
        redone = self._clock.back_to_checkpoint()
        self._rendezvous(down)
        self._start(down)
        if not self._grouped:
            return Reaction(0.0, 0.0, redone, f"no worker has the state of a stage, {self._words}")
        pause = self._setting.from_checkpoint
        return self._answer(
            pause, redone, f"no worker has the state of a stage: from a checkpoint, {self._words}"
        )

    def _answer(self, pause: float, redone: float, why: str) -> Reaction:
        self._clock.pause(pause)
        return Reaction(self._rate(), pause, redone, why)

    @property
    def _words(self) -> str:
        return plural(self._grouped, "pipeline") if self._grouped else "too few workers for a pipeline"

    def _start(self, down: frozenset[Worker]) -> None:
        """Without a state to keep."""
        if self._grouped:
            self._holders.start(self._grid - down, [self._grouped] * self._setting.job.stages)
        else:
            self._holders.clear()

    def _place(self, down: frozenset[Worker]) -> None:
        self._holders.place(self._grid - down, [self._grouped] * self._setting.job.stages)

    def _take_over(self, failed: frozenset[Worker]) -> bool:
        """True if the others can go on without a rendezvous, and do at least as well without it."""
        job = self._setting.job
        successors = {(pipeline, (stage + 1) % job.stages) for pipeline, stage in failed}
        if job.stages > 1 and successors & failed:
            return False
        if len(failed) <= self._standing_by:
            self._standing_by -= len(failed)
            return True
        live = self._grouped * job.stages + self._standing_by - len(self._taken) - len(failed)
        stages = sorted(stage for _, stage in failed)[self._standing_by :]
        taken = (*self._taken, *stages)
        if len(taken) > self._grouped:
            return False
        if self._stretched(self._grouped, taken) > self._period(live // job.stages):
            return False
        self._standing_by, self._taken = 0, taken
        return True

    def _rendezvous(self, down: frozenset[Worker]) -> None:
        job = self._setting.job
        live = job.workers - len(down)
        self._grouped = min(job.pipelines, live // job.stages)
        self._standing_by = live - self._grouped * job.stages
        self._taken = ()

    def _rate(self) -> float:
        if not self._grouped:
            return 0.0
        return self._setting.rate(self._stretched(self._grouped, self._taken))

    def _period_of(self, pipelines: int) -> float:
        """Ticks of an iteration with this many full pipelines."""
        if not pipelines:
            return float("inf")
        return one_f_one_b_period(redundant(on_pipelines(self._setting.job, pipelines)))

    def _stretched(self, pipelines: int, taken: tuple[int, ...]) -> float:
        """Ticks of an iteration when these stages are run by the workers before them."""
        job = on_pipelines(self._setting.job, pipelines)
        twice = redundant(job)
        both = max((_work(job, stage - 1) + _work(job, stage) for stage in taken), default=0)
        slowest = max(_work(twice, stage) for stage in range(job.stages))
        return self._period(pipelines) + max(0, both - slowest) * (job.microbatches - 1)

    def _check_memory(self) -> None:
        if words := out_of_memory(self._setting.job):
            raise CannotRunError(words)


def out_of_memory(job: JobSpec) -> str:
    """Message about the first stage without room for its successor's layers; empty if no such is known.

    Copies are of the whole state, and so is what is copied.
    """
    job = without_undo(with_whole_state(job))
    for stage, room in enumerate(job.capacity):
        following = (stage + 1) % job.stages
        if room is None or following == stage or not job.parameters[following]:
            continue
        held = min(job.microbatches, job.stages - stage) * job.activation[stage]
        needed = held + job.parameters[following] + job.activation[following]
        if needed > room:
            return (
                f"out of memory: with the layers of stage {following}, a worker of stage {stage} needs "
                f"{spell_amount(needed, job.memory_unit)}, and has {spell_amount(room, job.memory_unit)}"
            )
    return ""


def redundant(job: JobSpec) -> JobSpec:
    """The job with what the copies of the successors take."""
    if job.stages == 1:
        return job
    return replace(
        job,
        forward=_with_next(job.forward),
        reduce=_with_next(job.reduce),
        optimizer=_with_next(job.optimizer),
    )


def _with_next(row: tuple[int, ...]) -> tuple[int, ...]:
    """Each stage's value and its successor's; the last one's successor is the first."""
    return tuple(value + row[(stage + 1) % len(row)] for stage, value in enumerate(row))


def _work(job: JobSpec, stage: int) -> int:
    """Ticks of one micro-batch on a stage."""
    return job.forward[stage] + job.backward_input[stage] + job.backward_weight[stage]
