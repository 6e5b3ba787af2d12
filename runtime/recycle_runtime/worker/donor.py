"""A worker that gives its state to a joiner, while both train.

The state is copied aside between two steps, which takes no longer than the device needs for that, and a
thread of its own sends the copy.
"""

import contextlib
import copy
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.surroundings import Surroundings
from recycle_runtime.worker.state_transfer import Meet, pack, send_bytes


class Donor:
    """A copy of a chunk's state, and the thread that sends it."""

    def __init__(
        self,
        chunk: Chunk,
        surroundings: Surroundings,
        meet: Meet,
        names: Sequence[str],
        meanwhile: Callable[[], None],
    ) -> None:
        """The joiners wait under these names."""
        self._state = copied_state(chunk.state())
        self._state["inputs"] = [
            [str(spec.dtype).removeprefix("torch."), *spec.shape]
            for spec in next(iter(chunk.arriving.values()), ())
        ]
        self._state["data"] = copy.deepcopy(chunk.data_position())
        self._meet, self._names, self._meanwhile = meet, names, meanwhile
        self._copied = mark(chunk.module)
        surroundings.start(self._give, "donor")

    async def _give(self) -> None:
        # Whoever it is for may be gone; the next generation deals with that.
        with contextlib.suppress(RuntimeError, WireError):
            with aside(self._copied):
                data = pack(self._state)
            for name in self._names:
                await send_bytes(data, self._meet, name, self._meanwhile)


@contextlib.contextmanager
def aside(after: Any = None) -> Generator[None]:
    """On a GPU, work of its own, not in the queue of those who train; after that mark, if there is one."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        yield
        return
    stream = torch.cuda.Stream()
    if after is not None:
        stream.wait_event(after)
    with torch.cuda.stream(stream):
        yield


def copied_state(value: Any) -> Any:
    """Tensors cloned where they are, everything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied_state(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return type(value)(copied_state(item) for item in value)  # pyright: ignore
    return copy.copy(value)


def mark(module: torch.nn.Module) -> Any:
    """On a GPU, the point in the queue where the copy is complete."""
    parameter = next(module.parameters(), None)
    if parameter is None or parameter.device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event
