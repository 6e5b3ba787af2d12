"""Training of a whole model in a plain loop, which knows nothing of layers: what every plan must equal."""

from typing import NamedTuple

import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.experts.mixture import MixtureOfExperts
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import load_program


class Whole(NamedTuple):
    """Result of the whole model."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    """Of the model, at the end, under its own names."""


def train_whole(program_file: str, per_step: int, steps: int, seed: int = 0) -> Whole:
    """One model, one optimizer, one micro-batch after the other."""
    program = load_program(program_file)
    model = program.model()
    assert model is not None
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            # As the loss below is: in a script that is up to its author.
            module.loss_scale = 1 / per_step
    model.load_state_dict(initial_state(program_file, seed))
    optimizer = program.optimizer(list(model.parameters()))
    data = MicroBatches(program, seed, per_step)
    losses: list[float] = []
    for step in range(steps):
        total = 0.0
        for index in range(per_step):
            inputs, target = data.item(step, index)
            output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            loss = program.loss(output, target) / per_step
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        if program.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), program.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return Whole(losses, model.state_dict())


def initial_state(program_file: str, seed: int) -> dict[str, torch.Tensor]:
    """Initial values of the layers of a program, under the names of the whole model."""
    layers = build_layers(load_program(program_file), seed)
    return {name: value for _, layer in layers for name, value in layer.state_dict().items()}
