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
