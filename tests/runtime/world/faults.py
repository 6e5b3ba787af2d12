"""Faults of a simulated world: each with its time, and in words."""

import random
from dataclasses import dataclass

from recycle_runtime.plan.worker_ids import Worker, worker_text
from tests.runtime.world.world import Fault, World


@dataclass(frozen=True, slots=True)
class WorkerFault(Fault):
    worker: Worker = (0, 0)

    @property
    def who(self) -> str:
        return worker_text(self.worker)


@dataclass(frozen=True, slots=True)
class NodeFault(Fault):
    node: int = 0

    @property
    def where(self) -> str:
        return _node(self.node)


@dataclass(frozen=True, slots=True)
class KillWorker(WorkerFault):
    is_clean = True
    said = "worker {0.who} is killed"

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None and world.may_lose(self.worker):
            process.exit("was killed by signal 9")


@dataclass(frozen=True, slots=True)
class StopWorker(WorkerFault):
    said = "worker {0.who} is stopped for {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None and world.may_lose(self.worker):
            world.pause(process, self.seconds)


@dataclass(frozen=True, slots=True)
class ForgetfulWorker(WorkerFault):
    """Gloo forgets whom to tell when a socket breaks."""

    said = "who waits in worker {0.who} is not told of broken connections any more"

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None:
            process.is_forgetful = True


@dataclass(frozen=True, slots=True)
class CutLine(WorkerFault):
    """The connections of a worker process to the coordinator break."""

    said = "the connections of worker {0.who} to the coordinator break"

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None:
            for line in process.lines:
                if line.pipe is not None:
                    line.pipe.reset()


@dataclass(frozen=True, slots=True)
class Echo(WorkerFault):
    """A worker process's message about a generation, said again as by a thread that wakes up too late."""

    is_clean = True
    said = (
        "for {0.seconds:.2f} s what worker {0.who} says about a generation is said again {0.later:.2f} s "
        "later, and when another generation runs"
    )
    later: float = 0.0

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None:
            process.echoes_until, process.echo_seconds = world.loop.now + self.seconds, self.later


@dataclass(frozen=True, slots=True)
class KillAgent(NodeFault):
    is_clean = True
    said = "the agent of {0.where} is killed, and started again after {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        world.nodes[self.node].kill_agent(self.seconds)


@dataclass(frozen=True, slots=True)
class StopAgent(NodeFault):
    said = "the agent of {0.where} is stopped for {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        agent = world.nodes[self.node].agent
        if agent is not None and agent.is_alive and world.may_lose_node(self.node):
            world.pause(agent, self.seconds)


@dataclass(frozen=True, slots=True)
class StopNode(NodeFault):
    """All processes of a node, as when a container is paused."""

    said = "all processes of {0.where} are stopped for {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        if world.may_lose_node(self.node):
            for process in world.processes_on(self.node):
                world.pause(process, self.seconds)


@dataclass(frozen=True, slots=True)
class LoseNode(NodeFault):
    """It loses power: nothing is closed, nobody is told."""

    is_clean = True
    said = "{0.where} loses power"

    def happen(self, world: World) -> None:
        if world.may_lose_node(self.node):
            world.lose_node(self.node)


@dataclass(frozen=True, slots=True)
class NewNode(Fault):
    is_clean = True
    said = "another node joins"

    def happen(self, world: World) -> None:
        world.add_node()


@dataclass(frozen=True, slots=True)
class Partition(Fault):
    """Some nodes do not reach some others; the coordinator's is number -1."""

    pairs: tuple[tuple[int, int], ...] = ()

    def happen(self, world: World) -> None:
        world.partition(self.pairs, self.seconds)

    @property
    def words(self) -> str:
        named = ", ".join(f"{_node(one)} and {_node(other)}" for one, other in self.pairs)
        return f"for {self.seconds:.2f} s these do not reach each other: {named}"


@dataclass(frozen=True, slots=True)
class KillCoordinator(Fault):
    is_clean = True
    said = "the coordinator is killed, and started again after {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        world.kill_coordinator(self.seconds)


@dataclass(frozen=True, slots=True)
class KillCoordinatorAtSend(Fault):
    """Between two messages that belong together."""

    is_clean = True
    sends: int = 0

    def happen(self, world: World) -> None:
        world.kill_coordinator_later(self.seconds, sends=self.sends)

    @property
    def words(self) -> str:
        return (
            f"the coordinator is killed before it sends {self.sends + 1} more messages, and started again "
            f"after {self.seconds:.2f} s"
        )


@dataclass(frozen=True, slots=True)
class TearJournal(Fault):
    """The coordinator is killed in the middle of a line of its journal."""

    is_clean = True
    said = (
        "the coordinator is killed in the middle of the line of its journal that comes after {0.writes} "
        "more, and started again after {0.seconds:.2f} s"
    )
    writes: int = 0

    def happen(self, world: World) -> None:
        world.kill_coordinator_later(self.seconds, writes=self.writes)


