"""The same training on one process, with plain autograd and a plain loop: what every plan must equal."""

from typing import NamedTuple

import torch

from recycle_runtime.execution.chunk import build_module
from recycle_runtime.execution.forward_random import forward_seed
from recycle_runtime.execution.shapes import as_tuple
from recycle_runtime.program.loading import load_program
from recycle_runtime.program.microbatches import MicroBatches


class Alone(NamedTuple):
    """What came of it."""

    losses: list[float]
    states: list[dict[str, torch.Tensor]]
    """Of each stage, at the end."""


def train_alone(program_file: str, stages: int, per_step: int, steps: int, seed: int = 0) -> Alone:
    """Train all stages here, one micro-batch after the other."""
    program = load_program(program_file)
    modules = [build_module(program, stage, stages, seed) for stage in range(stages)]
    optimizers = [program.optimizer(list(module.parameters())) for module in modules]
    everything = [parameter for module in modules for parameter in module.parameters()]
    data = MicroBatches(program, seed, per_step)
    losses: list[float] = []
    for step in range(steps):
        total = 0.0
        for index in range(per_step):
            inputs, target = data.item(step, index)
            for stage, module in enumerate(modules):
                torch.manual_seed(forward_seed(seed, step, index, stage))
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
