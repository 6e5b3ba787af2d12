"""A process group as users of torch.distributed know it, around one that this runtime has made."""

import itertools
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from recycle_runtime.transport.ending_work import EndingWork


def user_group(backend: Any, kind: Any, devices: Sequence[str]) -> Any:
    """A group that the functions of torch.distributed take, though there is no default group beside it."""
    group: Any = dist.ProcessGroup(dist.HashStore(), backend.rank(), backend.size())
    for device in devices:
        group._register_backend(torch.device(device), kind, backend)
    group._set_default_backend(kind)
    return group


_WITH_LIMITS = (
    "_allgather_base", "allgather", "allreduce", "allreduce_coalesced", "alltoall_base", "barrier",
    "broadcast", "gather", "reduce", "scatter",
)  # fmt: skip
"""Those that gloo waits for only as long as their timeout says."""
_COLLECTIVES = (
    "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced", "all_to_all_single",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "alltoall", "recv", "recv_anysource",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "send", *_WITH_LIMITS,
)  # fmt: skip
_numbers = itertools.count()
_c10d: Any = dist.distributed_c10d


class _Behind(NamedTuple):
    group: Any
    given_up: threading.Event
    is_gloo: bool
    """Waits for NCCL do not keep a thread, and end when its communicators are aborted."""


class StandingGroup(dist.ProcessGroup):
    """A group that modules can keep while the connections behind it are replaced: it passes calls on.

    What waits in it ends when the group behind it is given up. One of a single rank needs no connections.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        self._behind: _Behind | None = None
        self._name = f"recycle-{next(_numbers)}"
        # Functional collectives find groups by their names.
        _c10d._register_process_group(self._name, self)

    def stand_before(self, group: Any, given_up: threading.Event) -> None:
        """The group of this generation; the event is set when it is given up."""
        self._behind = _Behind(group, given_up, is_gloo=group.name() == "gloo")

    def stand_alone(self) -> None:
        """There is no group now."""
        self._behind = None

    @property
    def group_name(self) -> Any:
        return self._name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def getBackendName(self) -> str:  # noqa: N802
        return "recycle"

    def start(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """One of the collectives, in the group of this generation; its work."""
        behind = self._behind
        if behind is None and self.size() == 1:
            behind = self._behind = _Behind(_group_of_one(), threading.Event(), is_gloo=False)
        if behind is None:
            raise RuntimeError(f"{name} was called while this worker is in no group")
        work = getattr(behind.group, name)(*arguments, **options)
        if work is None or not behind.is_gloo:
            return work
        return EndingWork(work, behind.given_up, has_limits=name in _WITH_LIMITS)


def _group_of_one() -> Any:
    gloo: Any = dist.ProcessGroupGloo
    made = gloo(dist.HashStore(), 0, 1, timedelta(minutes=1))
    return user_group(made, dist.ProcessGroup.BackendType.GLOO, ("cpu", "cuda"))


def _passes_on(name: str) -> Any:
    def collective(self: StandingGroup, *arguments: Any, **options: Any) -> Any:
        return self.start(name, arguments, options)

    collective.__name__ = name
    return collective


for _name in _COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(StandingGroup, _name, _passes_on(_name))
