"""The innermost loops of planning, on flat integer arrays: list scheduling, and times and swaps of an order.

They are written so that numba can compile them, and `Loops` does that for large plans; for small ones they
run as plain Python on lists and never pay for loading a compiler. Integers only, so both ways give the same
result. Scratch arrays come from the caller, because plain Python is fast on lists and numba on arrays.

Ops are known by their numbers (`problem.py`). Many ops are alike: they take as long, and the op that they
wait for and those that wait for them are as far away from them in these numbers. They share a `OpGroup`, and
all that a loop reads of an op is the number of its group and one column more, so that large plans stay in the
cache. In a plain graph an op waits for one other and two at most wait for it, and groups have room for these.
Where there are more (`EXTRA`), further edges into an op are `more_from[more_first[op]:more_first[op + 1]]`
with their `more_lag`, and those out of it likewise. The order of ops on the workers is one array with `width`
places per worker, filled up with -1.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
FAR = 1 << 60
SOONER = 1 << 58
NEVER = 1 << 62
EXTRA = True
"""True if ops may have more edges than a group has room for, or ops of a replica differ.

Loops made for plain graphs skip all that.
"""


class OpGroup(NamedTuple):
    """Values that ops of a group have in common. Other ops are given by how far away they are, 0 is none."""

    duration: int
    takes: int
    """Memory."""
    change: int
    """Of what its worker holds, once it has ended."""
    source: int
    """The op that it waits for."""
    lag: int
    """After the end of its source."""
    follower: int
    """An op that waits for it."""
    follower_lag: int
    second: int
    """Another one."""
    second_lag: int


@dataclass(slots=True)
class ReplicaState:
    """Replica of a chunk on a worker: its rule, and its state so far."""

    needs: int
    """Room that the worker must have before it takes an F."""
    limit: int
    defer: int
    depth: int
    patience: int
    at_end: int
    """Patience once all F have run."""
    burst: int
    hosted: int
    """Micro-batches."""
    entry: int
    """Index in `entering` of its next F that waits for nothing."""
    in_flight: int = 0
    """Micro-batches between F and the end of backward."""
    entered: int = 0
    """F that have run."""


@dataclass(slots=True)
class WorkerState:
    """A worker: its replicas, and its state so far."""

    first_replica: int
    end_replica: int
    """The first of the next worker."""
    capacity: int
    """Below 0: no limit."""
    held: int = 0
    busy_until: int = 0
    placed: int = 0
    """Ops."""


# One loop, so that numba can compile it and plain Python pays for no calls.
def list_schedule(  # noqa: C901
    workers: int,
    replicas: int,
    width: int,
    most: int,
    worker_of: Any,
    queue_of: Any,
    group_of: Any,
    groups: Any,
    further_first: Any,
    further_op: Any,
    further_lag: Any,
    priority: Any,
    least: Any,
    entering: Any,
    missing: Any,
    ready: Any,
    waiting: Any,
    arrival: Any,
    rank: Any,
    count: Any,
    order: Any,
    end_of: Any,
    replica_rows: Any,
    worker_rows: Any,
    events: Any,
) -> int:
    """Place ops as time goes on: a worker that is free takes the waiting op with the lowest priority value.

    Each chunk on a worker is a replica, a row of `replica_rows`; each worker is a row of `worker_rows`;
    `worker_of[queue]` is the worker of a queue, `kind * replicas + replica`.
    `missing[op]` is how many ops it waits for. `least[kind]` is the lowest priority value of a kind. Groups
    are those of queues, or of ops where those of a queue are not all alike.

    `entering` from a replica's `entry` on are the F that wait for nothing, as the replica takes them, then
    -1. F is not taken while the worker has no room for what the replica `needs`, while `limit` micro-batches
    are between F and the end of backward, or while more than `defer` W are put off. While fewer than `depth`
    of them are there, and for the last `burst` of the `hosted` F, F goes first, or if there is no room for
    it, W. A worker about to start an op waits instead when a better one is known to arrive within `patience`
    percent of that op's duration, `at_end` once all F of the replica have run.

    The events are a heap of numbers, a time with the worker in its last bits: Python's own heap on a list,
    and `tree_push` and `tree_pop` where this is compiled. Of a queue the first `count[queue]` of its `most`
    places are used: `waiting` has the op, `arrival` the time from which on it can start, `rank` its priority
    value. Fills `order` and `end_of`; returns how many ops were placed.
    """
    bits = 1
    while workers >> bits > 0:
        bits += 1
    mask = (1 << bits) - 1
    # Many F could start at once; a queue holds only the next of them.
    for replica in range(replicas):
        op = entering[replica_rows[replica].entry]
        if op >= 0:
            waiting[replica * most] = op
            arrival[replica * most] = 0
            rank[replica * most] = priority[op]
            count[replica] = 1
            begins = worker_of[replica]
            heappush(events, (worker_rows[begins].busy_until << bits) + begins)
    total = 0
    while True:
        event = heappop(events)
        if event >= NEVER:
            break
        now = event >> bits
        worker = event & mask
        worker_row = worker_rows[worker]
        if worker_row.busy_until > now:
            continue
        best_key = FAR
        best_op = -1
        best_place = -1
        best_replica = -1
        best_queue = -1
        soon_key = FAR
        soon_time = FAR
        replica = worker_row.first_replica
        while True:
            row = replica_rows[replica]
            room = worker_row.capacity < 0 or worker_row.held + row.needs <= worker_row.capacity
            if row.in_flight >= row.limit:
                room = False
            if count[WEIGHT * replicas + replica] > row.defer:
                room = False
            # F first, or if there is no room for it, the W that makes room.
            urgent = -1
            if row.in_flight < row.depth or row.entered + row.burst >= row.hosted:
                if room:
                    urgent = FORWARD
                elif count[replica] > 0:
                    urgent = WEIGHT
            for kind in range(3):
                if kind == FORWARD and not room:
                    continue
                queue = kind * replicas + replica
                bonus = SOONER if kind == urgent else 0
                if least[kind] - bonus > best_key:
                    continue
                for place in range(queue * most, queue * most + count[queue]):
                    key = rank[place] - bonus
                    if arrival[place] <= now:
                        op = waiting[place]
                        if key < best_key or (key == best_key and op < best_op):
                            best_key = key
                            best_op = op
                            best_place = place
                            best_replica = replica
                            best_queue = queue
                    elif key < soon_key:
                        soon_key = key
                        soon_time = arrival[place]
            replica += 1
            if replica == worker_row.end_replica:
                break
        starts = best_op >= 0
        if starts:
            row = replica_rows[best_replica]
            waits = row.patience if row.entered < row.hosted else row.at_end
            length = groups[group_of[best_op if EXTRA else best_queue]].duration
            starts = not (soon_key < best_key and (soon_time - now) * 100 <= waits * length)
        if not starts:
            # Wake up when the next op comes.
            soon_time = FAR
            for replica in range(worker_row.first_replica, worker_row.end_replica):
                for kind in range(3):
                    queue = kind * replicas + replica
                    for place in range(queue * most, queue * most + count[queue]):
                        if now < arrival[place] < soon_time:
                            soon_time = arrival[place]
            if soon_time < FAR:
                heappush(events, (soon_time << bits) + worker)
            continue
        replica = best_replica
        count[best_queue] -= 1
        last = best_queue * most + count[best_queue]
        waiting[best_place] = waiting[last]
        arrival[best_place] = arrival[last]
        rank[best_place] = rank[last]
        order[worker * width + worker_row.placed] = best_op
        worker_row.placed += 1
        total += 1
        group = groups[group_of[best_op if EXTRA else best_queue]]
        end = now + group.duration
        end_of[best_op] = end
        worker_row.busy_until = end
        heappush(events, (end << bits) + worker)
        # Nothing else starts here before the end, so memory that is free then may be given back now.
        worker_row.held += group.change
        row = replica_rows[replica]
        if best_queue == replica:
            row.in_flight += 1
            row.entered += 1
            if best_op == entering[row.entry]:
                row.entry += 1
                op = entering[row.entry]
                if op >= 0:
                    place = replica * most + count[replica]
                    waiting[place] = op
                    arrival[place] = 0
                    rank[place] = priority[op]
                    count[replica] += 1
        elif best_queue < WEIGHT * replicas:
            row.in_flight -= 1
        away = group.follower
        time = end + group.follower_lag
        second = group.second
        edge = further_first[best_op] if EXTRA else 0
        while away != 0:
            op = best_op + away
            is_ready = True
            if EXTRA:
                missing[op] -= 1
                time = ready[op] = max(ready[op], time)
                is_ready = missing[op] == 0
            if is_ready:
                queue = queue_of[op]
                place = queue * most + count[queue]
                waiting[place] = op
                arrival[place] = time
                rank[place] = priority[op]
                count[queue] += 1
                other = worker_of[queue]
                # A worker that is busy then will look for itself when it is done.
                if other != worker and worker_rows[other].busy_until <= time:
                    heappush(events, (time << bits) + other)
            away = second
            if second != 0:
                time = end + group.second_lag
                second = 0
            elif EXTRA and edge < further_first[best_op + 1]:
                away = further_op[edge] - best_op
                time = end + further_lag[edge]
                edge += 1
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


def earliest_times(  # noqa: C901
    workers: int,
    width: int,
    group_of: Any,
    groups: Any,
    wakes: Any,
    more_first: Any,
    more_from: Any,
    more_lag: Any,
    wakes_first: Any,
    wakes_more: Any,
    order: Any,
    free: Any,
    end: Any,
    position: Any,
    runnable: Any,
    listed: Any,
) -> int:
    """Fill `end` of every op when each worker keeps its order; `free` says when each worker may begin.

    Goes along the order of one worker until an op waits for another worker, and comes back to it when that
    one has gone on: `wakes[op]` is the other worker that may wait for an op, -1 if there is none; with
    further edges there may be others in `wakes_more`. Returns how many could be timed: fewer than there are
    when the orders wait for each other. `free` is then the end of each worker's last op.
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
            group = groups[group_of[op]]
            ready = 0
            if group.source != 0:
                ready = end[op + group.source]
                if ready < 0:
                    break
                ready += group.lag
            if EXTRA:
                blocked = False
                for edge in range(more_first[op], more_first[op + 1]):
                    arrives = end[more_from[edge]]
                    if arrives < 0:
                        blocked = True
                    ready = max(ready, arrives + more_lag[edge])
                if blocked:
                    break
                for index in range(wakes_first[op], wakes_first[op + 1]):
                    other = wakes_more[index]
                    if listed[other] == 0:
                        listed[other] = 1
                        runnable[left] = other
                        left += 1
            time = max(time, ready) + group.duration
            end[op] = time
            place += 1
            timed += 1
            other = wakes[op]
            if other >= 0 and listed[other] == 0:
                listed[other] = 1
                runnable[left] = other
                left += 1
        position[worker] = place
        free[worker] = time
    return timed


