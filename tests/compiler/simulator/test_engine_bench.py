"""Computations of the engine's benchmarks; what they measure is not for tests."""

import pytest

from bench import engine_beside_runs
from bench.agreement import row_of
from bench.engine_beside_runs import GRID_PLANS, beside_trace, measured_in, on_the_grid
from bench.report import ROOT
from recycle_compiler.analysis.trace_diff.trace_file import parse_run_trace
from recycle_compiler.backends.replay import replay
from recycle_compiler.viz.trace import planned_trace
from tests.compiler.simulator.engine_plans import bundle_of, golden_plan


def test_a_row_of_a_bundle() -> None:
    job, workers, plans, equal, instructions, *_ = row_of(bundle_of(golden_plan("figure3.1")))
    assert (job, workers, plans, equal) == ("figure3", "12", "1", "1")
    assert int(instructions) > 400


@pytest.mark.parametrize("name", ["uneven-bytes.0", "uneven-bytes.1"])
def test_a_run_that_goes_as_planned_is_predicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_beside_runs, "WARM_UP", 0)
    program = golden_plan(name)
    run = beside_trace(
        "any", bundle_of(program), parse_run_trace(planned_trace(replay(program)).encode()), 0.0
    )
    assert run.measured == pytest.approx(program.claims.period / 1e6)
    assert (run.by_profile, run.by_ops) == pytest.approx((run.measured, run.measured))


def test_the_table_of_the_grid_is_read_from_the_docs() -> None:
    measured = measured_in((ROOT / "docs" / "runtime.md").read_text(encoding="utf-8"))
    assert tuple(measured) == GRID_PLANS
    assert all(100 < time < 400 for time in measured.values())


def test_the_table_that_the_grid_writes_is_read_too() -> None:
    line = "| 1F1B | 12 | 228.2 | 225.2 | 224.0-227.1 | 0.987 | 6.9e-06 |"
    assert measured_in(f"| plan | workers | predicted ms | measured ms | from-to |\n{line}\n") == {
        "1F1B": 225.2
    }


def test_a_folder_without_runs_has_no_rows() -> None:
    assert list(on_the_grid(ROOT / "no-such-folder")) == []
