"""Dependencies between workers, found before anything runs: messages have no tags, their order says it all.

On every ordered pair of workers the n-th receive gets what the n-th send sends, whatever the fields of both
say. An op takes what the last receive into its inbox has got, and a gathering is the n-th of its group.
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.kernel import COMPUTE, FREE, GATHER, NEVER, SEND
from recycle_compiler.simulator.streams import SERVICE, WORK, EngineStreams, Mask
from recycle_runtime.plan.isa import CONSUMES, NONE, RECEIVES, Opcode

SENDS = (Opcode.SEND_ACTIVATION, Opcode.SEND_GRADIENT)
_GATHERS = (Opcode.BARRIER, Opcode.REDUCE, Opcode.GATHER)
_FORWARDS = (Opcode.FORWARD, Opcode.SERVE_FORWARD)
_BACKWARDS = (
    Opcode.BACKWARD,
    Opcode.BACKWARD_INPUT,
    Opcode.SERVE_BACKWARD,
    Opcode.SERVE_BACKWARD_INPUT,
)
_IN_ROUNDS = (*_FORWARDS, *_BACKWARDS)
_NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """Columns over the steps: those instructions that take time, wait or wake others."""

    row: Column
    """Of the streams."""
    kind: Column
    source: Column
    """The step that sends what this one consumes; FREE if it needs nothing, NEVER if no worker sends it."""
    border: Column
    """Between which chunks that message travels: the earlier one's number; FREE where there is none."""
    gathering: Column
    bounds: Column
    """Steps bounds[i] to bounds[i + 1] are those of worker i."""
    members: Column
    """Begin and end in the roster of the workers of each gathering, in turn."""
    roster: Column
    """All workers, and after them those that hold tied chunks, or those of each chunk, where they differ."""
    send_of_receive: Column
    """For every row of the streams that receives the row that sends; NEVER where none does."""
    unreceived: Column
    """Rows of sends that no receive goes with."""

    def __len__(self) -> int:
        return len(self.row)


def wire(streams: EngineStreams, job: JobSpec) -> Wiring:
    """Connect the streams."""
    opcode = streams.opcode
    # Where peers share experts, rounds are gatherings too, of those that hold the chunk.
    in_rounds = _IN_ROUNDS if job.slots else ()
    sends, gathers = streams.is_any(SENDS), streams.is_any((*_GATHERS, *in_rounds))
    takes_part = sends | gathers | streams.is_any((*WORK, *SERVICE, Opcode.OPTIMIZER))
    row = np.flatnonzero(takes_part)
    step_of_row = np.cumsum(takes_part) - 1
    send_of_receive, unreceived = _messages(streams, job)
    source_row = _sources(streams, job, send_of_receive)
    source = np.where(source_row >= 0, step_of_row[source_row], source_row)
    earlier = np.where(opcode == Opcode.FORWARD, streams.chunk - 1, streams.chunk)
    travels = source_row >= 0
    if job.groups:
        # Neighbouring chunks of one worker are one stage of its group: nothing is sent between them.
        travels &= streams.worker[source_row] != streams.worker
    gathering, members = _gatherings(streams, job, gathers)
    return Wiring(
        row,
        np.select([sends[row], gathers[row]], [SEND, GATHER], COMPUTE),
        source[row],
        np.where(travels, earlier, FREE)[row],
        gathering[row],
        np.searchsorted(row, streams.offsets),
        members,
        _roster(streams, job),
        send_of_receive,
        unreceived,
    )


def _messages(streams: EngineStreams, job: JobSpec) -> tuple[Column, Column]:
    """For every row that receives the row that sends, else NEVER; and the sends that are left over."""
    # No row is the last of them: what -1 finds.
    worker_at = np.full(job.workers + 1, _NOBODY, dtype=np.int64)
    for index, worker in enumerate(streams.workers):
        worker_at[worker.stage * job.pipelines + worker.pipeline] = index
    here = streams.worker
    there = worker_at[np.where(streams.neighbour < job.workers, streams.neighbour, NONE)]
    send, receive = np.flatnonzero(streams.is_any(SENDS)), np.flatnonzero(streams.is_any(RECEIVES))
    count = len(streams.workers)
    sent = _numbered(here[send] * (count + 1) + there[send] + 1, len(streams))
    received = _numbered((there[receive]) * (count + 1) + here[receive] + 1, len(streams))
    order = np.argsort(sent)
    place = np.minimum(np.searchsorted(sent[order], received), max(len(send) - 1, 0))
    found = np.full(len(streams), NEVER, dtype=np.int64)
    if len(send):
        meets = (sent[order[place]] == received) & (there[receive] != _NOBODY)
        found[receive[meets]] = send[order[place[meets]]]
    return found, np.setdiff1d(send, found[receive])


