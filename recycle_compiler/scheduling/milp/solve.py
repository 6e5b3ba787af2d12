"""Runs HiGHS on the MILP: one thread, fixed seed, effort counted in work.

The linear relaxation mostly decides. Where it has no solution, the target is refuted, and its infeasibility
is checked again in exact arithmetic. Where it has one, a dive bounds one fractional count after another and
rarely has to turn back. What is still open after that goes to HiGHS's own branch and bound.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import highspy as untyped_highspy
import numpy as np
import pyomo.core
import pyomo.repn as untyped_repn
from numpy.typing import NDArray

from recycle_compiler.scheduling.budget import Budget, Visits
from recycle_compiler.scheduling.milp.certificate import Ints, SparseRows, meets, refutes
from recycle_compiler.scheduling.milp.groups import Groups, groups_by_route, lay_out_groups, pooled_group
from recycle_compiler.scheduling.milp.model import Model, build_model
from recycle_compiler.scheduling.problem import Problem

highspy: Any = untyped_highspy
pyo: Any = pyomo.core
repn: Any = untyped_repn


class Stop(Enum):
    """Reason why a search stopped."""

    FOUND = "found"
    REFUTED = "no schedule meets the target"
    WORK_LIMIT = "work limit"
    TIME_LIMIT = "time limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a search."""

    counts: int = 20_000
    """Columns of the model; a larger one is not even stated."""
    relaxations: int = 400
    """Linear programs solved in the dive."""
    iterations: int = 200_000
    """Simplex iterations in all of them."""
    nodes: int = 0
    """Nodes of HiGHS's own search after that; 0 leaves it out."""


@dataclass(frozen=True, slots=True, eq=False)
class SolverOutcome:
    """Result of a search, and the reason why it stopped."""

    stop: Stop
    start: Ints | None
    """start[kind, unit, stage] in ticks, when found; -1 for the W of a stage that is not split."""
    exact: bool
    """A refutation that was checked in exact arithmetic from end to end."""
    relaxations: int
    iterations: int


def solve(problem: Problem, target: int, limits: Limits, budget: Budget) -> SolverOutcome:
    """A schedule with the given routing and a period of at most `target` ticks."""
    return _search(problem, groups_by_route(problem), target, limits, budget)


def relax(problem: Problem, target: int, limits: Limits, budget: Budget) -> SolverOutcome:
    """The same without routing: refuted here, no schedule meets the target, however it routes.

    What is found is no schedule, since a worker may stand for all live peers, but a guide to one.
    """
    return _search(problem, pooled_group(problem), target, limits, budget)


