"""A mixture of experts in one process, beside a plain loop over tokens."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recycle_runtime.experts.exchange import Alone
from recycle_runtime.experts.mixture import MixtureOfExperts
from recycle_runtime.experts.placement import place_experts
from recycle_runtime.program.errors import ProgramError

WIDTH, EXPERTS, TOKENS = 6, 5, 40


class Gated(nn.Module):
    """An expert of linear layers, one of them with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(WIDTH, 9), nn.Linear(WIDTH, 9, bias=False)
        self.down = nn.Linear(9, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(rows)) * self.up(rows))


def normed() -> nn.Module:
    """An expert that is called on its own rows alone."""
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())


def plain(
    mixture: MixtureOfExperts, experts: list[nn.Module], tokens: Tensor, replicas: list[int]
) -> tuple[Tensor, Tensor]:
    """Token by token; the result, and the loss that balances experts."""
    scores = (tokens @ mixture.router.weight.T).softmax(-1)
    top = scores.topk(mixture.active)
    weights = top.values / top.values.sum(-1, keepdim=True)
    factor = mixture.experts.capacity
    room = [
        len(tokens) * mixture.active
        if factor is None
        else int(factor * top.indices.numel() * each / sum(replicas))
        for each in replicas
    ]
    rows: list[Tensor] = []
    for token, chosen, own in zip(tokens, top.indices.tolist(), weights, strict=True):
        made = torch.zeros(WIDTH, dtype=tokens.dtype)
        for place_of, expert in enumerate(chosen):
            if room[expert]:
                room[expert] -= 1
                made = made + own[place_of] * experts[expert](token[None])[0]
        rows.append(made)
    shares = nn.functional.one_hot(top.indices, len(experts)).sum((0, 1)).double()
    loss = len(experts) * (shares / len(tokens) * scores.mean(0)).sum()
    return torch.stack(rows), loss


@pytest.mark.parametrize("expert", [Gated, normed])
@pytest.mark.parametrize(("capacity", "slots"), [(None, None), (1.1, None), (0.7, [3, 3, 3])])
def test_equal_to_a_plain_loop(expert: Any, capacity: float | None, slots: list[int] | None) -> None:
    torch.manual_seed(1)
    experts = [expert().double() for _ in range(EXPERTS)]
    mixture = MixtureOfExperts(WIDTH, experts, active=2, capacity=capacity, auxiliary=0.3).double()
    replicas = [1] * EXPERTS
    if slots is not None:
        placed = place_experts([9, 1, 4, 2, 2], slots)
        mixture.experts.exchange, replicas = Alone(placed), list(placed.replicas)
    inputs = torch.randn(4, TOKENS // 4, WIDTH).double()
    one, other = (inputs.clone().requires_grad_() for _ in range(2))
    made = mixture(one)
    expected, loss = plain(mixture, experts, other.view(TOKENS, WIDTH), replicas)
    torch.testing.assert_close(made.view(TOKENS, WIDTH), expected, rtol=0, atol=1e-12)
    made.square().sum().backward()
    router_gradient = mixture.router.weight.grad
    mixture.router.weight.grad = None
    (expected.square().sum() + 0.3 * loss).backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(router_gradient, mixture.router.weight.grad, rtol=0, atol=1e-12)
    for name, stacked in mixture.experts.each.named_parameters():
        each = [expert.get_parameter(name).grad for expert in experts]
        each = [torch.zeros_like(stacked[0]) if gradient is None else gradient for gradient in each]
        torch.testing.assert_close(stacked.grad, torch.stack(each), rtol=0, atol=1e-12)
    counted = mixture.experts.take_counts()
    assert counted is not None and int(counted.popularity.sum()) == 2 * TOKENS
    room = [
        2 * TOKENS if capacity is None else int(capacity * 2 * TOKENS * r / sum(replicas)) for r in replicas
    ]
    over = [max(0, asked - most) for asked, most in zip(counted.popularity.tolist(), room, strict=True)]
    assert int(counted.dropped) == sum(over) and (capacity is None or sum(over))


def test_balancing_without_a_loss() -> None:
    torch.manual_seed(1)
    mixture = MixtureOfExperts(WIDTH, normed, experts=4, active=1, balancing_rate=0.1, scores="sigmoid")
    tokens = torch.randn(200, WIDTH) + torch.randn(WIDTH)
    for _ in range(50):
        mixture(tokens)
        mixture.balance()
    mixture(tokens)
    counted = mixture.experts.take_counts()
    assert counted is not None and int(counted.popularity.max()) < 80
    mixture.eval()(tokens)
    assert mixture.experts.take_counts() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"expert": [nn.Linear(6, 6), nn.Linear(6, 6, bias=False)]},
            "bias is missing in expert 1, and float32",
        ),
        ({"expert": [nn.Linear(6, 6), nn.Sequential()]}, "expert 1 is a Sequential, and expert 0 a Linear"),
        ({"expert": [nn.Linear(6, 6)], "experts": 3, "active": 1}, "experts is 3, and the list has 1"),
        ({"expert": normed}, "how many experts there are is not said"),
        ({"expert": nn.Linear(6, 6), "experts": 3}, "an expert is given where one is made"),
        ({"expert": nn.Tanh, "experts": 2}, "experts have no parameters"),
        ({"expert": lambda: nn.BatchNorm1d(6), "experts": 2}, "experts have a buffer, running_mean"),
        (
            {"expert": normed, "experts": 2, "active": 3},
            "active must be from 1 to the number of experts, 2, got 3",
        ),
        ({"expert": normed, "experts": 2, "capacity": 0.0}, "capacity must be above 0, got 0"),
    ],
)
def test_what_is_no_mixture(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        MixtureOfExperts(WIDTH, **options)


def test_experts_that_give_another_width() -> None:
    mixture = MixtureOfExperts(WIDTH, lambda: nn.Linear(WIDTH, WIDTH + 1), experts=4, active=1)
    with pytest.raises(ProgramError, match=f"rows of width {WIDTH}, and give rows of shape"):
        mixture(torch.randn(7, WIDTH))


def test_computed_again_in_the_backward() -> None:
    torch.manual_seed(1)
    mixture = MixtureOfExperts(WIDTH, normed, experts=4, active=1)
    given = torch.randn(7, WIDTH, requires_grad=True)
    checkpoint(mixture, given, use_reentrant=False).sum().backward()
    counted = mixture.experts.take_counts()
    assert counted is not None and int(counted.popularity.sum()) == 7


class Checkpointed(nn.Module):
    def __init__(self, *, scaled: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.scale = nn.Parameter(torch.ones(WIDTH)) if scaled else 1.0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.scale * checkpoint(self.inner, rows, use_reentrant=False)


@pytest.mark.parametrize("scaled", [False, True])
def test_an_expert_that_is_computed_again_in_the_backward(scaled: bool) -> None:
    """Called with the rows of all experts, or each with its own."""
    mixture = MixtureOfExperts(WIDTH, lambda: Checkpointed(scaled=scaled), experts=4, active=1)
    with pytest.raises(ProgramError, match="an expert is computed a second time in the backward"):
        mixture(torch.randn(7, WIDTH, requires_grad=True)).sum().backward()


def test_capacity_that_drops_everything() -> None:
    mixture = MixtureOfExperts(WIDTH, normed, experts=8, active=1, capacity=1.0)
    with pytest.raises(ProgramError, match="capacity 1 drops every token: 7 choices of experts in 8 slots"):
        mixture(torch.randn(7, WIDTH))
