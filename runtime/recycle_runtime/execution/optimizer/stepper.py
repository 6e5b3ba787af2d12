"""The steps of one worker for one chunk: reduce, step, validate, settle.

    staggered    reduce(n) step(n) validate(n) | work of n+1 | settle(n) reduce(n+1) ...
    barrier      reduce(n) step(n)             | work of n+1 | reduce(n+1) ...

A staggered step is made before the norm of the whole model is known. `settle` looks at it before the next
step's gradients are summed: a step that should have been clipped or left out is undone and made again, and
the caller runs the next step again from its start. All workers see the same sums, so all decide alike and
nobody has to ask. After that the norm is waited for, for a while. Parameters are those of a run that always
waits.
"""

import inspect
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Any, cast

import torch

from recycle_runtime.execution.optimizer.by_layer import LayerOptimizers, LayerUndo
from recycle_runtime.execution.optimizer.expert_gradients import StartPeerSums
from recycle_runtime.execution.optimizer.gradients import FlatGradients, Tied
from recycle_runtime.execution.optimizer.norm import (
    NormSum,
    Progress,
    StartSum,
    StepOptions,
    StepRecord,
    Totals,
    Verdict,
)
from recycle_runtime.execution.optimizer.undo import (
    Undo,
    apply_changes,
    changes_since,
    copied_options,
    option_groups,
)
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.transport.interface import PeerSum, Pending

_SEES_ALL = "sets one rate from the gradients of the whole model, and every layer has an optimizer of its own"
_SHARES = "shares out its state over processes by itself, and a failed one would take its share along"
_REFUSED = {
    "Prodigy": _SEES_ALL,
    "DAdapt": _SEES_ALL,
    "SparseAdam": "wants sparse gradients, and gradients are summed over workers as dense tensors",
    "ZeroRedundancyOptimizer": _SHARES,
    "DistributedOptimizer": _SHARES,
}
"""Optimizers that would train something else than they do alone, by how their names begin."""


def check_optimizer(optimizer: torch.optim.Optimizer, trainable: Sequence[torch.Tensor]) -> None:
    """Refuse one that runs the model by itself, wants to see all layers, or trains what is not here."""
    kind = type(optimizer).__name__
    for known, why in _REFUSED.items():
        if kind.startswith(known):
            raise ProgramError(f"{kind} {why}", "use an optimizer such as AdamW")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ProgramError(
            f"{kind} runs the model inside its step, which a pipeline cannot do",
            "use an optimizer whose step() needs no closure, such as AdamW",
        )
    known = set(trainable)
    held = [parameter for group in option_groups(optimizer) for parameter in group["params"]]
    foreign = sum(parameter.requires_grad and parameter not in known for parameter in held)
    if foreign:
        raise ProgramError(
            f"the optimizer holds {foreign} trainable tensors that are not parameters of this stage",
            "optimizer(parameters) must train what it is given",
        )


def idle_optimizer() -> torch.optim.Optimizer:
    """For a chunk with nothing to train, which still takes part in every step."""
    return torch.optim.SGD([torch.zeros(0, requires_grad=True)], lr=0.0)


def _nobody(_: torch.Tensor) -> Pending | None:
    raise AssertionError("the norm is known")


class StepOrderError(RuntimeError):
    """The stepper was asked for something that cannot come next."""


class StepPhase(Enum):
    """Phase of a worker within a step; the value completes the sentence `the gradients are ...`."""

    ACCUMULATING = "being accumulated"
    REDUCED = "summed, and not used yet"
    STEPPED = "used by a step that is not validated yet"
    UNSETTLED = "being accumulated, and the last step is not settled yet"


