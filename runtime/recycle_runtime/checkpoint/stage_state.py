"""A stage as it is between two steps, and back."""

from pathlib import Path
from typing import Any

from recycle_runtime.checkpoint.host_copy import HostCopy
from recycle_runtime.checkpoint.manifest import CheckpointError, Manifest, part_name
from recycle_runtime.checkpoint.storage import Tensors, read_part, take_apart
from recycle_runtime.execution.stage import Stage
from recycle_runtime.worker.copies import load, state_of


def about(stage: Stage, step: int) -> dict[str, int]:
    """What a part must say about itself to be of use."""
    return {"step": step, "seed": stage.seed, "stage": stage.stage, "part": stage.part}


def copied(stage: Stage, memory: HostCopy) -> tuple[Any, Tensors]:
    """The state after as many steps as were applied, all of them settled.

    The next step may be under way, as long as its gradients have not been used: buffers that its forwards
    have changed are taken as they were before.
    """
    with stage.buffers.as_begun(stage.applied):
        tree, tensors = take_apart(state_of(stage))
        return tree, memory.take(tensors)


def restore(stage: Stage, checkpoint: Path, step: int) -> None:
    """Become what the checkpoint holds; CheckpointError when it does not fit."""
    manifest = Manifest.read(checkpoint)
    name = part_name(stage.stage, stage.part)
    state = read_part(checkpoint / name, about(stage, step), manifest.parts.get(name, -1))
    stage.is_whole = False
    try:
        load(stage, state)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{checkpoint / name}: does not fit the program's stage: {why}") from None
