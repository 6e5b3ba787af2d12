"""Small random jobs: what the planner and its bounds are held against."""

from random import Random
from typing import Any

from recycle_compiler.ir.job import MEMORY_SCALE, TICKS_PER_UNIT, JobSpec, SolverOptions, Techniques

_Memory = tuple[tuple[int, ...], tuple[int, ...], tuple[int | None, ...]]
"""Of each stage: an activation, what W keeps of it, and what a worker has room for."""
_SLOT = TICKS_PER_UNIT["slot"]
_COUNT = MEMORY_SCALE["count"]
_USUAL_UNITS = 12
_USUAL_TRIPLES = 32
"""A triple is one micro-batch on one stage. Most jobs stay within these, so an exact solver has a chance."""


def random_job(seed: int) -> tuple[JobSpec, tuple[int, ...]]:
    """A job and how many workers of each stage have failed; the same for a seed on any machine."""
    random = Random(seed)
    stages, pipelines, microbatches = _shape(random)
    techniques = _techniques(random)
    memory = _memory(random, stages)
    failed = _failures(random, stages, pipelines)
    longest = random.choices((1, 3, 6), (3, 3, 4))[0]
    job = job_in_slots(
        f"random{seed}",
        (stages, pipelines, microbatches),
        memory,
        forward=_times(random, stages, 1, longest),
        backward_input=_times(random, stages, 1, longest),
        backward_weight=_times(random, stages, 1, longest),
        optimizer=_times(random, stages, 0, random.choice((0, 4))),
        reduce=_times(random, stages, 0, random.choice((0, 0, 4))),
        transfer=_times(random, stages - 1, 0, random.choice((0, 0, 1, 3))),
        techniques=techniques,
        failures=sum(failed),
    )
    return job, failed


