"""A coordinator without sockets: clients that only keep what they are sent, and a clock that tests set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recycle_runtime.coordinator.file_thread import FileThread, RealFileThread
from recycle_runtime.coordinator.outside import Outside
from recycle_runtime.coordinator.service import JobOptions, Service
from recycle_runtime.protocol.identity import process_number
from recycle_runtime.protocol.messages.agents import AgentJoin, RunningProcess, StartProcess
from recycle_runtime.protocol.messages.generations import Join
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import FromWorkers, Message, Passed, Relayed, ToWorkers
from recycle_runtime.protocol.server import Served


class Line:
    """A client without a socket."""

    address = "nowhere"

    def __init__(self, service: Any) -> None:
        self._service, self.sent, self.is_open = service, list[Message](), True
        self.drained = 0

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._service.closed(self)

    def drain(self) -> None:
        self.drained += 1

    def started(self) -> list[Member]:
        """Processes that it was told to start, since this was asked last."""
        found = [message.member for message in self.sent if isinstance(message, StartProcess)]
        self.sent.clear()
        return found

    def told(self) -> list[Passed]:
        """To workers, since this was asked last."""
        found = [
            each for message in self.sent if isinstance(message, ToWorkers) for each in message.told.passed
        ]
        self.sent.clear()
        return found


class NoServer:
    port = 0

    def turn(self, seconds: float) -> None: ...

    def close(self) -> None: ...


class Job:
    """A coordinator without sockets, and a clock that the test sets."""

    def __init__(
        self,
        folder: Path,
        plan: str,
        *,
        relay: bool,
        checkpoint: str | None = None,
        is_observed: bool = False,
        file_thread: Callable[[str], FileThread] = RealFileThread,
    ) -> None:
        """`checkpoint`: a folder for one of every step."""
        self.now = 100.0
        options = JobOptions(
            plan,
            steps=10,
            host="",
            port=0,
            token="token",
            state=folder / "state",
            relay=relay,
            checkpoint=checkpoint,
            checkpoint_every=1,
            is_observed=is_observed,
        )

        def serve(host: str, port: int, token: Any, served: Served) -> NoServer:
            return NoServer()

        self.service: Any = Service(options, Outside(lambda: self.now, serve, file_thread))

    def agent(self, name: str, *running: Member, relays: bool = False) -> Line:
        line = Line(self.service)
        processes = tuple(RunningProcess(member, pid_of(member)) for member in running)
        self.service.message(line, AgentJoin(name, 4, processes, 0, "", relays))
        return line

    def say(self, agent: Line, *said: tuple[int, Message | None]) -> None:
        """Messages of workers of a node in one turn."""
        passed = tuple(Passed((line,), message) for line, message in said)
        self.service.message(agent, FromWorkers(Relayed(passed)))
        self.pass_time(0.0)

    def pass_time(self, seconds: float) -> None:
        """Slowly: a coordinator that has not looked for long takes that for a pause of its own."""
        until = self.now + seconds
        while True:
            self.service._ticked = float("-inf")
            self.service.tick()
            if self.now >= until:
                return
            self.now = min(self.now + 0.1, until)

    def has(self, member: Member) -> bool:
        return member in self.service.job.roster


def pid_of(member: Member) -> int:
    return 100 + 10 * member.worker[0] + member.worker[1] + 1000 * member.tp_rank


def join(member: Member, node: int = 0) -> Join:
    """Its first message, if it runs on this node."""
    return Join(member, process_number(node, pid_of(member)), 0, 0, is_training=False)
