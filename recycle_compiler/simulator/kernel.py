"""One iteration, event by event. Plain enough to be compiled: the same code runs on lists and on arrays.

Every worker goes through its steps until it has to wait. Who sends wakes the one that waits for the message,
the last to come to a gathering wakes all the others. In which order workers get their turn makes no
difference: a step starts at the latest of what it waits for.
"""

from typing import Any

COMPUTE, SEND, GATHER = range(3)
"""Kinds of steps."""
FREE = -1
"""The source of a step that needs no message."""
NEVER = -2
"""The source of a step whose message is never sent; also the time of what has not happened."""


def run_iteration(  # noqa: C901
    kind: Any,
    source: Any,
    duration: Any,
    lag: Any,
    gathering: Any,
    bounds: Any,
    members: Any,
    roster: Any,
    clock: Any,
    origin: Any,
    cursor: Any,
    start: Any,
    end: Any,
    sent: Any,
    sender: Any,
    waiter: Any,
    arrived: Any,
    meeting: Any,
    leader: Any,
    ready: Any,
) -> int:
    """Run as far as possible; how many workers did not reach their end.

    Read: for every step its kind, the step that sends its message, how long it takes and the message travels,
    its gathering; the steps of worker w are bounds[w] to bounds[w + 1]; members[2 g] and members[2 g + 1] are
    where in the roster the workers of a gathering begin, and where they have ended.
    Changed: the clock of every worker, and the worker at whose start its latest wait began (origin); cursor,
    start and end of steps. The rest is room to work in: NEVER in sent, 0 in waiter, arrived and meeting.
    """
    waiting = len(ready)
    unfinished = len(ready)
    while waiting > 0:
        waiting -= 1
        worker = ready[waiting]
        now = clock[worker]
        begin = origin[worker]
        step = cursor[worker]
        stop = bounds[worker + 1]
        while step < stop:
            if kind[step] == SEND:
                sent[step] = now
                sender[step] = begin
                if waiter[step] > 0:
                    ready[waiting] = waiter[step] - 1
                    waiting += 1
            else:
                message = source[step]
                if message == NEVER:
                    break
                if message != FREE:
                    if sent[message] == NEVER:
                        waiter[message] = worker + 1
                        break
                    if sent[message] + lag[step] > now:
                        now = sent[message] + lag[step]
                        begin = sender[message]
            if kind[step] == GATHER:
                group = gathering[step]
                first = members[2 * group]
                after = members[2 * group + 1]
                if arrived[group] < after - first:
                    arrived[group] += 1
                    if arrived[group] == 1 or now > meeting[group]:
                        meeting[group] = now
                        leader[group] = begin
                    if arrived[group] < after - first:
                        break
                    for place in range(first, after):
                        if roster[place] != worker:
                            ready[waiting] = roster[place]
                            waiting += 1
                now = meeting[group]
                begin = leader[group]
                start[step] = now
                now += duration[step]
                end[step] = now
            elif kind[step] == COMPUTE:
                start[step] = now
                now += duration[step]
                end[step] = now
            step += 1
        if step == stop:
            unfinished -= 1
        clock[worker] = now
        origin[worker] = begin
        cursor[worker] = step
    return unfinished