@dataclass(frozen=True, slots=True)
class MoveCoordinator(Fault):
    """It is on another node from now on, and is reached under the same name."""

    said = "the coordinator's node loses power, and another has it after {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        world.move_coordinator(self.seconds)


@dataclass(frozen=True, slots=True)
class StopCoordinator(Fault):
    said = "the coordinator is stopped for {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        if world.coordinator is not None and world.coordinator.process.is_alive:
            world.pause(world.coordinator.process, self.seconds)


@dataclass(frozen=True, slots=True)
class FullDisk(NodeFault):
    """Of a node; checkpoints cannot be written there."""

    is_clean = True
    said = "the disk of {0.where} is full for {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        world.fill_disk(self.node, self.seconds)


@dataclass(frozen=True, slots=True)
class SlowNode(NodeFault):
    said = "{0.where} is {0.factor:.1f} times slower for {0.seconds:.2f} s"
    factor: float = 1.0

    def happen(self, world: World) -> None:
        world.slow_down(self.node, self.factor, self.seconds)


@dataclass(frozen=True, slots=True)
class SlowDisk(NodeFault):
    said = "the disk of {0.where} takes 1 s for everything, for {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        world.slow_disk(self.node, self.seconds)


@dataclass(frozen=True, slots=True)
class ClockJump(NodeFault):
    """Forward: the clock in question is never set, but a machine may be moved while it does not run."""

    said = "the clock of {0.where} jumps by {0.seconds:.2f} s"

    def happen(self, world: World) -> None:
        world.node_of(self.node).offset += self.seconds


@dataclass(frozen=True, slots=True)
class Stranger(WorkerFault):
    """Somebody without the token connects, and says what a worker would."""

    is_clean = True
    said = "a stranger says that it is worker {0.who}"

    def happen(self, world: World) -> None:
        world.let_stranger_in(self.worker)


def _node(number: int) -> str:
    return "the coordinator's node" if number < 0 else f"node {number}"


class FaultMaker:
    """Draws faults for a job of so many workers on so many nodes."""

    def __init__(self, chance: random.Random, workers: list[Worker], nodes: int, *, wild: bool) -> None:
        self._chance, self._workers, self._nodes, self._wild = chance, workers, nodes, wild

    def make(self) -> tuple[Fault, ...]:
        """In clusters: most mistakes are made while something else is being dealt with."""
        chance = self._chance
        found: list[Fault] = []
        at = chance.uniform(0.0, 4.0)
        for _ in range(chance.choice((1, 2, 3, 4, 6, 8))):
            found.append(self._one(at))
            at += chance.choice((0.0, 0.01, 0.05, 0.3, 1.0, 3.0, 8.0)) * chance.random()
        return tuple(found)

    def _one(self, at: float) -> Fault:
        chance = self._chance
        worker, node = chance.choice(self._workers), chance.randrange(self._nodes)
        any_node = chance.randrange(-1, self._nodes)
        short = chance.choice((0.0, 0.05, 0.3, 1.0, 2.0)) * chance.random()
        long = chance.choice((0.2, 1.0, 3.0, 4.0, 8.0)) * (0.5 + chance.random())
        kinds: list[tuple[int, Fault]] = [
            (6, KillWorker(at, worker=worker)),
            (2, StopWorker(at, long, worker=worker)),
            (2, ForgetfulWorker(at, worker=worker)),
            (3, CutLine(at, worker=worker)),
            (2, Echo(at, 4 * long, worker=worker, later=0.05 + chance.random())),
            (2, KillAgent(at, short, node=node)),
            (1, StopAgent(at, long, node=node)),
            (1, StopNode(at, long, node=node)),
            (2, LoseNode(at, node=node)),
            (2, NewNode(at)),
            (2, Partition(at, long, pairs=self._pairs())),
            (3, KillCoordinator(at, short)),
            (2, KillCoordinatorAtSend(at, short, sends=chance.randrange(12))),
            (2, TearJournal(at, short, writes=chance.randrange(3))),
            (1, MoveCoordinator(at, short)),
            (1, StopCoordinator(at, min(long, 4.0))),
            (1, FullDisk(at, long, node=any_node if self._wild else node)),
            (1, SlowNode(at, long, node=any_node, factor=chance.uniform(2, 20))),
            (1, SlowDisk(at, long, node=any_node)),
            (1, ClockJump(at, long, node=any_node)),
            (1, Stranger(at, worker=worker)),
        ]
        return chance.choices([fault for _, fault in kinds], [weight for weight, _ in kinds])[0]

    def _pairs(self) -> tuple[tuple[int, int], ...]:
        """Any shape: two halves, one node alone, one way round the coordinator."""
        chance = self._chance
        everyone = list(range(-1, self._nodes))
        some = set(chance.sample(everyone, chance.randint(1, max(1, len(everyone) // 2))))
        pairs = [(one, other) for one in some for other in everyone if other not in some]
        if chance.random() < 0.4:
            pairs = chance.sample(pairs, chance.randint(1, len(pairs)))
        return tuple(sorted((min(pair), max(pair)) for pair in pairs))
