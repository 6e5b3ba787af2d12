"""Actors on the nodes of a Ray cluster, without Ray: the processes are played."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recycle_runtime.cli.main import parse_arguments
from recycle_runtime.integrations.ray import actors
from recycle_runtime.integrations.ray.actors import AgentActor, AgentReport, CoordinatorActor
from recycle_runtime.integrations.words import JobWords
from recycle_runtime.launcher.kept_process import SupervisorError


class Played:
    """Processes with the statuses that they are found with, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *statuses: int | Exception | None) -> None:
        self.now = 0.0
        self._statuses = list(statuses)
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        monkeypatch.setattr(actors, "KeptProcess", self._start)
        monkeypatch.setattr(actors, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _start(
        self, name: str, command: Callable[[], list[str]], environment: dict[str, str], *_: Any, **__: Any
    ) -> Any:
        self.commands.append(command())
        self.environments.append(environment)
        process = SimpleNamespace(poll=lambda: 0, wait=lambda: 0)
        return SimpleNamespace(look=self._look, process=process)

    def _look(self) -> int | None:
        status = self._statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return status


@pytest.fixture
def words(square: str, tmp_path: Path) -> JobWords:
    options = {"program": "p.py", "steps": 3, "workers_per_node": 2, "state": "s", "seed": 7}
    resumed = {"checkpoint": "kept", "resume": True}
    return JobWords(square, (), options | {"node_state": str(tmp_path / "own"), **resumed}, None)


def test_an_agent_reads_the_address_from_a_file(monkeypatch: pytest.MonkeyPatch, words: JobWords) -> None:
    played = Played(monkeypatch, None, 0)
    actor = AgentActor(words, "secret")
    assert actor.look("10.0.0.1:5") == AgentReport(None)
    (command,) = played.commands
    where = Path(command[command.index("--coordinator") + 1])
    assert where.read_text() == "10.0.0.1:5"
    assert command[0] == "agent" and "--seed=7" in command and "--program=p.py" in command
    assert "--resume" not in command
    assert played.environments == [{"RECYCLE_TOKEN": "secret"}]
    assert "secret" not in command
    actor.look("10.0.0.2:6")
    assert where.read_text() == "10.0.0.2:6"
    assert actor.look("10.0.0.2:6") == actor.look("10.0.0.2:6") == AgentReport(0)
    actor.end()
    assert not where.exists()


def test_an_agent_that_ends_too_early_is_started_again_later(
    monkeypatch: pytest.MonkeyPatch, words: JobWords
) -> None:
    played = Played(monkeypatch, *[1] * 6)
    actor = AgentActor(words, "secret")
    started: list[float] = []
    report = AgentReport(None)
    while report.status is None:
        before = len(played.commands)
        report = actor.look("a:1")
        if len(played.commands) > before:
            started.append(played.now)
        played.now += 1.0
    assert started == [0.0, 3.0, 8.0, 17.0, 34.0, 65.0]
    assert report == AgentReport(1, "the agent has ended 6 times, last with status 1")
    assert actor.look("a:1") == report


def test_an_agent_that_ran_for_long_has_all_its_chances_again(
    monkeypatch: pytest.MonkeyPatch, words: JobWords
) -> None:
    played = Played(monkeypatch, *[1] * 20)
    actor = AgentActor(words, "secret")
    for _ in range(20):
        assert actor.look("a:1").status is None
        played.now += 200.0


def test_an_agent_that_is_killed_again_and_again(monkeypatch: pytest.MonkeyPatch, words: JobWords) -> None:
    Played(monkeypatch, SupervisorError("the agent has died 6 times"))
    actor = AgentActor(words, "secret")
    actor.look("a:1")
    assert actor.look("a:1") == AgentReport(1, "the agent has died 6 times")


def test_a_coordinator_says_where_it_listens(monkeypatch: pytest.MonkeyPatch, words: JobWords) -> None:
    played = Played(monkeypatch, None, 3)
    actor = CoordinatorActor(words, "secret", "127.0.0.1")
    (command,) = played.commands
    report = actor.look(0, False)
    assert report.status is None
    host, _, port = report.address.rpartition(":")
    assert host == "127.0.0.1" and int(port) > 0
    told = parse_arguments(command)
    assert (told.listen, told.nodes, told.resume) == (report.address, 2, True)
    assert Path(told.state).is_absolute() and told.state.endswith("/s/coordinator")
    assert "--seed=7" not in command
    assert actor.look(0, False).status == 3
    actor.end()
