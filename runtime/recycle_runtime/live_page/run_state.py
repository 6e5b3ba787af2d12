"""State of a run at a moment, from the news that observers get. No torch."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.observers import (
    Generation,
    Hello,
    JobEnded,
    JobEvent,
    Recovered,
    Starting,
    ToObserver,
)
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

_MOST_STEPS, _MOST_EVENTS = 2000, 200
"""Steps and events that a page shows; a file of metrics has everything."""
_MOST_EARLY = 16
"""Steps of which it is known what became of them before they count."""
_NANOSECONDS = 1e9


class RunState:
    """Takes news on one thread and is read on others."""

    def __init__(
        self, name: str, stages: int, pipelines: int, *, timed: bool, now: Callable[[], float] = time.time
    ) -> None:
        """`timed`: ticks of plans are nanoseconds, and not thousandths of a slot."""
        self._lock = threading.Lock()
        self._now = now
        self._name, self._stages, self._pipelines, self._timed = name, stages, pipelines, timed
        self._began = now()
        self._phase = "starting"
        self._total: int | None = None
        self._live: set[Worker] = set()
        self._standbys, self._generation, self._plan = 0, 0, ""
        self._planned: float | None = None
        self._why = ""
        self._steps: deque[dict[str, Any]] = deque(maxlen=_MOST_STEPS)
        self._early: dict[int, StepSettled] = {}
        """Outcomes of steps that do not count yet."""
        self._recoveries: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)
        self._events: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)
        self.counted = 0
        """Steps that have counted since this was made."""
        self.failures = 0
        """Changes of the group after the start."""
        self.skipped = 0
        self.samples = self.tokens = 0
        self.paused = 0.0
        """Seconds in which the group changed."""

    def take(self, message: ToObserver) -> None:
        with self._lock:
            self._take(message)

    def _take(self, message: ToObserver) -> None:
        match message:
            case Hello(steps, _):
                # A script says how many steps it makes as it goes on.
                self._total = steps if steps < 1 << 40 else None
            case Starting(what):
                self._phase = what
            case Generation():
                self._generate(message)
            case StepRow():
                self._step(message)
            case StepSettled():
                self._settle(message)
            case Recovered():
                self._recover(message)
            case JobEvent(text):
                self._event(text)
            case JobEnded(error, _, _, steps):
                self._phase = "ended" if error is None else f"ended: {error}"
                self._total = steps if error is None else self._total
            case _:
                pass

    def snapshot(self) -> dict[str, Any]:
        """Everything, for the page."""
        with self._lock:
            grid = [
                [self._cell((pipeline, stage)) for stage in range(self._stages)]
                for pipeline in range(self._pipelines)
            ]
            return {
                "name": self._name,
                "phase": self._phase,
                "seconds": round(self._now() - self._began, 3),
                "steps_wanted": self._total,
                "generation": self._generation,
                "plan": self._plan,
                "why": self._why,
                "planned_seconds": self._planned,
                "live": len(self._live),
                "standbys": self._standbys,
                "grid": grid,
                "steps": list(self._steps),
                "recoveries": list(self._recoveries),
                "events": list(self._events),
            }

    def totals(self) -> dict[str, float | None]:
        """Numbers for a system that collects them."""
        with self._lock:
            last = self._steps[-1] if self._steps else {}
            return {
                "step": last.get("step"),
                "loss": last.get("loss"),
                "step_seconds": last.get("seconds"),
                "planned_step_seconds": self._planned,
                "learning_rate": last.get("learning_rate"),
                "gradient_norm": next(
                    (
                        row["gradient_norm"]
                        for row in reversed(self._steps)
                        if row["gradient_norm"] is not None
                    ),
                    None,
                ),
                "workers_live": len(self._live),
                "workers": self._stages * self._pipelines,
                "generation": self._generation,
                "steps_total": self.counted,
                "steps_skipped_total": self.skipped,
                "recoveries_total": self.failures,
                "recovery_seconds_total": self.paused,
                "samples_total": self.samples,
                "tokens_total": self.tokens,
            }

    def _cell(self, worker: Worker) -> str:
        return "live" if worker in self._live else "failed" if self._generation else "starting"

    def _generate(self, message: Generation) -> None:
        self._generation, self._plan = message.number, message.plan
        self._live, self._standbys = set(message.workers), message.standbys
        self._planned = round(message.period / _NANOSECONDS, 9) if self._timed and message.period else None
        self._phase = "training"

    def _step(self, message: StepRow) -> None:
        self.counted += 1
        self.samples += message.samples
        self.tokens += message.tokens
        self._steps.append(
            {
                "step": message.step,
                "loss": _finite(message.loss),
                "seconds": round(message.seconds, 6),
                "planned": self._planned,
                "data_wait": round(message.data_wait, 6),
                "learning_rate": message.learning_rate,
                "gradient_norm": None,
                "skipped": False,
                "live": message.live,
                "plan": message.plan,
            }
        )
        if (settled := self._early.pop(message.step, None)) is not None:
            self._settle(settled)

    def _settle(self, message: StepSettled) -> None:
        for row in reversed(self._steps):
            if row["step"] == message.step:
                row["gradient_norm"] = _finite(message.norm)
                row["skipped"] = message.is_skipped
                self.skipped += message.is_skipped
                return
        self._early[message.step] = message
        self._early.pop(message.step - _MOST_EARLY, None)

    def _recover(self, message: Recovered) -> None:
        if message.causes == ("start",):
            self._why = "the job began with it"
            return
        self._why = ", ".join(message.causes)
        self.failures += 1
        self.paused += message.total
        self._recoveries.append(
            {
                "at": round(self._now() - self._began, 3),
                "step": message.step,
                "causes": list(message.causes),
                "plan": message.plan,
                "detection": message.detection,
                "leaving": message.leaving,
                "regroup": message.regroup,
                "repeated": message.repeated,
                "total": message.total,
            }
        )
        self._event(f"{self._why}: continues with step {message.step}, plan {message.plan}")

    def _event(self, text: str) -> None:
        self._events.append({"at": round(self._now() - self._began, 3), "text": text})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
