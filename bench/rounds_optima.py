"""Plans in rounds beside exact optima, for tiny jobs: `python -m bench.rounds_optima --jobs 40`.

The optimum is the least period over all sizes of rounds on every stage and all orders of them. Micro-batches
are interchangeable and rounds go back in the order in which they went forward, so who is in which round does
not matter. Every combination is timed; those that cannot be better than the best known by their load alone
are left out.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np

from bench.reference.random_jobs import job_in_slots
from recycle_compiler.compiled import compile_function
from recycle_compiler.ir.failure import FailureSet, normal_form
from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.rounds import always_left
from recycle_compiler.ir.sharding import Sharding
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.rounds.kernels import cost_order, settle_windows, take_op, time_order
from recycle_compiler.scheduling.rounds.problem import Ints, RoundsProblem, rounds_problem
from recycle_compiler.scheduling.rounds.routes import Shape, Sizes, in_rounds

_SLOT = 1_000
_MOST = 2_000_000
"""Orders beyond which a job is left out."""


def main() -> None:
    """Draw jobs, and print how far bounds and plans are from optima."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    settle = compile_function(settle_windows, time_order=compile_function(time_order))
    cost = compile_function(cost_order, take_op=compile_function(take_op))
    search = compile_function(shorten_over_orders, settle_windows=settle, cost_order=cost)
    print("| seed | stages, pipelines, micro-batches | failures | W | bound | optimum | plan |")
    print("|---:|---|---|---|---:|---:|---:|")
    found: list[tuple[int, int, int]] = []
    for seed in range(arguments.seed, arguments.seed + arguments.jobs):
        job, counts = tiny_job(seed)
        failed = normal_form(counts, job.pipelines)
        claims = plan_failed(job, failed).claims
        optimum = optimum_in_rounds(job, failed, claims.period, search)
        if optimum is None:
            print(f"seed {seed}: too many orders", file=sys.stderr)
            continue
        found.append((claims.lower_bound, optimum, claims.period))
        size = f"{job.stages} x {job.pipelines} x {job.microbatches}"
        floats = "floats" if job.techniques.decouple else "coupled"
        periods = " | ".join(f"{each / _SLOT:g}" for each in found[-1])
        print(f"| {seed} | {size} | {' '.join(map(str, counts))} | {floats} | {periods} |", flush=True)
    _tell(np.array(found))


def _tell(found: Ints) -> None:
    bound, optimum, plan = found.T
    assert (bound <= optimum).all(), "a bound exceeds an optimum"
    for name, count in (
        ("jobs", len(found)),
        ("plans that are optimal", (plan == optimum).sum()),
        ("bounds that are exact", (bound == optimum).sum()),
    ):
        print(f"{name}: {count}")
    for name, over in (
        ("plan over optimum", plan / optimum - 1),
        ("optimum over bound", optimum / bound - 1),
    ):
        print(f"{name}: {100 * over.mean():.2f} % on average, {100 * over.max():.2f} % at most")


