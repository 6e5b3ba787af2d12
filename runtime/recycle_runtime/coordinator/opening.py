"""A coordinator that starts: where its job begins, and who takes checkpoints. Standard library only."""

from collections.abc import Callable

from recycle_runtime.checkpoint.manifest import Shape
from recycle_runtime.checkpoint.shelf import Beginning, Shelf, beginning
from recycle_runtime.coordinator.checkpoints import Saving
from recycle_runtime.coordinator.coordinator import Coordinator
from recycle_runtime.coordinator.journal import Journal, Remembered
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages import Member, TakeCheckpoint


def begin_job(
    coordinator: Coordinator,
    bundle: Bundle,
    folder: str,
    every: int,
    resume: bool,
    remembered: Remembered | None,
    journal: Journal,
    order: Callable[[Member, TakeCheckpoint], None],
    say: Callable[[str], None],
) -> str:
    """What there is to say about it. A job that is under way already goes on as its journal has it."""
    shape = Shape(bundle.stages, bundle.pipelines, bundle.tensor, bundle.microbatches)
    if remembered is None:
        begins = beginning(folder, shape, coordinator.steps, resume=resume)
        journal.write(begins=[begins.checkpoint, begins.step, begins.item])
    else:
        begins = Beginning(remembered.restore, remembered.first_step, remembered.first_item)
    coordinator.restore = begins.checkpoint
    coordinator.first_step, coordinator.first_item = begins.step, begins.item
    coordinator.rows.next = begins.step
    coordinator.saving = Saving(Shelf(folder), shape, every, coordinator.steps, begins, order, say)
    if remembered is not None:
        coordinator.saving.look()
    return begins.words
