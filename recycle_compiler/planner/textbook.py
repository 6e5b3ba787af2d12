"""Schedules from the literature for one healthy pipeline, to hold ours against.

    GPipe     all F, then all B
    1F1B      stage s runs S - 1 - s micro-batches ahead, then one F and one B in turn
    ZB-H1     the same with B split: W stays s micro-batches behind I, so every stage holds S activations
    ZB-H2     twice as far ahead and twice as far behind: 2 S - 1 activations, and no bubble where F = I = W

They are orders of ops, derived from what their authors say about them. In the zero-bubble ones a stage that
runs ahead less far keeps more W back, and fills the time after its last I with them. Times are the earliest
that an order allows; memory is what it takes, whatever the job has.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling.kernel import BACKWARD, FORWARD, WEIGHT, Ints
from recycle_compiler.scheduling.problem import Problem, problem_of
from recycle_compiler.scheduling.timing import Clock

Order = list[tuple[int, int]]
"""What one worker runs: kinds and micro-batches."""


@dataclass(frozen=True, slots=True)
class Textbook:
    """What a schedule of the literature costs; times in ticks."""

    name: str
    makespan: int
    period: int
    """With one barrier for all before the optimizer."""
    staggered_period: int
    """When each stage reduces and steps on its own."""
    memory: tuple[int, ...]
    """For each stage, the most that its worker holds."""


def textbook_schedule(job: JobSpec, name: str) -> Textbook:
    """The schedule of this name (a key of ORDERS), for one pipeline of the job."""
    problem = _one_pipeline(job, split=name in _SPLIT)
    orders = [ORDERS[name](problem.stages, problem.units, stage) for stage in range(problem.stages)]
    flat = _flat(problem, orders)
    barrier = Clock(replace(problem, staggered=False)).time(flat)
    staggered = Clock(replace(problem, staggered=True)).time(flat)
    assert barrier is not None and staggered is not None
    return Textbook(
        name=name,
        makespan=barrier.period - max(problem.finish),
        period=barrier.period,
        staggered_period=staggered.period,
        memory=tuple(max(_held(problem, stage, order)) for stage, order in enumerate(orders)),
    )


def gpipe(stages: int, microbatches: int, stage: int) -> Order:
    """Everything forward, then everything backward."""
    return _in_turn(microbatches, microbatches, None)


def one_f_one_b(stages: int, microbatches: int, stage: int) -> Order:
    """Backward as soon as it can be."""
    return _in_turn(microbatches, stages - 1 - stage, None)


def zb_h1(stages: int, microbatches: int, stage: int) -> Order:
    """Zero bubble in 1F1B's memory."""
    return _in_turn(microbatches, stages - 1 - stage, stage)


def zb_h2(stages: int, microbatches: int, stage: int) -> Order:
    """Zero bubble in twice that."""
    return _in_turn(microbatches, 2 * (stages - 1 - stage), 2 * stage)


ORDERS: dict[str, Callable[[int, int, int], Order]] = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "ZB-H1": zb_h1,
    "ZB-H2": zb_h2,
}
"""By name: from stages, micro-batches and a stage to what its worker runs."""
_SPLIT = ("ZB-H1", "ZB-H2")


def _in_turn(microbatches: int, ahead: int, behind: int | None) -> Order:
    """`ahead` forwards, then forward, backward and (if split) the W of `behind` micro-batches ago in turn."""
    order: Order = [(FORWARD, microbatch) for microbatch in range(min(ahead, microbatches))]
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            order.append((FORWARD, microbatch + ahead))
        order.append((BACKWARD, microbatch))
        if behind is not None and microbatch >= behind:
            order.append((WEIGHT, microbatch - behind))
    if behind is not None:
        order += [(WEIGHT, late) for late in range(max(0, microbatches - behind), microbatches)]
    return order


def _one_pipeline(job: JobSpec, split: bool) -> Problem:
    one = replace(
        job,
        pipelines=1,
        failures=0,
        capacity=(None,) * job.stages,
        techniques=Techniques(adaptive=False, decouple=split, stagger=False),
    )
    return problem_of(one, (), GRAPH_PASSES.run(Target(one, ())).ops)


def _flat(problem: Problem, orders: list[Order]) -> Ints:
    """The orders as the inner loops number them, with room for three ops of every micro-batch."""
    flat = np.full((problem.stages, 3 * problem.units), -1, dtype=np.int64)
    for stage, order in enumerate(orders):
        kinds, microbatches = np.array(order).T
        flat[stage, : len(order)] = (kinds * problem.units + microbatches) * problem.stages + stage
    return flat.ravel()


def _held(problem: Problem, stage: int, order: Order) -> Iterator[int]:
    """What a worker holds while each of its ops runs."""
    activation, kept = problem.activation[stage], problem.kept[stage]
    held = 0
    for kind, _ in order:
        held += activation if kind == FORWARD else 0
        yield held
        held -= {FORWARD: 0, BACKWARD: activation - kept, WEIGHT: kept}[kind]
