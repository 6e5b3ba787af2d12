"""The exact optimum of a small job, from a constraint model of the planning problem.

Written from the statement of the problem alone, to be compared with the planner: it shares no code with it
and routes freely. Micro-batches of all pipelines are interchangeable, since any live peer may take any of
them, so they are simply numbered; so are the live workers of a stage.
"""

from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from math import gcd
from typing import Any

from recycle_compiler.ir.job import JobSpec

cp_model: Any = import_module("ortools.sat.python.cp_model")
"""OR-Tools is needed here and nowhere else; HiGHS cannot be loaded into the same process."""
Variable = Any
Constraints = Any
"""A CpModel."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Known bounds of the least period, in ticks."""

    lower_bound: int
    best: int

    @property
    def settled(self) -> bool:
        return self.lower_bound == self.best


@dataclass(frozen=True, slots=True)
class _Case:
    """The job in the smallest whole numbers that keep its meaning."""

    stages: int
    units: int
    workers: tuple[int, ...]
    """Live workers of each stage that may run micro-batches."""
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...] | None
    """None when the backward is coupled."""
    transfer: tuple[int, ...]
    finish: tuple[int, ...]
    activation: tuple[int, ...]
    kept: tuple[int, ...]
    capacity: tuple[int | None, ...]
    staggered: bool
    ticks: int
    """What one unit of time is worth."""

    def busy(self, stage: int) -> int:
        """Time that one micro-batch keeps a worker of the stage busy."""
        return self.forward[stage] + self.backward[stage] + (self.weight[stage] if self.weight else 0)

    @property
    def horizon(self) -> int:
        """A goal that is always met: one micro-batch per whole pipeline at a time, in waves."""
        waves = -(-self.units // min(self.workers))
        wave = sum(self.busy(stage) for stage in range(self.stages)) + 2 * sum(self.transfer)
        return waves * wave + (max(self.finish) if self.staggered else 0)


def reference_optimum(job: JobSpec, failed_per_stage: tuple[int, ...], work: float) -> Outcome:
    """Bounds on the least period; equal when settled. `work` is in the solver's deterministic seconds.

    After a first search the proof is sought one step below the best found: there every start has a
    narrow window, and refuting it is easier than raising a bound.
    """
    case = _case_of(job, failed_per_stage)
    state = _search(case, _Known(0, case.horizon + 1, 0.0), work / 4, prove=False)
    if state.best > case.horizon:
        raise AssertionError(f"{job.name}: no schedule found where one exists")
    while state.lower < state.best and state.spent < work:
        state = _search(case, state, work - state.spent, prove=True)
    late = 0 if case.staggered else max(case.finish)
    return Outcome((state.lower + late) * case.ticks, (state.best + late) * case.ticks)


@dataclass(frozen=True, slots=True)
class _Known:
    """Bounds on the goal (the makespan, or the period when staggered), and the work they took."""

    lower: int
    best: int
    spent: float


def _search(case: _Case, known: _Known, work: float, *, prove: bool) -> _Known:
    """Look for better than the best known: for any at all to `prove` that none exists, else for the best."""
    model, goal = _state(case, known.best - 1)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work
    if prove:
        solver.parameters.linearization_level = 0
    else:
        model.minimize(goal)
    status = solver.solve(model)
    spent = known.spent + solver.response_proto.deterministic_time
    if status == cp_model.INFEASIBLE:
        return _Known(known.best, known.best, spent)
    if status == cp_model.UNKNOWN and known.best > case.horizon:
        # Nothing found yet, but waves of micro-batches are a schedule.
        return _Known(known.lower, case.horizon, spent)
    if status == cp_model.UNKNOWN:
        return _Known(known.lower, known.best, spent)
    lower = known.lower if prove else round(solver.best_objective_bound)
    return _Known(lower, solver.value(goal), spent)


def _case_of(whole: JobSpec, failed: tuple[int, ...]) -> _Case:
    job = whole.left_by(failed)
    finish = tuple(map(sum, zip(job.reduce, job.optimizer, job.gather, strict=True)))
    ticks = gcd(*job.forward, *job.backward_input, *job.backward_weight, *job.transfer, *finish)
    coupled = tuple(a + b for a, b in zip(job.backward_input, job.backward_weight, strict=True))
    backward = job.backward_input if job.techniques.decouple else coupled
    # Without re-routing a failed worker takes its whole pipeline out, and failures share pipelines.
    gone = failed if job.techniques.adaptive else (max(failed),) * job.stages
    amounts = [
        _smallest_amounts(*stage)
        for stage in zip(job.activation, job.kept_for_weight, job.capacity, strict=True)
    ]

    def scaled(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(value // ticks for value in values)

    return _Case(
        stages=job.stages,
        units=job.pipelines * job.microbatches,
        workers=tuple(job.pipelines - count for count in gone),
        forward=scaled(job.forward),
        backward=scaled(backward),
        weight=scaled(job.backward_weight) if job.techniques.decouple else None,
        transfer=scaled(job.transfer),
        finish=scaled(finish),
        activation=tuple(activation for activation, _, _ in amounts),
        kept=tuple(kept for _, kept, _ in amounts),
        capacity=tuple(capacity for _, _, capacity in amounts),
        staggered=job.techniques.stagger,
        ticks=ticks,
    )


def _smallest_amounts(activation: int, kept: int, capacity: int | None) -> tuple[int, int, int | None]:
    """The same memory rule in small numbers."""
    if capacity is None or activation == 0:
        return 0, 0, None
    grain = gcd(activation, kept)
    return activation // grain, kept // grain, capacity // grain


@dataclass(frozen=True, slots=True)
class _Visit:
    """One micro-batch on one stage."""

    forward: Variable
    backward: Variable
    weight: Variable | None
    done: Variable
    """The end of W, or of the coupled backward."""
    on: tuple[Variable, ...]
    """on[worker]: whether that worker of the stage runs it."""


def _state(case: _Case, most: int) -> tuple[Constraints, Variable]:
    """The model of all schedules with a goal of at most `most`, and the variable that holds the goal."""
    model = cp_model.CpModel()
    # When staggered, W of a late stage may run on after the first stage has closed, by less than one period.
    latest = most * 2 if case.staggered else most
    visits = [
        [_visit(model, case, unit, stage, latest) for stage in range(case.stages)]
        for unit in range(case.units)
    ]
    for visit in visits:
        _order_along_the_pipeline(model, case, visit)
    for stage in range(case.stages):
        _share_workers(model, case, stage, [visit[stage] for visit in visits])
    _number_units_and_workers(model, case, visits)
    _keep_order_on_the_only_route(model, case, visits)
    return model, _goal(model, case, visits, most, latest)


def _visit(model: Constraints, case: _Case, unit: int, stage: int, latest: int) -> _Visit:
    label = f"u{unit}s{stage}"
    forward = model.new_int_var(0, latest, f"forward_{label}")
    backward = model.new_int_var(0, latest, f"backward_{label}")
    weight = model.new_int_var(0, latest, f"weight_{label}") if case.weight else None
    if case.weight and weight is not None:
        model.add(weight >= backward + case.backward[stage])
        done = weight + case.weight[stage]
    else:
        done = backward + case.backward[stage]
    on = tuple(model.new_bool_var(f"on_{label}w{worker}") for worker in range(case.workers[stage]))
    model.add_exactly_one(on)
    return _Visit(forward, backward, weight, done, on)


def _order_along_the_pipeline(model: Constraints, case: _Case, visit: list[_Visit]) -> None:
    """F goes down the stages, I (or B) comes back up, each message taking its transfer time."""
    for stage, transfer in enumerate(case.transfer):
        above, below = visit[stage], visit[stage + 1]
        model.add(below.forward >= above.forward + case.forward[stage] + transfer)
        model.add(above.backward >= below.backward + case.backward[stage + 1] + transfer)
    model.add(visit[-1].backward >= visit[-1].forward + case.forward[-1])


def _share_workers(model: Constraints, case: _Case, stage: int, visits: list[_Visit]) -> None:
    """One op at a time on a worker, and its memory within capacity."""
    capacity = case.capacity[stage]
    for worker in range(case.workers[stage]):
        ops: list[Variable] = []
        held: list[Variable] = []
        amounts: list[int] = []
        for visit in visits:
            here = visit.on[worker]
            ops.append(
                model.new_optional_fixed_size_interval_var(visit.forward, case.forward[stage], here, "")
            )
            ops.append(
                model.new_optional_fixed_size_interval_var(visit.backward, case.backward[stage], here, "")
            )
            if case.weight and visit.weight is not None:
                ops.append(
                    model.new_optional_fixed_size_interval_var(visit.weight, case.weight[stage], here, "")
                )
            if capacity is None:
                continue
            kept = case.kept[stage] if case.weight else 0
            for amount, end in (
                (kept, visit.done),
                (case.activation[stage] - kept, visit.backward + case.backward[stage]),
            ):
                if amount:
                    size = model.new_int_var(0, 2 * case.horizon, "")
                    held.append(model.new_optional_interval_var(visit.forward, size, end, here, ""))
                    amounts.append(amount)
        model.add_no_overlap(ops)
        if capacity is not None and capacity < 2 * min(amounts):
            model.add_no_overlap(held)
        if capacity is not None:
            model.add_cumulative(held, amounts, capacity)


def _number_units_and_workers(model: Constraints, case: _Case, visits: list[list[_Visit]]) -> None:
    """Break symmetry: units by their first F, the workers of a stage by the first unit that they run."""
    for before, after in pairwise(visits):
        model.add(before[0].forward <= after[0].forward)
    for stage, workers in enumerate(case.workers):
        for unit, visit in enumerate(visits):
            for worker in range(1, workers):
                model.add_bool_or(
                    visit[stage].on[worker].negated(),
                    *(earlier[stage].on[worker - 1] for earlier in visits[:unit]),
                )


def _keep_order_on_the_only_route(model: Constraints, case: _Case, visits: list[list[_Visit]]) -> None:
    """Break symmetry: where every stage has one worker, units keep their order everywhere."""
    if max(case.workers) > 1:
        return
    for before, after in pairwise(visits):
        for stage in range(case.stages):
            model.add(after[stage].forward >= before[stage].forward + case.forward[stage])
            model.add(after[stage].backward >= before[stage].backward + case.backward[stage])
            if case.weight:
                model.add(after[stage].done >= before[stage].done + case.weight[stage])


def _goal(model: Constraints, case: _Case, visits: list[list[_Visit]], most: int, latest: int) -> Variable:
    """The makespan, or the period when staggered; at most `most`."""
    goal = model.new_int_var(0, most, "goal")
    for stage in range(case.stages):
        opens = model.new_int_var(0, latest, f"opens{stage}")
        closes = model.new_int_var(0, latest, f"closes{stage}")
        for visit in visits:
            model.add(opens <= visit[stage].forward)
            model.add(closes >= visit[stage].done)
            if case.staggered:
                # Implied by the goal; said of each op, it narrows windows from the start.
                model.add(visit[stage].done <= opens + most - case.finish[stage])
        # Some worker carries this many; implied, but not seen by propagation.
        busiest = -(-case.units // case.workers[stage])
        model.add(closes - opens >= busiest * case.busy(stage))
        if case.staggered:
            model.add(goal >= closes - opens + case.finish[stage])
        else:
            model.add(goal >= closes)
    return goal
