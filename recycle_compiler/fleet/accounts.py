"""GPU-hours of a run by use: every one of them in exactly one column.

A fleet has the machines of the job and spare ones, and all of them are paid for at all times. At any moment a
GPU is down with its machine, or spare, or in the job. What GPUs of the job do is what the job does: it pauses
to reconfigure or to save, waits for machines (which counts as down), or trains. A GPU-hour of training is
useful as far as it gets done what it would in a job without failures, redone where that has to be done again,
and slowed for the rest: the job has too few workers, or they are not where they serve best, or idle.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from recycle_compiler.fleet.course import Course, Stretch
from recycle_compiler.fleet.machines import Strength

_HOUR = 3600.0


class GpuHours(NamedTuple):
    """The columns. They add up to all GPU-hours of the fleet."""

    useful: float = 0.0
    redone: float = 0.0
    slowed: float = 0.0
    reconfiguring: float = 0.0
    saving: float = 0.0
    spare: float = 0.0
    down: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)


NOTHING = GpuHours()
"""Of a policy that cannot run."""


class Gpus(NamedTuple):
    """Numbers of a worker, a spare machine and the whole fleet."""

    of_worker: int
    of_spare: int
    of_job: int
    of_fleet: int
    """Those of the job and of as many spare machines as there ever are."""


def account(
    course: Course, strengths: Sequence[Strength], gpus: Gpus, full_rate: float, saving: float = 0.0
) -> GpuHours:
    """The columns of a course. `full_rate` is that of the job without failures and without saves; `saving`
    the share of training time that saves take, which rates of the course are averages over."""
    columns = [0.0] * len(GpuHours._fields)
    for begin, end, strength, stretch in _pieces(course, strengths):
        seconds, live = end - begin, gpus.of_worker * strength.workers
        spare = gpus.of_spare * strength.spares
        parts = _in_job(stretch, live, gpus.of_job, full_rate, saving)
        kept = max(0.0, min(end, stretch.kept_until) - begin)
        columns[0] += parts.useful * kept
        columns[1] += parts.useful * (seconds - kept)
        columns[2] += parts.slowed * seconds
        columns[3] += parts.reconfiguring * seconds
        columns[4] += parts.saving * seconds
        columns[5] += spare * seconds
        columns[6] += (parts.down + gpus.of_fleet - live - spare) * seconds
    return GpuHours(*(column / _HOUR for column in columns))


def _in_job(stretch: Stretch, live: int, of_job: int, full_rate: float, saving: float) -> GpuHours:
    """GPUs of the live ones in each column."""
    if stretch.use == "reconfiguring":
        return GpuHours(reconfiguring=live)
    if stretch.use == "saving":
        return GpuHours(saving=live)
    if stretch.use == "waiting":
        return GpuHours(down=live)
    saves = live * saving
    # More than in a job without failures is possible: with fewer pipelines each has fewer bubbles.
    useful = min(live - saves, of_job * stretch.rate / full_rate) if full_rate else 0.0
    return GpuHours(useful=useful, slowed=live - saves - useful, saving=saves)


def _pieces(
    course: Course, strengths: Sequence[Strength]
) -> Iterator[tuple[float, float, Strength, Stretch]]:
    """Times in which neither the fleet nor what the job does changes."""
    ends = [*(strength.at for strength in strengths[1:]), course.span]
    index = 0
    for stretch in course.stretches:
        begin = stretch.begin
        while begin < stretch.end:
            while ends[index] <= begin and index + 1 < len(ends):
                index += 1
            end = min(stretch.end, ends[index]) if ends[index] > begin else stretch.end
            yield begin, end, strengths[index], stretch
            begin = end
