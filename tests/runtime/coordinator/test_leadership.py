"""Coordinators that share a folder: one leads, and another takes over when it is gone."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from recycle_runtime.coordinator.fence import Fenced, LeaderFence
from recycle_runtime.coordinator.leadership import Candidacy, Leadership, newest_term
from recycle_runtime.protocol.messages.agents import AgentJoin, Heartbeat
from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.server import Connection

LEASE = 10.0


class Clock:
    """Of one host."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator["Hosts"]:
    made = Hosts(tmp_path / "shared", monkeypatch)
    yield made
    for leadership in made.candidates:
        made.end(leadership)


class Hosts:
    """Candidates, each on a host of its own, whose clocks show different times."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, patch
        self.candidates: list[Leadership] = []

    def candidate(self, number: int, host: str = "") -> tuple[Leadership, Clock]:
        self._patch.setattr(
            "recycle_runtime.coordinator.leadership._boot_number", lambda: host or f"host {number}"
        )
        clock = Clock()
        clock.now += 1000.0 * number
        self.candidates.append(Leadership(self.folder, number, LEASE, clock))
        return self.candidates[-1], clock

    def end(self, leadership: Leadership) -> None:
        """Let go of its file, as a process that ends does."""
        if leadership._handle >= 0:  # pyright: ignore[reportPrivateUsage]
            os.close(leadership._handle)  # pyright: ignore[reportPrivateUsage]
            leadership._handle = -1  # pyright: ignore[reportPrivateUsage]


def test_the_first_one_begins_and_others_wait(hosts: Hosts) -> None:
    second, time = hosts.candidate(1)
    assert second.look() is Candidacy.WAITS
    time.now += 100 * LEASE
    assert second.look() is Candidacy.WAITS, "it may be a folder that is not shared"
    first, _ = hosts.candidate(0)
    assert first.look() is Candidacy.LEADS
    assert first.is_held and first.number == 1
    assert second.look() is Candidacy.WAITS
    assert not second.is_held


def test_nobody_takes_over_from_one_who_renews(hosts: Hosts) -> None:
    (first, its_time), (second, time) = hosts.candidate(0), hosts.candidate(1)
    first.look()
    for _ in range(20):
        its_time.now += LEASE / 2
        time.now += LEASE / 2
        first.renew()
        assert second.look() is Candidacy.WAITS
        assert first.is_held


def test_the_next_one_takes_over_after_a_lease(hosts: Hosts) -> None:
    (first, _), (second, time), (third, late) = (hosts.candidate(number) for number in range(3))
    first.look()
    assert [second.look(), third.look()] == [Candidacy.WAITS] * 2
    time.now += LEASE
    late.now += LEASE + 1.5
    assert second.look() is Candidacy.WAITS, "the first one may have come back"
    assert third.look() is Candidacy.WAITS, "the second one comes first"
    time.now += 1.0
    assert second.look() is Candidacy.LEADS
    assert second.number == 2
    late.now += LEASE
    assert third.look() is Candidacy.WAITS, "this is another term"
    found = newest_term(hosts.folder)
    assert found is not None and (found.number, found.candidate) == (2, 1)


def test_one_that_was_paused_has_lost_its_lease_before_another_can_take_over(hosts: Hosts) -> None:
    (first, its_time), (second, time) = hosts.candidate(0), hosts.candidate(1)
    first.look()
    second.look()
    its_time.now += 0.7 * LEASE
    assert not first.is_held
    first.renew()
    assert not first.is_held, "another may be about to take over"
    time.now += LEASE + 1.0
    assert second.look() is Candidacy.LEADS
    first.end()
    found = newest_term(hosts.folder)
    assert found is not None and found.number == 2 and not found.is_over


def test_one_that_finds_a_newer_term_has_lost(hosts: Hosts) -> None:
    (first, _), (second, time) = hosts.candidate(0), hosts.candidate(1)
    first.look()
    second.look()
    time.now += LEASE + 1.0
    assert second.look() is Candidacy.LEADS
    assert first.is_held, "its clock stands still"
    first.renew()
    assert not first.is_held


def test_two_cannot_begin_one_term(hosts: Hosts) -> None:
    (first, _), (second, time), (third, late) = (hosts.candidate(number) for number in range(3))
    first.look()
    assert second.look() is third.look() is Candidacy.WAITS
    time.now += 2 * LEASE
    late.now += 2 * LEASE
    (hosts.folder / "term-000002").touch()
    assert second.look() is Candidacy.WAITS, "a file that is not written yet is somebody's"
    assert third.look() is Candidacy.WAITS


def test_a_dead_one_on_the_same_host_is_not_waited_for(hosts: Hosts) -> None:
    first, _ = hosts.candidate(0, "here")
    first.look()
    again, _ = hosts.candidate(0, "here")
    assert again.look() is Candidacy.WAITS, "it lives"
    hosts.end(first)
    elsewhere, _ = hosts.candidate(0, "there")
    assert elsewhere.look() is Candidacy.WAITS, "locks of another host say nothing"
    beside, _ = hosts.candidate(1, "here")
    assert beside.look() is Candidacy.WAITS, "it will be back"
    assert again.look() is Candidacy.LEADS
    assert again.number == 2


def test_after_the_end_nobody_takes_over(hosts: Hosts) -> None:
    (first, _), (second, _) = hosts.candidate(0), hosts.candidate(1)
    first.look()
    second.look()
    first.end()
    assert second.look() is Candidacy.OVER
    again, _ = hosts.candidate(0)
    assert again.look() is Candidacy.LEADS, "somebody has started the job again"


def test_what_a_folder_holds_is_not_trusted(hosts: Hosts) -> None:
    first, time = hosts.candidate(0)
    hosts.folder.mkdir(exist_ok=True)
    for name in ("term-", "term-x", "term-٣", "address"):
        (hosts.folder / name).touch()
    (hosts.folder / "term-000007").write_text('{"number": 1, "candidate": "x"}')
    assert first.look() is Candidacy.WAITS
    time.now += LEASE
    assert first.look() is Candidacy.LEADS
    assert first.number == 8


class Heard:
    """The one that is served."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def message(self, connection: Connection, message: Message) -> None:
        self.heard.append(message)

    def closed(self, connection: Connection) -> None: ...

    def tick(self) -> None: ...


class EndedError(Exception):
    """In place of the end of the process."""


def fenced(leadership: Leadership) -> tuple[LeaderFence, Fenced, Heard]:
    def end() -> None:
        raise EndedError

    fence, heard = LeaderFence(leadership, LEASE, end), Heard()
    return fence, fence.around(heard), heard


def test_one_who_has_lost_its_lease_hears_nothing_more(hosts: Hosts) -> None:
    leadership, time = hosts.candidate(0)
    leadership.look()
    _, served, heard = fenced(leadership)
    connection: Connection = object.__new__(Connection)
    served.message(connection, Heartbeat())
    time.now += LEASE
    with pytest.raises(EndedError):
        served.message(connection, Heartbeat())
    with pytest.raises(EndedError):
        served.closed(connection)
    with pytest.raises(EndedError):
        served.tick()
    assert heard.heard == [Heartbeat()]


def test_an_agent_of_a_newer_term_ends_an_older_coordinator(hosts: Hosts) -> None:
    leadership, _ = hosts.candidate(0)
    leadership.look()
    _, served, heard = fenced(leadership)
    connection: Connection = object.__new__(Connection)
    served.message(connection, AgentJoin("a", 1, (), 1))
    with pytest.raises(EndedError):
        served.message(connection, AgentJoin("b", 1, (), 2))
    assert len(heard.heard) == 1
