"""One job in one simulated world, from its first process to its last, and what must hold all the time.

a step counts once or not at all, and its loss is that of a plain loop
whatever a worker holds after a settled step is what a plain loop has there
nobody without the token reaches the coordinator
the job ends in bounded time once nothing goes wrong any more; well, if a worker of every stage was left
nobody is left running after it
"""

import gc
import json
import os
import random
import shutil
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from recycle_runtime.agent.agent import Agent, AgentOptions
from recycle_runtime.agent.relay import Relay
from recycle_runtime.agent.watch import WatchLimits
from recycle_runtime.checkpoint.checkpoint_folder import CheckpointFolder
from recycle_runtime.checkpoint.manifest import SHARD_FILE, TENSORS_FILE
from recycle_runtime.coordinator.neighbour_copies import CompleteCopy, prepare_copies
from recycle_runtime.coordinator.patience import Patience
from recycle_runtime.coordinator.plans import Request
from recycle_runtime.coordinator.service import JobOptions
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.program.loading import Program
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.messages.generations import Failed
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import Hello, JobEnded, JobEvent, Recovered
from recycle_runtime.protocol.messages.steps import StepRow
from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.node_memory import SLOTS, NodeMemory
from recycle_runtime.protocol.server import Served
from recycle_runtime.worker.heartbeat import HeartbeatWriter
from recycle_runtime.worker.link import CoordinatorGoneError
from recycle_runtime.worker.neighbour_copies import CopiesGoneError
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.process import WorkerProcess
from tests.runtime.world.arithmetic import Reference
from tests.runtime.world.coordinator import CoordinatorProcess, Disk, Killed, Watcher
from tests.runtime.world.engine import Job, NumberEngine
from tests.runtime.world.group import Ports
from tests.runtime.world.loop import Loop
from tests.runtime.world.near import SimulatedNearServer
from tests.runtime.world.network import End, Network, Node, Pipe
from tests.runtime.world.processes import Kernel, MemoryBoard, NodeProcesses, SimulatedProcess
from tests.runtime.world.sharded import KeepingOptimizer, ShardedEngine, ShardedReference

TOKEN = "the token of this world"
_PATIENCE = Patience(standstill=60.0, first_step=90.0, leaving=8.0, last_leaving=90.0)
_LIMITS = WatchLimits(heartbeat=1.5, first_heartbeat=20.0, instruction=20.0, first_step=60.0)
_QUIET_SECONDS = 900.0
"""After the last fault, within which a job has to end."""
_LEAVING_SECONDS = 120.0
"""After its end, within which every process has to."""
_MOST_EVENTS = 2_000_000
_AT_A_TIME = 64
"""Events from one look at the clock to the next."""


@dataclass(frozen=True, slots=True)
class Fault(ABC):
    """Something that happens at a moment, `seconds` long if it passes."""

    is_clean: ClassVar[bool] = False
    """True if nobody can take a worker that is well for one that is not."""
    said: ClassVar[str] = ""
    """What happens, in words; the fault itself is `{0}`."""
    at: float
    seconds: float = 0.0

    @abstractmethod
    def happen(self, world: "World") -> None: ...

    @property
    def words(self) -> str:
        return self.said.format(self)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a world depends on."""

    seed: int
    bundle: Bundle
    path: str
    """Of the bundle."""
    steps: int
    nodes: int
    room: int
    """Worker processes on each node."""
    faults: tuple[Fault, ...]
    wild: bool = False
    """True if faults may take what the job cannot do without; then it may end with an error."""
    checkpoints: int = 0
    """Steps between two; 0: none."""
    recut: str = "off"
    skipped: frozenset[int] = frozenset()
    """Steps with a gradient that is not finite."""
    saves: bool = False
    """True if workers write their parameters at the end."""
    resumes: int = 0
    """How often the job may go on from its newest checkpoint by itself."""
    is_resumed: bool = False
    """True if a user resumes it once it has ended with an error."""
    plans: Callable[[Request], bytes | None] = field(default=lambda _: None)
    """Plans on demand."""
    copies: int = 0
    """Steps from one copy of every stage in the memory of nodes to the next; 0: none are made."""
    echoes: float = 0.0
    """Seconds after which workers say again what they say about a generation; 0: they do not."""
    relay: bool = False
    """True if workers speak to the coordinator through their agents."""
    standing: bool = False
    """True if messages and sums of gradients stand until they are aborted, as over NCCL."""
    building: float = 0.0
    """Seconds, at most, from a worker's first word to its first report, for model and device."""


