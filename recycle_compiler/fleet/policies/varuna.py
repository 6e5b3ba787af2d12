"""Varuna: checkpoints, and after every change a restart in the best shape for those who live.

A shape is a number of stages and a number of equal pipelines; workers beyond that stay idle. Saving a
checkpoint stops training, which lowers the rate at all times. What was done since the last one is redone
when a worker fails; before one who comes back is taken in, a checkpoint is made, so that nothing is.
"""

from functools import lru_cache
from typing import NamedTuple

from recycle_compiler.fleet.policies.bookkeeping import WorkClock
from recycle_compiler.fleet.policies.templates import pipeline_shapes
from recycle_compiler.fleet.policy import CannotRunError, Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting


class Shape(NamedTuple):
    """Arrangement of the live workers."""

    period: float
    """Ticks."""
    pipelines: int
    stages: int


class Varuna:
    """One run with checkpoints."""

    def __init__(self, setting: FleetSetting) -> None:
        self.name = "varuna"
        self._setting = setting
        _, self._templates = pipeline_shapes(setting)
        self._shape = lru_cache(None)(self._best_shape)
        self._rate = 0.0
        # Saves are part of the rate, so they are part of the time that counts as work.
        self._clock = WorkClock(setting.checkpoint_every + setting.checkpoint_save)
        self.saving = setting.saving
        self.note = f"as published, in the best shape; {setting.saves_text}; {setting.restart_text}"

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        if not self._templates:
            raise CannotRunError("no number of stages fits the memory of the workers")
        self._rate = self._rate_with(down)
        return self._rate

    def react(self, change: Change) -> Reaction:
        if not change.failed and not change.returned:
            return Reaction(self._rate)
        self._clock.pass_to(change.at, self._rate)
        pause = self._setting.costs.restart + self._setting.checkpoint_load
        redone = 0.0
        if change.failed:
            redone = self._clock.back_to_checkpoint()
        saved = 0.0
        if not change.failed and self._rate:
            self._clock.checkpoint()
            saved = self._setting.checkpoint_save
            pause += saved
        self._clock.pause(pause)
        shape = self._shape(self._live(change.down))
        self._rate = self._rate_with(change.down)
        how = "from a checkpoint" if change.failed else "restart"
        words = f"{how}, {shape.pipelines} x {shape.stages}" if shape else "too few workers for a pipeline"
        return Reaction(self._rate, pause, redone, words, saved)

    def _live(self, down: frozenset[Worker]) -> int:
        return self._setting.job.workers - len(down)

    def _rate_with(self, down: frozenset[Worker]) -> float:
        shape = self._shape(self._live(down))
        if shape is None:
            return 0.0
        return self._setting.rate(shape.period) * (1 - self.saving)

    def _best_shape(self, live: int) -> Shape | None:
        """The fastest; of equals, the one with fewest pipelines."""
        job = self._setting.job
        found: list[Shape] = []
        for stages, template in self._templates.items():
            pipelines = min(live // stages, job.pipelines * job.microbatches)
            if pipelines:
                each = -(-job.pipelines * job.microbatches // pipelines)
                found.append(Shape(template.period(each), pipelines, stages))
        return min(found, default=None)
