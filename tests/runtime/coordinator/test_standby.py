"""Choice of a plan when some workers should be standbys or do less, and when op times are newer."""

from dataclasses import replace
from pathlib import Path

import pytest

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.coordinator.events import (
    AllReturned,
    EndJob,
    Joined,
    Order,
    Returned,
    Send,
    WorkerFailed,
)
from recycle_runtime.coordinator.journal import Journal, JournalLine, Lines
from recycle_runtime.coordinator.last_generation import remembered
from recycle_runtime.coordinator.outlives import read_journal
from recycle_runtime.coordinator.plans import PlanFiles, PlanGoneError
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.plan_book import Fitted, PlanBook
from recycle_runtime.protocol.messages.generations import Hold
from recycle_runtime.protocol.messages.members import Member
from tests.runtime.coordinator.fake_job import HEAVY, FakeJob, heavy_bundle, planned


def test_slow_workers_are_standbys_if_there_is_a_plan_for_exactly_the_others() -> None:
    book = PlanBook(heavy_bundle())
    live = book.grid
    book.standby = frozenset({(1, 0)})
    assignment = book.assign(live)
    assert assignment is not None and assignment.on_purpose and assignment.is_exact
    failed = book.bundles[assignment.bundle].plans[assignment.plan].failed
    assert [place for place, role in assignment.roles.items() if role in failed] == [(1, 0)]
    assert sorted(assignment.roles.values()) == sorted(live)


def test_otherwise_they_work() -> None:
    book = PlanBook(heavy_bundle())
    book.standby = frozenset({(1, 1)})
    assignment = book.assign(book.grid)
    assert assignment is not None and assignment.standbys == 0 and not assignment.on_purpose
    book.add(planned(((1, 1),)))
    assignment = book.assign(book.grid)
    assert assignment is not None and assignment.on_purpose and assignment.standbys == 1


def test_where_somebody_has_to_be_a_standby_it_is_the_slow_one() -> None:
    book = PlanBook(planned(((1, 1),)))
    book.standby = frozenset({(0, 1)})
    live = [worker for worker in book.grid if worker != (0, 0)]
    assert book.assign(live) is None, "the plan has everybody on stage 0"
    book = PlanBook(planned(((0, 1), (0, 0))))
    book.standby = frozenset({(2, 1)})
    assignment = book.assign(book.grid)
    assert assignment is not None and not assignment.is_exact
    failed = book.bundles[0].plans[0].failed
    assert {place for place, role in assignment.roles.items() if role in failed} == {(2, 0), (2, 1)}


def test_newer_op_times_are_better_for_exactly_the_same_losses() -> None:
    book = PlanBook(heavy_bundle())
    old = book.assign(book.grid)
    newer = replace(heavy_bundle(), job_text=heavy_bundle().job_text.replace("3000", "9000"))
    book.add(newer)
    chosen = book.assign(book.grid)
    assert old is not None and chosen is not None
    assert (old.bundle, chosen.bundle) == (0, 1)
    assert book.planned_period(chosen) == book.planned_period(old) == old.period
    left = [(2, stage) for stage in range(book.stages)]
    book.add(replace(planned(tuple(cell for cell in book.grid if cell not in left)), job_text=newer.job_text))
    fewest = book.assign(left)
    assert fewest is not None and book.planned_period(fewest) is None


def test_a_coordinator_that_starts_again_knows_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(generation=1, step=0, places=[[0, 0], [0, 1]])
    journal.write(standby=[[0, 1]])
    journal.write(standby=[[1, 1], [0, 2]])
    journal.close()
    again = PlanBook(heavy_bundle())
    PlanFiles("first", again, journal, tmp_path).recall(read_journal(tmp_path / "journal"))
    assert again.standby == {(1, 1), (0, 2)}


def test_a_plan_for_certain_workers_is_theirs_alone() -> None:
    book = PlanBook(heavy_bundle())
    made_for = Fitted(frozenset(book.grid), {(1, 1): 2.0})
    number = book.add(planned(()), made_for)
    first = book.assign(book.grid)
    assert first is not None and first.bundle == 0 and book.slow_in(first) == {}
    book.fitted = number
    fitted = book.assign(book.grid)
    assert fitted is not None and fitted.bundle == number and fitted.is_exact
    assert fitted.roles == {worker: worker for worker in book.grid}
    assert book.slow_in(fitted) == {(1, 1): 2.0}
    fewer = book.assign(book.grid[1:])
    assert fewer is not None and fewer.bundle == 0


