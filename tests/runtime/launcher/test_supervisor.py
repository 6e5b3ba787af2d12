"""Supervisor of a local job: processes that die while it starts, and the last words of those that end."""

import socket
import subprocess
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.launcher import supervisor as supervisor_module
from recycle_runtime.launcher.kept_process import KeptProcess, SupervisorError
from recycle_runtime.launcher.supervisor import Supervisor
from recycle_runtime.options.run import RunOptions
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.messages.observers import JobEnded, StopJob, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow
from recycle_runtime.protocol.messages.wire import Message

ROWS = [StepRow(step, loss=0.5, seconds=0.25, live=4, plan="0") for step in range(100)]
END = JobEnded(None, no_plan=False, checkpoint=None, steps=100)


def starting(monkeypatch: pytest.MonkeyPatch, *lives: str) -> list[str]:
    """Processes are these shell commands, one after the other; the names of those that were started."""
    left, names = iter(lives), list[str]()

    def start(kept: KeptProcess) -> Any:
        names.append(kept.name)
        return subprocess.Popen(["sh", "-c", next(left)])

    monkeypatch.setattr(KeptProcess, "_start", start)
    return names


def job(tmp_path: Path) -> RunOptions:
    return RunOptions("a.plan", steps=3, workers_per_node=4, state=tmp_path / "state")


def test_a_coordinator_that_is_killed_before_it_listens_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "state" / "address"
    says = f"echo 127.0.0.1:1 > {address}.new; mv {address}.new {address}"
    names = starting(monkeypatch, "kill -9 $$", says, "exit 0")
    Supervisor(job(tmp_path)).end()
    assert names == ["coordinator", "coordinator", "agent"]


def test_one_that_ends_by_itself_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = starting(monkeypatch, "exit 3")
    with pytest.raises(SupervisorError, match=r"^the coordinator did not start: it ended with status 3$"):
        Supervisor(job(tmp_path))
    assert names == ["coordinator"]


class FakeChannel:
    """A connection to a coordinator; whoever reads it gets one message at a time."""

    def __init__(self, *unread: ToObserver) -> None:
        self._unread, self._heard = deque[ToObserver](), deque[ToObserver]()
        self._here, self._there = socket.socketpair()
        self.sent: list[Message] = []
        self.say(*unread)

    def say(self, *messages: ToObserver) -> None:
        self._unread.extend(messages)
        self._there.sendall(bytes(len(messages)))

    def end(self) -> None:
        self._there.close()

    def fileno(self) -> int:
        return self._here.fileno()

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def fill(self) -> None:
        if not self._here.recv(1):
            raise WireError("the coordinator has closed the connection")
        self._heard.append(self._unread.popleft())

    def waiting(self) -> ToObserver | None:
        return self._heard.popleft() if self._heard else None


@contextmanager
def news(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    channel: FakeChannel,
    *,
    coordinator: int | None = 0,
    agent: int | None = 0,
    stop_timeout: float = 60.0,
    stop: Callable[[], str | None] = lambda: None,
) -> Generator[Generator[ToObserver]]:
    """News of a job. Whoever takes them pauses behind the first: meanwhile the coordinator and the agent end
    with these statuses, None: not at all, and `stop` begins to be asked."""
    address, over = tmp_path / "state" / "address", tmp_path / "over"

    def life(status: int | None) -> str:
        ends = f"until [ -e {over} ]; do sleep 0.01; done; exit {status}"
        return "exec sleep 1000" if status is None else ends

    says = f"echo 127.0.0.1:1 > {address}.new; mv {address}.new {address}"
    starting(monkeypatch, f"{says}; {life(coordinator)}", life(agent))

    def connect(*_: object, **__: object) -> FakeChannel:
        return channel

    monkeypatch.setattr(supervisor_module, "Channel", connect)
    asked = replace(job(tmp_path), stop_timeout=stop_timeout)
    supervisor = Supervisor(asked, lambda: stop() if over.exists() else None)
    processes = {supervisor.coordinator.process: coordinator, supervisor.agent.process: agent}

    def take() -> Generator[ToObserver]:
        told = supervisor.news()
        yield next(told)
        over.touch()
        for process, status in processes.items():
            if status is not None:
                process.wait()
        yield from told

    try:
        yield take()
    finally:
        for process in processes:
            process.kill()
        supervisor.end()


@pytest.mark.parametrize("coordinator", [0, None])
def test_all_that_was_said_is_heard_though_the_agent_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinator: int | None
) -> None:
    channel = FakeChannel(*ROWS, END)
    channel.end()
    with news(tmp_path, monkeypatch, channel, coordinator=coordinator) as told:
        assert list(told) == [*ROWS, END]


def test_an_agent_that_is_sent_away_is_followed_by_the_end_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator with more to say than its connection holds says the rest when it can."""
    channel = FakeChannel(*ROWS)
    turns = 0

    def say_the_rest() -> None:
        nonlocal turns
        turns += 1
        if turns == len(ROWS) + 3:
            channel.say(END)
            channel.end()

    with news(tmp_path, monkeypatch, channel, coordinator=None, stop=say_the_rest) as told:
        assert list(told) == [*ROWS, END]


@pytest.mark.parametrize(
    ("coordinator", "agent", "why"),
    [(None, 3, "the agent ended with status 3"), (4, None, "the coordinator ended with status 4")],
)
def test_a_process_that_fails_ends_the_job_once_everything_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinator: int | None, agent: int | None, why: str
) -> None:
    channel, heard = FakeChannel(*ROWS), list[ToObserver]()
    if coordinator is not None:
        channel.end()
    with (
        news(tmp_path, monkeypatch, channel, coordinator=coordinator, agent=agent) as told,
        pytest.raises(SupervisorError, match=f"^{why}$"),
    ):
        heard.extend(told)
    assert heard == ROWS


LONG_AGO = -1000.0
"""Seconds from a request to stop until the job should have ended."""


def test_a_job_that_has_stopped_is_not_late_because_nobody_has_listened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = FakeChannel(*ROWS, END)
    channel.end()
    with news(tmp_path, monkeypatch, channel, stop_timeout=LONG_AGO, stop=lambda: "interrupted") as told:
        assert list(told) == [*ROWS, END]


def test_a_job_that_does_not_stop_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, lives = FakeChannel(*ROWS), {"coordinator": None, "agent": None}
    late: dict[str, Any] = {"stop_timeout": LONG_AGO, "stop": lambda: "interrupted"}
    with (
        news(tmp_path, monkeypatch, channel, **lives, **late) as told,
        pytest.raises(SupervisorError, match=r"^interrupted$"),
    ):
        list(told)
    assert StopJob("interrupted") in channel.sent


def test_a_request_to_stop_that_reaches_nobody_loses_no_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = FakeChannel(*ROWS, END)
    channel.end()

    def send(message: Message) -> None:
        if isinstance(message, StopJob):
            raise WireError("the coordinator is gone")

    monkeypatch.setattr(channel, "send", send)
    with news(tmp_path, monkeypatch, channel, stop=lambda: "interrupted") as told:
        assert list(told) == [*ROWS, END]
