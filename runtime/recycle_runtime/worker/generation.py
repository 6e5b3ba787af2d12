"""One generation, as a worker process sees it: it meets the other workers, trains with them, and leaves."""

import gc
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime import logs
from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.evaluation import EvaluationData
from recycle_runtime.execution.hooks import Hooks, Moment
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.execution.session import Role, Session
from recycle_runtime.execution.tracing import Tracer
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.plan.plan_book import stream_of
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.messages import (
    CaughtUp,
    Copied,
    Go,
    InScript,
    LossShare,
    NotFinite,
    StepDone,
)
from recycle_runtime.protocol.remote_store import RemoteStore
from recycle_runtime.transport.choose import connect
from recycle_runtime.transport.guarded import GuardedTransport, guarded
from recycle_runtime.transport.interface import grid_of
from recycle_runtime.worker.connections import GroupConnections
from recycle_runtime.worker.donor import Donor
from recycle_runtime.worker.heartbeat import Heartbeat
from recycle_runtime.worker.held_chunks import HeldChunks
from recycle_runtime.worker.joiner import CatchUp, Joiner, StateReceiver
from recycle_runtime.worker.link import Link
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.state_transfer import (
    largest_of,
    pack,
    receive_bytes,
    send_bytes,
    unpack,
)
from recycle_runtime.worker.takeover import ActiveThread

_log = logging.getLogger(__name__)
_CPU = torch.device("cpu")
_SAY_EVERY = 5.0