class Stepper:
    """Owns the gradients of a chunk and drives its optimizer. None as optimizer: nothing to train here."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | LayerOptimizers | None,
        parameters: Iterable[torch.Tensor],
        options: StepOptions | None = None,
        *,
        tensor_parallel_rank: int = 0,
        undo: LayerUndo | None = None,
        tied: Tied | None = None,
        stacked: Collection[torch.Tensor] = (),
    ) -> None:
        """`undo` comes with the optimizers of several layers, and may know a step already; `stacked` are
        parameters that have rows of experts by slot."""
        self.options = options or StepOptions()
        self.gradients = FlatGradients(parameters, tied, stacked)
        self.optimizer = idle_optimizer() if optimizer is None else optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            # Those of layers have been looked at when the layers were made.
            check_optimizer(optimizer, self.gradients.parameters)
        self.undo = undo or Undo(cast(torch.optim.Optimizer, self.optimizer))
        if not self.options.keeps_undo:
            self.undo.forget("steps that wait for the norm are not undone")
        self.norm = NormSum()
        self.phase = StepPhase.ACCUMULATING
        self.progress = Progress(0, 0, 0, self.options.patience)
        self.record: StepRecord | None = None
        """Of the last settled step."""
        self.totals: Totals | None = None
        """Of the last settled step, for a worker that missed them."""
        self._rank = tensor_parallel_rank
        self._squares = torch.zeros(())
        """Of the chunk's gradients, where they are in shards: the sum over all its holders."""
        self._before = self.progress
        self._options_after: list[dict[str, Any]] = []
        self._has_used_sums = False
        """A step was made with the sums of the last reduction."""
        self._early: list[Pending | None] = []
        """Sums of the first buckets, under way before all gradients of the step are complete."""

    @property
    def is_optimistic(self) -> bool:
        """True if the next step is made without waiting for the norm."""
        return self.options.staggered and self.progress.calm >= self.options.patience

    @property
    def waits_for_norm(self) -> bool:
        """True if the next step is made when the norm of the whole model is known, and not before."""
        return self.options.validate and not self.is_optimistic

    @property
    def waits_with_sums(self) -> bool:
        """True if the next step is made once the norm is known: its gradients are summed."""
        return self.phase is StepPhase.REDUCED and self.waits_for_norm

    def go_forward(self, known: Totals) -> None:
        """Make the step that others have made, with what they know of it."""
        self.step(_nobody, known)

    @property
    def unsettled(self) -> Totals | None:
        """Share of this worker in the sums of its last step, while the verdict on the step is open."""
        is_open = self.phase in (StepPhase.STEPPED, StepPhase.UNSETTLED)
        return self.norm.own() if is_open else None

    def use(self, optimizer: LayerOptimizers, undo: LayerUndo) -> None:
        """Step with these from now on: other shards are owned here."""
        self.optimizer, self.undo = optimizer, undo
        if not self.options.keeps_undo:
            self.undo.forget("steps that wait for the norm are not undone")

    @property
    def will_stand(self) -> bool:
        """True if the last step stands as it was made; waits until that is known."""
        return self.phase is not StepPhase.UNSETTLED or self.options.accepts(self.norm.wait())

    def begin_sums(self, start_sums: StartPeerSums, complete: Sequence[Any]) -> None:
        """Before REDUCE: sum gradients of the first buckets over the live workers that hold the chunk.

        `complete` has a mark of device work for each of them, behind which its gradients are complete.
        """
        self._expect(StepPhase.ACCUMULATING, "sum")
        for bucket, mark in zip(self.gradients.buckets, complete, strict=False):
            if not bucket.is_in_place:
                break
            bucket.raise_flags()
            self._early.append(start_sums(bucket.sums, goes_on=bool(self._early), after=mark))

    def expect_sums(self) -> None:
        """Sums of the last step are not waited for any more: if one is cut off now, it is of this step."""
        self._has_used_sums = False

    def drop_sums(self) -> None:
        """Let go of those that are under way."""
        self._early = []

    def reduce(
        self,
        start_sum: StartSum,
        start_tied_sum: StartSum | None = None,
        start_sums: StartPeerSums | None = None,
    ) -> None:
        """REDUCE: sum gradients over the live workers that hold the chunk, and those of tied parameters over
        all that hold one of the tied chunks. Where optimizer state is in shards, `start_sums` leaves
        gradients with their owners, and the sum of their squares is added up over the holders here."""
        self._expect(StepPhase.ACCUMULATING, "reduce")
        self.expect_sums()
        self.gradients.gather()
        tied = self.gradients.tied_buffers
        assert not tied or start_tied_sum is not None, "nobody to sum tied gradients with"
        # First what more workers take part in: all of them begin with it.
        under_way = [start_tied_sum(buffer) for buffer in tied] if start_tied_sum is not None else []
        under_way += self._early
        for bucket in self.gradients.buckets[len(self._early) :]:
            if self.gradients.is_shared_out:
                assert start_sums is not None, "nobody to sum shards with"
                under_way.append(start_sums(bucket.sums, goes_on=len(under_way) > len(tied)))
            else:
                under_way += [start_sum(each.tensor) for each in bucket.sums]
        self._early = []
        for pending in under_way:
            if pending is not None:
                pending.wait()
        self.gradients.sum_experts(start_sums)
        self.gradients.look()
        if self.options.clip_value is not None:
            self.gradients.clamp(self.options.clip_value)
        if self.gradients.is_shared_out and start_sums is not None and self.options.validate:
            self._squares = self.gradients.sum_of_squares(self._rank)
            pending = start_sums([PeerSum(self._squares)], goes_on=True)
            if pending is not None:
                pending.wait()
        self.phase = StepPhase.REDUCED

    def start_norm(self, start_sum: StartSum) -> None:
        """Measure these gradients, and start the sum of the norm over all workers."""
        self._expect(StepPhase.REDUCED, "sum the norm")
        self._measure()
        self.norm.start(start_sum)

    def step(self, start_sum: StartSum, known: Totals | None = None) -> None:
        """OPTIMIZER: step at once, or sum the norm over all workers first and then step, clip or skip.

        If the sum fails, the gradients are still there: call again with another sum, or what others know.
        """
        self._expect(StepPhase.REDUCED, "step")
        waits = self.waits_for_norm
        if waits and known is None:
            self.start_norm(start_sum)
            known = self.norm.wait()
        elif self.options.validate and not waits:
            self._measure()
        self._before = self.progress
        self.progress = self._before._replace(steps=self._before.steps + 1)
        self._has_used_sums = True
        if waits and known is not None:
            self._make_properly(known, redone=False)
            self._settled(known)
            return
        if self.options.validate and self.options.clip_norm is not None:
            self.gradients.keep()
        self._make(1.0)
        self.gradients.zero()
        if not self.options.validate:
            self.record = StepRecord(self._before.steps, None, 1.0, redone=False)
        self.phase = StepPhase.STEPPED if self.options.validate else StepPhase.ACCUMULATING

    def validate(self, start_sum: StartSum) -> None:
        """VALIDATE: start the sum of the norm over all workers, and go on; again if the sum has failed."""
        if self.phase in (StepPhase.STEPPED, StepPhase.UNSETTLED):
            self.norm.start(start_sum)
            self.phase = StepPhase.UNSETTLED
        else:
            # The step has waited for the norm, or it is not wanted.
            self._expect(StepPhase.ACCUMULATING, "validate")

    def settle(self, known: Totals | None = None) -> Verdict:
        """Before the next REDUCE, and after the last step; `known` replaces a sum that failed."""
        if self.phase is StepPhase.STEPPED and known is None:
            raise StepOrderError(f"cannot settle: the gradients are {self.phase.value}")
        if self.phase not in (StepPhase.STEPPED, StepPhase.UNSETTLED):
            self._expect(StepPhase.ACCUMULATING, "settle")
            return Verdict.KEEP
        totals = self.norm.wait() if known is None else known
        stands = self.options.accepts(totals)
        if stands:
            self.record = StepRecord(self._before.steps, totals.norm, 1.0, redone=False)
        else:
            set_since = changes_since(self._options_after, self.optimizer)
            self.undo.undo()
            if totals.finite:
                self.gradients.bring_back()
            self.progress = self.progress._replace(redone=self.progress.redone + 1)
            self._make_properly(totals, redone=True)
            apply_changes(set_since, self.optimizer)
        self._settled(totals)
        return Verdict.KEEP if stands else Verdict.REDO

    def outlook(self) -> StepRecord | None:
        """Outcome that the last step will have once all workers have validated it; nothing is changed.

        None where the step was not made here, and its totals are not known.
        """
        steps = self.progress.steps
        if self.phase is not StepPhase.UNSETTLED and self.record is not None:
            return self.record
        totals = self.norm.wait() if self.phase is StepPhase.UNSETTLED else self.totals
        if totals is None:
            return None
        factor = self.options.factor(totals) if totals.finite else 0.0
        return StepRecord(steps - 1, totals.norm, factor, redone=False)

    def discard(self) -> None:
        """Throw away the gradients of the step under way, to run it again; the last step stays as it is."""
        if self.phase is StepPhase.REDUCED:
            self.phase = StepPhase.ACCUMULATING
        self.drop_sums()
        self.gradients.zero()

    def take_back(self) -> bool:
        """Undo a step that was made with sums which were cut off; False if it cannot be undone."""
        if self._has_used_sums:
            if not self.undo.is_possible:
                return False
            self.rollback()
        return True

    def rollback(self) -> None:
        """Go back to before the last step, whatever became of it, and throw away gradients; once per step."""
        self._has_used_sums = False
        self.drop_sums()
        self.undo.undo()
        self.progress = self._before
        self.record = self.totals = None
        self.norm.drop()
        self.phase = StepPhase.ACCUMULATING
        self.gradients.zero()

    def state_dict(self) -> dict[str, int]:
        """State that a joining worker needs beside parameters and optimizer state; of a settled step."""
        self._expect(StepPhase.ACCUMULATING, "save")
        return self.progress._asdict()

    def carry_on(self, before: "Stepper") -> None:
        """Stand where another stepper of this process stands, between two steps; gradients are dropped."""
        before._expect(StepPhase.ACCUMULATING, "hand over")
        self.progress, self._before = before.progress, before._before
        self.record, self.totals = before.record, before.totals

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there; parameters and optimizer state are loaded by the caller."""
        self.progress = self._before = Progress(**state)
        self._has_used_sums = False
        self.drop_sums()
        self.undo.forget("the state was loaded after the last step")
        self.record = self.totals = None
        self.norm.drop()
        self.phase = StepPhase.ACCUMULATING
        self.gradients.zero()

    def _measure(self) -> None:
        in_shards = self.gradients.is_shared_out
        self.norm.measure(self._squares if in_shards else self.gradients.sum_of_squares(self._rank))

    def _make_properly(self, totals: Totals, redone: bool) -> None:
        """The step as it should be, now that the norm is known."""
        factor = self.options.factor(totals) if totals.finite else 0.0
        if totals.finite:
            self._make(factor)
        else:
            self._leave_out()
        self.gradients.zero()
        self.record = StepRecord(self._before.steps, totals.norm, factor, redone)

    def _make(self, factor: float) -> None:
        if factor < 1.0:
            self.gradients.scale(factor)
        with self.gradients.shown():
            if self.options.keeps_undo:
                self.undo.save()
            self.optimizer.step()
            if self.options.keeps_undo and isinstance(self.undo, LayerUndo):
                self.undo.save_ahead()
        if self.options.staggered:
            # Looked at only if this step is undone by a late verdict.
            self._options_after = copied_options(self.optimizer)

    def _leave_out(self) -> None:
        if self.options.keeps_undo:
            with self.gradients.shown(nothing=True):
                self.undo.save()
        self.progress = self.progress._replace(skipped=self.progress.skipped + 1)

    def _settled(self, totals: Totals) -> None:
        calm = self.progress.calm + 1 if self.options.accepts(totals) else 0
        self.progress = self.progress._replace(calm=min(calm, self.options.patience))
        self.totals = totals
        self.norm.drop()
        self.phase = StepPhase.ACCUMULATING

    def _expect(self, phase: StepPhase, doing: str) -> None:
        if self.phase is not phase:
            raise StepOrderError(f"cannot {doing}: the gradients are {self.phase.value}")
