"""Choice of the stages that carry the failures: what a plan there really costs decides.

First the cost of 1, 2, ... failures is measured on every stage alone, with quick plans (in a large job
it is the bound of such a plan). A dynamic program turns these into counts per stage for any total. Failures
on several stages can get into each other's way, so the best few counts are compared by quick plans of their
own, with the even spread among them. Quick plans err at times: every placement that could still be better
than the best plan gets a whole plan as well; in a large job only if its bound promises clearly more.

From some hundred ops on, failures also move from stage to stage, with a run of the list scheduler each time
(`climb_placements.py`). What comes of that is one of those compared, and in a large job the only one.
"""

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.route_microbatches import routes
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.climb_placements import Climb, Counts, between, blends, can_climb, can_run
from recycle_compiler.planner.worker_processes import Run
from recycle_compiler.scheduling.bounds import lower_bound, shared_bounds, stage_bounds
from recycle_compiler.scheduling.budget import Budget, Guard, Sizes
from recycle_compiler.scheduling.problem import Problem, problem_of, rerouted, with_times_of
from recycle_compiler.scheduling.schedules import SearchedPlan
from recycle_compiler.scheduling.search import Effort

_PROMISING = 998
"""In thousandths of the bound of the placement that came first: below it, another is worth a plan too."""


NO_ROOM = 1 << 60
"""The period of a plan that cannot be: workers of some stage have no room for a micro-batch, or too few slots
for its experts."""
_CLIMBED_ALONE = 10_000
"""Ops beyond which failures are only moved, where they can be: other ways to place them cost up to ten times
as much in all."""
_PLACED = 12
"""Numbers of failures that are placed before the plans of a bundle are made, at equal distances."""
_WORK_AHEAD = 60_000_000
"""Visits for each of them."""
_TRIES_AFTER = 12
"""Placements tried for a plan that begins between two of them."""
_TRIES = 100
"""Placements tried otherwise."""
_CLIMBING = 3
"""Part of the work on a plan that may go into where its failures are."""


class FailureCosts(NamedTuple):
    """For each stage and number of failures there, the period in ticks."""

    bounds: list[list[int]]
    """That no plan goes below."""
    measured: list[list[int]]
    """That a quick plan reaches, where it was tried; a guess beyond that."""
    healthy: Problem
    """The timing problem without failures."""
    placed: tuple[Counts, ...] = ()
    """Good placements of some numbers of failures, for others to begin with; the first is that of none."""


