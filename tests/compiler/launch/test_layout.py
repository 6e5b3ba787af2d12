"""Nodes that a job takes, and stages that one of them can take along."""

import pytest

from recycle_compiler.launch.layout import NodeLayoutError, lay_out_nodes


def test_as_few_nodes_as_will_do() -> None:
    assert lay_out_nodes(4, 3, 1, workers_per_node=8).nodes == 2
    assert lay_out_nodes(4, 3, 1, workers_per_node=12).nodes == 1
    assert lay_out_nodes(4, 3, 1, workers_per_node=5, nodes=7).nodes == 7


def test_the_ranks_of_a_worker_stay_together() -> None:
    layout = lay_out_nodes(2, 3, 2, workers_per_node=3)
    assert (layout.processes, layout.nodes) == (12, 6)
    with pytest.raises(NodeLayoutError, match="the 4 tensor-parallel ranks of a worker share a node"):
        lay_out_nodes(2, 2, 4, workers_per_node=3)


def test_too_few_nodes() -> None:
    with pytest.raises(NodeLayoutError, match=r"12 worker processes .* which takes 3 such nodes"):
        lay_out_nodes(4, 3, 1, workers_per_node=5, nodes=2)


@pytest.mark.parametrize(
    ("pipelines", "tensor", "workers_per_node", "stages"),
    [
        (3, 1, 4, ()),
        (3, 1, 8, ()),
        (3, 1, 9, ()),
        (3, 1, 11, ()),
        (3, 1, 12, (0, 1, 2, 3)),
        (3, 2, 17, ()),
        (3, 2, 18, ()),
        (3, 2, 24, (0, 1, 2, 3)),
        (1, 1, 1, (0, 1, 2, 3)),
    ],
)
def test_stages_that_go_with_one_node(
    pipelines: int, tensor: int, workers_per_node: int, stages: tuple[int, ...]
) -> None:
    layout = lay_out_nodes(4, pipelines, tensor, workers_per_node)
    assert layout.stages_on_one_node() == stages
    assert (workers_per_node // tensor * tensor <= layout.most_workers_per_node) == (stages == ())
