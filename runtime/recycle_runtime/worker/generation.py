"""One generation, as a worker process sees it: it meets the other workers, trains with them, and leaves."""

import json
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from recycle_runtime import logs
from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.evaluation import EvaluationData
from recycle_runtime.execution.hooks import Hooks, Moment
from recycle_runtime.execution.session import Role
from recycle_runtime.execution.steps import OwnersLacking
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.plan.plan_book import stream_of
from recycle_runtime.plan.work import work_shares
from recycle_runtime.plan.worker_ids import Worker, worker_text, workers_in
from recycle_runtime.protocol.messages.generations import CaughtUp, Copied, Go, ShardsHeld
from recycle_runtime.protocol.messages.scripts import InScript
from recycle_runtime.protocol.messages.steps import (
    FirstGradients,
    LossShare,
    NotFinite,
    ShardOwners,
    StepDone,
)
from recycle_runtime.protocol.surroundings import Surroundings
from recycle_runtime.state.image import packed
from recycle_runtime.state.layer_state import Clones, copied_state, states_of
from recycle_runtime.transport.guarded import guarded_wait
from recycle_runtime.transport.interface import grid_of
from recycle_runtime.worker.engine import Engine, MeetingPlace, TrainingSession
from recycle_runtime.worker.heartbeat import HeartbeatWriter
from recycle_runtime.worker.held_chunks import HeldChunks
from recycle_runtime.worker.joiner import Joiner
from recycle_runtime.worker.link import Link
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.state_stream import Outgoing, image_of, load_sent, states_in
from recycle_runtime.worker.state_transfer import Meet, largest_of, receive_bytes, send_bytes
from recycle_runtime.worker.takeover import ActiveThread
from recycle_runtime.worker.warm_up import inputs_of

_log = logging.getLogger(__name__)
_SAY_EVERY = 5.0


def _never() -> bool:
    return False


class Interrupted(Exception):  # noqa: N818
    """The coordinator wants all workers to leave the group."""


@dataclass(frozen=True, slots=True)
class Equipment:
    """Objects and options that a worker process has through all its generations."""

    options: ProcessOptions
    tp_rank: int
    surroundings: Surroundings
    engine: Engine
    link: Link
    heartbeat: HeartbeatWriter
    active: ActiveThread
    hooks: Hooks


