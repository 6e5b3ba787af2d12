"""How many bytes a piece of work leaves alive.

On CUDA the allocator knows. On the CPU a dispatch mode sees the result of every operation, in forward and in
backward, and keeps a weak reference to its storage: what is still alive is what the work holds. Storages that
were there before (parameters, gradients, constants of the model) are not counted.
"""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOW = {
    "cpu": "storages alive, by weak reference, of every operation's result",
    "cuda": "torch.cuda.memory_allocated",
}
"""Where the numbers come from, for the profile."""


@contextmanager
def counting(device: torch.device) -> Generator[Callable[[], int]]:
    """Gives a function that says how many bytes are held that were not when this was entered."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.memory_allocated(device) - before
        return
    with _LiveStorages() as storages:
        yield storages.held


class _LiveStorages(TorchDispatchMode):
    """Remembers every storage that an operation has made, for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
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
            if storage._cdata not in self._foreign:
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
