"""A worker process's line to the coordinator: a thread listens, the main thread gets orders.

Orders wait in a queue until the main thread asks. An order to leave the group has to reach a main thread that
is in the middle of a step, so it also changes a number that is looked at before every instruction, and breaks
off what the main thread may be waiting for, until it waits no more: a group that is being made opens
connections one after the other. When the coordinator is gone the thread knocks until it is back, and says
again what may not have been heard.
"""

import queue
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from recycle_runtime.protocol.codec import ProtocolError, WireError
from recycle_runtime.protocol.messages.checkpoints import CheckpointMissed, CheckpointOrder, TakeCheckpoint
from recycle_runtime.protocol.messages.generations import (
    End,
    Go,
    Hold,
    Holding,
    Join,
    Leave,
    ShardsHeld,
)
from recycle_runtime.protocol.messages.layer_moves import DropLayers, MoveLayers
from recycle_runtime.protocol.messages.neighbour_copies import GiveCopy, HoldCopy, KeepCopy
from recycle_runtime.protocol.messages.scripts import ToScript
from recycle_runtime.protocol.messages.steps import MOST_SAID_AGAIN, Recall, SaidAgain, Settled
from recycle_runtime.protocol.messages.wire import FromWorker, Message, ToWorker
from recycle_runtime.protocol.surroundings import Line, Machine, Queue, Surroundings
from recycle_runtime.worker.requests import Requests

_KNOCK_EVERY = 0.1
_FOLLOW_EVERY = 2.0
_BREAK_EVERY = 0.1
_STUCK_SECONDS = 2.0
"""Seconds after which a thread that has not left broken connections was not woken by them."""
_NEVER_REACHED = 1 << 62


class CoordinatorGoneError(RuntimeError):
    """The coordinator does not answer any more."""


class Wake:
    """No order: what wakes a thread that waits for one."""


