"""The steps of one worker: their order, clipping, skipping, waiting, going back."""

import math
from collections.abc import Callable

import pytest
import torch

from recycle_runtime.execution.optimizer import (
    LayerOptimizer,
    LayerOptimizers,
    LayerUndo,
    Moving,
    StepOptions,
    StepOrderError,
    Stepper,
    StepPhase,
    Totals,
    UndoError,
    Verdict,
)
from recycle_runtime.program.errors import ProgramError
from tests.runtime.execution.optimizer.fakes import alone, backward, numbers
from tests.runtime.execution.optimizer.optimizers import OPTIMIZERS, values_of


def one_weight(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([value, value], dtype=torch.float64))


def plain_stepper(weight: torch.nn.Parameter, options: StepOptions | None = None) -> Stepper:
    return Stepper(torch.optim.SGD([weight], lr=1.0), [weight], options)


def accumulate(weight: torch.Tensor, slope: float) -> None:
    backward((weight * slope).sum())


def whole_step(stepper: Stepper, weight: torch.Tensor, slope: float) -> None:
    accumulate(weight, slope)
    stepper.reduce(alone)
    stepper.step(alone)
    stepper.validate(alone)


def fail(_: torch.Tensor) -> None:
    raise ConnectionError("a peer is gone")


def outside(others: Totals) -> Callable[[torch.Tensor], None]:
    """A sum with workers that have these totals."""

    def start(tensor: torch.Tensor) -> None:
        tensor += torch.tensor(others, dtype=tensor.dtype)

    return start


def test_a_step_that_stands() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight)
    whole_step(stepper, weight, 0.25)
    assert numbers(weight) == [0.75, 0.75]
    assert stepper.phase is StepPhase.UNSETTLED
    assert stepper.settle() is Verdict.KEEP
    assert stepper.record is not None
    assert stepper.record._asdict() == {
        "step": 0,
        "norm": math.sqrt(2 * 0.0625),
        "factor": 1.0,
        "redone": False,
    }


def test_a_step_is_clipped_late() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(clip_norm=1.0))
    whole_step(stepper, weight, 3.0)
    assert numbers(weight) == [-2.0, -2.0]
    accumulate(weight, 100.0)
    assert stepper.settle() is Verdict.REDO
    factor = 1.0 / (math.sqrt(18) + 1e-6)
    assert numbers(weight) == [1 - 3.0 * factor] * 2
    assert weight.grad is not None and numbers(weight.grad) == [0.0, 0.0]
    assert stepper.progress.redone == 1 and stepper.progress.skipped == 0
    assert stepper.settle() is Verdict.KEEP


@pytest.mark.parametrize("staggered", [True, False])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_step_is_left_out(staggered: bool, clip_norm: float | None, bad: float) -> None:
    weight = one_weight()
    stepper = Stepper(
        torch.optim.AdamW([weight], lr=0.1), [weight], StepOptions(clip_norm=clip_norm, staggered=staggered)
    )
    before = values_of(stepper.optimizer)
    whole_step(stepper, weight, bad)
    accumulate(weight, 1.0)
    assert stepper.settle() is (Verdict.REDO if staggered else Verdict.KEEP)
    assert values_of(stepper.optimizer) == before
    assert stepper.progress.skipped == 1 and stepper.progress.steps == 1
    assert (
        stepper.record is not None and stepper.record.factor == 0.0 and math.isnan(stepper.record.norm or 0.0)
    )


@pytest.mark.parametrize("staggered", [True, False])
@pytest.mark.parametrize("slope", [0.25, 3.0, math.nan])
def test_the_outlook_of_a_step_is_what_becomes_of_it_and_changes_nothing(
    slope: float, staggered: bool
) -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(clip_norm=1.0, staggered=staggered))
    assert stepper.outlook() is None
    whole_step(stepper, weight, slope)
    before = (stepper.phase, numbers(weight), stepper.progress)
    outlook = stepper.outlook()
    assert str((stepper.phase, numbers(weight), stepper.progress)) == str(before)
    stepper.settle()
    assert stepper.record is not None and outlook is not None
    assert str(outlook[:3]) == str(stepper.record[:3])
    assert stepper.outlook() == stepper.record


def test_other_workers_decide_too() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(clip_norm=10.0))
    accumulate(weight, 1.0)
    stepper.reduce(alone)
    stepper.step(alone)
    stepper.validate(outside(Totals(10.0**4 - 2.0, 0.0)))
    assert stepper.settle() is Verdict.REDO
    assert numbers(weight) == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize("slope", [0.5, math.nextafter(0.5, 0), 0.5 - 3e-7, 0.5 - 6e-7, 0.49])
