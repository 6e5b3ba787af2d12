"""Traces of a run, with its waiting apart."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from recycle_runtime.execution.tracing import Event, Tracer
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.chrome_trace import chrome_trace
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.transport.interface import Arrival, PeerSum, Pending, TensorSpec


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic_ns(self) -> int:
        return self.now


class Slow:
    """A message, or a sum, that takes its time."""

    def __init__(self, clock: Clock, takes: int) -> None:
        self.clock, self.takes = clock, takes

    def wait(self) -> list[torch.Tensor]:
        self.clock.now += self.takes
        return [torch.ones(2)]


class SlowTransport:
    """Says what it was asked to do."""

    broken_sums: frozenset[int] = frozenset()

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tensor_group: Any = "group"
        self.asked: list[str] = []

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        self.asked.append("send")
        return None

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        return Slow(self.clock, 40)

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        return Slow(self.clock, 7)

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None:
        return Slow(self.clock, 7)

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return Slow(self.clock, 5) if tensor.numel() else None

    def barrier(self) -> None:
        self.asked.append("barrier")

    def flush(self) -> None:
        self.asked.append("flush")

    def close(self) -> None:
        self.asked.append("close")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("recycle_runtime.execution.tracing.time", clock)
    return clock


def test_waiting_for_messages_and_for_everybody_is_set_apart(clock: Clock) -> None:
    tracer = Tracer(torch.device("cpu"))
    transport = tracer.listening(SlowTransport(clock))
    arrival = transport.receive((0, 0), [])

    def forward(_: Instruction) -> None:
        assert [tensor.tolist() for tensor in arrival.wait()] == [[1.0, 1.0]]
        clock.now += 100

    def reduce(_: Instruction) -> None:
        for pending in (transport.start_sum(torch.ones(1)), transport.start_peer_sum(0, torch.ones(1))):
            assert pending is not None
            pending.wait()

    table = tracer.around({Opcode.FORWARD: forward, Opcode.REDUCE: reduce})
    tracer.begin(3)
    table[Opcode.FORWARD](Instruction(Opcode.FORWARD, 0, 1, 2))
    table[Opcode.REDUCE](Instruction(Opcode.REDUCE))
    assert tracer.events == [Event("F1.2", 3, 0, 140, 40), Event("R", 3, 140, 152, 5)]
    assert transport.start_sum(torch.ones(0)) is None


def test_a_transport_that_is_listened_to_does_what_it_did(clock: Clock) -> None:
    bare = SlowTransport(clock)
    transport = Tracer(torch.device("cpu")).listening(bare)
    assert transport.send((0, 1), []) is None
    transport.barrier()
    transport.flush()
    transport.close()
    assert (transport.tensor_group, bare.asked) == ("group", ["send", "barrier", "flush", "close"])


def test_a_step_that_is_run_again_leaves_one_trace(clock: Clock) -> None:
    tracer = Tracer(torch.device("cpu"))
    run = tracer.around({Opcode.OPTIMIZER: lambda _: None})[Opcode.OPTIMIZER]
    for step in (0, 1, 1):
        tracer.begin(step)
        run(Instruction(Opcode.OPTIMIZER))
    assert [event.step for event in tracer.events] == [0, 1]


def test_whatever_is_traced_can_be_written() -> None:
    def ends(end: Callable[[], None]) -> None:
        """As a gather does, which is over when it calls what it is given."""
        end()

    tracer = Tracer(torch.device("cpu"))
    table = tracer.around(dict.fromkeys(Opcode, lambda _: ends))
    tracer.begin(0)
    for opcode in Opcode:
        table[opcode](Instruction(opcode))
    for event in tracer.events:
        try:
            chrome_trace({(0, 0): [event]})
        except KeyError:
            pytest.fail(f"ops named {event.name} are traced and have no colour in plan/chrome_trace.py")


def test_waiting_for_data_leaves_an_event_if_it_is_any() -> None:
    tracer = Tracer(torch.device("cpu"))
    tracer.begin(4)
    tracer.waited_for_data(1_000, 1_900)
    tracer.waited_for_data(2_000, 2_000_000)
    assert tracer.events == [Event("data", 4, 2_000, 2_000_000)]


def test_a_wait_lies_before_its_op() -> None:
    text = chrome_trace({(0, 1): [Event("F0.0", 2, 5000, 9000, 1000)]}, {"failed": ["0:0"]})
    whole = json.loads(text)
    assert whole["otherData"] == {"failed": ["0:0"]}
    rows = [
        (row["cat"], row["name"], row["ts"], row["dur"]) for row in whole["traceEvents"] if row["ph"] == "X"
    ]
    assert rows == [("wait", "wait", 0.0, 1.0), ("step", "F0.0", 1.0, 3.0)]
    assert whole["traceEvents"][-1]["args"] == {"step": 2, "worker": "0:1"}
