"""What a worker process does with its life: report, train, leave, report again."""

import gc
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.execution.session import Session
from recycle_runtime.execution.stage import Stage
from recycle_runtime.execution.tracing import Tracer
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.plan.plan_book import stream_of
from recycle_runtime.program.loading import Program, load_program
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.identity import process_number
from recycle_runtime.protocol.messages import (
    AtBoundary,
    Began,
    BundleData,
    BundleRequest,
    CaughtUp,
    Copied,
    Done,
    End,
    FaultInjected,
    Go,
    GroupBroken,
    Join,
    Leave,
    LeftGroup,
    LossShare,
    Member,
    Move,
    Report,
    StepDone,
    TakeCheckpoint,
    ToWorker,
    Trace,
)
from recycle_runtime.protocol.remote_store import RemoteStore, StoreError
from recycle_runtime.testing.faults import UNSEEN, Fault, Harm
from recycle_runtime.transport.gloo import call_off
from recycle_runtime.transport.guarded import GuardedTransport, PeerError, guarded
from recycle_runtime.transport.interface import Grid
from recycle_runtime.transport.sockets import GroupSockets, making_group
from recycle_runtime.transport.user_group import StandingGroup
from recycle_runtime.worker import copies
from recycle_runtime.worker.checkpoints import WorkerCheckpoints
from recycle_runtime.worker.donor import Lesson, Pupil
from recycle_runtime.worker.heartbeat import Pulse
from recycle_runtime.worker.joiner import Learning
from recycle_runtime.worker.link import Link
from recycle_runtime.worker.reach import Reach
from recycle_runtime.worker.static import WorkerOptions, connect, device_of
from recycle_runtime.worker.turn import Turn
from recycle_runtime.worker.watch import InstructionWatch, Interrupted

_PARTS_SECONDS = 3.0
"""How long to wait for word that another part is lost."""
_PATIENCE = 30.0
"""Seconds to wait for a coordinator that is gone."""


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a worker process is told when it starts."""

    host: str
    port: int
    token: str
    worker: WorkerOptions
    save: str | None
    checkpoint: str | None = None
    """The folder of the job's checkpoints, as this node sees it."""
    node: int = 0
    """The number of its node."""