def test_the_border_is_that_of_torch(slope: float) -> None:
    weight, reference = one_weight(), one_weight()
    limit = math.sqrt(0.5)
    for staggered in (True, False):
        with torch.no_grad():
            weight.fill_(1.0)
            reference.fill_(1.0)
        stepper = plain_stepper(weight, StepOptions(clip_norm=limit, staggered=staggered))
        whole_step(stepper, weight, slope)
        stepper.settle()
        reference.grad = None
        accumulate(reference, slope)
        assert reference.grad is not None
        torch.nn.utils.clip_grad_norm_([reference], limit)
        with torch.no_grad():
            reference.sub_(reference.grad)
        assert numbers(weight) == numbers(reference)


def test_after_a_redo_the_norm_is_waited_for() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(clip_norm=1.0, patience=2))
    whole_step(stepper, weight, 5.0)
    assert stepper.settle() is Verdict.REDO
    seen: list[tuple[bool, int]] = []
    for slope in (5.0, 0.1, 0.1, 0.1, 0.1):
        seen.append((stepper.is_optimistic, stepper.progress.calm))
        whole_step(stepper, weight, slope)
        assert stepper.settle() is Verdict.KEEP
    assert seen == [(False, 0), (False, 0), (False, 1), (True, 2), (True, 2)]
    assert stepper.progress.redone == 1


def test_a_wait_that_fails_can_be_repeated() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(clip_norm=1.0, staggered=False))
    accumulate(weight, 3.0)
    stepper.reduce(alone)
    with pytest.raises(ConnectionError):
        stepper.step(fail)
    assert stepper.phase is StepPhase.REDUCED and numbers(weight) == [1.0, 1.0]
    stepper.step(fail, known=Totals(squares=3600.0, not_finite=0.0))
    assert numbers(weight) == [1 - 3.0 * (1.0 / (60 + 1e-6))] * 2


def test_a_validation_that_fails_can_be_repeated() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(clip_norm=1.0))
    accumulate(weight, 3.0)
    stepper.reduce(alone)
    stepper.step(alone)
    with pytest.raises(ConnectionError):
        stepper.validate(fail)
    stepper.norm.first_peer = False
    stepper.validate(outside(Totals(18.0, 0.0)))
    accumulate(weight, 1.0)
    assert stepper.settle() is Verdict.REDO
    assert stepper.totals == Totals(18.0, 0.0)


@pytest.mark.parametrize("validated", [True, False])
def test_totals_can_be_told(validated: bool) -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(clip_norm=1.0))
    accumulate(weight, 0.1)
    stepper.reduce(alone)
    stepper.step(alone)
    if validated:
        stepper.validate(alone)
    assert stepper.settle(known=Totals(0.0, 1.0)) is Verdict.REDO
    assert numbers(weight) == [1.0, 1.0] and stepper.progress.skipped == 1


def test_nothing_is_looked_at_when_validation_is_off() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(validate=False, recoverable=False))
    accumulate(weight, math.nan)
    stepper.reduce(alone)
    stepper.step(fail)
    stepper.validate(fail)
    assert stepper.settle() is Verdict.KEEP
    assert all(math.isnan(value) for value in numbers(weight))
    assert stepper.undo.bytes_held == 0
    with pytest.raises(UndoError, match="not undone"):
        stepper.rollback()


def test_gradients_are_kept_only_for_clipping() -> None:
    for options, has_copy in (
        (StepOptions(), False),
        (StepOptions(clip_norm=1.0), True),
        (StepOptions(clip_norm=1.0, staggered=False), False),
    ):
        weight = one_weight()
        stepper = plain_stepper(weight, options)
        size = stepper.gradients.bytes_held
        whole_step(stepper, weight, 0.1)
        assert (stepper.gradients.bytes_held > size) is has_copy


