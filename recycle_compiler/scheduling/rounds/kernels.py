"""Inner loops of the search for plans in rounds. Plain enough to be compiled: the same code runs on lists."""

from typing import Any

FORWARD, BACKWARD, WEIGHT = range(3)
FAR = 1 << 60


def time_order(  # noqa: C901
    order: Any,
    bounds: Any,
    waits_first: Any,
    waits: Any,
    lag: Any,
    duration: Any,
    line: Any,
    opens: Any,
    end: Any,
    cursor: Any,
    clock: Any,
) -> bool:
    """Fill in the earliest end of every op; False if the orders of machines wait for each other.

    order[bounds[m]] to order[bounds[m + 1]] are the ops of machine m, which opens at opens[m].
    """
    machines = len(bounds) - 1
    left = 0
    for machine in range(machines):
        cursor[machine] = bounds[machine]
        clock[machine] = opens[machine]
        left += bounds[machine + 1] - bounds[machine]
    for op in range(len(end)):
        end[op] = -1
    while left > 0:
        before = left
        for machine in range(machines):
            place = cursor[machine]
            now = clock[machine]
            stop = bounds[machine + 1]
            while place < stop:
                op = order[place]
                is_ready = True
                for entry in range(waits_first[op], waits_first[op + 1]):
                    ended = end[waits[entry]]
                    if ended < 0:
                        is_ready = False
                        break
                    if ended + lag[entry] > now:
                        now = ended + lag[entry]
                if not is_ready:
                    # What it has heard from so far changes nothing: it waits for that anyway.
                    break
                now += duration[line[op]]
                end[op] = now
                place += 1
                left -= 1
            clock[machine] = now
            cursor[machine] = place
        if left == before:
            return False
    return True


def place_ops(  # noqa: C901
    first: Any,
    machine: Any,
    part: Any,
    duration: Any,
    takes: Any,
    frees: Any,
    capacity: Any,
    waits_first: Any,
    waits: Any,
    lag: Any,
    ahead: Any,
    defer: Any,
    patience: int,
    forward_first: Any,
    end: Any,
    order: Any,
    bounds: Any,
    done: Any,
    free: Any,
    held: Any,
    places: Any,
) -> bool:
    """A list schedule: of all machines the one that can begin soonest begins with its most urgent round.

    `ahead` has how many more rounds a machine may have forward than back, `defer` how many weights it may put
    off, both of each machine; what it would rather do it waits for, if it comes within `patience`. False if
    memory leaves no way on.
    """
    lines = len(machine)
    machines = len(bounds) - 1
    for number in range(lines):
        done[number] = 0
    for each in range(machines):
        free[each] = 0
        held[each] = 0
        places[each] = bounds[each]
    for op in range(len(end)):
        end[op] = -1
    left = len(end)
    while left > 0:
        best_start = FAR
        best_line = -1
        for each in range(machines):
            chosen = -1
            chosen_start = FAR
            chosen_rank = FAR
            soonest = FAR
            waiting = 0
            open_rounds = 0
            for number in range(lines):
                if machine[number] == each:
                    if part[number] == FORWARD:
                        open_rounds += done[number]
                    elif part[number] == BACKWARD:
                        open_rounds -= done[number]
                        waiting += done[number]
                    else:
                        waiting -= done[number]
            for passing in range(2):
                for number in range(lines):
                    if machine[number] != each or done[number] >= first[number + 1] - first[number]:
                        continue
                    kind = part[number]
                    if kind == FORWARD and (
                        open_rounds >= ahead[each]
                        or (capacity[each] >= 0 and held[each] + takes[number] > capacity[each])
                    ):
                        continue
                    op = first[number] + done[number]
                    start = free[each]
                    for entry in range(waits_first[op], waits_first[op + 1]):
                        ended = end[waits[entry]]
                        if ended < 0:
                            start = FAR
                            break
                        if ended + lag[entry] > start:
                            start = ended + lag[entry]
                    if start >= FAR:
                        continue
                    if passing == 0:
                        if start < soonest:
                            soonest = start
                        continue
                    rank = 1
                    if kind == BACKWARD:
                        rank = 2 if forward_first[each] else 0
                    elif kind == WEIGHT:
                        rank = -1 if waiting > defer[each] else 3
                    if start <= soonest + patience and rank < chosen_rank:
                        chosen = number
                        chosen_start = start
                        chosen_rank = rank
            if chosen >= 0 and chosen_start < best_start:
                best_start = chosen_start
                best_line = chosen
        if best_line < 0:
            return False
        op = first[best_line] + done[best_line]
        each = machine[best_line]
        end[op] = best_start + duration[best_line]
        free[each] = end[op]
        held[each] += takes[best_line] - frees[best_line]
        order[places[each]] = op
        places[each] += 1
        done[best_line] += 1
        left -= 1
    return True
