"""From summed gradients to new parameters: clip, skip, step early, and take a step back.

    clipping             what follows from the norm of the whole model
    norm_sum             how that norm is added up over workers
    flat_gradients       the gradients of a stage in a few long tensors
    gradient_part        one of these tensors
    snapshot             undo of the last step
    kept_values          copies of anything an optimizer may hold
    group_options        learning rates and the like, which schedulers change
    accepted_optimizers  those a worker can drive
    stepper              the order of these things within a step

Bytes for each trainable parameter, in float32 with AdamW: 4 for the gradient, 12 for undo, and 4 more for the
gradients of an early step when clipping is on.
"""

from recycle_runtime.execution.optimizer.clipping import Progress, StepOptions, StepRecord, Totals, Verdict
from recycle_runtime.execution.optimizer.flat_gradients import FlatGradients
from recycle_runtime.execution.optimizer.norm_sum import Pending, StartSum
from recycle_runtime.execution.optimizer.snapshot import Undo, UndoError
from recycle_runtime.execution.optimizer.stepper import Phase, StepOrderError, Stepper

__all__ = [
    "FlatGradients",
    "Pending",
    "Phase",
    "Progress",
    "StartSum",
    "StepOptions",
    "StepOrderError",
    "StepRecord",
    "Stepper",
    "Totals",
    "Undo",
    "UndoError",
    "Verdict",
]
