"""What the NCCL transport needs of CUDA: communicators, and the GPU's queue of work."""

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.transport.channels import channels_of
from recycle_runtime.transport.grid import Grid
from recycle_runtime.transport.nccl import NcclTransport
from recycle_runtime.transport.user_group import user_group

ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
"""Communicators wait on the GPU. With few hardware queues a computation may stand behind such a wait, and
loading a kernel at its first use may wait for all that runs; both could make two GPUs wait for each other."""

_MOST_CHANNELS = 28
"""The hardware has 32 queues; computation, sums and copies take some."""
_MOST_BLOCKS = 8
_SHARE = 4
"""All channels of a worker together may take one part in so many of the GPU while they wait."""


def set_environment() -> None:
    """What the user has not set; in time only before the first call of CUDA."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def join_over_nccl(
    store: dist.Store,
    name: str,
    grid: Grid,
    worker: Worker,
    part: int,
    timeout: timedelta,
    device: torch.device,
    stream: Sequence[Instruction],
) -> NcclTransport:
    """The transport of a worker that has this GPU to itself."""
    if not dist.is_nccl_available():
        raise RuntimeError("every worker has a GPU of its own, but this torch was built without NCCL")
    channels = len(channels_of(stream, worker))
    wanted = [f"{key}={value}" for key, value in ENVIRONMENT.items() if os.environ.get(key) != value]
    if channels and wanted:
        said = f"messages over NCCL may hang unless the environment has {' '.join(wanted)}"
        warnings.warn(said, stacklevel=2)
    if channels > _MOST_CHANNELS:
        warnings.warn(
            f"worker {worker[0]}:{worker[1]} has {channels} channels; with more than {_MOST_CHANNELS} a send "
            "may share a hardware queue with a receive, and messages over NCCL may hang",
            stacklevel=2,
        )
    groups = NcclGroups(device, timeout, channels)
    return NcclTransport(store, name, grid, worker, part, timeout, stream, groups, CudaComputeStream(device))


class NcclGroups:
    """Communicators of this GPU."""

    def __init__(self, device: torch.device, timeout: timedelta, channels: int) -> None:
        self._device, self._timeout = device, timeout
        processors: int = torch.cuda.get_device_properties(device).multi_processor_count
        self._blocks = max(1, min(_MOST_BLOCKS, processors // (_SHARE * max(1, channels))))
        # One communicator for every channel is what is wanted here.
        warnings.filterwarnings("ignore", message=".*An unbatched P2P op")

    def make(self, store: dist.Store, rank: int, size: int) -> Any:
        return _nccl()(store, rank, size, self._options(high_priority=False))

    def make_channel(self, store: dist.Store, *, sends: bool) -> Any:
        # Streams come from two pools of 32, by priority: a send never shares a stream with a receive.
        options = self._options(high_priority=sends)
        if hasattr(options, "config"):
            options.config.max_ctas = self._blocks
        return _nccl()(store, 0 if sends else 1, 2, options)

    def for_users(self, group: Any) -> Any:
        return user_group(group, dist.ProcessGroup.BackendType.NCCL, ["cuda"])

    def abort(self, groups: Sequence[Any]) -> None:
        # One by one they could wait for each other's kernels.
        groups[0]._group_start()
        try:
            for group in groups:
                group.abort()
        finally:
            groups[0]._group_end()

    def _options(self, *, high_priority: bool) -> Any:
        options = _nccl().Options(is_high_priority_stream=high_priority)
        options._timeout = self._timeout
        return options


class CudaComputeStream:
    """The current stream, and another one for receives that must not wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._posts = torch.cuda.Stream(device)

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def behind(self, marks: Sequence[Any]) -> Generator[None]:
        for mark in marks:
            self._posts.wait_event(mark)
        with torch.cuda.stream(self._posts):
            yield

    def finish(self) -> None:
        torch.cuda.synchronize(self._device)


def _nccl() -> Any:
    """Not there in every build of torch."""
    return vars(dist)["ProcessGroupNCCL"]
