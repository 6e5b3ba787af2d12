"""A job on one machine: starts a coordinator and an agent, and restarts them. No torch.

The processes are those that a cluster would run. This one holds no state of the job: it looks at the news,
and if the coordinator or the agent dies it starts another, which goes on where the first one was. However
this process ends, the others do too: see `lifeline`. They are in process groups of their own: a signal
for the job, from a terminal or from `timeout`, reaches this process alone, which ends the job in order.
"""

import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from recycle_runtime.launcher.kept_process import KeptProcess, SupervisorError
from recycle_runtime.options.run import AGENT, COORDINATOR, RunOptions, command_words
from recycle_runtime.protocol.access import Access
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import ProtocolError, WireError
from recycle_runtime.protocol.framing import TOKEN, new_token
from recycle_runtime.protocol.lifeline import Lifeline
from recycle_runtime.protocol.messages.observers import JobEnded, Observe, StopJob, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow
from recycle_runtime.protocol.messages.wire import Message

_LISTENS_WITHIN = 300.0
"""Seconds; one that ends is not waited for, and a busy machine or a slow disk may take this long."""
_OBSERVED_WITHIN = 2.0
_HERE = "127.0.0.1"
_BACKLOG = 1024
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_TERM_SECONDS = 5.0


class Supervisor:
    """Keeps a job going and listens to its news."""

    def __init__(self, options: RunOptions, stop: Callable[[], str | None] = lambda: None) -> None:
        """`stop` says in a word why the job should end, once it should."""
        self._options, self._stop = options, stop
        self._state = Path(options.state or "")
        self._stop_by = float("inf")
        self._asked_to_stop: Channel | None = None
        self._lifeline = Lifeline()
        # It belongs to this process, so that nobody else can have the port while the coordinator restarts.
        self._listener = socket.create_server((_HERE, 0), backlog=_BACKLOG)
        self._address = f"{_HERE}:{self._listener.getsockname()[1]}"
        self._is_over = False
        self._next_row = 0
        token = new_token()
        self._access = Access(token, tls=options.tls)
        environment = _loopback_only() | {TOKEN: token}
        self._state.mkdir(parents=True, exist_ok=True)
        keeps = (self._listener.fileno(),)
        self.coordinator = KeptProcess(
            "coordinator", self._coordinator, environment, self._lifeline, keeps=keeps
        )
        try:
            self._address = self._wait_for_address()
            has_terminal = options.debug is not None
            self.agent = KeptProcess(
                "agent", self._agent, environment, self._lifeline, has_terminal=has_terminal
            )
        except BaseException:
            self._lifeline.cut()
            self._listener.close()
            self.coordinator.process.wait()
            raise

    def news(self) -> Generator[ToObserver]:
        """Everything that the coordinator tells, until the job is over.

        This process may be stopped for a while, or whoever takes the news may: meanwhile the job goes on, and
        its processes may end. Their ends are judged once everything that the coordinator has said is read.
        """
        channel: Channel | None = None
        while True:
            # Before reading: a coordinator that sends its agent away has said before that the job is over.
            coordinator = self.coordinator.look()
            agent = None if self._is_over else self.agent.look()
            if channel is None and coordinator is not None:
                if not self._is_over:
                    raise SupervisorError(f"the coordinator ended with status {coordinator}")
                return
            if channel is None:
                channel = self._observe()
            try:
                self._pass_on_stop(channel)
                if channel is not None and _readable(channel, 0.1):
                    channel.fill()
                    while (message := channel.waiting()) is not None:
                        yield self._noted(message)
            except WireError:
                channel = None
                if self._is_over:
                    return
            if channel is None or not _readable(channel, 0.0):
                self._check_going_on(agent)

    def end(self) -> None:
        """Whatever still runs is ended; after the end of the job, that is nothing."""
        if self._is_over:
            self.agent.end(_TERM_SECONDS)
            self.coordinator.end(_TERM_SECONDS)
        self._lifeline.cut()
        self._listener.close()
        for kept in (self.agent, self.coordinator):
            kept.process.wait()

    def pause(self) -> None:
        """Stop with all processes of the job, as ctrl-Z asks for, until this one is continued."""
        kept = (self.coordinator, self.agent)
        for each in kept:
            each.signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for each in kept:
            each.signal(signal.SIGCONT)

    def _pass_on_stop(self, channel: Channel | None) -> None:
        """Ask the coordinator to end the job if it should, once on each connection."""
        why = self._stop()
        if why is None or self._is_over:
            return
        self._stop_by = min(self._stop_by, time.monotonic() + self._options.stop_timeout + _TERM_SECONDS)
        if channel is not None and channel is not self._asked_to_stop:
            self._asked_to_stop = channel
            # A connection whose other end is gone has an end, which is found behind the messages in it.
            with suppress(WireError):
                channel.send(StopJob(why))

    def _check_going_on(self, agent: int | None) -> None:
        """SupervisorError if the agent, whose exit status this is, has failed, or if the coordinator has been
        asked to end the job and has not in time."""
        if self._is_over:
            return
        # With status 0 it was sent away: the coordinator says why, though perhaps not at once, or ends.
        if agent:
            raise SupervisorError(f"the agent ended with status {agent}")
        why = self._stop()
        if why is not None and time.monotonic() > self._stop_by:
            raise SupervisorError(why)

    def _noted(self, message: Message) -> ToObserver:
        if not isinstance(message, ToObserver):
            raise ProtocolError(f"{type(message).__name__} is no news")
        if isinstance(message, JobEnded):
            self._is_over = True
        elif isinstance(message, StepRow):
            self._next_row = message.step + 1
        return message

    def _observe(self) -> Channel | None:
        host, _, port = self._address.rpartition(":")
        try:
            # Not long: there is somebody to connect to even while no coordinator runs.
            channel = Channel(host, int(port), self._access, timeout=_OBSERVED_WITHIN)
            channel.send(Observe(self._next_row))
            return channel
        except WireError:
            time.sleep(0.05)
            return None

    def _wait_for_address(self) -> str:
        path = self._state / "address"
        deadline = time.monotonic() + _LISTENS_WITHIN
        while time.monotonic() < deadline:
            if (why := self._stop()) is not None:
                raise SupervisorError(why)
            if path.exists():
                return path.read_text(encoding="utf-8")
            if (status := self.coordinator.look()) is not None:
                raise SupervisorError(f"the coordinator did not start: it ended with status {status}")
            time.sleep(0.01)
        raise SupervisorError(f"the coordinator does not listen after {_LISTENS_WITHIN:.0f} s")

    def _coordinator(self) -> list[str]:
        listener = str(self._listener.fileno())
        where = ("--listen", self._address, "--listener", listener, "--observed")
        return command_words(self._options, COORDINATOR, *where)

    def _agent(self) -> list[str]:
        options = replace(self._options, state=self._state / "node")
        return command_words(options, AGENT, "--coordinator", self._address)


@contextmanager
def supervised(options: RunOptions, stop: Callable[[], str | None] = lambda: None) -> Generator[Supervisor]:
    """A job that is over when this is."""
    supervisor = Supervisor(options, stop)
    try:
        with _pausing(supervisor):
            yield supervisor
    finally:
        supervisor.end()


@contextmanager
def _pausing(supervisor: Supervisor) -> Generator[None]:
    """While this is open, ctrl-Z stops the whole job."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return

    def pause(number: int, frame: FrameType | None) -> None:
        supervisor.pause()

    signal.signal(signal.SIGTSTP, pause)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _loopback_only() -> dict[str, str]:
    """So that workers listen for each other where nobody else can connect, whatever the host name means."""
    names = [name for _, name in socket.if_nameindex()]
    return {_GLOO_INTERFACE: "lo"} if "lo" in names and _GLOO_INTERFACE not in os.environ else {}


def _readable(channel: Channel, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        return bool(selector.select(seconds))
