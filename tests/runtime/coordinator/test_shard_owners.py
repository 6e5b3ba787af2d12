"""The coordinator's record of owners of shards, and the orders to send shards elsewhere."""

from typing import Any, cast

from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.membership import Roster
from recycle_runtime.coordinator.participant import Asked, View
from recycle_runtime.coordinator.shard_owners import ShardOwnership
from recycle_runtime.plan.recut import Recut, ShardTransfer, Transfer
from recycle_runtime.protocol.messages.generations import LayerShards
from recycle_runtime.protocol.messages.layer_moves import LayersToMove
from recycle_runtime.protocol.messages.members import Member

GENERATION = 3
A, B, C = (0, 0), (1, 0), (0, 1)


def _say(owners: ShardOwnership, member: Member, held: tuple[int, ...]) -> None:
    owners.job.roster.entries[member].shard_sizes = {(0, shard): 8 for shard in held}


def _owners(tensor: int = 1) -> tuple[ShardOwnership, list[Member]]:
    roster = Roster(tensor)
    members = [Member(worker, rank) for worker in (A, B) for rank in range(tensor)]
    for member in members:
        roster.join(member)
    roster.activate(members)
    view = View(roster, cast(Any, None), lambda _, number: number == GENERATION, lambda: 0.0)
    owners = ShardOwnership.open(Asked(5), view)
    owners.job = view
    return owners, members


def test_owners_are_known_when_all_have_said() -> None:
    owners, (one, other) = _owners()
    _say(owners, one, (0, 1))
    assert owners.held() is None and not owners.can_spare([B])
    _say(owners, other, (1,))
    assert owners.held() == {A: {(0, 0): 8, (0, 1): 8}, B: {(0, 1): 8}}
    assert owners.can_spare([B]) and not owners.can_spare([A]) and not owners.can_spare([A, B])


def test_ranks_of_a_worker_own_the_same() -> None:
    owners, members = _owners(tensor=2)
    for member in members:
        _say(owners, member, (0,))
    assert owners.held() is not None
    _say(owners, members[-1], (1,))
    assert owners.held() is None


def test_shards_go_with_layers_between_the_same_two_or_alone() -> None:
    shards = (
        ShardTransfer(A, C, 0, 1, 2, 8),
        ShardTransfer(A, C, 0, 0, 2, 8),
        ShardTransfer(B, C, 0, 1, 2, 8),
        ShardTransfer(B, A, 5, 0, 2, 8),
    )
    recut = Recut({A: 0, B: 0, C: 0}, (Transfer(A, C, (0, 1), 10),), shards)
    assert recut.size == 42 and recut.joiners == {A, C} and recut.seconds(1.0) == 34
    move = LayerMove(cast(Any, None), recut, "6x3", 1.0)
    move.begin(1, [], 0.0)
    members = [Member(worker, 0) for worker in (A, B, C)]
    orders = move.orders(GENERATION, members)
    both, second = (LayerShards(0, 2, (0, 1)),), (LayerShards(0, 2, (1,)),)
    assert orders[members[2]].takes == (LayersToMove(A, 0, 1, both), LayersToMove(B, 0, 0, second))
    assert orders[members[0]].gives == (LayersToMove(C, 0, 1, both),)
    assert set(orders[members[1]].gives) == {
        LayersToMove(C, 0, 0, second),
        LayersToMove(A, 0, 0, (LayerShards(5, 2, (0,)),)),
    }
    assert move.shards_for(C) == (*both, *second)
    assert move.joiners(members) == [members[0], members[2]]
