"""Placement of experts in the slots of the workers that share them.

    popularity 5 2 1, slots 2 2     ->     peer 0: 0 1     peer 1: 0 2

An expert gets slots in proportion to its popularity (SYMI, algorithm 1), and every peer computes the same
placement from the same numbers. Integers alone are compared, so no peer rounds otherwise than another.
"""

import heapq
from collections.abc import Sequence
from functools import cached_property

from recycle_runtime.program.errors import ProgramError


class UnplacedError(ProgramError):
    """There are fewer slots than experts."""


class Placement:
    """The expert in every slot of every peer."""

    def __init__(self, peers: Sequence[Sequence[int]]) -> None:
        self.peers = tuple(tuple(slots) for slots in peers)
        """By peer, by slot."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self.peers == other.peers

    def __hash__(self) -> int:
        return hash(self.peers)

    def __repr__(self) -> str:
        return f"Placement({self.peers})"

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The expert of every slot, slots in order of peers."""
        return tuple(expert for slots in self.peers for expert in slots)

    @cached_property
    def experts(self) -> int:
        """Their number."""
        return 1 + max(self.slots, default=-1)

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """Of every expert, the number of slots that it is in."""
        counts = [0] * self.experts
        for expert in self.slots:
            counts[expert] += 1
        return tuple(counts)

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Of every expert, the peers that have it, in order."""
        found: list[list[int]] = [[] for _ in range(self.experts)]
        for peer, slots in enumerate(self.peers):
            for expert in sorted(set(slots)):
                found[expert].append(peer)
        return tuple(map(tuple, found))

    def first_slot(self, peer: int) -> int:
        """The number of a peer's first slot among all slots."""
        return sum(map(len, self.peers[:peer]))


def place_experts(popularity: Sequence[int], slots_of_peers: Sequence[int]) -> Placement:
    """Experts in the slots of these peers, each in one or more."""
    if (lack := lack_of_slots(len(popularity), slots_of_peers)) is not None:
        raise UnplacedError(lack, "ask for more slots of each worker in the job: experts { slots = ... }")
    return _spread(popularity, slots_by_popularity(popularity, sum(slots_of_peers)), slots_of_peers)


def lack_of_slots(experts: int, slots_of_peers: Sequence[int]) -> str | None:
    """Reason why the slots are too few for so many experts; None: there are enough."""
    if experts <= (total := sum(slots_of_peers)):
        return None
    return (
        f"{experts} experts need as many slots, and {_counted(len(slots_of_peers), 'worker')} with "
        f"{_listed(slots_of_peers)} {'has' if len(slots_of_peers) == 1 else 'have'} {total}"
    )


def slots_by_popularity(popularity: Sequence[int], total: int) -> list[int]:
    """Slots of every expert, `total` together; at least one each, which must fit."""
    if not sum(popularity):
        popularity = [1] * len(popularity)
    everything = sum(popularity)
    # Goals and what lies above and below them, in shares of 1 / everything of a slot.
    goals = [each * total for each in popularity]
    slots = [max(1, goal // everything) for goal in goals]
    while sum(slots) > total:
        above = [(slots[e] * everything - goals[e], -e) for e in range(len(slots)) if slots[e] > 1]
        slots[-max(above)[1]] -= 1
    while sum(slots) < total:
        below = [(goals[e] - slots[e] * everything, -e) for e in range(len(slots))]
        slots[-max(below)[1]] += 1
    return slots


def _spread(popularity: Sequence[int], replicas: Sequence[int], slots_of_peers: Sequence[int]) -> Placement:
    """Replicas of one expert on different peers wherever that is possible, and tokens evenly.

    Experts with most replicas come first, each on the peers with most free slots, which finds places on
    different peers for all experts if there are any. Among peers with as many free slots, the one with the
    fewest tokens.
    """
    found: list[list[int]] = [[] for _ in slots_of_peers]
    # Negative free slots, tokens, peer: the first is the next to be given something.
    peers = [(-slots, 0.0, peer) for peer, slots in enumerate(slots_of_peers) if slots]
    heapq.heapify(peers)
    order = sorted(range(len(replicas)), key=lambda e: (-replicas[e], -popularity[e], e))
    for expert in order:
        left, share = replicas[expert], popularity[expert] / replicas[expert]
        while left:
            chosen = [heapq.heappop(peers) for _ in range(min(left, len(peers)))]
            left -= len(chosen)
            for full, tokens, peer in chosen:
                found[peer].append(expert)
                if full < -1:
                    heapq.heappush(peers, (full + 1, tokens + share, peer))
    return Placement([sorted(slots) for slots in found])


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(slots: Sequence[int]) -> str:
    """Of every worker: `2 slots each`, or all numbers where they differ."""
    if len(set(slots)) != 1:
        return " + ".join(map(str, slots)) + " slots"
    return _counted(slots[0], "slot") + (" each" if len(slots) > 1 else "")
