"""What a worker process does with its life: report, train, leave, report again."""

import base64
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.agent.board import Board
from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle
from recycle_runtime.control.remote_store import RemoteStore, StoreError
from recycle_runtime.control.wire import Channel, Message, WireError
from recycle_runtime.coordinator.decision import Sums
from recycle_runtime.coordinator.plan_book import stream_of
from recycle_runtime.interpreter import StreamError
from recycle_runtime.isa import Instruction
from recycle_runtime.member import copies
from recycle_runtime.member.faults import Fault
from recycle_runtime.member.link import CoordinatorGoneError, Link
from recycle_runtime.member.pulse import Pulse
from recycle_runtime.member.watch import InstructionWatch, Interrupted
from recycle_runtime.program import Program, load_program
from recycle_runtime.session import Session
from recycle_runtime.stage import Stage
from recycle_runtime.tracing import Tracer
from recycle_runtime.transport.grid import Grid
from recycle_runtime.transport.guarded import GuardedTransport, PeerError, guarded
from recycle_runtime.transport.sockets import GroupSockets, making_group
from recycle_runtime.worker import WorkerOptions, connect, device_of

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


class MemberProcess:
    """One process, from its first report to its last."""

    def __init__(
        self, options: MemberOptions, place: Worker, part: int, pulse: Pulse, faults: list[Fault]
    ) -> None:
        self._options, self._place, self._part, self._pulse = options, place, part, pulse
        self._faults = faults
        self._worker = replace(options.worker, part=part, worker=place)
        self._stage: Stage | None = None
        self._session: Session | None = None
        self._sockets: GroupSockets | None = None
        self._generation = 0
        self.link = Link(self._connect, self._hello, _PATIENCE)

    def run(self) -> int:
        """Until the job ends; the exit status."""
        self._program: Program = load_program(self._worker.program)
        self._bundles = {0: Bundle.read(self._worker.bundle)}
        self._device = device_of(self._worker)
        self._tracer = Tracer(self._device) if self._worker.trace else None
        if self._bundles[0].tensor == 1:
            # Everything that takes long is done before anybody waits for it.
            self._stage = self._build(self._place[1], None)
        while True:
            order = self.link.order()
            assert order is not None
            kind = order["type"]
            if kind == "leave":
                self._leave(int(order["generation"]))
            elif kind == "place":
                self._place = (int(order["place"][0]), int(order["place"][1]))
                self._stage = None
            elif kind == "go" and int(order["generation"]) >= self.link.asked:
                end = self._train(order)
                if end is not None:
                    return self._end(end)
            elif kind == "end":
                return self._end(order)

    def _train(self, order: Message) -> Message | None:
        """One generation; the order that ended the job, if one did."""
        generation = int(order["generation"])
        self._generation = self._pulse.generation = generation
        try:
            self._begin(order)
            return self._steps(int(order["step"]), generation)
        except Interrupted:
            pass
        except (PeerError, StoreError, WireError) as error:
            self._broken(generation, error)
        except StreamError as error:
            if not isinstance(error.__cause__, PeerError | StoreError | Interrupted):
                raise
            if not isinstance(error.__cause__, Interrupted):
                self._broken(generation, error.__cause__)
        self._close()
        return None

    def _broken(self, generation: int, error: BaseException) -> None:
        self.link.say({"type": "broken", "generation": generation, "why": str(error)[:500]})

    def _begin(self, order: Message) -> None:
        """Stand where everybody stands, and meet the others."""
        number, generation, step = int(order["bundle"]), int(order["generation"]), int(order["step"])
        bundle = self._bundle(number)
        role = (int(order["role"][0]), int(order["role"][1]))
        store: Any = RemoteStore(self._connect())
        sums = None if order["sums"] is None else Sums(*map(float, order["sums"]))
        if order["from"] is None and self._stage is not None:
            self._stage.stand(step, sums)
        plan = int(order["plan"])
        grid = Grid(tuple((int(p), int(s)) for p, s in order["grid"]), bundle.tensor)
        stream = stream_of(bundle, plan, role)
        own: Any = dist.PrefixStore(f"g{generation}", store)
        # Groups keep only the part of a store that is not Python, and need the other too.
        self._store = store
        transport = self._meet(replace(self._worker, worker=role, plan=plan), own, grid, stream)
        if self._stage is None:
            self._stage = self._build(role[1], transport.tensor_group)
        self._watch = InstructionWatch(generation, stream, self.link, self._pulse, self._faults)
        self._session = Session(
            bundle, plan, role, stream, self._stage, grid, transport, own, self._device,
            self._tracer, self._watch.before,
        )  # fmt: skip
        self._copy_state(order, store, generation)
        self.link.forget_steps(step)
        self._pulse.is_up = True
        self.link.say({"type": "began", "generation": generation})

    def _meet(
        self, options: WorkerOptions, store: dist.Store, grid: Grid, stream: Sequence[Instruction]
    ) -> GuardedTransport:
        """The group of this generation; an order to leave breaks it off, wherever it is waited for."""
        sockets = self._sockets = GroupSockets()
        self.link.on_leave = sockets.break_off
        with making_group(sockets):
            inner = guarded(lambda: connect(options, store, grid, stream), self._pulse)
        transport = GuardedTransport(inner, self._pulse)

        def break_off() -> None:
            sockets.break_off()
            transport.abort()

        self.link.on_leave = break_off
        return transport

    def _copy_state(self, order: Message, store: dist.Store, generation: int) -> None:
        assert self._stage is not None
        patience = timedelta(seconds=self._worker.timeout)
        try:
            for pipeline, stage in order["to"]:
                name = f"g{generation}/state/{pipeline}:{stage}/{self._part}"
                copies.send(self._stage, store, name, patience)
            if order["from"] is not None:
                name = f"g{generation}/state/{self._place[0]}:{self._place[1]}/{self._part}"
                copies.receive(self._stage, store, name, patience)
        except RuntimeError as error:
            raise PeerError(str(error)) from error

    def _steps(self, step: int, generation: int) -> Message | None:
        session = self._session
        assert session is not None
        while True:
            if self.link.asked > generation:
                raise Interrupted
            assert self.link.hold_at is not None
            if step >= self.link.hold_at:
                order = self._stop(session, step, generation)
                if order is not None:
                    return order
                continue
            self._watch.begin(step)
            report = session.run(step)
            self.link.say({"type": "step", **report._asdict()})
            step += 1

    def _stop(self, session: Session, step: int, generation: int) -> Message | None:
        """Wait between two steps; the order that ended the job, or None to go on."""
        session.settle()
        self.link.say({"type": "boundary", "step": step})
        while True:
            if self.link.asked > generation:
                raise Interrupted
            order = self.link.order()
            assert order is not None
            if order["type"] == "end":
                return order
            if order["type"] == "leave":
                self._close()
                self._leave(int(order["generation"]))
                raise Interrupted
            if self.link.hold_at is not None and self.link.hold_at > step:
                return None

    def _leave(self, generation: int) -> None:
        """Out of the group, whoever waits for this process; then say what it holds."""
        self._close()
        stage = self._stage
        if stage is None:
            fields: dict[str, Any] = {
                "applied": 0 if self._generation == 0 else None,
                "is_fresh": self._generation == 0,
                "settled": None,
                "settled_steps": 0,
                "unsettled": None,
            }
        else:
            fields = stage.report()._asdict()
        self.link.say({"type": "report", "generation": generation, **fields})

    def _close(self) -> None:
        self.link.on_leave = None
        if self._sockets is not None:
            self._sockets.break_off()
            self._sockets = None
        if self._session is not None:
            self._session.close()
            self._session = None
        # Groups go when nothing refers to them, and others wait for that.
        gc.collect()

    def _end(self, order: Message) -> int:
        if order["ok"]:
            if self._options.save is not None and self._stage is not None:
                save_state(Path(self._options.save), self._place, self._worker, self._stage)
            if self._tracer is not None and self._part == 0:
                self.link.say({"type": "trace", "events": self._tracer.events})
        self.link.say({"type": "done"})
        self._pulse.end()
        return 0 if order["ok"] else 1

    def _build(self, stage: int, group: Any) -> Stage:
        return Stage(
            self._program,
            self._bundles[0],
            stage,
            self._worker.seed,
            self._device,
            part=self._part,
            group=group,
        )

    def _bundle(self, number: int) -> Bundle:
        if number not in self._bundles:
            self.link.say({"type": "bundle", "number": number})
            while (order := self.link.order()) is not None and order["type"] != "bundle":
                if order["type"] == "leave":
                    self._leave(int(order["generation"]))
                    raise Interrupted
            assert order is not None
            self._bundles[number] = Bundle.parse(base64.b64decode(order["data"]))
        return self._bundles[number]

    def _connect(self) -> Channel:
        return Channel(self._options.host, self._options.port, self._options.token)

    def _hello(self) -> Message:
        return {
            "type": "join",
            "place": list(self._place),
            "part": self._part,
            "pid": os.getpid(),
            "generation": self._generation,
            "asked": self.link.asked if self._generation else 0,
            "is_training": self._session is not None,
        }


