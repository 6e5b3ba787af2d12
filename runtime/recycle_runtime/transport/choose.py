"""Which transport the workers of a job use, and which device a worker of this machine gets.

NCCL wants a GPU for every process; memory can be shared where all processes have the same one. Nothing in
between works, and a wrong guess hangs. So nobody guesses: every process says where it is, the first one looks
at all of it, and everyone does what that one says.
"""

import json
import socket
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

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
_ANSWER = "answer/way"
"""Not beside what all have said: whoever asks for a key may be told all that lies beside it."""
_LISTED = 8
_GRACE = timedelta(seconds=10)
"""How much longer all but the first wait, so that they hear why it gave up."""


class PlacementError(RuntimeError):
    """Processes and GPUs do not fit together."""


class Way(Enum):
    """What is used between processes."""

    SHARED_GPU = "memory of the GPU that all share"
    NCCL = "NCCL, a GPU for each"


class Place(NamedTuple):
    """Where a process is."""

    host: str
    gpu: str
    """As the driver names it, the same for every process that uses it."""


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
    rank = grid.rank(worker, tp_rank)
    if choose_way(store, _NAME, rank, grid.size, place_of(device), timeout) is Way.NCCL:
        return join_over_nccl(*common, device, stream, prove)
    waiting = most_waiting(stream, grid.pipelines)
    return CudaIpcTransport(*common, CudaSharedDevice(device), waiting, standstill, prove)


def neighbours_of(stream: Sequence[Instruction], worker: Worker, pipelines: int) -> list[Worker]:
    """Workers that a worker's stream sends something to, or receives something from."""
    channels = channels_of(stream, worker, pipelines)
    return sorted({end for channel in channels for end in channel} - {worker})


def device_of(name: str) -> torch.device:
    """The device of a worker process, such as `cpu`, `cuda` or `cuda:3`; it becomes the current one."""
    if name == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    # The first backward finds no context in autograd's thread and makes one, as it should.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
    if ":" in name:
        # Whoever names a GPU has one for each worker.
        set_environment()
    device = torch.device("cuda", torch.device(name).index or 0)
    torch.cuda.set_device(device)
    return device


def place_of(device: torch.device) -> Place:
    """Of this process."""
    properties: Any = torch.cuda.get_device_properties(device)
    return Place(socket.gethostname(), str(properties.uuid))


def local_device(number: int, gpus: int) -> str:
    """For the process of this number on a machine with so many GPUs; with one, they share it."""
    return "cuda" if gpus == 1 else f"cuda:{number % gpus}"


def decide(places: Sequence[Place]) -> Way:
    """PlacementError if GPUs are neither one for each nor one for all."""
    gpus, hosts = {place.gpu for place in places}, {place.host for place in places}
    if len(gpus) == len(places):
        return Way.NCCL
    if len(gpus) == 1 and len(hosts) == 1:
        return Way.SHARED_GPU
    raise PlacementError(
        f"{len(places)} processes have {len(gpus)} different GPUs on {len(hosts)} hosts: {_listed(places)}\n"
        "hint: give every process a GPU of its own, or all of them the same one on one host "
        "(CUDA_VISIBLE_DEVICES says which GPUs a process sees)"
    )


def choose_way(store: dist.Store, name: str, rank: int, size: int, place: Place, timeout: timedelta) -> Way:
    """The same for every process at this store; each of them must call it."""
    store = dist.PrefixStore(f"{name}/places", store)
    store.set(str(rank), json.dumps(place))
    if rank == 0:
        try:
            answer = {"way": decide(_all_places(store, size, timeout)).name}
        except PlacementError as error:
            answer = {"error": str(error)}
        store.set(_ANSWER, json.dumps(answer))
    store.wait([_ANSWER], timeout + _GRACE)
    answer = json.loads(store.get(_ANSWER))
    if "error" in answer:
        raise PlacementError(answer["error"])
    return Way[answer["way"]]


def _all_places(store: dist.Store, size: int, timeout: timedelta) -> list[Place]:
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
    return [Place(*json.loads(store.get(str(rank)))) for rank in range(size)]


def _listed(places: Sequence[Place]) -> str:
    ranks: dict[Place, list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(place, []).append(rank)
    rows = [f"{gpu} on {host}: rank {', '.join(map(str, who))}" for (host, gpu), who in ranks.items()]
    more = f"; and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return "; ".join(rows[:_LISTED]) + more
