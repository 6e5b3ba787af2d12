"""From the failures of the day to the ones a plan is for: the cheapest set of moves of healthy workers.

    actual  (0, 2, 0, 0)        move a worker from stage 2 to stage 1
    planned (0, 1, 1, 0)

A worker that moves copies the parameters and optimizer state of its new stage from a peer, so a move costs
the bytes of the stage it goes to. This is a flow from stages that have a worker to give to stages that want
one.
"""

from typing import Any, cast

import networkx as nx  # pyright: ignore[reportMissingTypeStubs]

from recycle_compiler.ir.job import JobSpec

Move = tuple[int, int]
"""From this stage, to that stage."""


def least_moves(actual: tuple[int, ...], planned: tuple[int, ...], job: JobSpec) -> tuple[Move, ...]:
    """The moves that turn the actual counts of failures per stage into the planned ones."""
    if sum(actual) != sum(planned):
        raise ValueError("moves keep the number of failures")
    if job.pipelines in actual:
        raise ValueError("a stage that has lost everybody has no peer to copy from")
    if actual == planned:
        return ()
    gives = [s for s in range(job.stages) if planned[s] > actual[s]]
    wants = [s for s in range(job.stages) if actual[s] > planned[s]]
    graph = cast(Any, nx.DiGraph())
    for stage in (*gives, *wants):
        # Demand is what flows in: negative where workers come from.
        graph.add_node(stage, demand=actual[stage] - planned[stage])
    for source in gives:
        for target in wants:
            distance = abs(source - target)
            graph.add_edge(source, target, weight=job.parameters[target] * job.stages + distance)
    flow = cast(dict[int, dict[int, int]], nx.min_cost_flow(graph))
    return tuple(
        (source, target) for source in gives for target in wants for _ in range(flow[source][target])
    )
