"""Random jobs from 500 to 200,000 ops whose shapes, times, memory and failures lie far apart.

Unlike those of `bench.reference.random_jobs`, which an exact solver can settle, these are of the sizes that
are planned by tuned rules. Every fact is drawn for itself, so that most of them meet each other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from recycle_compiler.ir.failure import FailureSet, failed_per_stage, failure_set
from recycle_compiler.ir.job import MEMORY_SCALE, TICKS_PER_UNIT, JobSpec, SolverOptions, Techniques

LEAST_OPS, MOST_OPS = 500, 200_000
_STAGES = (2, 64)
_PIPELINES = (2, 64)
_MICROBATCHES = (2, 400)
_TICKS = TICKS_PER_UNIT["us"]
_COUNT = MEMORY_SCALE["count"]


@dataclass(frozen=True, slots=True)
class VariedJob:
    """A job in one failure state, and how it came about in words."""

    job: JobSpec
    failed: FailureSet
    times: str
    memory: str

    @property
    def ops(self) -> int:
        job = self.job
        return (3 if job.techniques.decouple else 2) * job.stages * job.pipelines * job.microbatches

    @property
    def failed_per_stage(self) -> tuple[int, ...]:
        return failed_per_stage(self.failed, self.job.stages)

    @property
    def label(self) -> str:
        """Stages x pipelines x micro-batches, then what is particular about it."""
        job = self.job
        shape = f"{job.stages}x{job.pipelines}x{job.microbatches}"
        barrier = "" if job.techniques.stagger else ", one barrier"
        return f"{shape}, {self.times}, {self.memory}{barrier}"


def varied_job(seed: int, number: int) -> VariedJob:
    """One job of the series that a seed stands for; the same on any machine."""
    random = Random(f"{seed}/{number}")
    return _drawn(random, f"varied-{seed}-{number}", *_shape(random), _failures)


LARGE_WORKERS = (256, 2_048)
_LARGE_MICROBATCHES = (4, 96)


def large_job(seed: int, number: int) -> VariedJob:
    """A job for many workers, of the series of a seed, that tolerates a quarter of them."""
    random = Random(f"large/{seed}/{number}")
    while True:
        workers, stages = _between(random, *LARGE_WORKERS), _between(random, *_STAGES)
        pipelines, microbatches = workers // stages, _between(random, *_LARGE_MICROBATCHES)
        if pipelines >= _PIPELINES[0] and 3 * stages * pipelines * microbatches <= MOST_OPS:
            break
    varied = _drawn(random, f"large-{seed}-{number}", stages, pipelines, microbatches, _nobody)
    failures = min(stages * pipelines // 4, stages * (pipelines - 1))
    return replace(varied, job=replace(varied.job, failures=failures))


_GIVEN = ((8, 32, 48), (4, 64, 32), (12, 20, 40), (32, 8, 64))
"""Stages, pipelines and micro-batches of jobs that people would write: 2,048 GPUs, eight to a worker."""


def given_jobs() -> list[VariedJob]:
    """These shapes with memory for a micro-batch more than stages; in the first the ends are slower.

    In the others all stages take up to 20 % less or more than the mean.
    """
    return [_given(number, *shape) for number, shape in enumerate(_GIVEN)]


def _given(number: int, stages: int, pipelines: int, microbatches: int) -> VariedJob:
    random, mean = Random(f"given/{number}"), 10_000
    if number == 0:
        times, each = "ends 10 % slower", [mean * 11 // 10, *[mean] * (stages - 2), mean * 11 // 10]
    else:
        times, each = "stages +-20 %", [int(mean * random.uniform(0.8, 1.2)) for _ in range(stages)]
    forward = tuple(ticks * _TICKS for ticks in each)
    ends = tuple(3 * mean * _TICKS for _ in range(stages))
    sizes = (_COUNT,) * stages
    job = JobSpec(
        name=f"given-{stages}x{pipelines}",
        stages=stages,
        pipelines=pipelines,
        tensor=8,
        microbatches=microbatches,
        unit="us",
        memory_unit="count",
        forward=forward,
        backward_input=forward,
        backward_weight=forward,
        optimizer=ends,
        reduce=ends,
        transfer=(0,) * (stages - 1),
        activation=sizes,
        kept_for_weight=sizes,
        capacity=(_COUNT * (stages + 1),) * stages,
        parameters=(0,) * stages,
        techniques=Techniques(),
        failures=stages * pipelines // 4,
        solver=SolverOptions(),
    )
    return VariedJob(job, (), times, f"memory for {stages + 1}")


def _nobody(random: Random, stages: int, pipelines: int) -> FailureSet:
    return ()


def _drawn(
    random: Random,
    name: str,
    stages: int,
    pipelines: int,
    microbatches: int,
    failures: Callable[[Random, int, int], FailureSet],
) -> VariedJob:
    """A job of this shape."""
    times, forward, backward, weight = _times(random, stages)
    mean = sum(forward) // stages
    share, transfer = _transfers(random, stages, mean)
    memory, activation, kept, capacity = _memory(random, stages)
    failed = failures(random, stages, pipelines)
    job = JobSpec(
        name=name,
        stages=stages,
        pipelines=pipelines,
        tensor=1,
        microbatches=microbatches,
        unit="us",
        memory_unit="count",
        forward=forward,
        backward_input=backward,
        backward_weight=weight,
        optimizer=_at_end(random, stages, mean, (0, 1, 4)),
        reduce=_at_end(random, stages, mean, (0, 2, 15)),
        transfer=transfer,
        activation=activation,
        kept_for_weight=kept,
        capacity=capacity,
        parameters=(0,) * stages,
        techniques=Techniques(stagger=random.random() < 0.9),
        failures=len(failed),
        solver=SolverOptions(),
    )
    return VariedJob(job, failed, f"{times}, transfers {share} %", memory)


def _shape(random: Random) -> tuple[int, int, int]:
    """Few or many of each, and sizes evenly spread on a logarithmic scale."""
    ops = _between(random, LEAST_OPS, MOST_OPS)
    while True:
        stages, pipelines = _between(random, *_STAGES), _between(random, *_PIPELINES)
        microbatches = round(ops / (3 * stages * pipelines))
        fits = _MICROBATCHES[0] <= microbatches <= _MICROBATCHES[1]
        if fits and LEAST_OPS <= 3 * stages * pipelines * microbatches <= MOST_OPS:
            return stages, pipelines, microbatches


def _between(random: Random, least: int, most: int) -> int:
    """Small numbers are as likely as large ones: the quotient counts, not the difference."""
    return min(most, int(least * ((most + 1) / least) ** random.random()))


def _times(random: Random, stages: int) -> tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """F, I and W of every stage: all alike, with heavy ends, or uneven; in whole slots or as measured."""
    kind = random.choice(("equal", "even", "heavy ends", "uneven", "very uneven"))
    ratios = (1.0, 1.0, 1.0) if kind == "equal" else (1.0, random.uniform(0.8, 2.0), random.uniform(0.4, 1.6))
    spread = {"uneven": 0.2, "very uneven": 0.8}.get(kind, 0.0)
    weights = [1 + spread * random.random() for _ in range(stages)]
    if kind == "heavy ends":
        weights[0], weights[-1] = 1 + 0.3 * random.random(), 1 + 0.5 * random.random()
    mean, grain = random.choice(((10_000, 1), (10_000, 1), (40, 10), (60, 10), (37, 1)))
    rows = [
        tuple(max(1, round(mean * weight * ratio / grain)) * grain * _TICKS for weight in weights)
        for ratio in ratios
    ]
    return kind, rows[0], rows[1], rows[2]


def _transfers(random: Random, stages: int, mean: int) -> tuple[int, tuple[int, ...]]:
    """None, short ones, or such that take as long as an F; in percent of a mean F, and of each stage."""
    share = random.choice((0, 0, 2, 10, 40, 100))
    uneven = random.random() < 0.3
    each = [mean * share // 100 * (1 + (uneven and random.random() < 0.25)) for _ in range(stages - 1)]
    return share, tuple(ticks // _TICKS * _TICKS for ticks in each)


def _at_end(random: Random, stages: int, mean: int, most: tuple[int, ...]) -> tuple[int, ...]:
    """Reductions or steps of up to so many F; alike on all stages, or not."""
    longest = random.choice(most) * mean
    alike = random.random() < 0.6
    shares = [random.random() for _ in range(stages)]
    return tuple(int(longest * (shares[0] if alike else share)) // _TICKS * _TICKS for share in shares)


def _memory(
    random: Random, stages: int
) -> tuple[str, tuple[int, ...], tuple[int, ...], tuple[int | None, ...]]:
    """Activation, what of it W keeps, and capacity: from what 1F1B takes on each stage to no limit."""
    size = random.choice((1, 1, 4, 100))
    activation = [random.randint((size + 1) // 2, size) for _ in range(stages)]
    part = random.choice((0.0, 0.3, 0.7, 0.95, 1.0, 1.0))
    kept = [round(whole * part) for whole in activation]
    kind, more = random.choice(
        (
            ("1F1B's", 1.0),
            ("even", 1.0),
            ("even", 1.0),
            ("even", 1.25),
            ("even", 1.5),
            ("even", 2.0),
            ("no", 0.0),
        )
    )
    words = "no memory limit" if kind == "no" else f"memory {kind} x {more}"
    held = [stages - stage if kind == "1F1B's" else int(stages * more) for stage in range(stages)]
    capacity = [None if kind == "no" else _COUNT * a * h for a, h in zip(activation, held, strict=True)]
    keeps = f", W keeps {part:.0%}"
    return (
        words + keeps,
        tuple(_COUNT * a for a in activation),
        tuple(_COUNT * k for k in kept),
        tuple(capacity),
    )


def _failures(random: Random, stages: int, pipelines: int) -> FailureSet:
    """None, one, a few, or up to a quarter of the workers; every stage keeps one."""
    workers = stages * pipelines
    most = random.choice((0, 1, 1, 3, workers // 10, workers // 4))
    count = random.randint(min(1, most), max(most, min(1, most)))
    grid = [(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]
    random.shuffle(grid)
    live = [pipelines] * stages
    failed: list[tuple[int, int]] = []
    for pipeline, stage in grid:
        if len(failed) < count and live[stage] > 1:
            failed.append((pipeline, stage))
            live[stage] -= 1
    return failure_set(failed)
