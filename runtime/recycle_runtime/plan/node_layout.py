"""Nodes of workers. Standard library only.

    three pipelines of four stages,     node 0   0:0 0:1 0:2 0:3
    four workers on a node              node 1   1:0 1:1 1:2 1:3
                                        node 2   2:0 2:1 2:2 2:3

Workers are placed pipeline after pipeline, each on the first node that has room for all its tensor-parallel
ranks. So a node that holds no more workers than there are stages holds no two peers, and its failure takes
at most one worker of any stage. Where it is known how many nodes there will be, all get the same number of
workers: neighbours in this order are as many different stages as can be, so no order keeps peers further
apart. A worker that is started again goes where fewest of its peers are.

The coordinator places workers by these functions, `recyclec launch` warns by them, and the simulator decides
by them whom the failure of a node takes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from recycle_runtime.plan.assembly import Worker


def placement_order(workers: Iterable[Worker]) -> list[Worker]:
    """In which order workers get a node: by pipeline, then by stage."""
    return sorted(workers)


class NodeLoad(NamedTuple):
    """A node on which a worker may be started again."""

    free: int
    """Processes that it has room for."""
    workers: Collection[Worker]
    """Those that run there."""
    is_avoided: bool = False
    """True if others come first."""


def best_with_room(nodes: Iterable[NodeLoad], worker: Worker, ranks: int) -> int | None:
    """The node with room that has fewest peers of a worker, the first of equals; None if there is none."""
    ordered = sorted(
        (node.is_avoided, sum(stage == worker[1] for _, stage in node.workers), number)
        for number, node in enumerate(nodes)
        if node.free >= ranks
    )
    return ordered[0][2] if ordered else None


def even_share(workers: int, nodes: int) -> int:
    """Workers on each of so many nodes, if none is to have more than it must."""
    return -(-workers // nodes)


def fill_nodes(workers: Sequence[Worker], per_node: int) -> tuple[tuple[Worker, ...], ...]:
    """The workers on each of as many equal nodes as it takes, in the order given, `per_node` on each."""
    # All workers are equally large, so the first node with room is always the last one that was begun.
    return tuple(tuple(workers[first : first + per_node]) for first in range(0, len(workers), per_node))


def stages_on_one_node(nodes: Iterable[Sequence[Worker]], pipelines: int) -> tuple[int, ...]:
    """Stages that have all their workers on one node: its failure takes them along."""
    held = (Counter(stage for _, stage in workers) for workers in nodes)
    return tuple(sorted(stage for stages in held for stage, count in stages.items() if count == pipelines))
