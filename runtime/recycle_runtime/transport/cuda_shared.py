"""Memory and events of a GPU that processes share, through CUDA's handles."""

from typing import Any

import torch

from recycle_runtime.transport.cuda_ipc import SharedEvent


class CudaSharedDevice:
    """One GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, size: int) -> torch.Tensor:
        memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        # Torch gives out memory again while work that used it may still be queued on this stream, and nothing
        # but this stream would wait for that.
        torch.cuda.current_stream(self._device).synchronize()
        return memory

    def share(self, memory: torch.Tensor) -> Any:
        fields: Any = memory.untyped_storage()._share_cuda_()  # pyright: ignore[reportPrivateUsage]
        return [{"hex": value.hex()} if isinstance(value, bytes) else value for value in fields]

    def open(self, handle: Any) -> torch.Tensor:
        values = [bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in handle]
        storage: Any = torch.UntypedStorage._new_shared_cuda(*values)  # pyright: ignore
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def new_event(self) -> tuple[SharedEvent, Any]:
        event = torch.cuda.Event(interprocess=True)
        # An event has a handle once it was recorded.
        event.record()
        return event, event.ipc_handle().hex()

    def open_event(self, handle: Any) -> SharedEvent:
        event: Any = torch.cuda.Event.from_ipc_handle(self._device, bytes.fromhex(handle))
        return event
