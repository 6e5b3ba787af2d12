"""What a simulation has found: the same object goes into the table, the JSON document and the HTML page."""

from dataclasses import dataclass
from typing import NamedTuple


class Point(NamedTuple):
    """From here to the next point nothing changes."""

    hours: float
    live: int
    """Workers of the job whose machine is up; spare machines do not count."""
    throughput: float
    """In the report's unit. Work that was lost later counts as none from when it was done."""


class Entry(NamedTuple):
    """One line of a policy's log: what it made of a change."""

    hours: float
    live: int
    pause: float
    """Seconds without progress from here on."""
    redone: float
    """Seconds of earlier work that were lost by it."""
    throughput: float
    """Once the pause is over, in the report's unit."""
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy made of the trace."""

    name: str
    """As users write it: `ours`, `recycle`, ..."""
    note: str
    """What one should know about how it was modelled, or the sentence why it cannot run."""
    average: float | None
    """Over the whole span, in the report's unit; None where the policy cannot run this job."""
    share: float | None = None
    """The average, as a share of the report's reference."""
    gpu_hours_lost: float | None = None
    """(1 - share) x GPUs x hours: GPU-hours paid for beyond those that the reference would have needed."""
    still: float = 0.0
    """Hours without progress: pauses, and times when it could not run."""
    iterations: float = 0.0
    """Done and kept."""
    redone: float = 0.0
    """Iterations that were done and then lost."""
    timeline: tuple[Point, ...] = ()
    """Begins at 0 and ends at the report's hours; its integral is iterations x the unit per iteration."""
    log: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A job, a trace, and what each policy made of it."""

    job: str
    trace: str
    """The file's name, or the words that it was generated from."""
    about: str
    """A sentence on the trace: machines, events, what was chosen at random."""
    unit: str
    """Of averages and timelines: `samples/s` or `micro-batches/s`."""
    hours: float
    workers: int
    gpus: int
    """Of the whole job: workers x tensor-parallel width."""
    reference: float
    """Throughput of our plan without failures, in the same unit: what 100 % means."""
    gpu_hours_down: float
    """GPU-hours that machines of the job were down, the same for all policies."""
    outcomes: tuple[Outcome, ...]
    """In the order of the table, ours first."""
