"""Reach of the gradients of a step, and changes by its forwards: what no worker can judge alone.

A program may detach what one of its layers is given. Torch trains what comes after it, and so does a plan:
the stages before one that gives no gradient back have none in their parameters. Whether anything is trained
at all, and what is not, is known when all chunks have said this.
"""

from collections.abc import Iterable, Mapping

import torch

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.protocol.messages.steps import ChunkGradients

_SHOWN = 8
"""Names that are reported; the rest are left out."""


def gradients_of(
    chunks: Iterable[Chunk], step: int, gives_back: Mapping[int, bool]
) -> tuple[ChunkGradients, ...]:
    """Of chunks that have made a step; `gives_back` as handlers have seen it."""
    return tuple(_of_chunk(chunk, step, gives_back.get(chunk.number, True)) for chunk in chunks)


def _of_chunk(chunk: Chunk, step: int, gives_back: bool) -> ChunkGradients:
    absent = chunk.stepper.gradients.absent
    named: list[tuple[str, torch.Tensor]] = []
    for layer in chunk.layers:
        untrained = set(layer.untrained)
        own = zip(layer.parameter_names, layer.parameters, strict=True)
        named += [(name, parameter) for name, parameter in own if name not in untrained]
    without = [name for name, parameter in named if parameter in absent]
    buffers = [
        f"{layer.name}.{name}" if layer.name else name
        for layer in chunk.layers
        for name in layer.buffers.read_by_forwards(step)
    ]
    return ChunkGradients(
        chunk.number,
        len(named),
        len(without),
        tuple(without[:_SHOWN]),
        gives_back,
        tuple(buffers[:_SHOWN]),
    )
