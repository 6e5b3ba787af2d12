"""The state of a stage, from a process that has it to one that needs it.

Parameters, buffers, the optimizer's state and the stepper's, in one message between two ranks. What arrives
is read as tensors and plain numbers only.
"""

import io
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.stage import Stage

_PIECE = 64 << 20


def pack(stage: Stage) -> torch.Tensor:
    """Everything that makes this stage what it is, as bytes."""
    stepper = stage.stepper
    state = {
        "model": stage.module.state_dict(),
        "optimizer": stepper.optimizer.state_dict(),
        "stepper": stepper.state_dict(),
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


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


def send(stage: Stage, store: dist.Store, name: str, patience: timedelta) -> int:
    """To the one who waits under this name; how many bytes it took."""
    data = pack(stage)
    group = _pair(store, name, 0, patience)
    group.send([torch.tensor([data.numel()])], 1, 0).wait()
    for piece in data.split(_PIECE):
        group.send([piece], 1, 0).wait()
    # The other end says that it has everything, so that nothing is closed too early.
    group.recv([torch.empty(1, dtype=torch.int64)], 1, 0).wait()
    return data.numel()


def receive(stage: Stage, store: dist.Store, name: str, patience: timedelta) -> int:
    """From the one who sends under this name; how many bytes it took."""
    stage.is_whole = False
    group = _pair(store, name, 1, patience)
    size = torch.empty(1, dtype=torch.int64)
    group.recv([size], 0, 0).wait()
    data = torch.empty(int(size), dtype=torch.uint8)
    for piece in data.split(_PIECE):
        group.recv([piece], 0, 0).wait()
    group.send([size], 0, 0).wait()
    unpack(stage, data)
    return data.numel()


def _pair(store: dist.Store, name: str, rank: int, patience: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    return gloo(dist.PrefixStore(name, store), rank, 2, patience)
