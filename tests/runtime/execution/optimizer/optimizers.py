"""Optimizers of all kinds, and all that they hold, in a form that compares."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from recycle_runtime.execution.optimizer.by_layer import LayerOptimizers
from tests.runtime.execution.optimizer.fakes import numbers

MakeOptimizer = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]


class Odd(torch.optim.Optimizer):
    """Keeps what optimizers may keep: numbers, lists, replaced tensors, options and attributes of its own."""

    def __init__(self, parameters: Sequence[torch.Tensor], lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})
        self.rounds = 0
        self.drift = torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.rounds += 1
        self.drift += 0.01
        for group in self.param_groups:
            group["seen"] = group.get("seen", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                # Some change gradients in place, and some go past the version counters.
                parameter.grad.data.mul_(1.5)
                state["count"] = state.get("count", 0) + 1
                state["average"] = 0.5 * state.get("average", 0.0) + parameter.grad
                state.setdefault("history", []).append(parameter.grad.abs().sum())
                del state["history"][:-2]
                state["nested"] = {"last": parameter.grad.clone(), "tags": ("a", state["count"])}
                scale = 1 + self.drift + group["seen"] / 10 + sum(state["history"]) / 100
                parameter.data.add_(state["average"], alpha=-group["lr"] / float(scale))
        whole = self.state.setdefault("whole", {"total": torch.zeros(())})  # pyright: ignore
        whole["total"] += 1


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1),
    "adamw-loop": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, foreach=False),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, fused=True),
    "adam-amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.05, amsgrad=True),
    "adam-tensor-lr": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.05), foreach=False),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.05),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "sgd-nesterov": lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, nesterov=True, foreach=True
    ),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.05, momentum=0.5, centered=True),
    "rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.05),
    "asgd": lambda parameters: torch.optim.ASGD(parameters, lr=0.05),
    "odd": Odd,
}


def values_of(optimizer: torch.optim.Optimizer | LayerOptimizers) -> Any:
    """Everything an optimizer holds beside parameters, copied, in a form that compares with ==."""
    assert isinstance(optimizer, torch.optim.Optimizer), "one optimizer for all parameters"
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = {id(parameter): index for index, parameter in enumerate(held)}
    state = {names.get(id(key), str(type(key))): plain(value) for key, value in optimizer.state.items()}
    options = [plain({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]
    own = {name: plain(value) for name, value in vars(optimizer).items() if name in ("rounds", "drift")}
    return [plain(held), state, options, own]


def plain(value: Any) -> Any:
    """Tensors as text that shows every bit."""
    if isinstance(value, torch.Tensor):
        return (
            str(value.dtype),
            tuple(value.shape),
            [x.hex() for x in numbers(value)],
        )
    if isinstance(value, dict):
        return {name: plain(item) for name, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    return value
