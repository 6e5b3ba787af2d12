"""One more inner loop, written like those in `kernel.py`: neighbours on a worker change places."""

from typing import Any

from recycle_compiler.scheduling.kernel import BACKWARD, FAR, FORWARD, WEIGHT


# One loop, for the same reasons as in `kernel.py`.
def swap_neighbours(  # noqa: C901
    stages: int,
    pipelines: int,
    units: int,
    width: int,
    times: Any,
    transfer: Any,
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
    workers = stages * pipelines
    span = units * stages
    swaps = 0
    for worker in range(first_stage * pipelines, (last_stage + 1) * pipelines):
        stage = worker // pipelines
        down = transfer[stage - 1] if stage > 0 else 0
        up = transfer[stage] if stage < stages - 1 else 0
        room = capacity[stage] - activation[stage] if capacity[stage] >= 0 else FAR
        free = 0
        held = 0
        for place in range(worker * width, (worker + 1) * width):
            op = order[place]
            if op < 0:
                break
            kind = FORWARD if op < span else (BACKWARD if op < 2 * span else WEIGHT)
            start = free
            if kind == FORWARD:
                if stage > 0:
                    start = max(start, end[op - 1] + down)
            elif kind == BACKWARD and stage < stages - 1:
                start = max(start, end[op + 1] + up)
            else:
                start = max(start, end[op - span])
            length = times[kind * workers + worker]
            ends = start + length
            next_place = place + 1
            other = order[next_place] if next_place < (worker + 1) * width else -1
            # What comes `span` later waits for this op.
            if other >= 0 and start >= since and late[other] < ends and other != op + span:
                sooner = free
                kind_then = FORWARD if other < span else (BACKWARD if other < 2 * span else WEIGHT)
                if kind_then == FORWARD:
                    if stage > 0:
                        sooner = max(sooner, end[other - 1] + down)
                elif kind_then == BACKWARD and stage < stages - 1:
                    sooner = max(sooner, end[other + 1] + up)
                else:
                    sooner = max(sooner, end[other - span])
                if sooner < ends and (held <= room or kind_then != FORWARD):
                    after = FAR
                    if next_place + 1 < (worker + 1) * width and order[next_place + 1] >= 0:
                        after = late[order[next_place + 1]]
                    length_then = times[kind_then * workers + worker]
                    ends_then = sooner + length_then
                    late_now = max(ends - due[op], ends + length_then - min(due[other], after))
                    late_then = max(ends_then - due[other], ends_then + length - min(due[op], after))
                    if late_then + gain < late_now:
                        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
                        if (seed >> 16) % 100 < odds:
                            order[place] = other
                            order[next_place] = op
                            kind = kind_then
                            ends = ends_then
                            swaps += 1
            free = ends
            if kind == FORWARD:
                held += activation[stage]
            elif kind == WEIGHT:
                held -= kept[stage]
            else:
                held -= activation[stage] - kept[stage]
    return swaps
