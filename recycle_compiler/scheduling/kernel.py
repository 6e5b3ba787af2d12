"""The innermost loop of planning, on flat integer arrays: list scheduling.

It is written so that numba can compile it, and `Loops` does that for large plans; for small ones it runs as
plain Python on lists and never pays for loading a compiler. Integers only, so both ways give the same result.
The heap of events is Python's own on a list, and `tree_push` and `tree_pop` where it is compiled. An event
is one number: the time, and the worker in its last bits.

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
NEVER = 1 << 62


# One loop, so that numba can compile it and plain Python pays for no calls.
def list_schedule(  # noqa: C901
    stages: int,
    pipelines: int,
    units: int,
    width: int,
    most: int,
    stage_of: Any,
    times: Any,
    transfer: Any,
    runs_on: Any,
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
    arrival: Any,
    rank: Any,
    count: Any,
    order: Any,
    end_of: Any,
    placed: Any,
    busy_until: Any,
    held: Any,
    in_flight: Any,
    entered: Any,
    events: Any,
) -> int:
    """Place ops as time goes on: a worker that is free takes the waiting op with the lowest priority value.

    `stage_of[worker]` is its stage, `times[kind * workers + worker]` how long an op takes there, and
    `runs_on[unit * stages + stage]` its worker. `least[kind]` is the lowest priority value of a kind.
    `entering[entry[worker]:]` are the F of the first stage in the order its worker takes them, then -1. F is
    not taken while memory is short, while `limit[stage]` micro-batches are between F and the end of backward,
    or while more than `defer[stage]` W are put off. While fewer than `depth[stage]` micro-batches are between
    F and the end of backward, and for the last `burst[stage]` of the `hosted[worker]` F, F goes first, or if
    there is no room for it, W. A worker about to start an op waits instead when a better one is known to
    arrive within `patience[stage]` percent of that op's duration, `at_end[stage]` once all its F have run.

    Of a queue, `kind * workers + worker`, the first `count[queue]` of its `most` places are used: `waiting`
    has the op, `arrival` the time from which on it can start, `rank` its priority value. Fills `order` and
    `end_of`; returns how many ops were placed.
    """
    workers = stages * pipelines
    span = units * stages
    bits = 1
    while workers >> bits > 0:
        bits += 1
    mask = (1 << bits) - 1
    # All F of the first stage could start at once; a worker's queue holds only the next of them.
    for worker in range(pipelines):
        op = entering[entry[worker]]
        if op >= 0:
            waiting[worker * most] = op
            arrival[worker * most] = 0
            rank[worker * most] = priority[op]
            count[worker] = 1
            heappush(events, worker)
    total = 0
    while True:
        event = heappop(events)
        if event >= NEVER:
            break
        now = event >> bits
        worker = event & mask
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
            for slot in range(queue * most, queue * most + count[queue]):
                key = rank[slot] - bonus
                if arrival[slot] <= now:
                    op = waiting[slot]
                    if key < best_key or (key == best_key and op < best_op):
                        best_key = key
                        best_op = op
                        best_slot = slot
                        best_kind = kind
                elif key < soon_key:
                    soon_key = key
                    soon_time = arrival[slot]
        starts = best_op >= 0
        if starts:
            waits = patience[stage] if entered[worker] < hosted[worker] else at_end[stage]
            length = times[best_kind * workers + worker]
            starts = not (soon_key < best_key and (soon_time - now) * 100 <= waits * length)
        if not starts:
            # Wake up when the next op comes.
            soon_time = FAR
            for kind in range(3):
                queue = kind * workers + worker
                for slot in range(queue * most, queue * most + count[queue]):
                    if now < arrival[slot] < soon_time:
                        soon_time = arrival[slot]
            if soon_time < FAR:
                heappush(events, (soon_time << bits) + worker)
            continue
        kind = best_kind
        queue = kind * workers + worker
        count[queue] -= 1
        last = queue * most + count[queue]
        waiting[best_slot] = waiting[last]
        arrival[best_slot] = arrival[last]
        rank[best_slot] = rank[last]
        order[worker * width + placed[worker]] = best_op
        placed[worker] += 1
        total += 1
        end = now + times[kind * workers + worker]
        end_of[best_op] = end
        busy_until[worker] = end
        heappush(events, (end << bits) + worker)
        # Nothing else starts here before the end, so memory that is free then may be given back now.
        if kind == FORWARD:
            held[worker] += activation[stage]
            in_flight[worker] += 1
            entered[worker] += 1
            op = entering[entry[worker] + entered[worker]] if stage == 0 else -1
            if op >= 0:
                slot = worker * most + count[worker]
                waiting[slot] = op
                arrival[slot] = 0
                rank[slot] = priority[op]
                count[worker] += 1
            # F feeds F until the last stage, and there the backward.
            if stage < stages - 1:
                fed = best_op + 1
                other = runs_on[fed]
                queue = other
                ready = end + transfer[stage]
            else:
                fed = best_op + span
                other = worker
                queue = workers + other
                ready = end
        elif kind == BACKWARD:
            held[worker] -= activation[stage] - kept[stage]
            in_flight[worker] -= 1
            if split[stage]:
                queue = WEIGHT * workers + worker
                slot = queue * most + count[queue]
                waiting[slot] = best_op + span
                arrival[slot] = end
                rank[slot] = priority[best_op + span]
                count[queue] += 1
            if stage == 0:
                continue
            fed = best_op - 1
            other = runs_on[fed - span]
            queue = workers + other
            ready = end + transfer[stage - 1]
        else:
            held[worker] -= kept[stage]
            continue
        slot = queue * most + count[queue]
        waiting[slot] = fed
        arrival[slot] = ready
        rank[slot] = priority[fed]
        count[queue] += 1
        # A worker that is busy then will look for itself when it is done.
        if busy_until[other] <= ready:
            heappush(events, (ready << bits) + other)
    return total


def tree_push(tree: Any, event: int) -> None:
    """Note an event: of each worker only the next one is kept.

    A tree in an array, with the number of leaves in its first place: each leaf is a worker's next event, and
    each node above is the sooner one of the two below it.
    """
    leaves = tree[0]
    node = leaves + (event & leaves - 1)
    if tree[node] <= event:
        return
    tree[node] = event
    node >>= 1
    while node > 0:
        sooner = min(tree[2 * node], tree[2 * node + 1])
        if tree[node] == sooner:
            break
        tree[node] = sooner
        node >>= 1


def tree_pop(tree: Any) -> int:
    """Take the first event of all; NEVER if there is none.

    The nodes above it are left as they are: mostly its worker has another event before the next is taken.
    """
    leaves = tree[0]
    event = tree[1]
    node = leaves + (event & leaves - 1)
    while tree[node] != event:
        while node > 1:
            node >>= 1
            tree[node] = min(tree[2 * node], tree[2 * node + 1])
        event = tree[1]
        node = leaves + (event & leaves - 1)
    if event < NEVER:
        tree[node] = NEVER + node - leaves
    return event
