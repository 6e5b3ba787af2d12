"""Where a run begins: with the newest checkpoint, or from the first step. Standard library only."""

from pathlib import Path
from typing import NamedTuple

from recycle_runtime.checkpoint.manifest import Shape
from recycle_runtime.checkpoint.sealed_json import CheckpointError
from recycle_runtime.checkpoint.shelf import Complete, Shelf


class Beginning(NamedTuple):
    """The first step of a run, and what it begins with."""

    checkpoint: str | None = None
    """The name of its folder."""
    step: int = 0
    item: int = 0
    """The number of the first micro-batch in the program's sequence."""
    seed: int | None = None
    """That the checkpoint was made with."""
    words: str = ""
    """For the user, if there is something to say."""


def beginning(folder: str | Path, shape: Shape, steps: int, *, resume: bool) -> Beginning:
    """CheckpointError when the folder's checkpoints are not what this run can go on from."""
    found, damaged = Shelf(folder).look()
    if not resume:
        if found or damaged:
            what = f"a checkpoint of step {found[0].manifest.step}" if found else "a damaged checkpoint"
            raise CheckpointError(
                f"{folder}: there is {what} already: go on from it with --resume, or name another folder"
            )
        return Beginning()
    if not found:
        if damaged:
            raise CheckpointError(damaged[0])
        return Beginning(words=f"{folder} has no complete checkpoint: starting with the first step")
    newest = found[0]
    _check(Path(folder) / newest.name, newest, shape, steps)
    manifest = newest.manifest
    words = f"going on with step {manifest.step} from {Path(folder) / newest.name}"
    if damaged:
        words += f" (not used: {damaged[0]})"
    return Beginning(newest.name, manifest.step, manifest.items, manifest.seed, words)


def _check(path: Path, found: Complete, shape: Shape, steps: int) -> None:
    made = found.manifest.shape
    for name, of_checkpoint, of_job in (
        ("stages", made.stages, shape.stages),
        ("tensor-parallel parts", made.tensor, shape.tensor),
    ):
        if of_checkpoint != of_job:
            raise CheckpointError(
                f"{path}: made by a job with {of_checkpoint} {name}, and this one has {of_job}: only "
                "pipelines and micro-batches may differ"
            )
    if found.manifest.step >= steps:
        raise CheckpointError(
            f"{path}: has {found.manifest.step} steps already, and --steps asks for {steps} in all"
        )
