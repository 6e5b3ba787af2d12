"""Choice of transport: NCCL, memory of a shared GPU, or gloo; start of CUDA on a worker's device.

NCCL wants a device for every process, a GPU or a MIG device; memory can be shared where all processes have
the same one. Nothing in between works, and a wrong guess hangs. So nobody guesses: every process says where
it is, the first one looks at all of it, and everyone does what that one says.
"""

import ctypes
import json
import os
import socket
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from recycle_runtime.devices import SHARED_DEVICE, VARIABLE
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.plan.message_counts import most_waiting
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.remote_store import StoreError
from recycle_runtime.transport.cuda_ipc import CudaIpcTransport, CudaSharedDevice
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Grid, Transport
from recycle_runtime.transport.nccl import channels_of, join_over_nccl, set_environment
from recycle_runtime.transport.peer_proof import Prove

_NAME = "first"
"""Of the group, in its store."""
_HOST_ID = "NCCL_HOSTID"
"""Variable that takes the place of the host name in NCCL, which refuses two ranks on one GPU of a host."""
_ANSWER = "answer/way"
"""Not beside what all have said: whoever asks for a key may be sent all that lies beside it."""
_LISTED = 8
_GRACE = timedelta(seconds=10)
"""Time that all but the first process wait longer, so that they receive the reason why it gave up."""


class PlacementError(RuntimeError):
    """Processes and GPUs do not fit together."""


class DeviceStartError(RuntimeError):
    """CUDA does not start on the device of this process: one sentence and a hint."""


class Way(Enum):
    """Means of transport between processes."""

    SHARED_GPU = "memory of the GPU that all share"
    NCCL = "NCCL, a device for each"


class ProcessPlace(NamedTuple):
    """Host and device of a process."""

    host: str
    device: str
    """UUID of a whole GPU, name of a MIG device: the same for every process that uses it."""
    gpu: str
    """UUID of the GPU, the same for all its MIG devices."""


class TransportChoice(NamedTuple):
    """Answer of the first process to all."""

    way: Way
    beside_others: frozenset[int] = frozenset()
    """Ranks with a MIG device of a GPU on which another rank has one."""


def connect(
    store: dist.Store,
    grid: Grid,
    worker: Worker,
    tp_rank: int,
    stream: Sequence[Instruction],
    device: torch.device,
    timeout: timedelta,
    standstill: float | None = None,
    prove: Prove | None = None,
) -> Transport:
    """Join the other workers: over gloo on CPU, over NCCL between GPUs, on the device where all share one.

    There, that all wait for each other is noticed after `standstill` seconds. With `prove`, processes prove
    to each other that they belong to the job.
    """
    common = (store, _NAME, grid, worker, tp_rank, timeout)
    if device.type == "cpu":
        return GlooTransport(*common, neighbours_of(stream, worker, grid.pipelines), prove)
    rank, place = grid.rank(worker, tp_rank), place_of(device)
    choice = choose_way(store, _NAME, rank, grid.size, place, timeout)
    if choice.way is Way.NCCL:
        if rank in choice.beside_others:
            os.environ.setdefault(_HOST_ID, f"{place.host}/{place.device}")
        return join_over_nccl(*common, device, stream, prove)
    waiting = most_waiting(stream, grid.pipelines)
    return CudaIpcTransport(*common, CudaSharedDevice(device), waiting, standstill, prove)


def neighbours_of(stream: Sequence[Instruction], worker: Worker, pipelines: int) -> list[Worker]:
    """Workers that a worker's stream sends something to, or receives something from."""
    channels = channels_of(stream, worker, pipelines)
    return sorted({end for channel in channels for end in channel} - {worker})


def device_of(name: str) -> torch.device:
    """The device of a worker process: `cpu`, `cuda`, or SHARED_DEVICE; CUDA starts, DeviceStartError if not.

    A process has one device of CUDA, the first that it sees.
    """
    if name == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    # The first backward finds no context in autograd's thread and makes one, as it should.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
    if name != SHARED_DEVICE:
        # An agent has done so before the user's code was loaded; other launchers of workers have not.
        set_environment()
        _sleep_while_waiting()
    device = torch.device("cuda", 0)
    try:
        torch.cuda.init()
        torch.cuda.set_device(device)
    except (RuntimeError, AssertionError) as error:
        raise DeviceStartError(
            f"CUDA does not start on {_first_name() or 'the first GPU'}: {str(error).partition(chr(10))[0]}\n"
            "hint: `recycle-run doctor` lists devices; a GPU may have failed, or MIG mode been switched"
        ) from error
    return device


