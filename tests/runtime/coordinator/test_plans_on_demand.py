"""Plans that a process makes while the job runs: one that is killed, and one for another job."""

import time
from pathlib import Path

import pytest

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import compile_job, plan_failed
from recycle_runtime.coordinator.events import PlanMade, PlanningFailed
from recycle_runtime.coordinator.journal import Journal
from recycle_runtime.coordinator.plans import PlanFiles, PlansOnDemand, is_of_job
from recycle_runtime.plan import on_demand
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import PlanBook
from tests.runtime.coordinator.fake_job import HEAVY


def bundle_of(source: str, failed: tuple[tuple[int, int], ...] = ()) -> bytes:
    job = parse_job_text(source, "some.job")
    plans = (plan_failed(job, failure_set(failed)),) if failed else compile_job(job)
    return bundle_bytes(source=source, plans=plans)


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlansOnDemand:
    """For a job whose planner is a script: killed as often as the file `kills` says."""
    first = tmp_path / "first.plan"
    first.write_bytes(bundle_of(HEAVY))
    script = tmp_path / "recyclec"
    script.write_text(f"""#!/bin/sh
cd {tmp_path}
echo >> begun
if [ "$(wc -l < begun)" -le "$(cat kills)" ]; then kill -9 $$; fi
while [ "$1" != "-o" ]; do shift; done
cp made "$2"
""")
    script.chmod(0o755)
    monkeypatch.setattr(on_demand, "find_recyclec", lambda: str(script))
    book = PlanBook(Bundle.read(first))
    files = PlanFiles(str(first), book, Journal(tmp_path / "journal"), tmp_path)
    return PlansOnDemand(files, HEAVY, tmp_path)


def outcome(plans: PlansOnDemand, folder: Path) -> list[object]:
    book = PlanBook(Bundle.read(folder / "first.plan"))
    live = tuple(cell for cell in book.grid if cell != (2, 0))
    plans.want(live, book)
    while not (found := plans.take()):
        time.sleep(0.01)
    return list(found)


def test_a_planner_that_is_killed_begins_anew(plans: PlansOnDemand, tmp_path: Path) -> None:
    """One kill, by hand or for want of memory, was the end of the job."""
    (tmp_path / "made").write_bytes(bundle_of(HEAVY, failed=((2, 0),)))
    (tmp_path / "kills").write_text("2")
    assert isinstance(outcome(plans, tmp_path)[-1], PlanMade)
    assert (tmp_path / "begun").read_text().count("\n") == 3


def test_not_without_end(plans: PlansOnDemand, tmp_path: Path) -> None:
    (tmp_path / "kills").write_text("9")
    failed = outcome(plans, tmp_path)[-1]
    assert isinstance(failed, PlanningFailed) and "was killed by signal 9, 3 times" in failed.error
    assert (tmp_path / "begun").read_text().count("\n") == 3


def test_a_plan_for_another_job_is_not_used(plans: PlansOnDemand, tmp_path: Path) -> None:
    """The bundle's source had half the micro-batches: training went on with half of the data."""
    job = parse_job_text(HEAVY, "heavy.job")
    fewer = HEAVY.replace(f"microbatches = {job.microbatches}", f"microbatches = {job.microbatches - 1}")
    assert fewer != HEAVY
    (tmp_path / "made").write_bytes(bundle_of(fewer, failed=((2, 0),)))
    (tmp_path / "kills").write_text("0")
    failed = outcome(plans, tmp_path)[-1]
    assert isinstance(failed, PlanningFailed) and "is not the one of its plans" in failed.error
    assert not is_of_job(Bundle.parse((tmp_path / "made").read_bytes()), Bundle.read(tmp_path / "first.plan"))
