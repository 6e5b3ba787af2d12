"""The work on a micro-batch as CUDA graphs: captured once for each buffer of a plan, then replayed.

A plan says which buffer holds a micro-batch from its forward to the end of its backward, so F, I and W (or F
and B) of a buffer use the same memory in every step. Replayed, they cost the host next to nothing. A set of
graphs belongs to a chunk and a buffer: another plan that uses the same buffers finds them ready.

    first steps      eager; what a buffer takes in is remembered
    between steps    buffers that were used twice with the same shapes are captured; nothing is computed
    from then on     inputs are copied into the graph's memory, and the graph is replayed

Capturing waits until no eager work is alive, since a graph must not depend on anything outside. The device's
random numbers are those that eager forwards draw (see `forward_random`). What cannot be captured stays eager,
and one line in the log says why: forwards that draw random numbers on the host, and whatever asks the device
for a number, with the line that does. The first forward of a buffer may wait: there libraries set themselves
up, and constants come to the device. Other shapes than those captured are computed eagerly.
"""

import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.optimizer.gradients import Written
from recycle_runtime.execution.shapes import as_tuple, numbers_with_gradient
from recycle_runtime.program.copies import has_hooks
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.glue_reads import captured_reads
from recycle_runtime.program.user_frames import Frame, frames_of, frames_text, place_text, without_torch

_USES = 2
"""Eager uses of a buffer before it is captured: libraries set themselves up in the first."""
_FRAMES = 8
"""Of the stack of what cannot be captured, in an error."""

_WAITS = "synchronizing CUDA operation"
_PROTOTYPE = "Synchronization debug mode"
"""Start of torch's warning that its detection of synchronizing operations is a prototype; it is ignored."""

_log = logging.getLogger(__name__)


class InputSpec(NamedTuple):
    """Of what goes into a forward: another look needs other graphs."""

    inputs: tuple[tuple[torch.Size, torch.dtype], ...]
    texts: tuple[tuple[int, ...], ...]
    """Those inputs that stay on the host, which come first."""
    target: tuple[torch.Size, torch.dtype] | tuple[()] | None
    """Empty: the loss is in the output of the model, and there is no target beside its inputs."""
    share: float
    """Of the loss of the micro-batch in that of the step."""
    splits: bool
    """True if gradients of weights are computed later."""


class _WeightGraph(NamedTuple):
    """Some gradients of weights."""

    graph: Any
    """None where there is nothing to compute."""
    written: Written


