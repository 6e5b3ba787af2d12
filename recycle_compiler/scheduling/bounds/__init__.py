"""Lower bounds on the period: periods that no schedule can go below, each with its proof beside it.

    load        the work of one worker, after its ramp-up                   load.py
    rounds      from the first op to the last, over waits for memory        rounds.py
    both ends   all workers of a stage together, and what they idle         both_ends.py
    meetings    all workers of a stage in every round, and whole rounds     meetings.py
    feeding     a stage with more workers than those before it opens late   feeding.py
    of graphs   chunks that share workers or reduce together, paths         shared.py

All of them take the best case for all that they do not look at: how micro-batches are routed, other stages,
other workers. So the largest holds; that of meetings only where peers share experts. Of equal ones the
shortest argument is named.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from recycle_compiler.ir.graph import Edges
from recycle_compiler.scheduling.bounds.both_ends import BothEnds
from recycle_compiler.scheduling.bounds.bound import Bound, SpanTerm, StageBound, window
from recycle_compiler.scheduling.bounds.feeding import feeding_bound
from recycle_compiler.scheduling.bounds.load import Load
from recycle_compiler.scheduling.bounds.meetings import Meetings
from recycle_compiler.scheduling.bounds.rounds import Rounds
from recycle_compiler.scheduling.bounds.shared import path_bound, shared_bounds
from recycle_compiler.scheduling.problem import Problem, Tasks

__all__ = [
    "STAGE_BOUNDS",
    "Bound",
    "SpanTerm",
    "lower_bound",
    "named_bound",
    "shared_bounds",
    "stage_bounds",
]

STAGE_BOUNDS: tuple[StageBound, ...] = (Load(), Rounds(), BothEnds())
"""The shortest argument first."""
BOUNDS_IN_ROUNDS: tuple[StageBound, ...] = (*STAGE_BOUNDS, Meetings())
"""Bounds for problems whose peers meet in rounds."""
_FACTS = (
    *("chunks", "pipelines", "microbatches", "staggered"),
    *("forward", "backward", "weight", "split", "transfer", "finish", "optimizer"),
    *("activation", "kept", "capacity", "hosts", "pool", "window", "grain", "meets", "unhidden"),
)
"""Facts that bounds are made of: all that is said of chunks."""
_MOST_OPS = 20_000
"""Beyond, paths through edges that were added to the graph are not followed."""


def lower_bound(problem: Problem) -> Bound:
    """The best of all bounds."""
    known = _lower_bound(*(getattr(problem, name) for name in _FACTS))
    if not problem.has_more_edges or problem.ops > _MOST_OPS:
        return known
    path = path_bound(problem)
    return path if path.period > known.period else known


@lru_cache(maxsize=16)
def _lower_bound(*facts: Any) -> Bound:
    """Placements are compared by their bounds before they are planned, and routes do not matter here."""
    nothing = np.empty(0, dtype=np.int64)
    problem = Problem(
        **dict(zip(_FACTS, facts, strict=True)),
        is_uniform=False,
        worker_capacity=(),
        tasks=Tasks(nothing, nothing, nothing, nothing, Edges(nothing, nothing, nothing)),
        late=nothing,
    )
    bounds = [
        (bound.period, -rank, -len(hosts), bound)
        for stage, hosts in enumerate(problem.hosts)
        for rank, bound in enumerate(stage_bounds(problem, stage))
    ]
    bounds += [(bound.period, 0, 0, bound) for bound in shared_bounds(problem)]
    # Of equal bounds, a short argument says most, then the one of the stage with most failures.
    best = max(bounds, key=lambda entry: entry[:3])[3]
    best = feeding_bound(problem, best.period) or best
    # Every earliest schedule is made of whole grains.
    return Bound(-(-best.period // problem.grain) * problem.grain, best.reason)


def stage_bounds(problem: Problem, stage: int) -> list[Bound]:
    """Bounds that the workers of one stage impose, with the live peers they have."""
    # Where workers hold several chunks, what is numbered here are chunks.
    noun = "stage" if len(set(problem.pool)) == problem.chunks else "chunk"
    return [
        Bound(window(problem, stage, bound.span(problem, stage)), f"{bound.name} of {noun} {stage}")
        for bound in (BOUNDS_IN_ROUNDS if problem.meets else STAGE_BOUNDS)
    ]


def named_bound(name: str) -> StageBound | None:
    """The bound of this name, if there is one."""
    return next((bound for bound in BOUNDS_IN_ROUNDS if bound.name == name), None)
