"""Nodes of workers: one order for the coordinator, `recyclec launch` and the simulator."""

from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.fleet.machines import lay_out as simulated_nodes
from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.node_layout import fill_nodes, placement_order, stages_on_one_node
from recycle_runtime.protocol.messages.agents import AgentJoin, StartProcess
from recycle_runtime.protocol.messages.wire import ToAgent


class Node:
    """An agent that only notes what it is asked to start."""

    def __init__(self) -> None:
        self.started: list[Worker] = []

    def send(self, message: ToAgent) -> None:
        assert isinstance(message, StartProcess)
        if message.member.tp_rank == 0:
            self.started.append(message.member.worker)

    def close(self) -> None:
        pass


def grid(pipelines: int, stages: int) -> list[Worker]:
    return [(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]


def test_a_node_that_holds_a_pipeline_holds_no_two_peers() -> None:
    nodes = fill_nodes(placement_order(grid(3, 4)), 4)
    assert nodes == tuple(tuple((pipeline, stage) for stage in range(4)) for pipeline in range(3))
    assert stages_on_one_node(nodes, 3) == ()
    assert stages_on_one_node(fill_nodes(placement_order(grid(3, 4)), 9), 3) == (0,)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 7))
def test_the_coordinator_fills_nodes_like_that(
    pipelines: int, stages: int, tensor: int, per_node: int
) -> None:
    expected = fill_nodes(placement_order(grid(pipelines, stages)), per_node)
    agents, nodes = Agents(tensor), [Node() for _ in expected]
    for node in nodes:
        agents.arrive(node, AgentJoin("", per_node * tensor + tensor - 1, ()), 0.0)
    for worker in placement_order(grid(pipelines, stages)):
        assert agents.start(worker, ())
    assert tuple(tuple(node.started) for node in nodes) == expected
    assert simulated_nodes(pipelines, stages, tensor, per_node * tensor).places == expected
