"""Single messages: order, shapes, growth, errors, and nothing left behind."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.transport.cuda_ipc import CudaIpcTransport, SharedCounters, WaitEnded
from recycle_runtime.transport.interface import Grid, TensorSpec
from recycle_runtime.transport.nccl import NcclTransport
from tests.runtime.transport.shared_host import SharedHost
from tests.runtime.transport.standing import HostQueues, StandingLibrary, Work
from tests.runtime.transport.workers import in_threads

FIRST, SECOND = (0, 0), (0, 1)
GRID = Grid([FIRST, SECOND], 1, 1)
SLOTS = 3
PATIENCE = timedelta(seconds=120)
Talk = Callable[[Any, Any], None]


def receiving(count: int) -> list[Instruction]:
    """A stream in which so many messages of the first worker wait at once."""
    return [
        Instruction(Opcode.RECV_ACTIVATION, 1, 0, number, inbox=number, neighbour=0)
        for number in range(count)
    ] + [Instruction(Opcode.FORWARD, 1, 0, number, 0, number) for number in range(count)]


def sending() -> list[Instruction]:
    return [Instruction(Opcode.SEND_ACTIVATION, 0, 0, 0, 0, neighbour=1)]


class Nccl:
    """Two workers and what is between them."""

    def __init__(self) -> None:
        self.library, self.store = StandingLibrary(), dist.HashStore()

    def join(self, number: int) -> Any:
        worker, stream = GRID.workers[number], (sending(), receiving(SLOTS - 1))[number]
        return NcclTransport(
            self.store, "first", GRID, worker, 0, PATIENCE, stream, self.library, HostQueues()
        )


class Shared:
    """The same for shared memory."""

    def __init__(self) -> None:
        self.device, self.store = SharedHost(), dist.HashStore()

    def join(self, number: int, patience: timedelta = PATIENCE) -> Any:
        worker = GRID.workers[number]
        waiting = {FIRST: SLOTS - 1} if number else {}
        return CudaIpcTransport(self.store, "first", GRID, worker, 0, patience, self.device, waiting)


def both(pair: Nccl | Shared) -> list[Any]:
    """Joined; what one does later does not wait for the other unless it must."""
    made: dict[int, Any] = {}

    def join(number: int) -> None:
        made[number] = pair.join(number)

    in_threads([lambda: join(0), lambda: join(1)])
    return [made[0], made[1]]


def specs_of(tensors: list[torch.Tensor]) -> list[TensorSpec]:
    return list(map(TensorSpec.of, tensors))


@pytest.fixture(params=[Nccl, Shared])
def pair(request: pytest.FixtureRequest) -> Nccl | Shared:
    return request.param()


MESSAGES = [
    [torch.arange(6.0).view(2, 3)],
    [torch.arange(12).view(3, 4).t(), torch.tensor(True), torch.empty(0, 3)],
    [torch.randn(7, dtype=torch.complex128), torch.tensor(2.5, dtype=torch.bfloat16)],
    [],
    [torch.empty(0)],
    [torch.arange(1000.0)],
    [torch.arange(3.0)],
]


def test_what_arrives_is_what_was_sent(pair: Nccl | Shared) -> None:
    sender, receiver = both(pair)
    for message in MESSAGES * 3:
        arrival = receiver.receive(FIRST, specs_of(message))
        sender.send(SECOND, message)
        arrived = arrival.wait()
        assert all(map(torch.equal, arrived, message))
        assert [tensor.dtype for tensor in arrived] == [tensor.dtype for tensor in message]
        assert arrival.wait() is arrived


def test_messages_may_be_used_in_any_order(pair: Nccl | Shared) -> None:
    """Though later ones come round to the slots of earlier ones that have not been used."""
    sender, receiver = both(pair)
    specs = [TensorSpec((4,), torch.float32)]
    old = receiver.receive(FIRST, specs)
    sender.send(SECOND, [torch.full((4,), -1.0)])
    for number in range(2 * SLOTS):
        new = receiver.receive(FIRST, specs)
        sender.send(SECOND, [torch.full((4,), float(number))])
        assert new.wait()[0].tolist() == [number] * 4
    assert old.wait()[0].tolist() == [-1.0] * 4


def test_what_was_sent_may_change_at_once(pair: Nccl | Shared) -> None:
    sender, receiver = both(pair)
    tensor = torch.ones(4)
    arrival = receiver.receive(FIRST, specs_of([tensor]))
    assert sender.send(SECOND, [tensor]) is None
    tensor.zero_()
    assert arrival.wait()[0].tolist() == [1.0] * 4


def test_slots_grow_while_smaller_messages_are_on_their_way() -> None:
    pair = Shared()
    sender, receiver = both(pair)
    sizes = [10, 10, 900, 20, 5000, 4000]
    arrived: list[torch.Tensor] = []

    def send() -> None:
        for number, size in enumerate(sizes):
            sender.send(SECOND, [torch.full((size,), float(number))])

    def receive() -> None:
        spec = [[TensorSpec((size,), torch.float32)] for size in sizes]
        waiting = [receiver.receive(FIRST, spec[0]), receiver.receive(FIRST, spec[1])]
        for specs in spec[2:]:
            # Each is asked for while an older one, maybe in smaller slots, has not been used.
            waiting.append(receiver.receive(FIRST, specs))
            arrived.extend(waiting.pop(0).wait())
        for arrival in waiting:
            arrived.extend(arrival.wait())

    in_threads([send, receive])
    assert [tensor.tolist() for tensor in arrived] == [[float(n)] * size for n, size in enumerate(sizes)]
    assert pair.device.allocated == [SLOTS * 256, SLOTS * 3840, SLOTS * 20224]


def test_a_message_of_another_size_than_expected() -> None:
    sender, receiver = both(Shared())
    receiver.receive(FIRST, [TensorSpec((1000,), torch.float32)])
    with pytest.raises(RuntimeError, match="a message of 8192 bytes is sent, one of 4096 expected"):
        sender.send(SECOND, [torch.ones(2000)])


def test_more_messages_than_the_stream_has() -> None:
    _, receiver = both(Nccl())
    for _ in range(SLOTS):
        receiver.receive(FIRST, [TensorSpec((1,), torch.float32)])
    with pytest.raises(RuntimeError, match="more than 3 messages"):
        receiver.receive(FIRST, [TensorSpec((1,), torch.float32)])


def test_channels_alone_have_communicators() -> None:
    sender, receiver = both(Nccl())
    assert (sender.communicators, receiver.communicators) == (1, 1)
    sender.close()
    sender.close()
    assert sender.communicators == 0


class Behind(HostQueues):
    """A device that has not come to what is computed now."""

    is_behind = True

    def mark(self) -> Work:
        found = Work(lambda: None)
        found.is_done = not self.is_behind
        return found

    def wait(self, mark: Work | None) -> None: ...

    finish = wait


@pytest.mark.parametrize("is_behind", [True, False])
def test_gradients_that_nobody_adds_to_may_be_cut_off_too(is_behind: bool) -> None:
    pair = Nccl()
    first, _ = both(pair)
    queues = Behind()
    queues.is_behind = is_behind
    first._queues = queues
    pending = first.start_peer_sum(0, torch.ones(2))
    pending.wait()
    first.abort()
    assert first.broken_sums == ({0} if is_behind else set())


def test_a_wait_for_a_sender_that_is_gone_can_be_ended() -> None:
    _, receiver = both(Shared())
    arrival = receiver.receive(FIRST, [TensorSpec((1,), torch.float32)])
    threading.Timer(0.05, receiver.abort).start()
    with pytest.raises(WaitEnded):
        arrival.wait()


def test_a_sender_that_is_killed_before_it_counts_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a message is never read: patience ends."""
    pair = Shared()
    made: dict[int, Any] = {}

    def join(number: int) -> None:
        made[number] = pair.join(number, timedelta(seconds=0.3))

    in_threads([lambda: join(0), lambda: join(1)])
    arrival = made[1].receive(FIRST, [TensorSpec((2,), torch.float32)])

    def killed(self: SharedCounters, counter: int) -> None:
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(SharedCounters, "add", killed)
        made[0].send(SECOND, [torch.ones(2)])
    with pytest.raises(TimeoutError, match="has not come to 1"):
        arrival.wait()


def named_files() -> set[Path]:
    return set(Path("/dev/shm").glob("recycle-*"))


def test_no_file_has_a_name_once_all_have_joined() -> None:
    before = named_files()
    sender, receiver = both(Shared())
    assert named_files() <= before
    arrival = receiver.receive(FIRST, [TensorSpec((1,), torch.float32)])
    sender.send(SECOND, [torch.ones(1)])
    assert arrival.wait()[0].item() == 1.0
    sender.close()
    receiver.close()