_ASLEEP = 4
"""CUDA's flag for a context whose host threads are woken, CU_CTX_SCHED_BLOCKING_SYNC."""


def _sleep_while_waiting() -> None:
    """Have threads sleep that wait for the GPU; in time only before CUDA starts.

    They would spin. On six GPUs beside 16 cores that kept NCCL's own threads, which carry messages over
    sockets, from running: a step took 2.0 times as long. Where the driver does not know it, they spin.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        set_flags: Any = driver.cuDevicePrimaryCtxSetFlags_v2
    except (OSError, AttributeError):
        return
    if driver.cuInit(0) == 0:
        set_flags(0, _ASLEEP)


def place_of(device: torch.device) -> ProcessPlace:
    """Of this process."""
    properties: Any = torch.cuda.get_device_properties(device)
    gpu, name = str(properties.uuid), _first_name()
    return ProcessPlace(socket.gethostname(), name if name.startswith("MIG-") else gpu, gpu)


def _first_name() -> str:
    """Name of the first device that this process sees; empty if it sees all."""
    return os.environ.get(VARIABLE, "").partition(",")[0].strip()


def decide(places: Sequence[ProcessPlace]) -> Way:
    """PlacementError if devices are neither one for each nor one for all."""
    devices, hosts = {place.device for place in places}, {place.host for place in places}
    if len(devices) == len(places):
        return Way.NCCL
    if len(devices) == 1 and len(hosts) == 1:
        return Way.SHARED_GPU
    raise PlacementError(
        f"{len(places)} processes have {len(devices)} different GPUs on {len(hosts)} hosts: "
        f"{_listed(places)}\n"
        "hint: give every process a GPU of its own, or all of them the same one on one host "
        "(CUDA_VISIBLE_DEVICES says which GPUs a process sees)"
    )


def beside_others(places: Sequence[ProcessPlace]) -> list[int]:
    """Ranks that share their GPU, and not their device, with another rank of their host."""
    devices: dict[tuple[str, str], set[str]] = {}
    for place in places:
        devices.setdefault((place.host, place.gpu), set()).add(place.device)
    return [rank for rank, place in enumerate(places) if len(devices[place.host, place.gpu]) > 1]


def choose_way(
    store: dist.Store, name: str, rank: int, size: int, place: ProcessPlace, timeout: timedelta
) -> TransportChoice:
    """The same for every process at this store; each of them must call it."""
    store = dist.PrefixStore(f"{name}/places", store)
    store.set(str(rank), json.dumps(place))
    if rank == 0:
        try:
            places = _all_places(store, size, timeout)
            answer = {"way": decide(places).name, "beside": beside_others(places)}
        except PlacementError as error:
            answer = {"error": str(error)}
        store.set(_ANSWER, json.dumps(answer))
    store.wait([_ANSWER], timeout + _GRACE)
    answer = json.loads(store.get(_ANSWER))
    if "error" in answer:
        raise PlacementError(answer["error"])
    return TransportChoice(Way[answer["way"]], frozenset(answer["beside"]))


def _all_places(store: dist.Store, size: int, timeout: timedelta) -> list[ProcessPlace]:
    give_up = time.monotonic() + timeout.total_seconds()
    for rank in range(size):
        left = max(give_up - time.monotonic(), 0.001)
        try:
            store.wait([str(rank)], timedelta(seconds=left))
        except StoreError:
            # The workers are being regrouped, and nobody is late.
            raise
        except RuntimeError:
            missing = [str(other) for other in range(size) if not store.check([str(other)])]
            raise PlacementError(
                f"{len(missing)} of {size} processes have not said which GPU they have "
                f"in {timeout.total_seconds():.0f} s: ranks {', '.join(missing[:_LISTED])}"
            ) from None
    return [ProcessPlace(*json.loads(store.get(str(rank)))) for rank in range(size)]


def _listed(places: Sequence[ProcessPlace]) -> str:
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault((place.device, place.host), []).append(rank)
    rows = [f"{device} on {host}: rank {', '.join(map(str, who))}" for (device, host), who in ranks.items()]
    more = f"; and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return "; ".join(rows[:_LISTED]) + more
