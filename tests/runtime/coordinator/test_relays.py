"""Workers that speak through their agents are as others to the coordinator, also when an agent is gone."""

from collections.abc import Generator
from pathlib import Path

import pytest

from recycle_runtime.coordinator.state_machine import Phase
from recycle_runtime.protocol.codec import ProtocolError
from recycle_runtime.protocol.messages.agents import Heartbeat, ProcessEnded, StartProcess, UseRelay
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    BundleRequest,
    Failed,
    GroupBroken,
    HeldState,
    Leave,
    LeftGroup,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import LossShare
from recycle_runtime.protocol.messages.store import StoreGet, StoreOpen, StoreSet, StoreValue
from recycle_runtime.protocol.messages.wire import FromWorkers, Passed, Relayed
from tests.runtime.coordinator.lone_service import Job, Line, join, pid_of

FIRST, SECOND = Member((0, 0), 0), Member((0, 1), 0)
THIRD, FOURTH = Member((1, 0), 0), Member((1, 1), 0)


@pytest.fixture
def job(tmp_path: Path, square: str) -> Generator[Job]:
    made = Job(tmp_path, square, relay=True)
    yield made
    made.service.let_go()


def test_agents_are_asked_to_relay_before_they_start_anybody(job: Job) -> None:
    agent = job.agent("a")
    assert agent.sent[0] == UseRelay(True)
    assert isinstance(agent.sent[1], StartProcess)


def test_agents_are_asked_to_relay_no_more(tmp_path: Path, square: str) -> None:
    job = Job(tmp_path, square, relay=False)
    assert UseRelay(False) not in job.agent("a").sent
    agent = job.agent("b", relays=True)
    assert agent.sent[0] == UseRelay(False)
    with pytest.raises(ProtocolError, match="was not asked to"):
        job.service.message(agent, FromWorkers(Relayed((Passed((1,), StoreOpen()),))))
    job.service.let_go()


def test_what_goes_to_all_goes_once(job: Job) -> None:
    agent = job.agent("a", FIRST, SECOND)
    job.say(agent, (1, join(FIRST)), (2, join(SECOND)))
    told = agent.told()
    assert [each.lines for each in told] == [(1,), (2,)] or [each.lines for each in told] == [(1, 2)]
    assert all(isinstance(each.message, Leave) for each in told)


def test_the_store_through_an_agent(job: Job) -> None:
    agent = job.agent("a")
    agent.sent.clear()
    job.say(agent, (1, StoreOpen()), (2, StoreOpen()), (1, StoreGet("k")), (2, StoreSet("k", "YQ==")))
    assert agent.told() == [Passed((1,), StoreValue("YQ=="))]
    job.say(agent, (1, StoreGet("other")), (1, None), (2, StoreSet("other", "YQ==")))
    assert agent.told() == [], "who has asked is gone"


def test_who_makes_no_sense_is_hung_up_on_alone(job: Job) -> None:
    agent = job.agent("a", FIRST, SECOND)
    job.say(agent, (1, join(FIRST)), (2, join(SECOND)))
    agent.sent.clear()
    job.say(agent, (1, BundleRequest(99)), (3, LossShare(0, 0.5)), (2, AtBoundary(0)))
    assert agent.told() == [Passed((1, 3), None)]
    assert agent.is_open
    job.say(agent, (1, AtBoundary(0)))
    assert agent.told() == [], "what is still on its way from there is dropped"


def test_workers_whose_agent_is_gone_have_time_to_connect_themselves(job: Job) -> None:
    agent = job.agent("a", FIRST, SECOND)
    job.say(agent, (1, join(FIRST)), (2, join(SECOND)))
    agent.close()
    job.pass_time(1.0)
    assert job.has(FIRST) and job.has(SECOND)
    direct = Line(job.service)
    job.service.message(direct, join(FIRST))
    job.pass_time(5.0)
    assert job.has(FIRST)
    assert SECOND in job.service._attendance._doubtful or not job.has(SECOND), "it has not come"
    assert FIRST not in job.service._attendance._doubtful


def test_workers_whose_agent_is_back_are_its_business(job: Job) -> None:
    agent = job.agent("a", FIRST, SECOND)
    job.say(agent, (1, join(FIRST)), (2, join(SECOND)))
    agent.close()
    after = job.agent("b", FIRST, SECOND)
    for _ in range(20):
        job.pass_time(1.0)
        job.service.message(after, Heartbeat())
    assert job.has(FIRST) and job.has(SECOND)
    assert not job.service._attendance._doubtful and not job.service._attendance._unheard


def test_a_connection_of_its_own_takes_the_place_of_a_relayed_one(job: Job) -> None:
    """Its agent may be stopped, and say later what it has heard before."""
    agent = job.agent("a", FIRST)
    job.say(agent, (1, join(FIRST)))
    agent.sent.clear()
    job.service.message(Line(job.service), join(FIRST))
    job.service.flush()
    assert agent.told() == [Passed((1,), None)]
    job.say(agent, (1, Failed(0, "too late", is_injected=False, is_hopeless=True)))
    assert job.service.ended is None


def test_last_words_come_before_the_end(job: Job) -> None:
    agent = job.agent("a", FIRST)
    job.say(agent, (1, join(FIRST)))
    said = Failed(0, "the program is wrong", is_injected=False, is_hopeless=True)
    job.say(agent, (1, said), (1, None))
    job.service.message(agent, ProcessEnded(FIRST, pid_of(FIRST), "ended with status 1", 0))
    assert job.service.ended is not None and job.service.ended.error == "the program is wrong"
    assert agent.drained == 0, "it is being heard"


def test_last_words_through_an_agent_that_was_replaced(job: Job) -> None:
    """The next agent of the node says that the process has ended: what the first has heard comes before."""
    agent = job.agent("a", FIRST)
    job.say(agent, (1, join(FIRST)))
    after = job.agent("b")
    job.service.message(after, ProcessEnded(FIRST, pid_of(FIRST), "ended while its agent was down", 0))
    assert agent.drained == 1


def test_a_node_that_is_gone_is_not_waited_for_once_others_miss_it(job: Job) -> None:
    """Its peers' connections broke as well, so all have left their group and wait."""
    agent, other = job.agent("a", FIRST, SECOND), job.agent("b", THIRD, FOURTH)
    job.say(agent, (1, join(FIRST)), (2, join(SECOND)))
    job.say(other, (1, join(THIRD)), (2, join(FOURTH)))
    report = HeldState(0, is_fresh=True)
    for node, line in ((agent, 1), (agent, 2), (other, 1), (other, 2)):
        job.say(node, (line, LeftGroup(1, report)))
    for node, line in ((agent, 1), (agent, 2), (other, 1), (other, 2)):
        job.say(node, (line, Began(1, 1, None)))
    assert job.service.job.phase is Phase.RUNNING
    agent.close()
    job.pass_time(1.0)
    assert job.has(FIRST) and job.has(SECOND), "only their agent may be gone"
    job.say(other, (1, GroupBroken(1, "connection closed by peer")))
    job.pass_time(1.0)
    assert not job.has(FIRST) and not job.has(SECOND)
    assert job.has(THIRD) and job.has(FOURTH)
