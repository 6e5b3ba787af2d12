"""The one decision: of candidates from several sources the best is taken; none while a change is made."""

from collections.abc import Sequence

import pytest

from recycle_runtime.coordinator.candidates import Candidate
from recycle_runtime.coordinator.events import StopWanted
from recycle_runtime.coordinator.measured_plans import MeasuredPlans
from recycle_runtime.coordinator.plans import Request
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.protocol.messages.observers import JobEvent
from tests.runtime.coordinator.fake_job import FakeJob

NOW = Outlook(1.0, 1000.0, 500)
QUIET = AdaptationOptions(mtbf=3600.0, replan=None)


def change(name: str, saving: float, pause: float = 2.0, size: int = 0, least: float = 0.0) -> JobChange:
    return JobChange(name, "made", NOW, saving, pause, size=size, least=least)


def decided(monkeypatch: pytest.MonkeyPatch, *changes: JobChange) -> tuple[list[str], str | None]:
    """Lines that are told, and the change that is taken."""
    job = FakeJob(50, QUIET)
    job.run(5)

    def candidates(self: MeasuredPlans, now: object) -> Sequence[Candidate]:
        return [Candidate(each, lambda each=each: StopWanted(each.what)) for each in changes]

    with monkeypatch.context() as patch:
        patch.setattr(MeasuredPlans, "candidates", candidates)
        wishes = job.reconfiguration.decide(job.now, is_planning=False)
    taken = next((wish.why for wish in wishes if isinstance(wish, StopWanted)), None)
    return [wish.text for wish in wishes if isinstance(wish, JobEvent)], taken


def test_the_best_is_taken_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    told, taken = decided(monkeypatch, change("a", 0.1), change("b", 0.3), change("c", 0.2))
    assert taken == "b" and len(told) == 3


def test_what_costs_more_has_to_pay_beyond_what_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap = change("cheap", 0.2)
    _, taken = decided(monkeypatch, change("dear", 0.3, pause=100.0, size=10), cheap)
    assert taken == "cheap", "12.5 % of what is left of 500 steps are fewer seconds than its pause"
    told, taken = decided(monkeypatch, change("dear", 0.3, pause=10.0, size=10), cheap)
    assert taken == "dear" and told[-1].startswith("dear saves 12.5 % of 0.8 s a step")


def test_a_share_that_is_asked_for_counts_beyond_the_others_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap, more = change("cheap", 0.2), change("more", 0.22, size=10, least=0.05)
    assert decided(monkeypatch, cheap, more) == ([str(cheap)], "cheap")
    assert decided(monkeypatch, more)[1] == "more"


def test_nothing_is_taken_that_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    told, taken = decided(monkeypatch, change("a", -0.1), change("b", 0.001))
    assert (taken, told[0]) == (None, "b saves 0.1 % of 1 s a step, a pause of 2 s, 500 s expected: not made")
    assert told[1] == "a saves nothing: not made"


def test_nothing_is_decided_while_a_change_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    job = FakeJob(50, QUIET)
    job.run(5)
    job.happen(StopWanted("something else"))
    monkeypatch.delattr(MeasuredPlans, "candidates")
    assert job.reconfiguration.decide(job.now, is_planning=False) == []
    assert job.reconfiguration.next_plan(()) is None


def test_what_could_come_next_is_asked_for_once() -> None:
    job = FakeJob(50, QUIET)
    job.run(5)
    asked: list[Request] = []
    while (request := job.reconfiguration.next_plan(())) is not None:
        asked.append(request)
    assert [request.failed for request in asked] == [((2, 1),), ((2, 2),)], "0 is in the bundle"
    job.kill((1, 1))
    job.run(3)
    assert job.reconfiguration.next_plan(()) not in asked
