"""Plans for measured op times, made by real processes."""

import time
from pathlib import Path

import pytest

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.cli.main import main
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.layout import Layout, halved, job_of_layout
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.coordinator.measured_job import JobText
from recycle_runtime.coordinator.replanning import InUse, Offer, Replanner
from recycle_runtime.plan import on_demand
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.plan.plan_book import Fitted, PlanBook


def ask(replanner: Replanner, bundle: str, job: str) -> None:
    """For plans of a job in which nobody has failed, and nobody is slow."""
    in_use = InUse(Path(bundle), (), {})
    replanner.ask(job, in_use, PlanBook(Bundle.read(bundle)), [], {}, may_be_lighter=True)


def answer(replanner: Replanner) -> list[Offer] | None:
    while True:
        offers = replanner.made()
        if offers is not None or replanner.error:
            return offers
        time.sleep(0.02)


@pytest.fixture
def measured(small_bundle: str) -> str:
    job = JobText(Bundle.read(small_bundle).job_text)
    return job.with_times(job.times._replace(forward=(1000, 3000)))


def test_plans_in_which_all_do_the_same_the_slow_one_less_or_nothing(
    small_bundle: str, measured: str, tmp_path: Path
) -> None:
    replanner = Replanner(tmp_path)
    slow = {(1, 1): 4.0}
    replanner.ask(
        measured,
        InUse(Path(small_bundle), (), slow),
        PlanBook(Bundle.read(small_bundle)),
        [],
        slow,
        may_be_lighter=True,
    )
    assert replanner.is_busy
    offers = answer(replanner)
    assert offers is not None and replanner.error == "" and not replanner.is_busy
    everybody, lighter, without = offers
    assert lighter.variant.lighter == slow and lighter.bundle.plans[0].failed == ()
    assert lighter.saving >= without.saving > 0.5, "little is better than nothing, if not worse"
    assert everybody.variant.standby == () and everybody.bundle.plans[0].failed == ()
    assert without.variant.standby == ((1, 1),) and without.bundle.plans[0].failed == ((1, 1),)
    # Two micro-batches of 5 slots at a quarter of the pace, or three at full pace, and the optimizer.
    assert without.saving > 0.5 > everybody.saving >= 0
    assert everybody.bundle.job_text == without.bundle.job_text


def test_what_cannot_be_made_is_left_out(small_bundle: str, measured: str, tmp_path: Path) -> None:
    """The last worker of a stage cannot be a standby."""
    (tmp_path / "measured.job").write_text(measured)
    plan = tmp_path / "failed.plan"
    assert (
        main(["--quiet", "plan", str(tmp_path / "measured.job"), "--failed", "0:1,2:1", "-o", str(plan)]) == 0
    )
    replanner = Replanner(tmp_path)
    slow = {(1, 1): 4.0}
    failed = ((0, 1), (2, 1))
    replanner.ask(
        measured,
        InUse(plan, failed, slow),
        PlanBook(Bundle.read(small_bundle)),
        failed,
        slow,
        may_be_lighter=True,
    )
    offers = answer(replanner)
    assert offers is not None and replanner.error == ""
    assert [offer.variant.standby for offer in offers] == [(), ()]


def test_a_job_that_cannot_be_planned_is_told(small_bundle: str, tmp_path: Path) -> None:
    replanner = Replanner(tmp_path)
    ask(replanner, small_bundle, "job x {")
    assert answer(replanner) is None
    assert "measured.job:1:" in replanner.error and not replanner.is_busy


def test_stopping_leaves_nothing_behind(small_bundle: str, measured: str, tmp_path: Path) -> None:
    replanner = Replanner(tmp_path)
    ask(replanner, small_bundle, measured)
    replanner.stop()
    assert not replanner.is_busy and replanner.made() is None and replanner.error == ""


def test_without_the_compiler_it_is_said(
    small_bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "find_recyclec", lambda: None)
    replanner = Replanner(tmp_path)
    ask(replanner, small_bundle, "")
    assert (
        replanner.error == "recyclec is not installed here, so no plan can be made"
        and replanner.made() is None
    )


def test_the_job_can_be_planned_as_it_is_written(measured: str, tmp_path: Path) -> None:
    (tmp_path / "measured.job").write_text(measured)
    assert main(["--quiet", "check", str(tmp_path / "measured.job")]) == 0


LAYERED = """job layered {
  parallel { pipeline = 2  data = 3 }
  batch    { microbatches = 4  split = 4% }
  layers   { count = 6  unit = slot  forward = 1  backward_input = 1  backward_weight = 1 }
  tolerate { failures = 1 }
}
"""


@pytest.mark.parametrize("split", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_under_another_cut_too(tmp_path: Path, split: int) -> None:
    """Stage 1 takes twice as long as planned, and one of its two workers four times that; 1:0 is gone."""
    job = parse_job_text(LAYERED, "layered.job")
    derived = job_of_layout(halved(job) if split == 2 else job, Layout((4, 2), (3, 2)))
    plans = [plan_failed(derived, failure_set(failed)) for failed in ([(2, 1)], [(2, 0), (2, 1)])]
    own = Bundle.parse(bundle_bytes(source="", plans=[plan_failed(job, ())], recuts=[plans]))
    book = PlanBook(own).family[1]
    under = JobText(book.first.job_text)
    times = under.times._replace(**{name: _doubled(getattr(under.times, name)) for name in KINDS})
    measured = JobText(own.job_text).with_times(times, under)
    replanner = Replanner(tmp_path)
    failed, slow = ((1, 0), (2, 1)), {(1, 1): 4.0}
    in_use = InUse(replanner.file_of(book.bundles[1]), plans[1].failed, slow)
    replanner.ask(measured, in_use, book, failed, slow, may_be_lighter=True)
    offers = answer(replanner)
    assert offers is not None, replanner.error
    everybody, lighter, without = offers
    for offer in offers:
        assert book.split == split and offer.bundle.cut == (4, 2)
        assert book.with_bundle(book.add(offer.bundle)) is book
    assert [len(offer.bundle.plans[0].failed) for offer in offers] == [2, 2, 3]
    assert everybody.saving < 0.1 < min(lighter.saving, without.saving)
    # The first of a stage that is left has its first role.
    book.fitted = book.add(lighter.bundle, Fitted(frozenset(LIVE), slow))
    assignment = book.assign(LIVE)
    assert assignment is not None and assignment.bundle == book.fitted
    assert assignment.roles == {(0, 0): (0, 0), (2, 0): (1, 0), (0, 1): (0, 1), (1, 1): (1, 1)}
    loads = [_forwards(lighter.bundle, role) for role in ((0, 1), (1, 1))]
    assert sum(loads) == split * 12 and loads[1] < loads[0]


KINDS = ("forward", "backward_input", "backward_weight")
LIVE = ((0, 0), (2, 0), (0, 1), (1, 1))


def _doubled(ticks: tuple[int, ...]) -> tuple[int, ...]:
    return (ticks[0], 2 * ticks[1])


def _forwards(bundle: Bundle, role: tuple[int, int]) -> int:
    return sum(step.opcode is Opcode.FORWARD for step in bundle.stream(0, role))