class Interrupted(Exception):  # noqa: N818
    """The coordinator wants all workers to leave the group."""


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a worker process has through all its generations."""

    options: ProcessOptions
    tp_rank: int
    device: torch.device
    link: Link
    heartbeat: Heartbeat
    active: ActiveThread
    op_times: OpTimes
    hooks: Hooks
    tracer: Tracer | None

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.options.worker.timeout)

    def connect(self) -> Channel:
        """A connection to the coordinator."""
        return Channel(self.options.host, self.options.port, self.options.token)


class Generation:
    """Made when the order to go comes; `close` is the end of it, by whichever thread."""

    def __init__(self, equipment: Equipment, order: Go, bundle: Bundle, worker: Worker, store: Any) -> None:
        """`store` is where the group meets; it must outlive this."""
        self._equipment, self._order, self._worker, self._store = equipment, order, worker, store
        self.number = order.generation
        self.connections = GroupConnections()
        grid = grid_of(bundle, order.grid)
        stream = stream_of(bundle, order.plan, order.role)
        self._role = Role(bundle, order.plan, order.role, stream, grid)
        self._own_store: Any = dist.PrefixStore(f"g{self.number}", store)
        self._tells_loss_at: int | None = None
        """The instruction before which this worker's share of the loss is whole, if it has one."""
        self._chunks: HeldChunks | None = None
        self._session: Session | None = None
        self._stuck_session: Session | None = None
        """One that a thread still waits in; it must not go as long as that thread does."""
        self._joiners: list[Joiner] = []
        """Of chunks whose state is on its way here."""
        self._rate: float | None = None
        """The learning rate of the step under way, where losses are computed."""
        self._said_at = time.monotonic()
        self._unreported: tuple[int, float] | None = None
        """The step under way that has not been told, and when it began."""

    @property
    def is_training(self) -> bool:
        return self._session is not None

    @property
    def tells_steps(self) -> bool:
        """Whether this process is the one that says what became of steps."""
        role, last = self._role, len(self._role.bundle.chunk_stages) - 1
        return self._equipment.tp_rank == 0 and role.grid.holders(last)[0] == role.worker

    def not_finite(self, step: int) -> tuple[NotFinite, ...]:
        """What of a step was not finite here."""
        return () if self._session is None else self._session.handlers.finiteness.found(step)

    def go_on_or_leave(self) -> None:
        """An order to leave may have come before anything could have been broken off."""
        if self._equipment.link.asked > self.number:
            raise Interrupted

    def meet(self) -> GuardedTransport:
        """The group; an order to leave breaks it off, wherever it is waited for."""
        equipment, role = self._equipment, self._role
        self._at("meet")
        equipment.link.on_leave = self.connections.break_off
        with self.connections.opening():
            self.go_on_or_leave()
            inner = guarded(
                lambda: connect(
                    self._own_store,
                    role.grid,
                    role.worker,
                    equipment.tp_rank,
                    role.stream,
                    equipment.device,
                    equipment.timeout,
                ),
                equipment.active,
            )
        transport = GuardedTransport(inner, equipment.active)
        self.connections.use(transport)
        return transport

    def begin(self, chunks: HeldChunks, transport: GuardedTransport) -> Copied | None:
        """Be ready for the first step, with the state of another if need be; what was received for that."""
        equipment = self._equipment
        self._chunks = chunks
        if (last := chunks.last) is not None:
            # Before any worker can make the step, so that its loss is known whichever fails.
            self._tells_loss_at = next(
                at
                for at, each in enumerate(self._role.stream)
                if each.opcode is Opcode.REDUCE and each.chunk == last.number
            )
        self._session = Session(
            self._role,
            chunks,
            transport,
            self._own_store,
            equipment.device,
            equipment.tracer,
            self._before_instruction,
            equipment.op_times,
        )
        copied = self._copy_state(chunks)
        self._give_and_join(chunks)
        logs.note(generation=self.number, step=self._order.step)
        _log.info(
            "joined generation %d as %s under plan %d of bundle %d, %d workers",
            self.number, worker_text(self._role.worker), self._order.plan, self._order.bundle,
            len(self._order.grid),
        )  # fmt: skip
        return copied

    def run(self, step: int) -> None:
        """One step, and what there is to say about it."""
        equipment, session = self._equipment, self._session
        assert session is not None
        equipment.heartbeat.step = equipment.link.step = step
        equipment.hooks.begin_step(
            step,
            len(self._role.stream),
            is_spared=self._order.is_spared,
            is_joining=bool(self._joiners),
        )
        # Nothing is drawn ahead for a step that may not come.
        session.data.ends_at = equipment.link.hold_at
        self._unreported = step, time.perf_counter()
        report = session.run(step)
        equipment.heartbeat.is_first = False
        self._unreported = None
        done = report._asdict()
        handlers = session.handlers
        done |= {"samples": handlers.samples, "tokens": handlers.tokens, "rate": self._rate}
        equipment.link.say(StepDone(**done, times=equipment.op_times.take()))

    def can_halve(self, data: MicroBatches) -> bool | None:
        """Whether plans that split micro-batches in two are of use, as far as is known before the first
        step; None from a worker that loads nothing."""
        assert self._session is not None
        loads = self._session.loads
        return data.can_halve(self._order.step, loads[0]) if loads else None

    def evaluate(self, step: int, data: EvaluationData) -> float | None:
        """Before this step; what this worker adds to the sum of losses."""
        assert self._session is not None
        self._equipment.heartbeat.step = self._equipment.link.step = step
        self._equipment.hooks.at("evaluate", step)
        return self._session.evaluate(data, self._before_forward)

    def settle(self) -> None:
        """Nothing of the last step is open any more."""
        assert self._session is not None
        self._session.settle()

    def catch_up(self) -> None:
        """Between two steps, if the state that this process waits for has arrived."""
        waiting = [joiner for joiner in self._joiners if not joiner.finish_if_ready()]
        are_done, self._joiners = bool(self._joiners) and not waiting, waiting
        if are_done:
            _log.info("caught up with the peers")
            self._equipment.link.say(CaughtUp(self.number))

    def close(self, *, is_stuck: bool = False) -> None:
        """Out of the group, or just leave it alone if a thread is stuck in it."""
        self._equipment.link.on_leave = None
        self.connections.close()
        self._report_made_step()
        for joiner in self._joiners:
            joiner.give_up()
        self._joiners.clear()
        session, self._session = self._session, None
        if session is not None and is_stuck:
            session.drop()
            self._stuck_session = session
        elif session is not None:
            session.close()
            _log.info("left generation %d", self.number)
        del session
        # Groups go when nothing refers to them, and others wait for that.
        gc.collect()

    def _before_instruction(self, position: int) -> None:
        self.go_on_or_leave()
        equipment = self._equipment
        equipment.heartbeat.position = position
        if position == self._tells_loss_at:
            assert self._session is not None
            assert self._chunks is not None
            self._rate = self._chunks.rate
            equipment.link.say(LossShare(equipment.link.step, self._session.handlers.loss, self._rate))
        equipment.hooks.before_instruction(position)

    def _before_forward(self, position: int) -> None:
        """Of an evaluation, which may take longer than any step: the coordinator hears that it goes on."""
        self._equipment.heartbeat.position = position
        self.go_on_slowly()

    def go_on_slowly(self) -> None:
        """In what may take longer than any step, again and again."""
        self.go_on_or_leave()
        now = time.monotonic()
        if now - self._said_at > _SAY_EVERY:
            self._said_at = now
            self._equipment.link.say(InScript(self._equipment.link.step))

    def _report_made_step(self) -> None:
        """A step that was broken off behind its optimizer counts as any other."""
        unreported, self._unreported = self._unreported, None
        if unreported is None or self._session is None or self._chunks is None:
            return
        step, began = unreported
        if self._chunks.applied == step + 1:
            seconds = time.perf_counter() - began
            loss = self._session.handlers.loss
            self._equipment.link.say(StepDone(step, loss, seconds, repeated=0, times={}, rate=self._rate))

    def _copy_state(self, chunks: HeldChunks) -> Copied | None:
        """State that travels before training goes on; what was received, None if there was no need."""
        equipment, order = self._equipment, self._order
        if not order.copy_to and order.copy_from is None:
            return None
        self.connections.opens_more()
        self.go_on_or_leave()
        for worker in order.copy_to:
            name = self._name("state", worker)
            states = {
                number: {**chunk.state(), "data": chunk.data_position()} for number, chunk in chunks.items()
            }
            data = pack({"chunks": states})
            send = partial(send_bytes, data, self._store, name, equipment.timeout, self._hook("give"))
            guarded(send, equipment.active)
        if order.copy_from is None:
            return None
        began = time.perf_counter()
        chunks.expect_state()
        name = self._name("state", self._worker)
        largest = largest_of(chunk.module for chunk in chunks.values())
        receive = partial(receive_bytes, self._store, name, equipment.timeout, self._hook("take"), largest)
        # What is waited for may be left to another thread, what is done with it may not.
        data = guarded(receive, equipment.active)
        states = unpack(data, _CPU)["chunks"]
        for number, chunk in chunks.items():
            chunk.load(states[number])
            chunk.take_data_position(states[number]["data"])
        copied = Copied(data.numel(), time.perf_counter() - began)
        _log.info("received %d bytes of state in %.3f s", copied.size, copied.seconds)
        return copied

    def _give_and_join(self, chunks: HeldChunks) -> None:
        """State that travels during training, from here or to here."""
        order = self._order
        if not order.joiners and order.donor is None:
            return
        self.connections.opens_more()
        self.go_on_or_leave()
        if order.joiners:
            for chunk in chunks.values():
                self._give(chunk)
            _log.info("gives its state to %s", ", ".join(map(worker_text, order.joiners)))
        if order.donor is not None:
            for chunk in chunks.values():
                self._joiners.append(self._join(chunk))
            _log.info("waits for the state of %s", worker_text(order.donor))

    def _give(self, chunk: Chunk) -> None:
        equipment, store = self._equipment, self._another_store()
        names = [self._name("joiner", worker, chunk) for worker in self._order.joiners]
        for name in names:
            store.set(f"{name}/progress", json.dumps(chunk.stepper.state_dict()))
        Donor(chunk, store, names, equipment.timeout, self._hook("give"))

    def _join(self, chunk: Chunk) -> Joiner:
        equipment, store = self._equipment, self._another_store()
        name = self._name("joiner", self._worker, chunk)
        progress = guarded(partial(store.get, f"{name}/progress"), equipment.active)
        catch_up = CatchUp(chunk.stepper, json.loads(progress))
        receiver = StateReceiver(chunk, equipment.device, store, name, equipment.timeout, self._hook("take"))
        return Joiner(chunk, catch_up, receiver)

    def _another_store(self) -> Any:
        """A connection of its own: a wait at the store blocks other requests on its connection."""
        return RemoteStore(self._equipment.connect())

    def _name(self, what: str, worker: Worker, chunk: Chunk | None = None) -> str:
        """Where in the store the two ends of a transfer meet, of one chunk or of all that a worker has."""
        name = f"g{self.number}/{what}/{worker_text(worker)}/{self._equipment.tp_rank}"
        return name if chunk is None else f"{name}/{chunk.number}"

    def _at(self, moment: Moment) -> None:
        self._equipment.hooks.at(moment, self._order.step)

    def _hook(self, moment: Moment) -> Callable[[], None]:
        return partial(self._at, moment)
