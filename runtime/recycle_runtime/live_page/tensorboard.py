"""The numbers of a run as event files for TensorBoard, whose package is needed for it."""

import importlib.util
import math
from typing import Any

from recycle_runtime.protocol.messages.observers import JobEvent, Recovered, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled


def has_tensorboard() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoardLog:
    """Takes the news of a run; use it in a `with` block."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(folder)
        self._step = 0

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def take(self, message: ToObserver) -> None:
        match message:
            case StepRow():
                self._step = message.step
                self._add("train/loss", message.loss, message.step)
                self._add("train/learning_rate", message.learning_rate, message.step)
                self._add("time/step_seconds", message.seconds, message.step)
                self._add("time/data_wait_seconds", message.data_wait, message.step)
                self._add("workers/live", message.live, message.step)
            case StepSettled():
                self._add("train/gradient_norm", message.norm, message.step)
            case Recovered() if message.causes != ("start",):
                self._add("recovery/seconds", message.total, message.step)
                self._writer.add_text("recovery/cause", ", ".join(message.causes), message.step)
            case JobEvent(text):
                self._writer.add_text("events", text, self._step)
            case _:
                pass

    def _add(self, name: str, value: float | None, step: int) -> None:
        if value is not None and math.isfinite(value):
            self._writer.add_scalar(name, value, step)
