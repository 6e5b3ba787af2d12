"""A process group as users of torch.distributed know it, around one that this runtime has made."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def user_group(backend: Any, kind: Any, devices: Sequence[str]) -> Any:
    """A group that the functions of torch.distributed take, though there is no default group beside it."""
    group: Any = dist.ProcessGroup(dist.HashStore(), backend.rank(), backend.size())
    for device in devices:
        group._register_backend(torch.device(device), kind, backend)
    group._set_default_backend(kind)
    return group


_COLLECTIVES = (
    "_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced",
    "all_to_all_single", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
    "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "recv",
    "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "scatter", "send",
)  # fmt: skip


class StandingGroup(dist.ProcessGroup):
    """A group that modules can keep while the connections behind it are made anew: it passes calls on."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        self.behind: Any = None
        """The group of this generation."""

    def getBackendName(self) -> str:  # noqa: N802
        return "recycle"


def _passes_on(name: str) -> Any:
    def collective(self: StandingGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(self.behind, name)(*arguments, **options)

    collective.__name__ = name
    return collective


for _name in _COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(StandingGroup, _name, _passes_on(_name))
