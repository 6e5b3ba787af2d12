"""Main loop of a worker process: report, train, leave, report again."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from recycle_runtime import logs
from recycle_runtime.execution.chunk import chunks_of
from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.execution.parameter_looks import parameters_of
from recycle_runtime.execution.tracing import Tracer
from recycle_runtime.files import sentence
from recycle_runtime.plan.bundle import Bundle, digest_of
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.program.loading import Program, load_program
from recycle_runtime.program.source_digest import source_name
from recycle_runtime.protocol.address import FollowedAddress
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.identity import process_number
from recycle_runtime.protocol.messages.checkpoints import TakeCheckpoint
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    BundleData,
    BundleRequest,
    Copied,
    Done,
    End,
    FaultInjected,
    Go,
    GroupBroken,
    HeldState,
    Hold,
    Join,
    Leave,
    LeftGroup,
    Move,
    Trace,
    WorkShare,
)
from recycle_runtime.protocol.messages.layer_moves import DropLayers, MoveLayers
from recycle_runtime.protocol.messages.members import InjectedFault, Member
from recycle_runtime.protocol.messages.scripts import InScript, SaveShare
from recycle_runtime.protocol.messages.steps import NotFinite
from recycle_runtime.protocol.messages.wire import ToWorker
from recycle_runtime.protocol.remote_store import StoreError
from recycle_runtime.protocol.surroundings import Line, Machine, Surroundings, completed
from recycle_runtime.transport.choose import device_of
from recycle_runtime.transport.guarded import PeerError, is_of_device, is_of_others
from recycle_runtime.transport.rank_mesh import standing_group
from recycle_runtime.transport.sockets import Ends
from recycle_runtime.transport.user_group import StandingGroup
from recycle_runtime.worker.checkpoints import WorkerCheckpoints, as_checkpoint_error
from recycle_runtime.worker.engine import (
    Building,
    Engine,
    GroupResources,
    MeetingPlace,
    TorchEngine,
    connect_to_coordinator,
)
from recycle_runtime.worker.generation import Equipment, Interrupted, WorkerGeneration
from recycle_runtime.worker.heartbeat import HeartbeatWriter
from recycle_runtime.worker.held_chunks import HeldChunks
from recycle_runtime.worker.layer_moves import LayerTransfers
from recycle_runtime.worker.link import Link, Wake
from recycle_runtime.worker.neighbour_copies import WorkerCopies
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.peer_check import PeerCheck
from recycle_runtime.worker.reach import ReachReporter
from recycle_runtime.worker.requests import Evaluation, Next, Requests, Save
from recycle_runtime.worker.settled_steps import SettledSteps
from recycle_runtime.worker.takeover import ActiveThread
from recycle_runtime.worker.warm_up import has_all_kernels, load_libraries

_RANKS_SECONDS = 3.0
"""Seconds to wait for word that another tensor-parallel rank has failed."""
_AWAY_SECONDS = 30.0
"""The same where a connection broke, which no program does: the coordinator may be away meanwhile."""
_SCRIPT_SECONDS = 5.0
"""Seconds until the coordinator is notified that the script keeps this process waiting, and again."""
_LONGEST = 500
"""Characters of an error that are sent; the rest is cut off."""

_log = logging.getLogger(__name__)


class WorkerProcess:
    """One process, from its first report to its last."""

    def __init__(
        self,
        options: ProcessOptions,
        worker: Worker,
        tp_rank: int,
        heartbeat: HeartbeatWriter,
        hooks: Hooks | None = None,
        requests: Requests | None = None,
        surroundings: Surroundings | None = None,
        engine: Engine | None = None,
    ) -> None:
        """`requests` are those of the user's script, if this process runs one; `engine` is for tests."""
        self._around, self._other_engine = surroundings or Machine(), engine
        self._options, self._worker, self._tp_rank, self._heartbeat = options, worker, tp_rank, heartbeat
        self._hooks = hooks or Hooks()
        self._hooks.attach(self)
        self._left_behind: list[WorkerGeneration] = []
        """Those that a thread still waits in that is never woken."""
        self._chunks: HeldChunks | None = None
        self._outside: GroupResources | None = None
        """Of layers that arrive while this process is in no group."""
        self._generation: WorkerGeneration | None = None
        """The one that this process trains in, or has trained in last."""
        self._tensor_group: StandingGroup | None = None
        """Of this worker's tensor-parallel ranks, if there are several."""
        self._store: MeetingPlace | None = None
        """Groups keep only the half of a store that is not Python, and need the other too."""
        self._store_line = 0
        """Of the lines to the coordinator, the one beside which it was opened."""
        address = None if options.address_file is None else FollowedAddress(options)
        self.link = Link(self._connect, self._hello, options.coordinator_timeout, self._around, address)
        self._has_script = requests is not None
        self._requests = requests or Requests()
        self._requests.attach(self.link.say, self.link.wake)
        self.link.requests = self._requests
        self._peers = PeerCheck(self.link.say)
        self._settled_steps = SettledSteps(self.link.say)

    @property
    def worker(self) -> Worker:
        return self._worker

    @property
    def held_chunks(self) -> HeldChunks | None:
        """Chunks of this process, once it has built some."""
        return self._chunks

    @property
    def tp_rank(self) -> int:
        return self._tp_rank

    @property
    def has_ranks(self) -> bool:
        """True if its worker has several tensor-parallel processes."""
        return self._tensor_group is not None

    async def join(self) -> None:
        """Say to the coordinator that this process is there; WireError if there is none."""
        await self.link.open()

    def run(self, program: Program | None = None, seed: int | None = None) -> int:
        """As `live`, in a real process."""
        return completed(self.live(program, seed))

    async def live(self, program: Program | None = None, seed: int | None = None) -> int:
        """Until the job ends; the exit status. A program that is not given is loaded from its file."""
        self._program = load_program(self._options.program) if program is None else program
        if seed is not None:
            self._options = replace(self._options, seed=seed)
        engine = self._other_engine or self._torch_engine()
        own = engine.read_bundle(self._options.bundle)
        # Those for other cuts come after the first, as the coordinator counts them.
        self._bundles = dict(enumerate((own, *own.recuts)))
        self._equipment = Equipment(
            options=self._options,
            tp_rank=self._tp_rank,
            surroundings=self._around,
            engine=engine,
            link=self.link,
            heartbeat=self._heartbeat,
            active=ActiveThread(self._heartbeat, engine.resumed, self._hooks, self._around),
            hooks=self._hooks,
        )
        self._checkpoints = WorkerCheckpoints(self._options.checkpoint, self.link, engine)
        self._copies = WorkerCopies(self._equipment)
        ReachReporter(self._ends, self.link.say, self._around).begin()
        self._layers = LayerTransfers(self._equipment)
        if own.tensor == 1:
            # Everything that takes long is done before anybody waits for it.
            self._chunks = self._build(own, self._worker[1])
        return await self._live()

    def _torch_engine(self) -> Engine:
        device = device_of(self._options.device)
        if device.type == "cuda" and has_all_kernels():
            load_libraries(self._program.precision, device)
        op_times = OpTimes(device, self._hooks)
        tracer = Tracer(device) if self._options.trace else None
        return TorchEngine(self._options, self._tp_rank, self._around, device, op_times, tracer)

    def take_over(self, seconds: float) -> bool:
        """By another thread: whether to `go_on` in the place of one that has waited in vain for so long."""
        return self._equipment.active.take_over(seconds)

    async def go_on(self) -> int:
        """As if the thread that did so until now had come out of its group; the exit status."""
        _log.info("a thread is stuck in generation %d: another takes over", self.link.generation)
        self._equipment.engine.on_new_thread()
        self._close(is_stuck=True)
        return await self._live()

    def fault_is_next(self, fault: InjectedFault, *, goes_on: bool) -> None:
        """A test has this process do something to itself: see `hooks.FaultReporter`."""
        _log.info("injected fault: %s", fault.kind)
        if not goes_on:
            self._heartbeat.mark_fault()
        self.link.say(FaultInjected(fault))

    async def _live(self) -> int:
        while True:
            match await self._order():
                case Leave(generation):
                    self._leave(generation)
                case Move(worker):
                    self._worker, self._chunks = worker, None
                    logs.note(worker=worker_text(worker))
                case MoveLayers() | DropLayers():
                    self._move_layers_outside()
                case Hold(step):
                    await self._stop_outside(step)
                case Go() as order if order.generation >= self.link.asked:
                    end = await self._train(order)
                    if end is not None:
                        return await self._end(end)
                case End() as order:
                    return await self._end(order)
                case _:
                    # What other threads act on, or an order that a newer one has overtaken.
                    pass

    async def _train(self, order: Go) -> End | None:
        """One generation; the order that ended the job, if one did."""
        number = order.generation
        self._heartbeat.generation = self.link.generation = number
        try:
            generation = await self._begin(order)
            return await self._steps(generation, order.step)
        except Interrupted:
            pass
        except (PeerError, StoreError, WireError) as error:
            self._broken(number, error)
        except StreamError as error:
            if isinstance(error.__cause__, PeerError | StoreError | WireError):
                self._broken(number, error.__cause__)
            elif not await self._is_fault_of_others(error.__cause__):
                raise
        finally:
            self._requests.rest()
        self._close()
        return None

    async def _is_fault_of_others(self, cause: BaseException | None) -> bool:
        """An instruction failed because the group is being left: by an order, or what it worked with was
        left by an abort; a fault of the program comes again with the next group. Or a collective of the
        program failed because a worker left: an order to leave comes soon, or the coordinator is away, until
        it is found or given up."""
        if isinstance(cause, Interrupted):
            return True
        is_own = cause is None or is_of_device(cause) or self._hooks.caused(cause)
        if self.link.asked > self.link.generation and not is_own:
            _log.info("an error while the group is left: %s", cause)
            return True
        if self._tensor_group is None or not is_of_others(cause):
            return False
        seconds = _AWAY_SECONDS if "connection" in str(cause).lower() else _RANKS_SECONDS
        deadline = self._around.now() + seconds
        while self.link.asked <= self.link.generation and self._around.now() < deadline:
            await self._around.sleep(0.05)
            if self.link.is_away and seconds == _AWAY_SECONDS:
                deadline = self._around.now() + seconds
        return self.link.asked > self.link.generation

    def _broken(self, generation: int, error: BaseException) -> None:
        _log.info("the group of generation %d is broken: %s", generation, error)
        self.link.say(GroupBroken(generation, str(error)[:_LONGEST]))

    async def _stand(self, chunks: HeldChunks, order: Go, *, has_donor: bool) -> None:
        """Take the state that all continue from, or expect that of the donor."""
        self._checkpoints.begin(chunks.all, order)
        await self._copies.restore(chunks.all, order)
        if has_donor:
            chunks.expect_state()
        else:
            chunks.stand(order.step, order.sums)

    async def _begin(self, order: Go) -> WorkerGeneration:
        """Go to the step that all continue from, and meet the other workers."""
        bundle = await self._bundle(order.bundle)
        self._peers.begin(order)
        self._store = await self._meeting_place()
        has_donor = order.copy_from is not None or order.donor is not None
        if self._chunks is not None:
            self._chunks = self._under_cut(self._chunks, bundle, order, has_donor=has_donor)
            await self._stand(self._chunks, order, has_donor=has_donor)
        generation = WorkerGeneration(self._equipment, order, bundle, self._worker, self._store)
        self._generation = generation
        transport = await generation.meet()
        if bundle.tensor > 1:
            self._tensor_group = self._tensor_group or self._standing_group(bundle.tensor)
            if transport.tensor_group is not None:
                self._tensor_group.stand_before(transport.tensor_group, transport.given_up)
        if self._chunks is None:
            self._chunks = self._build(bundle, order.role[1])
            await self._stand(self._chunks, order, has_donor=has_donor)
        copied = await generation.begin(self._chunks, transport)
        self._chunks.know(order.sums)
        self._settled_steps.begin(order.step, is_teller=generation.tells_steps)
        self.link.forget_steps(order.step)
        self._heartbeat.is_up = True
        if self._has_script and order.donor is None:
            self._requests.arrive(
                order.step, order.first_step, self._worker, order.generation, is_main=order.is_main
            )
        if order.step == order.first_step and generation.speaks_for_stage:
            self.link.say(parameters_of(self._program, self._chunks.layers))
        self.link.say(self._began(generation, order, self._chunks, copied))
        return generation

    async def _meeting_place(self) -> MeetingPlace:
        """That of the last group, where it can be used again: new connections cost the coordinator most."""
        line = self.link.lines
        if self._store is not None and self._store_line == line and self._store.renew():
            return self._store
        self._store_line = line
        return await self._equipment.engine.meeting_place()

    def _began(
        self, generation: WorkerGeneration, order: Go, chunks: HeldChunks, copied: Copied | None
    ) -> Began:
        saves = self._options.save is not None
        shares = (
            tuple(WorkShare(*share) for share in generation.shares) if self._equipment.tp_rank == 0 else None
        )
        in_a_row = len(chunks) == 1 or bool(self._bundles[order.bundle].groups)
        is_uneven = chunks.setting.shards and any(each.stepped is not None for each in chunks.layers)
        if not chunks.program.is_layered or not in_a_row or is_uneven:
            # Layers that lie apart do not move to another cut, nor do those that could not be divided: beside
            # others that are, nobody would know who keeps what.
            return Began(order.generation, chunks.state_bytes, copied, saves=saves, shares=shares)
        layers = tuple(layer.state_bytes for layer in chunks.layers)
        own = self._bundles[0]
        # Those that load the first one anyway can say, and only if somebody wants to know.
        asks = any(own.split(recut) > 1 for recut in own.recuts)
        halves = generation.can_halve(chunks.data) if asks and 0 in chunks else None
        if asks and any(layer.has_hooks for layer in chunks.layers):
            # The user's code would be called with the gradient of half a micro-batch.
            halves = False
        return Began(
            order.generation,
            chunks.state_bytes,
            copied,
            layers,
            chunks.layers[0].number,
            halves,
            saves,
            shares,
        )

    def _under_cut(self, chunks: HeldChunks, bundle: Bundle, order: Go, *, has_donor: bool) -> HeldChunks:
        """The chunks that this generation asks for: those that are here, or some made of what is here."""
        stage = order.role[1]
        is_same = (chunks.cut, list(chunks)) == (bundle.cut, chunks_of(bundle, stage))
        takes_over = chunks.is_fresh and order.step > 0 and order.restore is None and not has_donor
        if is_same and not takes_over:
            self._layers.kept(chunks, order.step)
            return chunks
        if has_donor:
            self._layers.drop()
            return self._build(bundle, stage)
        if not chunks.is_fresh:
            chunks.stand(order.step, order.sums)
        made = self._layers.converted(chunks, bundle, stage, order.step)
        for chunk in made.values():
            _log.info("holds layers %d to %d from now on", chunk.layers[0].number, chunk.layers[-1].number)
        return self._watched(made)

    async def _steps(self, generation: WorkerGeneration, step: int) -> End | None:
        while True:
            generation.go_on_or_leave()
            await generation.catch_up()
            self._move_layers(generation)
            # Told before it is looked where to stop, so that nobody believes in a stop that was passed.
            self.link.step = step
            assert self.link.hold_at is not None
            match self._requests.next(step):
                case Next.WAIT:
                    order = await self._wait_for_script(generation, step)
                case Next.JUDGE:
                    order = None
                    assert self._chunks is not None
                    self._settled_steps.tell_now(step - 1, self._chunks, self._not_finite)
                    self._requests.judged(step - 1)
                case Evaluation() as evaluation:
                    order = None
                    loss = await generation.evaluate(step, evaluation.data)
                    self._requests.evaluated(evaluation, loss if self._tp_rank == 0 else None)
                case Save(path):
                    order = None
                    self._requests.saved(await self._write_shards(generation, step, path))
                case Next.STEP if step < self.link.hold_at:
                    order = None
                    logs.note(step=step)
                    self._use_data(step)
                    await generation.run(step)
                    step += 1
                    self._requests.made(step)
                case _:
                    order = await self._stop(generation, step)
            if order is not None:
                return order

    def _use_data(self, step: int) -> None:
        """Use the data that the script gives for this step, if there is a script that does."""
        data = self._requests.data(step)
        if data is not None and self._chunks is not None:
            with as_checkpoint_error():
                self._chunks.data.use(data, step)
        if self._chunks is not None and self._requests.was_made(step):
            self._chunks.data.made_before(step)

    async def _write_shards(
        self, generation: WorkerGeneration, step: int, path: str | None
    ) -> SaveShare | None:
        """For the script, which waits; None where others write."""
        await generation.settle()
        if path is None or self._chunks is None:
            return None
        self._hooks.at("save", step)
        # A slow disk is not hanging.
        with self._heartbeat.waiting():
            return self._checkpoints.write_now(self._chunks.all, path, generation.go_on_slowly)

    async def _wait_for_script(self, generation: WorkerGeneration, step: int) -> End | None:
        """Until the script asks for something, or the coordinator does; the order that ended the job."""
        with self._heartbeat.waiting():
            order = await self.link.order(_SCRIPT_SECONDS)
        if order is None:
            self.link.say(InScript(step))
        return self._obey_between(generation, order)

    def _obey_between(self, generation: WorkerGeneration, order: ToWorker | Wake | None) -> End | None:
        """Carry out an order between two steps; return it if it ends the job."""
        if isinstance(order, End):
            return order
        self._move_layers(generation)
        if isinstance(order, Leave):
            self._close()
            self._leave(order.generation)
            raise Interrupted
        return None

    async def _stop(self, generation: WorkerGeneration, step: int) -> End | None:
        """Wait between two steps; the order that ended the job, or None to go on."""
        self._hooks.at("settle", step)
        await generation.settle()
        if self._chunks is not None:
            self._peers.settled(self._chunks, at_boundary=True)
        await self._layers.wait(step, partial(self._stands, generation.number, step))
        while True:
            # Said again after every order that is none to go on: it may come from a coordinator that is new.
            self.link.say(AtBoundary(step))
            generation.go_on_or_leave()
            order = await self._order()
            if isinstance(order, TakeCheckpoint):
                await generation.settle()
            if (end := self._obey_between(generation, order)) is not None:
                return end
            if self.link.hold_at is not None and self.link.hold_at > step:
                return None

    def _leave(self, generation: int) -> None:
        """Leave the group at once; then report what it holds."""
        self._close()
        self._hooks.at("leave", self.link.step)
        chunks, source = self._chunks, source_name(self._program.source_digest)
        fresh = (HeldState(0, is_fresh=True),) * self._stands_for
        report, *others = fresh if chunks is None else [held.report() for held in chunks.of_ranks]
        report = report._replace(layers_applied=self._layers.applied)
        plans, ranks = digest_of(self._bundles[0]), None if chunks is None else chunks.fewer_ranks
        seed, experts = self._options.seed, () if chunks is None else chunks.experts
        self.link.say(LeftGroup(generation, report, source, seed, plans, tuple(others), ranks, experts))

    @property
    def _stands_for(self) -> int:
        """Number of the job's tensor-parallel ranks."""
        tensor = self._bundles[0].tensor
        return tensor // (self._options.ranks or tensor)

    def _standing_group(self, tensor: int) -> StandingGroup:
        return standing_group(self._tp_rank // self._stands_for, tensor // self._stands_for)

    def _close(self, *, is_stuck: bool = False) -> None:
        """Out of the group, or just leave it alone if a thread is stuck in it."""
        generation, self._generation = self._generation, None
        self._layers.stop()
        self._close_outside()
        if self._tensor_group is not None:
            self._tensor_group.stand_alone()
        if generation is None:
            return
        generation.close(is_stuck=is_stuck)
        if is_stuck:
            self._left_behind.append(generation)

    def _ends(self) -> Ends:
        """Of the group that this process is in, as another thread sees it."""
        generation = self._generation
        return self._equipment.engine.look({} if generation is None else generation.connections.opened())

    async def _order(self) -> ToWorker | Wake:
        """The next one; waiting for it is not hanging."""
        with self._heartbeat.waiting():
            order = await self.link.order()
            assert order is not None
            return order

    async def _end(self, order: End) -> int:
        tracer, error = self._equipment.engine.tracer, None
        if order.ok:
            # A slow disk is not hanging; the coordinator has a limit for it.
            with self._heartbeat.waiting():
                error = await self._save()
            if tracer is not None and self._tp_rank == 0:
                self.link.say(Trace(tuple(tracer.events)))
        self.link.say(Done(error))
        self._heartbeat.end()
        return 0 if order.ok and error is None else 1

    async def _save(self) -> str | None:
        """Save what was asked for at the end, if anything; return the error if that failed."""
        chunks = self._chunks
        if self._options.save is None or chunks is None or not chunks.is_part_of_run:
            return None
        self._hooks.at("save", self.link.step)
        try:
            folder = Path(self._options.save)
            await self._equipment.engine.save(folder, self._worker, chunks)
        except OSError as error:
            return sentence(error)
        return None

    def _build(self, bundle: Bundle, stage: int) -> HeldChunks:
        own = self._bundles[0]
        built = Building(
            self._options.seed, own.pipelines * own.microbatches, self._tensor_group, own.pipelines
        )
        return self._watched(self._equipment.engine.build(self._program, bundle, stage, built))

    def _watched(self, chunks: HeldChunks) -> HeldChunks:
        chunks.watch(partial(self._settled, chunks))
        self._heartbeat.is_first = True
        return chunks

    def _settled(self, chunks: HeldChunks) -> None:
        self._checkpoints.write_if_due(chunks.all)
        self._copies.settled(chunks.all)
        self._layers.settled()
        self._peers.settled(chunks)
        self._settled_steps.settled(chunks, self._not_finite)

    def _not_finite(self, step: int) -> tuple[NotFinite, ...]:
        return () if self._generation is None else self._generation.not_finite(step)

    # Layers for another cut.

    def _move_layers(self, generation: WorkerGeneration) -> None:
        """Between two steps, if there is something to begin or to end."""
        self._copies.obey(generation.number, self._worker, generation.connections)
        order, self.link.layers = self.link.layers, None
        if order is not None and order.generation == generation.number and self._chunks is not None:
            self._layers.obey(order, self._worker, self._chunks, generation.connections)

    def _stands(self, generation: int, step: int) -> bool:
        """True if all workers still stop before this step; one that has passed it needs the others."""
        is_passed = self.link.hold_at is not None and self.link.hold_at > step
        return self.link.asked <= generation and self.link.layers is None and not is_passed

    def _move_layers_outside(self) -> None:
        """The same for a process that is in no group, and holds nothing of use yet."""
        order, self.link.layers = self.link.layers, None
        if order is None or order.generation != self.link.asked or self._chunks is None:
            return
        self._close_outside()
        self._outside = self._equipment.engine.connections()
        self.link.on_leave = self._outside.break_off
        self._layers.obey(order, self._worker, self._chunks, self._outside)

    async def _stop_outside(self, step: int) -> None:
        """All workers stop before this step: the layers that were taken have to stand there too."""
        goes_on = partial(self._stands, self.link.asked, step)
        if self._outside is not None and await self._layers.wait(step, goes_on):
            self.link.say(AtBoundary(step))

    def _close_outside(self) -> None:
        outside, self._outside = self._outside, None
        if outside is not None:
            self.link.on_leave = None
            outside.close()

    async def _bundle(self, number: int) -> Bundle:
        if number not in self._bundles:
            self.link.say(BundleRequest(number))
            while not isinstance(order := await self._order(), BundleData) or order.number != number:
                if isinstance(order, Leave):
                    self._leave(order.generation)
                    raise Interrupted
            self._bundles[number] = Bundle.parse(order.data)
        return self._bundles[number]

    async def _connect(self) -> Line:
        if self._other_engine is not None:
            return await self._other_engine.connect()
        return await connect_to_coordinator(self._options, self._around)

    def _hello(self, link: Link) -> Join:
        generation = self._generation
        return Join(
            Member(self._worker, self._tp_rank),
            pid=process_number(self._options.node, self._around.pid),
            generation=link.generation,
            asked=link.asked,
            is_training=generation is not None and generation.is_training,
            saves=self._options.save is not None,
            ranks=self._options.ranks,
        )
