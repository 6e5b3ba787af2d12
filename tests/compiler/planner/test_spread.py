"""Op times that vary: in the job, in the engine, in the choice of a plan, and in what `explain` says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.job import parse_job, print_job
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.planner.spread import least_mean, mean_period
from recycle_compiler.simulator.costs import Jitter, jitter_of
from tests.support.jobs import unit_job

JOB = """job vary {
  parallel { pipeline = 2  data = 2 }
  batch    { microbatches = 4 }
  profile  { unit = ms  forward = 12  spread = 20%  backward_input = 12  backward_weight = 12  jitter = 2.5% }
}
"""


def test_the_job_says_how_times_vary(tmp_path: Path) -> None:
    path = tmp_path / "vary.job"
    path.write_text(JOB)
    job = load_job(str(path)).spec
    assert (job.spread_ppm, job.jitter_ppm) == (200_000, 25_000)
    assert "spread 200000 25000\n" in print_job(job)
    assert parse_job(print_job(job).splitlines()) == job
    assert jitter_of(job, 3) == Jitter(0.025, 3, 0.2)


def test_a_wrong_share(tmp_path: Path) -> None:
    path = tmp_path / "vary.job"
    path.write_text(JOB.replace("20%", "20"))
    with pytest.raises(CompileError) as caught:
        load_job(str(path))
    assert "vary.job:4:48: error[unit]: spread must be a percentage, got 20" in caught.value.render()


def test_all_ops_of_a_micro_batch_vary_together() -> None:
    microbatch = np.array([0, 1, 0, -1, 2, 1])
    factors = Jitter(0.0, 1, by_microbatch=0.5).of_microbatches(0, microbatch)
    assert factors[0] == factors[2] and factors[1] == factors[5] and factors[3] == 1.0
    assert len({factors[0], factors[1], factors[4]}) == 3


def test_what_varies_takes_longer_than_what_does_not() -> None:
    plan = plan_failed(unit_job(2, 2, 4), ())
    steady = plan.claims.period
    assert mean_period(plan, Jitter(0.0, 0, 1e-9)).mean == pytest.approx(steady, rel=1e-3)
    assert mean_period(plan, Jitter(0.0, 0, 0.3)).mean > steady
    assert mean_period(plan, Jitter(0.3, 0, 0.3)).deviation > 0


def test_the_plan_with_the_least_mean_is_taken() -> None:
    job = replace(unit_job(2, 2, 4), spread_ppm=300_000)
    plan = plan_failed(job, ())
    steady = replace(plan_failed(unit_job(2, 2, 4), ()), job=job)
    jitter = jitter_of(job, job.solver.seed)
    assert mean_period(plan, jitter).mean <= mean_period(steady, jitter).mean
    assert least_mean([steady, plan]).job == job


def test_explain_says_what_spread_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, plan = tmp_path / "vary.job", str(tmp_path / "vary.plan")
    job.write_text(JOB)
    assert main(["compile", str(job), "-o", plan, "--quiet"]) == 0
    assert main(["explain", plan, "--what-if", "none"]) == 0
    told = capsys.readouterr().out
    assert "op times vary: a mean period of " in told and "20.0 % by micro-batch alone: " in told
    assert main(["explain", plan, "--what-if", "none", "--json"]) == 0
    assert '"by_chance_alone"' in capsys.readouterr().out
