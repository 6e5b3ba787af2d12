"""Tabu search among orders: of many moves near a critical path the best one is made, though it may be worse.

Moves that are kept if they make nobody later (`moves.py`) come to an end where every single move makes
somebody later. Here one is made all the same, the best that can be found, and the op that moved stays where
it is for a while, so that the search does not go back at once but over the hill.

What a move leads to is not timed, it is estimated: from when the ops between its two places could start then,
and from when they would have to end for the deadlines of all that comes after them. That takes a few
additions; only the move that is chosen is timed, forwards for the earliest ends and backwards for the latest,
and both only as far as times change.

It is written as `move_ops` is, for the same graphs, and no move makes orders wait for each other.
"""

from typing import Any

from recycle_compiler.scheduling.inner_loops import FAR
from recycle_compiler.scheduling.moves import draw, heap_out, queue_op


def time_again(
    width: int,
    group_of: Any,
    groups: Any,
    worker_of_op: Any,
    length: Any,
    opens: Any,
    order: Any,
    end: Any,
    place_of: Any,
    heap: Any,
    queued: Any,
    count: int,
    coarse: int,
    bits: int,
) -> int:
    """Time the queued ops again, and all whose ends change with theirs, soonest first; returns how many."""
    mask = (1 << bits) - 1
    timed = 0
    while count > 0:
        op = heap_out(heap, count) & mask
        count -= 1
        queued[op] = 0
        timed += 1
        group = groups[group_of[op]]
        place = place_of[op]
        worker = worker_of_op[op]
        start = opens[worker]
        if place > worker * width:
            start = end[order[place - 1]]
        if group.source != 0:
            start = max(start, end[op + group.source] + group.lag)
        if start + group.duration == end[op]:
            continue
        end[op] = start + group.duration
        if place + 1 < worker * width + length[worker]:
            then = order[place + 1]
            start = end[then] - groups[group_of[then]].duration
            count = queue_op(heap, queued, count, then, start, coarse, bits)
        for away in (group.follower, group.second):
            if away != 0:
                then = op + away
                start = end[then] - groups[group_of[then]].duration
                count = queue_op(heap, queued, count, then, start, coarse, bits)
    return timed


def latest_again(
    width: int,
    group_of: Any,
    groups: Any,
    worker_of_op: Any,
    length: Any,
    deadline: Any,
    order: Any,
    latest: Any,
    place_of: Any,
    heap: Any,
    queued: Any,
    count: int,
    coarse: int,
    bits: int,
    horizon: int,
) -> int:
    """The same backwards in time: when the queued ops have to end, and all for which that changes then.

    Keys of the heap are what is left until the horizon.
    """
    mask = (1 << bits) - 1
    timed = 0
    while count > 0:
        op = heap_out(heap, count) & mask
        count -= 1
        queued[op] = 0
        timed += 1
        group = groups[group_of[op]]
        place = place_of[op]
        worker = worker_of_op[op]
        until = deadline[worker]
        if place + 1 < worker * width + length[worker]:
            then = order[place + 1]
            until = min(until, latest[then] - groups[group_of[then]].duration)
        if group.follower != 0:
            then = op + group.follower
            until = min(until, latest[then] - groups[group_of[then]].duration - group.follower_lag)
        if group.second != 0:
            then = op + group.second
            until = min(until, latest[then] - groups[group_of[then]].duration - group.second_lag)
        if until == latest[op]:
            continue
        latest[op] = until
        if place > worker * width:
            before = order[place - 1]
            count = queue_op(heap, queued, count, before, horizon - latest[before], coarse, bits)
        if group.source != 0:
            before = op + group.source
            count = queue_op(heap, queued, count, before, horizon - latest[before], coarse, bits)
    return timed


