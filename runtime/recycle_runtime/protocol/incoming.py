"""Values from messages, as what they should be. Standard library only."""

from typing import Any

from recycle_runtime.coordinator.decision import Report, Sums
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.framing import Message


def report_of(message: Message) -> Report:
    """What a member holds."""

    def sums(value: Any) -> Sums | None:
        return None if value is None else Sums(float(value[0]), float(value[1]))

    applied = message["applied"]
    return Report(
        None if applied is None else int(applied),
        bool(message["is_fresh"]),
        sums(message["settled"]),
        int(message["settled_steps"]),
        sums(message["unsettled"]),
    )


def texts_of(values: Any) -> list[str]:
    return [str(value) for value in values]


def worker_of(value: Any) -> Worker:
    pipeline, stage = value
    return int(pipeline), int(stage)
