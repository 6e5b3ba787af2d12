"""The state of a stage, from a process that has it to one that needs it.

Parameters, buffers, the optimizer's state and the stepper's, in one message between two ranks. What arrives
is read as tensors and plain numbers only.
"""

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.execution.stage import Stage
from recycle_runtime.transport.gloo import meet

_PIECE = 64 << 20


def state_of(stage: Stage) -> dict[str, Any]:
    """Everything that makes this stage what it is, between two steps; nothing is copied."""
    stepper = stage.stepper
    return {
        "model": stage.module.state_dict(),
        "optimizer": stepper.optimizer.state_dict(),
        "stepper": stepper.state_dict(),
    }


def pack(stage: Stage) -> torch.Tensor:
    """The state of a stage as bytes."""
    buffer = io.BytesIO()
    torch.save(state_of(stage), buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def state_bytes(stage: Stage) -> int:
    """About how many bytes a copy takes: parameters, buffers and what the optimizer keeps."""
    kept = (value for state in stage.stepper.optimizer.state.values() for value in state.values())
    tensors = [*stage.module.parameters(), *stage.module.buffers()]
    tensors += [value for value in kept if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def unpack(stage: Stage, data: torch.Tensor) -> None:
    """Become what the sender was."""
    state: Any = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
    load(stage, state)


def load(stage: Stage, state: dict[str, Any]) -> None:
    """Take over a state that was read or received."""
    stage.module.load_state_dict(state["model"])
    stage.buffers.forget()
    if stage.stepper.gradients.parameters:
        stage.stepper.optimizer.load_state_dict(state["optimizer"])
    stage.stepper.load_state_dict(state["stepper"])
    stage.is_whole = True
    stage.is_fresh = False


def send(
    stage: Stage, store: dist.Store, name: str, patience: timedelta, meanwhile: Callable[[], None]
) -> int:
    """To the one who waits under this name; how many bytes it took."""
    return send_bytes(pack(stage), store, name, patience, meanwhile)


def send_bytes(
    data: torch.Tensor, store: dist.Store, name: str, patience: timedelta, meanwhile: Callable[[], None]
) -> int:
    """The same, of a state that was packed before."""
    group = _pair(store, name, 0, patience)
    group.send([torch.tensor([data.numel()])], 1, 0).wait()
    meanwhile()
    for piece in data.split(_PIECE):
        group.send([piece], 1, 0).wait()
    # The other end says that it has everything, so that nothing is closed too early.
    group.recv([torch.empty(1, dtype=torch.int64)], 1, 0).wait()
    return data.numel()


def receive_bytes(
    store: dist.Store, name: str, patience: timedelta, meanwhile: Callable[[], None]
) -> torch.Tensor:
    """What arrives, as it is."""
    group = _pair(store, name, 1, patience)
    size = torch.empty(1, dtype=torch.int64)
    group.recv([size], 0, 0).wait()
    meanwhile()
    data = torch.empty(int(size), dtype=torch.uint8)
    for piece in data.split(_PIECE):
        group.recv([piece], 0, 0).wait()
    group.send([size], 0, 0).wait()
    return data


def _pair(store: dist.Store, name: str, rank: int, patience: timedelta) -> Any:
    return meet(dist.PrefixStore(name, store), rank, 2, patience)
