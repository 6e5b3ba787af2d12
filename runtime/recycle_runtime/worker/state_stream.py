"""State that travels while both ends train: a snapshot, then what each step changes.

Whoever gives copies it aside, between two steps, and a thread sends the copies; whoever takes has a thread
that receives them and puts them where they can be used at once.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.surroundings import Queue, Surroundings
from recycle_runtime.state.image import Image, packed, read_image
from recycle_runtime.state.layer_state import Fields, LayerState, apply_states, needed
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.worker.state_transfer import Meet

_CPU = torch.device("cpu")


class Outgoing:
    """States on their way to a process that waits under a name."""

    def __init__(
        self, surroundings: Surroundings, meet: Meet, name: str, meanwhile: Callable[[], None]
    ) -> None:
        self._meet, self._name, self._meanwhile = meet, name, meanwhile
        self._waiting: Queue[tuple[str, list[LayerState], Fields, Any] | None] = surroundings.queue()
        surroundings.start(self._give, "state-donor")

    @property
    def waiting(self) -> int:
        """Count of those that have not been sent."""
        return self._waiting.qsize()

    def put(self, what: str, states: list[LayerState], note: Fields) -> None:
        """Copies of this thread's; they are sent when the device has come to the end of them."""
        on_device = any(tensor.is_cuda for state in states for tensor in state.tensors.values())
        self._waiting.put((what, states, note, _mark() if on_device else None))

    def end(self) -> None:
        """Nothing follows."""
        self._waiting.put(None)

    async def _give(self) -> None:
        # Whoever it is for may be gone; the coordinator deals with that.
        with contextlib.suppress(RuntimeError, WireError, OSError):
            pair = await self._meet(self._name, 0)
            while (entry := await self._waiting.get()) is not None:
                what, states, note, mark = entry
                with _aside(mark):
                    data = packed(what, states, note)
                await pair.send(data, self._meanwhile)
            await pair.end()


class Incoming:
    """States that a process waits for under a name.

    A thread calls `use` with each, and `changed` after that and at the end.
    """

    def __init__(
        self, device: torch.device, use: Callable[[Image], None], changed: Callable[[], None] | None = None
    ) -> None:
        self._device, self._use = device, use
        self._changed = changed or (lambda: None)
        self.error: str | None = None
        """Error because of which nothing more will come."""

    def begin(
        self,
        surroundings: Surroundings,
        meet: Meet,
        name: str,
        largest: int,
        meanwhile: Callable[[], None],
    ) -> None:
        """At most so many bytes are accepted for each."""
        surroundings.start(lambda: self._take(meet, name, largest, meanwhile), "state-joiner")

    async def _take(self, meet: Meet, name: str, largest: int, meanwhile: Callable[[], None]) -> None:
        try:
            pair = await meet(name, 1)
            while (data := await pair.receive(largest, meanwhile)) is not None:
                # In the queue of those who train, a copy would wait for what they wait for.
                with _aside():
                    self._use(image_of(data))
                    if self._device.type == "cuda":
                        torch.cuda.current_stream(self._device).synchronize()
                self._changed()
            self.error = "the donor sends no more"
        except Exception as error:
            self.error = str(error) or type(error).__name__
        self._changed()


def image_of(data: torch.Tensor) -> Image:
    """The image that was sent; RuntimeError if these bytes are something else."""
    if (image := read_image(data)) is None:
        raise RuntimeError("what was sent is no state")
    return image


def states_in(image: Image, chunk: Chunk, device: torch.device = _CPU) -> dict[str, Any]:
    """Those that a chunk consists of, by name."""
    return {name: image.state(name, device=device) for name in needed(chunk, chunk.applied)}


def load_sent(chunk: Chunk, states: dict[str, Any], *, is_stepping: bool = False) -> None:
    """Become what a peer has sent; RuntimeError if that does not fit."""
    try:
        apply_states(chunk, states, "the state of a peer", is_stepping=is_stepping)
    except CheckpointError as error:
        # No checkpoint is at fault, so others may go on.
        raise RuntimeError(str(error)) from None


@contextlib.contextmanager
def _aside(after: Any = None) -> Generator[None]:
    """On a GPU, work of its own, not in the queue of those who train; after that mark, if there is one."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        yield
        return
    stream = torch.cuda.Stream()
    if after is not None:
        stream.wait_event(after)
    with torch.cuda.stream(stream):
        yield


def _mark() -> Any:
    """The point in the queue of a GPU that was reached by now."""
    event = torch.cuda.Event()
    event.record()
    return event