def reach_of_releases(
    count: int,
    in_turn: Any,
    worker_of: Any,
    group_of: Any,
    groups: Any,
    more_first: Any,
    more_from: Any,
    more_lag: Any,
    free: Any,
    after: Any,
) -> None:
    """Fill `after` with the longest ways from some moments, `count` of them, to the end of every op.

    `in_turn` has every op after all that it waits for, and after those before it on its worker; `free` says
    of every worker how long after these moments it begins. All ops have as many entries in a row.
    """
    for op in in_turn:
        group = groups[group_of[op]]
        here = worker_of[op] * count
        row = op * count
        source = row + group.source * count
        for index in range(count):
            time = free[here + index]
            if group.source != 0:
                time = max(time, after[source + index] + group.lag)
            if EXTRA:
                for edge in range(more_first[op], more_first[op + 1]):
                    time = max(time, after[more_from[edge] * count + index] + more_lag[edge])
            time += group.duration
            after[row + index] = time
            free[here + index] = time


def windows_of_releases(
    release: Any,
    pool_of: Any,
    late: Any,
    always_first: Any,
    always_last: Any,
    after_first: Any,
    after_last: Any,
    first: Any,
    last: Any,
) -> None:
    """Fill in the first start and the last end of every pool.

    Its workers start and end when they always do, or as long after the release of some pool as their row
    says; one that is `late` to step counts as if it had started sooner by that much.
    """
    pools = len(release)
    for worker in range(len(pool_of)):
        start, end = always_first[worker], always_last[worker]
        row = worker * pools
        for pool in range(pools):
            start = max(start, release[pool] + after_first[row + pool])
            end = max(end, release[pool] + after_last[row + pool])
        own = pool_of[worker]
        first[own] = min(first[own], start - late[worker])
        last[own] = max(last[own], end)


