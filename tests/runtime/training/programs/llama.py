"""A tiny Llama of `transformers` in float64; the model is given whole, and computes its own loss."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, WIDTH, ROWS, LENGTH = 48, 16, 4, 8


def model() -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        dtype=torch.float64,
    )
    return LlamaForCausalLM(config).double()


def batches(seed: int) -> Iterator[dict[str, Tensor]]:
    """Some rows end early; what is filled up has a mask."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
        mask = torch.ones_like(tokens)
        mask[0, LENGTH - int(torch.randint(3, (), generator=generator)) :] = 0
        yield {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)
