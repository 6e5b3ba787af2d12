"""A plan that leaves work out, or does it twice, ends the job before anything is counted."""

from recycle_runtime.coordinator.group_start import GroupStart
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.work import work_shares
from recycle_runtime.protocol.messages.generations import WorkShare
from recycle_runtime.protocol.messages.members import Member


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