def latest_times(  # noqa: C901
    workers: int,
    width: int,
    group_of: Any,
    groups: Any,
    feeder: Any,
    further_first: Any,
    further_op: Any,
    further_lag: Any,
    more_first: Any,
    more_from: Any,
    worker_of_op: Any,
    order: Any,
    deadline: Any,
    due: Any,
    late: Any,
    position: Any,
    runnable: Any,
    listed: Any,
) -> int:
    """Fill `late`, the latest start of every op when each worker keeps its order and its `deadline`.

    `due` is the latest end of an op but for what follows it on its worker. `position` is the last place of
    each worker. `feeder[op]` is the other worker that an op waits for, -1 if there is none.
    """
    left = workers
    timed = 0
    while left > 0:
        left -= 1
        worker = runnable[left]
        listed[worker] = 0
        place = position[worker]
        first = worker * width
        following = FAR
        if place + 1 < first + width and order[place + 1] >= 0:
            following = late[order[place + 1]]
        while place >= first:
            op = order[place]
            group = groups[group_of[op]]
            end = deadline[worker]
            if group.follower != 0:
                then = late[op + group.follower]
                if then == FAR:
                    break
                end = min(end, then - group.follower_lag)
            if group.second != 0:
                then = late[op + group.second]
                if then == FAR:
                    break
                end = min(end, then - group.second_lag)
            if EXTRA:
                blocked = False
                for edge in range(further_first[op], further_first[op + 1]):
                    then = late[further_op[edge]]
                    if then == FAR:
                        blocked = True
                    end = min(end, then - further_lag[edge])
                if blocked:
                    break
            due[op] = end
            following = min(end, following) - group.duration
            late[op] = following
            place -= 1
            timed += 1
            other = feeder[op]
            if other >= 0 and listed[other] == 0:
                listed[other] = 1
                runnable[left] = other
                left += 1
            if EXTRA:
                for edge in range(more_first[op], more_first[op + 1]):
                    other = worker_of_op[more_from[edge]]
                    if other != worker and listed[other] == 0:
                        listed[other] = 1
                        runnable[left] = other
                        left += 1
        position[worker] = place
    return timed


