"""Two groups of pipelines, where one cut divides badly."""

from pathlib import Path

import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.groups import fastest_groups, least_period, shares, why_no_groups
from recycle_compiler.planner.recut import fastest_recut
from recycle_compiler.scheduling.budget import Deadline
from recycle_runtime.plan.bundle import Bundle
from tests.support.layers import layer_costs, layered_job

FOREVER = 10**15
JOB = """job uneven {
  parallel { pipeline = 1  data = 5 }
  batch { microbatches = 2 }
  layers { count = 4  forward = 1  backward_input = 1  backward_weight = 1 }
  tolerate { failures = 2 }
}
"""


def uneven() -> JobSpec:
    """Ten micro-batches: of three workers that hold all layers, one has four of them."""
    return layered_job(layer_costs((1000,) * 4), (4,), 5, 2)


def test_three_workers_as_one_and_two() -> None:
    job = uneven()
    found = fastest_recut(job, 3, Deadline(FOREVER))
    assert found is not None
    one_cut, least = found
    assert one_cut.claims.period == least == 4 * 4 * 3000
    groups = fastest_groups(job, 3, one_cut.claims.period, Deadline(FOREVER))
    assert groups is not None
    assert groups.layout.shares == (7, 3)
    assert [group.workers for group in groups.layout.groups] == [(1, 1), (1,)]
    assert groups.plan.claims.lower_bound <= groups.plan.claims.period < one_cut.claims.period
    # Nothing is said about other groups and shares.
    assert groups.plan.claims.bound_over_cuts == 0


def test_nothing_is_found_where_one_cut_divides_well() -> None:
    job = uneven()
    even = fastest_recut(job, 5, Deadline(FOREVER))
    assert even is not None and even[0].claims.period == 2 * 4 * 3000
    assert shares(job, 5, even[0].claims.period) == []
    assert fastest_groups(job, 5, even[0].claims.period, Deadline(FOREVER)) is None


def test_a_group_must_hold_all_layers() -> None:
    small = layered_job(layer_costs((1000,) * 4, resident=1000, capacity=4000), (2, 2), 2, 4)
    assert least_period(small, 1, 2) is None
    assert least_period(small, 2, 2) is not None


def test_who_cannot_have_groups() -> None:
    assert why_no_groups(uneven()) is None
    assert why_no_groups(layered_job(layer_costs((1000,)), (1,), 2, 2)) == "it keeps its own cut"


def test_on_request_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan = tmp_path / "uneven.job", tmp_path / "uneven.plan"
    source.write_text(JOB)
    assert main(["plan", str(source), "--workers", "3", "-o", str(plan)]) == 0
    assert Bundle.read(plan).groups == ()
    assert main(["plan", str(source), "--workers", "3", "--groups", "-o", str(plan)]) == 0
    assert "in groups of pipelines, 2x1,2x1@7+4x1@3, a step takes" in capsys.readouterr().err
    assert Bundle.read(plan).groups == ((0, 1), (2, 2))
    assert main(["plan", str(source), "--workers", "5", "--groups", "-o", str(plan)]) == 0
    assert "no groups of pipelines were found that are faster" in capsys.readouterr().err
    assert main(["plan", str(source), "--groups", "--layout", "4x3"]) != 0
    assert "--groups goes with --workers" in capsys.readouterr().err
