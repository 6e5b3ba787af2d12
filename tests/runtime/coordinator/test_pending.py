"""Stops between two steps move ahead as long as some have passed them; a plan that leaves work out,
or does it twice, ends the job before anything is counted."""

from recycle_runtime.coordinator.pending import BoundaryStop, GroupStart
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.work import work_shares
from recycle_runtime.protocol.messages.generations import Hold, Holding, WorkShare
from recycle_runtime.protocol.messages.members import Member


def test_a_stop_that_some_have_passed() -> None:
    stop = BoundaryStop()
    assert stop.order(20) == Hold(20, 0), "nobody has to stop before the end"
    assert stop.want("a move", 5) and not stop.want("a joiner", 9) and not stop.want("a move", 9)
    assert (stop.causes, stop.order(20)) == (["a move", "a joiner"], Hold(5, 1))
    assert not stop.is_passed(Holding(1, 4), 20)
    assert stop.is_passed(Holding(1, 5), 20) and stop.order(20) == Hold(7, 2)
    assert not stop.is_passed(Holding(1, 9), 20), "that was about the order before"
    assert stop.is_passed(Holding(2, 8), 20) and stop.order(20) == Hold(12, 3), "further each time"
    assert stop.is_passed(Holding(3, 19), 20) and stop.order(20) == Hold(20, 4), "never beyond the end"
    assert not stop.is_passed(Holding(4, 20), 20), "it has made all steps"
    stop.end()
    assert (stop.causes, stop.order(20)) == ([], Hold(20, 4))
    assert stop.want("another", 6) and stop.is_passed(Holding(5, 6), 20) and stop.order(20) == Hold(8, 6)


def _said(bundle: Bundle) -> dict[Member, tuple[WorkShare, ...]]:
    return {
        Member(worker, 0): tuple(
            WorkShare(*share) for share in work_shares(bundle.stream(0, worker), bundle.microbatches)
        )
        for worker in bundle.workers(0)
    }


def test_the_last_one_brings_the_verdict(small_bundle: str) -> None:
    bundle = Bundle.read(small_bundle)
    said, work = _said(bundle), GroupStart()
    work.begin([*said, Member((0, 0), 1)], bundle, "0 0")
    assert [work.hear(member, shares) for member, shares in said.items()] == [None] * len(said)
    assert work.missing == {Member((0, 0), 1)}


def test_work_of_a_worker_twice(small_bundle: str) -> None:
    bundle = Bundle.read(small_bundle)
    said, work = _said(bundle), GroupStart()
    said[Member((1, 0), 0)] = said[Member((0, 0), 0)]
    work.begin(said, bundle, "0 0")
    *before, last = [work.hear(member, shares) for member, shares in said.items()]
    assert set(before) == {None} and "every micro-batch once on chunk 0" in (last or "")


def test_other_ranks_and_earlier_generations_say_nothing(small_bundle: str) -> None:
    bundle = Bundle.read(small_bundle)
    said, work = _said(bundle), GroupStart()
    first, *others = said
    work.begin(said, bundle, "0 0")
    assert work.hear(first, said[first]) is None
    assert work.hear(Member(first.worker, 1), None) is None
    work.begin(said, bundle, "0 0")
    assert [work.hear(member, said[member]) for member in (*others, first)] == [None] * len(said)
