"""What a plan says of itself, against what its replay shows."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.verifier.plan import Plan, where
from recycle_compiler.verifier.replay import Timeline
from recycle_compiler.verifier.report import Rule, Violation
from recycle_compiler.verifier.table import LARGEST


def replayed_makespan(timeline: Timeline) -> int:
    """From the start of the first op to the end of the last."""
    return int(timeline.end.max() - timeline.start.min())


def replayed_period(plan: Plan, timeline: Timeline) -> int:
    """What one iteration costs when iterations follow each other."""
    job = plan.job
    if not job.techniques.stagger:
        return replayed_makespan(timeline) + max(map(sum, zip(job.reduce, job.optimizer, strict=True)))
    stage = plan.table.stage[timeline.row]
    first_start = (int(timeline.start[stage == each].min(initial=LARGEST)) for each in range(job.stages))
    return max(end - start for start, end in zip(first_start, timeline.optimizer_end, strict=True))


def check_claims(plan: Plan, timeline: Timeline) -> Iterator[Violation]:
    """Yield every number of the index entry that does not follow from the streams."""
    claims = plan.claims
    if (makespan := replayed_makespan(timeline)) != claims.makespan:
        yield plan.overall(Rule.CLAIM_MAKESPAN, f"claims {claims.makespan}, the streams take {makespan}")
    if (period := replayed_period(plan, timeline)) != claims.period:
        yield plan.overall(Rule.CLAIM_PERIOD, f"claims {claims.period}, the streams take {period}")
    if not 0 < claims.lower_bound <= claims.period:
        message = f"a lower bound must be between 1 and the period {claims.period}, got {claims.lower_bound}"
        yield plan.overall(Rule.CLAIM_BOUND, message)
    yield from _load(plan)
    yield from _windows(plan, timeline)
    yield from _iterations(plan, timeline)


def live_hosts(job: JobSpec, failed: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """How many workers of each stage may run micro-batches.

    Without adaptive pipelining only whole pipelines work. Peers are interchangeable, so the survivors make
    as many of those as the stage with most losses has workers left.
    """
    live = tuple(job.pipelines - sum(at == stage for _, at in failed) for stage in range(job.stages))
    return live if job.techniques.adaptive else (min(live),) * job.stages


def _load(plan: Plan) -> Iterator[Violation]:
    """Some worker of each stage carries at least its even share, so no period is shorter than that takes."""
    job = plan.job
    for stage, hosts in enumerate(live_hosts(job, plan.failed)):
        if hosts < 1:
            yield plan.overall(Rule.CLAIM_PERIOD, f"no live worker may run stage {stage}")
            continue
        share = -(-plan.units // hosts)
        work = job.forward[stage] + job.backward_input[stage] + job.backward_weight[stage]
        least = share * work + job.reduce[stage] + job.optimizer[stage]
        if least > plan.claims.period:
            message = f"claims {plan.claims.period}, the load of stage {stage} alone takes {least}"
            yield plan.overall(Rule.CLAIM_PERIOD, message)


def _windows(plan: Plan, timeline: Timeline) -> Iterator[Violation]:
    """Times count from 0, and nothing starts before the window of its stage opens."""
    if (first := int(timeline.start.min())) != 0:
        yield plan.overall(Rule.CLAIM_RELEASE, f"the first op must start at 0, got {first}")
    release = np.array(plan.release, dtype=np.int64)
    for op in where(timeline.start < release[plan.table.stage[timeline.row]]):
        row = int(timeline.row[op])
        message = f"{plan.table.name(row)} starts at {timeline.start[op]}, before its window opens"
        yield plan.at(Rule.CLAIM_RELEASE, row, message)


def _iterations(plan: Plan, timeline: Timeline) -> Iterator[Violation]:
    """Lay two iterations one claimed period apart: no worker may have two things to do at once."""
    period = plan.claims.period
    if not 0 < period <= LARGEST // 2:
        return
    stage_of = np.array([worker.stage for worker in plan.table.workers], dtype=np.int64)
    everybody = np.arange(len(stage_of))
    worker = np.concatenate((plan.table.worker[timeline.row], everybody))
    start = np.concatenate((timeline.start, np.array(timeline.reduce_start)[stage_of]))
    end = np.concatenate((timeline.end, np.array(timeline.optimizer_end)[stage_of]))
    worker, start, end = np.tile(worker, 2), np.append(start, start + period), np.append(end, end + period)
    # A step that takes no time may share its moment with the start of another.
    order = np.lexsort((end, start, worker))
    worker, start, end = worker[order], start[order], end[order]
    collide = (worker[1:] == worker[:-1]) & (start[1:] < end[:-1])
    for index in np.unique(worker[1:][collide]).tolist():
        message = f"is still busy with one iteration when the next one, {period} later, needs it"
        yield plan.of_worker(Rule.ITERATION_OVERLAP, index, message)
