"""Modules that every worker process would load for itself, loaded once before they are forked."""

import gc
import importlib

import torch


def preload(*, checkpoints: bool = False) -> None:
    """Torch loads much of itself when the first optimizer is made: seconds, for each process."""
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    if checkpoints:
        importlib.import_module("recycle_runtime.checkpoint.writer")
    # What is loaded now stays; looking for garbage among it would take a worker a tenth of a second.
    gc.collect()
    gc.freeze()