def measure_costs(job: JobSpec, failures: int, run: Run, guard: Guard) -> FailureCosts:
    """Costs of failures on each stage alone, as far as placing this many failures can need them."""
    problem = problem_of(GRAPH_PASSES.run(Target(job, ())))
    bounds = failure_costs(problem, failures, job)
    if problem.ops > (_CLIMBED_ALONE if can_climb(job, problem) else Sizes.LARGE):
        return FailureCosts(bounds, bounds, problem)
    most = -(-failures // job.stages) + 1 if failures else 0
    tasks = [
        (stage, failed)
        for stage, row in enumerate(bounds)
        for failed in range(1, len(row))[:most]
        if row[failed] < NO_ROOM
    ]
    found = dict(run(_measure, [(job, problem, stage, failed, guard) for stage, failed in tasks]))
    measured: list[list[int]] = []
    for stage, row in enumerate(bounds):
        costs = [row[0]]
        for failed, bound in enumerate(row[1:], start=1):
            # More failures are never cheaper, and a guess is the bound with the excess that was last seen.
            tried = min(failed, most)
            excess = found.get((stage, tried), row[tried])
            costs.append(max(costs[-1], bound * excess // row[tried]) if bound < NO_ROOM else NO_ROOM)
        measured.append(costs)
    return FailureCosts(bounds, measured, problem)


def place_ahead(job: JobSpec, costs: FailureCosts, failures: int, run: Run, guard: Guard) -> FailureCosts:
    """The costs with placements of some numbers of failures, where plans for many are to be made."""
    if not can_climb(job, costs.healthy) or failures < 2 * _PLACED:
        return costs
    totals = [failures * part // _PLACED for part in range(1, _PLACED + 1)]
    # Processes return them in any order.
    found = [each for each in run(_placed, [(job, total, costs, guard) for total in totals]) if each]
    return costs._replace(placed=((0,) * job.stages, *sorted(found, key=sum)) if found else ())


def _placed(task: tuple[JobSpec, int, FailureCosts, Guard]) -> Counts | None:
    job, failures, costs, guard = task
    if guard.strikes():
        return None
    climb = _climb(job, failures, costs, Budget(guard, _WORK_AHEAD))
    best = climb.best(_begins(job, failures, costs), _TRIES)
    return None if best is None else best.counts


def ranked_placements(
    job: JobSpec, failures: int, costs: FailureCosts, effort: Effort, guard: Guard
) -> list[tuple[Counts, int]]:
    """Failures per stage for this total, the most promising first, each with what no plan goes below.

    Quick plans rank them. In a large job only the first is worth a plan, and those that promise much more.
    """
    large = costs.measured == costs.bounds
    climbed = _climbed(job, failures, costs, effort, guard)
    if large and climbed and (bound := _bound(job, costs, climbed[0])) < NO_ROOM:
        return [(climbed[0], bound)]
    candidates = list(dict.fromkeys([*climbed, *_candidates(job, failures, costs, effort.placements)]))
    bounds = {counts: _bound(job, costs, counts) for counts in candidates}
    # Where state is sharded, so many failures may leave a stage no room for a micro-batch.
    candidates = [counts for counts in candidates if bounds[counts] < NO_ROOM]
    if not candidates:
        return []
    if len(candidates) == 1 or guard.strikes():
        return [(candidates[0], bounds[candidates[0]])]
    quick = effort.least() if large else effort.quick()
    found: list[tuple[int, int, Counts]] = []
    for counts in candidates:
        if found and (bounds[counts] >= min(found)[0] or guard.strikes()):
            continue
        made = _quick_plan(job, costs.healthy, counts, quick, guard)
        # Of equal plans, the one that may yet become better.
        found.append((made.timed.period, made.bound.period, counts))
    first, *others = (counts for _, _, counts in sorted(found, key=lambda entry: entry[:2]))
    worth = [counts for counts in others if not large or bounds[counts] * 1000 < bounds[first] * _PROMISING]
    return [(counts, bounds[counts]) for counts in (first, *worth)]


def _climbed(job: JobSpec, failures: int, costs: FailureCosts, effort: Effort, guard: Guard) -> list[Counts]:
    """The placement that rules lead to, none where they say too little; where no time is left for them, that
    between known ones."""
    if not can_climb(job, costs.healthy):
        return []
    if guard.strikes():
        return _nearby(failures, costs)
    budget = Budget(guard, effort.work // _CLIMBING)
    tries = _TRIES_AFTER if costs.placed else _TRIES
    best = _climb(job, failures, costs, budget).best(_begins(job, failures, costs), tries)
    return [] if best is None else [best.counts]


def _climb(job: JobSpec, failures: int, costs: FailureCosts, budget: Budget) -> Climb:
    placed = place_failures(costs.bounds, failures, 1)
    return Climb(job, costs.healthy, placed[0][0] if placed else 0, budget)


def _begins(job: JobSpec, failures: int, costs: FailureCosts) -> list[Counts]:
    """Placements to begin with: the even one, that with the least bound, and those between them; where they
    are known for a little fewer and a little more failures, what lies between these instead."""
    even = _even_spread(failures, job.stages)
    least = [counts for _, counts in place_failures(costs.bounds, failures, 1)]
    if nearby := _nearby(failures, costs):
        return [*nearby, *least, even]
    return blends(even, least[0]) if least else [even]


def _nearby(failures: int, costs: FailureCosts) -> list[Counts]:
    """The placement between those of a little fewer and a little more failures, where these are known."""
    for fewer, more in pairwise(costs.placed):
        if sum(fewer) <= failures <= sum(more):
            return [between(fewer, more, failures - sum(fewer), sum(more) - sum(fewer))]
    return []


def _candidates(job: JobSpec, failures: int, costs: FailureCosts, most: int) -> list[Counts]:
    """The best counts by measured costs, the best by bounds, and the even spread."""
    by_plans = [counts for _, counts in place_failures(costs.measured, failures, most)]
    by_bounds = [counts for _, counts in place_failures(costs.bounds, failures, 1)]
    return list(dict.fromkeys([*by_plans, *by_bounds, _even_spread(failures, job.stages)]))


def _measure(task: tuple[JobSpec, Problem, int, int, Guard]) -> tuple[tuple[int, int], int]:
    job, healthy, stage, failed, guard = task
    counts = tuple(failed if other == stage else 0 for other in range(job.stages))
    return (stage, failed), _quick_plan(job, healthy, counts, Effort().least(), guard).timed.period


def _quick_plan(job: JobSpec, healthy: Problem, counts: Counts, effort: Effort, guard: Guard) -> SearchedPlan:
    """A plan with these failures, of which only its period and bound are wanted."""
    target = Target(job, normal_form(counts, job.pipelines))
    slots = AssignSlots(effort, guard)
    try:
        # Failures change nothing but routes, and what sharded state takes: the graph need not be made again.
        host = routes(job, target.hosts).reshape(healthy.units, healthy.chunks)
        problem = with_times_of(rerouted(healthy, target.hosts, host), job.left_by(counts))
        return slots.plan(problem, job.solver)
    except Exception:
        # By passes it fails as well, and leaves a reproducer.
        (GRAPH_PASSES >> slots).run(target)
        raise


def _bound(job: JobSpec, costs: FailureCosts, counts: Counts) -> int:
    """Lower bound on the period with these failures: all of them together, not stage by stage."""
    hosts = Target(job, normal_form(counts, job.pipelines)).hosts
    left = job.left_by(counts)
    problem = with_times_of(replace(costs.healthy, hosts=hosts), left)
    return lower_bound(problem).period if can_run(left, problem) else NO_ROOM


def _even_spread(failures: int, stages: int) -> Counts:
    """As equal as can be; what does not divide goes to the first stages, which hold most memory as a rule."""
    each, more = divmod(failures, stages)
    return (each + 1,) * more + (each,) * (stages - more)


def failure_costs(problem: Problem, failures: int, job: JobSpec) -> list[list[int]]:
    """costs[stage][failed]: the period that this stage alone imposes; NO_ROOM where nothing fits its memory.

    As far as placing up to this many failures can need it: spread evenly they cost something, and nothing
    that costs more is worth a look. What holds for more workers holds for fewer, though a bound may find
    less of it there. Exchanges of tokens count as those of all peers: that they get shorter with every
    failure would hide which stages have room for one.
    """
    of_all = replace(job, exchange=())
    stages = problem.workers // problem.pipelines
    stage_of = [workers[0] // problem.pipelines for workers in problem.hosts]

    def cost(stage: int, failed: int) -> int:
        hosts = tuple(
            workers[failed:] if stage_of[chunk] == stage else workers
            for chunk, workers in enumerate(problem.hosts)
        )
        counts = tuple(failed if other == stage else 0 for other in range(stages))
        left = of_all.left_by(counts)
        changed = with_times_of(replace(problem, hosts=hosts), left)
        if not can_run(left, changed):
            return NO_ROOM
        held = [chunk for chunk in range(problem.chunks) if stage_of[chunk] == stage]
        bounds = (bound for chunk in held for bound in stage_bounds(changed, chunk))
        return max(bound.period for bound in (*bounds, *shared_bounds(changed)))

    even = -(-failures // stages)
    each = ([cost(stage, failed) for failed in range(even + 1)] for stage in range(stages))
    rows = [list(accumulate(row, max)) for row in each]
    ceiling = max(row[-1] for row in rows)
    for stage, row in enumerate(rows):
        while len(row) <= min(failures, problem.pipelines - 1) and (more := cost(stage, len(row))) <= ceiling:
            row.append(max(row[-1], more))
    return rows


def place_failures(costs: list[list[int]], total: int, most: int) -> list[tuple[int, Counts]]:
    """Up to `most` counts per stage with this total, each with the bound of its slowest stage, best first.

    A healthy worker may move to another stage, so a total can be turned into any counts that add up to it.
    A plan is as slow as its slowest stage: the dynamic program looks for the smallest such maximum and,
    under it, for the least sum. Several answers are returned, because a bound is not yet a plan.

    Empty if every way to place them leaves some stage without a worker.
    """
    found: list[tuple[int, Counts]] = []
    for ceiling in sorted({value for row in costs for value in row}):
        for counts in _under(costs, total, ceiling, most):
            bound = max(row[failed] for row, failed in zip(costs, counts, strict=True))
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
            for failed in range(least, min(room[stage], total - used) + 1):
                added = [(cost + row[failed], (*counts, failed)) for cost, counts in ways]
                grown.setdefault(used + failed, []).extend(added)
        partial = {used: sorted(ways)[:most] for used, ways in grown.items()}
    return [counts for _, counts in partial[total]]
