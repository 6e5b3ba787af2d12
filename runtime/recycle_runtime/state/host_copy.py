"""Tensors copied to host memory, which is used again each time.

On a GPU, copies are made behind what is queued on the current stream. Python's lock is not held meanwhile: a
device may be waiting for other workers, and then another thread has to end that.
"""

import threading

import torch

from recycle_runtime.weights.tensor_bytes import as_type, size_of

_ALIGNED = 64


class HostCopy:
    """One piece of memory for all tensors of a state."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._preparing: threading.Thread | None = None

    def prepare(self, tensors: dict[str, torch.Tensor]) -> None:
        """Have memory for these soon: a thread sees to it, since new memory takes longer than the copy."""
        if self._preparing is None:
            self._preparing = threading.Thread(target=self._grow, args=(tensors,), daemon=True)
            self._preparing.start()

    def take(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies, good until the next call; what they were taken from may change once this returns."""
        if self._preparing is not None:
            self._preparing.join()
        self._grow(tensors)
        return copied_into(self._memory, tensors)

    def _grow(self, tensors: dict[str, torch.Tensor]) -> None:
        size = size_together(tensors)
        if self._memory.numel() < size:
            # From memory that cannot be moved, a GPU copies several times as fast.
            is_pinned = _is_on_device(tensors)
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
            if not is_pinned:
                # Other memory is there only when it has been written to.
                self._memory.zero_()


def copied_into(memory: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies in memory that is large enough; what they were taken from may change once this returns."""
    places, _ = places_of(tensors)
    on_device = _is_on_device(tensors)
    copies = {name: _view(memory, places[name], tensor) for name, tensor in tensors.items()}
    with torch.no_grad():
        for name, copy in copies.items():
            copy.copy_(tensors[name], non_blocking=on_device)
    if on_device:
        # Not the whole device: another stream may wait for other workers.
        torch.cuda.current_stream().synchronize()
    return copies


def size_together(tensors: dict[str, torch.Tensor]) -> int:
    """Bytes of memory that their copies take."""
    return places_of(tensors)[1]


def _view(memory: torch.Tensor, place: int, tensor: torch.Tensor) -> torch.Tensor:
    return as_type(memory[place : place + size_of(tensor)], tensor.dtype, tensor.shape)


def places_of(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, int], int]:
    """Offset of each tensor in bytes, and the end of the last one."""
    places: dict[str, int] = {}
    end = 0
    for name, tensor in tensors.items():
        places[name] = end
        end += -(-size_of(tensor) // _ALIGNED) * _ALIGNED
    return places, end


def _is_on_device(tensors: dict[str, torch.Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors.values())
