"""Rules that a schedule breaks, told by a checker that knows only the rules."""

from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.scheduling.problem import UNLIMITED, Ints, Problem


def broken_rules(problem: Problem, start: Ints, target: int) -> list[str]:
    """Every rule that a schedule breaks, from start[kind, unit, stage]."""
    end = start + np.array([problem.forward, problem.backward, problem.weight])[:, None, :]
    broken = [*late_inputs(problem, start, end)]
    for stage in range(problem.chunks):
        for worker in problem.hosts[stage]:
            units = problem.host[:, stage] == worker
            if overlaps(
                start[: kinds(problem, stage), units, stage], end[: kinds(problem, stage), units, stage]
            ):
                broken.append(f"worker {worker} of stage {stage} does two things at once")
            if excess(problem, start, end, units, stage) > 0:
                broken.append(f"worker {worker} of stage {stage} holds too much")
    if period(problem, start, end) > target:
        broken.append("the period exceeds the target")
    return broken


def kinds(problem: Problem, stage: int) -> int:
    return 3 if problem.split[stage] else 2


def late_inputs(problem: Problem, start: Ints, end: Ints) -> Iterator[str]:
    """Ops that start before what they wait for."""
    for stage, transfer in enumerate(problem.transfer):
        if (start[0, :, stage + 1] < end[0, :, stage] + transfer).any():
            yield f"F of stage {stage + 1} before its input"
        if (start[1, :, stage] < end[1, :, stage + 1] + transfer).any():
            yield f"backward of stage {stage} before its input"
    if (start[1, :, -1] < end[0, :, -1]).any():
        yield "backward of the last stage before its forward"
    for stage, split in enumerate(problem.split):
        if split and (start[2, :, stage] < end[1, :, stage]).any():
            yield f"W of stage {stage} before its backward"


def overlaps(start: Ints, end: Ints) -> bool:
    times = sorted(zip(start.ravel().tolist(), end.ravel().tolist(), strict=True))
    return any(first[1] > second[0] for first, second in pairwise(times))


def excess(problem: Problem, start: Ints, end: Ints, units: NDArray[np.bool_], stage: int) -> int:
    """By how much a worker's memory is exceeded at worst."""
    if problem.capacity[stage] == UNLIMITED or not units.any():
        return 0
    held, kept = problem.activation[stage], problem.kept[stage]
    changes = [(time, 1, held) for time in start[0, units, stage].tolist()]
    changes += [(time, 0, kept - held) for time in end[1, units, stage].tolist()]
    if problem.split[stage]:
        changes += [(time, 0, -kept) for time in end[2, units, stage].tolist()]
    # Sorted, what is released at an instant comes before what is taken.
    amounts = accumulate(amount for _, _, amount in sorted(changes))
    return max(amounts) - problem.capacity[stage]


def period(problem: Problem, start: Ints, end: Ints) -> int:
    opens = start[0].min(axis=0)
    closes = np.array([end[kinds(problem, stage) - 1, :, stage].max() for stage in range(problem.chunks)])
    if problem.staggered:
        return int((closes - opens + np.array(problem.finish)).max())
    return int(closes.max() - opens.min() + max(problem.finish))
