"""Actors on the nodes of a Ray cluster: plain classes, of which the driver makes actors.

Each starts one process of the job, and that process and its workers hold on to it: however an actor ends,
nothing of the job is left where it was. An actor does nothing by itself but in `look`, which the driver calls
again and again, and which never waits long.
"""

import selectors
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recycle_runtime.integrations.ray.calls import own_address
from recycle_runtime.integrations.words import JobWords
from recycle_runtime.launcher.kept_process import KeptProcess, SupervisorError
from recycle_runtime.launcher.node import listen
from recycle_runtime.protocol.address import published
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.framing import TOKEN
from recycle_runtime.protocol.lifeline import Lifeline
from recycle_runtime.protocol.messages.observers import JobEnded, Observe, StopJob, ToObserver

_OBSERVED_WITHIN = 2.0
_STOPPED = "stopped"
_MOST_ENDS = 5
_FORGOTTEN_AFTER = 120.0
"""Seconds that an agent has to run for what went wrong before to count no more."""
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class CoordinatorReport:
    """Answer to the driver."""

    address: str
    news: tuple[ToObserver, ...]
    status: int | None
    """Once the coordinator has ended by itself, and there is nothing more to report."""
    error: str | None = None


class CoordinatorActor:
    """A coordinator on this node. One on another node went on from the same folder, so this one does too."""

    def __init__(self, words: JobWords, token: str, host: str | None = None) -> None:
        host = own_address() if host is None else host
        self._access = words.access(token)
        self._listener = listen(host, 0)
        self._port = int(self._listener.getsockname()[1])
        self._address = published(host, self._port)
        self._channel: Channel | None = None
        self._is_over = False
        self._asked_to_stop: Channel | None = None
        self._lifeline = Lifeline()
        self._here, number = str(self._listener.getsockname()[0]), self._listener.fileno()
        where = f"[{self._here}]:{self._port}" if ":" in self._here else f"{self._here}:{self._port}"
        command = [*words.coordinator(host), "--listen", where]
        command += ["--listener", str(number)]
        self._kept = KeptProcess(
            "coordinator", lambda: command, {TOKEN: token}, self._lifeline, keeps=(number,)
        )

    def look(self, first: int, stops: bool) -> CoordinatorReport:
        """News since the last time; of steps, only from this one on. `stops`: the job is to end in order."""
        news = self._news(first, stops)
        try:
            status = self._kept.look()
        except SupervisorError as error:
            return CoordinatorReport(self._address, news, 1, str(error))
        is_told = self._channel is None
        return CoordinatorReport(self._address, news, status if is_told else None)

    def end(self) -> None:
        self._lifeline.cut()
        self._listener.close()
        self._kept.process.wait()

    def _news(self, first: int, stops: bool) -> tuple[ToObserver, ...]:
        news: list[ToObserver] = []
        try:
            if self._channel is None and not self._is_over and self._kept.process.poll() is None:
                self._channel = Channel(self._here, self._port, self._access, timeout=_OBSERVED_WITHIN)
                self._channel.send(Observe(first))
            if stops and self._channel is not None and self._channel is not self._asked_to_stop:
                self._asked_to_stop = self._channel
                self._channel.send(StopJob(_STOPPED))
            while self._channel is not None and _has_news(self._channel):
                self._channel.fill()
                while (message := self._channel.waiting()) is not None:
                    if isinstance(message, ToObserver):
                        news.append(message)
                        self._is_over |= isinstance(message, JobEnded)
        except WireError:
            # It has ended, or starts again; there is somebody to connect to even while none runs.
            self._channel = None
        return tuple(news)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """Answer to the driver."""

    status: int | None
    """Once this node takes no further part: 0 when the job is over."""
    error: str | None = None


class AgentActor:
    """An agent on this node, and through it the workers. It finds the coordinator where the driver says."""

    def __init__(self, words: JobWords, token: str) -> None:
        folder = words.node_state
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        # New for each actor: the workers of the one before are gone.
        self._folder = Path(tempfile.mkdtemp(prefix="recycle-agent-", dir=folder))
        self._file = self._folder / "address"
        self._command = words.agent(str(self._folder / "state"))
        self._token, self._lifeline = token, Lifeline()
        self._address = ""
        self._kept: KeptProcess | None = None
        self._ends = 0
        self._starts_at = self._started = 0.0
        self._over: AgentReport | None = None

    def look(self, address: str) -> AgentReport:
        """The coordinator is there now."""
        if address != self._address:
            aside = self._folder / "address.new"
            aside.write_text(address, encoding="utf-8")
            aside.replace(self._file)
            self._address = address
        if self._over is None:
            self._over = self._look()
        return self._over or AgentReport(None)

    def end(self) -> None:
        self._lifeline.cut()
        if self._kept is not None:
            self._kept.process.wait()
        with suppress(OSError):
            shutil.rmtree(self._folder)

    def _look(self) -> AgentReport | None:
        now = time.monotonic()
        if self._kept is None:
            if now >= self._starts_at:
                self._start(now)
            return None
        try:
            status = self._kept.look()
        except SupervisorError as error:
            return AgentReport(1, str(error))
        if status is None:
            return None
        self._kept = None
        if status == 0:
            return AgentReport(0)
        # It may have looked for a coordinator in vain, which is there later.
        self._ends = 1 if now - self._started > _FORGOTTEN_AFTER else self._ends + 1
        if self._ends > _MOST_ENDS:
            return AgentReport(status, f"the agent has ended {self._ends} times, last with status {status}")
        self._starts_at = now + min(2.0**self._ends, _LONGEST_PAUSE)
        return None

    def _start(self, now: float) -> None:
        command = [*self._command[:2], "--coordinator", str(self._file), *self._command[2:]]
        self._started = now
        self._kept = KeptProcess("agent", lambda: command, {TOKEN: self._token}, self._lifeline)


def _has_news(channel: Channel) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        return bool(selector.select(0.0))
