"""The coordinator of a simulated world: the real service, with simulated surroundings."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, cast

from recycle_runtime.coordinator.connections import ClientLine
from recycle_runtime.coordinator.journal import Journal
from recycle_runtime.coordinator.outside import Outside
from recycle_runtime.coordinator.plans import PlanFiles, PlansOnDemand, Request
from recycle_runtime.coordinator.service import JobOptions, Service
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.codec import ProtocolError
from recycle_runtime.protocol.messages.generations import Began, CaughtUp, GroupBroken, LeftGroup
from recycle_runtime.protocol.messages.layer_moves import LayersArrived
from recycle_runtime.protocol.messages.observers import Observe
from recycle_runtime.protocol.messages.steps import PeerDigest
from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.server import Served
from tests.runtime.world.network import SERVER_GIVES_UP, End, Pipe
from tests.runtime.world.processes import SimulatedProcess

_TURN = 0.05
ABOUT_A_GENERATION = (Began, CaughtUp, GroupBroken, LayersArrived, LeftGroup, PeerDigest)
"""Messages that say what they are about, so that it does not matter when they are heard, or how often."""


_ECHOES = 30
"""How often it is looked whether another generation runs by now."""
_PASSING = ("_now", "roster", "recovery")
"""Of a state machine: what tells nothing, or is told in other words."""


class Killed(BaseException):
    """The process ends in the middle of what it does."""


class ServerConnection:
    """The coordinator's end of a connection; see `protocol.server.Connection`."""

    def __init__(self, host: "CoordinatorProcess", address: str) -> None:
        self._host, self.address = host, address
        self.pipe: Pipe | None = None
        self.end = End(host.process, host.process.node, self._arrived, self._broken, SERVER_GIVES_UP)

    def send(self, message: Message) -> None:
        self._host.about_to_send()
        if self.pipe is not None:
            self.pipe.send(self.end, message)

    def close(self) -> None:
        self._host.connections.pop(self, None)
        if self.pipe is not None:
            self.pipe.close(self.end)

    def drain(self) -> None: ...

    def _arrived(self, message: Message) -> None:
        self._host.hears(self, message)
        if isinstance(message, ABOUT_A_GENERATION) and self.pipe is not None:
            self._echo(message, self.pipe.one.process)

    def _echo(self, message: Message, client: Any) -> None:
        """Another thread of the same process says the same, much later."""
        has_echo = client.echoes_until > self._host.process.loop.now
        if seconds := client.echo_seconds if has_echo else self._host.echoes:
            self.say_later(message, seconds, _ECHOES)

    def say_later(self, message: Message, seconds: float, times: int) -> None:
        loop = self._host.process.loop
        loop.at(loop.now + seconds, self._host.process, self._host.hears_again, self, message, seconds, times)

    def _broken(self) -> None:
        self._host.connections.pop(self, None)
        self._host.closed(self)


class Watcher:
    """An observer's connection: what the job tells."""

    address = "an observer"

    def __init__(self, hear: Callable[[Message], None]) -> None:
        self.hear = hear

    def send(self, message: Message) -> None:
        self.hear(message)

    def close(self) -> None: ...

    def drain(self) -> None: ...


class Disk:
    """The coordinator's, and what may happen to it."""

    def __init__(self) -> None:
        self.writes_until_torn: int | None = None
        self.tear: Callable[[], None] = lambda: None


