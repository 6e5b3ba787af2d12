"""Messages in which gradients and weights of experts travel between the workers that share them.

    n workers with S slots each, E experts, d owners of each expert's optimizer state

    sum      every worker that has an expert in a slot -> one owner, which adds up -> the other owners
    gather   an owner -> every worker that has the expert in a slot and does not own it

A message is one expert of each mixture layer. Who has most to send or to take is waited for, in each of the
two halves of a sum, so an even share is too little: experts differ in popularity, which decides how many
slots each has. Popularity is drawn here, in the same way for every job. These numbers are part of what times
of a job mean: planner, simulator and verifier go by them.
"""

from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil
from random import Random
from typing import NamedTuple

_MOST_DRAWS, _LEAST_DRAWS, _SLOTS = 64, 4, 4096
"""About so many slots are filled for one answer."""


MOST_EXPERTS = MOST_SLOTS = 1 << 12
"""Of a mixture layer. Where a profile has more experts, it is not known how they travel."""
MOST_TICKS = 1 << 63
"""Of one message."""


class Messages(NamedTuple):
    """Of the worker that has most, in a step, on average over draws of popularity."""

    sum: float
    gather: float


class MessageTicks(NamedTuple):
    """The ticks that these messages take."""

    sum: int = 0
    gather: int = 0


def message_ticks(ticks: int, experts: int, slots: int, workers: int, owners: int) -> MessageTicks:
    """Where one message takes so long; nothing without experts."""
    if not (ticks and experts):
        return MessageTicks()
    return MessageTicks(*(ceil(ticks * each) for each in expert_messages(experts, slots, workers, owners)))


@lru_cache(maxsize=4096)
def expert_messages(experts: int, slots: int, workers: int, owners: int) -> Messages:
    """With enough slots for all experts: so many workers of these at least."""
    workers = max(1, workers, -(-experts // slots))
    random = Random(0)
    draws = max(_LEAST_DRAWS, min(_MOST_DRAWS, _SLOTS // (slots * workers)))
    drawn = [_of_one_draw(experts, slots, workers, min(owners, workers), random) for _ in range(draws)]
    return Messages(*(sum(each) / draws for each in zip(*drawn, strict=True)))


def _of_one_draw(experts: int, slots: int, workers: int, owners: int, random: Random) -> Messages:
    adding, telling, gathering = _Load(workers), _Load(workers), _Load(workers)
    for expert, holders in enumerate(_holders(experts, slots, workers, random)):
        first = expert * workers // experts
        own = [(first + number) % workers for number in range(owners)]
        adder = next((owner for owner in own if owner in holders), own[0])
        for holder in holders:
            adding.add(holder, adder)
            if holder not in own:
                gathering.add(own[expert % owners], holder)
        for owner in own:
            telling.add(adder, owner)
    return Messages(adding.most + telling.most, gathering.most)


def _holders(experts: int, slots: int, workers: int, random: Random) -> list[list[int]]:
    """Workers that have each expert: one slot at least, the others by popularity."""
    popularity = [random.random() ** 2 + 0.02 for _ in range(experts)]
    replicas = [1] * experts
    below = [(-share, expert) for expert, share in enumerate(popularity)]
    heapify(below)
    for _ in range(slots * workers - experts):
        _, expert = below[0]
        replicas[expert] += 1
        heapreplace(below, (-popularity[expert] / replicas[expert], expert))
    # Workers with most free slots first.
    free = [(-slots, random.random(), worker) for worker in range(workers)]
    heapify(free)
    found: list[list[int]] = [[] for _ in range(experts)]
    for expert in sorted(range(experts), key=lambda each: (-replicas[each], each)):
        left = replicas[expert]
        while left:
            chosen = [heappop(free) for _ in range(min(left, len(free)))]
            left -= len(chosen)
            for full, _, worker in chosen:
                found[expert].append(worker)
                if full < -1:
                    heappush(free, (full + 1, random.random(), worker))
    return [sorted(set(each)) for each in found]


class _Load:
    """Messages that each worker sends, and those that it takes."""

    def __init__(self, workers: int) -> None:
        self._sent, self._taken = [0] * workers, [0] * workers

    def add(self, source: int, taker: int) -> None:
        if source != taker:
            self._sent[source] += 1
            self._taken[taker] += 1

    @property
    def most(self) -> int:
        return max(*self._sent, *self._taken)
