"""Two groups of pipelines, where one cut divides badly."""

import re
from pathlib import Path

import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.groups import fastest_groups, group_shares, why_no_groups
from recycle_compiler.planner.recut import fastest_recut
from recycle_compiler.scheduling.budget import Guard
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import PlanBook
from tests.support.grouped import UNEVEN
from tests.support.layers import layer_costs, layered_job

FOREVER = 10**15


def uneven() -> JobSpec:
    """Sixteen micro-batches: of five workers that hold all layers, one has four of them."""
    return layered_job(layer_costs((1000,) * 4), (4,), 8, 2)


def test_five_workers_as_four_and_one() -> None:
    job = uneven()
    found = fastest_recut(job, 5, Guard(FOREVER))
    assert found is not None
    one_cut, least = found
    assert one_cut.claims.period == least == 4 * 4 * 3000
    groups = fastest_groups(job, 5, one_cut.claims.period, Guard(FOREVER))
    assert groups is not None
    assert [group.workers for group in groups.layout.groups] == [(2, 2), (1,)]
    assert groups.plan.claims.lower_bound <= groups.plan.claims.period < one_cut.claims.period


def test_nothing_is_found_where_one_cut_divides_well() -> None:
    job = uneven()
    even = fastest_recut(job, 8, Guard(FOREVER))
    assert even is not None and even[0].claims.period == 2 * 4 * 3000
    assert group_shares(job, 8, even[0].claims.period) == []
    assert fastest_groups(job, 8, even[0].claims.period, Guard(FOREVER)) is None


def test_a_group_must_hold_all_layers() -> None:
    """A worker has room for the state of two layers and a micro-batch: a group has two workers at least."""
    small = layered_job(layer_costs((1000,) * 4, resident=1000, capacity=4000), (2, 2), 3, 4, redundancy=1)
    found = group_shares(small, 5, 1 << 40)
    assert found and min(share.workers for share in found) == 2
    assert not group_shares(small, 3, 1 << 40)


def test_who_cannot_have_groups() -> None:
    assert why_no_groups(uneven()) is None
    assert why_no_groups(layered_job(layer_costs((1000,)), (1,), 2, 2)) == "it keeps its own cut"


def test_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan = tmp_path / "uneven.job", tmp_path / "uneven.plan"
    source.write_text(UNEVEN)
    assert main(["plan", str(source), "--workers", "5", "--groups", "-o", str(plan)]) == 0
    assert "in groups of pipelines, 2x2,2x2@" in capsys.readouterr().err
    assert Bundle.read(plan).groups == ((0, 1), (2, 2))
    assert main(["plan", str(source), "--workers", "8", "--groups", "-o", str(plan)]) == 0
    assert "no groups of pipelines were found that are faster" in capsys.readouterr().err
    assert main(["plan", str(source), "--groups", "--layout", "4x3"]) != 0
    assert "--groups goes with --workers" in capsys.readouterr().err


@pytest.mark.slow
def test_in_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With plans for either group alone; all that reads bundles takes it."""
    source, plan = tmp_path / "uneven.job", tmp_path / "uneven.plan"
    source.write_text(UNEVEN)
    assert main(["compile", str(source), "-o", str(plan), "--jobs", "1"]) == 0
    assert "2x2*2 @" in capsys.readouterr().err
    bundle = Bundle.read(plan)
    assert all(recut.plans[0].bound_over_cuts for recut in bundle.recuts)
    # What fewer workers run, more can run too.
    periods = [
        min(
            [
                bundle.plans[failures].period,
                *(recut.plans[0].period for recut in bundle.recuts if live_workers(recut) <= 8 - failures),
            ]
        )
        for failures in range(4)
    ]
    assert periods == sorted(periods)
    assert all(len(recut.plans) == 2 for recut in bundle.recuts if recut.groups)
    book = next(book for book in PlanBook(bundle).family if book.groups and book.stages == 3)
    assert book.alone(range(2)) is not None and book.alone([0]) is None
    # The large group may lose a stage too.
    assert book.alone([0, 2]) is not None
    assert main(["verify", str(plan)]) == 0
    assert "2x2,2x2@" in capsys.readouterr().out
    for command in ("show", "explain"):
        assert main([command, str(plan), "--failures", "3"]) == 0
    assert main(["diff", str(plan), str(plan)]) == 0


def live_workers(recut: Bundle) -> int:
    return recut.stages * recut.pipelines - len(recut.plans[0].failed)


def test_a_job_that_says_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`groups = off` and `--groups off` leave out plans and bounds of groups."""
    source, off = tmp_path / "uneven.job", tmp_path / "off.job"
    source.write_text(UNEVEN)
    off.write_text(UNEVEN.replace("data = 8", "data = 8  groups = off"))
    tables: list[str] = []
    for job, *options in ((source, "--groups", "off"), (off,), (off, "--groups", "on"), (source,)):
        words = ["compile", str(job), "-o", str(tmp_path / "x.plan"), "--json", "--jobs", "1", *options]
        assert main(words) == 0
        tables.append(_without_times(capsys.readouterr().out))
    assert tables[0] == tables[1] != tables[2] == tables[3]
    assert '"bound_over_cuts": 48' in tables[0] and '"bound_over_cuts": 39' in tables[2]


def _without_times(table: str) -> str:
    return re.sub(r'"seconds": [0-9.]+', "", table)


def test_the_same_bytes_from_one_process_and_two(tmp_path: Path) -> None:
    source = tmp_path / "uneven.job"
    source.write_text(UNEVEN)
    plans = [tmp_path / "one.plan", tmp_path / "two.plan"]
    for jobs, plan in zip(("1", "2"), plans, strict=True):
        assert main(["compile", str(source), "-o", str(plan), "--jobs", jobs]) == 0
    assert plans[0].read_bytes() == plans[1].read_bytes()


def test_no_time_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows whose layouts could not be compared to the end say so."""
    source = tmp_path / "uneven.job"
    source.write_text(UNEVEN.replace("tolerate", "solver { time_limit = 1 ms }\n  tolerate"))
    assert main(["compile", str(source), "-o", str(tmp_path / "x.plan"), "--jobs", "1"]) == 0
    rows = capsys.readouterr().err.splitlines()[1:]
    assert rows and all(", cut short" in row for row in rows[1:])
