"""Which node each worker runs on. Standard library only.

    three pipelines of four stages,     node 0   0:0 0:1 0:2 0:3
    four workers on a node              node 1   1:0 1:1 1:2 1:3
                                        node 2   2:0 2:1 2:2 2:3

Workers are placed pipeline after pipeline, each on the first node that has room for all its tensor-parallel
ranks. So a node that holds no more workers than there are stages holds no two peers, and its failure takes
at most one worker of any stage. A larger node holds peers too, even where these could be kept apart.

The coordinator places workers by these functions, `recyclec launch` warns by them, and the simulator decides
by them whom the failure of a node takes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from recycle_runtime.plan.assembly import Worker


def placement_order(workers: Iterable[Worker]) -> list[Worker]:
    """In which order workers get a node: by pipeline, then by stage."""
    return sorted(workers)


def first_with_room(free: Iterable[int], ranks: int) -> int | None:
    """The first node on which so many processes are free; None if there is none."""
    return next((node for node, processes in enumerate(free) if processes >= ranks), None)


def fill_nodes(workers: Sequence[Worker], per_node: int) -> tuple[tuple[Worker, ...], ...]:
    """The workers on each of as many equal nodes as it takes, in the order given, `per_node` on each."""
    # All workers are equally large, so the first node with room is always the last one that was begun.
    return tuple(tuple(workers[first : first + per_node]) for first in range(0, len(workers), per_node))


def stages_on_one_node(nodes: Iterable[Sequence[Worker]], pipelines: int) -> tuple[int, ...]:
    """Stages that have all their workers on one node: its failure takes them along."""
    held = (Counter(stage for _, stage in workers) for workers in nodes)
    return tuple(sorted(stage for stages in held for stage, count in stages.items() if count == pipelines))
