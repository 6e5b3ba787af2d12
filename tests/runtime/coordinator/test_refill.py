"""Failed workers are started again: when, and where."""

from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.coordinator.refill import FIRST_PAUSE, LONGEST_PAUSE, Refill
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.agents import AgentJoin, StartProcess
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import ToAgent

WORKER: Worker = (1, 2)


def pause_of(refill: Refill, since: float) -> float:
    """Seconds until it may be started, found by asking at every half second."""
    return next(
        half / 2 for half in range(2 * int(LONGEST_PAUSE) + 2) if refill.due([WORKER], since + half / 2)
    )


def test_pauses_double_while_it_dies_soon() -> None:
    refill, now, pauses = Refill(), 0.0, list[float]()
    for _ in range(12):
        refill.ended(WORKER, "host/1", now)
        pauses.append(pause_of(refill, now))
        now += pauses[-1]
        refill.started(WORKER, "host/1", now)
        now += 0.25
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert pauses[-1] == LONGEST_PAUSE
    refill.ended(WORKER, "host/1", now + 1000)
    assert pause_of(refill, now + 1000) == FIRST_PAUSE


def test_all_ranks_of_a_worker_are_one_failure() -> None:
    refill = Refill()
    refill.started(WORKER, "host/1", 0.0)
    refill.ended(WORKER, "host/1", 5.0)
    refill.ended(WORKER, "host/1", 5.5)
    assert not refill.due([WORKER], 5.75)
    assert refill.due([WORKER, (0, 0)], 6.0) == [WORKER, (0, 0)]


def test_a_new_node_ends_every_pause() -> None:
    refill = Refill()
    for at in (0.0, 1.0, 2.0):
        refill.started(WORKER, "host/1", at)
        refill.ended(WORKER, "host/1", at + 0.5)
    assert not refill.due([WORKER], 3.0)
    refill.new_node()
    assert refill.due([WORKER], 3.0) == [WORKER]


def test_a_node_on_which_it_keeps_dying_is_named_once() -> None:
    refill, said = Refill(), list[str | None]()
    for at in (0.0, 100.0, 200.0):
        refill.started(WORKER, "gpu7/ab", at)
        said.append(refill.ended(WORKER, "gpu7/ab", at + 1))
    assert said == [
        None,
        "1:2 has died 2 times on gpu7: it is started elsewhere if there is room",
        None,
    ]
    assert refill.avoided(WORKER, ["gpu7/ab", "gpu8/cd"]) == {"gpu7/ab"}
    assert refill.avoided((0, 0), ["gpu7/ab", "gpu8/cd"]) == set()
    refill.started((0, 0), "gpu7/ab", 300.0)
    refill.ended((0, 0), "gpu7/ab", 301.0)
    assert refill.avoided((3, 3), ["gpu7/ab", "gpu8/cd"]) == {"gpu7/ab"}, "four deaths, of several"


class Node:
    def __init__(self) -> None:
        self.started: list[Worker] = []

    def send(self, message: ToAgent) -> None:
        assert isinstance(message, StartProcess)
        self.started.append(message.member.worker)

    def close(self) -> None: ...


def two_nodes(room: int) -> tuple[Agents, Node, Node]:
    agents, first, second = Agents(1), Node(), Node()
    agents.arrive(first, AgentJoin("one/1", room, ()), 0.0)
    agents.arrive(second, AgentJoin("two/2", room, ()), 0.0)
    return agents, first, second


def test_it_goes_where_fewest_of_its_peers_are() -> None:
    agents, first, second = two_nodes(3)
    assert agents.start((0, 0), ())
    assert agents.replace((0, 1), (), ()) == "one/1"
    assert agents.replace((1, 0), (), ()) == "two/2"
    assert agents.replace((1, 0), (), ()) is None, "it runs"
    assert first.started == [(0, 0), (0, 1)]
    assert second.started == [(1, 0)]


def test_an_avoided_node_is_better_than_none() -> None:
    agents, first, second = two_nodes(1)
    assert agents.replace((0, 0), (), {"one/1"}) == "two/2"
    assert agents.replace((1, 0), (), {"one/1"}) == "one/1"
    assert not agents.has_room()
    agents.gone(second, Member((0, 0), 0))
    assert agents.has_room()
    assert (first.started, second.started) == ([(1, 0)], [(0, 0)])


def test_room_that_comes_back_is_used() -> None:
    agents, first, second = two_nodes(1)
    assert agents.start((0, 0), ()) and agents.start((0, 1), ())
    assert not agents.start((1, 0), ())
    agents.gone(first, Member((0, 0), 0))
    assert agents.start((1, 0), ())
    assert agents.leave(first) == [Member((1, 0), 0)]
    assert not agents.start((1, 1), ())
    third = Node()
    agents.arrive(third, AgentJoin("three/3", 1, ()), 0.0)
    assert agents.start((1, 1), ())
    assert (first.started, second.started, third.started) == ([(0, 0), (1, 0)], [(0, 1)], [(1, 1)])


def test_nodes_get_equally_many_workers_when_their_number_is_known() -> None:
    agents, first, second = Agents(1, share=2), Node(), Node()
    for name, node in (("one/1", first), ("two/2", second)):
        agents.arrive(node, AgentJoin(name, 3, ()), 0.0)
    workers: list[Worker] = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all([agents.start(worker, ()) for worker in workers])
    assert (first.started, second.started) == (workers[:2], workers[2:])
    assert not agents.start((2, 0), ())
    agents.share_no_more()
    assert agents.start((2, 0), ())


def test_a_worker_with_fewer_ranks_needs_less_room() -> None:
    """It may have died with all ranks, and with half of them after two more deaths no more."""
    agents, node, refill = Agents(4), Node(), Refill()
    agents.arrive(node, AgentJoin("one/1", 4, ()), 0.0)
    avoided = [refill.avoided(WORKER, ["one/1"], smaller) for smaller in (0, 1)]
    assert avoided == [set(), set()]
    for at in range(4):
        refill.started(WORKER, "one/1", 10.0 * at)
        refill.ended(WORKER, "one/1", 10.0 * at + 1)
        avoided += [refill.avoided(WORKER, ["one/1"], smaller) for smaller in (0, 1)]
    bad: set[str] = {"one/1"}
    assert avoided[2:] == [set(), set(), bad, set(), bad, set(), bad, bad]
    assert not agents.has_room(bad)
    assert agents.replace(WORKER, (), bad, 2) is None
    assert agents.replace(WORKER, (), (), 2) == "one/1"
    assert node.started == [WORKER, WORKER]
    assert agents.replace((0, 0), (), (), 2) == "one/1", "there is room for two more"
