"""Many failure patterns become one: peers of a stage are interchangeable, so only counts per stage matter.

    failed 0:1 2:1 1:3    -->    failed 2:1 1:1 2:3        (three pipelines)

Names move, workers do not: each stage's losses are given to its last pipelines. `relabel` goes the other way,
from the plan for the normal form to the workers that are really gone.
"""

from dataclasses import dataclass, replace

import numpy as np

from recycle_compiler.ir.failure import FailureSet, Worker, failed_per_stage, normal_form
from recycle_compiler.ir.ops import Column
from recycle_compiler.ir.program import Program
from recycle_compiler.ir.target import Target
from recycle_runtime.isa import Opcode


@dataclass(frozen=True, slots=True)
class NormalizeFailures:
    """Give the losses of every stage to its last pipelines."""

    name: str = "normalize-failures"

    def run(self, target: Target) -> Target:
        counts = failed_per_stage(target.failed, target.job.stages)
        return Target(target.job, normal_form(counts, target.job.pipelines))


def relabel(program: Program, failed: FailureSet) -> Program:
    """The same plan with workers renamed inside their stages, so that exactly `failed` are missing."""
    job = program.job
    if failed_per_stage(failed, job.stages) != failed_per_stage(program.failed, job.stages):
        raise ValueError("the plan is for other counts of failures per stage")
    if failed == program.failed:
        return program
    pipeline_names = _matching(program.failed, failed, job.pipelines)
    worker_names = _worker_names(program.failed, failed, job.stages, pipeline_names)
    stage = np.repeat([worker.stage for worker in program.workers], np.diff(program.offsets))
    forward_peer = (program.opcode == Opcode.SEND_ACTIVATION) | (program.opcode == Opcode.RECV_GRADIENT)
    other_stage = np.clip(stage + np.where(forward_peer, 1, -1), 0, job.stages - 1)
    peer = np.where(program.peer >= 0, worker_names[other_stage, program.peer], program.peer)
    pipeline = np.where(program.pipeline >= 0, pipeline_names[program.pipeline], program.pipeline)
    renamed = [Worker(int(worker_names[w.stage, w.pipeline]), w.stage) for w in program.workers]
    order = sorted(range(len(renamed)), key=lambda index: (renamed[index].stage, renamed[index].pipeline))
    limits: list[int] = program.offsets.tolist()
    rows = np.concatenate([np.arange(limits[index], limits[index + 1]) for index in order])
    lengths = np.diff(program.offsets)[order]
    return replace(
        program,
        failed=failed,
        workers=tuple(renamed[index] for index in order),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        opcode=program.opcode[rows],
        pipeline=pipeline[rows],
        microbatch=program.microbatch[rows],
        buffer=program.buffer[rows],
        inbox=program.inbox[rows],
        peer=peer[rows],
    )


def _matching(planned: FailureSet, actual: FailureSet, pipelines: int) -> Column:
    """Rename whole pipelines so that most failed workers fall into place and most work stays at home.

    Pipelines with most losses choose first, each the one that agrees with it on most stages.
    """
    losses: list[set[int]] = [{w.stage for w in planned if w.pipeline == p} for p in range(pipelines)]
    wanted: list[set[int]] = [{w.stage for w in actual if w.pipeline == p} for p in range(pipelines)]
    free = list(range(pipelines))
    names = np.empty(pipelines, dtype=np.int64)
    for pipeline in sorted(range(pipelines), key=lambda p: (-len(losses[p]), p)):
        best = min(free, key=lambda p: (len(losses[pipeline] ^ wanted[p]), abs(p - pipeline), p))
        names[pipeline] = best
        free.remove(best)
    return names


def _worker_names(planned: FailureSet, actual: FailureSet, stages: int, pipeline_names: Column) -> Column:
    """names[stage, pipeline]: follow the pipeline's new name where that keeps dead and live apart."""
    pipelines = len(pipeline_names)
    names = np.tile(pipeline_names, (stages, 1))
    for stage in range(stages):
        dead = {worker.pipeline for worker in planned if worker.stage == stage}
        gone = {worker.pipeline for worker in actual if worker.stage == stage}
        wrong = [p for p in range(pipelines) if (p in dead) != (int(names[stage, p]) in gone)]
        spare = {
            alive: [int(names[stage, p]) for p in wrong if (int(names[stage, p]) in gone) != alive]
            for alive in (True, False)
        }
        for p in wrong:
            names[stage, p] = spare[p not in dead].pop(0)
    return names
