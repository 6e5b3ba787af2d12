"""The jobs of simulated worlds, and a planner for them: the compiler, in this process."""

from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import job_of_layout, parse_layout
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.coordinator.plans import Request
from recycle_runtime.plan.bundle import Bundle
from tests.runtime.recovery.recut_plans import three_by_two, write_bundle
from tests.runtime.world.scenarios import WorldJob, scenario
from tests.runtime.world.world import Scenario
from tests.support.layers import layer_costs, layered_job

_CUTS = {"4x3,2x2": [(1, 0), (0, 1), (1, 1)]}
"""The layout for five workers."""
_ALL = list(product(range(3), range(3)))


def two_by_two() -> JobSpec:
    """Two pipelines of two stages, two layers each."""
    return layered_job(layer_costs((1000,) * 4), (2, 2), 2, 2)


def with_ranks() -> JobSpec:
    """The same with two tensor-parallel ranks for each worker."""
    return replace(two_by_two(), tensor=2)


def world_jobs(folder: Path) -> list[WorldJob]:
    """Bundles of four kinds: with plans of two cuts, with barriers, with nothing but its first plan, and the
    same with tensor-parallel ranks."""
    own = write_bundle(folder / "cuts.plan", three_by_two(), _CUTS, _ALL)
    barrier = write_bundle(folder / "barrier.plan", three_by_two(barrier=True), _CUTS, _ALL)
    small = write_bundle(folder / "small.plan", two_by_two(), {}, [(0, 0)])
    ranks = write_bundle(folder / "ranks.plan", with_ranks(), {}, [(0, 0)])
    return [
        WorldJob(own, Bundle.read(own), True, _planner(three_by_two())),
        WorldJob(barrier, Bundle.read(barrier), True, _planner(three_by_two(barrier=True))),
        WorldJob(small, Bundle.read(small), False, _planner(two_by_two())),
        WorldJob(ranks, Bundle.read(ranks), False, _planner(with_ranks())),
    ]


def sharded_jobs(folder: Path) -> list[WorldJob]:
    """Bundles of jobs whose optimizer state is in shards: with owners from one to all, with and without steps
    before the norm is known, with tensor-parallel ranks, with plans of another cut."""
    six, four = layer_costs((1000,) * 6), layer_costs((1000,) * 4)
    made = {
        "two": layered_job(six, (3, 3), 3, 4, owners=2),
        "barrier": _waiting(layered_job(six, (3, 3), 3, 4, owners=2)),
        "wide": layered_job(four, (2, 2), 4, 2, owners=2),
        "wide-barrier": _waiting(layered_job(four, (2, 2), 4, 2, owners=3)),
        "one": layered_job(four, (2, 2), 3, 2, owners=1),
        "all": _waiting(layered_job(four, (2, 2), 2, 2, owners=2)),
        "ranks": replace(layered_job(four, (2, 2), 3, 2, owners=2), tensor=2),
    }
    paths = {name: write_bundle(folder / f"{name}.plan", job, {}, [(0, 0)]) for name, job in made.items()}
    for name in ("cuts", "cuts-barrier", "cuts-one"):
        made[name] = layered_job(six, (3, 3), 3, 4, owners=1 if name == "cuts-one" else 2)
        if name == "cuts-barrier":
            made[name] = _waiting(made[name])
        paths[name] = write_bundle(folder / f"{name}.plan", made[name], _CUTS, _ALL)
    return [
        WorldJob(paths[name], Bundle.read(paths[name]), name.startswith("cuts"), _planner(job))
        for name, job in made.items()
    ]


def in_rounds(folder: Path, *, recut: bool = False) -> WorldJob:
    """A job whose peers share experts: they meet in every forward and backward. Perhaps with plans of another
    cut."""
    job = layered_job(layer_costs((1000,) * 6), (3, 3), 3, 3, owners=2)
    job = replace(job, slots=2, placed_every=1)
    path = write_bundle(folder / "rounds.plan", job, *((_CUTS, _ALL) if recut else ({}, [(0, 0)])))
    return WorldJob(path, Bundle.read(path), recut, _planner(job))


def _waiting(job: JobSpec) -> JobSpec:
    """Nobody steps before the norm is known."""
    return replace(job, techniques=replace(job.techniques, stagger=False))


def quiet(seed: int, jobs: list[WorldJob], **changes: Any) -> Scenario:
    """Two nodes of two workers, on which nothing happens but what is said."""
    ordinary: dict[str, Any] = {"nodes": 2, "room": 2, "wild": False, "skipped": frozenset(), "relay": False}
    return replace(scenario(seed, jobs), **(ordinary | {"standing": False} | changes))


class _planner:  # noqa: N801
    """Plans on demand for one job; what was planned once is known."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._planned = lru_cache(maxsize=None)(self._plan)

    def __call__(self, request: Request) -> bytes | None:
        return self._planned(request)

    def _plan(self, request: Request) -> bytes | None:
        if request.split:
            return None
        if not request.layout:
            return bundle_bytes(source="", plans=[plan_failed(self._job, failure_set(request.failed))])
        layout = parse_layout(request.layout)
        job = job_of_layout(self._job, layout)
        absent = [
            (pipeline, stage)
            for stage, workers in enumerate(layout.workers)
            for pipeline in range(workers, job.pipelines)
        ]
        return bundle_bytes(source="", plans=[plan_failed(job, failure_set((*absent, *request.failed)))])