def test_a_coordinator_that_starts_again_knows_it_too(tmp_path: Path) -> None:
    path = tmp_path / "made.plan"
    path.write_bytes(bundle_bytes(source=HEAVY, plans=[plan_failed(parse_job_text(HEAVY, "heavy.job"), ())]))
    book, journal = PlanBook(heavy_bundle()), Journal(tmp_path / "journal")
    files = PlanFiles("first", book, journal, tmp_path)
    journal.write(generation=1, step=0, places=book.grid)
    files.add(path, planned(()))
    made_for = Fitted(frozenset(book.grid), {(1, 1): 2.5})
    files.fit(path, planned(()), made_for)

    def recalled() -> PlanBook:
        again = PlanBook(heavy_bundle())
        PlanFiles("first", again, journal, tmp_path).recall(read_journal(tmp_path / "journal"))
        return again

    again = recalled()
    assert (again.fitted, book.fitted) == (2, 2)
    assignment = again.assign(again.grid)
    assert assignment is not None and again.slow_in(assignment) == {(1, 1): 2.5}
    files.unfit()
    again = recalled()
    assignment = again.assign(again.grid)
    assert assignment is not None and again.slow_in(assignment) == {}


def test_plans_are_found_where_the_folder_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that was started elsewhere, or with a copy of its folder, did not find them."""
    monkeypatch.chdir(tmp_path)
    made, old, new = planned(()), Path("old"), Path("new")
    old.mkdir()
    book, journal = PlanBook(heavy_bundle()), Journal(tmp_path / "journal")
    journal.write(generation=1, step=0, places=book.grid)
    files = PlanFiles("first", book, journal, old)
    data = bundle_bytes(source=HEAVY, plans=[plan_failed(parse_job_text(HEAVY, "heavy.job"), ())])
    for name in ("a.plan", "b.plan"):
        (old / name).write_bytes(data)
    files.add(old / "a.plan", made)
    # As it was written down before.
    journal.write(bundle="old/b.plan")
    lines = read_journal(tmp_path / "journal")
    assert lines.values("bundle") == ["a.plan", "old/b.plan"]
    old.rename(new)
    again = PlanFiles("first", PlanBook(heavy_bundle()), journal, new)
    again.recall(lines)
    assert again.paths[1:] == [new / "a.plan", new / "b.plan"]


def test_a_plan_that_is_gone_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "there.plan").write_bytes(
        bundle_bytes(source=HEAVY, plans=[plan_failed(parse_job_text(HEAVY, "heavy.job"), ())])
    )
    (tmp_path / "damaged.plan").write_bytes(b"nothing")
    journal = Journal(tmp_path / "journal")
    book = PlanBook(heavy_bundle())
    noted = (
        {"bundle": "gone.plan", "live": book.grid, "slow": ((1, 1, 2.5),)},
        {"bundle": "there.plan"},
        {"bundle": "damaged.plan"},
    )
    lines = Lines("journal", tuple(JournalLine(number, fields) for number, fields in enumerate(noted, 1)))
    PlanFiles("first", book, journal, tmp_path).recall(lines, running=2)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/gone.plan: no such file or directory; this plan is left out",
        f"{tmp_path}/damaged.plan: not a bundle: it does not begin like one; this plan is left out",
    ]
    # Workers know the others by the numbers that they had.
    assert len(book.bundles) == 4 and book.with_bundle(2).fitted is None
    assignment = book.assign(book.grid)
    assert assignment is not None and assignment.bundle in (0, 2)
    with pytest.raises(PlanGoneError, match=r"gone.plan: no such file or directory; workers run this plan"):
        PlanFiles("first", PlanBook(heavy_bundle()), journal, tmp_path).recall(lines, running=1)


def test_a_coordinator_that_starts_again_takes_up_what_was_chosen(tmp_path: Path) -> None:
    """It had been killed before anybody was told."""
    journal = Journal(tmp_path / "journal")
    job = FakeJob(30, AdaptationOptions(replan=None))
    job.run(5)
    before = job.coordinator.assignment
    assert before is not None
    places = sorted(before.roles)
    roles = [before.roles[place] for place in places]
    journal.write(generation=1, step=0, places=places, plan=[0, before.plan, 0, 0], roles=roles)
    journal.write(row=4)
    lines = read_journal(tmp_path / "journal")
    state = remembered(lines)
    assert state is not None and state.plan is not None

    def again(fitted: bool) -> list[Order]:
        book = PlanBook(heavy_bundle())
        if fitted:
            book.fitted = book.add(planned(()), Fitted(frozenset(book.grid), {(1, 1): 2.0}))
        job = StateMachine(book, 1, 30, set(book.grid), 0.0)
        job.remember(state, lines)
        assert job.assignment == before
        for member in job.roster.members():
            job.handle(Returned(member, is_training=True, asked=1), 1.0)
        return job.handle(AllReturned(), 1.0)

    assert again(fitted=False) == []
    orders = again(fitted=True)
    assert orders and all(isinstance(order, Send) and isinstance(order.message, Hold) for order in orders)


def test_a_job_whose_workers_all_fail_before_they_meet_is_over() -> None:
    """However their last words were lost."""
    book = PlanBook(heavy_bundle())
    job = StateMachine(book, 1, 30, set(book.grid), 0.0)
    first, *others = sorted(book.grid)
    job.handle(Joined(Member(first, 0)), 0.0)
    orders = [order for worker in (first, *others) for order in job.handle(WorkerFailed(worker, "x"), 1.0)]
    (end,) = [order for order in orders if isinstance(order, EndJob)]
    assert end.error == "every worker has failed before the first step: x"
