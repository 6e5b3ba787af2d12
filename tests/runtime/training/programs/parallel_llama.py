"""The tiny Llama of `llama.py`, its attention and its MLPs distributed over the ranks of a worker."""

from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

_LLAMA = Path(__file__).with_name("llama.py")
exec(compile(_LLAMA.read_text(), str(_LLAMA), "exec"))

CLIP_NORM = 1.0

PLAN: dict[str, ParallelStyle] = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
    "model.layers.*.self_attn.q_proj": ColwiseParallel(),
    "model.layers.*.self_attn.k_proj": ColwiseParallel(),
    "model.layers.*.self_attn.v_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(),
    "lm_head": ColwiseParallel(output_layouts=Replicate()),
}


def parallelize(layer: nn.Module, mesh: Any) -> None:
    parallelize_module(layer, mesh, PLAN)
