"""The pipelines that plans are made by."""

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_buffers import AssignBuffers
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.build_graph import BuildGraph
from recycle_compiler.passes.canonicalize_schedule import CanonicalizeSchedule
from recycle_compiler.passes.insert_transfers import InsertTransfers
from recycle_compiler.passes.normalize_failures import NormalizeFailures
from recycle_compiler.passes.pipeline import Pipeline
from recycle_compiler.passes.route_microbatches import RouteMicrobatches
from recycle_compiler.passes.split_backward import SplitBackward
from recycle_compiler.passes.stagger_optimizer import StaggerOptimizer

GRAPH_PASSES: Pipeline[Target, Graph] = (
    NormalizeFailures() >> BuildGraph() >> SplitBackward() >> StaggerOptimizer() >> RouteMicrobatches()
)
"""Passes that decide which ops there are and where they run."""

LOWERING_PASSES: Pipeline[Schedule, Streams] = CanonicalizeSchedule() >> InsertTransfers() >> AssignBuffers()
"""From times to instructions."""


def all_passes(assign_slots: AssignSlots | None = None) -> Pipeline[Target, Streams]:
    """From a target to streams."""
    return GRAPH_PASSES >> (assign_slots or AssignSlots()) >> LOWERING_PASSES
