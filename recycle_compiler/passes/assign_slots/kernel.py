"""The three inner loops of planning, on flat integer arrays: list scheduling, earliest and latest times.

They are written so that numba can compile them, and `Loops` does that for large plans; for small ones they
run as plain Python on lists and never pay for loading a compiler. Integers only, so both ways give the same
result. The heap of events is Python's own on a list, and `array_push` and `array_pop` where it is compiled.
An event is one number: the time, and the worker in its last bits.

An op is numbered `(kind * units + unit) * stages + stage`, with kind 0 forward, 1 backward (the part that the
previous stage waits for) and 2 weight. A worker is numbered `stage * pipelines + pipeline`. The order of
ops on the workers is one array with `width` places per worker, filled up with -1. Scratch arrays come from
the caller, because plain Python is fast on lists and numba on arrays.
"""

from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
FAR = 1 << 60
SOONER = 1 << 58


# One loop, so that numba can compile it and plain Python pays for no calls.
def list_schedule(  # noqa: C901
    stages: int,
    pipelines: int,
    units: int,
    width: int,
    stage_of: Any,
    duration: Any,
    feeds: Any,
    lag: Any,
    wakes: Any,
    split: Any,
    activation: Any,
    kept: Any,
    capacity: Any,
    priority: Any,
    least: Any,
    limit: Any,
    defer: Any,
    depth: Any,
    patience: Any,
    at_end: Any,
    burst: Any,
    hosted: Any,
    entering: Any,
    entry: Any,
    waiting: Any,
    count: Any,
    arrival: Any,
    order: Any,
    placed: Any,
    busy_until: Any,
    held: Any,
    in_flight: Any,
    entered: Any,
    events: Any,
) -> int:
    """Place ops as time goes on: a worker that is free takes the waiting op with the lowest priority value.

    `stage_of[worker]` is its stage, `least[kind]` the lowest priority value of a kind.
    `entering[entry[worker]:]` are the F of the first stage in the order its worker takes them. `feeds[op]`
    is the op that can start `lag[op]` after it, on worker `wakes[op]`. F is not taken while memory is
    short, while `limit[stage]` micro-batches are between F and the end of backward, or while more than
    `defer[stage]` W are put off. While fewer than `depth[stage]` micro-batches are between F and the end of
    backward, and for the last `burst[stage]` of the `hosted[worker]` F, F goes first, or if there is no room
    for it, W. A worker about to start an op waits instead when a better one is known to arrive within
    `patience[stage]` percent of that op's duration, `at_end[stage]` once all its F have run. Fills `order`;
    returns how many ops were placed.
    """
    workers = stages * pipelines
    span = units * stages
    bits = 1
    while workers >> bits > 0:
        bits += 1
    for worker in range(pipelines):
        heappush(events, worker)
    pending = pipelines
    # All F of the first stage could start at once; a worker's queue holds only the next of them.
    for worker in range(pipelines):
        if entry[worker] < entry[worker + 1]:
            waiting[worker * width] = entering[entry[worker]]
            count[worker] = 1
    total = 0
    while pending > 0:
        event = heappop(events)
        now = event >> bits
        worker = event & (1 << bits) - 1
        pending -= 1
        if busy_until[worker] > now:
            continue
        stage = stage_of[worker]
        room = capacity[stage] < 0 or held[worker] + activation[stage] <= capacity[stage]
        if in_flight[worker] >= limit[stage]:
            room = False
        if count[WEIGHT * workers + worker] > defer[stage]:
            room = False
        best_key = FAR
        best_op = -1
        best_slot = -1
        best_kind = -1
        soon_key = FAR
        soon_time = FAR
        # F first, or if there is no room for it, the W that makes room.
        urgent = -1
        if in_flight[worker] < depth[stage] or entered[worker] + burst[stage] >= hosted[worker]:
            if room:
                urgent = FORWARD
            elif count[worker] > 0:
                urgent = WEIGHT
        for kind in range(3):
            if kind == FORWARD and not room:
                continue
            queue = kind * workers + worker
            bonus = SOONER if kind == urgent else 0
            if least[kind] - bonus > best_key:
                continue
            for slot in range(queue * width, queue * width + count[queue]):
                op = waiting[slot]
                key = priority[op] - bonus
                if arrival[op] <= now:
                    if key < best_key or (key == best_key and op < best_op):
                        best_key = key
                        best_op = op
                        best_slot = slot
                        best_kind = kind
                elif key < soon_key:
                    soon_key = key
                    soon_time = arrival[op]
        if best_op < 0:
            continue
        waits = patience[stage] if entered[worker] < hosted[worker] else at_end[stage]
        if soon_key < best_key and (soon_time - now) * 100 <= waits * duration[best_op]:
            continue
        kind = best_kind
        queue = kind * workers + worker
        count[queue] -= 1
        waiting[best_slot] = waiting[queue * width + count[queue]]
        order[worker * width + placed[worker]] = best_op
        placed[worker] += 1
        total += 1
        end = now + duration[best_op]
        busy_until[worker] = end
        heappush(events, (end << bits) + worker)
        pending += 1
        # Nothing else starts here before the end, so memory that is free then may be given back now.
        if kind == FORWARD:
            held[worker] += activation[stage]
            in_flight[worker] += 1
            entered[worker] += 1
            if stage == 0 and entry[worker] + entered[worker] < entry[worker + 1]:
                waiting[worker * width + count[worker]] = entering[entry[worker] + entered[worker]]
                count[worker] += 1
        elif kind == BACKWARD:
            held[worker] -= activation[stage] - kept[stage]
            in_flight[worker] -= 1
            if split[stage]:
                queue = WEIGHT * workers + worker
                waiting[queue * width + count[queue]] = best_op + span
                count[queue] += 1
                arrival[best_op + span] = end
        else:
            held[worker] -= kept[stage]
        fed = feeds[best_op]
        if fed >= 0:
            other = wakes[best_op]
            # F feeds F until the last stage, all else feeds a backward.
            queue = other if kind == FORWARD and stage < stages - 1 else workers + other
            waiting[queue * width + count[queue]] = fed
            count[queue] += 1
            arrival[fed] = end + lag[best_op]
            # A worker that is busy then will look for itself when it is done.
            if busy_until[other] <= arrival[fed]:
                heappush(events, (arrival[fed] << bits) + other)
                pending += 1
    return total


