"""Sends and receives: every result that the next worker needs is sent once, received once, and in order.

There are no tags on the wire. On an ordered pair of workers, the n-th send meets the n-th receive.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recycle_compiler.verifier.plan import COMPUTE, MISSING, CheckedPlan, Column, Grid, cells
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_runtime.plan.isa import Opcode


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """One direction of traffic. Grids hold a table row, or MISSING, for each unit and sending chunk."""

    name: str
    step: int
    """From the chunk of the sender to the chunk of the receiver."""
    producer: Grid
    consumer: Grid
    send: Grid
    receive: Grid
    send_rows: Column
    receive_rows: Column


def links(plan: CheckedPlan) -> tuple[Direction, Direction]:
    """Activations going down and gradients coming up."""
    down = _link(plan, "activation", 1, plan.forward, Opcode.SEND_ACTIVATION, Opcode.RECV_ACTIVATION)
    up = _link(plan, "gradient", -1, plan.gradient, Opcode.SEND_GRADIENT, Opcode.RECV_GRADIENT)
    return down, up


def _link(plan: CheckedPlan, name: str, step: int, ops: Grid, sends: Opcode, receives: Opcode) -> Direction:
    producer = ops.copy()
    # The last chunk in the direction of travel sends to no worker.
    producer[:, -1 if step > 0 else 0] = MISSING
    send_rows = np.flatnonzero(plan.table.opcode == sends)
    receive_rows = np.flatnonzero(plan.table.opcode == receives)
    return Direction(
        name=name,
        step=step,
        producer=producer,
        consumer=_one_chunk_on(ops, step),
        send=_rows_by_message(plan, send_rows, 0),
        receive=_rows_by_message(plan, receive_rows, step),
        send_rows=send_rows,
        receive_rows=receive_rows,
    )


def _one_chunk_on(ops: Grid, step: int) -> Grid:
    """At each sending chunk, what stands at the receiving one."""
    shifted = np.full_like(ops, MISSING)
    if step > 0:
        shifted[:, :-1] = ops[:, 1:]
    else:
        shifted[:, 1:] = ops[:, :-1]
    return shifted


def _rows_by_message(plan: CheckedPlan, rows: Column, step: int) -> Grid:
    grid = np.full((plan.units, plan.job.chunks), MISSING, dtype=np.int64)
    backwards = rows[::-1]
    grid[plan.unit()[backwards], plan.table.chunk[backwards] - step] = backwards
    return grid


def check_messages(plan: CheckedPlan, both: tuple[Direction, Direction]) -> Iterator[Violation]:
    """Yield what is not sent and received exactly once, between the right workers, in time and in order."""
    for link in both:
        yield from _repeated(plan, link.send_rows, link.send, 0)
        yield from _repeated(plan, link.receive_rows, link.receive, link.step)
        yield from _matches(plan, link)
        yield from _places(plan, link)
    yield from _order(plan, both)


def _repeated(plan: CheckedPlan, rows: Column, first: Grid, step: int) -> Iterator[Violation]:
    again = first[plan.unit()[rows], plan.table.chunk[rows] - step] != rows
    for row in rows[again].tolist():
        yield plan.at(VerifierRule.MESSAGE_MATCH, row, f"{plan.table.name(row)} is a repetition")


def _matches(plan: CheckedPlan, link: Direction) -> Iterator[Violation]:
    """Each end of each message is on the worker that runs the op there, and names the other one."""
    ends = (
        ("send", link.send, link.producer, link.consumer),
        ("receive", link.receive, link.consumer, link.producer),
    )
    worker, number, neighbour = plan.table.worker, plan.table.number, plan.table.neighbour
    for name, end, here, there in ends:
        for unit, chunk in cells((here >= 0) & (there >= 0) & (end < 0)):
            op = plan.table.name(int(here[unit, chunk]))
            message = f"{op} has no {name} of the {link.name} that goes with it"
            yield plan.at(VerifierRule.MESSAGE_MATCH, int(here[unit, chunk]), message)
        for unit, chunk in cells((here >= 0) & (end >= 0) & (worker[here] != worker[end])):
            row = int(end[unit, chunk])
            message = f"{plan.table.name(row)} stands on a worker that does not run the op it goes with"
            yield plan.at(VerifierRule.MESSAGE_MATCH, row, message)
        for unit, chunk in cells((there >= 0) & (end >= 0) & (neighbour[end] != number[there])):
            row = int(end[unit, chunk])
            named, right = (
                plan.worker_text(int(each)) for each in (neighbour[row], number[there[unit, chunk]])
            )
            message = f"{plan.table.name(row)} names worker {named}, the other end is on worker {right}"
            yield plan.at(VerifierRule.MESSAGE_MATCH, row, message)


def _places(plan: CheckedPlan, link: Direction) -> Iterator[Violation]:
    """A send stands between its op and the next one; a receive stands before the op that consumes it."""
    table = plan.table
    rows = np.arange(len(table))
    latest_op = np.maximum.accumulate(np.where(table.is_any(*COMPUTE), rows, MISSING))
    # Row -1 stands in for MISSING; the masks take it out again.
    same = (link.producer >= 0) & (link.send >= 0)
    same &= table.worker[link.producer] == table.worker[link.send]
    for unit, chunk in cells(same & (latest_op[link.send] != link.producer)):
        row, op = int(link.send[unit, chunk]), int(link.producer[unit, chunk])
        message = f"{table.name(row)} does not stand between {table.name(op)} and the op after that"
        yield plan.at(VerifierRule.MESSAGE_PLACE, row, message)
    same = (link.consumer >= 0) & (link.receive >= 0)
    same &= table.worker[link.consumer] == table.worker[link.receive]
    for unit, chunk in cells(same & (link.receive > link.consumer)):
        row, op = int(link.receive[unit, chunk]), int(link.consumer[unit, chunk])
        message = f"{table.name(row)} stands behind {table.name(op)}, which waits for it"
        yield plan.at(VerifierRule.MESSAGE_PLACE, row, message)


def _order(plan: CheckedPlan, both: tuple[Direction, Direction]) -> Iterator[Violation]:
    """On each ordered pair, receives stand in the order of the sends. One violation per pair."""
    table = plan.table
    send = np.concatenate([link.send.reshape(-1) for link in both])
    receive = np.concatenate([link.receive.reshape(-1) for link in both])
    met = (send >= 0) & (receive >= 0)
    met &= (table.neighbour[send] == table.number[receive]) & (table.number[send] == table.neighbour[receive])
    send, receive = send[met], receive[met]
    pair = table.number[send] * plan.job.workers + table.neighbour[send]
    by_send = np.lexsort((send, pair))
    by_receive = np.lexsort((receive, pair))
    # Both orders list the pairs alike, so they agree everywhere or the pair is out of order.
    wrong = np.flatnonzero(by_send != by_receive)
    _, first = np.unique(pair[by_send[wrong]], return_index=True)
    for place in wrong[first].tolist():
        expected, found = int(send[by_send[place]]), int(receive[by_receive[place]])
        sender, position = table.place(expected)
        message = f"{table.name(found)} meets {table.name(expected)} at {position} of worker {sender}"
        yield plan.at(VerifierRule.MESSAGE_ORDER, found, message)


def channels(plan: CheckedPlan, both: tuple[Direction, Direction]) -> tuple[Column, Column]:
    """For each row that sends or receives: the ordered pair it is on, as a number, and its rank there."""
    table = plan.table
    channel = np.full(len(table), MISSING, dtype=np.int64)
    rank = np.full(len(table), MISSING, dtype=np.int64)
    sends = np.sort(np.concatenate([link.send_rows for link in both]))
    receives = np.sort(np.concatenate([link.receive_rows for link in both]))
    for rows, sender, receiver in (
        (sends, table.number, table.neighbour),
        (receives, table.neighbour, table.number),
    ):
        channel[rows] = sender[rows] * plan.job.workers + receiver[rows]
        rank[rows] = rank_within(channel[rows])
    return channel, rank


def rank_within(keys: Column) -> Column:
    """Number of equal keys before each."""
    order = np.argsort(keys, kind="stable")
    places = np.arange(len(keys))
    fresh = np.ones(len(keys), dtype=np.bool_)
    fresh[1:] = keys[order][1:] != keys[order][:-1]
    rank = np.empty_like(places)
    rank[order] = places - np.maximum.accumulate(np.where(fresh, places, 0))
    return rank
