"""Plans for slow workers: ordinary plans of the job, never worse with slow workers than equal shares are."""

from dataclasses import replace
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.analysis.trace_diff.network import retimed_step
from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.failure import FailureSet, Worker, failure_set, worker_at
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.planner.compile import plan_failed, plan_slow
from recycle_compiler.planner.slow_workers import SlowPlan, slow_step
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.scheduling.slow_workers import slow_workers
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from tests.support.jobs import NONE, figure3, small_targets, unit_job

FACTORS = st.sampled_from([0.5, 1.0, 1.3, 2.0, 2.5, 4.0, 20.0])


@st.composite
def slow_targets(draw: st.DrawFn) -> tuple[Target, dict[Worker, float]]:
    target = draw(small_targets().filter(lambda target: target.job.techniques.adaptive and all(target.hosts)))
    live = [worker_at(number, target.job.pipelines) for hosts in target.hosts for number in hosts]
    chosen = draw(st.lists(st.sampled_from(live), min_size=1, max_size=3, unique=True))
    return target, {worker: draw(FACTORS) for worker in chosen}


def planned(job: JobSpec, failed: FailureSet, slow: dict[Worker, float]) -> SlowPlan:
    return plan_slow(job, failed, slow_workers(slow.items()))


SHORT = Effort().prompt().quick()
"""Enough for plans that need not be good."""


def forwards(streams: Streams, worker: Worker) -> int:
    stream = streams.stream(streams.workers.index(worker))
    return sum(instruction.opcode is Opcode.FORWARD for instruction in stream)


def violations(streams: Streams) -> list[str]:
    bundle = Bundle.parse(bundle_bytes(source="", plans=[streams]))
    return [str(violation) for violation in verify_bundle(bundle)]


def coarsest_grain(job: JobSpec, slow: dict[Worker, float]) -> int:
    """The unit that the search counts steps in, or more; a cycle over two windows may need half a grain
    less."""
    work = [i + w for i, w in zip(job.backward_input, job.backward_weight, strict=True)]
    finish = [r + o for r, o in zip(job.reduce, job.optimizer, strict=True)]
    stretched = [one.stretched(time) for one in slow_workers(slow.items()) for time in job.forward]
    return gcd(*job.forward, *work, *job.transfer, *finish, *stretched)


@pytest.mark.parametrize(("pipelines", "microbatches"), [(2, 2), (3, 2), (2, 4)])
def test_peers_of_one_stage_start_when_they_must(pipelines: int, microbatches: int) -> None:
    """A worker that takes longer to step starts sooner than its peers, with one window too."""
    job = replace(unit_job(1, pipelines, microbatches), optimizer=(1000,))
    slow = {Worker(0, 0): 0.5, Worker(1, 0): 1.3}
    found = plan_slow(job, (), slow_workers(slow.items()), SHORT)
    assert found.step == retimed_step(replay(found.streams), job, slow)


@settings(max_examples=25)
@given(slow_targets())
def test_a_plan_for_slow_workers_is_a_good_plan(case: tuple[Target, dict[Worker, float]]) -> None:
    target, slow = case
    job, failed = target.job, target.failed
    found = plan_slow(job, failed, slow_workers(slow.items()), SHORT)
    assert found.streams.failed == failed
    assert violations(found.streams) == []
    equal = retimed_step(replay(plan_failed(job, failed, effort=SHORT)), job, slow)
    step = retimed_step(replay(found.streams), job, slow)
    slack, grain = job.stages + 1, coarsest_grain(job, slow)
    for counted, exact in ((found.step, step), (found.equal_step, equal)):
        assert exact - slack <= counted < exact + grain + slack
    assert found.step <= found.equal_step
    assert found.shares == tuple(forwards(found.streams, worker) for worker in sorted(slow))
    again = plan_slow(job, failed, slow_workers(slow.items()), SHORT)
    assert bundle_bytes(source="", plans=[again.streams]) == bundle_bytes(source="", plans=[found.streams])


@settings(max_examples=40)
@given(slow_targets())
def test_steps_are_those_of_retime(case: tuple[Target, dict[Worker, float]]) -> None:
    """The clock of the search, and longest ways between stages: ticks are all that the first rounds to."""
    target, slow = case
    schedule = replay(plan_failed(target.job, target.failed, effort=SHORT))
    step = slow_step(schedule, slow_workers(slow.items()))
    assert step == pytest.approx(
        retimed_step(schedule, target.job, slow), rel=1e-3, abs=target.job.stages + 1
    )


SLOW = [(1.5, 30), (5.0, 35), (1000.0, 3000)]


@pytest.mark.parametrize(
    ("factor", "most"), [(2.0, 31), *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)]
)
def test_the_running_example(factor: float, most: int) -> None:
    """Without 1:2 a step takes 35 slots; its own optimizer step is slow too."""
    job, worker = figure3((4, 4, 4, 4)), Worker(1, 2)
    found = planned(job, (), {worker: factor})
    assert found.step <= most * 1000
    assert found.step < found.equal_step
    assert violations(found.streams) == []


def test_who_has_nothing_still_reduces_and_steps() -> None:
    job, worker = figure3((4, 4, 4, 4)), Worker(1, 2)
    found = planned(job, (), {worker: 9.0})
    assert found.shares == (0,)
    stream = found.streams.stream(found.streams.workers.index(worker))
    assert [instruction.opcode for instruction in stream] == [
        Opcode.REDUCE,
        Opcode.OPTIMIZER,
        Opcode.VALIDATE,
    ]
    assert found.step == plan_failed(job, failure_set([worker])).claims.period


def test_which_peer_is_slow_does_not_matter() -> None:
    job = unit_job(3, 3, 4)
    steps = {planned(job, failure_set([(0, 2)]), {Worker(p, 1): 2.0}).step for p in range(3)}
    assert len(steps) == 1


def test_equal_shares_stay_where_nothing_is_better() -> None:
    job = figure3((4, 4, 4, 4))
    found = planned(job, (), {Worker(1, 2): 1.0})
    plain = bundle_bytes(source="", plans=[plan_failed(job, ())])
    assert bundle_bytes(source="", plans=[found.streams]) == plain


def test_a_large_job_deals_out_all_of_a_stage() -> None:
    job = unit_job(8, 8, 128)
    found = planned(job, (), {Worker(3, 4): 2.0})
    assert found.step < 0.75 * found.equal_step
    assert violations(found.streams) == []


def test_without_adaptive_nothing_can_move() -> None:
    with pytest.raises(ValueError, match="adaptive"):
        plan_slow(figure3(4, NONE), (), slow_workers([((1, 2), 2.0)]))
