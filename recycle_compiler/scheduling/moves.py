"""The innermost loop of the search among orders: one op at a time moves along its worker.

It is written as those of `inner_loops` are, and `Loops` compiles it the same way; it knows graphs without
further edges only. After a move only those ops are timed again whose times may change: those that moved,
then what follows an op whose end has changed, soonest first. A log of old ends undoes a move that is not
kept. So a move costs as much as it changes, which is mostly a small part of the order.

Memory depends on the order of a worker alone, and a move changes it between its two places only. No move
makes orders wait for each other: an op goes before another only if what it waits for ends sooner than that
one, and behind another only if what waits for it ends after that one starts. Along a path in the graph
neither can be.
"""

from typing import Any

from recycle_compiler.scheduling.inner_loops import FAR


def heap_in(heap: Any, count: int, key: int) -> None:
    """Put a key into a heap of so many."""
    place = count
    while place > 0:
        above = (place - 1) >> 1
        if heap[above] <= key:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = key


def heap_out(heap: Any, count: int) -> int:
    """Take the least key out of a heap of so many."""
    least = heap[0]
    left = count - 1
    key = heap[left]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= left:
            break
        if below + 1 < left and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= key:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = key
    return least


def queue_op(heap: Any, queued: Any, count: int, op: int, time: int, coarse: int, bits: int) -> int:
    """Put an op into a heap of so many by its time, unless it is there; returns how many there are then.

    The key is the time without its `coarse` last bits, then the op in `bits`.
    """
    if queued[op] != 0:
        return count
    queued[op] = 1
    heap_in(heap, count, ((time >> coarse) << bits) | op)
    return count + 1


def draw(seed: int) -> int:
    """The number after another in a row of those from 1 to 2^31 - 2, by chance.

    No product is above 63 bits: what exceeds them is not the same in compiled code as in plain Python.
    """
    return seed * 48271 % 0x7FFFFFFF


