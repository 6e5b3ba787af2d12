"""From summed gradients to new parameters: clip, skip, step early, and take a step back.

    gradients   of a chunk, in a few long tensors: a `gradient_part` for each kind of parameters, and one of
                those in slots for stacked experts (`expert_gradients`)
    separable   how finely an optimizer's work can be divided
    shards      of a layer: rows of its parameters, whose state only some peers hold
    norm        of the whole model: how it is added up over workers, and what follows from it
    undo        of the last step
    moving      what moves with the steps beside an optimizer: schedules, averages, counters
    masters     float32 copies that are stepped in the place of bf16 weights
    by_layer    all of these for a layer, and several layers as one
    stepper     the order of these things within a step

Bytes for each trainable parameter, in float32 with AdamW: 4 for the gradient, 12 for undo, and 4 more for the
gradients of an early step when clipping is on.
"""

from recycle_runtime.execution.optimizer.by_layer import LayerOptimizer, LayerOptimizers, LayerUndo
from recycle_runtime.execution.optimizer.expert_gradients import ExpertRow, StartPeerSums
from recycle_runtime.execution.optimizer.gradient_part import OwnedPiece
from recycle_runtime.execution.optimizer.gradients import FlatGradients, Tied
from recycle_runtime.execution.optimizer.masters import Masters
from recycle_runtime.execution.optimizer.moving import Moving, moving_of
from recycle_runtime.execution.optimizer.norm import (
    Pending,
    Progress,
    StartSum,
    StepOptions,
    StepRecord,
    Totals,
    Verdict,
)
from recycle_runtime.execution.optimizer.stepper import (
    StepOrderError,
    Stepper,
    StepPhase,
    check_optimizer,
)
from recycle_runtime.execution.optimizer.undo import Undo, UndoError

__all__ = [
    "ExpertRow",
    "FlatGradients",
    "LayerOptimizer",
    "LayerOptimizers",
    "LayerUndo",
    "Masters",
    "Moving",
    "OwnedPiece",
    "Pending",
    "Progress",
    "StartPeerSums",
    "StartSum",
    "StepOptions",
    "StepOrderError",
    "StepPhase",
    "StepRecord",
    "Stepper",
    "Tied",
    "Totals",
    "Undo",
    "UndoError",
    "Verdict",
    "check_optimizer",
    "moving_of",
]
