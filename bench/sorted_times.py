"""Proof that no plan of a layout has a period: `python -m bench.sorted_times JOB 4x2,... PERIOD SECONDS`.

CP-SAT is asked for less than a plan: for the sorted times of every stage, which any plan has. JOB is one of
bench.live_workers, whose workers must have room for all that they have time for; PERIOD is in nanoseconds.
Where that leaves few ways to share out the micro-batches of a stage, each of them is a case by itself: a
worker then has its own F, I and W, in order. Elsewhere workers are not told apart. Where all cases are
refuted no plan has the period.
"""

# pyright: reportMissingImports=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, pairwise, product
from typing import Any

from bench.live_workers import JOBS
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, job_of_layout, parse_layout

_FEW = 3
"""Ways to share out the micro-batches of a stage up to which each is a case."""
_WIDE = 8
"""Workers from which ways are not listed."""
Shares = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A job of a layout, and a period; times in ticks."""

    workers: tuple[int, ...]
    units: int
    times: tuple[tuple[int, int, int], ...]
    """F, I and W of each stage."""
    transfer: tuple[int, ...]
    finish: tuple[int, ...]
    period: int

    @property
    def stages(self) -> int:
        return len(self.workers)

    def trip(self, stage: int) -> int:
        """From the end of an F to the start of its I at least."""
        below = range(stage + 1, self.stages)
        return sum(sum(self.times[one][:2]) for one in below) + 2 * sum(self.transfer[stage:])

    def down(self, stage: int) -> int:
        return sum(self.times[one][0] + self.transfer[one] for one in range(stage))

    def latest(self, stage: int) -> int:
        """Latest end of an I: all the way up, and a W of the first stage after it."""
        up = sum(self.times[one][1] + self.transfer[one] for one in range(stage))
        return self.period - self.finish[0] - self.times[0][2] - up

    def most(self, stage: int) -> int:
        """Micro-batches that a worker has time for."""
        return min(self.units, (self.period - self.finish[stage]) // sum(self.times[stage]))

    def cases(self) -> Iterator[dict[int, Shares]]:
        """Each way to share out the micro-batches of those stages that have few ways."""
        ways: list[list[tuple[int, Shares]]] = []
        for stage, count in enumerate(self.workers):
            found = list(_ways(self.units, count, self.most(stage))) if 1 < count < _WIDE else []
            if 0 < len(found) <= _FEW:
                ways.append([(stage, way) for way in found])
        return (dict(case) for case in product(*ways))


def _ways(units: int, workers: int, most: int) -> Iterator[Shares]:
    """Shares from the largest down."""
    if workers == 0:
        if units == 0:
            yield ()
        return
    for first in range(min(most, units), -(-units // workers) - 1, -1):
        for rest in _ways(units - first, workers - 1, first):
            yield (first, *rest)


def case_of(job: JobSpec, layout: Layout, period: int) -> Case:
    derived = job_of_layout(job, layout)
    units = derived.pipelines * derived.microbatches
    techniques = derived.techniques
    assert techniques.decouple and techniques.stagger, "I and W apart, stages that step on their own"
    case = Case(
        layout.workers,
        units,
        tuple(zip(derived.forward, derived.backward_input, derived.backward_weight, strict=True)),
        derived.transfer,
        tuple(map(sum, zip(derived.reduce, derived.optimizer, derived.gather, strict=True))),
        period,
    )
    for stage, (room, activation) in enumerate(zip(derived.capacity, derived.activation, strict=True)):
        assert room is None or room >= case.most(stage) * activation, "memory is not looked at"
    return case


def refuted(case: Case, shares: dict[int, Shares], seconds: float) -> bool | None:
    """True if there are no such times, False if there are, None if that is not known in time."""
    cp_model: Any = import_module("ortools.sat.python.cp_model")
    model = cp_model.CpModel()
    before: tuple[list[Any], list[Any]] | None = None
    for stage in range(case.stages):
        forward, backward = _stage(model, case, stage, shares.get(stage))
        if before is None:
            model.add(forward[0] == 0)
        else:
            lag = case.transfer[stage - 1]
            for unit in range(case.units):
                model.add(forward[unit] >= before[0][unit] + case.times[stage - 1][0] + lag)
                model.add(before[1][unit] >= backward[unit] + case.times[stage][1] + lag)
        before = forward, backward
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = 0
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    return None if status == cp_model.UNKNOWN else bool(status == cp_model.INFEASIBLE)


def _stage(model: Any, case: Case, stage: int, shares: Shares | None) -> tuple[list[Any], list[Any]]:
    """Sorted starts of F and I of a stage."""
    live = case.workers[stage]
    forward, backward, weight = _ops(model, case, stage, case.units)
    for starts, ticks in zip((forward, backward), case.times[stage], strict=False):
        for one, other in zip(starts, starts[live:], strict=False):
            model.add(other >= one + ticks)
    if shares is None:
        _within(model, case, stage, (forward, backward, weight), forward[0])
        intervals = _intervals(model, case, stage, (forward, backward, weight))
        model.add_cumulative(intervals, [1] * len(intervals), live)
        return forward, backward
    own: tuple[list[tuple[int, int, Any]], ...] = ([], [])
    last: tuple[int, Any] | None = None
    for share in shares:
        ops = _ops(model, case, stage, share)
        _within(model, case, stage, ops, forward[0])
        model.add_no_overlap(_intervals(model, case, stage, ops))
        if last is not None and share and last[0] == share:
            model.add(last[1] <= ops[0][0])
        last = (share, ops[0][0]) if share else None
        for columns, starts in zip(own, ops, strict=False):
            columns += [(share, place, start) for place, start in enumerate(starts)]
    for columns, ranked in zip(own, (forward, backward), strict=True):
        _rank(model, case.units, columns, ranked)
    return forward, backward


def _ops(model: Any, case: Case, stage: int, count: int) -> tuple[list[Any], list[Any], list[Any]]:
    first, (forward, backward, _) = case.down(stage), case.times[stage]
    arrives, latest = first + forward + case.trip(stage), case.latest(stage)
    ranges = (
        (first, latest - backward - case.trip(stage) - forward),
        (arrives, latest - backward),
        (arrives + backward, 2 * case.period),
    )
    forward_of, backward_of, weight_of = (
        [model.new_int_var(low, high, "") for _ in range(count)] for low, high in ranges
    )
    for one, other in chain(*map(pairwise, (forward_of, backward_of, weight_of))):
        model.add(other >= one)
    return forward_of, backward_of, weight_of


def _within(model: Any, case: Case, stage: int, ops: Sequence[list[Any]], opens: Any) -> None:
    """The k-th I after the k-th F, the k-th W after that, all within the window of the stage."""
    times = case.times[stage]
    for forward, backward, weight in zip(*ops, strict=True):
        model.add(backward >= forward + times[0] + case.trip(stage))
        model.add(weight >= backward + times[1])
        model.add(weight + times[2] + case.finish[stage] <= opens + case.period)


def _intervals(model: Any, case: Case, stage: int, ops: Sequence[list[Any]]) -> list[Any]:
    return [
        model.new_fixed_size_interval_var(start, ticks, "")
        for starts, ticks in zip(ops, case.times[stage], strict=True)
        for start in starts
    ]


def _rank(model: Any, units: int, columns: Sequence[tuple[int, int, Any]], ranked: list[Any]) -> None:
    """Each start of a worker is one of the sorted starts of its stage."""
    has: list[dict[int, Any]] = []
    for share, place, start in columns:
        has.append({rank: model.new_bool_var("") for rank in range(place, place + units - share + 1)})
        for rank, is_there in has[-1].items():
            model.add(start == ranked[rank]).only_enforce_if(is_there)
        model.add_exactly_one(has[-1].values())
    for rank in range(units):
        model.add_exactly_one(one[rank] for one in has if rank in one)


def main() -> None:
    name, layout, period, seconds = sys.argv[1:5]
    case = case_of(parse_job_text(JOBS[name], "job"), parse_layout(layout), int(period))
    for shares in case.cases():
        began = time.process_time()
        answer = {True: "refuted", False: "not refuted", None: "not known"}
        words = " ".join(f"stage {stage}: {'-'.join(map(str, way))}" for stage, way in shares.items())
        found = answer[refuted(case, shares, float(seconds))]
        print(f"{found} in {time.process_time() - began:.1f} s CPU; {words}", flush=True)


if __name__ == "__main__":
    main()
