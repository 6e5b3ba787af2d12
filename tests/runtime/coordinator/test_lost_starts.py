"""Workers that an agent was told to start come, also when it ends or the coordinator does."""

from collections.abc import Generator
from pathlib import Path

import pytest

from recycle_runtime.protocol.messages.agents import Heartbeat, ProcessEnded
from recycle_runtime.protocol.messages.generations import End, Failed
from recycle_runtime.protocol.messages.members import Member
from tests.runtime.coordinator.lone_service import Job, Line, join, pid_of
from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.world.jobs import with_ranks

ALL = [Member((pipeline, stage), 0) for pipeline in range(2) for stage in range(2)]
PAUSE = 3.0
"""Seconds, in these jobs, before somebody is told again."""


@pytest.fixture(params=[False, True], ids=["direct", "relayed"])
def job(tmp_path: Path, square: str, request: pytest.FixtureRequest) -> Generator[Job]:
    made = Job(tmp_path, square, relay=request.param)
    yield made
    made.service.let_go()


@pytest.fixture
def ranked(tmp_path: Path) -> Generator[Job]:
    """Two ranks for each of four workers."""
    plan = write_bundle(tmp_path / "ranks.plan", with_ranks(), {}, [(0, 0)])
    made = Job(tmp_path, plan, relay=True)
    yield made
    made.service.let_go()


def wait(job: Job, seconds: float, *agents: Line) -> None:
    """Agents that live say so."""
    until = job.now + seconds
    while job.now < until:
        for agent in agents:
            job.service.message(agent, Heartbeat())
        job.pass_time(0.5)


def test_an_agent_that_ends_before_it_has_started_anybody(job: Job) -> None:
    agent = job.agent("a")
    assert sorted(agent.started()) == ALL
    agent.close()
    after = job.agent("b")
    assert after.started() == [], "they may run, and come by themselves"
    wait(job, PAUSE + 1, after)
    assert sorted(after.started()) == ALL
    wait(job, 10, after)
    assert after.started() == [], "once is enough"


def test_an_agent_that_ends_with_some_of_them_started(job: Job) -> None:
    job.agent("a").close()
    after = job.agent("b", *ALL[:3])
    wait(job, PAUSE + 1, after)
    assert after.started() == ALL[3:]


def test_processes_that_ended_with_their_agent(job: Job) -> None:
    job.agent("a").close()
    after = job.agent("b", *ALL[1:])
    said = ProcessEnded(ALL[0], pid_of(ALL[0]), "ended while its agent was down", 0)
    job.service.message(after, said)
    wait(job, PAUSE + 1, after)
    assert after.started() == ALL[:1]


def test_an_order_that_is_lost_with_its_connection(job: Job) -> None:
    """The same agent comes again, and says what runs."""
    agent, again = job.agent("a"), job.agent("a", *ALL[:2])
    assert not agent.is_open
    wait(job, PAUSE + 1, again)
    assert sorted(again.started()) == ALL[2:]


def test_workers_that_come_without_their_agent_are_not_started_again(job: Job) -> None:
    job.agent("a").close()
    for member in ALL[:3]:
        job.service.message(Line(job.service), join(member))
    other = job.agent("b")
    wait(job, PAUSE + 1, other)
    assert other.started() == ALL[3:]


def test_there_may_be_room_only_later(job: Job) -> None:
    job.agent("a").close()
    wait(job, 2 * PAUSE)
    other = job.agent("b")
    job.pass_time(0.1)
    assert sorted(other.started()) == ALL


def test_who_has_failed_meanwhile_is_not_waited_for(job: Job) -> None:
    agent = job.agent("a")
    said = Failed(0, "the program is wrong", is_injected=False, is_hopeless=True)
    line = Line(job.service)
    job.service.message(line, join(ALL[0]))
    job.service.message(line, said)
    assert job.service.ended is not None
    agent.close()
    other = job.agent("b")
    wait(job, PAUSE + 1, other)
    assert other.started() == []


def test_the_ranks_that_a_worker_lacks_are_started_beside_its_others(ranked: Job) -> None:
    """The agent, or the coordinator before this one, ended between the two."""
    first, second = (Member((0, 0), rank) for rank in range(2))
    agent = ranked.agent("a", first)
    started = agent.started()
    assert second not in started and len(started) == 2, "there is room for four, and one runs"
    wait(ranked, PAUSE + 1, agent)
    assert agent.started() == [second]
    wait(ranked, 10, agent)
    assert agent.started() == []


RANKS = [Member((0, 0), rank) for rank in range(2)]


def test_all_ranks_of_a_worker_are_those_of_one_node(ranked: Job) -> None:
    """Found once: two nodes had one rank of a worker each, and no room for both of another."""
    agent = ranked.agent("a")
    assert {member.worker for member in agent.started()} == {(0, 0), (0, 1)}
    ranked.service.message(Line(ranked.service), join(RANKS[1], node=7))
    other = Line(ranked.service)
    ranked.service.message(other, join(RANKS[0]))
    assert other.sent == [End(ok=False)] and not ranked.has(RANKS[0])
    ranked.service.message(agent, ProcessEnded(RANKS[0], pid_of(RANKS[0]), "ended with status 1", 0))
    assert (0, 0) in ranked.service.job.members.expected, "it has not failed"
    ranked.service.message(Line(ranked.service), join(RANKS[0], node=7))
    assert all(map(ranked.has, RANKS))


def test_half_a_worker_on_a_node_without_an_agent_makes_way(ranked: Job) -> None:
    ranked.agent("a").close()
    half = Line(ranked.service)
    ranked.service.message(half, join(RANKS[0], node=7))
    wait(ranked, 2 * PAUSE)
    assert half.is_open, "it cannot be started elsewhere"
    full, roomy = ranked.agent("b"), ranked.agent("c")
    wait(ranked, PAUSE, full, roomy)
    assert half.sent[-1] == End(ok=False) and not half.is_open
    assert not ranked.has(RANKS[0])
    assert (0, 0) in ranked.service.job.members.expected, "it has not failed"
    assert set(RANKS) <= {*full.started(), *roomy.started()}


def test_half_a_worker_that_ends_is_no_failure(ranked: Job) -> None:
    """Its agent comes back, and says what has become of the process that was told to end."""
    ranked.agent("a").close()
    ranked.service.message(Line(ranked.service), join(RANKS[0], node=7))
    others = [ranked.agent("b"), ranked.agent("c")]
    wait(ranked, PAUSE + 1, *others)
    back, pid = ranked.agent("a", RANKS[0]), join(RANKS[0], node=7).pid
    ranked.service.message(back, ProcessEnded(RANKS[0], pid, "ended with status 1", 0))
    assert (0, 0) in ranked.service.job.members.expected and ranked.service.ended is None