def test_the_order_is_enforced() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight)
    with pytest.raises(StepOrderError, match="cannot step: the gradients are being accumulated"):
        stepper.step(alone)
    stepper.reduce(alone)
    for action in (stepper.reduce, stepper.validate):
        with pytest.raises(StepOrderError, match="summed, and not used yet"):
            action(alone)
    with pytest.raises(StepOrderError, match="cannot settle"):
        stepper.settle()
    stepper.step(alone)
    with pytest.raises(StepOrderError, match="not validated yet"):
        stepper.settle()
    stepper.validate(alone)
    with pytest.raises(StepOrderError, match=r"cannot reduce: .* the last step is not settled yet"):
        stepper.reduce(alone)
    with pytest.raises(StepOrderError, match="cannot save"):
        stepper.state_dict()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("slope", [0.1, 50.0, math.nan])
@pytest.mark.parametrize("patience", [0, 100])
@pytest.mark.parametrize("is_settled", [True, False])
def test_rollback(name: str, slope: float, patience: int, is_settled: bool) -> None:
    weight = one_weight()
    optimizer = OPTIMIZERS[name]([weight])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    options = StepOptions(clip_norm=1.0, patience=patience)
    layer = LayerOptimizer(optimizer, Moving(torch.nn.Module(), scheduler))
    stepper = Stepper(LayerOptimizers([layer]), [weight], options, undo=LayerUndo([layer]))
    for earlier in (0.1, 7.0, 0.1):
        whole_step(stepper, weight, earlier)
        stepper.settle()
    before, progress, epoch = values_of(optimizer), stepper.progress, scheduler.last_epoch
    assert epoch == 3
    whole_step(stepper, weight, slope)
    if is_settled:
        stepper.settle()
    accumulate(weight, 1.0)
    stepper.rollback()
    assert values_of(optimizer) == before
    assert (stepper.progress, scheduler.last_epoch) == (progress, epoch)
    assert weight.grad is not None and numbers(weight.grad) == [0.0, 0.0]
    with pytest.raises(UndoError, match="undone already"):
        stepper.rollback()


def test_discard_throws_away_gradients_only() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight)
    accumulate(weight, 5.0)
    with pytest.raises(ConnectionError):
        stepper.reduce(fail)
    stepper.discard()
    whole_step(stepper, weight, 0.25)
    accumulate(weight, 5.0)
    stepper.discard()
    assert stepper.phase is StepPhase.UNSETTLED
    assert stepper.settle() is Verdict.KEEP
    accumulate(weight, 5.0)
    stepper.reduce(alone)
    stepper.discard()
    whole_step(stepper, weight, 0.25)
    assert numbers(weight) == [0.5, 0.5]


def test_progress_is_carried_to_a_worker_that_joins() -> None:
    weight = one_weight()
    stepper = plain_stepper(weight, StepOptions(clip_norm=1.0, patience=3))
    whole_step(stepper, weight, 50.0)
    stepper.settle()
    joining = plain_stepper(one_weight(), stepper.options)
    joining.load_state_dict(stepper.state_dict())
    assert joining.progress == stepper.progress
    assert not joining.is_optimistic
    with pytest.raises(UndoError, match="loaded after the last step"):
        joining.rollback()


def test_a_stage_with_nothing_to_train_takes_part() -> None:
    frozen = one_weight().requires_grad_(False)
    stepper = Stepper(None, [frozen], StepOptions(clip_norm=1.0))
    stepper.reduce(alone)
    stepper.step(alone)
    stepper.validate(outside(Totals(100.0, 0.0)))
    assert stepper.settle() is Verdict.REDO
    stepper.rollback()


def test_optimizers_that_run_the_model_are_refused() -> None:
    weight = one_weight()
    with pytest.raises(ProgramError, match="SparseAdam wants sparse gradients"):
        Stepper(torch.optim.SparseAdam([weight]), [weight])
    with pytest.raises(ProgramError, match="LBFGS runs the model inside its step") as caught:
        Stepper(torch.optim.LBFGS([weight]), [weight])
    assert "AdamW" in caught.value.hint


def test_optimizers_of_other_parameters_are_refused() -> None:
    weight, stranger = one_weight(), one_weight()
    with pytest.raises(ProgramError, match="holds 1 trainable tensors that are not parameters of this stage"):
        Stepper(torch.optim.SGD([weight, stranger], lr=1.0), [weight])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: StepOptions(clip_norm=0.0), "clip_norm must be a positive number, got 0.0"),
        (lambda: StepOptions(clip_norm=math.nan), "got nan"),
        (lambda: StepOptions(clip_norm=1.0, validate=False), "clipping needs the norm"),
        (lambda: StepOptions(patience=-1), "patience must be at least 0, got -1"),
    ],
)
def test_options_are_checked(wrong: Callable[[], StepOptions], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()
