"""A solver's result for a job, as it travels between processes: one line of JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import JobSpec


@dataclass(frozen=True, slots=True)
class Attempt:
    """Times of the schedule in ticks, of the solver in seconds."""

    period: int | None
    """The best that was found."""
    bound: int
    """No schedule (with the routing that was tried) is shorter."""
    reached: float | None
    """When the best was found."""
    seconds: float


def workers_of(words: str) -> FailureSet:
    """Failed workers as users write them: `0:2,1:3`."""
    pairs = (word.split(":") for word in words.split(","))
    return failure_set((int(pipeline), int(stage)) for pipeline, stage in pairs)


def arguments(words: list[str]) -> tuple[JobSpec, FailureSet, float]:
    """The job, the failed workers and the time limit of a command line."""
    job, failed, seconds = words
    return load_job(str(Path(job))).spec, workers_of(failed), float(seconds)


def print_attempt(attempt: Attempt) -> None:
    print(json.dumps(asdict(attempt)))


def read_attempt(line: str) -> Attempt:
    """The result that `print_attempt` wrote."""
    return Attempt(**json.loads(line))
