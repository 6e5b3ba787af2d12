"""Let each chunk reduce and step on its own, in place of one barrier for all.

    before    every W (or B) -> S.all -> R of every worker
    after     W of chunk c   -> S.c   -> R of the workers that hold c

A stage may then begin its next iteration while others still finish this one. Chunks that share parameters
keep one S: none of them can step before the gradients of all are there.

    tied      W of chunks c and d -> S.c -> R of the workers that hold c or d
"""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import leading_chunks
from recycle_compiler.ir.ops import UNSET, Op, OpKind, concatenate, op_table
from recycle_compiler.passes.pipeline import Pass


@dataclass(frozen=True, slots=True)
class StaggerOptimizer(Pass[Graph, Graph]):
    """Replace the one `S` by one per chunk, or per group of tied ones."""

    name = "stagger-optimizer"

    def run(self, graph: Graph) -> Graph:
        job, ops = graph.job, graph.ops
        if not job.techniques.stagger:
            return graph
        (barrier,) = np.flatnonzero((ops.kind == OpKind.S) & (ops.chunk == UNSET))
        # Rows above the barrier move up by one as it goes; the new S ops come last.
        moved = np.arange(len(ops)) - (np.arange(len(ops)) > barrier)
        first = len(ops) - 1
        leads = leading_chunks(job)
        syncs = sorted(set(leads))
        per_chunk = op_table([Op(OpKind.S, UNSET, UNSET, chunk, UNSET, 0) for chunk in syncs])
        sync_of = first + np.array([syncs.index(lead) for lead in leads])
        into = graph.after == barrier
        out_of = graph.before == barrier
        return Graph(
            job,
            graph.failed,
            concatenate([ops.take(np.arange(len(ops)) != barrier), per_chunk]),
            np.where(out_of, sync_of[ops.chunk[graph.after]], moved[graph.before]),
            np.where(into, sync_of[ops.chunk[graph.before]], moved[graph.after]),
            graph.lag,
            *(
                np.append(np.delete(memory, barrier), np.zeros(len(syncs), np.int64))
                for memory in (graph.takes, graph.frees)
            ),
        )