def array_push(heap: Any, event: int) -> None:
    """Add an event to a heap in an array; its first place says how many there are."""
    place = heap[0] + 1
    heap[0] = place
    while place > 1:
        above = place >> 1
        if heap[above] <= event:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = event


def array_pop(heap: Any) -> int:
    """Take the first event off a heap in an array."""
    first = heap[1]
    left = heap[0] - 1
    event = heap[left + 1]
    heap[0] = left
    place = 1
    while 2 * place <= left:
        below = 2 * place
        if below < left and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= event:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = event
    return first


def earliest_times(
    workers: int,
    width: int,
    duration: Any,
    needs: Any,
    feeds: Any,
    lag: Any,
    wakes: Any,
    order: Any,
    free: Any,
    end: Any,
    sequence: Any,
    position: Any,
    runnable: Any,
    listed: Any,
) -> int:
    """Fill `end` of every op when each worker keeps its order; `free` says when each worker may begin.

    Fills `sequence` with the ops, each after all it waits for. Returns how many could be timed: fewer than
    there are when the orders wait for each other.
    """
    left = workers
    timed = 0
    while left > 0:
        left -= 1
        worker = runnable[left]
        listed[worker] = 0
        place = position[worker]
        last = (worker + 1) * width
        time = free[worker]
        while place < last:
            op = order[place]
            if op < 0:
                break
            need = needs[op]
            if need >= 0:
                ready = end[need]
                if ready < 0:
                    break
                # A W follows its backward on the same worker, at once if it likes.
                if feeds[need] == op:
                    ready += lag[need]
                time = max(time, ready)
            time += duration[op]
            end[op] = time
            sequence[timed] = op
            place += 1
            timed += 1
            other = wakes[op]
            if other >= 0 and listed[other] == 0 and other != worker:
                listed[other] = 1
                runnable[left] = other
                left += 1
        position[worker] = place
        free[worker] = time
    return timed


def latest_times(
    workers: int,
    width: int,
    span: int,
    duration: Any,
    feeds: Any,
    lag: Any,
    split: Any,
    order: Any,
    sequence: Any,
    deadline: Any,
    follower: Any,
    due: Any,
    late: Any,
) -> int:
    """Fill `late`, the latest start of every op when each worker keeps its order and each stage its deadline.

    `sequence` lists the ops, each after all it waits for. `due` is the latest end of an op but for what
    follows it on its worker.
    """
    stages = len(deadline)
    for worker in range(workers):
        for place in range(worker * width + 1, (worker + 1) * width):
            if order[place] < 0:
                break
            follower[order[place - 1]] = order[place]
    for index in range(len(sequence) - 1, -1, -1):
        op = sequence[index]
        end = deadline[op % stages]
        if feeds[op] >= 0:
            end = min(end, late[feeds[op]] - lag[op])
        if op // span == BACKWARD and split[op % stages]:
            end = min(end, late[op + span])
        due[op] = end
        if follower[op] >= 0:
            end = min(end, late[follower[op]])
        late[op] = end - duration[op]
    return len(sequence)
