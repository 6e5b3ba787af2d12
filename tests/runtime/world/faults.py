"""What can go wrong in a simulated world, when, and in words."""

import random
from dataclasses import dataclass

from recycle_runtime.plan.worker_ids import Worker, worker_text
from tests.runtime.world.world import Fault, World


@dataclass(frozen=True, slots=True)
class KillWorker(Fault):
    is_clean = True
    worker: Worker = (0, 0)

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None and world.may_lose(self.worker):
            process.exit("was killed by signal 9")

    @property
    def words(self) -> str:
        return f"worker {worker_text(self.worker)} is killed"


@dataclass(frozen=True, slots=True)
class StopWorker(Fault):
    worker: Worker = (0, 0)

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None and world.may_lose(self.worker):
            world.pause(process, self.seconds)

    @property
    def words(self) -> str:
        return f"worker {worker_text(self.worker)} is stopped for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class ForgetfulWorker(Fault):
    """Gloo forgets whom to tell when a socket breaks."""

    worker: Worker = (0, 0)

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None:
            process.is_forgetful = True

    @property
    def words(self) -> str:
        return f"who waits in worker {worker_text(self.worker)} is not told of broken connections any more"


@dataclass(frozen=True, slots=True)
class CutLine(Fault):
    """The connections of a worker process to the coordinator break."""

    worker: Worker = (0, 0)

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None:
            for line in process.lines:
                if line.pipe is not None:
                    line.pipe.reset()

    @property
    def words(self) -> str:
        return f"the connections of worker {worker_text(self.worker)} to the coordinator break"


@dataclass(frozen=True, slots=True)
class Echo(Fault):
    """What a worker process says about a generation is said again, as by a thread that wakes up too late."""

    is_clean = True
    worker: Worker = (0, 0)
    later: float = 0.0

    def happen(self, world: World) -> None:
        if (process := world.worker_process(self.worker)) is not None:
            process.echoes_until, process.echo_seconds = world.loop.now + self.seconds, self.later

    @property
    def words(self) -> str:
        return (
            f"for {self.seconds:.2f} s what worker {worker_text(self.worker)} says about a generation is "
            f"said again {self.later:.2f} s later, and when another generation runs"
        )


@dataclass(frozen=True, slots=True)
class KillAgent(Fault):
    is_clean = True
    node: int = 0

    def happen(self, world: World) -> None:
        world.nodes[self.node].kill_agent(self.seconds)

    @property
    def words(self) -> str:
        return f"the agent of node {self.node} is killed, and started again after {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class StopAgent(Fault):
    node: int = 0

    def happen(self, world: World) -> None:
        agent = world.nodes[self.node].agent
        if agent is not None and agent.is_alive and world.may_lose_node(self.node):
            world.pause(agent, self.seconds)

    @property
    def words(self) -> str:
        return f"the agent of node {self.node} is stopped for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class StopNode(Fault):
    """All processes of a node, as when a container is paused."""

    node: int = 0

    def happen(self, world: World) -> None:
        if world.may_lose_node(self.node):
            for process in world.processes_on(self.node):
                world.pause(process, self.seconds)

    @property
    def words(self) -> str:
        return f"all processes of node {self.node} are stopped for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class LoseNode(Fault):
    """It loses power: nothing is closed, nobody is told."""

    is_clean = True
    node: int = 0

    def happen(self, world: World) -> None:
        if world.may_lose_node(self.node):
            world.lose_node(self.node)

    @property
    def words(self) -> str:
        return f"node {self.node} loses power"


@dataclass(frozen=True, slots=True)
class NewNode(Fault):
    is_clean = True

    def happen(self, world: World) -> None:
        world.add_node()

    @property
    def words(self) -> str:
        return "another node joins"


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

    def happen(self, world: World) -> None:
        world.kill_coordinator(self.seconds)

    @property
    def words(self) -> str:
        return f"the coordinator is killed, and started again after {self.seconds:.2f} s"


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
    writes: int = 0

    def happen(self, world: World) -> None:
        world.kill_coordinator_later(self.seconds, writes=self.writes)

    @property
    def words(self) -> str:
        return (
            f"the coordinator is killed in the middle of the line of its journal that comes after "
            f"{self.writes} more, and started again after {self.seconds:.2f} s"
        )


@dataclass(frozen=True, slots=True)
class MoveCoordinator(Fault):
    """It is on another node from now on, and is reached under the same name."""

    def happen(self, world: World) -> None:
        world.move_coordinator(self.seconds)

    @property
    def words(self) -> str:
        return f"the coordinator's node loses power, and another has it after {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class StopCoordinator(Fault):
    def happen(self, world: World) -> None:
        if world.coordinator is not None and world.coordinator.process.is_alive:
            world.pause(world.coordinator.process, self.seconds)

    @property
    def words(self) -> str:
        return f"the coordinator is stopped for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class FullDisk(Fault):
    """Of a node; checkpoints cannot be written there."""

    is_clean = True
    node: int = 0

    def happen(self, world: World) -> None:
        world.fill_disk(self.node, self.seconds)

    @property
    def words(self) -> str:
        return f"the disk of {_node(self.node)} is full for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class SlowNode(Fault):
    node: int = 0
    factor: float = 1.0

    def happen(self, world: World) -> None:
        world.slow_down(self.node, self.factor, self.seconds)

    @property
    def words(self) -> str:
        return f"{_node(self.node)} is {self.factor:.1f} times slower for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class SlowDisk(Fault):
    node: int = 0

    def happen(self, world: World) -> None:
        world.slow_disk(self.node, self.seconds)

    @property
    def words(self) -> str:
        return f"the disk of {_node(self.node)} takes 1 s for everything, for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class ClockJump(Fault):
    """Forward: the clock in question is never set, but a machine may be moved while it does not run."""

    node: int = 0

    def happen(self, world: World) -> None:
        world.node_of(self.node).offset += self.seconds

    @property
    def words(self) -> str:
        return f"the clock of {_node(self.node)} jumps by {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class Stranger(Fault):
    """Somebody without the token connects, and says what a worker would."""

    is_clean = True
    worker: Worker = (0, 0)

    def happen(self, world: World) -> None:
        world.let_stranger_in(self.worker)

    @property
    def words(self) -> str:
        return f"a stranger says that it is worker {worker_text(self.worker)}"


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
