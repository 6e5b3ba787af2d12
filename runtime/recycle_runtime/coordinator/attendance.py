"""Attendance: who is a member of the job, who is waited for, who has failed, and who is started.

Connections, agents, heartbeats, reports of ends and the journal of a coordinator before this one are what is
known of processes. Decisions go to the job as events: joined, returned, failed. Needs no torch.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from recycle_runtime.coordinator.agents import Agents
from recycle_runtime.coordinator.connections import ClientLine, Connections
from recycle_runtime.coordinator.events import (
    AllReturned,
    BeginsAnew,
    Fence,
    GivenUp,
    Joined,
    Reconnected,
    Rename,
    Returned,
    Said,
    WorkerFailed,
    WorkerStuck,
)
from recycle_runtime.coordinator.hooks import CoordinatorHooks
from recycle_runtime.coordinator.journal import Lines
from recycle_runtime.coordinator.last_generation import Remembered
from recycle_runtime.coordinator.patience import AttentiveClock
from recycle_runtime.coordinator.programs import Programs
from recycle_runtime.coordinator.reach import Reachability
from recycle_runtime.coordinator.refill import LostStarts, Refill, host_of
from recycle_runtime.coordinator.state_machine import Phase, StateMachine
from recycle_runtime.plan.node_layout import placement_order
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.codec import ProtocolError
from recycle_runtime.protocol.identity import node_of
from recycle_runtime.protocol.messages.agents import ENDED_WELL, AgentJoin, ProcessEnded, UseRelay
from recycle_runtime.protocol.messages.generations import Done, End, Failed, Join, LeftGroup, Reach
from recycle_runtime.protocol.messages.members import Member

_LOGGER = logging.getLogger(__name__)
_TURN = 0.05
RETURN_SECONDS = 5.0
"""Seconds for which a restarted coordinator waits for the processes of the journal."""
_LAST_RETURN_SECONDS = 30.0
"""The same for those without which the job would end: they look for it so long, and may be cut off."""
_NODES_SECONDS = 30.0
"""Seconds for the next of the nodes that were announced to arrive."""
_UNHEARD_SECONDS = 0.5
"""For workers whose agent is gone to connect themselves while the others wait: it takes them milliseconds."""
_WITH_ITS_NODE = "was on a node that is gone"
_LAYERS_TRAVEL = "the plans have several cuts, so layers go to other workers instead, unless --recut off"


class Attendance:
    """Decides who takes part; `happen` hands an event to the job."""

    def __init__(
        self,
        job: StateMachine,
        tensor: int,
        clock: AttentiveClock,
        connections: Connections,
        agents: Agents,
        programs: Programs,
        hooks: CoordinatorHooks,
        happen: Callable[..., None],
        tell: Callable[[str], None],
        say_start: Callable[[str], None],
        *,
        failed: Iterable[Worker],
        start_seconds: float,
        timeout: float,
        has_relays: bool,
        restarts_workers: bool,
        has_recuts: bool = False,
    ) -> None:
        """`failed` are workers that the user wants to do without; `timeout` is that of heartbeats;
        `has_recuts`: layers may travel to another cut."""
        self._job, self._tensor, self._clock, self._hooks = job, tensor, clock, hooks
        self._connections, self._agents = connections, agents
        self.programs = programs
        """Program, seed and plans that every process must have."""
        self._happen, self._tell, self._say_start = happen, tell, say_start
        self._timeout, self._has_relays, self._restarts_workers = timeout, has_relays, restarts_workers
        self._has_recuts = has_recuts
        self._book = job.book
        """The plans of the job's own cut."""
        self._refill = Refill()
        self._lost_starts = LostStarts(timeout)
        self._reach = Reachability()
        self._to_start = placement_order(job.members.expected)[::-1]
        """Of the workers that the job begins with, those that no agent has an order for, from the last on."""
        self._away = set(failed)
        """Workers that the user wants to do without, until a node arrives while the others train."""
        now = clock.now()
        self._node_at = now
        """Time at which the last node arrived."""
        self.deadline = now + start_seconds
        """For those who are waited for."""
        self._returns_by = now + _LAST_RETURN_SECONDS
        self._moved_in: dict[Worker, Worker] = {}
        """By place: who had another before and has taken it."""
        self._doubtful: dict[Member, tuple[str, float]] = {}
        """Processes without which the job would end and which have no connection: how they were lost, and
        until when they are waited for."""
        self._refused: set[int] = set()
        """Processes that were sent away when they came, by their numbers, until they have ended."""
        self._unheard: dict[Member, float] = {}
        """Processes whose agent is gone, and which may be about to connect themselves: since when."""
        self._returning: set[Member] = set()
        """Processes of the journal that have not come back to this coordinator yet."""
        self._is_told_of_ranks = False
        self._pids_before: Mapping[Member, int] = {}
        """Process ids of members, as far as the previous coordinator has written them to the journal."""

    @property
    def _has_ended(self) -> bool:
        return self._job.phase is Phase.ENDED

    @property
    def awaits_some(self) -> bool:
        """True while processes of the journal have not come back."""
        return bool(self._returning)

    def await_nobody(self) -> None:
        """The job was over, and all processes had been notified."""
        self._returning.clear()

    def remember(self, state: Remembered, lines: Lines) -> None:
        """Wait for the processes of the coordinator before this one."""
        workers = (*state.places, *state.joiners)
        self._returning = {member for worker in workers for member in state.members(worker, self._tensor)}
        self._returning -= set(lines.values("done"))
        self._pids_before = state.pids
        self.deadline = self._clock.now() + RETURN_SECONDS
        _LOGGER.info("restarted: %d processes are expected back", len(self._returning))

    def look(self, now: float) -> None:
        """Now and then: who is late, and who should run and does not."""
        if now > self.deadline:
            self.deadline = float("inf")
            self._give_up_missing_members(now)
        self._look_at_network(now)
        self._look_at_nodes(now)
        self._look_at_unheard(now)
        self._look_at_doubtful(now)
        self._start_missing(now)

    # Who comes.

    def join(self, connection: ClientLine, message: Join) -> None:
        member, pid = message.member, message.pid
        if not self._book.has(member.worker) or member.tp_rank >= self._tensor:
            raise ProtocolError(
                f"the job has no worker {worker_text(member.worker)} with rank {member.tp_rank}"
            )
        is_same = member in self._job.roster and self._connections.pid_of(member) == pid
        is_taken = member in self._job.roster or self._has_ended or self._is_apart(member, pid)
        if member in self._returning and self._pids_before.get(member, pid) != pid:
            # Started in the place of one that may still come back, it comes again until that is known.
            connection.close()
            return
        if not is_same and member not in self._returning and is_taken:
            _LOGGER.info("a second process for %s is refused", _called(member))
            self._refused.add(pid)
            connection.send(End(ok=False))
            connection.close()
            return
        self._refused.discard(pid)
        self._connections.accept(connection, member, pid)
        _LOGGER.info("%s joins from %s", _called(member), connection.address)
        if is_same:
            # The same process, whose connection broke.
            self._happen(_reconnected(message))
        elif member in self._returning and self._has_ended:
            self._happen(_reconnected(message))
        elif member in self._returning:
            # One that never heard of the last generation is none of those who train in it.
            is_training = message.is_training and message.generation == self._job.number
            self._happen(Returned(member, is_training, message.asked, message.saves))
            self._is_back(member)
        else:
            self._happen(Joined(member, message.generation > 0, message.asked, message.ranks))

    def _is_apart(self, member: Member, pid: int) -> bool:
        """True if another rank of the same worker has come from another node, where the rest of it may be."""
        others = (Member(member.worker, rank) for rank in range(self._tensor) if rank != member.tp_rank)
        known = (self._connections.pid_of(other) for other in others if other in self._job.roster)
        return any(other is not None and node_of(other) != node_of(pid) for other in known)

    def _is_back(self, member: Member) -> None:
        """Or known to have failed."""
        self._returning.discard(member)
        if not self._returning:
            self.deadline = float("inf")
            self._happen(AllReturned())

    def checked(self, member: Member, message: Any) -> Any:
        """The message of a process; one that cannot train with the others has failed."""
        if isinstance(message, LeftGroup):
            if self._has_recuts and message.ranks and not self._is_told_of_ranks:
                self._is_told_of_ranks = True
                _LOGGER.warning("RANKS has no effect: %s", _LAYERS_TRAVEL)
            mistake = self.programs.mistake(member, message, self._host)
            if mistake is not None:
                return Failed(0, mistake, is_injected=False, is_hopeless=False)
        return message

    def _host(self, worker: Worker) -> str:
        """Host that the worker runs on; empty if no agent reports it."""
        node = self._agents.nodes().get(worker, "")
        return node and host_of(node)

    # Agents, and who is started.

    def agent_joins(self, connection: ClientLine, message: AgentJoin) -> None:
        _LOGGER.info(
            "an agent joins from %s: room for %d processes, %d run",
            connection.address,
            message.processes,
            len(message.running),
        )
        if (before := self._agents.arrive(connection, message, self._clock.now())) is not None:
            before.close()
        if self._has_relays or message.relays:
            connection.send(UseRelay(self._has_relays))
        for ended in message.ended:
            self.process_ended(connection, ended)
        self._node_at = self._clock.now()
        if not message.running and self._job.phase is not Phase.FORMING:
            self._away.clear()
            self._refill.new_node()
            self._restart_workers()
        self._start_expected()

    def _start_expected(self) -> None:
        """Those that the job begins with."""
        started = 0
        while self._to_start:
            worker = self._to_start[-1]
            is_wanted = worker in self._job.members.expected and not self._agents.runs(worker)
            if is_wanted and not self._agents.start(worker, self._hooks.faults(worker)):
                # The same holds for all others: there is no room.
                break
            self._to_start.pop()
            started += is_wanted
        if self._job.phase is Phase.FORMING and started:
            self._say_start(f"{started} workers start: they read the program and build their layers")

    def _restart_workers(self) -> None:
        """Failed ones, where there is room by now."""
        if self._job.phase not in (Phase.RUNNING, Phase.GATHERING) or self._returning:
            return
        fewer = self._fewer_ranks() or ()
        if not self._agents.has_room() and not fewer:
            return
        now, names = self._clock.now(), self._agents.names()
        taken = {*self._job.roster.whole(), *self._job.members.moves.values(), *self._away}
        missing = set(self._book.grid) - taken
        due = self._refill.due(missing, now)
        for worker in placement_order(due) if due else ():
            if (started := self._start_failed(worker, names, fewer)) is not None:
                node, ranks = started
                self._refill.started(worker, node, now)
                how = f" with {ranks} of {self._tensor} ranks" if ranks else ""
                self._tell(f"{worker_text(worker)} is started again on {host_of(node)}{how}")

    def _fewer_ranks(self) -> tuple[int, ...] | None:
        """Numbers of ranks with which a worker can be started that has lost some, the most first; None: not
        known yet. Layers that move to other workers do more than some ranks of one that stays where it is."""
        return () if self._has_recuts else self._job.members.fewer_ranks()

    def _start_failed(
        self, worker: Worker, names: list[str], fewer: tuple[int, ...]
    ) -> tuple[str, int] | None:
        """On which node, and with how many ranks if these are fewer than the job's; None if nowhere."""
        faults, avoided = self._hooks.faults(worker), self._refill.avoided(worker, names)
        if not self._agents.has_room(avoided):
            for smaller, ranks in enumerate(fewer, 1):
                bad = self._refill.avoided(worker, names, smaller)
                if (node := self._agents.replace(worker, faults, bad, ranks)) is not None:
                    return node, ranks
        node = self._agents.replace(worker, faults, avoided)
        return None if node is None else (node, 0)

    def _start_lost(self, now: float) -> None:
        """Workers that an agent was ordered to start, but that have not come and that no agent knows."""
        self._lost_starts.note(self._agents.unsure(), now)
        if self._returning:
            return
        for worker in self._lost_starts.due(now):
            if not self._is_wanted(worker) or self._starts_again(worker, now):
                self._lost_starts.forget(worker)

    def _is_wanted(self, worker: Worker) -> bool:
        """True if it has not come, and should."""
        job = self._job
        if job.phase is Phase.FORMING:
            return worker in job.members.expected
        is_absent = not job.roster.is_whole(worker) and worker not in self._away
        return is_absent and self._restarts_workers and job.phase in (Phase.RUNNING, Phase.GATHERING)

    def _starts_again(self, worker: Worker, now: float) -> bool:
        """Or has been; False if there is no room, and it may come by itself."""
        ranks = [Member(worker, rank) for rank in range(self._tensor)]
        here = [member for member in ranks if self._agents.has(member)]
        come = [member for member in ranks if member in self._job.roster]
        absent = [member for member in ranks if member not in here and member not in come]
        faults = self._hooks.faults(worker)
        if not absent:
            return True
        if here:
            node = self._agents.complete(absent, faults)
            if node is None:
                return False
            self._refill.started(worker, node, now)
        elif come and not self._agents.has_room():
            return False
        else:
            if come:
                self._end_half(worker, come)
            if self._job.phase is not Phase.FORMING:
                # It is started with those that have failed.
                return True
            if not self._agents.start(worker, faults):
                return False
        self._tell(f"{worker_text(worker)} is started again: its agent was gone before it had come")
        return True

    def _end_half(self, worker: Worker, come: list[Member]) -> None:
        """Of a worker some ranks have come from a node without an agent, so nobody can start its others
        there. Before the first step that is no failure: those of its node may be on their way here from a
        coordinator before this one."""
        why = "has some of its ranks only"
        for member in come:
            self._connections.send(member, End(ok=False))
        if self._job.phase is not Phase.FORMING:
            self._fail(come[0], why)
            return
        # When an agent says that they have ended, that is no failure either.
        self._refused.update(pid for member in come if (pid := self._connections.pid_of(member)) is not None)
        self._happen(BeginsAnew(worker, f"{worker_text(worker)} {why}"))

    def _start_missing(self, now: float) -> None:
        """Workers that should run and do not."""
        self._start_lost(now)
        if self._restarts_workers:
            self._restart_workers()
            self._make_whole()
        if self._job.phase is Phase.FORMING and now - self._node_at > _NODES_SECONDS:
            # Fewer nodes have come than were announced.
            self._agents.share_no_more()
            self._start_expected()
        for worker in self._hooks.due_to_join(self._job.participants.rows.next):
            place = self._free_place(worker)
            if place in self._job.members.moves.values():
                continue
            ranks = self._hooks.ranks(worker)
            fewer = self._fewer_ranks() if ranks else ()
            if fewer is None:
                continue
            if ranks and ranks not in fewer:
                self._tell(
                    f"{worker_text(worker)} is not restarted with {ranks} of its ranks: {self._why_all_ranks}"
                )
                self._hooks.started(worker)
                continue
            node = self._agents.replace(place, self._hooks.faults(place), (), ranks)
            if node is None:
                continue
            self._refill.started(place, node, now)
            moved = "" if place == worker else f" as {worker_text(place)}, which has taken its place"
            moved += f" with {ranks} of {self._tensor} ranks" if ranks else ""
            self._tell(f"{worker_text(worker)} is restarted{moved}")
            self._moved_in.pop(worker, None)
            self._hooks.started(worker)

    @property
    def _why_all_ranks(self) -> str:
        if self._has_recuts:
            return _LAYERS_TRAVEL
        if self._book.has_shards:
            return "the job's optimizer state is in shards"
        return "RANKS of the program does not name this number, or has no effect, as a warning has said"

    def _make_whole(self) -> None:
        """A worker that has lost ranks, where there is room for all of them by now: it fails once more."""
        for worker in sorted(self._job.roster.fewer) if self._job.is_settled else ():
            avoided = self._refill.avoided(worker, self._agents.names())
            if self._agents.has_room(avoided) and self._can_go_on_without({worker}):
                self._fail(Member(worker, 0), "is started again with all of its ranks")
                return

    def _free_place(self, worker: Worker) -> Worker:
        """Its own; where another worker has moved there, the one that this has left."""
        place, seen = worker, set[Worker]()
        while place in self._moved_in and place not in seen and self._agents.runs(place):
            seen.add(place)
            place = self._moved_in[place]
        return place

    # Who goes.

    def process_ended(self, connection: ClientLine, message: ProcessEnded) -> None:
        self._agents.heard(connection, self._clock.now())
        if message.pid in self._refused:
            self._refused_ended(connection, message)
            return
        node = self._agents.name_of(connection)
        member, pid = self._connections.now(message.member, message.pid), message.pid
        if self._connections.pid_of(member) == pid:
            self._connections.drain(member)
        if not self._was_expected(connection, member, pid):
            return
        _LOGGER.info("%s %s", _called(member), message.how)
        if (said := self._refill.ended(member.worker, node, self._clock.now())) is not None:
            _LOGGER.warning("%s", said)
        if not self._has_ended:
            fault_at = message.fault_at / 1e9 - self._clock.stopped if message.fault_at else None
            name = worker_text(member.worker)
            name = name if self._tensor == 1 else f"rank {member.tp_rank} of worker {name}"
            failed = WorkerFailed(member.worker, f"{name} {message.how}", fault_at)
            if message.how == ENDED_WELL and self._job.phase is Phase.SAVING:
                # What it has said may not have been heard, if a coordinator ended meanwhile.
                self._happen(Said(member, Done(None)))
            elif message.stuck_in is not None and fault_at is None:
                where = f":\n{message.where}" if message.where else ""
                self._happen(WorkerStuck(failed, message.stuck_in, f"worker {failed.cause}{where}"))
            else:
                self._happen(failed)
        # Not before: another process of this name is none that has failed.
        self._connections.forget(member)
        if member in self._returning:
            self._is_back(member)

    def _refused_ended(self, connection: ClientLine, message: ProcessEnded) -> None:
        """A process that was one too many: its worker has not failed, and others may have its room."""
        member = message.member
        self._refused.discard(message.pid)
        if self._agents.gone(connection, member, message.pid) and not self._has_ended:
            self._refill.lost(member.worker, self._clock.now())
            self._agents.doubt(member.worker)
            self._start_expected()

    def _was_expected(self, connection: ClientLine, member: Member, pid: int) -> bool:
        """True if this is the first report of the end of a worker process."""
        was_watched = self._agents.gone(connection, member, pid)
        known = self._process_of(member)
        if known is not None:
            # Otherwise a second process for a place that is taken.
            return known == pid
        if was_watched:
            return True
        # An agent may also tell of one that had this place before.
        return member in self._returning and not self._agents.has(member)

    def _process_of(self, member: Member) -> int | None:
        """The one that has this place, or is expected back there, as far as that is known."""
        before = self._pids_before.get(member) if member in self._returning else None
        return self._connections.pid_of(member) or before

    def lose_agent(self, connection: ClientLine) -> None:
        """A node may be gone with it."""
        for member in self._agents.leave(connection):
            # With a node, its workers may go before their agent, who cannot say it any more.
            if member not in self._connections and self._connections.pid_of(member) is not None:
                self._miss(member)

    def lose_connection(self, member: Member) -> None:
        if not self._agents.has(member):
            # Its agent would report what became of it, if it still had one.
            self._lose(member, "disconnected")

    def _miss(self, member: Member) -> None:
        """Its agent is gone and it has no connection; if that went through the agent, it makes another."""
        if self._has_relays:
            self._unheard[member] = self._clock.now()
        else:
            self._lose(member, _WITH_ITS_NODE)

    def _look_at_unheard(self, now: float) -> None:
        timeout = self._timeout
        # When others have lost a connection too it is the node that is gone, and all wait for its workers.
        limit = min(_UNHEARD_SECONDS, timeout) if self._job.phase is Phase.GATHERING else timeout
        for member, since in list(self._unheard.items()):
            is_back = member in self._connections or member not in self._job.roster
            if is_back or self._agents.has(member):
                # Or there is an agent again, which says what becomes of it.
                del self._unheard[member]
            elif now - since > limit:
                del self._unheard[member]
                self._lose(member, _WITH_ITS_NODE)

    def _lose(self, member: Member, how: str) -> None:
        """It is gone, for all that is known; one without which the job would end may be on its way back."""
        now = self._clock.now()
        if self._can_go_on_without({member.worker} | self._agents.silent(now)):
            self._fail(member, how)
        else:
            self._doubtful[member] = how, now + _LAST_RETURN_SECONDS

    def _look_at_doubtful(self, now: float) -> None:
        for member, (how, until) in list(self._doubtful.items()):
            if member in self._connections or member not in self._job.roster:
                del self._doubtful[member]
            elif now > until or self._can_go_on_without(self._agents.silent(now)):
                del self._doubtful[member]
                self._fail(member, how)

    def _fail(self, member: Member, how: str) -> None:
        if not self._has_ended:
            self._refill.lost(member.worker, self._clock.now())
            self._happen(WorkerFailed(member.worker, f"{worker_text(member.worker)} {how}"))

    def _give_up_missing_members(self, now: float) -> None:
        is_early = self._returning and now < self._returns_by
        if is_early and not self._can_go_on_without(self._agents.silent(now)):
            self.deadline = now + _TURN
        elif self._returning:
            for member in sorted(self._returning):
                self._fail(member, "did not come back")
            # If the job has ended by that, nobody is waited for any more.
            self._returning.clear()
        elif self._job.phase is Phase.FORMING and self._job.members.expected:
            names = ", ".join(map(worker_text, sorted(self._job.members.expected)))
            self._happen(GivenUp(f"these workers have not arrived: {names}"))

    def hear_reach(self, member: Member, message: Reach) -> None:
        self._reach.hear(member.worker, message.here, message.unanswered, self._clock.now())

    def _look_at_network(self, now: float) -> None:
        verdict = self._reach.decide(self._job.roster.whole(), self._can_go_on_without, now)
        if verdict is None:
            return
        for worker, why in verdict.failed:
            self._agents.shun(Member(worker, 0))
            self._happen(WorkerFailed(worker, why))
        if verdict.error is not None:
            self._happen(GivenUp(verdict.error))

    def _look_at_nodes(self, now: float) -> None:
        for connection, members in self._agents.timed_out(self._can_go_on_without, now):
            # If it was asleep, it has to say again what runs there.
            connection.close()
            for member in members:
                self._fail(member, "is on a node without a heartbeat")

    def _can_go_on_without(self, workers: set[Worker]) -> bool:
        """True if others hold everything that these hold.

        A worker that may never be heard of again holds nothing.
        """
        unsure = (*self._returning, *self._doubtful, *self._unheard)
        gone = workers | {member.worker for member in unsure}
        return self._job.can_go_on_with([one for one in self._job.roster.whole() if one not in gone])

    # Orders.

    def fence(self, order: Fence) -> None:
        _LOGGER.info("%s", order.why, extra={"worker": worker_text(order.member.worker)})
        self._agents.kill(order.member, self._process_of(order.member) or 0)
        self._connections.hang_up(order.member)
        if order.member in self._returning:
            # If it comes back all the same, it is as new.
            self._is_back(order.member)

    def rename(self, order: Rename) -> None:
        self._moved_in[order.target.worker] = order.member.worker
        self._connections.rename(order.member, order.target)
        self._agents.rename(order.member, order.target)
        _LOGGER.info("%s is %s from now on", _called(order.member), _called(order.target))

    def pids(self, workers: Iterable[Worker]) -> list[tuple[Member, int]]:
        """Of all their processes, as far as they are known."""
        members = (Member(worker, rank) for worker in workers for rank in range(self._tensor))
        known = ((member, self._connections.pid_of(member)) for member in members)
        return sorted((member, pid) for member, pid in known if pid is not None)


def _reconnected(message: Join) -> Reconnected:
    return Reconnected(message.member, message.generation, message.is_training, message.asked, message.saves)


def _called(member: Member) -> str:
    return f"{worker_text(member.worker)} rank {member.tp_rank}"
