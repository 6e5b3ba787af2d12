"""The compiler from Python gives what the command gives."""

from pathlib import Path

import pytest

import recycle_compiler as recyclec
from recycle_compiler.cli.main import main
from recycle_compiler.diagnostics import CompileError
from recycle_compiler.planner.compile import NoPlanError
from recycle_runtime.plan.bundle import BundleError
from recycle_runtime.plan.isa import Opcode

JOB = """job small {
  parallel { pipeline = 2  data = 2 }
  batch    { microbatches = 4 }
  profile  { unit = ms  forward = 1  backward_input = 1.5  backward_weight = 1  optimizer = 1 }
  tolerate { failures = 1 }
}
"""
LAYERED = """job layered {
  parallel { pipeline = 2  data = 2 }
  batch    { microbatches = 4 }
  layers   { count = 4  unit = ms  forward = [1, 1, 1, 4]  backward_input = 1  backward_weight = 1 }
  tolerate { failures = 1 }
}
"""


@pytest.fixture(scope="module")
def small() -> recyclec.CompiledBundle:
    return recyclec.compile(recyclec.parse(JOB), processes=1)


def test_as_the_command_does(small: recyclec.CompiledBundle, tmp_path: Path) -> None:
    (tmp_path / "small.job").write_text(JOB)
    assert (
        main(["--quiet", "compile", str(tmp_path / "small.job"), "-o", str(tmp_path / "command.plan")]) == 0
    )
    small.save(tmp_path / "library.plan")
    assert (tmp_path / "library.plan").read_bytes() == (tmp_path / "command.plan").read_bytes()
    again = recyclec.read(tmp_path / "library.plan")
    assert [plan.period for plan in again] == [plan.period for plan in small]
    assert again.verify() == []


def test_a_plan(small: recyclec.CompiledBundle) -> None:
    assert len(small) == 2
    plan = small[1]
    assert len(plan.failed) == 1
    assert len(plan.workers) == 3
    assert plan.bound <= plan.period
    assert plan.gap == pytest.approx(plan.period / plan.bound - 1)
    assert repr(plan) == f"<plan of small: 1 failed, period {plan.period}>"
    forwards = [each for each in plan.stream(plan.workers[0]) if each.opcode is Opcode.FORWARD]
    assert len(forwards) >= 4
    with pytest.raises(KeyError, match="has no stream in this plan"):
        plan.stream(plan.failed[0])
    with pytest.raises(IndexError, match="no plan for 2 failures"):
        small[2]


def test_it_is_drawn(small: recyclec.CompiledBundle) -> None:
    plan = small[1]
    assert plan.text().startswith("small: 2 stages, 2 pipelines")
    assert plan._repr_svg_().startswith("<svg")  # pyright: ignore[reportPrivateUsage]
    assert '"job": "small"' in plan.json()


def test_a_job_in_layers_has_plans_under_other_cuts() -> None:
    job = recyclec.parse(LAYERED)
    bundle = recyclec.compile(job, processes=1)
    assert bundle.verify() == []
    assert bundle[0].period < bundle.own(0).period
    assert recyclec.compile(job, processes=1, recut=False)[0].period == bundle.own(0).period


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(CompileError):
        recyclec.parse("job {")
    with pytest.raises(CompileError):
        recyclec.compile(tmp_path / "none.job")
    with pytest.raises(NoPlanError):
        recyclec.compile(recyclec.parse(JOB), failures=4)
    (tmp_path / "bad.plan").write_bytes(b"nothing")
    with pytest.raises(BundleError):
        recyclec.read(tmp_path / "bad.plan")
    with pytest.raises(AttributeError, match="no attribute 'compute'"):
        _ = recyclec.compute  # type: ignore[attr-defined]


def test_a_plan_as_a_page(small_bundle: str) -> None:
    plan = recyclec.read(small_bundle)[1]
    assert (
        plan.html().startswith("<!doctype html>") and f'"period":{plan.streams.claims.period},' in plan.html()
    )
