"""Plans for measured op times, made by real processes."""

import time
from pathlib import Path

import pytest

from recycle_compiler.cli.main import main
from recycle_runtime.coordinator.measured_job import JobText
from recycle_runtime.coordinator.replanning import Candidate, InUse, Offer, Replanner, best_offer
from recycle_runtime.plan import on_demand
from recycle_runtime.plan.bundle import Bundle


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
    replanner.ask(measured, InUse(Path(small_bundle), (), slow), [], slow, may_be_lighter=True)
    assert replanner.is_busy
    offers = answer(replanner)
    assert offers is not None and replanner.error == "" and not replanner.is_busy
    everybody, lighter, without = offers
    assert lighter.candidate.lighter == slow and lighter.bundle.plans[0].failed == ()
    assert lighter.saving >= without.saving > 0.5, "little is better than nothing, if not worse"
    assert everybody.candidate.standby == () and everybody.bundle.plans[0].failed == ()
    assert without.candidate.standby == ((1, 1),) and without.bundle.plans[0].failed == ((1, 1),)
    # Two micro-batches of 5 slots at a quarter of the pace, or three at full pace, and the optimizer.
    assert without.saving > 0.5 > everybody.saving >= 0
    assert best_offer([everybody, without], 0.05) == without
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
    replanner.ask(measured, InUse(plan, failed, slow), failed, slow, may_be_lighter=True)
    offers = answer(replanner)
    assert offers is not None and replanner.error == ""
    assert [offer.candidate.standby for offer in offers] == [(), ()]


def test_a_job_that_cannot_be_planned_is_told(small_bundle: str, tmp_path: Path) -> None:
    replanner = Replanner(tmp_path)
    replanner.ask("job x {", InUse(Path(small_bundle), (), {}), [], {}, may_be_lighter=True)
    assert answer(replanner) is None
    assert "measured.job:1:" in replanner.error and not replanner.is_busy


def test_stopping_leaves_nothing_behind(small_bundle: str, measured: str, tmp_path: Path) -> None:
    replanner = Replanner(tmp_path)
    replanner.ask(measured, InUse(Path(small_bundle), (), {}), [], {}, may_be_lighter=True)
    replanner.stop()
    assert not replanner.is_busy and replanner.made() is None and replanner.error == ""


def test_without_the_compiler_it_is_said(
    small_bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "find_recyclec", lambda: None)
    replanner = Replanner(tmp_path)
    replanner.ask("", InUse(Path(small_bundle), (), {}), [], {}, may_be_lighter=True)
    assert (
        replanner.error == "recyclec is not installed here, so no plan can be made"
        and replanner.made() is None
    )


def test_the_best_offer(small_bundle: str) -> None:
    bundle = Bundle.read(small_bundle)

    def offer(saving: float, *standby: tuple[int, int]) -> Offer:
        return Offer(Candidate(Path("x"), standby, standby), bundle, saving)

    assert best_offer([], 0.05) is None
    assert best_offer([offer(0.049), offer(-1.0, (0, 0))], 0.05) is None
    assert best_offer([offer(0.2), offer(0.3, (0, 0))], 0.05) == offer(0.3, (0, 0))
    assert best_offer([offer(0.3, (0, 0)), offer(0.3)], 0.05) == offer(0.3)


def test_the_job_can_be_planned_as_it_is_written(measured: str, tmp_path: Path) -> None:
    (tmp_path / "measured.job").write_text(measured)
    assert main(["--quiet", "check", str(tmp_path / "measured.job")]) == 0
