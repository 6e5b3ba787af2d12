"""What `recycle-run profile` measures: the model of train.py with one of its micro-batches."""

import torch
from torch import Tensor
from train import LENGTH, ROWS, model, optimizer

__all__ = ["microbatch", "model", "optimizer"]


def microbatch(index: int) -> dict[str, Tensor]:
    rows = torch.randint(256, (ROWS, LENGTH), generator=torch.Generator().manual_seed(index))
    return {"input_ids": rows, "labels": rows}
