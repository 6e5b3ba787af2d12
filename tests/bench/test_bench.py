"""Computations of the benchmarks themselves; what they measure is not for tests."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import throughput
from bench.attempts import Attempt, read_attempt, workers_of
from bench.growth import PIPELINES, with_pipelines
from bench.measure import CommandError, run
from bench.on_demand import pattern
from bench.plans import NAMES
from bench.report import JOBS, ROOT, Section, job_path
from bench.run import HEAD, with_section
from recycle_compiler.frontend import load_job
from recycle_compiler.frontend.format import format_job
from recycle_compiler.ir.failure import failed_per_stage
from recycle_compiler.planner.baselines import problem_with, recycle_period, textbook_schedule
from recycle_compiler.scheduling.bounds import lower_bound
from tests.support.jobs import SLOT, figure3, unit_job


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.job")), ids=lambda path: path.stem)
def test_jobs_are_good_and_in_canonical_form(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert load_job(str(path)).spec.name == path.stem
    assert format_job(text, path.name) == text


def test_every_job_that_is_measured_is_there() -> None:
    assert [name for name in NAMES if not job_path(name).exists()] == []


def test_grown_jobs_have_more_pipelines(tmp_path: Path) -> None:
    text = job_path("scale-2048").read_text()
    for pipelines in PIPELINES:
        grown = tmp_path / "grown.job"
        grown.write_text(with_pipelines(text, pipelines))
        assert load_job(str(grown)).spec.pipelines == pipelines


@given(st.integers(1, 12), st.integers(0, 5))
def test_patterns_leave_every_stage_a_worker(count: int, seed: int) -> None:
    job = unit_job(4, 4, 2)
    failed = pattern(job, count, seed)
    assert len(failed) == count
    assert max(failed_per_stage(failed, job.stages)) < job.pipelines


def test_published_techniques_split_only_where_workers_are_lost() -> None:
    problem = problem_with(figure3(4), (0, 0, 1, 0))
    assert problem.split == (False, False, True, False)
    assert problem.backward == (2 * SLOT, 2 * SLOT, SLOT, 2 * SLOT)
    assert problem.weight == (0, 0, SLOT, 0)
    assert problem.kept == (0, 0, SLOT, 0)


def test_published_techniques_without_failures_are_one_f_one_b() -> None:
    job = figure3((4, 3, 2, 1))
    assert recycle_period(job, (0, 0, 0, 0)) == textbook_schedule(job, "1F1B").staggered_period


def test_published_techniques_obey_their_bound() -> None:
    job = unit_job(3, 3, 4, capacity=4)
    assert recycle_period(job, (0, 1, 0)) >= min(
        lower_bound(problem_with(job, counts)).period for counts in ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    )


def test_attempts_travel_as_text() -> None:
    assert read_attempt('{"period": null, "bound": 3, "reached": null, "seconds": 1.5}') == Attempt(
        None, 3, None, 1.5
    )
    assert workers_of("1:2,0:3") == ((0, 3), (1, 2))


def test_a_measured_command_reports_what_it_did() -> None:
    made = run([sys.executable, "-c", "print('done')"])
    assert made.stdout == "done\n"
    assert made.peak_bytes > 1 << 20


def test_a_measured_command_that_fails_says_why() -> None:
    with pytest.raises(CommandError, match="exit code 3: last words"):
        run([sys.executable, "-c", "import sys; print('last words', file=sys.stderr); sys.exit(3)"])


def one_section(title: str, cell: str) -> Section:
    return Section(title, "make bench", "Words.", ("name", "value"), (("a", cell),))


def test_a_page_keeps_the_sections_that_are_not_measured_again() -> None:
    page = with_section(with_section("", one_section("First", "1")), one_section("Second", "2"))
    again = with_section(page, one_section("First", "3"))
    assert again.startswith(HEAD)
    assert again.index("## First") < again.index("## Second")
    assert "| a | 3 |" in again and "| a | 2 |" in again and "| a | 1 |" not in again
    assert with_section(again, one_section("Second", "2")) == again


def test_the_picture_of_throughput_shows_the_table_beside_it() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    part = page.partition(f"## {throughput.TITLE}\n")[2].partition("\n## ")[0]
    table = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    assert throughput.PICTURE.read_text(encoding="utf-8") == throughput.picture(table[2:])
