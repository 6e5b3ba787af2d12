"""Which ops make a step longer than planned, or shorter: each kind in turn is put back to its plan."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from recycle_compiler.analysis.trace_diff.breakdown import groups
from recycle_compiler.analysis.trace_diff.matching import Floats
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule

_TRIED = 6
"""Stages, and kinds on them, that are tried: those that differ most from their plan."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What the step would save, or lose if below zero, if these ops took as long as the profile says."""

    kind: OpKind
    stage: int | None
    """None: on all stages."""
    saving: float


def reasons(
    schedule: Schedule, replay: Callable[[Floats], float], typical: Floats, planned: Floats
) -> tuple[Reason, ...]:
    """Largest first; `replay` says how long a step takes when its ops take that long."""
    whole = replay(typical)
    kinds = sorted({OpKind(kind) for kind in schedule.ops.kind.tolist()})
    everywhere = [(kind, None, np.flatnonzero(schedule.ops.kind == kind)) for kind in kinds]
    single = sorted(groups(schedule), key=lambda group: -abs(float((typical - planned)[group[2]].sum())))
    found: list[Reason] = []
    for kind, stage, rows in (*everywhere, *single[:_TRIED]):
        as_planned = typical.copy()
        as_planned[rows] = planned[rows]
        found.append(Reason(kind, stage, whole - replay(as_planned)))
    return tuple(sorted(found, key=lambda reason: (-abs(reason.saving), reason.stage is not None)))


def main_reasons(found: tuple[Reason, ...], longer: float) -> tuple[Reason, ...]:
    """Up to two: what the difference is due to, and what makes up for at least half of that."""
    ours = _narrow([reason for reason in found if reason.saving * longer > 0])
    if ours is None or 2 * abs(ours.saving) < abs(longer):
        return ()
    against = _narrow([reason for reason in found if reason.saving * longer < 0])
    return (ours,) if against is None or 2 * abs(against.saving) < abs(ours.saving) else (ours, against)


def _narrow(candidates: list[Reason]) -> Reason | None:
    """The kind that counts most; on one stage only, if at least half of it is due to that."""
    kind = next((reason for reason in candidates if reason.stage is None), None)
    if kind is None:
        return None
    alike = (reason for reason in candidates if reason.kind is kind.kind and reason.stage is not None)
    return next((reason for reason in alike if 2 * abs(reason.saving) >= abs(kind.saving)), kind)