class Outcome:
    """Result of a world."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        """What should not have happened, in words."""
        self.error: str | None = None
        self.has_ended = False
        self.rows = 0
        self.recoveries = 0
        self.resumes = 0
        """How often it went on from a checkpoint."""
        self.events = 0
        self.seconds = 0.0
        """Of simulated time."""
        self.digest = 0
        self.story: deque[str] = deque(maxlen=400)


class WorldNode:
    """A node with an agent, and the board that outlives it."""

    def __init__(self, world: "World", number: int) -> None:
        self._world, self.number = world, number
        self.node = Node(f"10.0.0.{number}")
        self.board = MemoryBoard(world.scenario.room)
        self.state = world.folder / f"node-{number}"
        self.state.mkdir()
        (self.state / "number").write_text(str(number + 1))
        self.memory: NodeMemory | None = None
        """For copies of stages, in worlds that make some."""
        self.agent: SimulatedProcess | None = None
        self._agents = 0
        self._agent_files: Callable[[], None] = lambda: None
        """Lets go of those of the agent that runs."""

    def start_agent(self) -> None:
        world = self._world
        if not self.node.is_on or world.is_over or (self.agent is not None and self.agent.is_alive):
            return
        self._agents += 1
        process = self.agent = world.kernel.process(f"agent {self.number}", self.node, TOKEN)
        self._open_memory()
        options = AgentOptions(
            world.scenario.path, host="", port=0, token=TOKEN, workers_per_node=world.scenario.room,
            state=self.state, limits=_LIMITS, coordinator_timeout=30.0,
            memory="" if self.memory is None else self.memory.number,
        )  # fmt: skip
        kernel = NodeProcesses(process, self._start_worker)
        name = f"node-{self.number}/{self._agents}"
        agent = Agent(options, _never_called, process, kernel, self.board, name, self._relay(process))

        async def live() -> None:
            try:
                await agent.join()
                await agent.live()
            except WireError as error:
                world.tell(f"agent {self.number} gives up: {error}")
            agent.end()
            process.exit()

        process.on_end.append(agent.let_go)
        self._agent_files = agent.let_go
        process.start(live)

    @property
    def relay_name(self) -> str:
        return f"relay of node {self.number}"

    def _relay(self, agent: SimulatedProcess) -> Relay:
        kernel = self._world.kernel

        def serve(name: str, token: Token, served: Served) -> SimulatedNearServer:
            return kernel.near.serve(agent, name, served, kernel.descriptor())

        def process_of(connection: Any) -> int:
            return connection.pid

        return Relay(self.relay_name, TOKEN, serve, process_of)

    def _open_memory(self) -> None:
        """That of the agent before this one, as long as a worker process had it; or new memory."""
        world = self._world
        is_kept = self.memory is not None and world.processes_on(self.number, but=self.agent)
        if world.scenario.copies and not is_kept:
            self._close_memory()
            count = world.scenario.room * 2 * SLOTS
            files = tuple(os.memfd_create("world") for _ in range(count))
            self.memory = NodeMemory(f"{self.number}.{self._agents}", files)

    def let_go(self) -> None:
        """Of files, when the world is over."""
        if self.agent is not None and self.agent.is_alive:
            self._agent_files()
        self._close_memory()

    def _close_memory(self) -> None:
        for file in () if self.memory is None else self.memory.files:
            os.close(file)
        self.memory = None

    def kill_agent(self, back_after: float) -> None:
        if self.agent is not None and self.agent.is_alive:
            self.agent.exit("was killed by signal 9")
            self._world.later(back_after, self.start_agent)

    def _start_worker(self, member: Member, line: int) -> SimulatedProcess:
        return self._world.start_worker(self, member, line)


class World:
    """Runs a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.outcome = Outcome()
        self.chance = random.Random(scenario.seed)
        self.loop = Loop()
        self.network = Network(self.loop, random.Random(scenario.seed + 1))
        self.kernel = Kernel(self.loop, self.network, self._crashed)
        self.kernel.accept = self._accept
        self.kernel.join = self._join
        self.kernel.on_kill = self._killed_by_agent
        self.folder = Path(tempfile.mkdtemp(prefix="world-", dir=_fast_folder()))
        self._node = self.kernel.coordinators_node = Node("10.0.1.0")
        self.kernel.nodes.append(self._node)
        self._disk = Disk()
        self.coordinator: CoordinatorProcess | None = None
        self._back_after = 0.0
        self.is_over = False
        self.nodes: list[WorldNode] = []
        self._workers: dict[SimulatedProcess, WorkerProcess] = {}
        bundle = scenario.bundle
        self._engine_kind = ShardedEngine if bundle.owners else NumberEngine
        self._engines: dict[SimulatedProcess, NumberEngine] = {}
        self._program = _program()
        per_step = bundle.pipelines * bundle.microbatches
        shape = sum(bundle.cut), per_step, scenario.skipped, bundle.tensor
        reference = ShardedReference(*shape, bundle.pipelines) if bundle.owners else Reference(*shape)
        self.job = Job(
            bundle,
            scenario.path,
            reference,
            Ports(self.network),
            self.note_wrong,
            self.tell,
            scenario.standing,
            random.Random(scenario.seed + 2),
        )
        self._builds = random.Random(scenario.seed + 3)
        self._last_fault = max((fault.at + fault.seconds for fault in scenario.faults), default=0.0)
        self._over_at = 0.0
        self._strangers = 0
        self._had_full_disk = False
        self._is_unwritten = False
        """True if this coordinator has said that it cannot write its journal."""
        self._is_clean = True
        """True if no fault so far could make a worker look lost that is not."""
        self._runs = 0
        """How often the job was resumed, by itself or by a user."""
        self._may_go_back = False
        """True if the coordinator that comes next begins with a checkpoint, or with a copy in memory."""
        self._goes_back_to: int | None = None
        """The step of that copy."""
        self._is_with_user = False
        """True if a user has resumed the job; nothing goes wrong from then on."""
        self._saved = self.folder / "saved"
        self._saved.mkdir()

    def run(self) -> Outcome:
        """To the end, or to the first thing that should not happen."""
        is_collecting = gc.isenabled()
        # A world makes little that only the collector could free, which looks at all that was ever imported.
        gc.disable()
        try:
            self._start()
            self._go_on()
        finally:
            if self.coordinator is not None:
                self.coordinator.let_go()
            for node in self.nodes:
                node.let_go()
            for process in self.kernel.processes:
                process.on_end.clear()
                process.exit()
            if is_collecting:
                gc.enable()
            shutil.rmtree(self.folder, ignore_errors=True)
        outcome = self.outcome
        outcome.events, outcome.seconds, outcome.digest = self.loop.events, self.loop.now, self.loop.digest
        return outcome

    def _start(self) -> None:
        self.start_coordinator()
        for _ in range(self.scenario.nodes):
            self.add_node()
        for fault in self.scenario.faults:
            self.loop.at(fault.at, None, self._let_happen, fault)

    def _go_on(self) -> None:
        loop, outcome = self.loop, self.outcome
        while True:
            has_more = loop.turn(_AT_A_TIME)
            if outcome.wrong:
                return
            if self.is_over and not any(process.is_alive for process in self.kernel.processes):
                if not self._can_be_resumed():
                    return
                self._resume()
            elif not has_more:
                self.note_wrong(f"nothing happens any more: {self._where()}")
            elif loop.events >= _MOST_EVENTS:
                self.note_wrong(f"no end after {loop.events} events, {loop.now:.0f} s")
            elif self.is_over and loop.now > self._over_at + _LEAVING_SECONDS:
                left = ", ".join(p.name for p in self.kernel.processes if p.is_alive)
                self.note_wrong(f"left running {_LEAVING_SECONDS:.0f} s after the end: {left}")
            elif not self.is_over and loop.now > self._last_fault + _QUIET_SECONDS:
                self.note_wrong(f"no end {_QUIET_SECONDS:.0f} s after the last fault: {self._where()}")

    def _where(self) -> str:
        if self.coordinator is None or not self.coordinator.process.is_alive:
            return "there is no coordinator"
        return self.coordinator.service.standing

    # What is wrong.

    def note_wrong(self, what: str) -> None:
        self.tell(f"WRONG: {what}")
        self.outcome.wrong.append(what)
        self.loop.is_halted = True

    def tell(self, what: str) -> None:
        self.outcome.story.append(f"{self.loop.now:10.4f}  {what}")

    def _crashed(self, process: SimulatedProcess, error: Exception) -> None:
        where = "".join(traceback.format_exception(error)[-6:])
        self.note_wrong(f"{process.name} raised {type(error).__name__}: {error}\n{where}")

    def _let_happen(self, fault: Fault) -> None:
        if not self.is_over and not self._is_with_user:
            self.tell(fault.words)
            self._is_clean &= fault.is_clean
            fault.happen(self)

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.loop.at(self.loop.now + seconds, None, call, *arguments)

    # The coordinator.

    def start_coordinator(self) -> None:
        if self.is_over or (self.coordinator is not None and self.coordinator.process.is_alive):
            return
        scenario = self.scenario
        options = JobOptions(
            bundle=scenario.path,
            steps=scenario.steps,
            host="",
            port=0,
            token=TOKEN,
            state=self._coordinators_folder,
            resume=self._runs > 0,
            is_continued=self._runs > 0,
            max_resumes=0 if self._is_with_user else scenario.resumes - self._runs,
            node_timeout=2.0,
            start_seconds=120.0,
            checkpoint=str(self.folder / "checkpoints") if scenario.checkpoints else None,
            checkpoint_every=scenario.checkpoints or 100,
            adaptation=AdaptationOptions(replan=None, recut=scenario.recut),
            neighbour_copies=scenario.copies,
            check_peers=3,
            patience=_PATIENCE,
            relay=scenario.relay,
        )
        process = self.kernel.process("coordinator", self._node, TOKEN)
        self.coordinator = None
        coordinator = CoordinatorProcess(
            process,
            options,
            scenario.bundle,
            self._disk,
            scenario.plans,
            Watcher(self._told),
            self.outcome.rows,
            scenario.echoes,
            self.note_wrong,
            self._coordinator_died,
        )
        if process.is_alive:
            self.coordinator = coordinator

    def _coordinator_died(self, coordinator: CoordinatorProcess, error: BaseException | None) -> None:
        if error is None and coordinator.service.goes_on:
            self._begin_with(coordinator.service.goes_on_from)
            self.start_coordinator()
        elif error is None and self.outcome.has_ended:
            self._finish()
        elif isinstance(error, OSError) and self._node.is_disk_full:
            self.tell(f"the coordinator ends: {error}")
            self._finish()
        elif error is not None and not isinstance(error, Killed):
            assert isinstance(error, Exception)
            self._crashed(coordinator.process, error)
        else:
            if isinstance(error, Killed):
                self.tell("the coordinator is killed in the middle of it")
            self.later(self._back_after, self.start_coordinator)

    def _begin_with(self, copy: CompleteCopy | None) -> None:
        """The next coordinator does, or with the newest checkpoint; one that is torn is none."""
        self._runs += 1
        self.outcome.resumes += 1
        self._may_go_back = True
        self._goes_back_to = None if copy is None else copy.step
        prepare_copies(self._coordinators_folder, copy)
        if copy is None:
            self._tear_newest()

    @property
    def _coordinators_folder(self) -> Path:
        return self.folder / f"coordinator-{self._runs}"

    def _tear_newest(self) -> None:
        folder, chance = self.folder / "checkpoints", self.chance
        found, _ = CheckpointFolder(folder).look()
        if len(found) > 1 and chance.random() < 0.5:
            shard = folder / found[0].name / chance.choice(sorted(found[0].manifest.shards))
            torn = shard / chance.choice((SHARD_FILE, TENSORS_FILE))
            torn.write_bytes(torn.read_bytes()[:-3])
            self.tell(f"a shard of {found[0].name} turns out to be torn")

    def _can_be_resumed(self) -> bool:
        is_wanted = self.scenario.is_resumed and not self._is_with_user and self.outcome.error is not None
        found = CheckpointFolder(self.folder / "checkpoints").look()[0] if is_wanted else []
        # One of all steps leaves nothing to resume, and is refused.
        return bool(found) and found[0].manifest.step < self.scenario.steps

    def _resume(self) -> None:
        """By a user, on other nodes, when all processes are gone."""
        self.tell("a user resumes the job")
        self.is_over, self._is_with_user = False, True
        self.outcome.has_ended, self.outcome.error = False, None
        self._disk.writes_until_torn = None
        self._last_fault = self.loop.now
        self._move_to_another_node()
        self._begin_with(None)
        self.start_coordinator()
        for _ in range(self.scenario.nodes):
            self.add_node()

    def _move_to_another_node(self) -> None:
        self._node = self.kernel.coordinators_node = Node(f"10.0.1.{len(self.kernel.nodes)}")
        self.kernel.nodes.append(self._node)

    def move_coordinator(self, back_after: float) -> None:
        """Its node loses power; what it has written down is read on another."""
        self.network.switch_off(self._node)
        self.kill_coordinator(back_after)
        self._move_to_another_node()

    def _finish(self) -> None:
        self.is_over, self._over_at = True, self.loop.now

    def kill_coordinator(self, back_after: float) -> None:
        self._back_after = back_after
        if self.coordinator is not None and self.coordinator.process.is_alive:
            self.coordinator.kill("was killed by signal 9", Killed())

    def kill_coordinator_later(
        self, back_after: float, *, sends: int | None = None, writes: int | None = None
    ) -> None:
        self._back_after = back_after
        if writes is not None:
            self._disk.writes_until_torn = writes
        elif self.coordinator is not None:
            self.coordinator.sends_until_killed = sends

    def _accept(self, process: SimulatedProcess, token: str) -> End | None:
        coordinator = self.coordinator
        if coordinator is None or not coordinator.is_listening or not coordinator.process.is_alive:
            return None
        if token != TOKEN:
            self._strangers += 1
            return None
        connection = coordinator.accept(process.node.name)
        connection.end.owner = connection
        return connection.end

    def _join(self, far: End, pipe: Pipe) -> None:
        far.owner.pipe = pipe

    def _told(self, message: Message) -> None:
        """To observers."""
        match message:
            case Hello():
                self._hear_hello(message)
            case StepRow():
                self._hear_row(message)
            case JobEnded():
                self.outcome.has_ended, self.outcome.error = True, message.error
                self.tell(f"the job has ended: {message.error or 'well'}")
                self._check_end(message)
            case JobEvent():
                self.tell(f"told: {message.text}")
                self._is_unwritten |= message.text.startswith("cannot write") and "journal" in message.text
            case Recovered():
                self.outcome.recoveries += 1
                self.tell(
                    f"generation {message.generation} runs from step {message.step}: "
                    + ", ".join(message.causes)
                )
            case _:
                pass

    def _hear_hello(self, hello: Hello) -> None:
        """Steps are lost when a job begins with a checkpoint, and never otherwise."""
        rows = self.outcome.rows
        if self._may_go_back and self._goes_back_to not in (None, hello.next):
            self.note_wrong(f"a job goes on with step {hello.next} from a copy of step {self._goes_back_to}")
        elif (self._may_go_back or self._is_unwritten) and hello.next <= rows:
            self.outcome.rows = hello.next
        elif hello.next < rows:
            self.note_wrong(f"a coordinator begins with step {hello.next}, and {rows} steps were told")
        self._may_go_back = self._is_unwritten = False

    def _hear_row(self, row: StepRow) -> None:
        expected = self.outcome.rows
        if row.step != expected:
            self.note_wrong(f"step {row.step} is told, and step {expected} is the next")
        self.outcome.rows = row.step + 1
        loss = self.job.reference.loss(row.step)
        if row.loss is not None and row.loss != loss:
            self.note_wrong(f"step {row.step} has loss {row.loss}, and {loss} in a plain loop")

    def _check_end(self, ended: JobEnded) -> None:
        if ended.error is None:
            if self.outcome.rows != self.scenario.steps:
                self.note_wrong(
                    f"the job has ended well after {self.outcome.rows} of {self.scenario.steps} steps"
                )
            self._check_states()
            if self.scenario.saves:
                self._check_saved()
        elif self._is_with_user or not (self.scenario.wild or self._is_for_want_of_disk(ended.error)):
            self.note_wrong(f"the job has ended though a worker of every stage was left: {ended.error}")

    def _check_states(self) -> None:
        """Of whoever is there at the end, and part of the run."""
        for process, worker in self._workers.items():
            session = self._engines[process].session_now
            if session is not None and session.is_midway:
                # It is stopped there, and given up.
                continue
            if process.is_alive and (chunks := worker.held_chunks) is not None and chunks.is_part_of_run:
                expected = self.job.reference.state(chunks.applied, worker.tp_rank)
                for layer in chunks.layers:
                    found = self._engine_kind.value_of(layer)
                    if chunks.applied == self.scenario.steps and found != expected[layer.number]:
                        self.note_wrong(f"{process.name} ends with {found} in layer {layer.number}")

    def _is_for_want_of_disk(self, error: str) -> bool:
        """Only those who hold parameters can save them: nobody promises it while their disks are full."""
        if "were not saved" in error:
            return any(node.node.is_on and node.node.is_disk_full for node in self.nodes)
        return self._had_full_disk and ("no checkpoint of step" in error or "no space left" in error.lower())

    def _check_saved(self) -> None:
        """Every layer is there, as it should be."""
        saved: dict[int, dict[int, int]] = {rank: {} for rank in range(self.scenario.bundle.tensor)}
        for path in sorted(self._saved.iterdir()):
            found = json.loads(path.read_text())
            saved[found["rank"]] |= {int(layer): value for layer, value in found["values"].items()}
        for rank, values in saved.items():
            expected = self.job.reference.state(self.scenario.steps, rank)
            if values != dict(enumerate(expected)):
                self.note_wrong(f"{values} are saved of rank {rank}, and should be {expected}")

    def _killed_by_agent(self, process: SimulatedProcess) -> None:
        """As the coordinator, or the agent itself, wants it."""
        service = None if self.coordinator is None else self.coordinator.service
        is_ending = (
            self.is_over
            or self.outcome.has_ended
            or (service is not None and (service.goes_on or service.ended is not None))
        )
        if self._is_clean and not is_ending and not self._has_lost_a_rank(process):
            self.note_wrong(f"{process.name} is well, and is killed by its agent")

    def _has_lost_a_rank(self, process: SimulatedProcess) -> bool:
        """True if another process of the same worker has ended: then none of them is of use."""
        worker = self._workers.get(process)
        if worker is None or self.scenario.bundle.tensor == 1:
            return self.scenario.bundle.tensor > 1
        return any(
            one.worker == worker.worker and not other.is_alive and other.node is process.node
            for other, one in self._workers.items()
        )

    # Nodes and workers.

    def add_node(self) -> None:
        node = WorldNode(self, len(self.nodes))
        self.nodes.append(node)
        self.kernel.nodes.append(node.node)
        node.start_agent()

    def node_of(self, number: int) -> Node:
        return self._node if number < 0 else self.nodes[number].node

    def start_worker(self, node: WorldNode, member: Member, line: int) -> SimulatedProcess:
        scenario = self.scenario
        name = f"worker {worker_text(member.worker)}"
        name += f" rank {member.tp_rank}" if scenario.bundle.tensor > 1 else ""
        process = self.kernel.process(name, node.node, TOKEN)
        folder = str(self.folder / "checkpoints") if scenario.checkpoints else None
        saved = str(self._saved) if scenario.saves else None
        options = ProcessOptions(
            scenario.path, host="", port=0, token=TOKEN, timeout=600.0, save=saved, checkpoint=folder,
            node=node.number + 1, memory=node.memory, line=line, relay_name=node.relay_name,
        )  # fmt: skip
        seconds = self.chance.uniform(0.1, 1.0)
        building = self._builds.choice((0.0, self._builds.uniform(0.0, scenario.building)))

        async def live() -> None:
            heartbeat = HeartbeatWriter(node.board, line, process)
            await process.sleep(seconds)
            engine = self._engines[process] = self._engine_kind(process, self.job, member.tp_rank, options)
            worker = WorkerProcess(
                options, member.worker, member.tp_rank, heartbeat, surroundings=process, engine=engine
            )
            self._workers[process] = worker

            async def take_over(seconds: float) -> None:
                if worker.take_over(seconds):
                    self.tell(f"{name}: another thread takes over")
                    await self._live(process, worker.go_on())

            worker.link.on_stuck = take_over
            await self._live(process, self._first_life(process, worker, building))

        process.start(live)
        return process

    async def _first_life(self, process: SimulatedProcess, worker: WorkerProcess, building: float) -> int:
        await worker.join()
        await process.sleep(building)
        return await worker.live(self._program, 0)

    async def _live(self, process: SimulatedProcess, life: Any) -> None:
        """As `worker.lifecycle` has it: what a worker cannot go on without ends it in peace."""
        status = 1
        try:
            status = await life
        except (CoordinatorGoneError, WireError) as error:
            self.tell(f"{process.name} gives up: {error}")
        except CopiesGoneError as error:
            # The nodes that have them may run no worker: then the job goes on from its checkpoint.
            link = self._workers[process].link
            link.say(Failed(link.step, str(error), is_injected=False, is_hopeless=True))
        process.exit(f"ended with status {status}")

    def worker_process(self, worker: Worker) -> SimulatedProcess | None:
        found = [p for p, one in self._workers.items() if p.is_alive and one.worker == worker]
        return found[-1] if found else None

    def processes_on(self, number: int, but: SimulatedProcess | None = None) -> list[SimulatedProcess]:
        node = self.nodes[number].node
        return [one for one in self.kernel.processes if one.is_alive and one.node is node and one is not but]

    def may_lose(self, worker: Worker) -> bool:
        """True if the job can go on without it, for all that is known outside."""
        return self._may_lose({worker})

    def may_lose_node(self, number: int) -> bool:
        node = self.nodes[number].node
        here = {one.worker for p, one in self._workers.items() if p.is_alive and p.node is node}
        return self._may_lose(here)

    def _may_lose(self, lost: set[Worker]) -> bool:
        """Every layer is held by somebody else who is well, and takes part."""
        if self.scenario.wild:
            return True
        ranks: dict[tuple[Worker, int], set[int]] = {}
        """Who of each worker has a layer."""
        shards: set[tuple[int, int, int]] = set()
        """Of optimizer state: layer, rank, number."""
        for process, worker in self._workers.items():
            chunks = worker.held_chunks
            is_well = process.is_alive and not process.is_stopped and process.node.is_on
            is_well = is_well and not self._is_given_up(worker.worker)
            if is_well and worker.worker not in lost and chunks is not None and chunks.is_part_of_run:
                for layer in chunks.layers:
                    ranks.setdefault((worker.worker, layer.number), set()).add(worker.tp_rank)
                    if layer.shards:
                        shards |= {(layer.number, worker.tp_rank, each) for each in layer.shards_here}
        bundle = self.scenario.bundle
        if bundle.owners and len(shards) < sum(bundle.cut) * bundle.tensor * bundle.pipelines:
            return False
        kept = {layer for (_, layer), found in ranks.items() if len(found) == bundle.tensor}
        return kept == set(range(sum(bundle.cut)))

    def _is_given_up(self, worker: Worker) -> bool:
        """True if the coordinator, if there is one, goes on without it: what it holds does not count."""
        if self.coordinator is None or not self.coordinator.process.is_alive:
            return False
        job = self.coordinator.service.job
        members = [(member, entry) for member, entry in job.roster.entries.items() if member.worker == worker]
        return not members or any(entry.is_outdated for _, entry in members)

    # What faults do.

    def pause(self, process: SimulatedProcess, seconds: float) -> None:
        if process.is_alive and not process.is_stopped:
            process.stop()
            self.later(seconds, self._continue, process)

    def _continue(self, process: SimulatedProcess) -> None:
        if process.is_alive:
            process.go_on()

    def lose_node(self, number: int) -> None:
        node = self.nodes[number]
        self.network.switch_off(node.node)
        for process in self.processes_on(number):
            process.exit("lost power")

    def partition(self, pairs: tuple[tuple[int, int], ...], seconds: float) -> None:
        for one, other in pairs:
            self.network.cut(self.node_of(one), self.node_of(other))
        self.later(seconds, self._mend, pairs)

    def _mend(self, pairs: tuple[tuple[int, int], ...]) -> None:
        for one, other in pairs:
            self.network.mend(self.node_of(one), self.node_of(other))

    def fill_disk(self, number: int, seconds: float) -> None:
        node = self.node_of(number)
        node.is_disk_full = self._had_full_disk = True
        self.later(seconds, setattr, node, "is_disk_full", False)

    def slow_down(self, number: int, factor: float, seconds: float) -> None:
        node = self.node_of(number)
        node.slowness = factor
        self.later(seconds, setattr, node, "slowness", 1.0)

    def slow_disk(self, number: int, seconds: float) -> None:
        node = self.node_of(number)
        node.disk_seconds = 1.0
        self.later(seconds, setattr, node, "disk_seconds", 0.002)

    def let_stranger_in(self, worker: Worker) -> None:
        process = self.kernel.process("a stranger", self.nodes[0].node, "another token")

        async def knock() -> None:
            try:
                await process.connect("", 0, process.token)
            except WireError:
                process.exit()
                return
            self.note_wrong("a stranger is let in")

        process.start(knock)


def _never_called(*_: object) -> int:
    """A stand-in for a call that only a real worker process makes."""
    raise AssertionError("simulated workers are not forked")


def _program() -> Program:
    """Nothing of it is ever called, but what makes optimizers of layers in shards."""

    def layers() -> list[Any]:
        return []

    def loss(output: Any, target: Any) -> Any:
        return output

    def batches(seed: int) -> Any:
        return iter(())

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return KeepingOptimizer(parameters)

    names = {"layers": layers, "loss": loss, "batches": batches, "optimizer": optimizer}
    return Program(Path("world.py"), names)


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
