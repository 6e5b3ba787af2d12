"""No plan locks though senders wait for older gradients to arrive, and receivers for shapes not seen yet."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.streams import Streams
from recycle_runtime.execution.handlers import GRADIENTS_UNDER_WAY
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import CONSUMES, NONE, USES_NEIGHBOUR, Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker, numbered_worker
from tests.runtime.training.compare import Failed, plan_file
from tests.support.jobs import figure3, quick_plans

SENDS = (Opcode.SEND_ACTIVATION, Opcode.SEND_GRADIENT)


class Run:
    """All streams at once, each as far as it gets; nothing takes time."""

    def __init__(self, bundle: Bundle, limit: int) -> None:
        self._streams = {worker: bundle.stream(0, worker) for worker in bundle.workers(0)}
        self._limit, self._pipelines = limit, bundle.pipelines
        self._next = dict.fromkeys(self._streams, 0)
        self._sent: dict[tuple[Worker, Worker], int] = defaultdict(int)
        self._asked: dict[tuple[Worker, Worker], int] = defaultdict(int)
        self._inboxes: dict[tuple[Worker, int], tuple[tuple[Worker, Worker], int]] = {}
        self._waiting_to_leave: dict[Worker, tuple[tuple[Worker, Worker], int]] = {}
        self._forwarded: set[tuple[int, int, int]] = set()

    def locked(self) -> dict[Worker, Instruction]:
        """Waiting workers when nothing moves any more, sums and barriers at the end left out."""
        while any([self._advance(worker) for worker in self._streams]):
            pass
        return {
            worker: self._streams[worker][place]
            for worker, place in self._next.items()
            if place < len(self._streams[worker]) and self._streams[worker][place].microbatch != NONE
        }

    def _advance(self, worker: Worker) -> bool:
        moved = False
        while self._next[worker] < len(self._streams[worker]):
            instruction = self._streams[worker][self._next[worker]]
            if instruction.microbatch == NONE or not self._can_run(worker, instruction):
                break
            self._next[worker] += 1
            moved = True
        return moved

    def _can_run(self, worker: Worker, instruction: Instruction) -> bool:
        opcode, chunk = instruction.opcode, instruction.chunk
        unit = (instruction.pipeline, instruction.microbatch)
        if worker in self._waiting_to_leave:
            pair, number = self._waiting_to_leave[worker]
            if self._asked[pair] < number:
                return False
            del self._waiting_to_leave[worker]
        if opcode is Opcode.RECV_ACTIVATION and (*unit, chunk - 1) not in self._forwarded:
            return False
        if opcode in CONSUMES and instruction.inbox != NONE:
            pair, number = self._inboxes[worker, instruction.inbox]
            if self._sent[pair] < number:
                return False
        if opcode is Opcode.FORWARD:
            self._forwarded.add((*unit, chunk))
        if opcode in USES_NEIGHBOUR:
            self._post(worker, instruction)
        return True

    def _post(self, worker: Worker, instruction: Instruction) -> None:
        other = numbered_worker(instruction.neighbour, self._pipelines)
        if instruction.opcode not in SENDS:
            pair = (other, worker)
            self._asked[pair] += 1
            self._inboxes[worker, instruction.inbox] = pair, self._asked[pair]
            return
        pair = (worker, other)
        self._sent[pair] += 1
        if instruction.opcode is Opcode.SEND_GRADIENT:
            self._waiting_to_leave[worker] = pair, self._sent[pair] - self._limit


@pytest.mark.parametrize("limit", [1, GRADIENTS_UNDER_WAY])
@pytest.mark.parametrize("failed", [[], [(1, 2)], [(1, 2), (0, 0), (2, 2)]])
def test_running_example(tmp_path: Path, failed: Failed, limit: int) -> None:
    bundle = Bundle.read(plan_file(tmp_path, figure3((4, 3, 2, 1)), failed))
    assert Run(bundle, limit).locked() == {}


@settings(max_examples=50)
@given(quick_plans())
def test_random_plans(plan: Streams) -> None:
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    for limit in (1, GRADIENTS_UNDER_WAY):
        assert Run(bundle, limit).locked() == {}
