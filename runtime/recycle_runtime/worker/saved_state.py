"""Files of `--save`: the parameters of each worker in a file of its own."""

import errno
import json
from pathlib import Path
from typing import Any

import torch

from recycle_runtime.files import writing_whole
from recycle_runtime.options.run import AGENT, RunOptions, told
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.worker.held_chunks import HeldChunks


def save_state(folder: Path, worker: Worker, tp_rank: int, options: RunOptions, chunks: HeldChunks) -> None:
    """Write the parameters of a worker to the folder of `--save`."""
    name = f"worker-{worker[0]}-{worker[1]}-{tp_rank}.pt"
    # All shards of a layer have the same schedule.
    stepped = {layer.title: each for layer in chunks.layers for each in layer.steppers[:1]}
    moving = {name: each.moving.state_dict() for name, each in stepped.items() if not each.moving.is_empty}
    about = told(options, AGENT) | {"worker": worker, "tp_rank": tp_rank}
    saved: dict[str, Any] = {"options": json.dumps(about, default=str), "moving": moving}
    saved["model"] = chunks.state_dict()
    if chunks.residents:
        saved["experts"] = chunks.residents
    with writing_whole(folder / name) as file:
        try:
            torch.save(saved, file)
        except RuntimeError as error:
            # Torch wraps what the system says, and hides it.
            raise OSError(errno.EIO, str(error.__context__ or error)) from error
