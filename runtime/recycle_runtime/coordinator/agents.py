"""The agents of a job's nodes: which processes each of them watches. Standard library only."""

import time
from typing import Any, Protocol

from recycle_runtime.assembly import Worker
from recycle_runtime.coordinator.decision import Member

_PATIENCE = 10.0


class Sends(Protocol):
    """A connection to an agent."""

    def send(self, message: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class _Agent:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.heard = time.monotonic()
        self.pids: dict[Member, int] = {}
        """0 until the agent has said it."""


class Agents:
    """Who runs where. A worker's parts all run on one node."""

    def __init__(self, tensor: int) -> None:
        self._tensor = tensor
        self._agents: dict[Sends, _Agent] = {}

    def arrive(self, connection: Sends, message: dict[str, Any]) -> None:
        """A node offers so many places for processes; some may run already, if the agent started again."""
        agent = _Agent(int(message["slots"]))
        for place, part, pid in message.get("running", []):
            agent.pids[Member((int(place[0]), int(place[1])), int(part))] = int(pid)
        self._agents[connection] = agent

    def heard(self, connection: Sends) -> None:
        """It lives."""
        if connection in self._agents:
            self._agents[connection].heard = time.monotonic()

    def silent(self) -> list[tuple[Sends, list[Member]]]:
        """Agents that have not spoken for long, with their members; they are given up."""
        limit = time.monotonic() - _PATIENCE
        found = [connection for connection, agent in self._agents.items() if agent.heard < limit]
        return [(connection, list(self._agents.pop(connection).pids)) for connection in found]

    def dismiss(self) -> None:
        """The job is over."""
        for connection in self._agents:
            connection.send({"type": "over"})

    def leave(self, connection: Sends) -> list[Member]:
        """An agent has hung up; who it watched."""
        agent = self._agents.pop(connection, None)
        return [] if agent is None else list(agent.pids)

    def has(self, member: Member) -> bool:
        return any(member in agent.pids for agent in self._agents.values())

    def start(self, place: Worker, faults: list[list[Any]]) -> bool:
        """Have a worker started where there is room; False if it runs, or nobody has room."""
        members = [Member(place, part) for part in range(self._tensor)]
        if any(self.has(member) for member in members):
            return False
        for connection, agent in self._agents.items():
            if agent.slots - len(agent.pids) >= self._tensor:
                for member in members:
                    agent.pids[member] = 0
                    connection.send(
                        {"type": "start", "place": list(place), "part": member.part, "faults": faults}
                    )
                return True
        return False

    def kill(self, member: Member) -> None:
        for connection, agent in self._agents.items():
            if member in agent.pids:
                connection.send({"type": "kill", "place": list(member.place), "part": member.part})

    def gone(self, connection: Sends, member: Member) -> bool:
        """A process has ended; False if it was not known."""
        agent = self._agents.get(connection)
        return agent is not None and agent.pids.pop(member, None) is not None

    def rename(self, member: Member, target: Member) -> None:
        for connection, agent in self._agents.items():
            if member in agent.pids:
                agent.pids[target] = agent.pids.pop(member)
                connection.send(
                    {
                        "type": "rename",
                        "place": list(member.place),
                        "part": member.part,
                        "to": list(target.place),
                    }
                )
