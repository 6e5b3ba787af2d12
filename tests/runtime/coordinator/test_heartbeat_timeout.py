"""Nodes that are given up when nothing is heard of them."""

import pytest

from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.agents import AgentJoin, RunningProcess
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import ToAgent


class _Line:
    def send(self, message: ToAgent) -> None: ...

    def close(self) -> None: ...


class _Nodes:
    """One worker each; the job needs at least one of them."""

    def __init__(self, count: int) -> None:
        self.now = 50.0
        self.agents = Agents(1, heartbeat_timeout=3.0, now=self.now)
        self.lines = [_Line() for _ in range(count)]
        for number, line in enumerate(self.lines):
            self.arrive(number, line)

    def arrive(self, number: int, line: _Line) -> object:
        running = (RunningProcess(Member((number, 0), 0), 7),)
        return self.agents.arrive(line, AgentJoin(f"agent {number}", 2, running), self.now)

    def later(self, seconds: float, heard: list[int]) -> list[int]:
        """Nodes that are given up when only these go on speaking."""
        failed: list[Worker] = []
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            for number in heard:
                self.agents.heard(self.lines[number], self.now)
            for _, members in self.agents.timed_out(lambda gone: len(gone) < len(self.lines), self.now):
                failed += [member.worker for member in members]
        return [pipeline for pipeline, _ in failed]


def test_a_node_without_heartbeats_is_given_up() -> None:
    nodes = _Nodes(3)
    assert nodes.later(3.0, heard=[0, 2]) == []
    assert nodes.later(1.0, heard=[0, 2]) == [1]
    assert nodes.later(60.0, heard=[0, 2]) == []


def test_if_none_has_a_heartbeat_they_get_more_time() -> None:
    nodes = _Nodes(3)
    assert nodes.later(25.0, heard=[]) == []
    assert nodes.later(60.0, heard=[0, 1, 2]) == []
    assert sorted(nodes.later(31.0, heard=[])) == [0, 1, 2]


def test_an_agent_with_a_new_connection_is_the_same() -> None:
    nodes = _Nodes(2)
    again = _Line()
    assert nodes.arrive(1, again) is nodes.lines[1]
    nodes.lines[1] = again
    assert nodes.later(60.0, heard=[0, 1]) == []
    assert nodes.agents.has(Member((1, 0), 0))


def test_a_node_that_others_do_not_reach_gets_no_more_workers() -> None:
    nodes = _Nodes(1)
    nodes.agents.shun(Member((0, 0), 0))
    assert not nodes.agents.start((5, 0), ())
    nodes.agents.leave(nodes.lines[0])
    nodes.agents.arrive(_Line(), AgentJoin("another", 2, ()), nodes.now)
    assert nodes.agents.start((5, 0), ())


def test_a_coordinator_that_did_not_listen_blames_nobody() -> None:
    nodes = _Nodes(3)
    nodes.later(2.0, heard=[0, 1, 2])
    nodes.now += 10.0
    nodes.agents.heard(nodes.lines[0], nodes.now)
    assert nodes.agents.timed_out(lambda gone: True, nodes.now) == []
    assert nodes.later(4.0, heard=[0, 1]) == [2]


@pytest.mark.parametrize("looks_first", [False, True])
@pytest.mark.parametrize("stopped", [1.4, 2.4])
def test_what_was_said_while_it_did_not_listen_may_be_old(stopped: float, looks_first: bool) -> None:
    """Node 1 is cut off, and the last that is heard of node 0 was said soon after the coordinator was
    stopped: neither is given up because the other is there."""
    nodes = _Nodes(2)
    nodes.later(2.0, heard=[0, 1])
    nodes.now += stopped
    if looks_first:
        assert nodes.agents.timed_out(lambda gone: len(gone) < 2, nodes.now) == []
    nodes.agents.heard(nodes.lines[0], nodes.now)
    assert nodes.later(20.0, heard=[]) == []
    assert nodes.later(20.0, heard=[1]) == [0]


def test_a_node_that_others_do_not_reach_stays_so_until_another_agent_runs_there() -> None:
    nodes = _Nodes(2)
    nodes.agents.shun(Member((1, 0), 0))
    nodes.agents.leave(nodes.lines[0])
    nodes.agents.leave(nodes.lines[1])
    again = _Line()
    nodes.arrive(1, again)
    assert not nodes.agents.start((5, 0), ())
    nodes.agents.arrive(_Line(), AgentJoin("a new agent", 2, ()), nodes.now)
    assert nodes.agents.start((5, 0), ())
