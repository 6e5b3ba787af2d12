"""A transport whose errors are PeerErrors, and which shows when it waits."""

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.transport.interface import Arrival, PeerSum, Pending, TensorSpec, Transport

_Result = TypeVar("_Result")


class PeerError(RuntimeError):
    """Another process is gone or unreachable; nothing is known to be wrong here."""


def is_of_others(error: BaseException | None) -> bool:
    """True if a collective may have raised it because another process has left.

    Gloo raises plain RuntimeErrors and NCCL its own; others that derive from these say what is wrong here.
    """
    is_such = type(error) is RuntimeError or isinstance(error, dist.DistBackendError)
    return is_such and error is not None and not is_of_device(error)


_DEVICE_ERRORS = tuple(
    kind for kind in (getattr(torch, name, None) for name in ("AcceleratorError", "OutOfMemoryError")) if kind
)


def is_of_device(error: BaseException) -> bool:
    """True if this process's device is at fault, or what it was asked to do."""
    # Older versions of torch have no type for it.
    return isinstance(error, _DEVICE_ERRORS) or str(error).startswith("CUDA error")


class Waits(Protocol):
    """Hears when this process waits for other workers."""

    def begin(self) -> None:
        """A wait begins."""
        ...

    def end(self) -> None:
        """It is over, well or not. A thread that has been replaced meanwhile does not come back from this."""
        ...


class _Guarded:
    """A message or a sum under way."""

    def __init__(self, pending: Any, waits: Waits) -> None:
        self._pending, self._waits = pending, waits

    def wait(self) -> Any:
        return guarded(self._pending.wait, self._waits)


class GuardedTransport:
    """Passes everything on to another transport."""

    def __init__(self, inner: Transport, waits: Waits) -> None:
        self._inner, self._waits = inner, waits
        self.tensor_group: Any = inner.tensor_group
        self.given_up = threading.Event()
        """Set when the group is left, or to be left: what the program waits for in it will not come."""

    @property
    def broken_sums(self) -> frozenset[int]:
        return self._inner.broken_sums

    @property
    def waits_on_device(self) -> bool:
        """True while the device waits for other workers, whatever the host does. Any thread may ask."""
        return getattr(self._inner, "waits_on_device", False)

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        return self._started(lambda: self._inner.send(worker, tensors))

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        return _Guarded(guarded(lambda: self._inner.receive(worker, specs), self._waits), self._waits)

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        return self._started(lambda: self._inner.start_peer_sum(chunk, tensor))

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None:
        return self._started(lambda: self._inner.start_peer_sums(chunk, sums, goes_on=goes_on, after=after))

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._started(lambda: self._inner.start_sum(tensor))

    def barrier(self) -> None:
        guarded(self._inner.barrier, self._waits)

    def flush(self) -> None:
        guarded(self._inner.flush, self._waits)

    def abort(self) -> None:
        """End what waits, from any thread, if the inner transport can; sockets are the caller's business."""
        self.given_up.set()
        abort: Callable[[], None] | None = getattr(self._inner, "abort", None)
        if abort is not None:
            abort()

    def close(self) -> None:
        self.given_up.set()
        self.tensor_group = None
        self._inner.close()

    def _started(self, start: Callable[[], Pending | None]) -> Pending | None:
        pending = guarded(start, self._waits)
        return None if pending is None else _Guarded(pending, self._waits)


def guarded(work: Callable[[], _Result], waits: Waits) -> _Result:
    """Do it; what goes wrong in it is a PeerError."""
    waits.begin()
    try:
        return work()
    except (RuntimeError, TimeoutError) as error:
        if is_of_device(error):
            raise
        raise PeerError(str(error)) from error
    finally:
        waits.end()


async def guarded_wait(work: Awaitable[_Result], waits: Waits) -> _Result:
    """The same for what is awaited: most messages are, so it is written out."""
    waits.begin()
    try:
        return await work
    except (RuntimeError, TimeoutError) as error:
        if is_of_device(error):
            raise
        raise PeerError(str(error)) from error
    finally:
        waits.end()
