"""The state of a stage on its way to a worker that comes late, while everybody trains.

The one who has it copies it aside between two steps, which takes no longer than the device needs for that,
and a thread of its own sends the copy. The one who needs it receives it in a thread as well, and puts it
where it can be used at once. On a GPU that thread also runs the stage's operations once, for nobody: loading
them takes longer than a step.
"""

import contextlib
import copy
import io
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.execution.split_backward import prepare
from recycle_runtime.execution.stage import Stage, build_module
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.transport.interface import TensorSpec
from recycle_runtime.worker import copies


class Lesson:
    """A copy of a stage's state, and the thread that sends it."""

    def __init__(
        self,
        stage: Stage,
        store: dist.Store,
        names: Sequence[str],
        patience: timedelta,
        meanwhile: Callable[[], None],
    ) -> None:
        self._state = _copied(copies.state_of(stage))
        self._state["inputs"] = [
            [str(spec.dtype).removeprefix("torch."), *spec.shape]
            for spec in next(iter(stage.arriving.values()), ())
        ]
        self._store, self._names, self._patience, self._meanwhile = store, names, patience, meanwhile
        self._copied = _mark(stage)
        threading.Thread(target=self._give, name="teacher", daemon=True).start()

    def _give(self) -> None:
        # Whoever it is for may be gone; the next generation deals with that.
        with contextlib.suppress(RuntimeError, WireError):
            with _aside(self._copied):
                buffer = io.BytesIO()
                torch.save(self._state, buffer)
            data = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
            for name in self._names:
                copies.send_bytes(data, self._store, name, self._patience, self._meanwhile)


class Pupil:
    """The thread that receives a state and makes it ready."""

    def __init__(
        self,
        stage: Stage,
        stages: int,
        device: torch.device,
        store: dist.Store,
        name: str,
        patience: timedelta,
        meanwhile: Callable[[], None],
    ) -> None:
        self._stage, self._stages, self._device = stage, stages, device
        self._store, self._name, self._patience, self._meanwhile = store, name, patience, meanwhile
        self.state: dict[str, Any] | None = None
        """When it is there."""
        self.error: str | None = None
        """Why it will not come."""
        threading.Thread(target=self._take, name="pupil", daemon=True).start()

    def _take(self) -> None:
        try:
            data = copies.receive_bytes(self._store, self._name, self._patience, self._meanwhile)
            raw = io.BytesIO(data.numpy().tobytes())
            state: dict[str, Any] = torch.load(raw, map_location=self._device, weights_only=True)
            if self._device.type == "cuda":
                with _aside(None):
                    self._warm_up(state["inputs"])
                torch.cuda.synchronize(self._device)
            self.state = state
        except Exception as error:
            self.error = str(error)

    def _warm_up(self, rows: list[list[Any]]) -> None:
        """Every operation once, on a module that is thrown away."""
        stage, program = self._stage.stage, self._stage.program
        module = build_module(program, stage, self._stages, self._stage.seed).to(self._device).train()
        target: Any = None
        inputs: tuple[torch.Tensor, ...] = ()
        if stage == 0 or stage == self._stages - 1:
            data, target = self._stage.data.item(0, 0)
            target = target.to(self._device) if isinstance(target, torch.Tensor) else target
            inputs = tuple(part.to(self._device) for part in (data if isinstance(data, tuple) else (data,)))
        if stage > 0:
            specs = [TensorSpec(tuple(row[1:]), getattr(torch, row[0])) for row in rows]
            inputs = tuple(_empty(spec, self._device) for spec in specs)
        outputs = module(*inputs)
        if stage == self._stages - 1:
            outputs = program.loss(outputs, target)
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        gradients = [torch.ones_like(part) if part.requires_grad else None for part in given]
        prepare(module).backward_input(given, gradients).run()


def _empty(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    tensor = torch.zeros(spec.shape, dtype=spec.dtype, device=device)
    return tensor.requires_grad_(spec.dtype.is_floating_point)


def _copied(value: Any) -> Any:
    """Tensors cloned where they are, everything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return type(value)(_copied(part) for part in value)  # pyright: ignore
    return copy.copy(value)


def _mark(stage: Stage) -> Any:
    """On a GPU, the point in the queue where the copy is complete."""
    parameter = next(stage.module.parameters(), None)
    if parameter is None or parameter.device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event


@contextlib.contextmanager
def _aside(after: Any) -> Any:
    """On a GPU, work of its own, not in the queue of those who train."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        yield
        return
    stream = torch.cuda.Stream()
    if after is not None:
        stream.wait_event(after)
    with torch.cuda.stream(stream):
        yield