class Link:
    """Messages out at once, orders in as they come."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Line]],
        hello: Callable[["Link"], Join],
        patience: float,
        surroundings: Surroundings | None = None,
        address: Callable[[], object] | None = None,
    ) -> None:
        """`hello` is what to say first on every connection; nothing is said before `open`. `address` is where
        the coordinator is, if that may change while the connection stands."""
        self._connect, self._hello, self._patience = connect, hello, patience
        self._around = surroundings or Machine()
        self._address, self._where = address, None if address is None else address()
        self.asked = 0
        """The newest generation; a worker in an older one has to leave it."""
        self.hold_at: int | None = None
        """The step before which to stop."""
        self.checkpoint: CheckpointOrder | None = None
        """The checkpoint to write a shard of."""
        self.copy: KeepCopy | None = None
        """The copy in memory to keep one's shards of."""
        self.copies: deque[GiveCopy | HoldCopy] = deque()
        """Copies to give to others and to hold for them; whoever does it takes them away."""
        self.layers: MoveLayers | DropLayers | None = None
        """Order about layers for another cut; whoever carries it out removes it."""
        self.on_leave: Callable[[], None] | None = None
        """Ends what the main thread may be waiting for; called by other threads, until it is taken away."""
        self.on_stuck: Callable[[float], Awaitable[None]] | None = None
        """If that does not help: called with the seconds it has not, again and again, by another thread."""
        self.generation = 0
        """The one that the main thread trains in."""
        self.step = 0
        """The step under way, for the coordinator to know."""
        self.requests: Requests | None = None
        """Of the script, if this process runs one."""
        self._orders: Queue[ToWorker | Wake | None] = self._around.queue()
        self._has_wake = False
        """True if one is on its way."""
        self._steps: deque[SaidAgain] = deque(maxlen=MOST_SAID_AGAIN)
        self._held: ShardsHeld | None = None
        """As it was said last."""
        self._line: Line | None = None
        self._is_closed = False
        self.is_away = False
        """True if the coordinator is being looked for: what it would say is not heard."""
        self.lines = 0
        """Number of connections so far; a coordinator that came back has a new one."""

    async def open(self) -> None:
        """Say who this is, and listen from now on; WireError if there is no coordinator for long."""
        line = await self._found()
        self._around.start(lambda: self._listen(line), "link")
        if self._address is not None:
            self._around.start(self._follow, "address")

    def say(self, message: FromWorker) -> None:
        """To the coordinator, or dropped while it is away: it asks again when it is back."""
        if isinstance(message, SaidAgain):
            self._steps.append(message)
        elif isinstance(message, ShardsHeld):
            self._held = message
        self._send(message)

    def _send(self, message: FromWorker) -> None:
        with suppress(WireError):
            if self._line is not None:
                self._line.send(message)

    def wake(self) -> None:
        """End a wait for an order, as if one had come that concerns nobody."""
        if not self._has_wake:
            self._has_wake = True
            self._orders.put(Wake())

    async def order(self, seconds: float | None = None) -> ToWorker | Wake | None:
        """The next order; None if none came in time. CoordinatorGoneError when none will come."""
        try:
            found = await self._orders.get(seconds)
        except queue.Empty:
            return None
        if isinstance(found, Wake):
            # Cleared before it is acted on: whoever wakes has changed something before.
            self._has_wake = False
        if found is None:
            raise CoordinatorGoneError("the coordinator is gone")
        return found

    def forget_steps(self, first: int) -> None:
        """Steps from this one on are made again."""
        kept = [message for message in self._steps if message.step < first]
        self._steps = deque(kept, maxlen=MOST_SAID_AGAIN)

    def close(self) -> None:
        """For good: whoever waits for an order hears that none will come."""
        self._is_closed = True
        if self._line is not None:
            self._line.close()

    async def _listen(self, line: Line) -> None:
        """Whatever ends it: a process that hears nothing any more is of no use."""
        try:
            await self._hear(line)
        finally:
            self.asked = _NEVER_REACHED
            self._orders.put(None)
            self._break_off()

    def _break_off(self) -> None:
        """Now, and until the main thread has left."""
        if (on_leave := self.on_leave) is not None:
            on_leave()
            self._around.start(self._break_off_again, "leave")

    async def _break_off_again(self) -> None:
        began = self._around.now()
        await self._around.sleep(_BREAK_EVERY)
        while (on_leave := self.on_leave) is not None and self.generation < self.asked:
            on_leave()
            await self._around.sleep(_BREAK_EVERY)
            if self.on_stuck is not None and self._around.now() - began > _STUCK_SECONDS:
                await self.on_stuck(_STUCK_SECONDS)

    async def _hear(self, line: Line) -> None:
        said = None
        while True:
            try:
                said = await line.receive()
                self._take(said)
            except WireError:
                if said == End(ok=False):
                    # Another process has its place, or the job is over: nobody expects it back.
                    return
                if said is None:
                    # Hung up on at once: it may have come too early.
                    await self._around.sleep(_KNOCK_EVERY)
                try:
                    line, said = await self._found(), None
                except WireError:
                    return

    def _take(self, message: Message) -> None:
        """An order has come: what other threads have to know of it at once, then the rest to the main one."""
        if not isinstance(message, ToWorker):
            raise ProtocolError(f"{type(message).__name__} is no order to a worker")
        if isinstance(message, Recall):
            self._say_again(message.step)
        elif isinstance(message, ToScript):
            if self.requests is not None:
                self.requests.take(message)
        else:
            self._take_order(message)

    def _say_again(self, step: int) -> None:
        if self._held is not None:
            self._send(self._held)
        for message in list(self._steps):
            # What became of a step is known one step later.
            if message.step >= (step - 1 if isinstance(message, Settled) else step):
                self._send(message)
        if self.requests is not None:
            self.requests.recall()

    def _take_order(self, message: ToWorker) -> None:
        match message:
            case Hold(step, request):
                self.hold_at = step
                self.say(Holding(request, self.step))
            case TakeCheckpoint(step, name):
                self.checkpoint = CheckpointOrder(step, name)
            case KeepCopy():
                self.copy = message
            case GiveCopy() | HoldCopy():
                self.copies.append(message)
            case MoveLayers() | DropLayers():
                self.layers = message
            case Go():
                if self.checkpoint is not None and self.checkpoint != message.checkpoint:
                    # It was told too late to be written in the generation that is over.
                    self.say(CheckpointMissed(self.checkpoint.name))
                self.hold_at, self.checkpoint = message.until, message.checkpoint
                self.copy = None
                self.copies.clear()
            case Leave(generation):
                self.asked = max(self.asked, generation)
            case _:
                pass
        self._orders.put(message)
        if isinstance(message, Leave):
            self._break_off()

    async def _follow(self) -> None:
        """A coordinator that was replaced may be paused: its connections stand, and nothing comes of them."""
        assert self._address is not None
        while not self._is_closed:
            await self._around.sleep(_FOLLOW_EVERY)
            if self._address() != self._where and self._line is not None:
                self._line.close()

    async def _found(self) -> Line:
        """A line to the coordinator, which may be on its way back."""
        deadline = self._around.now() + self._patience
        self.is_away = True
        while True:
            if self._address is not None:
                self._where = self._address()
            if self._is_closed:
                raise WireError("closed")
            try:
                line = self._line = await self._connect()
                if self._is_closed:
                    # By another thread, which has closed the line before this one.
                    line.close()
                    continue
                line.send(self._hello(self))
                self.lines += 1
                self.is_away = False
                return line
            except WireError:
                if self._around.now() >= deadline:
                    raise
                await self._around.sleep(_KNOCK_EVERY)
