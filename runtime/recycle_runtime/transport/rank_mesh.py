"""The ranks of this process's worker as programs of torch know them: default process group and DeviceMesh.

`torch.distributed` has one default group in a process. Here it is that of the worker's tensor-parallel ranks,
of one rank where there is no tensor parallelism: `init_device_mesh`, `parallelize_module` and collectives
without a group use it. It stays the same object while workers regroup (`user_group.StandingGroup`).
"""

import functools
import warnings
from typing import Any, cast

import torch
import torch.distributed as dist

from recycle_runtime.transport.user_group import StandingGroup

_c10d: Any = dist.distributed_c10d
_KIND = "recycle"
"""The name of its backend."""


class _Ranks:
    """Of this process's worker."""

    group: StandingGroup | None = None
    device_type: str = "cpu"


def belong_to_worker(rank: int, size: int, device: torch.device) -> None:
    """Make the default group of this process: one of so many ranks. Nothing is connected yet."""
    group = StandingGroup(rank, size)
    _Ranks.group, _Ranks.device_type = group, device.type
    name, world, store = group.group_name, _c10d._world, dist.PrefixStore(_KIND, dist.HashStore())
    world.pg_map[group] = (_KIND, store)
    world.pg_names[group] = name
    world.pg_group_ranks[group] = {each: each for each in range(size)}
    world.pg_backend_config[group] = _KIND
    world.pg_to_tag[group] = "default"
    world.tags_to_pg["default"] = [group]
    world.tags_to_pg.setdefault("", []).append(group)
    _c10d._update_default_pg(group)
    if size > 1:
        # Now, and not with the first `mesh()`: programs may make meshes themselves.
        distribute_without_messages()


def standing_group(rank: int, size: int) -> StandingGroup:
    """The default group of this process, if it is that of such a rank; else one of its own."""
    group = _Ranks.group
    if group is not None and (group.rank(), group.size()) == (rank, size):
        return group
    return StandingGroup(rank, size)


def mesh() -> Any:
    """The `torch.distributed.device_mesh.DeviceMesh` of this worker's tensor-parallel ranks.

    It has one dimension, "tensor", and one rank where there is no tensor parallelism, or no job.
    """
    if _Ranks.group is None:
        belong_to_worker(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    group = cast(StandingGroup, _Ranks.group)
    return _mesh_of(group, _Ranks.device_type)


@functools.cache
def _mesh_of(group: StandingGroup, device_type: str) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    with warnings.catch_warnings():
        # Of devices that nobody has chosen: a process sees its own device alone.
        warnings.simplefilter("ignore")
        made: Any = DeviceMesh.from_group(group, device_type, mesh_dim_names=("tensor",))
    distribute_without_messages()
    return made


def distribute_without_messages() -> None:
    """All ranks of a worker build the same numbers, so `parallelize_module` and `distribute_tensor` take each
    rank's part of its own unless they are told otherwise: they are also called where no group is joined."""
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.parallel import parallelize_module

    for function in (distribute_tensor, parallelize_module):
        options = function.__kwdefaults__
        if options is not None and "src_data_rank" in options:
            options["src_data_rank"] = None
