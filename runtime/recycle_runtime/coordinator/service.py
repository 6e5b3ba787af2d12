"""The coordinator as a process: sockets, the store, the journal, plans on demand. Standard library only.

Four kinds of clients connect: members (worker processes), their store connections, agents, and observers, who
are told everything. What a client is follows from the first thing it says.
"""

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from recycle_runtime.coordinator.adaptation import Adaptation, AdaptationOptions
from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.coordinator.coordinator import Coordinator, Phase
from recycle_runtime.coordinator.decision import Member
from recycle_runtime.coordinator.journal import Journal, read, rows_since
from recycle_runtime.coordinator.opening import begin_job
from recycle_runtime.coordinator.plan_files import PlanFiles
from recycle_runtime.coordinator.plans_on_demand import PlansOnDemand
from recycle_runtime.coordinator.reach import Reachability
from recycle_runtime.coordinator.recoveries import Recovery
from recycle_runtime.coordinator.replanning import Replanner
from recycle_runtime.coordinator.step_metrics import Row
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.node_layout import placement_order
from recycle_runtime.plan.plan_book import Assignment, PlanBook, plan_name
from recycle_runtime.protocol.framing import Message
from recycle_runtime.protocol.incoming import report_of, texts_of, worker_of
from recycle_runtime.protocol.server import Connection, Server
from recycle_runtime.protocol.store_table import StoreTable
from recycle_runtime.testing.timetable import Timetable

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
    checkpoint: str | None = None
    """The folder for checkpoints; None: none are taken."""
    every: int = 100
    """Steps from one checkpoint to the next."""
    resume: bool = False
    """Begin with the newest checkpoint."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    silent: float = 3.0
    """Seconds without a word after which a node counts as lost."""


class Service:
    """Connects the coordinator's decisions to sockets, files and processes."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        bundle = Bundle.read(options.bundle)
        options.state.mkdir(parents=True, exist_ok=True)
        self._book = PlanBook(bundle)
        self._store = StoreTable()
        self._server = Server(options.host, options.port, options.token, self)
        self._members: dict[Member, Connection] = {}
        self._kinds: dict[Connection, Member | str] = {}
        self._pids: dict[Member, int] = {}
        self._moved_from: dict[tuple[Member, int], Member] = {}
        """For processes that have another place: from member and pid as they were."""
        self._agents = Agents(bundle.tensor, options.silent)
        self._reach = Reachability()
        expected = set(self._book.grid) - set(options.failed)
        self._journal_path = options.state / "journal.jsonl"
        remembered = read(self._journal_path)
        self._journal = Journal(self._journal_path)
        self.coordinator = Coordinator(self._book, bundle.tensor, options.steps, expected, self)
        replanner = Replanner(options.state)
        self._files = PlanFiles(options.bundle, self._book, self._journal)
        self._adaptation = Adaptation(
            self.coordinator, options.adaptation, replanner, self._files, self._tell_event
        )
        self._plans = PlansOnDemand(self.coordinator, self._files, options.state, self._tell)
        self._opening = ""
        if options.checkpoint is not None:
            self._opening = begin_job(
                self.coordinator, bundle, options.checkpoint, options.every, options.resume,
                remembered, self._journal, self.order, self._tell_event,
            )  # fmt: skip
        self._deadline = time.monotonic() + options.start_seconds
        self._returning: set[Member] = set()
        if remembered is not None:
            self._files.recall(remembered.bundles, remembered.standby, remembered.made_for, remembered.fitted)
            self.coordinator.remember(remembered)
            assert self.coordinator.assignment is not None
            self._adaptation.generation(self.coordinator.assignment)
            self._returning = {
                Member(place, part) for place in remembered.places for part in range(bundle.tensor)
            }
            self._deadline = time.monotonic() + _RETURN_SECONDS
            options.timetable.resume(remembered.next_row, remembered.places)
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
            self._plans.stop()
            self._adaptation.stop()
            self.coordinator.saving.close()
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
            if (before := self._agents.arrive(connection, message)) is not None:
                before.close()
            self._start_processes(is_new=not message.get("running"))
        elif kind == "observe":
            self._kinds[connection] = "observer"
            self._greet(connection, message.get("next"))
        else:
            connection.close()

    def closed(self, connection: Connection) -> None:
        kind = self._kinds.pop(connection, None)
        self._store.forget(connection.send)
        if kind == "agent":
            for member in self._agents.leave(connection):
                # With a node, its workers may go before their agent, who cannot say it any more.
                if self._over is None and member in self._pids and member not in self._members:
                    self.coordinator.lose(member.place, f"{_name(member)} was on a node that is gone")
        if isinstance(kind, Member) and self._members.get(kind) is connection:
            # Its agent will say what became of it; if it has none any more, nobody can.
            del self._members[kind]
            if self._over is None and not self._agents.has(kind):
                self.coordinator.lose(kind.place, f"{_name(kind)} hung up")

    def tick(self) -> None:
        if self._over is not None:
            return
        self._plans.take()
        if self._options.adaptation.ahead:
            self._plans.look_ahead()
        self.coordinator.look_at_progress()
        self._adaptation.turn(self._plans.is_awaited)
        self.coordinator.look_at_checkpoints()
        if time.monotonic() > self._deadline:
            self._deadline = float("inf")
            self._too_late()
        self._look_at_network()
        for connection, members in self._agents.silent(self._can_lose):
            # If it was asleep, it has to say again what runs there.
            connection.close()
            for member in members:
                self.coordinator.lose(member.place, f"{_name(member)} is on a node that fell silent")
        for place in self._timetable.due_to_join(self.coordinator.rows.next):
            if self._agents.start(place, self._timetable.faults(place)):
                self._timetable.started(place)
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
        if (connection := self._members.pop(member, None)) is not None:
            self._members[target] = connection
            self._kinds[connection] = target
        if (pid := self._pids.pop(member, None)) is not None:
            self._pids[target] = pid
            self._moved_from[member, pid] = target
        self._agents.rename(member, target)
        self._adaptation.moved(member.place, target.place)

    def row(self, row: Row) -> None:
        self._journal.write(row=row.step, told=row._asdict())
        self._tell({"type": "row", **row._asdict()})
        self._adaptation.row(row)

    def gathering(self, number: int) -> None:
        self._store.begin(number)

    def generation(self, number: int, step: int, assignment: Assignment) -> None:
        self._store.begin(number)
        self._adaptation.generation(assignment)
        places = sorted(assignment.roles)
        plan = [assignment.bundle, assignment.plan, assignment.standbys, int(assignment.on_purpose)]
        roles = [assignment.roles[place] for place in places]
        self._journal.write(generation=number, step=step, places=places, plan=plan, roles=roles)
        self._tell(
            {
                "type": "generation",
                "number": number,
                "step": step,
                "plan": plan_name(self._book, assignment),
                "places": places,
                "standbys": assignment.standbys,
                "period": assignment.period,
            }
        )

    def recovered(self, recovery: Recovery) -> None:
        self._deadline = float("inf")
        if self.coordinator.first_step:
            self._journal.write(restored=True)
        self._tell({"type": "recovery", **recovery.row()})
        self._adaptation.recovered(recovery)

    def plan_wanted(self, live: tuple[Worker, ...]) -> None:
        self._plans.want(live)

    def ended(self, error: str | None, no_plan: bool) -> None:
        """Members save what they should; agents end when all of them have."""
        self._error = error
        self.has_no_plan = no_plan
        self._over = time.monotonic() + (30.0 if error is None else _LINGER)
        self.coordinator.saving.close()
        self._tell(self._last_words())

    # Inside.

    was_observed = False
    """Whether somebody else tells the user."""

    def _last_words(self) -> Message:
        no_plan, newest = self.has_no_plan, self.coordinator.saving.newest
        return {"type": "ended", "error": self._error, "no_plan": no_plan, "checkpoint": newest}

    def _join(self, connection: Connection, message: Message) -> None:
        member = Member(worker_of(message["place"]), int(message["part"]))
        pid = int(message["pid"])
        if member in self.coordinator.roster and self._pids.get(member) == pid:
            # The same process, whose connection broke.
            if (old := self._members.pop(member, None)) is not None:
                self._kinds.pop(old, None)
                old.close()
            self._accept(connection, member)
            connection.send({"type": "recall", "step": self.coordinator.rows.next})
            self.coordinator.reconnect(member, int(message["generation"]), bool(message["is_training"]))
            return
        if member in self._returning:
            # One that never heard of the last generation is none of those who train in it.
            is_training = bool(message["is_training"]) and message["generation"] == self.coordinator.number
            self._pids[member] = pid
            self._accept(connection, member)
            connection.send({"type": "recall", "step": self.coordinator.rows.next})
            self.coordinator.rejoin(member, is_training=is_training, asked=int(message["asked"]))
            self._returned(member)
            return
        if member in self.coordinator.roster or self._over is not None:
            connection.send({"type": "end", "ok": False})
            connection.close()
            return
        self._pids[member] = pid
        self._accept(connection, member)
        has_trained = int(message["generation"]) > 0
        self.coordinator.join(member, has_trained=has_trained, asked=int(message["asked"]))

    def _returned(self, member: Member) -> None:
        """It is back, or known to be lost."""
        self._returning.discard(member)
        if not self._returning:
            self._deadline = float("inf")
            self.coordinator.all_are_back()

    def _accept(self, connection: Connection, member: Member) -> None:
        self._kinds[connection] = member
        self._members[member] = connection

    def _from_member(self, member: Member, message: Message) -> None:
        handlers: dict[str, Callable[[], None]] = {
            "report": lambda: self.coordinator.report(member, int(message["generation"]), report_of(message)),
            "step": lambda: self._step(member, message),
            "loss": lambda: self.coordinator.loss(member, int(message["step"]), message["loss"]),
            "harmed": lambda: self._harmed(member, message),
            "began": lambda: self._began(member, message),
            "holding": lambda: self.coordinator.holding(int(message["request"]), int(message["step"])),
            "boundary": lambda: self.coordinator.boundary(member, int(message["step"])),
            "caught_up": lambda: self.coordinator.caught_up(member, int(message["generation"])),
            "broken": lambda: self.coordinator.broken(
                member, int(message["generation"]), str(message["why"])
            ),
            "failed": lambda: self._failed(member, message),
            "checkpoint": lambda: self.coordinator.saving.hear(member, message),
            "bundle": lambda: self._send_bundle(member, int(message["number"])),
            "trace": lambda: self._tell(message | {"place": list(member.place)}),
            "reach": lambda: self._reach.hear(
                member.place, texts_of(message["here"]), texts_of(message["unanswered"])
            ),
            "done": lambda: self._done(member),
        }
        handler = handlers.get(str(message.get("type")))
        if handler is not None:
            handler()

    def _step(self, member: Member, message: Message) -> None:
        self._adaptation.measured(member, message.get("times", {}))
        self.coordinator.step(member, int(message["step"]), message["loss"], float(message["seconds"]))

    def _began(self, member: Member, message: Message) -> None:
        self._adaptation.began(member, int(message.get("state_bytes", 0)), message.get("copied"))
        self.coordinator.began(member, int(message["generation"]))

    def _harmed(self, member: Member, message: Message) -> None:
        """It does now what it was told to do to itself."""
        kind, step, position = str(message["kind"]), int(message["step"]), int(message["position"])
        self._timetable.harmed(member.place, kind, step, position)
        self._tell({"type": "event", "event": f"{kind} of {_name(member)}", "fault": [kind, step, position]})

    def _failed(self, member: Member, message: Message) -> None:
        why = str(message["why"])
        self._tell_event(f"{_name(member)} failed: {why.partition(chr(10))[0]}")
        self.coordinator.failed(
            member,
            int(message["step"]),
            why,
            is_injected=bool(message["is_injected"]),
            is_hopeless=bool(message["is_hopeless"]),
        )

    def _done(self, member: Member) -> None:
        """It has saved what it should and leaves."""
        connection = self._members.pop(member, None)
        if connection is not None:
            self._kinds[connection] = "store"

    def _from_agent(self, connection: Connection, message: Message) -> None:
        self._agents.heard(connection)
        if message.get("type") != "gone":
            return
        member, pid = Member(worker_of(message["place"]), int(message["part"])), int(message["pid"])
        while (member, pid) in self._moved_from:
            # It has moved, and its agent had not heard of that yet.
            member = self._moved_from.pop((member, pid))
        if self._pids.get(member) == pid and member in self._members:
            self._members[member].drain()
        if not self._is_loss(connection, member, pid):
            return
        self._pids.pop(member, None)
        known = self._members.pop(member, None)
        if known is not None:
            self._kinds.pop(known, None)
            known.close()
        fault = message.get("fault")
        harmed = None if not fault else float(fault) / 1e9
        if self._over is None:
            self.coordinator.lose(member.place, f"{self._called(member)} {message['how']}", harmed)
        if member in self._returning:
            self._returned(member)

    def _is_loss(self, connection: Connection, member: Member, pid: int) -> bool:
        """Whether the end of this process is the end of a member, told for the first time."""
        was_watched = self._agents.gone(connection, member)
        if member in self._pids:
            # Otherwise a second process for a place that is taken.
            return self._pids[member] == pid
        return was_watched or (member in self._returning and not self._agents.has(member))

    def _greet(self, connection: Connection, since: int | None) -> None:
        """Tell an observer what it has missed."""
        following = self.coordinator.rows.next
        connection.send({"type": "hello", "steps": self._options.steps, "next": following})
        self.was_observed = True
        if self._opening:
            connection.send({"type": "event", "event": self._opening})
            self._opening = ""
        if since is not None:
            for row in rows_since(self._journal_path, since):
                connection.send({"type": "row", **row})
        if self._over is not None:
            connection.send(self._last_words())

    def _start_processes(self, *, is_new: bool) -> None:
        """Those expected, or, on a new node, those that have failed."""
        wanted = set(self.coordinator.expected)
        if is_new and self.coordinator.phase in (Phase.RUNNING, Phase.GATHERING):
            wanted = set(self._book.grid) - set(self.coordinator.roster.whole())
        for place in placement_order(wanted):
            self._agents.start(place, self._timetable.faults(place))

    def _send_bundle(self, member: Member, number: int) -> None:
        path = self._files.paths[number]
        self.order(
            member, {"type": "bundle", "number": number, "data": base64.b64encode(path.read_bytes()).decode()}
        )

    def _called(self, member: Member) -> str:
        name = _name(member)
        return name if self._book.bundles[0].tensor == 1 else f"part {member.part} of worker {name}"

    def _too_late(self) -> None:
        if self._returning:
            for member in sorted(self._returning):
                self.coordinator.lose(member.place, f"{_name(member)} did not come back")
            self._returning.clear()
            self.coordinator.all_are_back()
        elif self.coordinator.phase is Phase.FORMING:
            missing = ", ".join(f"{p}:{s}" for p, s in sorted(self.coordinator.expected))
            self.coordinator.give_up(f"these workers have not arrived: {missing}")

    def _look_at_network(self) -> None:
        verdict = self._reach.decide(self.coordinator.roster.whole(), self._can_lose)
        if verdict is None:
            return
        for place, why in verdict.lost:
            self._agents.shun(Member(place, 0))
            self.coordinator.lose(place, why)
        if verdict.error is not None:
            self.coordinator.give_up(verdict.error)

    def _can_lose(self, places: set[Worker]) -> bool:
        """Whether every stage has a worker left without these."""
        left = {place[1] for place in self.coordinator.roster.whole() if place not in places}
        return len(left) == self._book.stages

    def _tell_event(self, words: str) -> None:
        self._tell({"type": "event", "event": words})

    def _tell(self, message: Message) -> None:
        for connection, kind in list(self._kinds.items()):
            if kind == "observer":
                connection.send(message)


def _name(member: Member) -> str:
    return f"{member.place[0]}:{member.place[1]}"
