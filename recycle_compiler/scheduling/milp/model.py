"""States the timing problem as a MILP in Pyomo; solves nothing.

    problem, groups, layout  -->  a model that is feasible where a schedule meets the target period

Micro-batches with the same route are interchangeable and keep their order, so nothing is said about single
ones: `started[stage, kind, group, grain]` counts how many of a group have started by then. Rules become
rows of few counts each, and the linear relaxation is so tight that it refutes most periods that are too
short on its own.

With all micro-batches in one group, and the workers of a stage pooled into one that runs several ops at
once, the model forgets routing: every schedule, however routed, is a solution of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import pyomo.core

from recycle_compiler.scheduling.milp.groups import BACKWARD, FORWARD, WEIGHT, GrainTimes, Groups
from recycle_compiler.scheduling.problem import UNLIMITED, Problem

pyo: Any = pyomo.core
"""Has no types worth checking."""

AtMost = tuple[Any, int]
"""A row: an expression (or number) and its limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A stated problem; `started` and `opened` read its variables."""

    pyomo: Any
    problem: Problem
    groups: Groups
    layout: GrainTimes

    def started(self, stage: int, kind: int, group: int, grain: int) -> Any:
        """Number of a group's ops started by the end of a grain: 0 before their span, all after it."""
        span = self.layout.spans[stage][kind]
        if grain < span.first:
            return 0
        if grain >= span.last:
            return len(self.groups.units[group])
        return self.pyomo.started[stage, kind, group, grain]

    def opened(self, stage: int, grain: int) -> Any:
        """1 if the window of a stage has opened by this grain."""
        opening = self.layout.opening[stage]
        if grain < opening.first:
            return 0
        if grain >= opening.last:
            return 1
        return self.pyomo.opened[stage, grain]

    def state(self, name: str, rows: Iterator[AtMost]) -> None:
        """Add a group of constraints."""
        constraints = pyo.ConstraintList()
        setattr(self.pyomo, name, constraints)
        for amount, limit in rows:
            if not isinstance(amount, int):
                constraints.add(amount <= limit)
            elif amount > limit:
                constraints.add(self.pyomo.impossible >= 1)

    def grains(self, stage: int) -> range:
        """All grains in which something may start on a stage."""
        return range(self.layout.spans[stage][FORWARD].first, self.layout.spans[stage][-1].last + 1)


def build_model(problem: Problem, groups: Groups, layout: GrainTimes) -> Model:
    """The feasibility model for a target period that leaves every op a grain to start in."""
    assert not layout.is_empty, "an empty span refutes the target without a model"
    model = Model(pyo.ConcreteModel(), problem, groups, layout)
    _declare_variables(model)
    # What has started stays started.
    model.state("counts_never_fall", _counts_never_fall(model))
    # F follows the F above it, a backward the backward below it, W its own backward.
    model.state("ops_follow_their_cause", _ops_follow_their_cause(model))
    # A worker runs one op at a time.
    model.state("workers_do_one_thing", _workers_do_one_thing(model))
    # The activations that a worker holds fit into its memory.
    model.state("memory_suffices", _memory_suffices(model))
    if problem.staggered:
        # A window that has opened stays open; the first F of its stage opens it.
        model.state("forwards_open_windows", _forwards_open_windows(model))
        # By its length after it opened, everything in a window is done.
        model.state("windows_close", _windows_close(model))
    model.pyomo.nothing = pyo.Objective(expr=0)
    return model


