"""Cost of moving bytes between workers: one message, one reduction.

Ranks are threads of this process, each with a gloo group of its own over the loopback address; gloo does its
work outside Python. Large amounts are measured by a part, and the time is scaled. Where workers have devices
of their own, `grid_links` measures instead.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from recycle_runtime.profiler.meters import NOTHING, Stopwatch, Timing

MOST_BYTES = 32 << 20
"""More than this is not sent to measure it."""
_WARM_UP = 2
_PATIENCE = timedelta(seconds=60)
REDUCE_HOW = {
    "cpu": "all-reduce of float32 over gloo, loopback",
    "cuda": "copies and sums of float32 on the device, as workers make them that share it",
}
TRANSFER_HOW = {"cpu": "one way of a round trip over gloo, loopback", "cuda": "a copy on the device"}


Receive = Callable[[], AbstractContextManager[None]]
"""One that waits while the context is open, as often as it is asked for."""


class TokenRows(NamedTuple):
    """Rows of tokens that go to the experts of a layer in a forward, and come back."""

    number: int
    width: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.number * self.width * self.dtype.itemsize


class Links(Protocol):
    """Measures messages and reductions between workers."""

    @property
    def rings(self) -> int:
        """Reductions of different stages that are measured at the same time, at most."""
        ...

    @property
    def how(self) -> dict[str, str]:
        """Method of each measurement, for the profile."""
        ...

    def waiting_receive(self, size: int) -> Receive | None:
        """Keeps a receive of so many bytes waiting on the device; None where a message waits in memory."""
        ...

    def transfers(self, sizes: Sequence[int], repeat: int) -> list[Timing]:
        """Messages of so many bytes from each stage to the next."""
        ...

    def reductions(self, sizes: Sequence[int], ranks: int, repeat: int) -> list[Timing]:
        """Reductions of so many bytes of each stage, among so many ranks."""
        ...

    def exchanges(self, rows: Sequence[Sequence[TokenRows]], ranks: int, repeat: int) -> list[Timing]:
        """Exchanges of each stage in a forward or a backward: rows of its layers go to so many ranks, to each
        equally many, and come back."""
        ...

    def copies(self, sizes: Sequence[int], ranks: int, repeat: int) -> list[Timing]:
        """Messages of so many bytes of each stage, from every one of so many ranks to the next, as gradients
        and weights of experts travel."""
        ...


class LocalLinks:
    """Links of workers on this machine that share its device, each measured by itself."""

    rings = 1

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def how(self) -> dict[str, str]:
        kind = self._device.type
        return {"transfer_measured": TRANSFER_HOW[kind], "reduce_measured": REDUCE_HOW[kind]}

    def waiting_receive(self, size: int) -> Receive | None:
        return None

    def transfers(self, sizes: Sequence[int], repeat: int) -> list[Timing]:
        return [transfer(size, self._device, repeat) for size in sizes]

    def reductions(self, sizes: Sequence[int], ranks: int, repeat: int) -> list[Timing]:
        return [reduction(size, ranks, self._device, repeat) for size in sizes]

    def exchanges(self, rows: Sequence[Sequence[TokenRows]], ranks: int, repeat: int) -> list[Timing]:
        """Two messages each, of all that does not stay on its worker."""
        sizes = [sum(each.nbytes for each in layers) * (ranks - 1) // ranks for layers in rows]
        return [timing.scaled(2) for timing in self.transfers(sizes, repeat)]

    def copies(self, sizes: Sequence[int], ranks: int, repeat: int) -> list[Timing]:
        """One message, by itself."""
        return self.transfers(sizes if ranks > 1 else [0] * len(sizes), repeat)


def reduction(size: int, ranks: int, device: torch.device, repeat: int) -> Timing:
    """An all-reduce of `size` bytes among so many ranks."""
    if ranks < 2 or size == 0:
        return NOTHING
    if device.type == "cuda":
        return _by_a_part(size, lambda part: _shared_sum(part, ranks, device, repeat))

    def all_reduce(group: Any, _: int, buffer: torch.Tensor) -> None:
        group.allreduce([buffer]).wait()

    return _by_a_part(size, lambda part: _among(ranks, all_reduce, part, device, repeat))


def transfer(size: int, device: torch.device, repeat: int) -> Timing:
    """`size` bytes from a stage to the next."""
    if size == 0:
        return NOTHING
    if device.type == "cuda":
        return _by_a_part(size, lambda part: _copy(part, device, repeat))

    def there_and_back(group: Any, rank: int, buffer: torch.Tensor) -> None:
        if rank == 0:
            group.send([buffer], 1, 0).wait()
            group.recv([buffer], 1, 0).wait()
        else:
            group.recv([buffer], 0, 0).wait()
            group.send([buffer], 0, 0).wait()

    return _by_a_part(size, lambda part: _among(2, there_and_back, part, device, repeat)).scaled(0.5)


def _by_a_part(size: int, measure: Callable[[int], Timing]) -> Timing:
    part = min(size, MOST_BYTES)
    return measure(part).scaled(size / part)


def _among(
    ranks: int,
    exchange: Callable[[Any, int, torch.Tensor], None],
    size: int,
    device: torch.device,
    repeat: int,
) -> Timing:
    """Every rank runs the exchange at once; a round is over when the last rank is done."""
    store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    together = threading.Barrier(ranks)

    def one_rank(rank: int) -> list[int]:
        try:
            group: Any = _gloo(store, rank, ranks)
            buffer = torch.ones(max(1, size // 4), device=device)
            times: list[int] = []
            for _ in range(_WARM_UP + repeat):
                buffer.fill_(1.0)
                together.wait(_PATIENCE.total_seconds())
                began = time.perf_counter_ns()
                exchange(group, rank, buffer)
                times.append(time.perf_counter_ns() - began)
            return times[_WARM_UP:]
        except BaseException:
            # The others must not wait for a rank that is gone.
            together.abort()
            raise

    with ThreadPoolExecutor(ranks) as threads:
        rows = list(threads.map(one_rank, range(ranks)))
    return Timing.of([max(times) for times in zip(*rows, strict=True)])


def _gloo(store: Any, rank: int, ranks: int) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = _PATIENCE
    return gloo(store, rank, ranks, options)


def _shared_sum(size: int, ranks: int, device: torch.device, repeat: int) -> Timing:
    own = torch.ones(max(1, size // 4), device=device)
    parts = [torch.ones_like(own) for _ in range(ranks)]
    watch = Stopwatch(device)

    def add_up() -> None:
        parts[0].copy_(own)
        own.copy_(parts[0])
        for part in parts[1:]:
            own.add_(part)

    times = [watch.time(add_up)[1] for _ in range(_WARM_UP + repeat)]
    return Timing.of(times[_WARM_UP:])


def _copy(size: int, device: torch.device, repeat: int) -> Timing:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    watch = Stopwatch(device)
    times = [watch.time(lambda: target.copy_(source))[1] for _ in range(_WARM_UP + repeat)]
    return Timing.of(times[_WARM_UP:])
