"""The loop that a user would write: one model, one optimizer, one schedule, one average of the weights."""

import runpy
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from recycle_runtime.program.layers import seed_of


class Plain(NamedTuple):
    """Result of the loop."""

    losses: list[float]
    model: dict[str, torch.Tensor]
    average: dict[str, torch.Tensor]
    """Of the weights, by their names; empty without one."""
    rates: list[float]
    """Of the first group, in each step."""


class Whole(nn.Module):
    """The layers of a program under their names, one after another."""

    def __init__(self, layers: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self._order = [layer for _, layer in layers]
        for name, layer in layers:
            self.add_module(name.replace(".", "/"), layer)

    def forward(self, value: Any) -> Any:
        for layer in self._order:
            value = layer(value)
        return value


def named(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.replace("/", "."): tensor for name, tensor in state.items()}


def train_plainly(program: str, per_step: int, steps: int, seed: int = 0) -> Plain:
    """As `python train.py` would, with what the program file defines."""
    names = runpy.run_path(program)
    torch.manual_seed(seed_of(seed, 0))
    model = Whole(names["layers"]())
    pairs = [(name.replace("/", "."), value) for name, value in model.named_parameters()]
    is_low = names.get("PRECISION") == "bf16-weights"
    if is_low:
        pairs = [(name, nn.Parameter(value.detach().clone())) for name, value in pairs]
        model.to(torch.bfloat16)
    masters = [value for _, value in pairs]
    first = names["optimizer"].__code__.co_varnames[0]
    optimizer = names["optimizer"](pairs if first == "named_parameters" else masters)
    schedule = names["schedule"](optimizer) if names.get("schedule") else None
    movers: list[Any] = names["moves_with_steps"](model, optimizer) if "moves_with_steps" in names else []
    items = names["batches"](seed)
    losses: list[float] = []
    rates: list[float] = []
    for _ in range(steps):
        total = 0.0
        for _ in range(per_step):
            total += _backward(names, model, next(items), per_step)
            if is_low:
                _collect(list(model.parameters()), masters)
        losses.append(total)
        rates.append(float(optimizer.param_groups[0]["lr"]))
        if names.get("CLIP_VALUE") is not None:
            nn.utils.clip_grad_value_(masters, names["CLIP_VALUE"])
        norm = nn.utils.clip_grad_norm_(masters, names.get("CLIP_NORM") or float("inf"))
        if torch.isfinite(norm):
            _step(optimizer, list(model.parameters()) if is_low else [], masters)
            if schedule is not None:
                schedule.step()
            for mover in movers:
                mover.update_parameters(model)
        for parameter in (*model.parameters(), *masters):
            parameter.grad = None
    averages = [mover.module.state_dict() for mover in movers]
    return Plain(losses, named(model.state_dict()), named(averages[0]) if averages else {}, rates)


def _backward(names: dict[str, Any], model: nn.Module, item: Any, per_step: int) -> float:
    value, target = item
    precision = names.get("PRECISION")
    value = value.to(torch.bfloat16) if precision == "bf16-weights" else value
    with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext():
        loss = names["loss"](model(value), target) / per_step
    loss.backward()
    return float(loss.detach())


def _collect(weights: list[nn.Parameter], masters: list[nn.Parameter]) -> None:
    """Add the gradients of one micro-batch up in float32."""
    for weight, master in zip(weights, masters, strict=True):
        assert weight.grad is not None
        master.grad = weight.grad.float() if master.grad is None else master.grad + weight.grad.float()
        weight.grad = None


def _step(optimizer: Any, weights: list[nn.Parameter], masters: list[nn.Parameter]) -> None:
    """With weights in lower precision, of the copies that stand for them."""
    optimizer.step()
    with torch.no_grad():
        for weight, master in zip(weights, masters, strict=False):
            weight.copy_(master)