class WorkerGeneration:
    """Made when the order to go comes; `close` is the end of it, by whichever thread."""

    def __init__(
        self, equipment: Equipment, order: Go, bundle: Bundle, worker: Worker, store: MeetingPlace
    ) -> None:
        """`store` is where the group meets; it must outlive this."""
        self._equipment, self._order, self._worker, self._store = equipment, order, worker, store
        self.number = order.generation
        self.connections = equipment.engine.connections()
        grid = grid_of(bundle, workers_in(order.grid), dict(order.fewer))
        stream = stream_of(bundle, order.plan, order.role)
        self._role = Role(bundle, order.plan, order.role, stream, grid)
        self.shares = work_shares(stream, bundle.microbatches)
        """Of the work of a step."""
        self._tells_loss_at: int | None = None
        """The instruction before which this worker's share of the loss is whole, if it has one."""
        self._chunks: HeldChunks | None = None
        self._session: TrainingSession | None = None
        self._stuck_session: TrainingSession | None = None
        """One that a thread still waits in; it must not go as long as that thread does."""
        self._joiners: list[Joiner] = []
        """Of chunks whose state is on its way here."""
        self._rate: float | None = None
        """The learning rate of the step under way, where losses are computed."""
        self._said_at = equipment.surroundings.now()
        self._is_first_step = True
        self._has_told_sizes = not bundle.owners
        """Of shards: once, when all of them are where they should be, and have been stepped."""
        self._unreported: tuple[int, float] | None = None
        """The step under way that has not been reported, and when it began."""

    @property
    def is_training(self) -> bool:
        return self._session is not None

    @property
    def tells_steps(self) -> bool:
        """True if this process is the one that says what became of steps."""
        role, last = self._role, len(self._role.bundle.chunk_stages) - 1
        return self._equipment.tp_rank == 0 and role.grid.holders(last)[0] == role.worker

    @property
    def speaks_for_stage(self) -> bool:
        """True if this process is the first of those that hold the same chunks."""
        role, stage = self._role, self._role.worker[1]
        first = next(worker for worker in role.grid.workers if worker[1] == stage)
        return self._equipment.tp_rank == 0 and first == role.worker

    def not_finite(self, step: int) -> tuple[NotFinite, ...]:
        """Non-finite values (inf or NaN) of a step on this worker."""
        return () if self._session is None else self._session.not_finite(step)

    def go_on_or_leave(self) -> None:
        """An order to leave may have come before anything could have been broken off."""
        if self._equipment.link.asked > self.number:
            raise Interrupted

    async def meet(self) -> Any:
        """The group; an order to leave breaks it off, wherever it is waited for."""
        equipment, engine = self._equipment, self._equipment.engine
        self._at("meet")
        equipment.link.on_leave = self.connections.break_off
        with self.connections.opening():
            self.go_on_or_leave()
            meeting = engine.meet(self._store, self.number, self._role)
            inner = await guarded_wait(meeting, equipment.active)
        transport = engine.guarded(inner, equipment.active)
        self.connections.use(transport)
        equipment.heartbeat.device_waits = lambda: transport.waits_on_device
        return transport

    async def begin(self, chunks: HeldChunks, transport: Any) -> Copied | None:
        """Be ready for the first step, with the state of another if need be; what was received for that."""
        self._chunks = chunks
        if (last := chunks.last) is not None:
            # Before any worker can make the step, so that its loss is known whichever fails.
            self._tells_loss_at = next(
                at
                for at, each in enumerate(self._role.stream)
                if each.opcode is Opcode.REDUCE and each.chunk == last.number
            )
        self._session = self._equipment.engine.session(
            self._role, chunks, transport, self._store, self.number, self._before_instruction
        )
        copied = await self._copy_state(chunks)
        await self._give_and_join(chunks)
        await self._agree()
        logs.note(generation=self.number, step=self._order.step)
        _log.info(
            "joined generation %d as %s under plan %d of bundle %d, %d workers",
            self.number, worker_text(self._role.worker), self._order.plan, self._order.bundle,
            len(self._role.grid.workers),
        )  # fmt: skip
        return copied

    async def _agree(self) -> None:
        """Agree on the owners of shards of optimizer state."""
        assert self._session is not None
        self.go_on_or_leave()
        with self._unless_asked_to_leave():
            await self._session.agree(self._tell_owners, self.go_on_or_leave)

    @contextmanager
    def _unless_asked_to_leave(self) -> Generator[None]:
        """An error inside is a reason to leave if that is asked for: what was read from a device may be what
        an abort has left there."""
        try:
            yield
        except RuntimeError:
            self.go_on_or_leave()
            raise

    def _tell_owners(self, lack: OwnersLacking | None) -> None:
        assert self._chunks is not None
        self._equipment.link.say(ShardsHeld(self.number, self._chunks.shards))
        if lack is not None and self.speaks_for_stage:
            self._equipment.link.say(ShardOwners(self.number, **lack._asdict()))

    async def run(self, step: int) -> None:
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
        self._unreported = step, equipment.surroundings.now()
        # Nothing is drawn ahead for a step that may not come.
        report = await session.run(step, equipment.link.hold_at)
        # What was read from a device may be what an abort has left there.
        self.go_on_or_leave()
        equipment.heartbeat.is_first = False
        self._unreported = None
        if self._is_first_step and self.speaks_for_stage:
            # Before the step counts: a job may have no other.
            equipment.link.say(FirstGradients(step, session.gradients(step)))
        self._is_first_step = False
        done = report._asdict()
        assert self._chunks is not None
        done |= {**session.counts._asdict(), "rate": self._rate, "corrections": self._chunks.corrections}
        equipment.link.say(StepDone(**done, times=equipment.engine.take_times()))
        if not self._has_told_sizes and self._chunks.are_shared_out:
            self._has_told_sizes = True
            equipment.link.say(ShardsHeld(self.number, self._chunks.shards, self._chunks.shard_sizes))

    def can_halve(self, data: MicroBatches) -> bool | None:
        """True if plans that split micro-batches in two are of use, as far as is known before the first
        step; None from a worker that loads nothing."""
        assert self._session is not None
        loads = self._session.loads
        return data.can_halve(self._order.step, loads[0]) if loads else None

    async def evaluate(self, step: int, data: EvaluationData) -> float | None:
        """Before this step; what this worker adds to the sum of losses."""
        assert self._session is not None
        self._equipment.heartbeat.step = self._equipment.link.step = step
        self._equipment.hooks.at("evaluate", step)
        return await self._session.evaluate(data, self._before_forward)

    async def settle(self) -> None:
        """Nothing of the last step is open any more."""
        assert self._session is not None
        with self._unless_asked_to_leave():
            await self._session.settle()
        # What was waited for may be what an abort has left there.
        self.go_on_or_leave()

    async def catch_up(self) -> None:
        """Between two steps, if the state that this process waits for has arrived."""
        if self._joiners:
            assert self._session is not None
            with self._unless_asked_to_leave():
                await self._session.arrive()
        waiting = [joiner for joiner in self._joiners if not joiner.finish_if_ready()]
        are_done, self._joiners = bool(self._joiners) and not waiting, waiting
        if are_done:
            _log.info("caught up with the peers")
            self._equipment.link.say(CaughtUp(self.number))

    def close(self, *, is_stuck: bool = False) -> None:
        """Out of the group, or just leave it alone if a thread is stuck in it."""
        self._equipment.link.on_leave = None
        self._equipment.heartbeat.device_waits = _never
        self.connections.close()
        if self._session is not None:
            self._session.take_back_broken()
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
        self._equipment.engine.let_go()

    def _before_instruction(self, position: int) -> None:
        self.go_on_or_leave()
        equipment = self._equipment
        equipment.heartbeat.position = position
        if position == self._tells_loss_at:
            assert self._session is not None
            assert self._chunks is not None
            self._rate = self._chunks.rate
            share = LossShare(equipment.link.step, self._session.loss, self._rate, self._chunks.corrections)
            self.go_on_or_leave()
            equipment.link.say(share)
        equipment.hooks.before_instruction(position)

    def _before_forward(self, position: int) -> None:
        """Of an evaluation, which may take longer than any step: the coordinator hears that it goes on."""
        self._equipment.heartbeat.position = position
        self.go_on_slowly()

    def go_on_slowly(self) -> None:
        """In what may take longer than any step, again and again."""
        self.go_on_or_leave()
        now = self._equipment.surroundings.now()
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
            seconds = self._equipment.surroundings.now() - began
            done = StepDone(
                step,
                self._session.loss,
                seconds,
                repeated=0,
                times={},
                rate=self._rate,
                corrections=self._chunks.corrections,
            )
            self._equipment.link.say(done)

    async def _copy_state(self, chunks: HeldChunks) -> Copied | None:
        """State that travels before training goes on; what was received, None if there was no need."""
        equipment, order = self._equipment, self._order
        if not order.copy_to and order.copy_from is None:
            return None
        self.connections.opens_more()
        self.go_on_or_leave()
        for held in chunks.of_ranks if order.copy_to else ():
            data = packed("state", list(states_of(held.values())))
            for worker in order.copy_to:
                name = self._name("state", worker, held.setting.tp_rank)
                sending = send_bytes(data, self._meet_at(self._store), name, self._hook("give"))
                await guarded_wait(sending, equipment.active)
        if order.copy_from is None:
            return None
        began, size = equipment.surroundings.now(), 0
        chunks.expect_state()
        largest = largest_of(chunk.module for chunk in chunks.values())
        for held in chunks.of_ranks:
            name = self._name("state", self._worker, held.setting.tp_rank)
            receiving = receive_bytes(self._meet_at(self._store), name, largest, self._hook("take"))
            # What is waited for may be left to another thread, what is done with it may not.
            data = await guarded_wait(receiving, equipment.active)
            image, size = image_of(data), size + data.numel()
            for chunk in held.values():
                load_sent(chunk, states_in(image, chunk))
        received = Copied(size, equipment.surroundings.now() - began)
        _log.info("received %d bytes of state in %.3f s", received.size, received.seconds)
        return received

    async def _give_and_join(self, chunks: HeldChunks) -> None:
        """State that travels during training, from here or to here."""
        order = self._order
        if not order.joiners and order.donor is None:
            return
        self.connections.opens_more()
        self.go_on_or_leave()
        if order.joiners:
            await self._give(chunks)
            _log.info("gives its state to %s", ", ".join(map(worker_text, order.joiners)))
        if order.donor is not None:
            for chunk in chunks.all:
                self._joiners.append(await self._join(chunk))
            _log.info("waits for the state of %s", worker_text(order.donor))

    async def _give(self, chunks: HeldChunks) -> None:
        equipment = self._equipment
        for chunk in chunks.all:
            states, note = copied_state([chunk], Clones()), {"inputs": inputs_of(chunk)}
            for worker in self._order.joiners:
                store, name = await self._another_store(), self._name("joiner", worker, chunk.tp_rank, chunk)
                await store.set(f"{name}/progress", json.dumps(chunk.stepper.state_dict()))
                outgoing = Outgoing(equipment.surroundings, self._meet_at(store), name, self._hook("give"))
                outgoing.put("state", states, note)
                outgoing.end()

    async def _join(self, chunk: Chunk) -> Joiner:
        equipment, store = self._equipment, await self._another_store()
        name = self._name("joiner", self._worker, chunk.tp_rank, chunk)
        progress = await guarded_wait(store.get(f"{name}/progress"), equipment.active)
        joiner = Joiner(chunk, json.loads(progress), equipment.engine.device)
        joiner.begin(equipment.surroundings, self._meet_at(store), name, self._hook("take"))
        return joiner

    async def _another_store(self) -> MeetingPlace:
        """A connection of its own: a wait at the store blocks other requests on its connection."""
        return await self._equipment.engine.meeting_place()

    def _meet_at(self, store: MeetingPlace) -> Meet:
        """Under a name, with one other process."""
        return partial(self._equipment.engine.pair, store)

    def _name(self, what: str, worker: Worker, tp_rank: int, chunk: Chunk | None = None) -> str:
        """Name in the store where the two ends of a transfer meet, of one chunk or of all that a rank has."""
        name = f"g{self.number}/{what}/{worker_text(worker)}/{tp_rank}"
        return name if chunk is None else f"{name}/{chunk.number}"

    def _at(self, moment: Moment) -> None:
        self._equipment.hooks.at(moment, self._order.step)

    def _hook(self, moment: Moment) -> Callable[[], None]:
        return partial(self._at, moment)