def tight_job(seed: int) -> tuple[JobSpec, tuple[int, ...]]:
    """A job whose memory holds few activations for round trips with long transfers; many micro-batches."""
    random = Random(f"tight/{seed}")
    stages = random.choice((2, 3, 3, 4, 4, 5))
    pipelines = random.choice((1, 1, 1, 2, 2, 3))
    microbatches = random.randint(4, 10) if pipelines == 1 else random.randint(2, 4)
    memory = _tight_memory(random, stages)
    longest = random.choice((1, 2, 4, 7))
    share = random.choice((0.0, 0.3, 0.6))
    failed = tuple(sum(random.random() < share for _ in range(pipelines - 1)) for _ in range(stages))
    job = job_in_slots(
        f"tight{seed}",
        (stages, pipelines, microbatches),
        memory,
        forward=_times(random, stages, 1, longest),
        backward_input=_times(random, stages, 1, longest),
        backward_weight=_times(random, stages, 1, longest),
        optimizer=_times(random, stages, 0, random.choice((0, 0, 4))),
        reduce=(0,) * stages,
        transfer=_times(random, stages - 1, longest // 2, longest),
        techniques=Techniques(stagger=random.random() < 0.8),
        failures=sum(failed),
    )
    return job, failed


def small_job(seed: int) -> tuple[JobSpec, tuple[int, ...]]:
    """A job of up to six stages, four pipelines and twelve micro-batches, with transfers and tight memory."""
    random = Random(f"small/{seed}")
    stages, pipelines, microbatches = random.randint(2, 6), random.randint(1, 4), random.randint(2, 12)
    longest = random.choice((1, 3, 6, 20))
    failed = _failures(random, stages, pipelines)
    job = job_in_slots(
        f"small{seed}",
        (stages, pipelines, microbatches),
        _tight_memory(random, stages),
        forward=_times(random, stages, 1, longest),
        backward_input=_times(random, stages, 1, longest),
        backward_weight=_times(random, stages, 1, longest),
        optimizer=_times(random, stages, 0, random.choice((0, 4))),
        reduce=_times(random, stages, 0, random.choice((0, 0, 4))),
        transfer=_times(random, stages - 1, 0, random.choice((0, 1, longest))),
        techniques=Techniques(stagger=random.random() < 0.8),
        failures=sum(failed),
    )
    return job, failed


def job_in_slots(name: str, shape: tuple[int, int, int], memory: _Memory, **more: Any) -> JobSpec:
    """A job in slots and counts, without what the search does not look at."""
    stages, pipelines, microbatches = shape
    activation, kept, capacity = memory
    return JobSpec(
        name=name,
        stages=stages,
        pipelines=pipelines,
        tensor=1,
        microbatches=microbatches,
        unit="slot",
        memory_unit="count",
        activation=activation,
        kept_for_weight=kept,
        capacity=capacity,
        parameters=(0,) * stages,
        solver=SolverOptions(),
        **more,
    )


def _tight_memory(random: Random, stages: int) -> _Memory:
    """From one activation to a little more than 1F1B takes; W keeps none, a part, or all of it."""
    whole = random.choice((1, 1, 3, 10))
    kept = round(whole * random.choice((0.0, 0.3, 0.7, 1.0, 1.0)))
    kind = random.choice(("1f1b", "1f1b", "even", "uneven"))
    held = {
        "1f1b": range(stages, 0, -1),
        "even": [stages] * stages,
        "uneven": [random.randint(1, stages) for _ in range(stages)],
    }
    capacity = tuple(_COUNT * (whole * count + random.choice((0, 0, whole // 2))) for count in held[kind])
    return (_COUNT * whole,) * stages, (_COUNT * kept,) * stages, capacity


def _shape(random: Random) -> tuple[int, int, int]:
    keep_small = random.random() < 0.85
    while True:
        stages = random.choices((1, 2, 3, 4), (1, 4, 4, 4))[0]
        pipelines = random.choices((1, 2, 3, 4), (2, 5, 3, 2))[0]
        microbatches = random.randint(1, 6)
        units = pipelines * microbatches
        if not keep_small or (units <= _USUAL_UNITS and units * stages <= _USUAL_TRIPLES):
            return stages, pipelines, microbatches


def _techniques(random: Random) -> Techniques:
    if random.random() < 0.5:
        return Techniques()
    return Techniques(*(random.random() < 0.5 for _ in range(3)))


def _times(random: Random, count: int, least: int, most: int) -> tuple[int, ...]:
    """Whole slots; half of the time the same everywhere, as users write most."""
    same = random.random() < 0.5
    values = [random.randint(least, most) for _ in range(count)]
    return tuple(_SLOT * (values[0] if same else value) for value in values)


def _memory(random: Random, stages: int) -> _Memory:
    """Activation, what of it W keeps, and capacity."""
    size = random.choice((1, 1, 2, 4))
    activation = [random.randint(1, size) for _ in range(stages)]
    all_is_kept = random.random() < 0.7
    kept = [whole if all_is_kept else random.randint(0, whole) for whole in activation]
    kind = random.choice(("one", "1f1b", "1f1b", "uneven", "uneven", "even", "unlimited"))
    capacity: list[int | None] = []
    for stage, whole in enumerate(activation):
        held = {"one": 1, "1f1b": stages - stage, "uneven": random.randint(1, stages + 1), "even": stages}
        # A remainder that holds no whole activation may still hold a part that W keeps.
        capacity.append(None if kind == "unlimited" else whole * held[kind] + random.randint(0, whole - 1))
    scaled = tuple(None if amount is None else amount * _COUNT for amount in capacity)
    return tuple(_COUNT * whole for whole in activation), tuple(_COUNT * part for part in kept), scaled


def _failures(random: Random, stages: int, pipelines: int) -> tuple[int, ...]:
    """Every stage keeps a live worker, and a normal form keeps a whole pipeline."""
    if random.random() < 0.2:
        return (0,) * stages
    share = random.choice((0.3, 0.6))
    return tuple(sum(random.random() < share for _ in range(pipelines - 1)) for _ in range(stages))
