"""Split backward ops so that the weight gradient can run later.

    before    F -> B          after    F -> I
              B -> next B              I -> next I
              B -> S                   I -> W -> S

Only the input gradient is on the path to the previous chunk, so W floats: it may fill any idle time up to
the reduction. A chunk is split where that can pay: the previous chunk waits for I, or memory holds a second
micro-batch while a W is put off. Elsewhere (the first chunk with room for one) B stays whole.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.hops import unit_stages
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind, OpTable, concatenate
from recycle_compiler.passes.pipeline import Pass


@dataclass(frozen=True, slots=True)
class SplitBackward(Pass[Graph, Graph]):
    """Replace `B` by an `I` on its edges and a `W` that follows it, on the chunks where that can pay."""

    name = "split-backward"
    chunks: tuple[int, ...] | None = None
    """These and no others, whatever the job says; None is where it can pay, if the job decouples at all."""

    def run(self, graph: Graph) -> Graph:
        job, ops = graph.job, graph.ops
        if self.chunks is None and not job.techniques.decouple:
            return graph
        given = self.chunks
        chosen = _where_it_pays(job, ops) if given is None else np.isin(ops.chunk, given)
        split = (ops.kind == OpKind.B) & chosen
        rows = np.flatnonzero(split)
        weight_row = np.full(len(ops), -1)
        weight_row[rows] = len(ops) + np.arange(len(rows))
        # I gives back what the weight gradient does not need.
        kept = np.array(job.kept_for_weight, dtype=np.int64)[ops.chunk]
        table = concatenate([_inputs(job, ops, split), _weights(job, ops, rows)])
        # What waited for all of B, to synchronize, waits for W; what continues the chain waits for I.
        to_sync = split[graph.before] & (ops.kind[graph.after] == OpKind.S)
        before = np.where(to_sync, weight_row[graph.before], graph.before)
        return Graph(
            job,
            graph.failed,
            table,
            np.concatenate([before, rows]),
            np.concatenate([graph.after, weight_row[rows]]),
            np.concatenate([graph.lag, np.zeros(len(rows), np.int64)]),
            np.concatenate([graph.takes, np.zeros(len(rows), np.int64)]),
            np.concatenate([np.where(split, graph.frees - kept, graph.frees), kept[rows]]),
        )


def _where_it_pays(job: JobSpec, ops: OpTable) -> NDArray[np.bool_]:
    """For every op on a micro-batch; of groups, neighbouring chunks of a stage are one."""
    if not job.groups:
        pays = (_pays(job, stage, (chunk,)) for chunk, stage in enumerate(job.chunk_stages))
        return np.array(list(pays))[ops.chunk]
    of_stage = np.array([_pays(job, stage, chunks) for stage, chunks in enumerate(job.held)])
    # Ops that have no micro-batch find anything: they are not split.
    unit = np.maximum(ops.pipeline * job.microbatches + ops.microbatch, 0)
    return of_stage[unit_stages(job)[unit, ops.chunk]]


def _pays(job: JobSpec, stage: int, chunks: tuple[int, ...]) -> bool:
    capacity = job.capacity[stage]
    needed = sum(job.activation[chunk] + job.kept_for_weight[chunk] for chunk in chunks)
    return chunks[0] > 0 or capacity is None or capacity >= needed


def _inputs(job: JobSpec, ops: OpTable, split: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> OpTable:
    """The same rows with I in place of B."""
    duration = np.array(job.backward_input)[ops.chunk]
    return OpTable(
        np.where(split, int(OpKind.I), ops.kind),
        ops.pipeline,
        ops.microbatch,
        ops.chunk,
        ops.worker,
        np.where(split, duration, ops.duration),
    )


def _weights(job: JobSpec, ops: OpTable, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> OpTable:
    part = ops.take(rows)
    return OpTable(
        np.full(len(rows), int(OpKind.W)),
        part.pipeline,
        part.microbatch,
        part.chunk,
        part.worker,
        np.array(job.backward_weight)[part.chunk],
    )
