"""The same on a GPU, and never waiting for it where it need not."""

import math

import pytest
import torch

from recycle_runtime.execution.optimizer import FlatGradients, StepOptions, Stepper, Verdict
from tests.runtime.execution.optimizer.fakes import alone, backward
from tests.runtime.execution.optimizer.optimizers import MakeOptimizer, values_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, fused=True),
    "adamw-capturable": lambda parameters: torch.optim.AdamW(
        parameters, lr=torch.tensor(0.05, device="cuda"), capturable=True
    ),
    "sgd-nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.05),
}
SLOPES = (0.1, 50.0, 0.1, math.nan, 0.1, 0.1, 50.0, 0.1)


def train(make: MakeOptimizer, options: StepOptions) -> Stepper:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(n, generator=generator).cuda()) for n in (5000, 7, 33)]
    stepper = Stepper(make(weights), weights, options)
    for slope in SLOPES:
        accumulate(weights, slope)
        if stepper.settle() is Verdict.REDO:
            accumulate(weights, slope)
        stepper.reduce(alone)
        stepper.step(alone)
        stepper.validate(alone)
    stepper.settle()
    return stepper


def accumulate(weights: list[torch.nn.Parameter], slope: float) -> None:
    backward(torch.stack([(weight.square() * slope).sum() for weight in weights]).sum())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip_norm", [None, 20.0])
def test_stagger_equals_barrier(name: str, clip_norm: float | None) -> None:
    early = train(OPTIMIZERS[name], StepOptions(clip_norm=clip_norm, patience=1))
    late = train(OPTIMIZERS[name], StepOptions(clip_norm=clip_norm, staggered=False))
    assert values_of(early.optimizer) == values_of(late.optimizer)
    assert early.progress.redone > 0 and early.progress.skipped == late.progress.skipped == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_early_step_does_not_wait_for_the_device(name: str) -> None:
    weights = [torch.nn.Parameter(torch.ones(5000, device="cuda")) for _ in range(3)]
    stepper = Stepper(OPTIMIZERS[name](weights), weights, StepOptions(clip_norm=1e6))
    for _ in range(3):
        accumulate(weights, 0.1)
        torch.cuda.set_sync_debug_mode("error")
        try:
            stepper.reduce(alone)
            stepper.step(alone)
            stepper.validate(alone)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert stepper.settle() is Verdict.KEEP


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_long_sums_keep_their_digits(dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.ones(3_000_001, dtype=dtype, device="cuda"))
    gradients = FlatGradients([weight])
    assert weight.grad is not None
    weight.grad.copy_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(0)))
    exact = weight.grad.double().square().sum().item()
    assert gradients.sum_of_squares().item() == pytest.approx(exact, rel=1e-6)
