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
    cost: Any,
    opens: Any,
    end: Any,
    cursor: Any,
    clock: Any,
) -> bool:
    """Fill in the earliest end of every op; False if the orders of machines wait for each other.

    order[bounds[m]] to order[bounds[m + 1]] are the ops of machine m, which opens at opens[m]; `cost` is what
    each op takes in this order.
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
                now += cost[op]
                end[op] = now
                place += 1
                left -= 1
            clock[machine] = now
            cursor[machine] = place
        if left == before:
            return False
    return True


def take_op(
    op: int, line: int, machine: int, first: Any, part: Any, duration: Any, exchange: Any,
    recent: Any, among: Any,
) -> int:  # fmt: skip
    """Ticks of the op that comes next on a machine: of a W, those that the exchanges of the last two rounds
    leave, as far as these came after its own I.

    `recent` has of each machine the number of rounds so far and what the exchanges of the last and of the one
    before have room for, `among` the place of every round among those of its machine.
    """
    ticks = duration[line]
    at = 3 * machine
    if part[line] != WEIGHT:
        recent[at] += 1
        among[op] = recent[at]
        recent[at + 2] = recent[at + 1]
        recent[at + 1] = exchange[line]
        return ticks
    # Lines of a chunk follow each other: that of its I, then that of its W.
    since = recent[at] - among[op - first[line] + first[line - 1]]
    for back in range(2, 0, -1):
        if since >= back:
            taken = min(ticks, recent[at + back])
            recent[at + back] -= taken
            ticks -= taken
    return ticks


def cost_order(
    order: Any, machine: int, bounds: Any, line: Any, first: Any, part: Any, duration: Any, exchange: Any,
    recent: Any, among: Any, cost: Any,
) -> None:  # fmt: skip
    """Fill in what every op of a machine takes in this order."""
    for at in range(3 * machine, 3 * machine + 3):
        recent[at] = 0
    for at in range(bounds[machine], bounds[machine + 1]):
        op = order[at]
        cost[op] = take_op(op, line[op], machine, first, part, duration, exchange, recent, among)


def place_ops(
    lines: Any, first: Any, part: Any, duration: Any, exchange: Any, takes: Any, frees: Any, capacity: Any,
    waits_first: Any, waits: Any, lag: Any, ahead: Any, defer: Any, forward_first: Any, patience: int,
    end: Any, order: Any, among: Any, bounds: Any, done: Any, free: Any, held: Any, chosen: Any,
    begins: Any, recent: Any,
) -> bool:  # fmt: skip
    """A list schedule: of all machines the one that can begin soonest begins with its most urgent round.

    `ahead` has how many more rounds a machine may have forward than back, `defer` how many weights it may put
    off, both of each machine; what it would rather do it waits for, if it comes within `patience`. All of
    `recent` is 0. False if memory leaves no way on.
    """
    machines = len(bounds) - 1
    for number in range(len(done)):
        done[number] = 0
    for machine in range(machines):
        free[machine] = 0
        held[machine] = 0
    for op in range(len(end)):
        end[op] = -1
    left = len(end)
    changed = -1
    while left > 0:
        best = -1
        for machine in range(machines):
            # What a machine can do changes by what it and its neighbours do.
            if changed < 0 or abs(machine - changed) <= 1:
                choose_line(
                    machine, lines, first, part, duration, takes, capacity, waits_first, waits, lag,
                    ahead, defer, forward_first, patience, end, done, free, held, chosen, begins,
                    recent, among,
                )  # fmt: skip
            if chosen[machine] >= 0 and (best < 0 or begins[machine] < begins[best]):
                best = machine
        if best < 0:
            return False
        line = chosen[best]
        op = first[line] + done[line]
        end[op] = begins[best] + take_op(
            op, line, best, first, part, duration, exchange, recent, among
        )  # fmt: skip
        free[best] = end[op]
        held[best] += takes[line] - frees[line]
        at = bounds[best]
        for number in range(lines[best], lines[best + 1]):
            at += done[number]
        order[at] = op
        done[line] += 1
        left -= 1
        changed = best
    return True


def choose_line(  # noqa: C901
    machine: int, lines: Any, first: Any, part: Any, duration: Any, takes: Any, capacity: Any,
    waits_first: Any, waits: Any, lag: Any, ahead: Any, defer: Any, forward_first: Any, patience: int,
    end: Any, done: Any, free: Any, held: Any, chosen: Any, begins: Any,
    recent: Any, among: Any,
) -> None:  # fmt: skip
    """Fill in of which line the machine would run a round next, -1 if of none, and when. A W that exchanges
    leave nothing of comes first."""
    begin_line = lines[machine]
    end_line = lines[machine + 1]
    went = done[begin_line]
    back = done[begin_line + 1]
    weighed = back
    if end_line - begin_line > WEIGHT:
        weighed = done[begin_line + WEIGHT]
    soonest = FAR
    chosen[machine] = -1
    rank = FAR
    for passing in range(2):
        for line in range(begin_line, end_line):
            if done[line] >= first[line + 1] - first[line]:
                continue
            kind = part[line]
            if kind == FORWARD and (
                went - back >= ahead[machine]
                or (capacity[machine] >= 0 and held[machine] + takes[line] > capacity[machine])
            ):
                continue
            op = first[line] + done[line]
            start = free[machine]
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
            urgency = 1
            if kind == BACKWARD:
                urgency = 2 if forward_first[machine] else 0
            elif kind == WEIGHT:
                urgency = -1 if back - weighed > defer[machine] else 3
                since = recent[3 * machine] - among[op - first[line] + first[line - 1]]
                room = 0
                for back in range(1, min(since, 2) + 1):
                    room += recent[3 * machine + back]
                if room >= duration[line]:
                    urgency = -2
            if start <= soonest + patience and urgency < rank:
                chosen[machine] = line
                begins[machine] = start
                rank = urgency


def settle_windows(
    order: Any, bounds: Any, waits_first: Any, waits: Any, lag: Any, cost: Any,
    finish: Any, staggered: bool, period: int, passes: int, opens: Any, end: Any, cursor: Any, clock: Any,
) -> bool:  # fmt: skip
    """Open machines that begin too early for their end later, until all have this period; False if they do
    not settle in so many passes, or if their orders wait for each other.

    Openings that are given only make all later. A longest path uses each machine's window at most once, so
    more passes than machines mean a cycle. Machines that are not staggered all open at once.
    """
    machines = len(bounds) - 1
    for _ in range(passes):
        if not time_order(order, bounds, waits_first, waits, lag, cost, opens, end, cursor, clock):
            return False
        is_settled = True
        for machine in range(machines):
            first = opens[0]
            if staggered:
                op = order[bounds[machine]]
                first = end[op] - cost[op]
            over = clock[machine] + finish[machine] - first - period
            if over > 0:
                if not staggered:
                    return False
                opens[machine] = first + over
                is_settled = False
        if is_settled:
            return True
    return False


def fits(
    order: Any, begin: int, stop: int, line: Any, takes: Any, frees: Any, capacity: int
) -> bool:  # fmt: skip
    """True if a machine that runs these ops never holds more than its capacity; -1 is unlimited."""
    held = 0
    for place in range(begin, stop):
        held += takes[line[order[place]]]
        if capacity >= 0 and held > capacity:
            return False
        held -= frees[line[order[place]]]
    return True


def improve_order(  # noqa: C901
    order: Any, best: Any, bounds: Any, waits_first: Any, waits: Any, lag: Any, line: Any, first: Any,
    part: Any, duration: Any, exchange: Any, takes: Any, frees: Any, capacity: Any, finish: Any,
    staggered: bool, period: int, enough: int, step: int, tries: int, passes: int, seed: int,
    past: Any, opens: Any, trial: Any, end: Any, cursor: Any, clock: Any, recent: Any, among: Any,
    cost: Any,
) -> int:  # fmt: skip
    """Move single rounds to and fro; `best` becomes the best order found, with the period that is returned.

    An order is kept that is no worse than the one so many tries before (`past`), by its period, within a
    `step`, and what all machines take together. `opens` has openings at which the first order has its
    period.
    """
    machines = len(bounds) - 1
    ops = len(order)
    memory = len(past)
    random = seed & 0x7FFFFFFF
    now = period
    shortest = period
    # A period counts as much as what all machines take together, and a little more.
    scale = machines + 1
    score = now * scale * 2
    for each in range(memory):
        past[each] = score
    for each in range(machines):
        cost_order(order, each, bounds, line, first, part, duration, exchange, recent, among, cost)
    for number in range(tries):
        random = (random * 1103515245 + 12345) & 0x7FFFFFFF
        place = (random >> 8) % ops
        random = (random * 1103515245 + 12345) & 0x7FFFFFFF
        far = 1 + (random >> 8) % 4
        machine = 0
        while bounds[machine + 1] <= place:
            machine += 1
        random = (random * 1103515245 + 12345) & 0x7FFFFFFF
        way = 1 if (random >> 12) & 1 else -1
        op = order[place]
        last = place
        for _ in range(far):
            after = last + way
            if after < bounds[machine] or after >= bounds[machine + 1] or line[order[after]] == line[op]:
                break
            last = after
        if last == place:
            continue
        for at in range(place, last, way):
            order[at] = order[at + way]
        order[last] = op
        taken, within, fresh = False, now, score
        cost_order(order, machine, bounds, line, first, part, duration, exchange, recent, among, cost)
        if fits(order, bounds[machine], bounds[machine + 1], line, takes, frees, capacity[machine]):
            for more in range(2):
                within = now + more * step
                if within * scale > past[number % memory]:
                    break
                for each in range(machines):
                    trial[each] = opens[each]
                if settle_windows(
                    order, bounds, waits_first, waits, lag, cost, finish, staggered, within, passes,
                    trial, end, cursor, clock,
                ):  # fmt: skip
                    fresh = within * scale
                    for each in range(machines):
                        opening = order[bounds[each]]
                        fresh += clock[each] - end[opening] + cost[opening]
                    taken = fresh <= past[number % memory] or fresh <= score
                    break
        if not taken:
            for at in range(last, place, -way):
                order[at] = order[at - way]
            order[place] = op
            cost_order(order, machine, bounds, line, first, part, duration, exchange, recent, among, cost)
        else:
            now = within
            score = fresh
            for each in range(machines):
                opens[each] = trial[each]
            while now - step >= enough and settle_windows(
                order, bounds, waits_first, waits, lag, cost, finish, staggered, now - step, passes,
                trial, end, cursor, clock,
            ):  # fmt: skip
                now -= step
                score -= step * scale
                for each in range(machines):
                    opens[each] = trial[each]
            if now < shortest:
                shortest = now
                for each in range(ops):
                    best[each] = order[each]
                if now - step < enough:
                    break
        past[number % memory] = min(score, past[number % memory])
    return shortest
