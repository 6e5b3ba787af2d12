"""The same loop in one process, with plain autograd: what a script must see under any failures."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import nn

from recycle_runtime.execution.forward_random import forward_seed
from recycle_runtime.program.layers import seed_of
from tests.runtime.trainer.scripts import loop

Pair = tuple[torch.Tensor, torch.Tensor]


class Seen(NamedTuple):
    """After a step: its loss, what an evaluation after it gives, and the model."""

    loss: float
    settled: tuple[float, float, bool]
    """Learning rate, gradient norm, and whether it was skipped."""
    evaluated: float
    state: dict[str, torch.Tensor]


def train_plainly(
    steps: int, per_step: int, seed: int = 0, switch: int = 1_000_000, *, loads: bool = False
) -> list[Seen]:
    """Expected record of `loop.py`; with other data from step `switch` on, or a DataLoader."""
    loaded = _epochs(loop.loader(0)) if loads else iter(())
    torch.manual_seed(seed_of(seed, 0))
    layers = [module for _, module in loop.layers()]
    model = nn.Sequential(*layers)
    optimizer = loop.optimizer(list(model.parameters()))
    schedule = loop.schedule(optimizer)
    seen: list[Seen] = []
    for step in range(steps):
        total = 0.0
        for index in range(per_step):
            data = loop.microbatch if step < switch else loop.later
            value, target = next(loaded) if loads else data(step * per_step + index)
            for number, layer in enumerate(layers):
                torch.default_generator.manual_seed(forward_seed(seed, step, index, number))
                value = layer(value)
            loss = nn.functional.mse_loss(value, target) / per_step
            loss.backward()
            total += float(loss.detach())
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        rate = float(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        state = {f"blocks.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
        seen.append(Seen(total, (rate, norm, False), _evaluate(model), state))
    return seen


def _epochs(loader: Iterable[Pair]) -> Iterator[Pair]:
    while True:
        yield from loader


def _evaluate(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        pairs = [loop.held_out(index) for index in range(loop.HELD_OUT)]
        losses = [float(nn.functional.mse_loss(model(value), target)) for value, target in pairs]
    model.train()
    return sum(losses) / len(losses)
