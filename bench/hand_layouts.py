"""Free cuts beside layouts that a person would write: `python -m bench.hand_layouts [--seeds N] [--first N]`.

Random jobs in layers on a number of workers that mostly fills no grid. Beside the cut that `recyclec plan
--workers` finds there are layouts as people write them: every number of stages, layers divided as evenly as
can be with the longer stages first or last, workers as evenly or in proportion to layers, and after that any
single layer or worker moved. Those whose bound is below the free cut get a whole plan. No such plan should be
faster by more than 0.5 %.
"""

import argparse
import random
from collections.abc import Iterator
from typing import NamedTuple

from bench.report import percent
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.planner.cut_bounds import FAR
from recycle_compiler.planner.layout_bounds import layout_bound
from recycle_compiler.planner.recut import fastest_recut, neighbours, plan_layout
from recycle_compiler.scheduling.budget import Guard

_ALLOWED = 0.005
_PLANNED = 12
"""Layouts of a job that get a whole plan, those with the best bounds."""
_JOB = """job hand-{seed} {{
  parallel {{ workers = {workers} }}
  batch    {{ microbatches = {microbatches} }}
  layers   {{ count = {layers}  unit = slot  forward = {forward}  backward_input = {backward}
             backward_weight = {weight}  optimizer = {optimizer}  transfer = {transfer} }}
  {memory}
  tolerate {{ failures = 0  redundancy = {redundancy} }}
}}
"""


class Row(NamedTuple):
    """One random job; periods in ticks."""

    seed: int
    layers: int
    workers: int
    free: int
    layout: Layout
    bound: int
    hand: int
    """Of the fastest that was tried."""
    by_hand: Layout | None

    @property
    def is_behind(self) -> bool:
        return self.free > self.hand * (1 + _ALLOWED)


def random_job(seed: int) -> tuple[JobSpec, int]:
    """A job in layers, and its workers."""
    draw = random.Random(seed)
    layers, workers = draw.randint(5, 24), draw.randint(3, 13)
    steps = [draw.choice((2, 3, 4)) for _ in range(layers)]
    if draw.random() < 0.5:
        steps = [draw.choice((2, 3, 4))] * layers
    listed = "[" + ", ".join(map(str, steps)) + "]"
    redundancy = draw.choice((1, 2))
    # Room for one micro-batch of the largest stage and a few more; mostly too little for the whole model.
    fewest = -(-layers // max(1, workers // redundancy))
    capacity = draw.randint(fewest + 1, max(fewest + 1, 3 * layers // 2))
    text = _JOB.format(
        seed=seed,
        workers=workers,
        microbatches=draw.choice((8, 12, 16, 24, 30)),
        layers=layers,
        forward=listed,
        backward=listed,
        weight=listed,
        optimizer=draw.choice((0, 2)),
        transfer=draw.choice((0, 1, 3)),
        memory=f"memory {{ capacity = {capacity} }}",
        redundancy=redundancy,
    )
    return parse_job_text(text, f"hand-{seed}.job"), workers


def hand_layouts(job: JobSpec, workers: int) -> Iterator[Layout]:
    """Layouts that divide layers and workers as evenly as can be, and what is one step from these."""
    assert job.layer_costs is not None
    layers, units = job.layer_costs.count, job.pipelines * job.microbatches
    known: set[Layout] = set()
    for stages in range(1, min(layers, workers // job.redundancy) + 1):
        even = _spread(layers, stages)
        for cut in {even, even[::-1]}:
            for counts in {_spread(workers, stages), _spread(workers, stages)[::-1], _shared(cut, workers)}:
                if job.redundancy <= min(counts) and max(counts) <= units:
                    layout = Layout(cut, counts)
                    known |= {layout, *neighbours(layout, job)}
    yield from sorted(known, key=str)


def _spread(total: int, stages: int) -> tuple[int, ...]:
    return tuple(total // stages + (stage < total % stages) for stage in range(stages))


def _shared(cut: tuple[int, ...], workers: int) -> tuple[int, ...]:
    """In proportion to layers, what is left over to those that have most layers a worker."""
    counts = [max(1, workers * layers // sum(cut)) for layers in cut]
    while sum(counts) < workers:
        slowest = max(range(len(cut)), key=lambda stage: (cut[stage] / counts[stage], -stage))
        counts[slowest] += 1
    return tuple(counts) if sum(counts) == workers else _spread(workers, len(cut))


def row(seed: int) -> Row | None:
    """None where the workers cannot hold the model."""
    job, workers = random_job(seed)
    guard = Guard(10**12)
    found = fastest_recut(job, workers, guard)
    if found is None:
        return None
    recut, least = found
    free = recut.claims.period
    bounds = ((layout_bound(job, one), str(one), one) for one in hand_layouts(job, workers))
    promising = sorted(one for one in bounds if one[0] < min(free, FAR))
    planned = (
        (plan_layout(job, layout, guard).claims.period, str(layout), layout)
        for _, _, layout in promising[:_PLANNED]
    )
    hand, _, by_hand = min(planned, default=(free, "", None))
    return Row(seed, sum(recut.layout.layers), workers, free, recut.layout, least, hand, by_hand)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    rows: list[Row] = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if (one := row(seed)) is None:
            continue
        rows.append(one)
        gap = percent(one.free / one.bound - 1)
        words = f"{seed:5d}  {one.layers:2d} layers on {one.workers:2d}  {one.free:9d}  {gap} over the bound"
        if one.hand < one.free:
            words += f"  by hand {one.hand}, {percent(one.free / one.hand - 1)} faster: {one.by_hand}"
        print(words, flush=True)
    behind = sum(one.is_behind for one in rows)
    gaps = sorted(one.free / one.bound - 1 for one in rows)
    print(
        f"{len(rows)} jobs, {behind} where a layout by hand is over 0.5 % faster; gap to the bound over all "
        f"layouts: median {percent(gaps[len(gaps) // 2])}, worst {percent(gaps[-1])}"
    )
    unused = [one for one in rows if sum(one.layout.workers) < one.workers]
    print(f"{len(unused)} free cuts leave a worker out")


if __name__ == "__main__":
    main()