def save_state(folder: Path, place: Worker, options: WorkerOptions, stage: Stage) -> None:
    """The parameters of a worker, for whoever wants to look at them."""
    import json

    name = f"worker-{place[0]}-{place[1]}-{options.part}.pt"
    torch.save({"options": json.dumps(asdict(options)), "model": stage.module.state_dict()}, folder / name)


def work(
    options: MemberOptions, place: Worker, part: int, line: int, faults: list[Fault], board: Board
) -> int:
    """The life of a worker process; its exit status. SIGUSR1 makes it say on stderr where it is."""
    faulthandler.register(signal.SIGUSR1)
    pulse = Pulse(board, line)
    process: MemberProcess | None = None
    step = 0
    try:
        process = MemberProcess(options, place, part, pulse, faults)
        return process.run()
    except CoordinatorGoneError:
        return 1
    except Exception as error:
        step = pulse.step
        _say_farewell(process, step, place, error)
        return 1


def _say_farewell(process: MemberProcess | None, step: int, place: Worker, error: Exception) -> None:
    known = isinstance(error, StreamError)
    why = str(error) if known else f"worker {place[0]}:{place[1]}: {type(error).__name__}: {error}"
    if process is None:
        print(f"recycle-run: {why}", file=sys.stderr)
    else:
        process.link.say({"type": "failed", "step": step, "why": why})
