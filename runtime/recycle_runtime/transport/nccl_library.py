"""NCCL's own functions, through ctypes: communicators that another thread can end, in an order that it
chooses.

torch's process groups abort on a thread of their own, and the abort of one communicator waits there for
kernels of the others. Here all communicators of a process are ended in one group call of NCCL: its first half
makes every kernel leave, in the order of the call and at once; its second half, which frees memory and joins
threads, takes half a second, and nobody has to wait for it."""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import torch

_ID_BYTES = 128
_BYTES = 1
"""ncclUint8: messages are bytes."""
_DTYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
"""ncclDataType_t."""
_IDLE_EVERY = 0.002
_NAMES = ("libnccl.so.2", "libnccl.so")


class Operation(IntEnum):
    """ncclRedOp_t."""

    SUM = 0
    PRODUCT = 1
    MAX = 2
    MIN = 3
    AVERAGE = 4


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


_MAGIC = 0xCAFEBEEF
_UNSET = -(1 << 31)
_CONFIG_VERSION = 21801
"""2.18.1: later versions read what it had, and take defaults for what has been added."""


class _Config(ctypes.Structure):
    """ncclConfig_t as of that version."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ARGUMENTS: dict[str, list[Any]] = {
    "ncclGetUniqueId": [_pointer],
    "ncclCommInitRankConfig": [_pointer, _int, _UniqueId, _int, _pointer],
    "ncclSend": [_pointer, _size, _int, _int, _pointer, _pointer],
    "ncclRecv": [_pointer, _size, _int, _int, _pointer, _pointer],
    "ncclAllReduce": [_pointer, _pointer, _size, _int, _int, _pointer, _pointer],
    "ncclReduce": [_pointer, _pointer, _size, _int, _int, _int, _pointer, _pointer],
    "ncclAllGather": [_pointer, _pointer, _size, _int, _pointer, _pointer],
    "ncclReduceScatter": [_pointer, _pointer, _size, _int, _int, _pointer, _pointer],
    "ncclBroadcast": [_pointer, _pointer, _size, _int, _int, _pointer, _pointer],
    "ncclCommAbort": [_pointer],
    "ncclGetErrorString": [_int],
    "ncclGetLastError": [_pointer],
}


class NcclError(RuntimeError):
    """A call of NCCL failed: another process is gone, or this one has aborted the communicator."""


class Membership(NamedTuple):
    """One rank of a communicator that is to be made."""

    unique_id: bytes
    rank: int
    size: int
    most_blocks: int | None = None
    """Thread blocks, so multiprocessors, that its kernels may take; NCCL decides by default."""


class Communicator:
    """One rank of it. Calls queue work on a CUDA stream; after an abort they raise NcclError."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle
        self.lock = threading.RLock()
        """Held by a thread that is inside a call."""
        self.is_ended = False

    def send(self, memory: torch.Tensor, rank: int, stream: int) -> None:
        self._call("ncclSend", memory.data_ptr(), memory.nbytes, _BYTES, rank, self._handle, stream)

    def receive(self, memory: torch.Tensor, rank: int, stream: int) -> None:
        self._call("ncclRecv", memory.data_ptr(), memory.nbytes, _BYTES, rank, self._handle, stream)

    def sum(self, tensor: torch.Tensor, stream: int, operation: int = Operation.SUM) -> None:
        """In place, over all ranks."""
        at, count, dtype = _numbers(tensor)
        self._call("ncclAllReduce", at, at, count, dtype, operation, self._handle, stream)

    def reduce(self, tensor: torch.Tensor, rank: int, stream: int, operation: int = Operation.SUM) -> None:
        """The sum over all ranks, in the memory of one."""
        at, count, dtype = _numbers(tensor)
        self._call("ncclReduce", at, at, count, dtype, operation, rank, self._handle, stream)

    def reduce_scatter(
        self, own: torch.Tensor, whole: torch.Tensor, stream: int, operation: int = Operation.SUM
    ) -> None:
        """The sum over all ranks, each part of it in the memory of its rank."""
        to, count, dtype = _numbers(own)
        at, _, _ = _numbers(whole)
        self._call("ncclReduceScatter", at, to, count, dtype, operation, self._handle, stream)

    def gather(self, whole: torch.Tensor, own: torch.Tensor, stream: int) -> None:
        """Bytes of each rank, one after the other, to all."""
        at = own.data_ptr(), whole.data_ptr()
        self._call("ncclAllGather", *at, own.nbytes, _BYTES, self._handle, stream)

    def broadcast(self, memory: torch.Tensor, rank: int, stream: int) -> None:
        """Bytes of one rank, to all."""
        at = memory.data_ptr()
        self._call("ncclBroadcast", at, at, memory.nbytes, _BYTES, rank, self._handle, stream)

    def let_go(self) -> None:
        """Make its kernels leave; what they wait for does not come any more."""
        self.is_ended = True
        self._library.calls.ncclCommAbort(self._handle)

    def _call(self, name: str, *arguments: object) -> None:
        with self.lock:
            if self.is_ended:
                raise NcclError("the communicator was aborted")
            self._library.check(name, getattr(self._library.calls, name)(*arguments))