def raise_bound(problem: Problem, low: int, high: int, limits: Limits, budget: Budget) -> int:
    """The least period from `low` to `high` that is not refuted exactly, however work is routed."""
    grain = problem.grain
    open_end, closed_end = -(-low // grain), high // grain
    # The best known period is often the least one, so the step below it comes first.
    probe = closed_end - 1
    while open_end < closed_end:
        outcome = relax(problem, probe * grain, limits, budget)
        if outcome.stop is Stop.REFUTED and outcome.exact:
            open_end = probe + 1
        else:
            closed_end = probe
        probe = (open_end + closed_end) // 2
    return max(low, min(high, open_end * grain))


def _search(problem: Problem, groups: Groups, target: int, limits: Limits, budget: Budget) -> SolverOutcome:
    grains = target // problem.grain
    layout = lay_out_groups(problem, groups, grains)
    if layout.is_empty:
        return SolverOutcome(Stop.REFUTED, None, True, 0, 0)
    if layout.counts * len(groups.units) > limits.counts:
        return SolverOutcome(Stop.WORK_LIMIT, None, False, 0, 0)
    model = build_model(problem, groups, layout)
    openings = list(model.pyomo.opened.values())
    columns = [*openings, *model.pyomo.started.values(), model.pyomo.impossible]
    dive = _Dive(_rows_of(model, columns), len(openings), limits, budget)
    stop, values = dive.run()
    if stop is Stop.WORK_LIMIT and limits.nodes > 0:
        stop, values = _branch_and_bound(dive.rows, limits.nodes, budget)
        dive.exact = False
    start = None if values is None else _starts(model, columns, values)
    exact = stop is Stop.REFUTED and dive.exact
    return SolverOutcome(stop, start, exact, dive.relaxations, dive.iterations)


def _rows_of(model: Model, columns: list[Any]) -> SparseRows:
    """The rows of the Pyomo model; all of them are upper limits."""
    number = {id(column): index for index, column in enumerate(columns)}
    limits: list[int] = []
    offsets = [0]
    entries: list[int] = []
    values: list[int] = []
    for constraint in model.pyomo.component_data_objects(pyo.Constraint):
        terms = repn.generate_standard_repn(constraint.body)
        sign, limit = (1, constraint.upper) if constraint.upper is not None else (-1, constraint.lower)
        limits.append(round(sign * (pyo.value(limit) - terms.constant)))
        entries.extend(number[id(column)] for column in terms.linear_vars)
        values.extend(sign * round(value) for value in terms.linear_coefs)
        offsets.append(len(entries))
    bounds = np.array([column.bounds for column in columns], dtype=np.int64)
    arrays = (np.array(list_, dtype=np.int64) for list_ in (limits, offsets, entries, values))
    return SparseRows(*arrays, lower=bounds[:, 0], upper=bounds[:, 1])


def _highs_for(rows: SparseRows) -> Any:
    """HiGHS with the rows as a linear program."""
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(rows.lower), len(rows.limit)
    program.col_cost_ = np.zeros(len(rows.lower))
    program.col_lower_, program.col_upper_ = rows.lower.astype(float), rows.upper.astype(float)
    program.row_lower_ = np.full(len(rows.limit), -highspy.kHighsInf)
    program.row_upper_ = rows.limit.astype(float)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = rows.offset.astype(np.int32)
    program.a_matrix_.index_ = rows.column.astype(np.int32)
    program.a_matrix_.value_ = rows.value.astype(float)
    highs = highspy.Highs()
    # Presolve costs more than it saves on these programs, and would hide the proof of infeasibility.
    options = {"output_flag": False, "threads": 1, "random_seed": 0, "presolve": "off"}
    for name, value in options.items():
        highs.setOptionValue(name, value)
    highs.passModel(program)
    return highs


@dataclass(slots=True)
class _Choice:
    """A bound set on a column in the dive, and what it was before."""

    column: int
    before: tuple[int, int]
    other: tuple[int, int] | None
    """The bounds not tried yet."""


class _Dive:
    """Depth first: bound the most fractional count to its nearer side, and turn back where nothing fits."""

    def __init__(self, rows: SparseRows, openings: int, limits: Limits, budget: Budget) -> None:
        self.rows = rows
        self.exact = True
        self.relaxations = 0
        self.iterations = 0
        # The first columns say when windows open; all else hangs on them, so they are decided first.
        self._openings = openings
        self._limits = limits
        self._budget = budget
        self._highs = _highs_for(rows)
        self._lower, self._upper = rows.lower.copy(), rows.upper.copy()
        self._choices: list[_Choice] = []

    def run(self) -> tuple[Stop, Ints | None]:
        """Reason why the search stopped, and the values of the columns when found."""
        while True:
            stop = self._relaxation()
            if stop is Stop.REFUTED and self._turn_back():
                continue
            if stop is not None:
                return stop, None
            values = np.array(self._highs.getSolution().col_value)
            column = self._pick(values)
            if column is None:
                return _checked(values, self.rows)
            self._bound(column, values)

    def _pick(self, values: NDArray[np.float64]) -> int | None:
        """The column to bound next: the most fractional one; None if there is none."""
        distance = np.round(np.abs(values - np.rint(values)), 6)
        if distance[: self._openings].max(initial=0.0) > 0.0:
            return int(distance[: self._openings].argmax())
        return int(distance.argmax()) if distance.max() > 0.0 else None

    def _relaxation(self) -> Stop | None:
        """Solve the linear program under the present bounds; None if it has a solution."""
        entries = max(1, Visits.PIVOT * len(self.rows.column))
        left = min(self._limits.iterations - self.iterations, self._budget.left // entries)
        if self.relaxations >= self._limits.relaxations or left <= 0:
            return Stop.WORK_LIMIT
        if self._budget.guard.strikes():
            return Stop.TIME_LIMIT
        self._highs.setOptionValue("simplex_iteration_limit", left)
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + self._budget.guard.seconds_left)
        self._highs.run()
        self.relaxations += 1
        iterations = max(0, self._highs.getInfo().simplex_iteration_count)
        self.iterations += iterations
        self._budget.spend(iterations * entries)
        return _STOP_OF_STATUS.get(self._highs.getModelStatus(), Stop.WORK_LIMIT)

    def _bound(self, column: int, values: NDArray[np.float64]) -> None:
        below = int(np.floor(values[column]))
        before = (int(self._lower[column]), int(self._upper[column]))
        sides = ((before[0], below), (below + 1, before[1]))
        nearer = int(values[column] - below >= 0.5)
        self._choices.append(_Choice(column, before, sides[1 - nearer]))
        self._set(column, sides[nearer])

    def _turn_back(self) -> bool:
        """Take the other side of the last choice that has one left; False if none has."""
        _, has_ray, ray = self._highs.getDualRay()
        weights = np.array(ray) if has_ray else np.zeros(len(self.rows.limit))
        self.exact = self.exact and refutes(weights, self.rows, self._lower, self._upper)
        while self._choices:
            choice = self._choices[-1]
            if choice.other is not None:
                self._set(choice.column, choice.other)
                choice.other = None
                return True
            self._set(choice.column, choice.before)
            self._choices.pop()
        return False

    def _set(self, column: int, bounds: tuple[int, int]) -> None:
        self._lower[column], self._upper[column] = bounds
        self._highs.changeColBounds(column, float(bounds[0]), float(bounds[1]))


_STOP_OF_STATUS: dict[Any, Stop | None] = {
    highspy.HighsModelStatus.kOptimal: None,
    highspy.HighsModelStatus.kInfeasible: Stop.REFUTED,
    highspy.HighsModelStatus.kIterationLimit: Stop.WORK_LIMIT,
    highspy.HighsModelStatus.kTimeLimit: Stop.TIME_LIMIT,
}


def _checked(values: NDArray[np.float64], rows: SparseRows) -> tuple[Stop, Ints | None]:
    """A solution, unless rounding has moved it off the rows: then the search has no answer."""
    point = np.rint(values).astype(np.int64)
    return (Stop.FOUND, point) if meets(point, rows) else (Stop.WORK_LIMIT, None)


def _branch_and_bound(rows: SparseRows, nodes: int, budget: Budget) -> tuple[Stop, Ints | None]:
    """HiGHS's own search."""
    highs = _highs_for(rows)
    highs.changeColsIntegrality(
        len(rows.lower),
        np.arange(len(rows.lower), dtype=np.int32),
        np.full(len(rows.lower), highspy.HighsVarType.kInteger),
    )
    highs.setOptionValue("mip_max_nodes", nodes)
    highs.setOptionValue("time_limit", budget.guard.seconds_left)
    highs.run()
    stop = _STOP_OF_STATUS.get(highs.getModelStatus(), Stop.WORK_LIMIT)
    if stop is not None:
        return stop, None
    return _checked(np.array(highs.getSolution().col_value), rows)


def _starts(model: Model, columns: list[Any], values: Ints) -> Ints:
    """Start of each micro-batch of a group: the grain in which the count passes its place in the group."""
    for column, value in zip(columns, values.tolist(), strict=True):
        column.set_value(value, skip_validation=True)
    problem, layout = model.problem, model.layout
    start = np.full((3, problem.units, problem.chunks), -1, dtype=np.int64)
    for stage, spans in enumerate(layout.spans):
        for kind, span in enumerate(spans):
            for group, units in enumerate(model.groups.units):
                grains = range(span.first, span.last + 1)
                counts = [pyo.value(model.started(stage, kind, group, grain)) for grain in grains]
                places = np.searchsorted(counts, np.arange(1, len(units) + 1))
                start[kind, list(units), stage] = (span.first + places) * problem.grain
    return start
