"""Gradients in flat buffers: always views, never dropped, measured well."""

import pytest
import torch

from recycle_runtime.execution.optimizer import FlatGradients
from tests.runtime.execution.optimizer.fakes import alone, backward, numbers


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(shape, dtype=dtype))


def in_buffer(gradients: FlatGradients, weight: torch.Tensor) -> bool:
    assert weight.grad is not None
    starts = {buffer.untyped_storage().data_ptr() for buffer in gradients.buffers}
    return weight.grad.untyped_storage().data_ptr() in starts


def reduced(gradients: FlatGradients) -> None:
    gradients.gather()
    for buffer in gradients.buffers:
        alone(buffer)
    gradients.look()


def shown(gradients: FlatGradients, weights: list[torch.nn.Parameter]) -> list[bool]:
    with gradients.shown():
        return [weight.grad is not None for weight in weights]


def test_backward_adds_to_the_buffer() -> None:
    weight, bias = parameter(3, 2), parameter(3)
    gradients = FlatGradients([weight, bias])
    for _ in range(2):
        backward(((weight.sum(1) + bias) * 2).sum())
    assert len(gradients.buffers) == 1
    assert in_buffer(gradients, weight) and in_buffer(gradients, bias)
    assert weight.grad is not None and numbers(weight.grad) == [4.0] * 6
    assert gradients.sum_of_squares().item() == 9 * 16
    gradients.zero()
    assert numbers(weight.grad) == [0.0] * 6


def test_one_buffer_for_each_dtype_and_parameters_once() -> None:
    single, double = parameter(3), parameter(2, dtype=torch.float64)
    gradients = FlatGradients([single, double, single])
    assert [buffer.dtype for buffer in gradients.buffers] == [torch.float32, torch.float64]
    backward(single.sum() * 3 + double.sum() * 2)
    assert gradients.sum_of_squares().item() == 3 * 9 + 2 * 4


def test_gradients_that_are_there_already_are_taken_in() -> None:
    weight = parameter(2)
    backward(weight.sum())
    gradients = FlatGradients([weight])
    reduced(gradients)
    assert in_buffer(gradients, weight)
    assert gradients.sum_of_squares().item() == 2


def test_frozen_parameters_take_no_room() -> None:
    weight, frozen = parameter(4), parameter(1000).requires_grad_(False)
    gradients = FlatGradients([frozen, weight])
    assert gradients.bytes_held < 1000
    assert frozen.grad is None
    frozen.requires_grad_(True)
    with pytest.raises(ValueError, match="frozen when training began"):
        gradients.gather()


def test_a_parameter_frozen_later_has_no_gradient() -> None:
    weights = [parameter(2), parameter(2)]
    gradients = FlatGradients(weights)
    weights[1].requires_grad_(False)
    backward(weights[0].sum() + weights[1].sum())
    reduced(gradients)
    assert shown(gradients, weights) == [True, False]


def test_the_optimizer_sees_none_where_nothing_was_added() -> None:
    weights = [parameter(2), parameter(2), parameter(2)]
    gradients = FlatGradients(weights)
    backward(weights[0].sum())
    weights[2].grad.data.add_(1)  # pyright: ignore[reportOptionalMemberAccess]
    reduced(gradients)
    assert shown(gradients, weights) == [True, False, True]
    assert all(in_buffer(gradients, weight) for weight in weights)
    gradients.zero()
    backward(weights[1].sum())
    reduced(gradients)
    assert shown(gradients, weights) == [False, True, False]


def test_a_gradient_of_zeros_is_a_gradient() -> None:
    weights = [parameter(2)]
    gradients = FlatGradients(weights)
    backward(weights[0].sum() * 0)
    reduced(gradients)
    assert shown(gradients, weights) == [True]


def test_peers_agree_on_which_parameters_have_gradients() -> None:
    mine, theirs = [parameter(2), parameter(2)], [parameter(2), parameter(2)]
    here, there = FlatGradients(mine), FlatGradients(theirs)
    backward(mine[0].sum())
    for gradients in (here, there):
        gradients.gather()
    total = here.buffers[0] + there.buffers[0]
    for gradients, weights in ((here, mine), (there, theirs)):
        gradients.buffers[0].copy_(total)
        gradients.look()
        assert shown(gradients, weights) == [True, False]


def test_replaced_gradients_are_taken_back() -> None:
    weights = [parameter(2) for _ in range(4)]
    gradients = FlatGradients(weights)
    backward(torch.stack([weight.sum() for weight in weights]).sum())
    weights[0].grad = torch.full((2,), 5.0)
    weights[1].grad = None
    weights[2].grad = None
    backward(weights[2].sum())
    reduced(gradients)
    assert all(in_buffer(gradients, weight) for weight in weights)
    found = [numbers(weight.grad) for weight in weights if weight.grad is not None]
    assert found == [[5.0, 5.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    assert shown(gradients, weights) == [True, False, True, True]


def test_sparse_gradients_become_dense() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    gradients = FlatGradients(table.parameters())
    backward(table(torch.tensor([1, 1])).sum())
    table.weight.grad = None
    backward(table(torch.tensor([3])).sum())
    reduced(gradients)
    assert gradients.sum_of_squares().item() == 2


@pytest.mark.filterwarnings("ignore:Using backward")
def test_graphs_of_gradients_are_taken_back() -> None:
    weight = parameter(2)
    gradients = FlatGradients([weight])
    torch.autograd.backward(weight.square().sum(), create_graph=True)
    reduced(gradients)
    assert in_buffer(gradients, weight)
    assert gradients.sum_of_squares().item() == 8


def test_only_rank_0_counts_what_is_the_same_on_all_ranks() -> None:
    same, shard = parameter(3), parameter(5)
    shard.tensor_parallel = True  # pyright: ignore[reportAttributeAccessIssue]
    gradients = FlatGradients([same, shard])
    backward(same.sum() + shard.sum())
    assert [gradients.sum_of_squares(rank).item() for rank in range(3)] == [8.0, 5.0, 5.0]


def test_gradients_are_laid_out_as_their_parameters() -> None:
    images = torch.nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    columns = torch.nn.Parameter(torch.ones(4, 3).t())
    FlatGradients([images, columns])
    for weight in (images, columns):
        assert weight.grad is not None and weight.grad.stride() == weight.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_long_sums_keep_their_digits(dtype: torch.dtype) -> None:
    weight = parameter(3_000_001, dtype=dtype)
    gradients = FlatGradients([weight])
    assert weight.grad is not None
    weight.grad.copy_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(0)))
    exact = weight.grad.double().square().sum().item()
    assert gradients.sum_of_squares().item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 2047, 2999])
def test_one_bad_value_is_seen(bad: float, place: int) -> None:
    weight = parameter(3000)
    gradients = FlatGradients([weight])
    assert weight.grad is not None
    weight.grad[place] = bad
    assert not gradients.sum_of_squares().isfinite()


def test_a_stage_without_parameters() -> None:
    gradients = FlatGradients([])
    reduced(gradients)
    assert gradients.buffers == [] and gradients.sum_of_squares().item() == 0


def test_kept_gradients_come_back_with_what_was_missing() -> None:
    weights = [parameter(2), parameter(2)]
    gradients = FlatGradients(weights)
    backward(weights[0].sum())
    reduced(gradients)
    gradients.keep()
    gradients.zero()
    backward(weights[1].sum() * 7)
    reduced(gradients)
    gradients.bring_back()
    assert shown(gradients, weights) == [True, False]
    gradients.scale(0.5)
    assert gradients.sum_of_squares().item() == 2 * 0.25