# One loop, so that numba can compile it and all of its state stays at hand.
def search_tabu(  # noqa: C901
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
    best_order: Any,
    heap: Any,
    queued: Any,
    until_turn: Any,
    marked: Any,
    new_end: Any,
    new_latest: Any,
    move_from: Any,
    move_to: Any,
    coarse: int,
    bits: int,
    horizon: int,
    slack: int,
    reach: int,
    sample: int,
    tenure: int,
    seed: int,
    budget: int,
) -> tuple[int, int, int]:
    """Move ops in `order` so that the latest worker is less late for its `deadline`; best is `best_order`.

    Times and places are those of `move_ops`. Moves are looked for near both ends of the blocks of a critical
    path: one op goes to the end of its block or back from there, by up to `reach` places. Of `sample` of them
    the best is made, unless its op has moved less than `tenure` to twice as many turns ago; but what is
    better than all before is always made.

    Ends when no worker is later than `slack`, or when `budget` ops have been timed. Returns by how much the
    latest worker is late in the best order, and all of them together, and how many ops were timed.
    """
    best = FAR
    best_sum = FAR
    spent = 0
    turn = 0
    mark = 0
    seed = 1 + seed % 0x7FFFFFFE
    while True:
        worst = -FAR
        late = 0
        who = 0
        for worker in range(workers):
            if length[worker] > 0:
                over = end[order[worker * width + length[worker] - 1]] - deadline[worker]
                if over > worst:
                    worst = over
                    who = worker
                if over > 0:
                    late += over
        if worst < best or (worst == best and late < best_sum):
            best = worst
            best_sum = late
            for index in range(len(order)):
                best_order[index] = order[index]
            spent += len(order) >> 4
        if best <= slack or spent >= budget:
            break
        turn += 1
        op = order[who * width + length[who] - 1]
        block_ends = place_of[op]
        found = 0
        while True:
            group = groups[group_of[op]]
            worker = worker_of_op[op]
            place = place_of[op]
            start = end[op] - group.duration
            follows = place > worker * width and end[order[place - 1]] == start
            waits = group.source != 0 and end[op + group.source] + group.lag == start
            if follows and waits:
                seed = draw(seed)
                follows = seed & 1 == 0
            if follows:
                op = order[place - 1]
                continue
            for by in range(1, min(reach, block_ends - place) + 1):
                if found + 4 > len(move_from):
                    break
                move_from[found] = block_ends - by
                move_to[found] = block_ends
                move_from[found + 1] = block_ends
                move_to[found + 1] = block_ends - by
                move_from[found + 2] = place + by
                move_to[found + 2] = place
                move_from[found + 3] = place
                move_to[found + 3] = place + by
                found += 4
            if not waits:
                break
            op += group.source
            block_ends = place_of[op]
        spent += 8
        least = FAR
        chosen_from = -1
        chosen_to = -1
        for number in range(min(sample, found)):
            seed = draw(seed)
            drawn = number + seed % (found - number)
            here = move_from[drawn]
            there = move_to[drawn]
            move_from[drawn] = move_from[number]
            move_to[drawn] = move_to[number]
            op = order[here]
            group = groups[group_of[op]]
            worker = worker_of_op[op]
            begins = worker * width
            ends = begins + length[worker]
            ahead = there < here
            first = there if ahead else here
            last = here if ahead else there
            allowed = True
            if ahead:
                soonest = -1
                if group.source != 0:
                    soonest = end[op + group.source]
                for index in range(first, last):
                    if soonest >= end[order[index]]:
                        allowed = False
                        break
            else:
                until = FAR
                if group.follower != 0:
                    until = end[op + group.follower]
                if group.second != 0:
                    until = min(until, end[op + group.second])
                for index in range(first + 1, last + 1):
                    other = order[index]
                    waiting = other == op + group.follower or other == op + group.second
                    if waiting or until <= end[other] - groups[group_of[other]].duration:
                        allowed = False
                        break
            if not allowed:
                continue
            # Memory, and when they could end, in their new order.
            mark += 1
            holds = held[order[first]]
            before = opens[worker]
            if first > begins:
                before = end[order[first - 1]]
            for index in range(first, last + 1):
                if ahead:
                    other = op if index == first else order[index - 1]
                else:
                    other = op if index == last else order[index + 1]
                its = groups[group_of[other]]
                if capacity[worker] >= 0 and its.takes > 0 and holds + its.takes > capacity[worker]:
                    allowed = False
                    break
                holds += its.change
                start = before
                if its.source != 0:
                    source = other + its.source
                    ended = new_end[source] if marked[source] == mark else end[source]
                    start = max(start, ended + its.lag)
                before = start + its.duration
                new_end[other] = before
                marked[other] = mark
            if not allowed:
                continue
            following = deadline[worker]
            if last + 1 < ends:
                other = order[last + 1]
                following = min(following, latest[other] - groups[group_of[other]].duration)
            later = -FAR
            for back in range(last - first + 1):
                index = last - back
                if ahead:
                    other = op if index == first else order[index - 1]
                else:
                    other = op if index == last else order[index + 1]
                its = groups[group_of[other]]
                until = following
                if its.follower != 0:
                    then = other + its.follower
                    its_latest = new_latest[then] if marked[then] == mark else latest[then]
                    until = min(until, its_latest - groups[group_of[then]].duration - its.follower_lag)
                if its.second != 0:
                    then = other + its.second
                    its_latest = new_latest[then] if marked[then] == mark else latest[then]
                    until = min(until, its_latest - groups[group_of[then]].duration - its.second_lag)
                new_latest[other] = until
                following = until - its.duration
                later = max(later, new_end[other] - until)
            spent += (last - first + 4) >> 2
            if later < least and (until_turn[op] <= turn or later < best):
                least = later
                chosen_from = here
                chosen_to = there
        if chosen_from < 0:
            for index in range(len(until_turn)):
                until_turn[index] = 0
            spent += 1 + (budget >> 10)
            continue
        op = order[chosen_from]
        seed = draw(seed)
        until_turn[op] = turn + tenure + seed % tenure
        first = min(chosen_from, chosen_to)
        last = max(chosen_from, chosen_to)
        holds = held[order[first]]
        index = chosen_from
        while index < chosen_to:
            order[index] = order[index + 1]
            index += 1
        while index > chosen_to:
            order[index] = order[index - 1]
            index -= 1
        order[chosen_to] = op
        worker = worker_of_op[op]
        begins = worker * width
        ends = begins + length[worker]
        count = 0
        for index in range(first, min(last + 2, ends)):
            other = order[index]
            if index <= last:
                place_of[other] = index
                held[other] = holds
                holds += groups[group_of[other]].change
            start = end[other] - groups[group_of[other]].duration
            count = queue_op(heap, queued, count, other, start, coarse, bits)
        spent += time_again(
            width, group_of, groups, worker_of_op, length, opens, order, end, place_of,
            heap, queued, count, coarse, bits,
        )  # fmt: skip
        count = 0
        for index in range(max(begins, first - 1), last + 1):
            other = order[index]
            count = queue_op(heap, queued, count, other, horizon - latest[other], coarse, bits)
        spent += latest_again(
            width, group_of, groups, worker_of_op, length, deadline, order, latest, place_of,
            heap, queued, count, coarse, bits, horizon,
        )  # fmt: skip
    return best, best_sum, spent
