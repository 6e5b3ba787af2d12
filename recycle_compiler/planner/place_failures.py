"""Dynamic program: how many failures each stage should carry, for a given total.

A healthy worker may move to another stage, so a total of n failures can be turned into any counts per stage
that add up to n. What a stage costs with f losses is its own lower bound, and a plan is as slow as its
slowest stage: the program looks for the smallest such maximum and, under it, for the least sum. Several
answers are returned, because a bound is not yet a plan; the caller builds plans until the best of them
meets the bound of the next answer.
"""

from dataclasses import replace
from itertools import accumulate

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.scheduling.bounds import stage_bounds
from recycle_compiler.scheduling.problem import Problem

Counts = tuple[int, ...]


def stage_costs(problem: Problem, failures: int) -> list[list[int]]:
    """costs[stage][losses]: the period that this stage alone imposes.

    As far as placing up to this many failures can need it: spread evenly they cost something, and nothing
    that costs more is worth a look.
    """
    everyone = tuple(range(problem.pipelines))

    def cost(stage: int, losses: int) -> int:
        hosts = tuple(everyone[losses:] if other == stage else everyone for other in range(problem.stages))
        changed = replace(problem, hosts=hosts)
        return max(bound.period for bound in stage_bounds(changed, stage))

    even = -(-failures // problem.stages)
    rows = [[cost(stage, losses) for losses in range(even + 1)] for stage in range(problem.stages)]
    ceiling = max(row[-1] for row in rows)
    for stage, row in enumerate(rows):
        while len(row) <= min(failures, problem.pipelines - 1) and (more := cost(stage, len(row))) <= ceiling:
            row.append(more)
    return rows


def place_failures(costs: list[list[int]], total: int, most: int) -> list[tuple[int, Counts]]:
    """Up to `most` counts per stage with this total, each with the bound of its slowest stage, best first.

    Empty if every way to place them leaves some stage without a worker.
    """
    found: list[tuple[int, Counts]] = []
    for ceiling in sorted({value for row in costs for value in row}):
        for counts in _under(costs, total, ceiling, most):
            bound = max(row[losses] for row, losses in zip(costs, counts, strict=True))
            if (bound, counts) not in found:
                found.append((bound, counts))
        if len(found) >= most:
            break
    return found[:most]


def _under(costs: list[list[int]], total: int, ceiling: int, most: int) -> list[Counts]:
    """The counts with the least sum of costs, when no stage may cost more than the ceiling."""
    room = [sum(1 for value in row if value <= ceiling) - 1 for row in costs]
    room_after = [*list(accumulate(reversed(room)))[::-1], 0]
    if min(room) < 0 or room_after[0] < total:
        return []
    # partial[n]: the best ways to give n failures to the stages so far, as (sum of costs, counts).
    partial: dict[int, list[tuple[int, Counts]]] = {0: [(0, ())]}
    for stage, row in enumerate(costs):
        grown: dict[int, list[tuple[int, Counts]]] = {}
        for used, ways in partial.items():
            least = max(0, total - used - room_after[stage + 1])
            for losses in range(least, min(room[stage], total - used) + 1):
                added = [(cost + row[losses], (*counts, losses)) for cost, counts in ways]
                grown.setdefault(used + losses, []).extend(added)
        partial = {used: sorted(ways)[:most] for used, ways in grown.items()}
    return [counts for _, counts in partial[total]]


def can_be_placed(job: JobSpec, total: int) -> bool:
    """Every stage keeps a live worker."""
    return total <= job.stages * (job.pipelines - 1)
