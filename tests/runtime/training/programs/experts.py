"""Tiny mixtures of experts of `transformers` in float64, with the loss that balances experts."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import recycle_runtime as recycle

KIND: str = "mixtral"
EXPERTS: str = "eager"
VOCABULARY, WIDTH, ROWS, LENGTH = 48, 16, 2, 8
HEADS: dict[str, Any] = {"head_dim": 8}
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.5,
    "experts_implementation": "eager" if EXPERTS == "shared" else EXPERTS,  # pyright: ignore[reportUnnecessaryComparison]
}


def model() -> nn.Module:
    made = untouched()
    return recycle.share_experts(made) if EXPERTS == "shared" else made


def untouched() -> nn.Module:
    if KIND == "mixtral":
        return MixtralForCausalLM(MixtralConfig(**COMMON, num_local_experts=4)).double()
    own: dict[str, Any] = {**COMMON, "num_experts": 4, "moe_intermediate_size": WIDTH}
    if KIND == "qwen2":
        return Qwen2MoeForCausalLM(Qwen2MoeConfig(**own, shared_expert_intermediate_size=WIDTH)).double()
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**own, **HEADS)).double()


def batches(seed: int) -> Iterator[dict[str, Tensor]]:
    """Some rows end early."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
        mask = torch.ones_like(tokens)
        mask[0, LENGTH - int(torch.randint(3, (), generator=generator)) :] = 0
        yield {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)
