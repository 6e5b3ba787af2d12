"""All workers of a plan as threads of this process: the same handlers without the wait for processes."""

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.checkpoint.writer import restore
from recycle_runtime.execution.session import StepReport
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.transport.interface import Arrival, Grid, PeerSum, Pending, TensorSpec
from recycle_runtime.worker.fixed_plan import FixedPlanWorker
from recycle_runtime.worker.options import WorkerOptions

_PATIENCE = 300.0


class _Sum:
    """One sum of a group: the last to come adds up, in the order of ranks."""

    def __init__(self, size: int) -> None:
        self._parts: dict[int, torch.Tensor] = {}
        self._size, self._lock, self._ready = size, threading.Lock(), threading.Event()

    def add(self, rank: int, tensor: torch.Tensor) -> None:
        with self._lock:
            self._parts[rank] = tensor
            if len(self._parts) == self._size:
                given = [self._parts[key] for key in sorted(self._parts) if self._parts[key].numel()]
                total = torch.stack(given).sum(dim=0) if given else torch.zeros(0)
                for part in self._parts.values():
                    if part.numel():
                        part.copy_(total)
                self._ready.set()

    def give_up(self) -> None:
        with self._lock:
            self._size = -1
            self._ready.set()

    def wait(self) -> None:
        if not self._ready.wait(_PATIENCE):
            raise TimeoutError("the other workers did not come")
        if self._size < 0:
            raise GivenUpError


class GivenUpError(Exception):
    """Somebody has failed, so nobody waits any longer."""


class Room:
    """A place where the threads meet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mail: dict[tuple[Worker, Worker], queue.Queue[list[torch.Tensor] | None]] = {}
        self.sums: dict[tuple[str, int], _Sum] = {}
        self._is_given_up = False

    def box(self, sender: Worker, receiver: Worker) -> "queue.Queue[list[torch.Tensor] | None]":
        with self.lock:
            self.check()
            return self.mail.setdefault((sender, receiver), queue.Queue())

    def sum(self, group: str, number: int, size: int) -> _Sum:
        with self.lock:
            self.check()
            return self.sums.setdefault((group, number), _Sum(size))

    def give_up(self) -> None:
        """Wake whoever waits here."""
        with self.lock:
            self._is_given_up = True
            for box in self.mail.values():
                box.put(None)
            for total in self.sums.values():
                total.give_up()

    def check(self) -> None:
        if self._is_given_up:
            raise GivenUpError


class _Arrival:
    def __init__(self, before: "_Arrival | None", box: Any, specs: Sequence[TensorSpec]) -> None:
        self._before, self._box, self._specs = before, box, tuple(specs)
        self._tensors: list[torch.Tensor] | None = None

    def wait(self) -> list[torch.Tensor]:
        if self._tensors is None:
            if self._before is not None:
                self._before.wait()
            arrived: list[torch.Tensor] | None = self._box.get(timeout=_PATIENCE)
            if arrived is None:
                raise GivenUpError
            assert tuple(map(TensorSpec.of, arrived)) == self._specs, "not the message that was expected"
            self._tensors = arrived
        return self._tensors


class _PeerSums:
    """Several sums; nonsense is left with those who are not to have them."""

    def __init__(self, sums: list[tuple[PeerSum, torch.Tensor, _Sum]], me: int) -> None:
        self._sums, self._me = sums, me

    def wait(self) -> None:
        for one, given, total in self._sums:
            total.wait()
            if not one.takers or self._me in one.takers:
                one.tensor.copy_(given)
            elif not one.is_copy:
                one.tensor.fill_(float("nan"))


class ThreadTransport:
    """One thread's side."""

    tensor_group: Any = None
    broken_sums: frozenset[int] = frozenset()

    def __init__(self, room: Room, grid: Grid, worker: Worker) -> None:
        self._room, self._grid, self._worker = room, grid, worker
        self._last: dict[Worker, _Arrival] = {}
        self._counts: dict[str, int] = {}

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> None:
        self._room.box(self._worker, worker).put([tensor.clone() for tensor in tensors])

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        arrival = _Arrival(self._last.get(worker), self._room.box(worker, self._worker), specs)
        self._last[worker] = arrival
        return arrival

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        return self._start(f"chunk {chunk}", len(self._grid.holders(chunk)), tensor)

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None:
        size = len(self._grid.holders(chunk))
        me = self._grid.holders(chunk).index(self._worker)
        under_way: list[tuple[PeerSum, torch.Tensor, _Sum]] = []
        for each in sums:
            # Whoever gives nothing adds zeros; whoever is not to get it finds nonsense in its memory.
            gives = not each.sources or me in each.sources
            given = each.tensor.clone() if gives else torch.zeros_like(each.tensor, device="cpu")
            under_way.append((each, given, self._start(f"chunk {chunk}", size, given)))
        return _PeerSums(under_way, me)

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._start("all", len(self._grid.workers), tensor)

    def barrier(self) -> None:
        self._start("barrier", len(self._grid.workers), torch.zeros(1)).wait()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _start(self, group: str, size: int, tensor: torch.Tensor) -> _Sum:
        number = self._counts[group] = self._counts.get(group, 0) + 1
        total = self._room.sum(group, number, size)
        total.add(self._grid.rank(self._worker, 0), tensor)
        return total


def train_in_threads(
    bundle_file: str,
    program_file: str,
    plan: int,
    steps: int,
    seed: int = 0,
    checkpoint: tuple[Path, int] | None = None,
    *,
    trace: bool = False,
) -> tuple[list[float], dict[Worker, FixedPlanWorker]]:
    """Losses of the steps, and the workers as they are at the end; from a checkpoint on, of so many steps."""
    bundle, room, store = Bundle.read(bundle_file), Room(), dist.HashStore()
    workers: dict[Worker, FixedPlanWorker] = {}
    reports: list[StepReport] = []
    errors: list[BaseException] = []

    def work(worker: Worker) -> None:
        options = WorkerOptions(
            bundle_file,
            program_file,
            steps=steps,
            plan=plan,
            worker=worker,
            tp_rank=0,
            seed=seed,
            timeout=_PATIENCE,
            trace=trace,
        )
        try:
            with building:
                room.check()
                workers[worker] = FixedPlanWorker(
                    options,
                    store,
                    lambda told, _store, grid, _stream: ThreadTransport(room, grid, told.worker),
                )
                if checkpoint is not None:
                    for chunk in workers[worker].chunks.values():
                        restore(chunk, *checkpoint)
            everybody.wait(_PATIENCE)
            workers[worker].train(reports.append)
        except BaseException as error:
            errors.append(error)
            everybody.abort()
            room.give_up()
        finally:
            ended.put(worker)

    # Initial parameters come from random numbers that all threads share, so stages are built one by one.
    building, everybody = threading.Lock(), threading.Barrier(len(bundle.workers(plan)))
    ended: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in bundle.workers(plan)]
    for thread in threads:
        thread.start()
    for _ in threads:
        ended.get(timeout=2 * _PATIENCE)
        if errors:
            break
    # Random numbers are shared, so nobody may still build when the next test begins.
    if errors:
        with building:
            # Some may wait at the store for one who has failed, which nobody can end.
            raise errors[0]
    for thread in threads:
        thread.join(_PATIENCE)
    first = 0 if checkpoint is None else checkpoint[1]
    losses = [sum(row.loss or 0.0 for row in reports if row.step == step) for step in range(first, steps)]
    return losses, workers