class MemberProcess:
    """One process, from its first report to its last."""

    def __init__(
        self, options: MemberOptions, place: Worker, part: int, pulse: Pulse, faults: Sequence[Fault]
    ) -> None:
        self._options, self._place, self._part, self._pulse = options, place, part, pulse
        self._harm = Harm(faults, self._before_harm)
        self._worker = replace(options.worker, part=part, worker=place)
        self._turn = Turn(pulse)
        self._left_behind: list[Session] = []
        """What threads still wait for that nobody wakes; it must not go as long as they do."""
        self._stage: Stage | None = None
        self._session: Session | None = None
        self._sockets: list[GroupSockets] = []
        """What the group of today has opened."""
        self._learning: Learning | None = None
        self._pupil: Pupil | None = None
        self._group: StandingGroup | None = None
        """Of this worker's parts, if there are several."""
        self._generation = 0
        self._unsaid: tuple[int, float] | None = None
        """The step under way that has not been told, and when it began."""
        self.link = Link(self._connect, self._hello, _PATIENCE)
        self._checkpoints = WorkerCheckpoints(options.checkpoint, self.link)
        Reach(self._group_sockets, options.port, self.link.say).begin()

    @property
    def part(self) -> int:
        return self._part

    @property
    def has_parts(self) -> bool:
        return self._group is not None

    def run(self) -> int:
        """Until the job ends; the exit status."""
        self._program: Program = load_program(self._worker.program)
        self._bundles = {0: Bundle.read(self._worker.bundle)}
        self._device = device_of(self._worker)
        self._tracer = Tracer(self._device) if self._worker.trace else None
        self._op_times = OpTimes(self._device, self._turn)
        if self._bundles[0].tensor == 1:
            # Everything that takes long is done before anybody waits for it.
            self._stage = self._build(self._place[1], None)
        return self._live()

    def take_over(self, seconds: float) -> bool:
        """By another thread: whether to `go_on` in the place of one that has waited in vain for so long."""
        return self._turn.take(seconds)

    def go_on(self) -> int:
        """As if the thread that did so until now had come out of its group; the exit status."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._close(is_stuck=True)
        return self._live()

    def _live(self) -> int:
        while True:
            match self._order():
                case Leave(generation):
                    self._leave(generation)
                case Move(worker):
                    self._place, self._stage = worker, None
                case Go() as order if order.generation >= self.link.asked:
                    end = self._train(order)
                    if end is not None:
                        return self._end(end)
                case End() as order:
                    return self._end(order)
                case _:
                    # What other threads act on, or an order that a newer one has overtaken.
                    pass

    def _train(self, order: Go) -> End | None:
        """One generation; the order that ended the job, if one did."""
        generation = order.generation
        self._generation = self._pulse.generation = self.link.generation = generation
        try:
            self._begin(order)
            return self._steps(order.step, generation)
        except Interrupted:
            pass
        except (PeerError, StoreError, WireError) as error:
            self._broken(generation, error)
        except StreamError as error:
            if isinstance(error.__cause__, PeerError | StoreError | WireError):
                self._broken(generation, error.__cause__)
            elif not isinstance(error.__cause__, Interrupted) and not self._is_another_parts_fault(
                error.__cause__
            ):
                raise
        self._close()
        return None

    def _is_another_parts_fault(self, cause: BaseException | None) -> bool:
        """A collective of the program's own that failed because others left: an order to leave comes soon."""
        if self._group is None or type(cause) is not RuntimeError:
            return False
        deadline = time.monotonic() + _PARTS_SECONDS
        while self.link.asked <= self._generation and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.link.asked > self._generation

    def _broken(self, generation: int, error: BaseException) -> None:
        self.link.say(GroupBroken(generation, str(error)[:500]))

    def _begin(self, order: Go) -> None:
        """Stand where everybody stands, and meet the others."""
        generation, step, role = order.generation, order.step, order.role
        bundle = self._bundle(order.bundle)
        store: Any = RemoteStore(self._connect())
        if self._stage is not None:
            self._checkpoints.begin(self._stage, order)
            if order.copy_from is None and order.donor is None:
                self._stage.stand(step, order.sums)
            else:
                self._stage.is_whole = False
        plan = order.plan
        grid = Grid(order.grid, bundle.tensor, bundle.pipelines)
        stream = stream_of(bundle, plan, role)
        own: Any = dist.PrefixStore(f"g{generation}", store)
        # Groups keep only the part of a store that is not Python, and need the other too.
        self._store = store
        self._harm.at("meet", step)
        transport = self._meet(replace(self._worker, worker=role, plan=plan), own, grid, stream)
        if bundle.tensor > 1:
            self._group = self._group or StandingGroup(self._part, bundle.tensor)
            self._group.behind = transport.tensor_group
        if self._stage is None:
            self._stage = self._build(role[1], self._group)
            self._checkpoints.begin(self._stage, order)
            if order.copy_from is None and order.donor is None:
                self._stage.stand(step, order.sums)
        self._watch = InstructionWatch(
            generation, stream, self.link, self._pulse, self._harm, is_spared=order.is_spared
        )
        if role[1] == bundle.stages - 1:
            self._watch.before_reduce = self._tell_loss
        self._session = Session(
            bundle, plan, role, stream, self._stage, grid, transport, own, self._device,
            self._tracer, self._watch.before, self._op_times,
        )  # fmt: skip
        copied = self._copy_state(order, store, generation)
        self._teach_and_learn(order, generation, bundle.stages)
        self._stage.know(order.sums)
        self.link.forget_steps(step)
        self._pulse.is_up = True
        size = copies.state_bytes(self._stage)
        self.link.say(Began(generation, size, copied))

    def _meet(
        self, options: WorkerOptions, store: dist.Store, grid: Grid, stream: Sequence[Instruction]
    ) -> GuardedTransport:
        """The group of this generation; an order to leave breaks it off, wherever it is waited for."""
        sockets = self._break_off_too()
        with making_group(sockets):
            inner = guarded(lambda: connect(options, store, grid, stream), self._turn)
        transport = GuardedTransport(inner, self._op_times.waits)

        def break_off() -> None:
            sockets.break_off()
            transport.abort()

        self.link.on_leave = break_off
        return transport

    def _copy_state(self, order: Go, store: dist.Store, generation: int) -> Copied | None:
        """What was received; None if there was no need."""
        assert self._stage is not None
        patience, step = timedelta(seconds=self._worker.timeout), order.step
        if order.copy_to or order.copy_from is not None:
            self._break_off_too()
        state = self._stage
        for pipeline, stage in order.copy_to:
            name = f"g{generation}/state/{pipeline}:{stage}/{self._part}"
            harm = partial(self._harm.at, "give", step)
            guarded(partial(copies.send, state, store, name, patience, harm), self._turn)
        if order.copy_from is None:
            return None
        name = f"g{generation}/state/{self._place[0]}:{self._place[1]}/{self._part}"
        harm = partial(self._harm.at, "take", step)
        began = time.perf_counter()
        state.is_whole = False
        # What is waited for may be left to another thread, what is done with it may not.
        data = guarded(partial(copies.receive_bytes, store, name, patience, harm), self._turn)
        copies.unpack(state, data)
        return Copied(data.numel(), time.perf_counter() - began)

    def _teach_and_learn(self, order: Go, generation: int, stages: int) -> None:
        """State that travels while everybody trains, from here or to here."""
        assert self._stage is not None
        if not order.joiners and order.donor is None:
            return
        self._break_off_too()
        # A connection of its own: whoever waits for something at the store keeps others from asking.
        store: Any = RemoteStore(self._connect())
        patience, step = timedelta(seconds=self._worker.timeout), order.step
        if order.joiners:
            names = [f"g{generation}/lesson/{p}:{s}/{self._part}" for p, s in order.joiners]
            for name in names:
                store.set(f"{name}/progress", json.dumps(self._stage.stepper.state_dict()))
            Lesson(self._stage, store, names, patience, partial(self._harm.at, "give", step))
        if order.donor is not None:
            name = f"g{generation}/lesson/{self._place[0]}:{self._place[1]}/{self._part}"
            progress = guarded(partial(store.get, f"{name}/progress"), self._turn)
            self._learning = Learning(self._stage.stepper, json.loads(progress))
            harm = partial(self._harm.at, "take", step)
            place = (stages, self._device, store, name)
            self._pupil = Pupil(self._stage, *place, patience, harm)

    def _catch_up(self, generation: int) -> None:
        """Between two steps, if what was learned for has arrived."""
        if self._learning is None or self._pupil is None:
            return
        if self._pupil.error is not None:
            raise PeerError(self._pupil.error)
        if self._pupil.state is None:
            return
        assert self._stage is not None
        state, learning = self._pupil.state, self._learning
        self._learning = self._pupil = None
        learning.catch_up(self._stage.module, state)
        self._stage.buffers.forget()
        self._stage.is_whole, self._stage.is_fresh = True, False
        self.link.say(CaughtUp(generation))

    def _break_off_too(self) -> GroupSockets:
        """An order to leave also breaks off what is opened from now on, and who is waited for."""
        sockets, before = GroupSockets(), self.link.on_leave
        self._sockets.append(sockets)

        def break_off() -> None:
            sockets.break_off()
            call_off()
            if before is not None:
                before()

        self.link.on_leave = break_off
        self._go_on_or_leave()
        return sockets

    def _group_sockets(self) -> dict[int, int]:
        """Of the group of today, for another thread to look at."""
        found: dict[int, int] = {}
        for sockets in list(self._sockets):
            found |= sockets.opened()
        return found

    def _go_on_or_leave(self) -> None:
        """An order to leave may have come before anybody could have been broken off."""
        if self.link.asked > self._generation:
            raise Interrupted

    def _steps(self, step: int, generation: int) -> End | None:
        session = self._session
        assert session is not None
        while True:
            self._go_on_or_leave()
            self._catch_up(generation)
            # Told before it is looked where to stop, so that nobody believes in a stop that was passed.
            self.link.step = step
            assert self.link.hold_at is not None
            if step >= self.link.hold_at:
                order = self._stop(session, step, generation)
                if order is not None:
                    return order
                continue
            self._watch.begin(step, is_learning=self._learning is not None)
            self._unsaid = step, time.perf_counter()
            report = session.run(step)
            self._unsaid = None
            self.link.say(StepDone(*report, times=self._op_times.take()))
            step += 1

    def _stop(self, session: Session, step: int, generation: int) -> End | None:
        """Wait between two steps; the order that ended the job, or None to go on."""
        self._harm.at("settle", step)
        session.settle()
        while True:
            # Said again after every order that is none to go on: it may come from a coordinator that is new.
            self.link.say(AtBoundary(step))
            self._go_on_or_leave()
            order = self._order()
            if isinstance(order, End):
                return order
            if isinstance(order, TakeCheckpoint):
                session.settle()
            if isinstance(order, Leave):
                self._close()
                self._leave(order.generation)
                raise Interrupted
            if self.link.hold_at is not None and self.link.hold_at > step:
                return None

    def _leave(self, generation: int) -> None:
        """Out of the group, whoever waits for this process; then say what it holds."""
        self._close()
        self._harm.at("leave", self.link.step)
        report = Report(0, is_fresh=True) if self._stage is None else self._stage.report()
        self.link.say(LeftGroup(generation, report))

    def _close(self, *, is_stuck: bool = False) -> None:
        """Out of the group, or just leave it alone if a thread is stuck in it."""
        self.link.on_leave = None
        for sockets in self._sockets:
            sockets.break_off()
            sockets.retire()
        self._sockets.clear()
        self._tell_made_step()
        if self._learning is not None:
            self._learning.give_up()
            self._learning = self._pupil = None
        if self._group is not None:
            self._group.behind = None
        session, self._session = self._session, None
        if session is not None and is_stuck:
            session.drop()
            self._left_behind.append(session)
        elif session is not None:
            session.close()
        del session
        # Groups go when nothing refers to them, and others wait for that.
        gc.collect()

    def _tell_loss(self) -> None:
        """Before anybody can make the step, so that its loss is known whoever dies."""
        if self._session is not None:
            self.link.say(LossShare(self.link.step, self._session.handlers.loss))

    def _tell_made_step(self) -> None:
        """A step that was broken off behind its optimizer counts as any other."""
        unsaid, self._unsaid = self._unsaid, None
        if unsaid is None or self._session is None or self._stage is None:
            return
        step, began = unsaid
        if self._stage.applied == step + 1:
            seconds = time.perf_counter() - began
            loss = self._session.handlers.loss
            self.link.say(StepDone(step, loss, seconds, repeated=0, times={}))

    def _before_harm(self, fault: Fault) -> None:
        if fault.kind.removesuffix("?") not in UNSEEN:
            self._pulse.harmed()
        self.link.say(FaultInjected(fault))

    def _order(self) -> ToWorker:
        """The next one; whoever waits for it does not hang."""
        self._pulse.is_waiting = True
        try:
            order = self.link.order()
            assert order is not None
            return order
        finally:
            self._pulse.is_waiting = False

    def _end(self, order: End) -> int:
        stage = self._stage
        if order.ok:
            if self._options.save is not None and stage is not None and stage.is_part_of_run:
                save_state(Path(self._options.save), self._place, self._worker, stage)
            if self._tracer is not None and self._part == 0:
                self.link.say(Trace(tuple(self._tracer.events)))
        self.link.say(Done())
        self._pulse.end()
        return 0 if order.ok else 1

    def _build(self, stage: int, group: Any) -> Stage:
        built = Stage(
            self._program,
            self._bundles[0],
            stage,
            self._worker.seed,
            self._device,
            part=self._part,
            group=group,
        )
        built.on_settled = partial(self._checkpoints.write_if_due, built)
        return built

    def _bundle(self, number: int) -> Bundle:
        if number not in self._bundles:
            self.link.say(BundleRequest(number))
            while not isinstance(order := self._order(), BundleData) or order.number != number:
                if isinstance(order, Leave):
                    self._leave(order.generation)
                    raise Interrupted
            self._bundles[number] = Bundle.parse(order.data)
        return self._bundles[number]

    def _connect(self) -> Channel:
        return Channel(self._options.host, self._options.port, self._options.token)

    def _hello(self) -> Join:
        link: Link | None = getattr(self, "link", None)
        return Join(
            Member(self._place, self._part),
            pid=process_number(self._options.node, os.getpid()),
            generation=self._generation,
            asked=0 if link is None else link.asked,
            is_training=self._session is not None,
        )


def save_state(folder: Path, place: Worker, options: WorkerOptions, stage: Stage) -> None:
    """The parameters of a worker, for whoever wants to look at them."""
    name = f"worker-{place[0]}-{place[1]}-{options.part}.pt"
    torch.save({"options": json.dumps(asdict(options)), "model": stage.module.state_dict()}, folder / name)
