"""Names in messages: a worker, and one of its processes. No torch."""

from typing import NamedTuple

from recycle_runtime.protocol.codec import Integer, Natural

GridWorker = tuple[Natural, Natural]
"""A worker, by its place in the job's grid: (pipeline, stage)."""


class Member(NamedTuple):
    """One process of the job: its worker, and which of the worker's tensor-parallel processes it is."""

    worker: GridWorker
    tp_rank: Natural


class InjectedFault(NamedTuple):
    """A fault that a worker process injects into itself, and before which instruction of which step."""

    kind: str
    step: Natural
    position: Integer
    """An instruction, or a moment outside the stream: see `testing.timetable`."""
