"""Plain training of a model with tied parameters: one Parameter object, one optimizer, one loop."""

from typing import Any

import torch
from torch import nn

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import Program, load_program
from tests.runtime.training.alone import Alone


def train_tied_alone(program_file: str, chunks: int, per_step: int, steps: int, seed: int = 0) -> Alone:
    """The state of each chunk is that of the whole model, copies with its values under each name."""
    program = load_program(program_file)
    layers = _layers(program, chunks, seed)
    named = {
        f"{prefix}.{name}" if prefix else name: parameter
        for prefix, module in layers
        for name, parameter in module.named_parameters()
    }
    for tie in program.ties:
        assert all(torch.equal(named[tie[0]], named[name]) for name in tie), "copies begin differently"
        for name in tie[1:]:
            _replace(layers, name, named[tie[0]])
    every = list(dict.fromkeys(parameter for _, module in layers for parameter in module.parameters()))
    assert len(every) == len(named) - sum(len(tie) - 1 for tie in program.ties) < len(named)
    optimizer = program.optimizer(every, [""] * len(every))
    data, losses = MicroBatches(program, seed, per_step), list[float]()
    for step in range(steps):
        total = 0.0
        for index in range(per_step):
            value, target = data.item(step, index)
            for _, module in layers:
                value = module(value)
            loss = program.loss(value, target) / per_step
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        if program.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(every, program.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    state: dict[str, Any] = {}
    for prefix, module in layers:
        state |= {f"{prefix}.{name}" if prefix else name: each for name, each in module.state_dict().items()}
    return Alone(losses, [state] * chunks)


def _layers(program: Program, chunks: int, seed: int) -> list[tuple[str, nn.Module]]:
    if program.is_layered:
        return build_layers(program, seed)
    stages = [("", build_module(program, chunk, chunks, seed)) for chunk in range(chunks)]
    first, last = stages[0][1], stages[-1][1]
    with torch.no_grad():
        for tie in program.ties:
            last.get_parameter(tie[1]).copy_(first.get_parameter(tie[0]))
    return stages


def _replace(layers: list[tuple[str, nn.Module]], name: str, parameter: nn.Parameter) -> None:
    for prefix, module in layers:
        inner = name.removeprefix(f"{prefix}.") if prefix else name
        if (inner != name or not prefix) and inner in dict(module.named_parameters()):
            folder, _, last = inner.rpartition(".")
            setattr(module.get_submodule(folder), last, parameter)
