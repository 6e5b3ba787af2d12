"""Libraries of a GPU that are loaded at first use, loaded before somebody waits for it.

That takes longer than a step, and a process can queue nothing meanwhile: whoever loads inside a group of NCCL
keeps all others waiting. So a worker with a GPU of its own has its kernels loaded when CUDA starts
(`transport.nccl.ENVIRONMENT`), and uses the libraries that come later once before its first report. On a
shared GPU kernels are loaded one by one, and a chunk is rehearsed beside training.
"""

import os
from typing import Any

import torch

from recycle_runtime.execution.chunk import Chunk, build_module
from recycle_runtime.execution.split_backward import prepare
from recycle_runtime.program.precision import Precision
from recycle_runtime.transport.interface import TensorSpec


def has_all_kernels() -> bool:
    """CUDA loads a library's kernels all at once."""
    return os.environ.get("CUDA_MODULE_LOADING") == "EAGER"


def load_libraries(precision: Precision, device: torch.device) -> None:
    """Those of linear algebra, for this thread and for the one that computes gradients."""
    layer = torch.nn.Linear(64, 64, device=device, dtype=precision.weights)
    with precision.computing(device):
        inputs = torch.ones(64, 64, device=device, dtype=precision.weights, requires_grad=True)
        layer(precision.entering(inputs)).float().sum().backward()
    torch.cuda.synchronize(device)


def inputs_of(chunk: Chunk) -> list[list[Any]]:
    """Type and shape of what arrives from the chunk before, as far as it is known."""
    specs = next(iter(chunk.arriving.values()), ())
    return [[str(spec.dtype).removeprefix("torch."), *spec.shape] for spec in specs]


def rehearse(chunk: Chunk, rows: list[list[Any]], device: torch.device) -> None:
    """Every operation once, on a module that is thrown away; `rows` is what `inputs_of` says."""
    program, precision = chunk.program, chunk.program.precision
    built = build_module(program, chunk.number, chunk.count, chunk.seed, cut=chunk.cut)
    module = built.to(device, precision.weights).train()
    target: Any = None
    inputs: tuple[torch.Tensor, ...] = ()
    if chunk.is_first or chunk.is_last:
        example = chunk.data.example()
        if example is None:
            return
        data, target = example
        target = target.to(device) if isinstance(target, torch.Tensor) else target
        inputs = tuple(each.to(device) for each in (data if isinstance(data, tuple) else (data,)))
    if not chunk.is_first:
        specs = [TensorSpec(tuple(row[1:]), getattr(torch, row[0])) for row in rows]
        inputs = tuple(_empty(spec, device) for spec in specs)
    with precision.computing(device):
        outputs = module(*map(precision.entering, inputs))
        outputs = program.loss(outputs, target) if chunk.is_last else outputs
    given = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [torch.ones_like(each) if each.requires_grad else None for each in given]
    prepare(module).backward_input(given, gradients).run()


def _empty(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    tensor = torch.zeros(spec.shape, dtype=spec.dtype, device=device)
    return tensor.requires_grad_(spec.dtype.is_floating_point)