class _FragileFile:
    """On a disk that may be full; the process may end in the middle of a line."""

    def __init__(self, inner: Any, process: SimulatedProcess, disk: Disk) -> None:
        self._inner, self._process, self._disk = inner, process, disk

    def write(self, data: Any) -> int:
        if self._process.node.is_disk_full:
            raise OSError(28, "No space left on device")
        disk = self._disk
        if disk.writes_until_torn is not None:
            disk.writes_until_torn -= 1
            if disk.writes_until_torn < 0:
                disk.writes_until_torn = None
                self._inner.write(data[: len(data) // 2])
                self._inner.flush()
                raise Killed
        return self._inner.write(data)

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self._inner.close()


class FragileJournal(Journal):
    """The real one, on such a disk."""

    def __init__(self, path: Path, process: SimulatedProcess, disk: Disk) -> None:
        super().__init__(path)
        file: Any = _FragileFile(self._file, process, disk)
        self._file = file


class _FileWork(NamedTuple):
    future: "Future[None]"
    work: Callable[[], None]
    ready_at: float


class SlowFiles:
    """Instead of a thread that waits for disks."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self._waiting: deque[_FileWork] = deque()
        self._is_closed = False

    def submit(self, work: Callable[..., None], *arguments: Any) -> "Future[None]":
        if self._is_closed:
            # As an executor that was shut down.
            raise RuntimeError("cannot schedule new futures after shutdown")
        loop, node = self._process.loop, self._process.node
        begins = max(loop.now, self._waiting[-1].ready_at if self._waiting else 0.0)
        made = _FileWork(Future(), lambda: work(*arguments), begins + node.disk_seconds)
        self._waiting.append(made)
        loop.at(made.ready_at, self._process, self._do_until, made.future)
        return made.future

    def wait(self, future: "Future[None]", seconds: float) -> None:
        """Done at once if there is time enough for it: the clock stands still meanwhile. A disk that is
        slower than that is waited for in vain."""
        until = self._process.loop.now + seconds
        if any(each.future is future and each.ready_at <= until for each in self._waiting):
            self._do_until(future)

    def _do_until(self, future: "Future[None]") -> None:
        """In the order in which it was asked for."""
        while not future.done():
            self._do(self._waiting.popleft())

    def _do(self, made: _FileWork) -> None:
        try:
            if self._process.node.is_disk_full:
                raise OSError(28, "No space left on device")
            made.work()
        except Exception as error:
            made.future.set_exception(error)
        else:
            made.future.set_result(None)

    def close(self) -> None:
        """Requests from before are still carried out."""
        self._is_closed = True


class SlowPlanner(PlansOnDemand):
    """Instead of `recyclec` as a process: plans take their time, and there may be none."""

    def __init__(
        self,
        process: SimulatedProcess,
        files: PlanFiles,
        folder: Path,
        plans: Callable[[Request], bytes | None],
    ) -> None:
        super().__init__(files, "", folder)
        self._around, self._plans = process, plans
        self._ready_at: float | None = None
        self._answer: bytes | None = None

    @property
    def is_busy(self) -> bool:
        return self._ready_at is not None

    def ask(self, request: Request, *, is_ahead: bool = False) -> None:
        self.stop()
        self._is_ahead = is_ahead
        self._answer = self._plans(request)
        self._made += 1
        self._ready_at = self._around.now() + 0.5

    def made(self) -> tuple[Path, Bundle] | None:
        if self._ready_at is None or self._around.now() < self._ready_at:
            return None
        self._ready_at = None
        if self._answer is None:
            self.error = "this world has no planner"
            return None
        path = self._folder / f"on-demand-{self._around.pid}-{self._made}.plan"
        path.write_bytes(self._answer)
        return path, Bundle.parse(self._answer)

    def stop(self) -> None:
        self.error = ""
        self._ready_at = None


class _Attentive(Service):
    """The real one, which says when it does not understand a process, also one that an agent speaks for."""

    def __init__(self, options: JobOptions, outside: Outside, note_wrong: Callable[[str], None]) -> None:
        super().__init__(options, outside)
        self._note_wrong = note_wrong

    def message(self, connection: ClientLine, message: Message) -> None:
        try:
            super().message(connection, message)
        except ProtocolError as error:
            self._note_wrong(f"the coordinator refuses what a process of its own says: {error}")
            raise


class CoordinatorProcess:
    """From its start to its end; the one after it is another."""

    def __init__(
        self,
        process: SimulatedProcess,
        options: JobOptions,
        bundle: Bundle,
        disk: Disk,
        plans: Callable[[Request], bytes | None],
        watcher: Watcher,
        rows: int,
        echoes: float,
        note_wrong: Callable[[str], None],
        died: Callable[["CoordinatorProcess", BaseException | None], None],
    ) -> None:
        """`echoes`: how much later processes say again what they say about a generation; 0: they do not."""
        self.echoes = echoes
        self.process, self._note_wrong, self._died = process, note_wrong, died
        self.connections: dict[ServerConnection, None] = {}
        self.sends_until_killed: int | None = None
        self._sent = 0
        self.is_listening = False
        outside = Outside(
            clock=process.now,
            serve=self._serve,
            file_thread=lambda _: SlowFiles(process),
            plans=lambda files, _, folder: SlowPlanner(process, files, folder, plans),
            journal=lambda path: FragileJournal(path, process, disk),
            read_bundle=lambda _: bundle,
            keep_plans=lambda _, __: None,
        )
        self.service: Service
        self.is_up = False
        self._guarded(self._begin, options, outside, watcher, rows)

    def _begin(self, options: JobOptions, outside: Outside, watcher: Watcher, rows: int) -> None:
        self.service = _Attentive(options, outside, self._note_wrong)
        self.is_up = True
        self.service.message(cast(Any, watcher), Observe(rows))
        self._turn()

    def _serve(self, host: str, port: int, token: Token, served: Served) -> Any:
        self.is_listening = True
        return self

    # As `outside.Serves`.

    port = 1

    def turn(self, seconds: float) -> None: ...

    def close(self) -> None:
        self.is_listening = False
        for connection in list(self.connections):
            connection.close()

    # What happens to it.

    def accept(self, address: str) -> ServerConnection:
        connection = ServerConnection(self, address)
        self.connections[connection] = None
        return connection

    def hears(self, connection: ServerConnection, message: Message) -> None:
        if connection in self.connections:
            self._guarded(self._hear, connection, message)

    def hears_again(self, connection: ServerConnection, message: Any, seconds: float, times: int) -> None:
        """Earlier messages once more, and then in another generation than the one that they are about.

        About one that was given up it changes nothing, and leads to nothing.
        """
        job = self.service.job
        if connection not in self.connections or self.service.ended is not None:
            return
        if message.generation >= job.number:
            if times == _ECHOES:
                self.hears(connection, message)
            if times > 1:
                connection.say_later(message, seconds, times - 1)
            return
        before = self._seen()
        self.hears(connection, message)
        after = self._seen() if self.process.is_alive else before
        changed = [name for name, value in after.items() if value != before.get(name)]
        if changed:
            said = ", ".join(f"{name} was {before.get(name)} and is {after[name]}" for name in changed)
            self._note_wrong(
                f"{type(message).__name__} about generation {message.generation} is said again in generation "
                f"{job.number}, and counts: {said}"
            )

    def _seen(self) -> dict[str, str]:
        """All that the job knows, and how much has come of it."""
        job = self.service.job
        own = {name: value for name, value in vars(job).items() if name not in _PASSING}
        found = {name: repr(getattr(value, "__dict__", value)) for name, value in own.items()}
        found |= {f"{member}": repr(vars(entry)) for member, entry in job.roster.entries.items()}
        parts = {"rows": vars(job.participants.rows), "recovery": job.recovery, "sent": self._sent}
        return found | {name: repr(part) for name, part in parts.items()}

    def _hear(self, connection: ServerConnection, message: Message) -> None:
        try:
            self.service.message(cast(Any, connection), message)
        except ProtocolError:
            connection.close()
        self.service.flush()

    def closed(self, connection: ServerConnection) -> None:
        self._guarded(self.service.closed, cast(Any, connection))

    def _turn(self) -> None:
        if self.service.is_over:
            if not self.service.goes_on:
                self.service.dismiss()
            self.service.close()
            self.process.exit()
            self._died(self, None)
            return
        self.service.tick()
        loop = self.process.loop
        loop.at(loop.now + _TURN, self.process, self._guarded, self._turn)

    def about_to_send(self) -> None:
        """A process may end between two messages that belong together."""
        self._sent += 1
        if self.sends_until_killed is not None:
            self.sends_until_killed -= 1
            if self.sends_until_killed < 0:
                self.sends_until_killed = None
                raise Killed

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self.process.is_alive:
            return
        try:
            call(*arguments)
        except Killed:
            self.kill("was killed by signal 9", Killed())
        except Exception as error:
            self.kill("ended with status 1", error)

    def kill(self, how: str, error: BaseException | None = None) -> None:
        self.is_listening = False
        if not self.process.is_alive:
            return
        for connection in list(self.connections):
            if connection.pipe is not None and self.process.node.is_on:
                connection.pipe.close(connection.end)
        self.connections.clear()
        self.let_go()
        self.process.exit(how)
        self._died(self, error)

    def let_go(self) -> None:
        """Of files, which those of a real process go with."""
        if self.is_up and self.process.is_alive:
            self.service.let_go()
