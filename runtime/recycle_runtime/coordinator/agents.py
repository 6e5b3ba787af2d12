"""The agents of a job's nodes: which processes run on each. Needs no torch."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.node_layout import NodeLoad, best_with_room
from recycle_runtime.protocol.messages.agents import (
    AgentJoin,
    JobEnding,
    JobOver,
    KillProcess,
    RenameProcess,
    StartProcess,
)
from recycle_runtime.protocol.messages.members import InjectedFault, Member
from recycle_runtime.protocol.messages.wire import ToAgent

_LAST_PATIENCE = 30.0
"""For nodes without which the job would end: agents look for the coordinator for so long."""


class Sends(Protocol):
    """A connection to an agent."""

    def send(self, message: ToAgent) -> None: ...

    def close(self) -> None: ...


class _Agent:
    def __init__(self, room: int, name: str, heard: float, memory: str = "") -> None:
        self.room, self.name, self.heard, self.memory = room, name, heard, memory
        self.lived = heard
        """Time at which it certainly lived: a message may be read long after it was sent."""
        self.pids: dict[Member, int] = {}
        """0 until the agent has said it."""
        self.is_shunned = False
        """Some other nodes do not reach it, so it gets no more workers."""


class Agents:
    """Placement of processes on nodes. All processes of a worker run on one node."""

    def __init__(
        self, tensor: int, heartbeat_timeout: float = 3.0, now: float = 0.0, share: int | None = None
    ) -> None:
        """`share` is how many workers a node gets when the job begins, if that is less than its room."""
        self._tensor, self._patience, self._share = tensor, heartbeat_timeout, share
        self._agents: dict[Sends, _Agent] = {}
        self._named: dict[str, Sends] = {}
        self._shunned: set[str] = set()
        """Names of agents that other nodes do not reach."""
        self._looked = self._looked_before = now
        """Last, and the time before. This process may have been stopped between the two: what it hears then
        was perhaps said soon after the first."""
        self._roomy: dict[Sends, _Agent] | None = None
        """Those that may have room, in the order in which they came; None: to be found out."""
        self._known: Counter[Member] = Counter()
        """On how many nodes a process of this name runs: more than one while an old one is on its way out."""
        self._unsure: dict[Worker, None] = {}
        """Workers of agents that are gone, and those of which an agent has some ranks only."""

    def arrive(self, connection: Sends, message: AgentJoin, now: float) -> Sends | None:
        """A node offers so many places for processes; some may run already, if the agent started again.

        What is returned is the connection that it had before and has given up.
        """
        agent = _Agent(message.processes, message.name, now, message.memory)
        agent.pids = {running.member: running.pid for running in message.running}
        before = self._named.get(agent.name) if agent.name else None
        if before is not None:
            self.leave(before)
        self._known.update(agent.pids.keys())
        agent.is_shunned = bool(agent.name) and agent.name in self._shunned
        self._agents[connection], self._named[agent.name] = agent, connection
        if self._roomy is not None:
            self._roomy[connection] = agent
        if self._tensor > 1:
            ranks = Counter(member.worker for member in agent.pids)
            self._unsure.update((worker, None) for worker, count in ranks.items() if count < self._tensor)
        return before

    def heard(self, connection: Sends, now: float) -> None:
        """It lives."""
        if (agent := self._agents.get(connection)) is not None:
            agent.heard, agent.lived = now, max(agent.lived, self._looked_before)

    def timed_out(
        self, can_go_on_without: Callable[[set[Worker]], bool], now: float
    ) -> list[tuple[Sends, list[Member]]]:
        """Agents without a heartbeat for too long, with their processes; they are given up.

        If the job would end without them, they are given more time: it may well be the
        coordinator that is cut off.
        """
        if now - self._looked > self._patience / 2:
            # It was this process that did not listen.
            for agent in self._agents.values():
                agent.heard = min(now, agent.heard + now - self._looked)
        self._looked_before, self._looked = self._looked, now
        if all(now - agent.heard <= self._patience for agent in self._agents.values()):
            return []
        is_bearable = can_go_on_without(self.silent(now))
        limit = self._patience if is_bearable else max(self._patience, _LAST_PATIENCE)
        found = [connection for connection, agent in self._agents.items() if now - agent.heard > limit]
        return [(connection, self.leave(connection)) for connection in found]

    def silent(self, now: float) -> set[Worker]:
        """Workers of nodes that have not been heard of for a while, and may turn out to be gone."""
        late = (agent for agent in self._agents.values() if now - agent.lived > self._patience / 2)
        return {member.worker for agent in late for member in agent.pids}

    def shun(self, member: Member) -> None:
        """Start nothing more where this one runs, until another agent runs there."""
        for agent in self._agents.values():
            if member in agent.pids:
                agent.is_shunned = True
                self._shunned.add(agent.name)

    def announce_end(self, seconds: float) -> None:
        """The job ends in order: agents that have to stop at the same time should stay until then."""
        for connection in self._agents:
            connection.send(JobEnding(seconds))

    @property
    def count(self) -> int:
        """Of nodes that are connected."""
        return len(self._agents)

    @property
    def has_processes(self) -> bool:
        return any(agent.pids for agent in self._agents.values())

    def kill_all(self) -> None:
        """All worker processes; agents stay."""
        for connection, agent in self._agents.items():
            for member in list(agent.pids):
                connection.send(KillProcess(member))

    def dismiss(self) -> None:
        """The job is over."""
        for connection in self._agents:
            connection.send(JobOver())

    def leave(self, connection: Sends) -> list[Member]:
        """An agent has disconnected; the processes of its node."""
        agent = self._agents.pop(connection, None)
        if agent is None:
            return []
        if self._named.get(agent.name) is connection:
            del self._named[agent.name]
        self._roomy = None
        self._forget(agent.pids)
        self._unsure.update((member.worker, None) for member in agent.pids)
        return list(agent.pids)

    def unsure(self) -> list[Worker]:
        """Workers of which it is not known any more that all their processes run, since this was asked."""
        found, self._unsure = list(self._unsure), {}
        return found

    def has(self, member: Member) -> bool:
        return member in self._known

    def start(self, worker: Worker, faults: tuple[InjectedFault, ...]) -> bool:
        """Have a worker started on the first node with room; False if it runs, or no node has room."""
        if self.runs(worker):
            return False
        node = self._first_with_room()
        if node is not None:
            self._start_on(*node, worker, faults)
        return node is not None

    def replace(
        self, worker: Worker, faults: tuple[InjectedFault, ...], avoided: Collection[str], ranks: int = 0
    ) -> str | None:
        """Have a failed worker started where there is room and fewest of its peers are; on which node.

        Avoided nodes come last; for one with so many `ranks`, fewer than the job has, they do not come. None
        if it runs, or no node has room.
        """
        if self.runs(worker):
            return None
        nodes = [node for node in self._open_nodes() if not ranks or node[1].name not in avoided]
        loads = (
            NodeLoad(
                agent.room - len(agent.pids),
                frozenset(member.worker for member in agent.pids),
                agent.name in avoided,
            )
            for _, agent in nodes
        )
        best = best_with_room(loads, worker, ranks or self._tensor)
        return None if best is None else self._start_on(*nodes[best], worker, faults, ranks)

    def complete(self, absent: Collection[Member], faults: tuple[InjectedFault, ...]) -> str | None:
        """Have ranks of one worker started beside its others; on which node. None if there is no room."""
        workers = {member.worker for member in absent}
        for connection, agent in self._agents.items():
            is_here = not workers.isdisjoint(member.worker for member in agent.pids)
            if is_here and agent.room - len(agent.pids) >= len(absent):
                return self._start_ranks(connection, agent, absent, faults)
        return None

    def names(self) -> list[str]:
        return [agent.name for agent in self._agents.values()]

    def workers_by_node(self) -> list[set[Worker]]:
        """Workers of each node, which would fail together."""
        return [{member.worker for member in agent.pids} for agent in self._agents.values()]

    def nodes(self) -> dict[Worker, str]:
        """Name of the node that each worker runs on."""
        return {member.worker: agent.name for agent in self._agents.values() for member in agent.pids}

    def memories(self) -> set[str]:
        """Of all nodes that are there."""
        return {agent.memory for agent in self._agents.values()}

    def has_room(self, avoided: Collection[str] = ()) -> bool:
        """True if some node that is not avoided could have a worker started."""
        return any(
            agent.room - len(agent.pids) >= self._tensor and agent.name not in avoided
            for _, agent in self._open_nodes()
        )

    def share_no_more(self) -> None:
        """Nodes get as many workers as they have room for."""
        self._share = self._roomy = None

    def name_of(self, connection: Sends) -> str:
        """Of the node, as the log names it."""
        agent = self._agents.get(connection)
        return "" if agent is None else agent.name

    def _forget(self, members: Iterable[Member]) -> None:
        for member in members:
            self._known[member] -= 1
            if not self._known[member]:
                del self._known[member]

    def runs(self, worker: Worker) -> bool:
        """True if any process of this worker runs, on whichever node."""
        return any(self.has(Member(worker, rank)) for rank in range(self._tensor))

    def _free(self, agent: _Agent) -> int:
        """Processes for which it has room when the job begins."""
        most = agent.room if self._share is None else min(agent.room, self._share * self._tensor)
        return most - len(agent.pids)

    def _first_with_room(self) -> "tuple[Sends, _Agent] | None":
        """In the order of their arrival; those that are full are looked at once, not for every worker."""
        if self._roomy is None:
            self._roomy = dict(self._open_nodes())
        while self._roomy:
            connection, agent = next(iter(self._roomy.items()))
            if self._free(agent) >= self._tensor and not agent.is_shunned:
                return connection, agent
            del self._roomy[connection]
        return None

    def _open_nodes(self) -> "list[tuple[Sends, _Agent]]":
        return [entry for entry in self._agents.items() if not entry[1].is_shunned]

    def _start_on(
        self,
        connection: Sends,
        agent: _Agent,
        worker: Worker,
        faults: tuple[InjectedFault, ...],
        ranks: int = 0,
    ) -> str:
        step = self._tensor // (ranks or self._tensor)
        members = [Member(worker, rank) for rank in range(0, self._tensor, step)]
        return self._start_ranks(connection, agent, members, faults, ranks)

    def _start_ranks(
        self,
        connection: Sends,
        agent: _Agent,
        members: Iterable[Member],
        faults: tuple[InjectedFault, ...],
        ranks: int = 0,
    ) -> str:
        for member in members:
            agent.pids[member] = 0
            self._known[member] += 1
            connection.send(StartProcess(member, faults, ranks))
        return agent.name

    def kill(self, member: Member, pid: int = 0) -> None:
        """The process of this number; 0: whichever has the name."""
        for connection, agent in self._agents.items():
            if member in agent.pids:
                connection.send(KillProcess(member, pid))

    def doubt(self, worker: Worker) -> None:
        """Some of its processes may not run any more, or never have."""
        self._unsure[worker] = None

    def gone(self, connection: Sends, member: Member, pid: int = 0) -> bool:
        """A process has ended; False if it was not known, or another runs in its place by now."""
        agent = self._agents.get(connection)
        if agent is None or member not in agent.pids or (pid and agent.pids[member] not in (0, pid)):
            return False
        del agent.pids[member]
        self._roomy = None
        self._forget((member,))
        return True

    def rename(self, member: Member, target: Member) -> None:
        for connection, agent in self._agents.items():
            if member in agent.pids:
                agent.pids[target] = agent.pids.pop(member)
                self._forget((member,))
                self._known[target] += 1
                connection.send(RenameProcess(member, target))
