"""The agents of a job's nodes: which processes run on each. Standard library only."""

from collections.abc import Callable
from typing import Protocol

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.node_layout import first_with_room
from recycle_runtime.protocol.messages import (
    AgentJoin,
    InjectedFault,
    JobOver,
    KillProcess,
    Member,
    RenameProcess,
    StartProcess,
    ToAgent,
)

_LAST_PATIENCE = 30.0
"""For nodes without which the job would end: agents look for the coordinator for so long."""


class Sends(Protocol):
    """A connection to an agent."""

    def send(self, message: ToAgent) -> None: ...

    def close(self) -> None: ...


class _Agent:
    def __init__(self, room: int, name: str, heard: float) -> None:
        self.room, self.name, self.heard = room, name, heard
        self.pids: dict[Member, int] = {}
        """0 until the agent has said it."""
        self.is_shunned = False
        """Some other nodes do not reach it, so it gets no more workers."""


class Agents:
    """Who runs where. All processes of a worker run on one node."""

    def __init__(self, tensor: int, heartbeat_timeout: float = 3.0, now: float = 0.0) -> None:
        self._tensor, self._patience = tensor, heartbeat_timeout
        self._agents: dict[Sends, _Agent] = {}
        self._shunned: set[str] = set()
        """Names of agents that other nodes do not reach."""
        self._looked = now

    def arrive(self, connection: Sends, message: AgentJoin, now: float) -> Sends | None:
        """A node offers so many places for processes; some may run already, if the agent started again.

        What is returned is the connection that it had before and has given up.
        """
        agent = _Agent(message.processes, message.name, now)
        agent.pids = {running.member: running.pid for running in message.running}
        before = [other for other, known in self._agents.items() if agent.name and known.name == agent.name]
        for other in before:
            del self._agents[other]
        agent.is_shunned = bool(agent.name) and agent.name in self._shunned
        self._agents[connection] = agent
        return before[0] if before else None

    def heard(self, connection: Sends, now: float) -> None:
        """It lives."""
        if connection in self._agents:
            self._agents[connection].heard = now

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
                agent.heard += now - self._looked
        self._looked = now
        if all(now - agent.heard <= self._patience for agent in self._agents.values()):
            return []
        doubtful = [agent for agent in self._agents.values() if now - agent.heard > self._patience / 2]
        is_bearable = can_go_on_without({member.worker for agent in doubtful for member in agent.pids})
        limit = self._patience if is_bearable else max(self._patience, _LAST_PATIENCE)
        found = [connection for connection, agent in self._agents.items() if now - agent.heard > limit]
        return [(connection, list(self._agents.pop(connection).pids)) for connection in found]

    def shun(self, member: Member) -> None:
        """Start nothing more where this one runs, until another agent runs there."""
        for agent in self._agents.values():
            if member in agent.pids:
                agent.is_shunned = True
                self._shunned.add(agent.name)

    def dismiss(self) -> None:
        """The job is over."""
        for connection in self._agents:
            connection.send(JobOver())

    def leave(self, connection: Sends) -> list[Member]:
        """An agent has disconnected; the processes of its node."""
        agent = self._agents.pop(connection, None)
        return [] if agent is None else list(agent.pids)

    def has(self, member: Member) -> bool:
        return any(member in agent.pids for agent in self._agents.values())

    def start(self, worker: Worker, faults: tuple[InjectedFault, ...]) -> bool:
        """Have a worker started where there is room; False if it runs, or no node has room."""
        members = [Member(worker, rank) for rank in range(self._tensor)]
        if any(self.has(member) for member in members):
            return False
        open_nodes = [entry for entry in self._agents.items() if not entry[1].is_shunned]
        free = (agent.room - len(agent.pids) for _, agent in open_nodes)
        node = first_with_room(free, self._tensor)
        if node is None:
            return False
        connection, agent = open_nodes[node]
        for member in members:
            agent.pids[member] = 0
            connection.send(StartProcess(member, faults))
        return True

    def kill(self, member: Member) -> None:
        for connection, agent in self._agents.items():
            if member in agent.pids:
                connection.send(KillProcess(member))

    def gone(self, connection: Sends, member: Member) -> bool:
        """A process has ended; False if it was not known."""
        agent = self._agents.get(connection)
        return agent is not None and agent.pids.pop(member, None) is not None

    def rename(self, member: Member, target: Member) -> None:
        for connection, agent in self._agents.items():
            if member in agent.pids:
                agent.pids[target] = agent.pids.pop(member)
                connection.send(RenameProcess(member, target))