class GraphedWork:
    """F, I and W, or F and B, of one buffer."""

    def __init__(self, chunk: Chunk, look: InputSpec) -> None:
        """Captures them; whatever keeps it from that is raised, and nothing has changed."""
        device = chunk.setting.device
        self.places = _addresses(chunk)
        """Of what it reads and writes beside its own memory."""
        self._pool: Any = torch.cuda.graph_pool_handle()
        # One for all captures: a backward runs on the stream of its forward, and what only deferred weights
        # hang on would never come back from there to another one that is being captured.
        self._aside = torch.cuda.Stream()
        wants_gradients = not chunk.is_first
        texts = tuple(torch.tensor(text, dtype=torch.uint8) for text in look.texts)
        self._inputs = texts + tuple(
            torch.zeros(shape, dtype=dtype, device=device).requires_grad_(
                wants_gradients and dtype.is_floating_point
            )
            for shape, dtype in look.inputs[len(texts) :]
        )
        self._target: Any = look.target
        if look.target:
            self._target = torch.zeros(look.target[0], dtype=look.target[1], device=device)
        outputs: list[torch.Tensor] = []

        def forward() -> None:
            with captured_reads():
                output = chunk.forward(self._inputs, 0, 0)
            if chunk.is_last:
                outputs.append(chunk.loss(output, self._target) * look.share)
            else:
                outputs.extend(as_tuple(output))

        self._chunk = chunk
        self._generators = chunk.random.generators(chunk.drawn_from)
        with chunk.random.capturing(self._generators):
            self._forward = self._captured(forward, self._generators.values())
        self.outputs = tuple(output.detach() for output in outputs)
        self.trained = [output.requires_grad for output in outputs]
        """True for outputs that the chunk trains through."""
        self._arriving = [
            None if chunk.is_last or not trained else torch.zeros_like(output)
            for output, trained in zip(self.outputs, self.trained, strict=True)
        ]
        works: list[Any] = []

        def backward() -> None:
            if look.splits:
                works.append(chunk.split.backward_input(outputs, self._arriving))
            else:
                chunk.split.backward(outputs, self._arriving)

        accumulated = chunk.stepper.gradients
        before = accumulated.versions()
        self._backward = self._captured(backward)
        self._written = accumulated.written_since(before)
        self.reached = numbers_with_gradient(self._inputs)
        """Inputs that have gradients."""
        self._gradients = [_taken(tensor) for tensor in self._inputs if tensor.requires_grad]
        groups = accumulated.early_groups if look.splits else []
        self._weights: list[_WeightGraph] = []
        """One after which the gradients of a group of parameters are complete, of each; and the rest."""
        for part in works[0].cut(groups) if look.splits else ():
            before = accumulated.versions()
            graph = None if part.is_empty else self._captured(part.run)
            self._weights.append(_WeightGraph(graph, accumulated.written_since(before)))

    def forward(self, inputs: Sequence[torch.Tensor], target: Any, step: int, index: int) -> None:
        """`outputs` are those of this micro-batch until the next forward."""
        self._chunk.random.give_seeds(self._generators, step, index)
        with torch.no_grad():
            for own, given in zip(self._inputs, inputs, strict=True):
                if own.is_cuda:
                    own.copy_(given, non_blocking=True)
            if isinstance(target, torch.Tensor):
                self._target.copy_(target, non_blocking=True)
        self._forward.replay()

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The gradients of the inputs, for the caller to keep."""
        for own, given in zip(self._arriving, gradients, strict=True):
            if own is not None and given is not None:
                own.copy_(given, non_blocking=True)
        self._backward.replay()
        self._chunk.stepper.gradients.touch(self._written)
        return [gradient.clone() for gradient in self._gradients]

    def run(
        self, groups: Sequence[Sequence[torch.Tensor]] = (), after_group: Callable[[], None] = lambda: None
    ) -> None:
        """The gradients of the weights, where they come later; groups are those of the capture, or none."""
        assert self._weights, "B has computed them"
        for number, (graph, written) in enumerate(self._weights):
            if graph is not None:
                graph.replay()
                self._chunk.stepper.gradients.touch(written)
            if number < len(groups):
                after_group()

    def _captured(self, work: Callable[[], None], generators: Iterable[Any] = ()) -> Any:
        graph: Any = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        aside = self._aside
        aside.wait_stream(torch.cuda.current_stream())
        numbers = torch.cuda.default_generators[torch.cuda.current_device()].clone_state()
        with torch.cuda.stream(aside):
            # Other threads of this process, which copy data or numbers, are not in the graph.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
                graph.capture_end()
            except BaseException:
                _end_broken(graph, numbers)
                raise
        torch.cuda.current_stream().wait_stream(aside)
        return graph


class ChunkGraphs:
    """The graphs of a chunk, which keeps them from one plan to the next."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._made: dict[tuple[int, InputSpec], GraphedWork] = chunk.graphs
        self._seen: dict[tuple[int, InputSpec], int] = {}
        self._is_first_use = False
        """True if the forward that is computed eagerly now is the first of its buffer."""
        self._waits: tuple[Frame, ...] = ()
        """Stack of a forward where it has waited for the device."""
        self._why_not = ""
        """Reason why a micro-batch could not be copied into a graph's memory."""

    def refuse(self, why: str) -> None:
        """A micro-batch cannot be copied into a graph's memory: say so between steps."""
        self._why_not = why

    def find(self, buffer: int, look: InputSpec) -> GraphedWork | None:
        """Work that was captured for this buffer and shape; None if it is to be computed eagerly."""
        if self._chunk.cannot_capture or not torch.is_grad_enabled() or not self._chunk.module.training:
            return None
        found = self._made.get((buffer, look))
        if found is None:
            uses = self._seen[buffer, look] = self._seen.get((buffer, look), 0) + 1
            self._is_first_use = uses == 1
        return found

    @contextmanager
    def watching(self) -> Generator[None]:
        """Around an eager forward: one that asks the device for a number cannot be captured.

        Nothing is watched where something else is known to keep it from that: torch warns of whatever waits
        in any thread, and prints that itself in threads that are not Python's, as those of communicators.
        """
        if self._chunk.cannot_capture or not self._seen or self._refused():
            yield
            return
        with self._chunk.random.watching():
            if self._is_first_use:
                yield
                return
            with _noticing_waits() as waits:
                yield
        if waits and not self._waits:
            self._waits = waits[0]

    def between_steps(self) -> None:
        """Capture what is due: no eager work is alive now."""
        if self._chunk.cannot_capture:
            return
        if self._made and next(iter(self._made.values())).places != _addresses(self._chunk):
            # Parameters were replaced and not written to: what was captured reads the old ones.
            self._made.clear()
        due = [key for key, uses in self._seen.items() if uses >= _USES]
        if not due and not self._why_not:
            return
        if why := self._refused():
            self._give_up(why, self._waits)
            return
        # What is captured can wait for nothing outside of it.
        self._chunk.arrive(None)
        self._chunk.split.refresh()
        torch.cuda.synchronize()
        for key in due:
            del self._seen[key]
            try:
                self._made[key] = GraphedWork(self._chunk, key[1])
            except Exception as error:
                words = " ".join(str(error).split())[:200] or type(error).__name__
                self._give_up(words, without_torch(frames_of(error)))
                return
        _log.info("chunk %d: captured %d buffers as CUDA graphs", self._chunk.number, len(due))

    def _refused(self) -> str:
        """Reason why nothing is to be captured; empty if it can be tried."""
        chunk = self._chunk
        if self._why_not:
            return self._why_not
        if chunk.random.draws_on_host:
            return "its forwards draw random numbers on the host"
        if chunk.setting.group is not None or chunk.has_distributed:
            # A graph would keep the communicator of a group that is left.
            return "its forwards may talk to other tensor-parallel ranks"
        if any(has_hooks(parameter) for parameter in chunk.module.parameters()):
            # Replayed, the user's function would not be called any more.
            return "a parameter has a hook on its gradient"
        return "its forwards wait for the device, as .item() does" if self._waits else ""

    def _give_up(self, why: str, frames: Sequence[Frame]) -> None:
        if frames:
            why = f"{why}: {place_text(frames[-1])}"
        self._chunk.cannot_capture = why
        self._made.clear()
        self._seen.clear()
        if self._chunk.setting.graphs == "on":
            what = f"{self._chunk.program.path}: chunk {self._chunk.number}"
            stack = frames_text(frames[-_FRAMES:])
            raise ProgramError(
                f"{what} cannot be captured as CUDA graphs: {why}" + (f"\n{stack}" if stack else ""),
                "--cuda-graphs auto computes it without",
            )
        _log.warning("chunk %d is not captured as CUDA graphs: %s", self._chunk.number, why)


