"""The split on a GPU: under autocast, in compiled layers and inside torch.utils.checkpoint."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from recycle_runtime.execution.split_backward import prepare

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WIDTH = 64


class Block(nn.Module):
    def __init__(self, *, keeps: bool = True) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
        self.keeps = keeps

    def inside(self, value: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(self.norm(value))))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self.keeps:
            return value + self.inside(value)
        again: Any = checkpoint(self.inside, value, use_reentrant=False)
        return value + again


def gradients(
    stage: nn.Module, value: torch.Tensor, *, how: str, autocast: bool = False, times: int = 3
) -> list[torch.Tensor]:
    """Of the input and of every parameter, added up over some micro-batches."""
    split = None if how == "plain" else prepare(stage)
    if split is not None and how == "lowered":
        split.defer_weights(False)
        split.lower_weights(True)
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    given = value.clone().requires_grad_()
    for number in range(times):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            output = stage(given * (1 + number)).square().mean()
        if split is not None and how == "deferred":
            split.backward_input([output], [None]).run()
        else:
            torch.autograd.backward(output)
    found = [given.grad, *(parameter.grad for parameter in stage.parameters())]
    return [tensor.clone() for tensor in found if tensor is not None]


def stage_of(build: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    return nn.Sequential(build(), build()).to("cuda", dtype)


def apart(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest relative distance of one gradient."""
    pairs = zip(found, expected, strict=True)
    return max(float((one.double() - two.double()).norm() / two.double().norm()) for one, two in pairs)


def given(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(1)
    return torch.randn(8, 16, WIDTH, device="cuda", dtype=dtype, generator=generator)


@pytest.mark.parametrize("how", ["deferred", "lowered"])
def test_products_in_bf16_are_added_in_float32(how: str) -> None:
    """No further from the truth than plain autograd is, which rounds every product before it adds it."""
    stage = stage_of(Block, torch.float32)
    truth = gradients(copy.deepcopy(stage).double(), given(torch.float32).double(), how="plain")
    plain = gradients(copy.deepcopy(stage), given(torch.float32), how="plain", autocast=True)
    ours = gradients(copy.deepcopy(stage), given(torch.float32), how=how, autocast=True)
    assert apart(ours, truth) <= 1.1 * apart(plain, truth) < 0.05
    assert ours[1].dtype == torch.float32


@pytest.mark.parametrize("how", ["deferred", "lowered"])
@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_computed_again(how: str, keeps: bool) -> None:
    """Inside torch.utils.checkpoint weights do not wait; gradients are the same."""
    stage = stage_of(lambda: Block(keeps=keeps), torch.float64)
    plain = gradients(copy.deepcopy(stage), given(torch.float64), how="plain")
    assert apart(gradients(stage, given(torch.float64), how=how), plain) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deferred", "lowered"])
def test_compiled_layers(how: str) -> None:
    stage = stage_of(Block, torch.float64)
    plain = gradients(copy.deepcopy(stage), given(torch.float64), how="plain")
    stage[0].compile()  # pyright: ignore
    try:
        found = gradients(stage, given(torch.float64), how=how)
    except Exception as error:
        if "compiler" in str(error).lower() or "triton" in str(error).lower():
            pytest.skip(f"nothing can be compiled here: {error}")
        raise
    assert apart(found, plain) < 1e-10
