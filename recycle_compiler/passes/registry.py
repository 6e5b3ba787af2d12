"""The passes by name, in the order they run."""

from recycle_compiler.passes.assign_buffers import AssignBuffers
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.base import Pass
from recycle_compiler.passes.build_graph import BuildGraph
from recycle_compiler.passes.canonicalize_schedule import CanonicalizeSchedule
from recycle_compiler.passes.insert_transfers import InsertTransfers
from recycle_compiler.passes.normalize_failures import NormalizeFailures
from recycle_compiler.passes.route_microbatches import RouteMicrobatches
from recycle_compiler.passes.split_backward import SplitBackward
from recycle_compiler.passes.stagger_optimizer import StaggerOptimizer

GRAPH_PASSES: tuple[Pass, ...] = (
    NormalizeFailures(),
    BuildGraph(),
    SplitBackward(),
    StaggerOptimizer(),
    RouteMicrobatches(),
)
"""What must happen, and where."""

LOWERING_PASSES: tuple[Pass, ...] = (CanonicalizeSchedule(), InsertTransfers(), AssignBuffers())
"""From times to instructions."""


def all_passes(assign_slots: AssignSlots | None = None) -> tuple[Pass, ...]:
    """From a target to a program."""
    return (*GRAPH_PASSES, assign_slots or AssignSlots(), *LOWERING_PASSES)


def passes_named(names: tuple[str, ...]) -> tuple[Pass, ...]:
    """The passes with these names; raises KeyError for one that does not exist."""
    known = {step.name: step for step in all_passes()}
    return tuple(known[name] for name in names)