def _declare_variables(model: Model) -> None:
    groups, layout = model.groups, model.layout
    bounds: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    for stage, spans in enumerate(layout.spans):
        for kind, span in enumerate(spans):
            duration, pooled = layout.duration[stage][kind], groups.pooled[stage]
            for group, units in enumerate(groups.units):
                for grain in range(span.first, span.last):
                    # One after another from the first grain on, and back from the last.
                    most = pooled * ((grain - span.first) // duration + 1)
                    later = pooled * ((span.last - grain - 1) // duration + 1)
                    bounds[stage, kind, group, grain] = (max(0, len(units) - later), min(len(units), most))
    model.pyomo.started = pyo.Var(list(bounds), within=pyo.Integers, bounds=bounds)
    # Takes part in rows that no schedule can meet.
    model.pyomo.impossible = pyo.Var(bounds=(0, 0))
    openings = [
        (stage, grain) for stage, span in enumerate(layout.opening) for grain in range(span.first, span.last)
    ]
    model.pyomo.opened = pyo.Var(openings, within=pyo.Binary)


def _counts_never_fall(model: Model) -> Iterator[AtMost]:
    for stage, spans in enumerate(model.layout.spans):
        for kind, span in enumerate(spans):
            for group in range(len(model.groups.units)):
                for grain in range(span.first + 1, span.last + 1):
                    before = model.started(stage, kind, group, grain - 1)
                    yield before - model.started(stage, kind, group, grain), 0


def _ops_follow_their_cause(model: Model) -> Iterator[AtMost]:
    for stage, spans in enumerate(model.layout.spans):
        for kind, span in enumerate(spans):
            cause = _cause(model.layout, stage, kind)
            if cause is None:
                continue
            cause_stage, cause_kind, delay = cause
            for group in range(len(model.groups.units)):
                for grain in range(span.first, span.last + 1):
                    ready = model.started(cause_stage, cause_kind, group, grain - delay)
                    yield model.started(stage, kind, group, grain) - ready, 0


def _cause(layout: GrainTimes, stage: int, kind: int) -> tuple[int, int, int] | None:
    """Stage and kind of the op that an op waits for, and the slots from that start to its own."""
    duration, transfer = layout.duration, layout.transfer
    if kind == WEIGHT:
        return stage, BACKWARD, duration[stage][BACKWARD]
    if kind == BACKWARD and stage == len(duration) - 1:
        return stage, FORWARD, duration[stage][FORWARD]
    if kind == BACKWARD:
        return stage + 1, BACKWARD, duration[stage + 1][BACKWARD] + transfer[stage]
    if stage > 0:
        return stage - 1, FORWARD, duration[stage - 1][FORWARD] + transfer[stage - 1]
    return None


def _workers_do_one_thing(model: Model) -> Iterator[AtMost]:
    for stage, duration in enumerate(model.layout.duration):
        for worker in model.groups.workers(stage):
            visitors = model.groups.visitors(stage, worker)
            for grain in model.grains(stage):
                running = sum(
                    model.started(stage, kind, group, grain)
                    - model.started(stage, kind, group, grain - duration[kind])
                    for kind in model.layout.kinds[stage]
                    for group in visitors
                )
                yield running, model.groups.pooled[stage]


def _memory_suffices(model: Model) -> Iterator[AtMost]:
    problem = model.problem
    for stage, duration in enumerate(model.layout.duration):
        activation, kept = problem.activation[stage], problem.kept[stage]
        if problem.capacity[stage] == UNLIMITED or activation == 0:
            continue
        step = gcd(activation, kept)
        kept, freed = kept // step, (activation - kept) // step
        capacity = problem.capacity[stage] // step * model.groups.pooled[stage]
        for worker in model.groups.workers(stage):
            visitors = model.groups.visitors(stage, worker)
            for grain in model.grains(stage):
                held = sum(
                    (kept + freed) * model.started(stage, FORWARD, group, grain)
                    - freed * model.started(stage, BACKWARD, group, grain - duration[BACKWARD])
                    for group in visitors
                )
                if kept:
                    held -= kept * sum(
                        model.started(stage, WEIGHT, group, grain - duration[WEIGHT]) for group in visitors
                    )
                yield held, capacity


def _forwards_open_windows(model: Model) -> Iterator[AtMost]:
    for stage, opening in enumerate(model.layout.opening):
        for grain in range(opening.first, opening.last):
            opened = model.opened(stage, grain)
            yield model.opened(stage, grain - 1) - opened, 0
            for worker in model.groups.workers(stage):
                starting = sum(
                    model.started(stage, FORWARD, group, grain)
                    - model.started(stage, FORWARD, group, grain - 1)
                    for group in model.groups.visitors(stage, worker)
                )
                yield starting - model.groups.pooled[stage] * opened, 0


def _windows_close(model: Model) -> Iterator[AtMost]:
    for stage, opening in enumerate(model.layout.opening):
        last_kind = model.layout.kinds[stage][-1]
        last_start = model.layout.length[stage] - model.layout.duration[stage][last_kind]
        for grain in range(opening.first, opening.last):
            for group, units in enumerate(model.groups.units):
                done = model.started(stage, last_kind, group, grain + last_start)
                yield len(units) * model.opened(stage, grain) - done, 0
