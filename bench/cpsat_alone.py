"""CP-SAT alone: `python -m bench.cpsat_alone JOB P:S,P:S SECONDS [routed]` prints JSON.

With `routed` it is told which worker runs what, as our plans route; else it finds that out itself. In a
process of its own, because ortools and highspy cannot share one.
"""

# The solver has no complete types, and the statement of the problem is shared with the exact reference.
# pyright: reportPrivateUsage=false, reportMissingImports=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false

import sys
import time

from ortools.sat.python import cp_model

from bench.attempts import Attempt, arguments, print_attempt
from bench.reference.cpsat_reference import _case_of, _state
from recycle_compiler.ir.failure import FailureSet, failed_per_stage
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.route_microbatches import routes

CORES = 2


class _LastSolution(cp_model.CpSolverSolutionCallback):
    """Remembers when the last better solution came."""

    def __init__(self) -> None:
        super().__init__()
        self.came = 0.0

    def on_solution_callback(self) -> None:
        self.came = time.perf_counter()


def attempt(job: JobSpec, failed: FailureSet, seconds: float, routed: bool) -> Attempt:
    """The least period CP-SAT finds with both cores."""
    began = time.perf_counter()
    case = _case_of(job, failed_per_stage(failed, job.stages))
    model, goal = _state(case, case.horizon)
    if routed:
        _fix_routes(model, Target(job, failed))
    model.minimize(goal)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = CORES
    solver.parameters.random_seed = 0
    solver.parameters.max_time_in_seconds = seconds
    last = _LastSolution()
    status = solver.solve(model, last)
    late = 0 if case.staggered else max(case.finish)
    bound = (round(solver.best_objective_bound) + late) * case.ticks
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Attempt(None, bound, None, time.perf_counter() - began)
    found = (solver.value(goal) + late) * case.ticks
    return Attempt(found, bound, last.came - began, time.perf_counter() - began)


def _fix_routes(model: cp_model.CpModel, target: Target) -> None:
    """Our routes, with units and workers numbered as the model wants them: by their first micro-batch."""
    job = target.job
    table = routes(job, target.normal.hosts)
    in_turn = table.transpose(1, 0, 2).reshape(-1, job.stages)
    number = {variable.name: index for index, variable in enumerate(model.proto.variables)}
    for stage in range(job.stages):
        worker: dict[int, int] = {}
        for unit, pipeline in enumerate(in_turn[:, stage].tolist()):
            here = worker.setdefault(pipeline, len(worker))
            runs_here = number[f"on_u{unit}s{stage}w{here}"]
            model.add(model.get_bool_var_from_proto_index(runs_here) == 1)


if __name__ == "__main__":
    print_attempt(attempt(*arguments(sys.argv[1:4]), routed="routed" in sys.argv[4:]))