# One loop, for the same reasons as the first.
def swap_neighbours(  # noqa: C901
    width: int,
    first_worker: Any,
    pool_worker: Any,
    unit_of: Any,
    group_of: Any,
    groups: Any,
    more_first: Any,
    more_from: Any,
    more_lag: Any,
    capacity: Any,
    end: Any,
    due: Any,
    late: Any,
    first_pool: int,
    last_pool: int,
    since: int,
    gain: int,
    odds: int,
    seed: int,
    order: Any,
) -> int:
    """Swap neighbours in `order` where an op that is late then is less late, and the one before it not more.

    `end` are the ends of ops in the order as it was, `due` and `late` what a shorter period asks for. Only
    workers of some pools, only ops from `since` on, and only swaps that bring more than `gain` count, and of
    these `odds` percent. F moves ahead only where memory has room for it. Returns how many were swapped.
    """
    swaps = 0
    for index in range(first_worker[first_pool], first_worker[last_pool + 1]):
        worker = pool_worker[index]
        free = 0
        held = 0
        for place in range(worker * width, (worker + 1) * width):
            op = order[place]
            if op < 0:
                break
            group = groups[group_of[op]]
            start = free
            if group.source != 0:
                start = max(start, end[op + group.source] + group.lag)
            if EXTRA:
                for edge in range(more_first[op], more_first[op + 1]):
                    start = max(start, end[more_from[edge]] + more_lag[edge])
            length = group.duration
            ends = start + length
            next_place = place + 1
            other = order[next_place] if next_place < (worker + 1) * width else -1
            # What comes later of the same micro-batch waits for this op.
            if other >= 0 and start >= since and late[other] < ends and unit_of[other] != unit_of[op]:
                then = groups[group_of[other]]
                sooner = free
                if then.source != 0:
                    sooner = max(sooner, end[other + then.source] + then.lag)
                if EXTRA:
                    for edge in range(more_first[other], more_first[other + 1]):
                        sooner = max(sooner, end[more_from[edge]] + more_lag[edge])
                        if more_from[edge] == op:
                            sooner = ends
                    if other + then.source == op:
                        sooner = ends
                room = capacity[worker] < 0 or then.takes == 0 or held + then.takes <= capacity[worker]
                if sooner < ends and room:
                    after = FAR
                    if next_place + 1 < (worker + 1) * width and order[next_place + 1] >= 0:
                        after = late[order[next_place + 1]]
                    length_then = then.duration
                    ends_then = sooner + length_then
                    late_now = max(ends - due[op], ends + length_then - min(due[other], after))
                    late_then = max(ends_then - due[other], ends_then + length - min(due[op], after))
                    if late_then + gain < late_now:
                        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
                        if (seed >> 16) % 100 < odds:
                            order[place] = other
                            order[next_place] = op
                            group = then
                            ends = ends_then
                            swaps += 1
            free = ends
            held += group.change
    return swaps