def _numbered(key: Column, rows: int) -> Column:
    """Keys made different: each with its rank among those that are equal."""
    order = np.argsort(key, kind="stable")
    places = np.arange(len(key))
    fresh = np.ones(len(key), dtype=np.bool_)
    fresh[1:] = key[order][1:] != key[order][:-1]
    rank = np.empty_like(places)
    rank[order] = places - np.maximum.accumulate(np.where(fresh, places, 0))
    return key * (rows + 1) + rank


def _sources(streams: EngineStreams, job: JobSpec, send_of_receive: Column) -> Column:
    """For every row the send whose message it consumes; FREE where it needs none, NEVER where none comes."""
    consumes = streams.is_any(CONSUMES)
    alone = streams.chunk == np.where(streams.opcode == Opcode.FORWARD, 0, job.chunks - 1)
    source = np.full(len(streams), FREE, dtype=np.int64)
    source[consumes & ~(alone & (streams.inbox == NONE))] = NEVER
    uses = np.flatnonzero((consumes | streams.is_any(RECEIVES)) & (streams.inbox != NONE))
    # Side by side what happens to one inbox, in the order in which it happens.
    uses = uses[np.lexsort((uses, streams.inbox[uses], streams.worker[uses]))]
    before, after = uses[:-1], uses[1:]
    same = (streams.worker[before] == streams.worker[after]) & (streams.inbox[before] == streams.inbox[after])
    filled = same & streams.is_any(RECEIVES)[before] & consumes[after]
    source[after[filled]] = send_of_receive[before[filled]]
    return source


def _gatherings(streams: EngineStreams, job: JobSpec, gathers: Mask) -> tuple[Column, Column]:
    """The number of each gathering, and who takes part: all at a barrier, else those that hold the chunk."""
    rows = np.flatnonzero(gathers)
    worker, stages = streams.worker[rows], streams.stages
    # Group 0 is all workers, group c + 1 those that hold chunk c, the last those that hold a tied one.
    is_tied, last_group = np.isin(streams.chunk[rows], job.tied_chunks), job.chunks + 1
    is_tied &= streams.opcode[rows] == Opcode.REDUCE
    group = np.where(is_tied, last_group, streams.chunk[rows] + 1)
    group = np.where(streams.opcode[rows] == Opcode.BARRIER, 0, group)
    # The n-th round of forwards is not the n-th of backwards, nor a reduction.
    kind = np.select([streams.is_any(which)[rows] for which in (_FORWARDS, _BACKWARDS)], [1, 2], 0)
    kind = kind * (job.chunks + 2) + group
    nth = _numbered(worker * 3 * (job.chunks + 2) + kind, len(streams)) % (len(streams) + 1)
    key = kind * (len(streams) + 1) + nth
    keys, number = np.unique(key, return_inverse=True)
    gathering = np.full(len(streams), _NOBODY, dtype=np.int64)
    gathering[rows] = number
    groups = keys // (len(streams) + 1) % (job.chunks + 2)
    if job.groups:
        return gathering, _members_of_groups(streams, job, groups)
    holder = np.array([_NOBODY, *job.chunk_stages, _NOBODY], dtype=np.int64)[groups]
    first = np.where(holder == _NOBODY, 0, np.searchsorted(stages, holder))
    after = np.where(holder == _NOBODY, len(stages), np.searchsorted(stages, holder, side="right"))
    first = np.where(groups == last_group, len(stages), first)
    after = np.where(groups == last_group, len(_roster(streams, job)), after)
    return gathering, np.stack((first, after), axis=1).reshape(-1)


def _members_of_groups(streams: EngineStreams, job: JobSpec, groups: Column) -> Column:
    """Begin and end in the roster of each group: all workers, then the holders of each chunk."""
    everybody = len(streams.stages)
    holders = [int(np.isin(streams.stages, stages).sum()) for stages in job.holders]
    bounds = np.cumsum([0, everybody, *holders])
    return np.stack((bounds[groups], bounds[groups + 1]), axis=1).reshape(-1)


def _roster(streams: EngineStreams, job: JobSpec) -> Column:
    if job.groups:
        holders = [np.flatnonzero(np.isin(streams.stages, stages)) for stages in job.holders]
        return np.concatenate((np.arange(len(streams.stages)), *holders)).astype(np.int64)
    tied = np.flatnonzero(np.isin(streams.stages, [job.chunk_stages[chunk] for chunk in job.tied_chunks]))
    return np.concatenate((np.arange(len(streams.stages)), tied)).astype(np.int64)
