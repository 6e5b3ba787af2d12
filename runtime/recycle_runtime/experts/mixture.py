"""A mixture of experts for programs: router, experts that peers share, experts that every token has.

recycle.MixtureOfExperts(width, lambda: FeedForward(width), experts=8, active=2, capacity=1.25)
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from recycle_runtime.experts.grouped import ExpertRows, GroupedLinear, by_group, grouped, groups_here
from recycle_runtime.experts.shared import Counted, SharedExperts
from recycle_runtime.program.errors import ProgramError


class MixtureOfExperts(nn.Module):
    """A layer in which every token goes through the experts that a router chooses for it."""

    def __init__(
        self,
        width: int,
        expert: Callable[[], nn.Module] | Sequence[nn.Module],
        *,
        experts: int | None = None,
        active: int = 2,
        capacity: float | None = None,
        shared: nn.Module | None = None,
        scores: Literal["softmax", "sigmoid"] = "softmax",
        normalize: bool = True,
        auxiliary: float = 0.0,
        balancing_rate: float = 0.0,
    ) -> None:
        """`width`: of tokens. `expert`: makes one expert, a module from rows [n, width] to rows as wide; or a
        list of them. `active`: experts of a token. `capacity`: room for tokens, by what experts would get if
        all were asked for equally often; tokens beyond it are dropped; None: none is. `shared`: what every
        token goes through besides. `scores`: of experts, made of what the router gives. `normalize`: weights
        of a token's experts sum up to 1. `auxiliary`: weight of the loss that balances experts.
        `balancing_rate`: what the bias of an expert changes by in a step for being asked for less, or more,
        than the mean (balancing without a loss)."""
        super().__init__()
        made = _experts(expert, experts)
        if not 1 <= active <= len(made):
            raise ProgramError(
                f"active must be from 1 to the number of experts, {len(made)}, got {active}",
                "it is how many experts each token goes to",
            )
        self.width, self.active = width, active
        self.scores, self.normalize = scores, normalize
        self.auxiliary, self.balancing_rate = auxiliary, balancing_rate
        self.router = nn.Linear(width, len(made), bias=False)
        self.experts = StackedExperts(made, width, capacity)
        self.shared = shared
        self.loss_scale: float | Tensor = 1.0
        """Factor of a micro-batch's loss before its backward."""
        steps = torch.zeros(len(made), dtype=torch.int64) if balancing_rate else None
        self.register_buffer("balance_steps", steps)
        """Of every expert, rates in its bias: whole numbers are exact in every precision of weights."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Of tokens [..., width], what their experts make of them."""
        flat = tokens.reshape(-1, tokens.shape[-1])
        given: Tensor = self.router(flat)
        given = given.to(torch.promote_types(given.dtype, torch.float32))
        scores = given.softmax(-1) if self.scores == "softmax" else given.sigmoid()
        ranked, steps = scores.detach(), cast("Tensor | None", self.balance_steps)
        if steps is not None:
            ranked = ranked + self.balancing_rate * steps
        chosen = ranked.topk(self.active, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        made = self.experts(flat, chosen, weights)
        if self.shared is not None:
            made = made + self.shared(flat)
        if self.auxiliary and self.training and torch.is_grad_enabled():
            loss = balancing_loss(scores, chosen)
            made = _WithLoss.apply(made, loss, self.auxiliary, self.loss_scale)
        return made.view_as(tokens)

    def balance(self, popularity: Tensor | None = None) -> None:
        """After a step: move the bias of experts by how often they were asked for, by all peers together.
        Without popularity, by this process alone; a job does it by itself."""
        if popularity is None:
            counted: Counted | None = self.experts.take_counts()
            if counted is None:
                return
            popularity = counted.popularity
        steps = cast("Tensor | None", self.balance_steps)
        if steps is not None:
            steps += (popularity.sum() - popularity * len(popularity)).sign().to(steps.dtype)

    def extra_repr(self) -> str:
        return f"width={self.width}, active={self.active}, capacity={self.experts.capacity}"


class StackedExperts(SharedExperts):
    """Modules that differ in the values of their parameters alone, as one with stacked parameters."""

    def __init__(self, experts: Sequence[nn.Module], width: int, capacity: float | None = None) -> None:
        super().__init__(len(experts), width, capacity)
        _check_alike(experts)
        names = [name for name, _ in experts[0].named_parameters()]
        stacked = {name: _stacked([each.get_parameter(name) for each in experts]) for name in names}
        self.each, self._is_grouped = _joined(experts[0], stacked)
        """One expert, with the parameters of all."""

    def compute(self, rows: Tensor, groups: ExpertRows) -> Tensor:
        with grouped(groups):
            return self.each(rows) if self._is_grouped else self._one_by_one(rows, groups)

    def _one_by_one(self, rows: Tensor, groups: ExpertRows) -> Tensor:
        named = {name: groups.weights(each) for name, each in self.each.named_parameters()}

        def one(number: int, part: Tensor) -> Tensor:
            return functional_call(self.each, {name: each[number] for name, each in named.items()}, (part,))

        return by_group(rows, groups.counts, one)


def balancing_loss(scores: Tensor, chosen: Tensor) -> Tensor:
    """Experts x sum of (share of tokens) x (mean score): lowest where all are asked for equally often."""
    experts = scores.shape[-1]
    shares = torch.zeros_like(scores).scatter_(1, chosen, 1.0).mean(0)
    return experts * (shares * (scores / scores.sum(-1, keepdim=True)).mean(0)).sum()


class _WithLoss(torch.autograd.Function):
    """Adds a loss to that of the model without going through its later layers: only its gradient is added."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, loss: Tensor, weight: float, scale: float | Tensor) -> Tensor:
        ctx.gradient = torch.full_like(loss, weight) * scale
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], ctx.gradient, None, None


def _experts(expert: Callable[[], nn.Module] | Sequence[nn.Module], count: int | None) -> list[nn.Module]:
    if isinstance(expert, Sequence):
        made = list(expert)
        if count not in (None, len(made)):
            raise ProgramError(f"experts is {count}, and the list has {len(made)}", "leave experts= out")
    elif count is None or isinstance(expert, nn.Module):
        raise ProgramError(
            "how many experts there are is not said"
            if count is None
            else "an expert is given where one is made",
            "MixtureOfExperts(width, lambda: Expert(), experts=8), or a list of modules",
        )
    else:
        made = [expert() for _ in range(count)]
    if not made:
        raise ProgramError("a mixture of experts has no experts", "give it one or more")
    return made


def _check_alike(experts: Sequence[nn.Module]) -> None:
    """ProgramError if they are not copies of one module with other values."""
    first = experts[0]
    for name, _ in first.named_buffers():
        raise ProgramError(
            f"experts have a buffer, {name}: peers share the parameters of experts alone",
            "make it a parameter with requires_grad=False, or keep it outside the experts",
        )
    if not list(first.parameters()):
        raise ProgramError("experts have no parameters", "an expert is a module with weights")
    for number, other in enumerate(experts[1:], 1):
        if type(other) is not type(first):
            raise ProgramError(
                f"expert {number} is a {type(other).__name__}, and expert 0 a {type(first).__name__}",
                "all experts of a layer are of one class",
            )
        ours, theirs = (dict(each.named_parameters()) for each in (first, other))
        for name in [*ours, *(each for each in theirs if each not in ours)]:
            looks = [_look(each[name]) if name in each else "missing" for each in (ours, theirs)]
            if looks[0] != looks[1]:
                raise ProgramError(
                    f"{name} is {looks[1]} in expert {number}, and {looks[0]} in expert 0",
                    "all experts of a layer have parameters of the same shapes: any slot can hold any",
                )


def _look(parameter: nn.Parameter) -> str:
    frozen = "" if parameter.requires_grad else " frozen"
    return f"{str(parameter.dtype).removeprefix('torch.')}{list(parameter.shape)}{frozen}"


def _stacked(parameters: list[nn.Parameter]) -> nn.Parameter:
    values = torch.stack([each.detach() for each in parameters])
    return nn.Parameter(values, requires_grad=parameters[0].requires_grad)


def _in_a_call(*_: Any) -> None:
    """Parameters are those of one expert only while it is called."""
    groups_here()


def _joined(first: nn.Module, stacked: dict[str, nn.Parameter]) -> tuple[nn.Module, bool]:
    """One expert with the parameters of all, and whether it can be called with the rows of all."""
    whole = copy.deepcopy(first)
    linear = [name for name, each in whole.named_modules() if type(each) is nn.Linear]
    is_grouped = all(name.rpartition(".")[0] in linear for name in stacked)
    for name, parameter in stacked.items():
        path, _, own = name.rpartition(".")
        setattr(whole.get_submodule(path), own, parameter)
    if not is_grouped:
        for part in whole.children():
            part.register_forward_pre_hook(_in_a_call)
        return whole, False
    for name in linear:
        part = cast(Any, whole.get_submodule(name))
        made = GroupedLinear(part.weight, part.bias)
        if not name:
            return made, True
        path, _, own = name.rpartition(".")
        setattr(whole.get_submodule(path), own, made)
    return whole, True
