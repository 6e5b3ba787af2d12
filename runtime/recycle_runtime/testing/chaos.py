"""Random faults and returns, the same for the same seed. Standard library only.

Whatever happens, every stage keeps a worker: nothing is broken that the job could not survive. A worker that
returns may need longer than expected, so those who would be the last of their stage then spare themselves.
"""

import random
from collections.abc import Collection
from typing import NamedTuple

from recycle_runtime.plan.assembly import Worker

_FAULTS = ("kill", "kill", "kill", "stop", "exit", "exception", "term")


class Chaos(NamedTuple):
    """As options would give them."""

    faults: list[str]
    returns: list[str]


def chaos(
    seed: int, events: int, steps: int, pipelines: int, stages: int, failed: Collection[Worker]
) -> Chaos:
    """About so many events over a run: faults, two at once among them, and returns of those who are gone."""
    chance = random.Random(seed)
    grid = [(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]
    live = [place for place in grid if place not in failed]
    gone = [place for place in grid if place in failed]
    found = Chaos([], [])
    moments = sorted(chance.randrange(1, max(2, steps - 1)) for _ in range(events))
    busy: dict[Worker, int] = {}
    for step in moments:
        if gone and chance.random() < 0.1 + 0.8 * len(gone) / len(grid):
            place = _pick(chance, gone, busy, step)
            if place is not None:
                gone.remove(place)
                live.append(place)
                busy[place] = step + 3
                found.returns.append(_event(place, step))
                continue
        at_once = 2 if chance.random() < 0.2 else 1
        for _ in range(at_once):
            # One that has just come back may still be on its way: its stage cannot count on it.
            steady = [place for place in live if busy.get(place, 0) <= step]
            spare = [place for place in live if any(_is_peer(place, other) for other in steady)]
            place = _pick(chance, spare, busy, step)
            if place is None:
                break
            live.remove(place)
            gone.append(place)
            busy[place] = step + 2
            # Any instruction: a position beyond the end of a stream becomes its middle.
            found.faults.append(f"{chance.choice(_FAULTS)}?={_event(place, step)}.{chance.randrange(40)}")
    return found


def _pick(chance: random.Random, places: list[Worker], busy: dict[Worker, int], step: int) -> Worker | None:
    """One that nothing has happened to for a while."""
    calm = sorted(place for place in places if busy.get(place, 0) <= step)
    return chance.choice(calm) if calm else None


def _is_peer(place: Worker, other: Worker) -> bool:
    return place[1] == other[1] and place != other


def _event(place: Worker, step: int) -> str:
    return f"{place[0]}:{place[1]}@{step}"