def _numbers(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Address, count and type of the numbers of a tensor."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"NCCL cannot add up numbers of {tensor.dtype}")
    return tensor.data_ptr(), tensor.numel(), _DTYPES[tensor.dtype]


class NcclLibrary:
    """The one that torch has loaded."""

    def __init__(self) -> None:
        self.calls = _loaded()
        for name, types in _ARGUMENTS.items():
            getattr(self.calls, name).argtypes = types
        self.calls.ncclGetErrorString.restype = ctypes.c_char_p
        self.calls.ncclGetLastError.restype = ctypes.c_char_p

    def unique_id(self) -> bytes:
        """For a communicator whose first rank this process is: the others find it by that."""
        found = _UniqueId()
        self.check("ncclGetUniqueId", self.calls.ncclGetUniqueId(ctypes.byref(found)))
        return ctypes.string_at(ctypes.byref(found), _ID_BYTES)

    def join(self, wanted: Sequence[Membership]) -> list[Communicator]:
        """All of them at the same time, on the current device; waits for every other rank."""
        handles = [ctypes.c_void_p() for _ in wanted]
        configs = [
            _Config(
                size=ctypes.sizeof(_Config),
                magic=_MAGIC,
                version=_CONFIG_VERSION,
                blocking=1,
                cga_cluster_size=_UNSET,
                min_ctas=_UNSET,
                max_ctas=_UNSET if each.most_blocks is None else each.most_blocks,
                net_name=None,
                split_share=_UNSET,
            )
            for each in wanted
        ]
        try:
            self._group(
                lambda: [
                    self.check(
                        "ncclCommInitRankConfig",
                        self.calls.ncclCommInitRankConfig(
                            ctypes.byref(handle),
                            each.size,
                            _UniqueId.from_buffer_copy(each.unique_id),
                            each.rank,
                            ctypes.byref(config),
                        ),
                    )
                    for each, handle, config in zip(wanted, handles, configs, strict=True)
                ]
            )
        except NcclError:
            self._drop(handles)
            raise
        return [Communicator(self, handle) for handle in handles]

    def _drop(self, handles: Sequence[ctypes.c_void_p]) -> None:
        """Those of a join that failed, as far as it came."""
        for handle in handles:
            if handle.value:
                self.calls.ncclCommAbort(handle)

    def together(self, communicators: Sequence[Communicator], work: Callable[[], object]) -> None:
        """Calls on several communicators, begun at the same time: none of them waits for another."""
        with ExitStack() as stack:
            for each in communicators:
                stack.enter_context(each.lock)
            self._group(work)

    def abort(
        self,
        communicators: Sequence[Communicator],
        on_ended: Callable[[], None],
        is_idle: Callable[[], bool],
    ) -> None:
        """End them, in this order; `on_ended` is called when no kernel of theirs waits any more.

        They are freed when `is_idle` says that nothing is queued on their streams: NCCL does not wait for a
        kernel that has not begun, and that kernel would find no memory.
        """
        self.check("ncclGroupStart", self.calls.ncclGroupStart())
        for each in communicators:
            each.let_go()
        on_ended()
        for each in communicators:
            # A call that was under way has been released; nobody begins another one.
            with each.lock:
                pass
        while not is_idle():
            time.sleep(_IDLE_EVERY)
        self.check("ncclGroupEnd", self.calls.ncclGroupEnd())

    def check(self, name: str, result: int) -> None:
        if result:
            what = self.calls.ncclGetErrorString(result).decode(errors="replace")
            last = (self.calls.ncclGetLastError(None) or b"").decode(errors="replace").strip()
            raise NcclError(f"{name}: {what}" + (f" ({last})" if last else ""))

    def _group(self, work: Callable[[], object]) -> None:
        self.check("ncclGroupStart", self.calls.ncclGroupStart())
        try:
            work()
        finally:
            result = self.calls.ncclGroupEnd()
        self.check("ncclGroupEnd", result)


@cache
def nccl() -> NcclLibrary:
    """RuntimeError where there is none."""
    return NcclLibrary()


def _loaded() -> Any:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError(
        "every worker has a GPU of its own, but NCCL's library (libnccl.so.2) cannot be loaded"
    )
