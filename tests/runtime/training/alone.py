"""The same training on one process, with plain autograd and a plain loop: what every plan must equal."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.execution.forward_random import forward_seed
from recycle_runtime.execution.shapes import as_tuple
from recycle_runtime.program.loading import load_program


class Alone(NamedTuple):
    """Result of the run."""

    losses: list[float]
    states: list[dict[str, torch.Tensor]]
    """Of each stage, at the end."""


@cache
def train_alone(
    program_file: str, stages: int, per_step: int, steps: int, seed: int = 0, cut: tuple[int, ...] = ()
) -> Alone:
    """Train all stages here, one micro-batch after the other; once for all tests that ask for the same."""
    program = load_program(program_file)
    modules = [build_module(program, stage, stages, seed, cut=cut) for stage in range(stages)]
    optimizers = [program.optimizer(list(module.parameters())) for module in modules]
    everything = [parameter for module in modules for parameter in module.parameters()]
    data = MicroBatches(program, seed, per_step)
    losses: list[float] = []
    for step in range(steps):
        total = 0.0
        for index in range(per_step):
            inputs, target = data.item(step, index)
            for stage, module in enumerate(modules):
                draw_as(module, stage, partial(forward_seed, seed, step, index), program.is_layered)
                inputs = module(*as_tuple(inputs))
            loss = program.loss(inputs, target) / per_step
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        gradients = [parameter.grad for parameter in everything if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        if program.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(everything, program.clip_norm)
        for optimizer in optimizers:
            if torch.isfinite(norm):
                optimizer.step()
            optimizer.zero_grad()
    return Alone(losses, [module.state_dict() for module in modules])


def draw_as(module: Any, stage: int, seed_of: Callable[[int], int], is_layered: bool) -> None:
    """Have the next forward of a stage draw what it draws in a run: by layer, or by stage."""

    def draw(number: int) -> None:
        # torch.manual_seed asks every backend, and takes most of a millisecond.
        torch.default_generator.manual_seed(seed_of(number))

    if is_layered:
        module.before_layer = draw
    else:
        draw(stage)