@contextmanager
def _noticing_waits() -> Generator[list[tuple[Frame, ...]]]:
    """The stacks of whatever waits for the device in this thread; other threads wait as they like."""
    found: list[tuple[Frame, ...]] = []
    own, show = threading.get_ident(), warnings.showwarning

    def take(message: Warning | str, *about: Any) -> None:
        text = str(message)
        if _WAITS in text:
            if threading.get_ident() == own:
                found.append(without_torch(_stack(inspect.currentframe())))
        elif _PROTOTYPE not in text:
            show(message, *about)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = take
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _stack(frame: FrameType | None) -> tuple[Frame, ...]:
    """From the outermost to this one, without this module's."""
    found: list[Frame] = []
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


def _end_broken(graph: Any, numbers: Any) -> None:
    """Leave the device and its random numbers as if nothing had been tried."""
    try:
        graph.capture_end()
    except RuntimeError:
        # The capture is invalid, which is known.
        torch.cuda.synchronize()
    # The generator still believes that it is being captured, and would refuse to draw ever after.
    torch.cuda.default_generators[torch.cuda.current_device()].graphsafe_set_state(numbers)


def _taken(tensor: torch.Tensor) -> torch.Tensor:
    gradient = tensor.grad
    tensor.grad = None
    return torch.zeros_like(tensor) if gradient is None else gradient


def _addresses(chunk: Chunk) -> list[int]:
    """Of parameters, their gradients and buffers."""
    found: list[int] = []
    for parameter in chunk.module.parameters():
        found.append(parameter.data_ptr())
        if parameter.grad is not None:
            found.append(parameter.grad.data_ptr())
    return [*found, *(buffer.data_ptr() for buffer in chunk.module.buffers())]
