"""Two more inner loops, written like the one in `kernel.py`: earliest and latest times of a given order.

Both go along the order of one worker until an op waits for another worker, and come back to it when that one
has gone on.
"""

from typing import Any

from recycle_compiler.scheduling.kernel import BACKWARD, FAR, FORWARD, WEIGHT


def earliest_times(  # noqa: C901
    stages: int,
    workers: int,
    width: int,
    span: int,
    stage_of: Any,
    times: Any,
    transfer: Any,
    runs_on: Any,
    order: Any,
    free: Any,
    end: Any,
    position: Any,
    runnable: Any,
    listed: Any,
) -> int:
    """Fill `end` of every op when each worker keeps its order; `free` says when each worker may begin.

    Returns how many could be timed: fewer than there are when the orders wait for each other. `free` is then
    the end of each worker's last op.
    """
    left = workers
    timed = 0
    while left > 0:
        left -= 1
        worker = runnable[left]
        listed[worker] = 0
        stage = stage_of[worker]
        place = position[worker]
        last = (worker + 1) * width
        time = free[worker]
        while place < last:
            op = order[place]
            if op < 0:
                break
            kind = FORWARD
            ready = 0
            other = -1
            if op < span:
                if stage > 0:
                    ready = end[op - 1]
                    if ready < 0:
                        break
                    ready += transfer[stage - 1]
                if stage < stages - 1:
                    other = runs_on[op + 1]
            elif op < 2 * span:
                kind = BACKWARD
                if stage < stages - 1:
                    ready = end[op + 1]
                    if ready < 0:
                        break
                    ready += transfer[stage]
                else:
                    ready = end[op - span]
                    if ready < 0:
                        break
                if stage > 0:
                    other = runs_on[op - span - 1]
            else:
                kind = WEIGHT
                ready = end[op - span]
                if ready < 0:
                    break
            time = max(time, ready) + times[kind * workers + worker]
            end[op] = time
            place += 1
            timed += 1
            if other >= 0 and listed[other] == 0:
                listed[other] = 1
                runnable[left] = other
                left += 1
        position[worker] = place
        free[worker] = time
    return timed


def latest_times(  # noqa: C901
    stages: int,
    workers: int,
    width: int,
    span: int,
    stage_of: Any,
    times: Any,
    transfer: Any,
    runs_on: Any,
    split: Any,
    order: Any,
    deadline: Any,
    due: Any,
    late: Any,
    position: Any,
    runnable: Any,
    listed: Any,
) -> int:
    """Fill `late`, the latest start of every op when each worker keeps its order and each stage its deadline.

    `due` is the latest end of an op but for what follows it on its worker. `position` is the last place of
    each worker.
    """
    left = workers
    timed = 0
    while left > 0:
        left -= 1
        worker = runnable[left]
        listed[worker] = 0
        stage = stage_of[worker]
        place = position[worker]
        first = worker * width
        following = FAR
        if place + 1 < first + width and order[place + 1] >= 0:
            following = late[order[place + 1]]
        while place >= first:
            op = order[place]
            end = deadline[stage]
            kind = FORWARD
            other = -1
            if op < span:
                if stage < stages - 1:
                    if late[op + 1] == FAR:
                        break
                    end = min(end, late[op + 1] - transfer[stage])
                else:
                    end = min(end, late[op + span])
                if stage > 0:
                    other = runs_on[op - 1]
            elif op < 2 * span:
                kind = BACKWARD
                if stage > 0:
                    if late[op - 1] == FAR:
                        break
                    end = min(end, late[op - 1] - transfer[stage - 1])
                if split[stage]:
                    end = min(end, late[op + span])
                if stage < stages - 1:
                    other = runs_on[op - span + 1]
            else:
                kind = WEIGHT
            due[op] = end
            following = min(end, following) - times[kind * workers + worker]
            late[op] = following
            place -= 1
            timed += 1
            if other >= 0 and listed[other] == 0:
                listed[other] = 1
                runnable[left] = other
                left += 1
        position[worker] = place
    return timed
