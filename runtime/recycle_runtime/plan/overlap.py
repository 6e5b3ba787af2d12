"""Overlap of weight gradients with exchanges of tokens. Standard library only.

    I0   F1   I1   W0        W0 is computed while F1 and I1 wait for rows of their peers

W needs nobody else. So a worker computes it in the exchanges of the last two rounds before it in its stream,
as far as these came after its own I, and nothing else is computed there; what is left of it follows where it
stands. That is what a stream means: planner and runtime, simulator and verifier go by it.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

MOST_ROUNDS = 2
"""In whose exchanges one W is computed: of every micro-batch there are two, F and I."""


class StreamOp(NamedTuple):
    """A round or a W, of one worker."""

    key: Hashable
    """The same for all ops of one micro-batch on one chunk."""
    is_weight: bool
    ticks: float
    """Of a W what it takes, of a round what of it are exchanges."""


class RoundShare(NamedTuple):
    """Part of a W that is computed in a round."""

    round: int
    """Its place among the ops."""
    ticks: float


def shares_of_weights(ops: Iterable[StreamOp]) -> list[tuple[RoundShare, ...]]:
    """Of each op in order the parts of it that are computed in rounds before it; none but of W."""
    rounds: list[tuple[int, float]] = []
    """Of every round so far its place, and what its exchanges have room for."""
    after: dict[Hashable, int] = {}
    found: list[tuple[RoundShare, ...]] = []
    for place, (key, is_weight, ticks) in enumerate(ops):
        shares: list[RoundShare] = []
        if not is_weight:
            rounds.append((place, ticks))
            after[key] = len(rounds)
        else:
            for number in range(max(after.get(key, 0), len(rounds) - MOST_ROUNDS), len(rounds)):
                where, room = rounds[number]
                if taken := min(room, ticks):
                    shares.append(RoundShare(where, taken))
                    rounds[number] = where, room - taken
                    ticks -= taken
        found.append(tuple(shares))
    return found


def overlapped(ops: Iterable[StreamOp]) -> list[float]:
    """Of each op in order what of it takes no time of its own."""
    return [sum(share.ticks for share in shares) for shares in shares_of_weights(ops)]