def tiny_job(seed: int) -> tuple[JobSpec, tuple[int, ...]]:
    """A job of few rounds, with uneven times, and failures that leave stages with unequal numbers."""
    random = Random(seed)
    decouple = random.random() < 0.5
    stages = random.choice((2, 2, 3))
    pipelines, microbatches = random.choice(
        ((2, 2), (3, 1), (4, 1), (3, 2)) if stages == 2 else ((2, 1), (3, 1))
    )
    activation = tuple(random.randint(1, 2) for _ in range(stages))

    def times(least: int, most: int, count: int = stages) -> tuple[int, ...]:
        return tuple(_SLOT * random.randint(least, most) for _ in range(count))

    # In this order, which the draws depend on.
    job = job_in_slots(
        "tiny",
        (stages, pipelines, microbatches),
        forward=times(1, 4),
        backward_input=times(1, 4),
        backward_weight=times(1, 4),
        optimizer=times(0, 3),
        reduce=times(0, 2),
        transfer=times(0, 2, stages - 1),
        memory=(
            tuple(amount * _SLOT for amount in activation),
            tuple(random.randint(1, amount) * _SLOT for amount in activation),
            tuple(random.choice((None, 1, 2, 3)) for _ in activation),
        ),
        techniques=Techniques(adaptive=True, decouple=decouple, stagger=random.random() < 0.7),
        failures=0,
        slots=1,
        placed_every=1,
    )
    room = tuple(
        None if held is None else held * amount
        for held, amount in zip(job.capacity, job.activation, strict=True)
    )
    nothing = (0,) * stages
    # All own all of it, so that failures make no step longer.
    shards = (pipelines,) * stages
    sharding = Sharding(pipelines, shards, nothing, job.optimizer, nothing, lost=nothing, absent=nothing)
    counts = tuple(random.choice((0, 0, 1, pipelines - 1)) for _ in range(stages))
    most = map(min, job.forward, job.backward_input)
    exchange = tuple(_SLOT * random.randrange(ticks // _SLOT) for ticks in most)
    exchange = exchange if any(exchange) else ()
    return replace(job, capacity=room, sharding=sharding, exchange=exchange), counts


def optimum_in_rounds(job: JobSpec, failed: FailureSet, best: int, search: Any) -> int | None:
    """The least period of all plans in rounds, if one of this period is known; None if they are too many.

    `search` is `shorten_over_orders`, compiled or not.
    """
    graph = GRAPH_PASSES.run(Target(job, failed))
    left = _MOST
    for shape in _shapes(graph, best):
        problem = rounds_problem(in_rounds(graph, shape), shape)
        # Bounds are not asked here: they are what is compared.
        if problem.floor >= best:
            continue
        words = [list(_words(problem, machine)) for machine in range(problem.machines)]
        left -= int(np.prod([len(each) for each in words], dtype=np.float64))
        if left < 0:
            return None
        best = _shortened(problem, words, best, search)
    return best


def _shapes(graph: Graph, best: int) -> Iterator[Shape]:
    """All sizes of rounds whose load lets them be better than the best."""
    job = graph.job
    units, live = job.pipelines * job.microbatches, graph.target.live
    sizes: list[list[Sizes]] = []
    for stage, workers in enumerate(live):
        each = job.forward[stage] + job.backward_input[stage] + always_left(job, stage)
        most = min(units, (best - 1) // each)
        sizes.append(list(_compositions(units, len(workers), most)))
    # Few rounds first: they are mostly best, and make others needless.
    for each in sizes:
        each.sort(key=len)
    yield from product(*sizes)


def _compositions(units: int, most: int, parts: int) -> Iterator[Sizes]:
    """So many in a row of numbers up to `most`, of no more than so many parts."""
    if units == 0:
        yield ()
    elif parts * most >= units:
        for first in range(min(units, most), 0, -1):
            yield from ((first, *rest) for rest in _compositions(units - first, most, parts - 1))


def _words(problem: RoundsProblem, machine: int) -> Iterator[tuple[int, ...]]:
    """Orders of one machine that memory allows."""
    lines = np.flatnonzero(problem.machine == machine).tolist()
    counts = {line: int(problem.first[line + 1] - problem.first[line]) for line in lines}

    def extend(word: tuple[int, ...], done: tuple[int, ...], held: int) -> Iterator[tuple[int, ...]]:
        if len(word) == sum(counts.values()):
            yield word
        for place, line in enumerate(lines):
            is_open = done[place] < counts[line] and (place == 0 or done[place] < done[place - 1])
            if not is_open or 0 <= problem.capacity[machine] < held + problem.takes[line]:
                continue
            op = int(problem.first[line]) + done[place]
            after = (*done[:place], done[place] + 1, *done[place + 1 :])
            yield from extend((*word, op), after, held + int(problem.takes[line] - problem.frees[line]))

    yield from extend((), (0,) * len(lines), 0)


def _shortened(problem: RoundsProblem, words: list[list[tuple[int, ...]]], best: int, search: Any) -> int:
    lengths = [len(each[0]) for each in words]
    finish = problem.finish if problem.staggered else np.full(problem.machines, problem.finish.max())
    flat = np.concatenate([np.array(each, dtype=np.int64).ravel() for each in words])
    starts = np.cumsum([0, *(len(each) * length for each, length in zip(words, lengths, strict=True))])[:-1]
    counts = np.array([len(each) for each in words], dtype=np.int64)
    bounds = np.cumsum([0, *lengths])
    waits = (problem.waits_first, problem.waits, problem.lag)
    lines = (problem.line, problem.first, problem.part, problem.duration, problem.exchange)
    return int(
        search(flat, starts, counts, bounds, *waits, *lines, finish, problem.staggered, best, problem.grain)
    )


def shorten_over_orders(
    words: Any, starts: Any, counts: Any, bounds: Any, waits_first: Any, waits: Any, lag: Any, line: Any,
    first: Any, part: Any, duration: Any, exchange: Any, finish: Any, staggered: bool, best: int, grain: int,
) -> int:  # fmt: skip
    """The least period of all combinations of orders of each machine, if it is less than the best known."""
    machines = len(counts)
    chosen = np.zeros(machines, dtype=np.int64)
    order = np.zeros(bounds[machines], dtype=np.int64)
    opens = np.zeros(machines, dtype=np.int64)
    end = np.zeros(len(line), dtype=np.int64)
    cursor = np.zeros(machines, dtype=np.int64)
    clock = np.zeros(machines, dtype=np.int64)
    recent = np.zeros(3 * machines, dtype=np.int64)
    among = np.zeros(len(line), dtype=np.int64)
    cost = np.zeros(len(line), dtype=np.int64)
    while True:
        for machine in range(machines):
            length = bounds[machine + 1] - bounds[machine]
            begin = starts[machine] + chosen[machine] * length
            for place in range(length):
                order[bounds[machine] + place] = words[begin + place]
            cost_order(order, machine, bounds, line, first, part, duration, exchange, recent, among, cost)
        while True:
            for machine in range(machines):
                opens[machine] = 0
            if not settle_windows(
                order, bounds, waits_first, waits, lag, cost, finish, staggered, best - grain,
                machines + 1, opens, end, cursor, clock,
            ):  # fmt: skip
                break
            best -= grain
        machine = 0
        while machine < machines:
            chosen[machine] += 1
            if chosen[machine] < counts[machine]:
                break
            chosen[machine] = 0
            machine += 1
        if machine == machines:
            return best


if __name__ == "__main__":
    main()
