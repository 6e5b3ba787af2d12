"""Freedom from deadlock, whatever the buffering; and who waits for whom when there is none.

The streams run on a machine without any buffering. A receive is posted and goes on. A send holds its worker
until the receive that it meets has been posted. An op holds its worker until its message has been sent, a
gathering until the whole group is there. What finishes here finishes with any amount of buffering.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from recycle_compiler.verifier.messages import Direction, channels, rank_within
from recycle_compiler.verifier.plan import MISSING, CheckedPlan, Column
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_compiler.verifier.rounds import meetings
from recycle_runtime.plan.isa import Opcode


class Action(IntEnum):
    """Step of the machine."""

    POST = 0
    SEND = 1
    TAKE = 2
    GATHER = 3


@dataclass(frozen=True, slots=True, eq=False)
class WaitingSteps:
    """The instructions that can wait or wake others, worker after worker."""

    row: list[int]
    """Of the table."""
    action: list[int]
    channel: list[int]
    """The ordered pair of workers that a message travels on, or the group that gathers."""
    rank: list[int]
    """Number of the message in its channel, or of the gathering in its group; from 0."""
    other: list[int]
    """The worker at the other end of a message, or MISSING."""
    bounds: list[int]
    """Steps bounds[i] to bounds[i + 1] belong to worker i."""
    group_size: list[int]


@dataclass(slots=True)
class WorkerProgress:
    """Position of each worker, and what sleepers wait for."""

    steps: WaitingSteps
    cursor: list[int] = field(default_factory=list[int])
    """The step that each worker is at."""
    gathered: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """Group and rank to the workers that have arrived."""
    _ready: list[int] = field(default_factory=list[int])
    _posted: dict[int, int] = field(default_factory=dict[int, int])
    _sent: dict[int, int] = field(default_factory=dict[int, int])
    _senders: dict[int, int] = field(default_factory=dict[int, int])
    _takers: dict[int, int] = field(default_factory=dict[int, int])

    def run(self) -> list[int]:
        """Go as far as possible; the workers that did not reach their end."""
        action, channel, rank, bounds = (
            self.steps.action,
            self.steps.channel,
            self.steps.rank,
            self.steps.bounds,
        )
        handlers = (self._post, self._send, self._take, self._gather)
        self.cursor = bounds[:-1]
        self._ready = list(range(len(self.cursor)))
        while self._ready:
            worker = self._ready.pop()
            step, stop = self.cursor[worker], bounds[worker + 1]
            while step < stop and handlers[action[step]](worker, channel[step], rank[step]):
                step += 1
            self.cursor[worker] = step
        return [worker for worker, step in enumerate(self.cursor) if step < bounds[worker + 1]]

    def _post(self, worker: int, channel: int, rank: int) -> bool:
        self._posted[channel] = rank
        if channel in self._senders:
            self._ready.append(self._senders.pop(channel))
        return True

    def _send(self, worker: int, channel: int, rank: int) -> bool:
        if self._posted.get(channel, MISSING) < rank:
            self._senders[channel] = worker
            return False
        self._sent[channel] = rank
        if channel in self._takers:
            self._ready.append(self._takers.pop(channel))
        return True

    def _take(self, worker: int, channel: int, rank: int) -> bool:
        if self._sent.get(channel, MISSING) < rank:
            self._takers[channel] = worker
            return False
        return True

    def _gather(self, worker: int, group: int, rank: int) -> bool:
        present = self.gathered.setdefault((group, rank), [])
        present.append(worker)
        if len(present) < self.steps.group_size[group]:
            return False
        # The last one to arrive takes the others along.
        for other in present[:-1]:
            self.cursor[other] += 1
            self._ready.append(other)
        return True


_NAMED_IN_A_CHAIN = 6
_EVERYBODY = 0
"""The group that meets at a barrier; those who hold chunk c are group c + 1, those who hold a tied one come
next. Then follow, for each chunk, its rounds of forwards and of backwards."""


def check_deadlock(plan: CheckedPlan, both: tuple[Direction, Direction]) -> Iterator[Violation]:
    """Yield each cycle of workers that wait for each other, and each wait for what never comes."""
    machine = WorkerProgress(_steps(plan, both))
    stuck = machine.run()
    if stuck:
        yield from _explain(plan, machine, _waits(plan, machine, stuck))


def _steps(plan: CheckedPlan, both: tuple[Direction, Direction]) -> WaitingSteps:
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
    barrier, reduce, gather = (
        table.opcode == each for each in (Opcode.BARRIER, Opcode.REDUCE, Opcode.GATHER)
    )
    action[barrier | reduce | gather] = Action.GATHER
    channel[barrier] = _EVERYBODY
    channel[reduce] = _group_of_chunk(plan)[table.chunk[reduce]]
    channel[gather] = table.chunk[gather] + 1
    rows = np.flatnonzero(barrier | reduce | gather)
    rank[rows] = rank_within(table.worker[rows] * (plan.job.chunks + 2) + channel[rows])
    alone = np.flatnonzero(action >= 0)
    # Who comes to a round has taken its message before.
    together = meetings(plan)
    meets = np.flatnonzero(together.number >= 0)
    rows = np.concatenate([alone, meets])
    order = np.argsort(rows, kind="stable")
    in_round = np.arange(len(rows))[order] >= len(alone)
    rows = rows[order]
    first_round = plan.job.chunks + 2
    here = np.bincount([worker.stage for worker in table.workers], minlength=plan.job.stages)
    holders = np.array([here[list(stages)].sum() for stages in plan.job.holders], dtype=np.int64)
    return WaitingSteps(
        row=rows.tolist(),
        action=np.where(in_round, Action.GATHER, action[rows]).tolist(),
        channel=np.where(in_round, first_round + together.line[rows], channel[rows]).tolist(),
        rank=np.where(in_round, together.rank[rows], rank[rows]).tolist(),
        other=np.where(in_round, MISSING, other[rows]).tolist(),
        bounds=np.searchsorted(rows, table.offsets).tolist(),
        group_size=[
            len(table.workers),
            *holders.tolist(),
            sum(holders.tolist()[chunk] for chunk in plan.job.tied_chunks),
            *np.repeat(holders, 2).tolist(),
        ],
    )


def _group_of_chunk(plan: CheckedPlan) -> Column:
    """Group of workers that meet when a chunk is reduced, by chunk."""
    job = plan.job
    groups = [job.chunks + 1 if chunk in job.tied_chunks else chunk + 1 for chunk in range(job.chunks)]
    return np.array(groups, dtype=np.int64)


def _waits(plan: CheckedPlan, machine: WorkerProgress, stuck: list[int]) -> dict[int, int]:
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
            absent[gathering] = _first_absent(plan, gathering[0], machine.gathered[gathering])
        waits[worker] = absent[gathering]
    return waits


def _first_absent(plan: CheckedPlan, group: int, present: list[int]) -> int:
    arrived = set(present)
    all_workers = range(len(plan.table.workers))
    first_round = plan.job.chunks + 2
    chunks = plan.job.tied_chunks if group == plan.job.chunks + 1 else (group - 1,)
    chunks = ((group - first_round) // 2,) if group >= first_round else chunks
    stages = {stage for chunk in chunks for stage in plan.job.holders[chunk]}
    members = (
        worker for worker in all_workers if group == _EVERYBODY or plan.table.workers[worker].stage in stages
    )
    return next((member for member in members if member not in arrived), MISSING)


def _explain(plan: CheckedPlan, machine: WorkerProgress, waits: dict[int, int]) -> Iterator[Violation]:
    """Follow who waits for whom from every stuck worker; each ends in a cycle or at one that never comes."""
    seen_from: dict[int, int] = {}
    for origin in waits:
        chain: list[int] = []
        worker = origin
        while worker in waits and worker not in seen_from:
            seen_from[worker] = origin
            chain.append(worker)
            worker = waits[worker]
        if worker not in waits:
            yield _violation(plan, machine, chain[-1:], waits, "for what never comes")
        elif seen_from[worker] == origin and chain:
            yield _violation(plan, machine, chain[chain.index(worker) :], waits, "in a cycle")


def _violation(
    plan: CheckedPlan, machine: WorkerProgress, chain: list[int], waits: dict[int, int], how: str
) -> Violation:
    row = machine.steps.row[machine.cursor[chain[0]]]
    links = [_link(plan, machine, worker, waits[worker]) for worker in chain[:_NAMED_IN_A_CHAIN]]
    if len(chain) > _NAMED_IN_A_CHAIN:
        links.append(f"and {len(chain) - _NAMED_IN_A_CHAIN} more")
    return plan.at(VerifierRule.DEADLOCK, row, f"without buffering, workers wait {how}: {'; '.join(links)}")


def _link(plan: CheckedPlan, machine: WorkerProgress, worker: int, other: int) -> str:
    row = machine.steps.row[machine.cursor[worker]]
    workers = plan.table.workers
    waiting = f"{workers[worker]} in {plan.table.name(row)} at {plan.table.position[row]}"
    if other == MISSING:
        return f"{waiting} for a worker that has no stream"
    ended = machine.cursor[other] >= machine.steps.bounds[other + 1]
    return f"{waiting} for {workers[other]}{', which has ended' if ended else ''}"
