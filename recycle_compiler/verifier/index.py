"""The bundle as a whole: its index, and bounds that must agree across plans."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.ir.job import JobSpec, TextError, parse_job
from recycle_compiler.verifier.plan import LARGEST, PlanSource, live_hosts
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_compiler.verifier.shards import wrong_steps

_SHAPE = (
    *("stages", "pipelines", "tensor", "microbatches", "chunk_stages"),
    *("cut", "tied_chunks", "groups", "owners", "slots", "placed_every"),
)
"""Fields that both the index of a bundle and its job have."""
_LARGEST_GRID = 1_000_000
"""More workers than any job has; keeps a nonsensical header from asking for gigabytes."""


def workable_job(source: PlanSource) -> JobSpec | str:
    """The job of a bundle, or a sentence on why it cannot be worked with."""
    try:
        job = parse_job(source.job_text.splitlines())
    except TextError as error:
        return f"the job cannot be read: {error}"
    if job.workers > _LARGEST_GRID:
        return f"a job has at most {_LARGEST_GRID} workers, got {job.workers}"
    times = (job.forward, job.backward_input, job.backward_weight, job.transfer, job.transfer)
    finish = sum(job.reduce) + sum(job.optimizer) + sum(job.gather)
    if job.sharding is not None:
        finish += sum(job.sharding.step)
    units = job.pipelines * job.microbatches
    if units * sum(map(sum, times)) + finish > LARGEST // 8 or units * max(job.activation) > LARGEST // 8:
        return "times or memory of the job add up to more than can be counted"
    return job


def verify_index(source: PlanSource) -> Iterator[Violation]:
    """Yield what is wrong with a bundle before any of its streams is read."""
    job = workable_job(source)
    if isinstance(job, str):
        yield Violation(VerifierRule.INDEX_SHAPE, None, None, None, job)
        return
    for name in _SHAPE:
        stated, in_job = getattr(source, name), getattr(job, name)
        if stated != in_job:
            what = "layers per chunk" if name == "cut" else name.replace("_", " ")
            message = f"the bundle states {stated} {what}, its job has {in_job}"
            yield Violation(VerifierRule.INDEX_SHAPE, None, None, None, message)
    for what in wrong_steps(job):
        yield Violation(VerifierRule.INDEX_SHAPE, None, None, None, what)
    yield from _states(source)
    yield from _bounds(source, job)


def failure_state_errors(failed: tuple[tuple[int, int], ...], job: JobSpec) -> Iterator[str]:
    """Reasons why the failed workers are not a set of workers of the job."""
    if len(set(failed)) != len(failed):
        yield "a failed worker is named twice"
    for pipeline, stage in failed:
        if not (0 <= pipeline < job.pipelines and 0 <= stage < job.stages):
            yield f"failed worker {pipeline}:{stage} is not one of {job.pipelines} x {job.stages}"


def _states(source: PlanSource) -> Iterator[Violation]:
    first: dict[frozenset[tuple[int, int]], int] = {}
    for index, entry in enumerate(source.plans):
        state = frozenset((pipeline, stage) for pipeline, stage in entry.failed)
        if state in first:
            message = f"is for the same failure state as plan {first[state]}"
            yield Violation(VerifierRule.INDEX_STATE, index, None, None, message)
        first.setdefault(state, index)


def _bounds(source: PlanSource, job: JobSpec) -> Iterator[Violation]:
    """More failures never make a plan faster, so no bound may exceed the period of a plan with more.

    Where peers share experts they may: fewer peers exchange fewer tokens, and send fewer messages.
    """
    if any(job.exchange) or any(job.slot_transfer):
        return
    states = [(index, tuple((p, s) for p, s in entry.failed)) for index, entry in enumerate(source.plans)]
    sound = [(index, failed) for index, failed in states if not any(failure_state_errors(failed, job))]
    if not sound:
        return
    hosts = np.array([live_hosts(job, failed) for _, failed in sound], dtype=np.int64)
    period = [source.plans[index].period for index, _ in sound]
    for place, (index, _) in enumerate(sound):
        weaker = np.flatnonzero((hosts <= hosts[place]).all(axis=1)).tolist()
        fastest = min(weaker, key=lambda other: period[other])
        bound = source.plans[index].lower_bound
        if fastest != place and bound > period[fastest]:
            message = (
                f"claims that nothing beats {bound}, but plan {sound[fastest][0]}, with no more workers, "
                f"takes {period[fastest]}"
            )
            yield Violation(VerifierRule.CLAIM_BOUND, index, None, None, message)
