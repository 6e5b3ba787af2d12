"""How many nodes a job needs, and what the loss of one of them takes along."""

from dataclasses import dataclass


class LayoutError(ValueError):
    """The job does not fit, in one sentence."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Nodes of equal size. A worker has one process for each tensor-parallel part, all on one node."""

    stages: int
    pipelines: int
    tensor: int
    nodes: int
    slots: int
    """Worker processes that each node has room for."""

    @property
    def processes(self) -> int:
        return self.stages * self.pipelines * self.tensor

    def stages_on_one_node(self) -> tuple[int, ...]:
        """Stages that have all their workers on one node.

        The coordinator fills one node after the other, with workers by stage, then pipeline.
        """
        room, size = self.slots // self.tensor, self.pipelines
        return tuple(
            stage for stage in range(self.stages) if stage * size // room == (stage * size + size - 1) // room
        )


def lay_out(stages: int, pipelines: int, tensor: int, slots: int, nodes: int | None = None) -> Layout:
    """As many nodes as are asked for, else as few as will do."""
    if slots < tensor:
        raise LayoutError(
            f"--workers-per-node {slots} is too few: "
            f"the {tensor} tensor-parallel ranks of a worker share a node"
        )
    needed = -(-stages * pipelines // (slots // tensor))
    if nodes is not None and nodes < needed:
        raise LayoutError(
            f"--nodes {nodes} with --workers-per-node {slots} is too few: "
            f"the job has {stages * pipelines * tensor} worker processes "
            f"({pipelines} pipelines, {stages} stages, {tensor} tensor-parallel), "
            f"which takes {needed} such nodes"
        )
    return Layout(stages, pipelines, tensor, needed if nodes is None else nodes, slots)
