"""Nodes of a job, and the stages that the failure of one of them takes along."""

from dataclasses import dataclass

from recycle_runtime.plan.node_layout import even_share, fill_nodes, placement_order, stages_on_one_node


class NodeLayoutError(ValueError):
    """The job does not fit, in one sentence."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Nodes of equal size. A worker has one process for each tensor-parallel rank, all on one node."""

    stages: int
    pipelines: int
    tensor: int
    nodes: int
    workers_per_node: int
    """Worker processes that each node has room for."""
    vacant: int = 0
    """Cells of the grid without a worker."""

    @property
    def processes(self) -> int:
        return (self.stages * self.pipelines - self.vacant) * self.tensor

    def stages_on_one_node(self) -> tuple[int, ...]:
        """Stages that have all their workers on one node, as the coordinator will place them."""
        grid = [(pipeline, stage) for pipeline in range(self.pipelines) for stage in range(self.stages)]
        each = min(self.workers_per_node // self.tensor, even_share(len(grid), self.nodes))
        nodes = fill_nodes(placement_order(grid), each)
        return stages_on_one_node(nodes, self.pipelines)

    @property
    def most_workers_per_node(self) -> int:
        """With so many on each node, the failure of any node leaves a worker of every stage; 0: none does."""
        # Two nodes get half of the workers each, and no half has all workers of a stage.
        return (self.pipelines * self.stages - 1) * self.tensor if self.pipelines > 1 else 0


def lay_out_nodes(
    stages: int,
    pipelines: int,
    tensor: int,
    workers_per_node: int,
    nodes: int | None = None,
    vacant: int = 0,
) -> NodeLayout:
    """As many nodes as are asked for, else as few as will do."""
    if workers_per_node < tensor:
        raise NodeLayoutError(
            f"--workers-per-node {workers_per_node} is too few: "
            f"the {tensor} tensor-parallel ranks of a worker share a node"
        )
    workers = stages * pipelines - vacant
    needed = -(-workers // (workers_per_node // tensor))
    if nodes is not None and nodes < needed:
        raise NodeLayoutError(
            f"--nodes {nodes} with --workers-per-node {workers_per_node} is too few: "
            f"the job has {workers * tensor} worker processes "
            f"({pipelines} pipelines, {stages} stages, {tensor} tensor-parallel), "
            f"which takes {needed} such nodes"
        )
    return NodeLayout(stages, pipelines, tensor, needed if nodes is None else nodes, workers_per_node, vacant)