# One loop, so that numba can compile it and all of its state stays at hand.
def move_ops(  # noqa: C901
    workers: int,
    width: int,
    group_of: Any,
    groups: Any,
    worker_of_op: Any,
    capacity: Any,
    length: Any,
    opens: Any,
    deadline: Any,
    order: Any,
    end: Any,
    place_of: Any,
    held: Any,
    latest: Any,
    journal: Any,
    heap: Any,
    queued: Any,
    log_op: Any,
    log_end: Any,
    log_latest: Any,
    path: Any,
    block_first: Any,
    block_last: Any,
    coarse: int,
    bits: int,
    slack: int,
    warmth: int,
    reach: int,
    seed: int,
    budget: int,
) -> tuple[int, int]:
    """Move ops in `order` so that workers are less late for their `deadline`; the least late order stays.

    `opens` says when each worker may begin, `end` when ops end, `place_of` where they stand, `held` what
    their worker holds as they start, `latest` when they have to end for the deadlines of all that comes
    after them. `length` is how many ops each worker has.

    A critical path leads from the last op of a worker that is late back to what it waits for. Ops of it that
    follow each other on a worker without a pause are a block. One of them moves ahead of the op before it, or
    that one behind it, by up to `reach` places; or it moves to the beginning or the end of its block. As soon
    as an op is later for its latest end than any worker is for its deadline, and by more than what is left of
    `warmth`, the move is given up: `latest` may be out of date by then, so some moves are given up wrongly.
    The new order is kept if all workers together are no later than before, or no later than at best by more
    than that warmth, which goes down to nothing as `budget` is used up.

    Ends when no worker is later than `slack`, when `budget` ops have been timed, or when the `journal` is
    full: so many moves since the best order, which are then taken back. Returns by how much all workers
    together are late, and how many ops were timed.
    """
    late = 0
    worst = 0
    for worker in range(workers):
        if length[worker] > 0:
            over = end[order[worker * width + length[worker] - 1]] - deadline[worker]
            if over > 0:
                late += over
                worst = max(worst, over)
    best = late
    kept = 0
    spent = 0
    steps = 0
    uses = 0
    mask = (1 << bits) - 1
    seed = 1 + seed % 0x7FFFFFFE
    while worst > slack and spent < budget and 3 * kept + 3 <= len(journal):
        if uses == 0:
            # Whose path, by chance among those who are late.
            seed = draw(seed)
            worker = seed % workers
            while length[worker] == 0 or end[order[worker * width + length[worker] - 1]] <= deadline[worker]:
                worker += 1
                if worker == workers:
                    worker = 0
            op = order[worker * width + length[worker] - 1]
            steps = 0
            walked = 0
            block = 0
            block_ends = worker * width + length[worker] - 1
            while True:
                walked += 1
                group = groups[group_of[op]]
                start = end[op] - group.duration
                place = place_of[op]
                before = -1
                if place > worker_of_op[op] * width:
                    before = order[place - 1]
                follows = before >= 0 and end[before] == start
                waits = group.source != 0 and end[op + group.source] + group.lag == start
                if follows:
                    path[steps] = op
                    block_last[steps] = block_ends
                    steps += 1
                if follows and waits:
                    seed = draw(seed)
                    follows = seed & 1 == 0
                if follows:
                    op = before
                    continue
                while block < steps:
                    block_first[block] = place
                    block += 1
                if not waits:
                    break
                op += group.source
                block_ends = place_of[op]
            spent += walked >> 2
            uses = 1 + (steps >> 2)
            if steps == 0:
                spent += 1 + (budget >> 6)
                uses = 0
                continue
        uses -= 1
        spent += 1
        seed = draw(seed)
        step = seed % steps
        op = path[step]
        choice = seed = draw(seed)
        ahead = choice & 1 == 0
        most = 1 + (choice >> 1) % reach
        if choice & (7 << 20) != 0:
            most = 1
        worker = worker_of_op[op]
        begins = worker * width
        ends = begins + length[worker]
        place = place_of[op]
        if choice & (1 << 25) != 0:
            # Out of its block: before its first op, or behind its last one.
            most = place - block_first[step] if ahead else block_last[step] - place
            place += not ahead
            if most < 1:
                continue
        if place == begins:
            continue
        if ahead:
            group = groups[group_of[op]]
            soonest = -1
            if group.source != 0:
                soonest = end[op + group.source]
            first = place
            while first > begins and place - first < most and soonest < end[order[first - 1]]:
                first -= 1
            last = place
            if first == place:
                continue
        else:
            op = order[place - 1]
            group = groups[group_of[op]]
            until = FAR
            if group.follower != 0:
                until = end[op + group.follower]
            if group.second != 0:
                until = min(until, end[op + group.second])
            first = place - 1
            last = first
            while last + 1 < ends and last - first < most:
                other = order[last + 1]
                if until <= end[other] - groups[group_of[other]].duration:
                    break
                last += 1
            if last == first:
                continue
        # Whether memory allows it.
        room = True
        if capacity[worker] >= 0:
            holds = held[order[first]]
            for index in range(first, last + 1):
                if ahead:
                    other = op if index == first else order[index - 1]
                else:
                    other = op if index == last else order[index + 1]
                group = groups[group_of[other]]
                if group.takes > 0 and holds + group.takes > capacity[worker]:
                    room = False
                    break
                holds += group.change
        if not room:
            continue
        old_end = end[order[ends - 1]]
        before_late = late
        count = 0
        if ahead:
            index = last
            while index > first:
                order[index] = order[index - 1]
                index -= 1
            order[first] = op
        else:
            for index in range(first, last):
                order[index] = order[index + 1]
            order[last] = op
        holds = held[order[first + 1] if ahead else op]
        for index in range(first, min(last + 2, ends)):
            other = order[index]
            if index <= last:
                place_of[other] = index
                held[other] = holds
                group = groups[group_of[other]]
                holds += group.change
            start = end[other] - groups[group_of[other]].duration
            count = queue_op(heap, queued, count, other, start, coarse, bits)
        # How late they may be then, as far as what comes after them has not changed.
        warm = warmth * max(0, (budget - spent) * 1024 // budget) // 1024
        following = FAR
        if last + 1 < ends:
            following = latest[order[last + 1]] - groups[group_of[order[last + 1]]].duration
        index = last
        while index >= first:
            other = order[index]
            group = groups[group_of[other]]
            until = min(following, deadline[worker])
            if group.follower != 0:
                then = other + group.follower
                until = min(until, latest[then] - groups[group_of[then]].duration - group.follower_lag)
            if group.second != 0:
                then = other + group.second
                until = min(until, latest[then] - groups[group_of[then]].duration - group.second_lag)
            log_latest[index - first] = latest[other]
            latest[other] = until
            following = until - group.duration
            index -= 1
        logged = 0
        passed = True
        while count > 0:
            other = heap_out(heap, count) & mask
            count -= 1
            queued[other] = 0
            spent += 1
            group = groups[group_of[other]]
            index = place_of[other]
            its = worker_of_op[other]
            start = opens[its]
            if index > its * width:
                start = end[order[index - 1]]
            if group.source != 0:
                start = max(start, end[other + group.source] + group.lag)
            ends_now = start + group.duration
            if ends_now == end[other]:
                continue
            if logged == len(log_op) or (ends_now > end[other] and ends_now - latest[other] > worst + warm):
                passed = False
                break
            log_op[logged] = other
            log_end[logged] = end[other]
            logged += 1
            is_last = index + 1 == its * width + length[its]
            if is_last and its != worker:
                over = end[other] - deadline[its]
                if over > 0:
                    late -= over
                over = ends_now - deadline[its]
                if over > 0:
                    late += over
            end[other] = ends_now
            if not is_last:
                then = order[index + 1]
                start = end[then] - groups[group_of[then]].duration
                count = queue_op(heap, queued, count, then, start, coarse, bits)
            if group.follower != 0:
                then = other + group.follower
                start = end[then] - groups[group_of[then]].duration
                count = queue_op(heap, queued, count, then, start, coarse, bits)
            if group.second != 0:
                then = other + group.second
                start = end[then] - groups[group_of[then]].duration
                count = queue_op(heap, queued, count, then, start, coarse, bits)
        late += max(0, end[order[ends - 1]] - deadline[worker]) - max(0, old_end - deadline[worker])
        if passed and (late <= before_late or late <= best + warm):
            journal[3 * kept] = op
            journal[3 * kept + 1] = first if not ahead else last
            journal[3 * kept + 2] = last if not ahead else first
            kept += 1
            if late < before_late:
                uses = 0
            if late < best:
                best = late
                kept = 0
                worst = 0
                for index in range(workers):
                    if length[index] > 0:
                        over = end[order[index * width + length[index] - 1]] - deadline[index]
                        worst = max(worst, over)
        else:
            while count > 0:
                count -= 1
                queued[heap[count] & mask] = 0
            while logged > 0:
                logged -= 1
                end[log_op[logged]] = log_end[logged]
            for index in range(first, last + 1):
                latest[order[index]] = log_latest[index - first]
            late = before_late
            holds = held[order[first]]
            if ahead:
                for index in range(first, last):
                    order[index] = order[index + 1]
                order[last] = op
            else:
                index = last
                while index > first:
                    order[index] = order[index - 1]
                    index -= 1
                order[first] = op
            for index in range(first, last + 1):
                other = order[index]
                place_of[other] = index
                held[other] = holds
                holds += groups[group_of[other]].change
    # Back to the best order: moves since then are taken back, the last one first.
    while kept > 0:
        kept -= 1
        op = journal[3 * kept]
        first = journal[3 * kept + 1]
        last = journal[3 * kept + 2]
        index = last
        while index > first:
            order[index] = order[index - 1]
            index -= 1
        while index < first:
            order[index] = order[index + 1]
            index += 1
        order[first] = op
    return best, spent
