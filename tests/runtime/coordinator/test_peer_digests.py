"""Peers that are not equal are named, with the fields in which they differ."""

from recycle_runtime.coordinator.peer_digests import PeerDigests
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import PeerDigest

HEAD = {
    "head.weight": "#00000000000000ab",
    "head: param_groups 0 lr": "0.01",
    "head: schedule last_epoch": "4",
}


def member(pipeline: int, stage: int = 1, rank: int = 0) -> Member:
    return Member((pipeline, stage), rank)


def test_equal_peers() -> None:
    digests = PeerDigests()
    for step in (4, 8):
        for pipeline in range(3):
            assert digests.differs(member(pipeline), 1, PeerDigest(2, step, HEAD)) is None


def test_a_difference_has_names() -> None:
    digests = PeerDigests()
    other = HEAD | {"head.weight": "#00000000000000ac", "head: param_groups 0 lr": "0.02"}
    assert digests.differs(member(0), 1, PeerDigest(2, 8, HEAD)) is None
    assert digests.differs(member(2), 1, PeerDigest(2, 8, HEAD)) is None
    said = digests.differs(member(1), 1, PeerDigest(2, 8, other))
    assert said is not None
    assert said.startswith(
        "0:1 and 1:1 are peers and differ after 8 steps, "
        "in head.weight, head: param_groups 0 lr (0.01, 0.02);"
    )


def test_only_what_must_be_equal_is_compared() -> None:
    """Other stages, other ranks of a worker, other steps, and a step that was made again are not."""
    digests = PeerDigests()
    changed = HEAD | {"head.weight": "#0"}
    assert digests.differs(member(0), 1, PeerDigest(2, 8, HEAD)) is None
    assert digests.differs(member(1, 0), 0, PeerDigest(2, 8, changed)) is None
    assert digests.differs(member(1, 1, 1), 1, PeerDigest(2, 8, changed)) is None
    assert digests.differs(member(1), 1, PeerDigest(2, 12, changed)) is None
    assert digests.differs(member(1), 1, PeerDigest(3, 8, changed)) is None
    assert digests.differs(member(0), 1, PeerDigest(3, 8, HEAD)) is not None


def test_a_field_that_a_peer_does_not_have() -> None:
    digests = PeerDigests()
    assert digests.differs(member(0), 1, PeerDigest(2, 8, HEAD)) is None
    more = HEAD | {f"head.weight {number}": "#1" for number in range(9)}
    said = digests.differs(member(1), 1, PeerDigest(2, 8, more))
    assert said is not None and "head.weight 5 and 3 more;" in said


def test_owners_of_a_shard_are_compared_and_nobody_else_has_to_own_it() -> None:
    digests = PeerDigests()
    first, second = {**HEAD, "shard 0: w": "#1"}, {**HEAD, "shard 1: w": "#2"}
    assert digests.differs(member(0), 1, PeerDigest(2, 8, first)) is None
    assert digests.differs(member(1), 1, PeerDigest(2, 8, second)) is None
    both = {**first, "shard 1: w": "#3"}
    difference = digests.differs(member(2), 1, PeerDigest(2, 8, both))
    assert difference is not None and "shard 1: w" in difference
    assert "1:1 and 2:1" in difference
