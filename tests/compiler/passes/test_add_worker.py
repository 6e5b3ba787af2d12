"""One failure fewer is never slower, and what makes it so is a valid plan."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import failed_per_stage, normal_form
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.add_worker import AddWorker
from recycle_compiler.passes.standard import LOWERING_PASSES
from recycle_compiler.planner import compile as compiler
from recycle_compiler.planner.compile import compile_job, plan_failed
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.jobs import ALL, small_targets, unit_job

SHORT = Effort().prompt().quick()
"""Enough for plans that need not be good."""


def has_failures(target: Target) -> bool:
    return bool(target.failed) and all(target.hosts) and target.job.techniques.adaptive


@settings(max_examples=40, deadline=None)
@given(small_targets().filter(has_failures))
def test_one_worker_more_is_never_slower(target: Target) -> None:
    counts = failed_per_stage(target.failed, target.job.stages)
    program = plan_failed(target.job, normal_form(counts, target.job.pipelines), effort=SHORT)
    fewer = (AddWorker() >> LOWERING_PASSES).run(program)
    assert len(fewer.failed) == len(program.failed) - 1
    assert set(fewer.failed) < set(program.failed)
    assert fewer.claims.lower_bound <= fewer.claims.period <= program.claims.period
    bundle = Bundle.parse(bundle_bytes(source="", plans=[fewer]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []


def test_a_slow_plan_gives_way_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = unit_job(2, 4, 3, capacity=2)
    plan_count = compiler.plan_count

    def worse(*arguments: Any, **options: Any) -> Streams:
        program = plan_count(*arguments, **options)
        slow = replace(program.claims, period=10 * program.claims.period)
        return replace(program, claims=slow) if len(program.failed) in (0, 1) else program

    monkeypatch.setattr(compiler, "plan_count", worse)
    periods = [program.claims.period for program in compile_job(job, failures=3)]
    assert periods == sorted(periods)
    whole = replace(job, techniques=replace(ALL, adaptive=False))
    assert compile_job(whole, failures=1)[0].claims.period > periods[-1]
