"""Freedom from deadlock, whatever the buffering; and who waits for whom when there is none."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.verifier.machine import Action, Machine, Steps
from recycle_compiler.verifier.messages import Link, channels, rank_within
from recycle_compiler.verifier.plan import MISSING, Plan
from recycle_compiler.verifier.report import Rule, Violation
from recycle_runtime.plan.isa import Opcode

_NAMED_IN_A_CHAIN = 6
_EVERYBODY = 0
"""The group that meets at a barrier; the peers of stage s are group s + 1."""


def check_deadlock(plan: Plan, both: tuple[Link, Link]) -> Iterator[Violation]:
    """Yield each cycle of workers that wait for each other, and each wait for what never comes."""
    machine = Machine(_steps(plan, both))
    stuck = machine.run()
    if stuck:
        yield from _explain(plan, machine, _waits(plan, machine, stuck))


def _steps(plan: Plan, both: tuple[Link, Link]) -> Steps:
    table = plan.table
    action = np.full(len(table), MISSING, dtype=np.int64)
    other = np.full(len(table), MISSING, dtype=np.int64)
    channel, rank = channels(plan, both)
    worker_at = np.full(plan.job.workers, MISSING, dtype=np.int64)
    worker_at[table.number] = table.worker
    for link in both:
        action[link.receive_rows] = Action.POST
        action[link.send_rows] = Action.SEND
        other[link.send_rows] = worker_at[table.neighbour[link.send_rows]]
        fed = (link.receive >= 0) & (link.consumer >= 0)
        fed &= table.worker[link.receive] == table.worker[link.consumer]
        takes, receives = link.consumer[fed], link.receive[fed]
        action[takes] = Action.TAKE
        channel[takes], rank[takes] = channel[receives], rank[receives]
        other[takes] = worker_at[table.neighbour[receives]]
    for opcode in (Opcode.BARRIER, Opcode.REDUCE):
        rows = np.flatnonzero(table.opcode == opcode)
        action[rows] = Action.GATHER
        channel[rows] = _EVERYBODY if opcode is Opcode.BARRIER else table.stage[rows] + 1
        rank[rows] = rank_within(table.worker[rows])
    rows = np.flatnonzero(action >= 0)
    peers = np.bincount([worker.stage for worker in table.workers], minlength=plan.job.stages)
    return Steps(
        row=rows.tolist(),
        action=action[rows].tolist(),
        channel=channel[rows].tolist(),
        rank=rank[rows].tolist(),
        other=other[rows].tolist(),
        bounds=np.searchsorted(rows, table.offsets).tolist(),
        group_size=[len(table.workers), *peers.tolist()],
    )


def _waits(plan: Plan, machine: Machine, stuck: list[int]) -> dict[int, int]:
    """Each stuck worker and one that it waits for; MISSING when there is no such worker."""
    steps = machine.steps
    absent: dict[tuple[int, int], int] = {}
    waits: dict[int, int] = {}
    for worker in stuck:
        step = machine.cursor[worker]
        if steps.action[step] != Action.GATHER:
            waits[worker] = steps.other[step]
            continue
        gathering = steps.channel[step], steps.rank[step]
        if gathering not in absent:
            absent[gathering] = _first_absent(plan.table.workers, gathering[0], machine.gathered[gathering])
        waits[worker] = absent[gathering]
    return waits


def _first_absent(workers: tuple[Worker, ...], group: int, present: list[int]) -> int:
    arrived = set(present)
    members = (i for i, worker in enumerate(workers) if group in (_EVERYBODY, worker.stage + 1))
    return next((member for member in members if member not in arrived), MISSING)


def _explain(plan: Plan, machine: Machine, waits: dict[int, int]) -> Iterator[Violation]:
    """Follow who waits for whom from every stuck worker; each chain ends in a cycle or at nobody."""
    seen_from: dict[int, int] = {}
    for origin in waits:
        chain: list[int] = []
        worker = origin
        while worker in waits and worker not in seen_from:
            seen_from[worker] = origin
            chain.append(worker)
            worker = waits[worker]
        if worker not in waits:
            yield _violation(plan, machine, chain[-1:], waits, "for ever")
        elif seen_from[worker] == origin and chain:
            yield _violation(plan, machine, chain[chain.index(worker) :], waits, "in a cycle")


def _violation(plan: Plan, machine: Machine, chain: list[int], waits: dict[int, int], how: str) -> Violation:
    row = machine.steps.row[machine.cursor[chain[0]]]
    links = [_link(plan, machine, worker, waits[worker]) for worker in chain[:_NAMED_IN_A_CHAIN]]
    if len(chain) > _NAMED_IN_A_CHAIN:
        links.append(f"and {len(chain) - _NAMED_IN_A_CHAIN} more")
    return plan.at(Rule.DEADLOCK, row, f"without buffering, workers wait {how}: {'; '.join(links)}")


def _link(plan: Plan, machine: Machine, worker: int, other: int) -> str:
    row = machine.steps.row[machine.cursor[worker]]
    workers = plan.table.workers
    waiting = f"{workers[worker]} in {plan.table.name(row)} at {plan.table.position[row]}"
    if other == MISSING:
        return f"{waiting} for a worker that has no stream"
    ended = machine.cursor[other] >= machine.steps.bounds[other + 1]
    return f"{waiting} for {workers[other]}{', which has ended' if ended else ''}"
