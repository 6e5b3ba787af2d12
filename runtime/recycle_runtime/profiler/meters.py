"""Meters: the times of single operations with their spread, and how many bytes a piece of work leaves alive.

Bytes: on CUDA the allocator knows. On the CPU a dispatch mode sees the result of every operation, in forward
and in backward, and keeps a weak reference to its storage: what is still alive is what the work holds.
Storages that were there before (parameters, gradients, constants of the model) are not counted.
"""

import gc
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from statistics import quantiles
from typing import Any, NamedTuple, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_Result = TypeVar("_Result")


class Timing(NamedTuple):
    """Nanoseconds: the median, and the quarters between which half of the measurements lie."""

    median: int
    low: int
    high: int

    @classmethod
    def of(cls, measured: Sequence[int]) -> "Timing":
        """Of one measurement or more."""
        if len(measured) == 1:
            return cls(measured[0], measured[0], measured[0])
        low, middle, high = quantiles(measured, n=4, method="inclusive")
        return cls(round(middle), round(low), round(high))

    def scaled(self, factor: float) -> "Timing":
        return Timing(*(round(part * factor) for part in self))

    def towards(self, other: "Timing", share: float) -> "Timing":
        """Between the two, that far from this one."""
        return Timing(*(round(own + share * (its - own)) for own, its in zip(self, other, strict=True)))

    @property
    def spread(self) -> float:
        """The width of the middle half, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


NOTHING = Timing(0, 0, 0)


class Stopwatch:
    """Times one call at a time on a device, whose current stream has nothing else to do meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def time(self, work: Callable[[], _Result]) -> tuple[_Result, int]:
        """The result of a call and its nanoseconds, from an idle stream to an idle stream."""
        if self._device.type != "cuda":
            began = time.perf_counter_ns()
            result = work()
            return result, time.perf_counter_ns() - began
        start, end = _event(), _event()
        # Not the whole device: a receive may wait on another stream, as in training.
        torch.cuda.current_stream(self._device).synchronize()
        start.record()
        result = work()
        end.record()
        end.synchronize()
        return result, round(start.elapsed_time(end) * 1e6)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


MEMORY_HOW = {
    "cpu": "storages alive, by weak reference, of every operation's result",
    "cuda": "torch.cuda.memory_allocated",
}
"""Method of measuring memory on each kind of device, for the profile."""


def beside_allocator(device: torch.device) -> int:
    """Bytes of a CUDA device in use beside what torch has reserved; 0 on a CPU.

    These are CUDA's context, code of kernels, NCCL's buffers, and all that other processes hold there.
    """
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))


@contextmanager
def counting(device: torch.device, smallest: int = 0) -> Generator[Callable[[], int]]:
    """Gives a function that says how many bytes are held that were not when this was entered.

    On a CPU, storages of fewer bytes than the smallest do not count.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.memory_allocated(device) - before
        return
    with _LiveStorages(smallest) as storages:
        yield storages.held


class _LiveStorages(TorchDispatchMode):
    """Remembers every storage that an operation has made, for as long as it lives."""

    def __init__(self, smallest: int) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._smallest = smallest
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._foreign: dict[int, StorageWeakRef] = {}
        # A weak reference also keeps an address from being used again, so addresses name storages.

    def held(self) -> int:
        """Bytes of the storages that are still alive."""
        return sum(size for reference, size in self._made.values() if not _expired(reference))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for storage in _storages((args, kwargs)):
            if storage._cdata not in self._made:
                self._foreign[storage._cdata] = StorageWeakRef(storage)
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in self._foreign and storage.nbytes() >= self._smallest:
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result


def _storages(values: Any) -> list[Any]:
    leaves: list[Any] = tree_leaves(values)
    return [
        leaf.untyped_storage()
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
    ]


def _expired(reference: Any) -> bool:
    return bool(reference.expired())
