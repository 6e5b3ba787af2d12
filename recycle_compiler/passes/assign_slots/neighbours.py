"""One more inner loop, written like those in `kernel.py`: neighbours on a worker change places."""

from typing import Any

from recycle_compiler.passes.assign_slots.kernel import FAR, FORWARD, WEIGHT


# One loop, for the same reasons as in `kernel.py`.
def swap_neighbours(  # noqa: C901
    stages: int,
    pipelines: int,
    units: int,
    width: int,
    duration: Any,
    needs: Any,
    feeds: Any,
    lag: Any,
    activation: Any,
    kept: Any,
    capacity: Any,
    end: Any,
    due: Any,
    late: Any,
    first_stage: int,
    last_stage: int,
    since: int,
    gain: int,
    odds: int,
    seed: int,
    order: Any,
) -> int:
    """Swap neighbours in `order` where an op that is late then is less late, and the one before it not more.

    `end` are the ends of ops in the order as it was, `due` and `late` what a shorter period asks for. Only
    workers of some stages, only ops from `since` on, and only swaps that bring more than `gain` count, and of
    these `odds` percent. F moves ahead only where memory has room for it. Returns how many were swapped.
    """
    span = units * stages
    swaps = 0
    for worker in range(first_stage * pipelines, (last_stage + 1) * pipelines):
        stage = worker // pipelines
        free = 0
        held = 0
        for place in range(worker * width, (worker + 1) * width):
            op = order[place]
            if op < 0:
                break
            start = free
            need = needs[op]
            if need >= 0:
                start = max(start, end[need] + (lag[need] if feeds[need] == op else 0))
            ends = start + duration[op]
            next_place = place + 1
            other = order[next_place] if next_place < (worker + 1) * width else -1
            if other >= 0 and start >= since and late[other] < ends and needs[other] != op:
                need = needs[other]
                sooner = free
                if need >= 0:
                    sooner = max(sooner, end[need] + (lag[need] if feeds[need] == other else 0))
                full = capacity[stage] >= 0 and held + activation[stage] > capacity[stage]
                if sooner < ends and not (full and other < span):
                    after = FAR
                    if next_place + 1 < (worker + 1) * width and order[next_place + 1] >= 0:
                        after = late[order[next_place + 1]]
                    both = sooner + duration[other] + duration[op]
                    late_now = max(ends - due[op], ends + duration[other] - min(due[other], after))
                    late_then = max(sooner + duration[other] - due[other], both - min(due[op], after))
                    if late_then + gain < late_now:
                        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
                        if (seed >> 16) % 100 < odds:
                            order[place] = other
                            order[next_place] = op
                            op = other
                            ends = sooner + duration[op]
                            swaps += 1
            free = ends
            kind = op // span
            if kind == FORWARD:
                held += activation[stage]
            elif kind == WEIGHT:
                held -= kept[stage]
            else:
                held -= activation[stage] - kept[stage]
    return swaps
