"""Passes that state what must happen: build-graph, split-backward, stagger-optimizer, route-microbatches."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import print_graph
from recycle_compiler.passes.build_graph import BuildGraph
from recycle_compiler.passes.route_microbatches import RouteMicrobatches
from recycle_compiler.passes.split_backward import SplitBackward
from recycle_compiler.passes.stagger_optimizer import StaggerOptimizer
from tests.support.jobs import ALL, NONE, routed, small_targets, unit_job

Golden = Callable[[str, str], None]


def edges(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("edge")]


def test_build_graph_of_two_stages(golden: Golden) -> None:
    graph = BuildGraph().run(Target(unit_job(2, 1, 1), ()))
    golden("passes/build-graph/two-stages.txt", print_graph(graph))


def test_split_backward_of_two_stages(golden: Golden) -> None:
    graph = SplitBackward().run(BuildGraph().run(Target(unit_job(2, 1, 1), ())))
    golden("passes/split-backward/two-stages.txt", print_graph(graph))


def test_stagger_optimizer_of_two_stages(golden: Golden) -> None:
    graph = StaggerOptimizer().run(BuildGraph().run(Target(unit_job(2, 1, 1), ())))
    golden("passes/stagger-optimizer/two-stages.txt", print_graph(graph))


def test_nothing_but_synchronization_waits_for_a_weight_gradient() -> None:
    graph = SplitBackward().run(BuildGraph().run(Target(unit_job(3, 1, 2), ())))
    from_weight = graph.ops.kind[graph.before] == OpKind.W
    assert from_weight.sum() == 6
    assert (graph.ops.kind[graph.after[from_weight]] == OpKind.S).all()


def test_first_stage_with_room_for_one_keeps_its_backward_whole() -> None:
    graph = SplitBackward().run(BuildGraph().run(Target(unit_job(2, 1, 2, capacity=1), ())))
    assert set(graph.ops.chunk[graph.ops.kind == OpKind.B].tolist()) == {0}
    assert set(graph.ops.chunk[graph.ops.kind == OpKind.I].tolist()) == {1}


def test_techniques_that_are_off_change_nothing() -> None:
    graph = BuildGraph().run(Target(unit_job(2, 2, 2, techniques=NONE), ()))
    assert SplitBackward().run(graph) is graph
    assert StaggerOptimizer().run(graph) is graph


def test_microbatches_of_failed_workers_go_to_live_peers_in_turn() -> None:
    graph = routed(unit_job(2, 3, 4), failure_set([(2, 1)]))
    rerouted = (graph.ops.kind == OpKind.F) & (graph.ops.pipeline == 2) & (graph.ops.chunk == 1)
    assert (graph.ops.worker[rerouted] - 3).tolist() == [0, 1, 0, 1]
    rest = (graph.ops.kind <= OpKind.W) & ~((graph.ops.pipeline == 2) & (graph.ops.chunk == 1))
    assert (graph.ops.worker[rest] == 3 * graph.ops.chunk[rest] + graph.ops.pipeline[rest]).all()


def test_without_adaptive_a_failure_takes_its_pipeline_out_of_work() -> None:
    job = unit_job(2, 3, 4, techniques=replace(ALL, adaptive=False))
    graph = routed(job, failure_set([(2, 1)]))
    work = graph.ops.kind <= OpKind.W
    assert set(graph.ops.worker[work].tolist()) == {0, 1, 3, 4}


@settings(max_examples=60)
@given(small_targets())
def test_loads_differ_by_one_at_most(target: Target) -> None:
    graph = routed(target.job, target.failed)
    assert not list(graph.verify())
    forward = graph.ops.kind == OpKind.F
    for stage in range(target.job.stages):
        loads = np.unique(graph.ops.worker[forward & (graph.ops.chunk == stage)], return_counts=True)[1]
        assert loads.max() - loads.min() <= 1


@settings(max_examples=20)
@given(small_targets())
def test_passes_leave_their_argument_alone(target: Target) -> None:
    graph = BuildGraph().run(target)
    for step in (SplitBackward(), StaggerOptimizer(), RouteMicrobatches()):
        before = print_graph(graph)
        after = step.run(graph)
        assert print_graph(graph) == before
        graph = after
