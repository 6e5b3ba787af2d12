"""Jobs that tests plan: the running example, and small random ones."""

from dataclasses import replace

from hypothesis import strategies as st

from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import JobSpec, SolverOptions, Techniques
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.problem import Problem, problem_of
from recycle_compiler.scheduling.search import Effort

SLOT = 1_000
"""Ticks of a slot, and thousandths of an activation."""

ALL = Techniques()
NONE = Techniques(adaptive=False, decouple=False, stagger=False)
ADAPTIVE = Techniques(adaptive=True, decouple=False, stagger=False)
DECOUPLED = Techniques(adaptive=True, decouple=True, stagger=False)


def unit_job(
    stages: int,
    pipelines: int,
    microbatches: int,
    capacity: tuple[int | None, ...] | int | None = None,
    techniques: Techniques = ALL,
    optimizer: int = 3,
) -> JobSpec:
    """Every op takes one slot and every activation is one; capacity in activations."""
    whole = capacity if isinstance(capacity, tuple) else (capacity,) * stages
    one = (SLOT,) * stages
    return JobSpec(
        name="unit",
        stages=stages,
        pipelines=pipelines,
        tensor=1,
        microbatches=microbatches,
        unit="slot",
        memory_unit="count",
        forward=one,
        backward_input=one,
        backward_weight=one,
        optimizer=(optimizer * SLOT,) * stages,
        reduce=(0,) * stages,
        transfer=(0,) * (stages - 1),
        activation=one,
        kept_for_weight=one,
        capacity=tuple(None if amount is None else amount * SLOT for amount in whole),
        parameters=(0,) * stages,
        techniques=techniques,
        failures=0,
        solver=SolverOptions(),
    )


def figure3(capacity: tuple[int | None, ...] | int | None, techniques: Techniques = ALL) -> JobSpec:
    """The running example: 3 pipelines of 4 stages, 6 micro-batches each."""
    return unit_job(4, 3, 6, capacity, techniques)


def far_job() -> JobSpec:
    """Memory for no more than a round trip takes, and transfers as long as an F: plans by timetables are
    shorter where a worker of stage 1 has failed."""
    job = unit_job(6, 3, 69, capacity=6, optimizer=1)
    lengths = {
        "forward": (5, 4, 4, 4, 4, 5), "backward_input": (6, 5, 5, 5, 5, 6),
        "backward_weight": (5, 4, 4, 4, 4, 5), "transfer": (4,) * 5,
    }  # fmt: skip
    slots = {name: tuple(length * SLOT for length in each) for name, each in lengths.items()}
    return replace(job, solver=replace(job.solver, gap_ppm=10_000), **slots)


def routed(job: JobSpec, failed: FailureSet = ()) -> Graph:
    """The graph that slots are assigned to."""
    return GRAPH_PASSES.run(Target(job, failed))


def routed_problem(job: JobSpec, failed: FailureSet = ()) -> Problem:
    graph = routed(job, failed)
    return problem_of(graph)


@st.composite
def small_targets(draw: st.DrawFn) -> Target:
    """Uneven times, transfers, tight and loose memory, any techniques, random failures."""
    stages, pipelines, microbatches = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 5)),
    )

    def times(least: int, most: int, count: int = stages) -> tuple[int, ...]:
        return tuple(SLOT * draw(st.integers(least, most)) for _ in range(count))

    activation = times(1, 3)
    kept = tuple(draw(st.integers(0, amount)) for amount in activation)
    capacity = tuple(
        draw(st.one_of(st.none(), st.integers(1, 4).map(lambda count, a=amount: count * a)))
        for amount in activation
    )
    techniques = Techniques(*(draw(st.booleans()) for _ in range(3)))
    counts = [draw(st.integers(0, pipelines - 1)) for _ in range(stages)]
    failed = failure_set(
        (pipeline, stage)
        for stage, count in enumerate(counts)
        for pipeline in draw(st.permutations(range(pipelines)))[:count]
    )
    job = replace(
        unit_job(stages, pipelines, microbatches, techniques=techniques),
        name="random",
        forward=times(1, 4),
        backward_input=times(1, 4),
        backward_weight=times(1, 4),
        optimizer=times(0, 3),
        reduce=times(0, 2),
        transfer=times(0, 2, stages - 1),
        activation=activation,
        kept_for_weight=kept,
        capacity=capacity,
    )
    return Target(job, failed)


def quick_plan(target: Target) -> Streams:
    """A plan that little work went into: no MILP, which may take a minute for one of these."""
    return plan_failed(target.job, target.failed, effort=Effort().least())


def quick_plans() -> st.SearchStrategy[Streams]:
    """Of jobs with any techniques, failures, transfers and uneven times."""
    return small_targets().filter(lambda target: all(target.hosts)).map(quick_plan)
