"""Description of a worker's parameters before the first step, for mistakes that no worker sees alone.

Two stages that a program builds one by one may each make a copy of what is one parameter of the model, such
as the embedding of GPT-2, which is its head too. Where nobody says that they are one, they would be trained
apart. A copy gives itself away by its numbers, or by its name if it is an embedding. Numbers are looked at in
a few places: this takes no longer for large models.
"""

import zlib
from collections.abc import Iterable

import torch
from torch import nn

from recycle_runtime.execution.layer import Layer
from recycle_runtime.program.loading import Program
from recycle_runtime.protocol.messages.steps import ParameterLook, Parameters

_SAMPLES = 64
_SHOWN = 8
"""Names that are reported; the rest are left out."""
_MOST = 4096
"""Parameters of a worker that are looked at."""


def parameters_of(program: Program, layers: Iterable[Layer]) -> Parameters:
    """Of these layers, before the first step."""
    held = list(layers)
    untrained = [name for layer in held for name in layer.untrained]
    count = sum(len(layer.parameters) for layer in held)
    looks = [look for layer in held for look in _looks(layer)] if _may_have_copies(program) else []
    told = {name for tie in program.ties for name in tie}
    return Parameters(
        trained=count - len(untrained),
        untrained=len(untrained),
        names=tuple(untrained[:_SHOWN]),
        looks=tuple(look for look in looks[:_MOST] if look.name not in told),
    )


def _may_have_copies(program: Program) -> bool:
    """Layers that are made at once share the object where they share a parameter."""
    return program.gives in ("build_stage", "build_layers") and not program.says_ties


def _looks(layer: Layer) -> Iterable[ParameterLook]:
    named = dict(zip(layer.parameters, layer.parameter_names, strict=True))
    for module in layer.module.modules():
        for parameter in module.parameters(recurse=False):
            if parameter in named and parameter.dim() > 1:
                yield ParameterLook(
                    named[parameter],
                    layer.number,
                    tuple(parameter.shape),
                    type(module).__name__,
                    isinstance(module, nn.Embedding | nn.EmbeddingBag),
                    _sample(parameter),
                )


def _sample(parameter: torch.Tensor) -> str:
    """A few of its numbers, in a few digits; nothing where they are all the same."""
    flat = parameter.detach().reshape(-1)
    if flat.numel() == 0:
        return ""
    places = torch.linspace(0, flat.numel() - 1, _SAMPLES, dtype=torch.float64).long()
    numbers = flat[places.to(flat.device)].to("cpu", torch.float64)
    if bool((numbers == numbers[0]).all()):
        return ""
    return f"{zlib.crc32(numbers.numpy().tobytes()):08x}"
