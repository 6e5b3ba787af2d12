"""Scenarios by number: which job, on which machines, and what goes wrong."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from recycle_runtime.coordinator.plans import Request
from recycle_runtime.plan.bundle import Bundle
from tests.runtime.world.faults import FaultMaker
from tests.runtime.world.world import Scenario


class WorldJob(NamedTuple):
    """A bundle that worlds run."""

    path: str
    bundle: Bundle
    recuts: bool
    """True if it has plans of several cuts."""
    plans: Callable[[Request], bytes | None] = lambda _: None
    """Plans on demand."""


def scenario(seed: int, jobs: Sequence[WorldJob]) -> Scenario:
    """The same for the same seed and jobs."""
    chance = random.Random(seed)
    job = chance.choice(jobs)
    bundle = job.bundle
    workers = list(bundle.workers(0))
    room = chance.choice((1, 2, 2, 3))
    nodes = -(-len(workers) // room) + chance.choice((0, 0, 1))
    steps = chance.choice((6, 12, 30, 60))
    wild = chance.random() < 0.3
    faults = FaultMaker(chance, workers, nodes, wild=wild).make()
    return Scenario(
        seed=seed,
        bundle=bundle,
        path=job.path,
        steps=steps,
        nodes=nodes,
        room=room * bundle.tensor,
        faults=faults,
        wild=wild,
        checkpoints=chance.choice((0, 3, 5)),
        recut=chance.choice(("off", "auto", "always")) if job.recuts else "off",
        saves=chance.random() < 0.4,
        resumes=chance.choice((0, 1, 2)) if wild else 0,
        is_resumed=wild,
        plans=job.plans,
        skipped=frozenset(chance.sample(range(steps), chance.choice((0, 0, 1, 2)))),
        echoes=chance.choice((0.0, 0.0, 0.0, 0.2, 0.7)),
        copies=chance.choice((0, 0, 3, 5)),
        relay=seed % 4 == 3,
        standing=seed % 3 == 2,
        building=10.0 if seed % 5 == 3 else 0.0,
    )
