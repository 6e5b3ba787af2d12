"""The coordinator as a process: sockets, the store, the journal, plans on demand. Standard library only.

Four kinds of clients connect: members (worker processes), their store connections, agents, and observers, who
are told everything. What a client is follows from the first thing it says.
"""

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle
from recycle_runtime.control.server import Connection, Server
from recycle_runtime.control.store_table import StoreTable
from recycle_runtime.control.wire import Message
from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.coordinator.coordinator import Coordinator, Phase, plan_name
from recycle_runtime.coordinator.decision import Member, Report, Sums
from recycle_runtime.coordinator.journal import Journal, read
from recycle_runtime.coordinator.plan_book import Assignment, PlanBook
from recycle_runtime.coordinator.planner import Planner
from recycle_runtime.coordinator.recoveries import Recovery
from recycle_runtime.coordinator.step_rows import Row
from recycle_runtime.coordinator.timetable import Timetable

_TURN = 0.05
_RETURN_SECONDS = 5.0
"""How long a coordinator that starts again waits for those who were there."""
_LINGER = 2.0


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a coordinator is told when it starts."""

    bundle: str
    steps: int
    failed: tuple[Worker, ...]
    host: str
    port: int
    token: str
    state: Path
    """A folder for what must outlive the process."""
    timetable: Timetable
    start_seconds: float = 300.0
    """How long the first workers may take to arrive."""
    restore: str | None = None


class Service:
    """Connects the coordinator's decisions to sockets, files and processes."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        bundle = Bundle.read(options.bundle)
        options.state.mkdir(parents=True, exist_ok=True)
        self._book = PlanBook(bundle)
        self._planner = Planner(bundle.job_source, options.state)
        self._store = StoreTable()
        self._server = Server(options.host, options.port, options.token, self)
        self._members: dict[Member, Connection] = {}
        self._kinds: dict[Connection, Member | str] = {}
        self._pids: dict[Member, int] = {}
        self._agents = Agents(bundle.tensor)
        expected = set(self._book.grid) - set(options.failed)
        journal = options.state / "journal.jsonl"
        remembered = read(journal)
        self._journal = Journal(journal)
        self.coordinator = Coordinator(self._book, bundle.tensor, options.steps, expected, self)
        self.coordinator.restore = options.restore
        self._deadline = time.monotonic() + options.start_seconds
        self._returning: set[Member] = set()
        if remembered is not None:
            for name in remembered.bundles:
                self._book.add(Bundle.read(name))
            self.coordinator.remember(remembered)
            self._returning = {
                Member(place, part) for place in remembered.places for part in range(bundle.tensor)
            }
            self._deadline = time.monotonic() + _RETURN_SECONDS
        self._wanted_plan: tuple[Worker, ...] | None = None
        assignment = self._book.assign(expected)
        if remembered is None and (assignment is None or not assignment.is_exact):
            self.plan_wanted(tuple(expected))
        self._timetable = options.timetable
        self._error: str | None = None
        self.has_no_plan = False
        """Whether that is why the job ended."""
        self._over: float | None = None

    @property
    def port(self) -> int:
        return self._server.port

    def run(self) -> str | None:
        """Until the job has ended; the error, if it was one."""
        try:
            while self._over is None or (self._members and time.monotonic() < self._over):
                self._server.turn(_TURN)
            self._agents.dismiss()
            self._server.turn(0)
        finally:
            self._planner.stop()
            self._journal.close()
            self._server.close()
        return self._error

    # Called by the server.

    def message(self, connection: Connection, message: Message) -> None:
        kind = message.get("type")
        if kind == "store":
            self._kinds[connection] = "store"
            if "op" in message:
                self._store.request(message, connection.send)
            return
        known = self._kinds.get(connection)
        if isinstance(known, Member):
            self._from_member(known, message)
        elif known == "agent":
            self._from_agent(connection, message)
        elif kind == "join":
            self._join(connection, message)
        elif kind == "agent":
            self._kinds[connection] = "agent"
            self._agents.arrive(connection, message)
            self._start_processes()
        elif kind == "observe":
            self._kinds[connection] = "observer"
            following = self.coordinator.rows.next
            connection.send({"type": "hello", "steps": self._options.steps, "next": following})
        else:
            connection.close()

    def closed(self, connection: Connection) -> None:
        kind = self._kinds.pop(connection, None)
        self._store.forget(connection.send)
        if kind == "agent":
            self._agents.leave(connection)
        if isinstance(kind, Member) and self._members.get(kind) is connection:
            # Its agent will say what became of it; if it has none any more, nobody can.
            del self._members[kind]
            if self._over is None and not self._agents.has(kind):
                self.coordinator.lose(kind.place, f"{_name(kind)} hung up")

    def tick(self) -> None:
        if self._over is not None:
            return
        self._take_plan()
        if time.monotonic() > self._deadline:
            self._deadline = float("inf")
            self._too_late()
        for members in self._agents.silent():
            for member in members:
                self.coordinator.lose(member.place, f"{_name(member)} is on a node that fell silent")
        for place in self._timetable.due_to_join(self.coordinator.rows.next):
            if self._agents.start(place, self._timetable.faults(place, self.coordinator.rows.next)):
                self._tell({"type": "event", "event": f"{place[0]}:{place[1]} starts again"})

    # Called by the coordinator.

    def order(self, member: Member, message: Message) -> None:
        if member in self._members:
            self._members[member].send(message)

    def fence(self, member: Member, why: str) -> None:
        self._agents.kill(member)
        connection = self._members.pop(member, None)
        if connection is not None:
            self._kinds.pop(connection, None)
            connection.close()

    def moved(self, member: Member, target: Member) -> None:
        connection = self._members.pop(member)
        self._members[target] = connection
        self._kinds[connection] = target
        self._agents.rename(member, target)

    def row(self, row: Row) -> None:
        self._journal.write(row=row.step)
        self._tell({"type": "row", **row._asdict()})

    def generation(self, number: int, step: int, assignment: Assignment) -> None:
        self._store.begin(number)
        places = sorted(assignment.roles)
        self._journal.write(generation=number, step=step, places=places)
        self._tell(
            {
                "type": "generation",
                "number": number,
                "step": step,
                "plan": plan_name(self._book, assignment),
                "places": places,
                "watching": assignment.watching,
                "period": assignment.period,
            }
        )

    def recovered(self, recovery: Recovery) -> None:
        self._deadline = float("inf")
        self._tell({"type": "recovery", **recovery.row()})

    def plan_wanted(self, live: tuple[Worker, ...]) -> None:
        failed = tuple(worker for worker in self._book.grid if worker not in live)
        if failed != self._wanted_plan:
            self._wanted_plan = failed
            self._planner.ask(failed)

    def ended(self, error: str | None, no_plan: bool) -> None:
        """Members save what they should; agents end when all of them have."""
        self._error = error
        self.has_no_plan = no_plan
        self._over = time.monotonic() + (30.0 if error is None else _LINGER)
        self._tell({"type": "ended", "error": error, "no_plan": no_plan})

    # Inside.

    def _join(self, connection: Connection, message: Message) -> None:
        member = Member(_worker(message["place"]), int(message["part"]))
        pid = int(message["pid"])
        if member in self.coordinator.roster and self._pids.get(member) == pid:
            # The same process, whose connection broke.
            if (old := self._members.pop(member, None)) is not None:
                self._kinds.pop(old, None)
                old.close()
            self._accept(connection, member)
            self.coordinator.reconnect(member, int(message["generation"]), bool(message["is_training"]))
            return
        self._pids[member] = pid
        if member in self._returning and message.get("generation") == self.coordinator.number:
            self._returning.discard(member)
            self._accept(connection, member)
            is_training = bool(message["is_training"])
            self.coordinator.rejoin(member, is_training=is_training, asked=int(message["asked"]))
            connection.send({"type": "recall", "step": self.coordinator.rows.next})
            if not self._returning:
                self._deadline = float("inf")
                self.coordinator.all_are_back()
            return
        if member in self._members or not self._accept_into(connection, member):
            connection.send({"type": "end", "ok": False})
            connection.close()

    def _accept_into(self, connection: Connection, member: Member) -> bool:
        self._accept(connection, member)
        if self.coordinator.join(member):
            return True
        del self._members[member]
        return False

    def _accept(self, connection: Connection, member: Member) -> None:
        self._kinds[connection] = member
        self._members[member] = connection

    def _from_member(self, member: Member, message: Message) -> None:
        handlers: dict[str, Callable[[], None]] = {
            "report": lambda: self.coordinator.report(member, int(message["generation"]), _report(message)),
            "step": lambda: self.coordinator.step(
                member, int(message["step"]), message["loss"], float(message["seconds"])
            ),
            "began": lambda: self.coordinator.began(member, int(message["generation"])),
            "holding": lambda: self.coordinator.holding(int(message["request"]), int(message["step"])),
            "boundary": lambda: self.coordinator.boundary(member, int(message["step"])),
            "broken": lambda: self.coordinator.broken(
                member, int(message["generation"]), str(message["why"])
            ),
            "failed": lambda: self.coordinator.failed(member, int(message["step"]), str(message["why"])),
            "bundle": lambda: self._send_bundle(member, int(message["number"])),
            "trace": lambda: self._tell(message | {"place": list(member.place)}),
            "done": lambda: self._done(member),
        }
        handler = handlers.get(str(message.get("type")))
        if handler is not None:
            handler()

    def _done(self, member: Member) -> None:
        """It has saved what it should and leaves."""
        connection = self._members.pop(member, None)
        if connection is not None:
            self._kinds[connection] = "store"

    def _from_agent(self, connection: Connection, message: Message) -> None:
        self._agents.heard(connection)
        if message.get("type") != "gone":
            return
        member = Member(_worker(message["place"]), int(message["part"]))
        if not self._agents.gone(connection, member, int(message["pid"])):
            return
        known = self._members.pop(member, None)
        if known is not None:
            self._kinds.pop(known, None)
            known.close()
        fault = message.get("fault")
        harmed = None if not fault else float(fault) / 1e9
        if self._over is None:
            self.coordinator.lose(member.place, f"{_name(member)} {message['how']}", harmed)

    def _start_processes(self) -> None:
        """Have every worker that is expected and nowhere yet started."""
        for place in sorted(self.coordinator.expected, key=lambda worker: (worker[1], worker[0])):
            self._agents.start(place, self._timetable.faults(place, 0))

    def _send_bundle(self, member: Member, number: int) -> None:
        path = self._bundle_paths()[number]
        self.order(member, {"type": "bundle", "data": base64.b64encode(path.read_bytes()).decode()})

    def _bundle_paths(self) -> list[Path]:
        return [Path(self._options.bundle), *self._made]

    _made: tuple[Path, ...] = ()

    def _take_plan(self) -> None:
        made = self._planner.made()
        if made is not None:
            path, bundle = made
            self._made = (*self._made, path)
            self._book.add(bundle)
            self._journal.write(bundle=str(path))
            self._tell({"type": "event", "event": "planned on demand", "period": bundle.plans[0].period})
            self.coordinator.add_plan()
        elif self._planner.error:
            error, self._planner.error = self._planner.error, ""
            self._tell({"type": "event", "event": f"no plan on demand: {error}"})
            self.coordinator.no_plan(f"there is no plan for these losses: {error}")

    def _too_late(self) -> None:
        if self._returning:
            for member in sorted(self._returning):
                self.coordinator.lose(member.place, f"{_name(member)} did not come back")
            self._returning.clear()
            self.coordinator.all_are_back()
        elif self.coordinator.phase is Phase.FORMING:
            missing = ", ".join(f"{p}:{s}" for p, s in sorted(self.coordinator.expected))
            self.coordinator.give_up(f"these workers have not arrived: {missing}")

    def _tell(self, message: Message) -> None:
        for connection, kind in list(self._kinds.items()):
            if kind == "observer":
                connection.send(message)


def _report(message: Message) -> Report:
    def sums(value: Any) -> Sums | None:
        return None if value is None else Sums(float(value[0]), float(value[1]))

    applied = message["applied"]
    return Report(
        None if applied is None else int(applied),
        bool(message["is_fresh"]),
        sums(message["settled"]),
        int(message["settled_steps"]),
        sums(message["unsettled"]),
    )


def _worker(value: Any) -> Worker:
    pipeline, stage = value
    return int(pipeline), int(stage)


def _name(member: Member) -> str:
    return f"{member.place[0]}:{member.place[1]}"
