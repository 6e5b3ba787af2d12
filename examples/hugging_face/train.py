"""Trains a small Llama of `transformers` on a memory-mapped file of tokens, with workers that may fail.

cd examples/hugging_face
python tokens.py ../../README.md ../../docs/*.md -o tokens.bin
recycle-run profile --program profiled.py --layers --pipelines 2 -o llama.json
recyclec compile llama.job -o llama.plan
recycle-run local llama.plan --kill 1:1@10 --rejoin 1:1@20 train.py tokens.bin --steps 50
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM

import recycle_runtime as recycle

ROWS, LENGTH = 4, 64


def model() -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


class Rows:
    """Micro-batches by their number, from a file of bytes that is mapped, not read."""

    def __init__(self, path: Path) -> None:
        self.tokens = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)

    def microbatch(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        starts = torch.randint(len(self.tokens) - LENGTH, (ROWS,), generator=generator)
        rows = torch.stack([self.tokens[start : start + LENGTH] for start in starts.tolist()]).long()
        return {"input_ids": rows, "labels": rows}


def optimizer(named: Any) -> torch.optim.Optimizer:
    """Weight decay for matrices alone."""
    pairs = list(named)
    matrices = [parameter for _, parameter in pairs if parameter.dim() > 1]
    vectors = [parameter for _, parameter in pairs if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return AdamW([group for group in groups if group["params"]], lr=3e-3)


def schedule(optimizer: torch.optim.Optimizer) -> LambdaLR:
    """Ten steps of warm-up, then a cosine."""
    return LambdaLR(optimizer, lambda step: min((step + 1) / 10, 0.5 + 0.5 * math.cos(step / 100)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()

    rows = Rows(options.tokens)
    trainer = recycle.Trainer(model(), optimizer=optimizer, schedule=schedule, clip_norm=1.0)
    for step in trainer.steps(options.steps):
        report = trainer.step(rows)
        if step % 10 == 0:
            trainer.print(step, f"{report.loss:.4f}")


if __name__ == "__main__":
    main()
