"""Other cuts of a job in layers: for each number of failures, the layout in which its workers are fastest.

    layouts     the dynamic program names, for each number of stages, a layout that its bound likes
    climbed     single layers and workers are shifted while the whole bound of the layout gets better
    ranked      quick plans of the best few, since bounds mislead where memory is tight
    planned     whole plans of the best of these, and of those that move few bytes from one number of failures
                to the next; with each a plan that covers one more failure on any stage
    again       where the fastest is far above what is known of all cuts, its search begins again a few times;
                that for no failures is searched at length
    chosen      for each number of failures the fastest, and one of those within 1 % of it, so that the fewest
                bytes move between the layouts for one failure more and one fewer

The job's own cut is a candidate always. A layout for more failures serves for fewer too, with workers on
standby, so that one failure fewer is never slower.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from recycle_compiler.ir.failure import FailureSet, failed_per_stage, normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, absent_cells, halved, job_of_layout
from recycle_compiler.ir.streams import Claims, Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.standard import GRAPH_PASSES, all_passes
from recycle_compiler.planner.cut_bounds import FAR, MOST_LAYERS, layout_period
from recycle_compiler.planner.layout_bounds import (
    Proven,
    RaisedBound,
    has_room,
    layout_bound,
    raised_bound,
)
from recycle_compiler.planner.layouts import Layouts, roughness
from recycle_compiler.planner.worker_processes import Run
from recycle_compiler.scheduling.budget import Guard, Sizes
from recycle_compiler.scheduling.search import Effort
from recycle_runtime.plan.recut import least_bytes

_CLIMBED = 6
"""Layouts of the dynamic program from which to climb."""
_MOST_BOUNDS = 400
"""Bounds of layouts that are computed at most for one number of failures."""
_FEW_BOUNDS = 7
"""Bounds computed in a large job for the best layouts, and as many for the smoothest."""
_FEWER_BOUNDS = 5
"""Bounds computed like `_FEW_BOUNDS` in a job with more than `_COUNTS` workers."""
_BOUND_OPS = 600_000
"""Ops of all layouts together at which a large job computes no more bounds."""
_COMPARED_OPS = 40_000
"""Ops from which on a layout is too deep to be compared with small ones: its bounds take long."""
_MOST_TRIED = 24
"""Layouts that get a quick plan."""
_CLIMBED_BY_PLANS = 3
"""Of a small job, layouts with the best quick plans from which to climb once more, by quick plans."""
_STEPS = 5
"""Of such a climb."""
_RAISED_FROM = 1005
"""Thousandths of the bound over all cuts: where the fastest plan of a small job is above them, all layouts
are compared by their whole bounds."""
_PROMISING = 12
"""Of these layouts, those that get a quick plan."""
_NEIGHBOURS = 10
"""Layouts that are tried before each step, those with the best bounds."""
_TRIED_OPS = 200_000
"""In a large job layouts are tried until their quick plans have so many ops together, but two at least."""
_COUNTS = 192
"""A job of more workers has layouts for every second, third ... number of failures; one with a worker on
standby serves for the numbers between."""
_CLIFF = 980
"""Thousandths of a bound: where one failure fewer goes below them, that number has layouts of its own."""
_WHOLE_PLANS = 6
"""Layouts of a small job that get a whole plan for one number of failures: quick plans of small jobs err."""
_PLANS_ON_DEMAND = 2
"""The same for a number of workers that a running job asks about."""
_ROUNDS = 60
"""Rounds of the search that whole plans of large layouts share."""
_FAR_ABOVE = 1020
"""Thousandths of the bound over all cuts: where the fastest plan is above them, it is searched for again."""
_SEEDS = (1, 2, 3)
"""Of the searches for such a plan, beside the job's own."""
_AGAIN_OPS = 250_000
"""Large layouts are searched again until these plans have so many ops together."""
_CLOSE = 1001
"""The layout for no failures, the most frequent one, is searched at length unless it is within so many
thousandths of its bound over one cut."""
_NEAR = 1010
"""Thousandths of the fastest period: among layouts within it, the one that moves fewest bytes is chosen."""
_WORTH = 998
"""Thousandths of the own cut's period that another cut must stay below to be worth a place in the bundle."""


@dataclass(frozen=True, slots=True)
class RecutPlans:
    """The plans of one layout."""

    layout: Layout
    split: int
    """Into how many parts every micro-batch is split, one or two."""
    plans: tuple[Streams, ...]
    """For all its workers; then, if there is one, the plan that covers a failure more on any stage."""

    @property
    def claims(self) -> Claims:
        return self.plans[0].claims

    @property
    def key(self) -> "Key":
        return self.layout, self.split


class Ranked(NamedTuple):
    """A layout that was tried."""

    period: int
    """Of a quick plan."""
    bound: int
    """Lower bound on the period of this layout."""
    layout: Layout
    split: int = 1

    @property
    def key(self) -> "Key":
        return self.layout, self.split


Key = tuple[Layout, int]
"""A layout, and into how many parts micro-batches are split."""


class FoundRecuts(NamedTuple):
    """Plans and bounds that the search over cuts found."""

    made: list[RecutPlans]
    """Layouts that some number of failures chose; those with most workers first."""
    bounds: dict[int, int]
    """For each number of failures, what no plan under one cut goes below."""
    cut_short: frozenset[int]
    """Numbers of failures whose layouts there was no time to compare to the end."""

    def best(self, workers: int, own_period: int) -> RecutPlans | None:
        """The fastest layout for so many workers or fewer; None where the own cut is as fast."""
        fitting = (recut for recut in self.made if sum(recut.layout.workers) <= workers)
        fastest = min(fitting, key=lambda recut: recut.claims.period, default=None)
        return fastest if fastest is not None and fastest.claims.period < own_period else None


Own = Mapping[int, Streams]
"""Plans of the own cut, by the number of failures."""


def why_own_cut(job: JobSpec) -> str | None:
    """Reason why a job in layers keeps its own cut, in words; None if other cuts are worth looking for."""
    costs = job.layer_costs
    assert costs is not None, "a job in layers"
    if costs.count > MOST_LAYERS:
        return f"it has {costs.count} layers, and cuts are compared up to {MOST_LAYERS}"
    if not job.techniques.adaptive:
        return "without the technique `adaptive` micro-batches stay in their pipelines"
    return "it has one layer" if costs.count == 1 else None


def can_recut(job: JobSpec) -> bool:
    """True if other cuts are worth looking for."""
    return job.layer_costs is not None and why_own_cut(job) is None


def plan_recuts(job: JobSpec, own: Own, run: Run, guard: Guard) -> FoundRecuts:
    """The best layouts for as many failures as there are plans of the own cut."""
    assert job.layer_costs is not None, "a job in layers"
    layer_bytes = job.layer_costs.parameters
    least = _least_periods(job, sorted(own))
    bounds = {
        failures: min([plan.claims.lower_bound, *least[failures].values()])
        for failures, plan in sorted(own.items())
    }
    found: dict[int, list[Ranked]] = {}
    over_cuts: dict[int, dict[int, RaisedBound]] = {}
    hurried: set[int] = set()

    def compare(counts: list[int]) -> None:
        # That without failures first: when the guard strikes, others suffer.
        ordered = sorted(counts, key=lambda failures: (failures > min(own), -failures))
        tasks = ((job, own[failures].claims, failures, guard, least[failures]) for failures in ordered)
        for failures, ranked, raised, was_cut_short in run(_ranked, tasks):
            found[failures], over_cuts[failures] = ranked, raised
            hurried.update({failures} if was_cut_short else ())
            hold(failures, min(one.period for one in raised.values()))

    def hold(failures: int, bound: int) -> None:
        # What holds for more workers holds for fewer too.
        for fewer in (one for one in bounds if one >= failures):
            bounds[fewer] = max(bounds[fewer], min(own[fewer].claims.lower_bound, bound))

    counts = counts_with_layouts(job, bounds)
    compare([failures for failures, may_wait in counts if not may_wait])
    waiting = (failures for failures, may_wait in counts if may_wait)
    compare([failures for failures in waiting if not _is_served(failures, bounds, found)])
    compare(above_steps(bounds, found))
    tried = sorted(found)
    choices = [_near([_own(job, own[failures]), *found[failures]]) for failures in tried]
    path = dict(zip(tried, least_moved(choices, layer_bytes), strict=True))
    wanted = _worth_planning(job, own, found, path)
    wanted -= {_own(job, plan).key for plan in own.values()}
    # Those without failures first, then the largest: a long one at the end would keep the others waiting.
    every = job.workers - min(own)
    order = sorted(
        wanted, key=lambda key: (sum(key[0].workers) < every, -_ops(job, key[0]), *_by_workers(key))
    )
    rounds = max(1, _ROUNDS // max(1, len(order)))
    made: list[RecutPlans] = sorted(
        run(_planned, ((job, key, guard, rounds) for key in order)),
        key=lambda one: _by_workers(one.key),
    )
    proven = _proven(made)
    for failures, raised in over_cuts.items():
        hold(failures, min(one.with_proven(proven[split]) for split, one in raised.items()))
    above = _far_above(job, own, made, bounds)
    known = {one.key for one in made}
    searches = [
        *(one for key in _not_close(job, own, made, bounds) if key in known for one in _at_length(job, key)),
        *_from_seeds(job, [key for key in dict.fromkeys(above.values()) if key in known]),
    ]
    made = _searched_again(job, made, searches, run, guard)
    hurried |= {failures for failures, key in above.items() if key in known and guard.strikes()}
    # What fewer workers can run, more can run too.
    fitting = [
        _near([_own(job, own[failures]), *(_rank(one) for one in made if _fits(one, job, failures))])
        for failures in sorted(own)
    ]
    # The fastest are kept as well: whoever runs the job knows what its workers hold, and weighs that.
    chosen = {*least_moved(fitting, layer_bytes), *(_fastest(row).key for row in fitting)}
    for failures in own:
        whole = [_rank(one) for one in made if one.split == 1 and _fits(one, job, failures)]
        if whole and _fastest(whole).period < own[failures].claims.period:
            chosen.add(_fastest(whole).key)
    chosen_cuts = [with_bound_over(recut, job, bounds) for recut in made[::-1] if recut.key in chosen]
    # Numbers without layouts of their own have those of the next larger one that has.
    short = {count for count in own if min(more for more in tried if more >= count) in hurried}
    return FoundRecuts(chosen_cuts, bounds, frozenset(short))


def _far_above(job: JobSpec, own: Own, made: list[RecutPlans], bounds: Mapping[int, int]) -> dict[int, Key]:
    """For each number of failures whose fastest layout is far above its bound over all cuts, that layout."""
    above: dict[int, Key] = {}
    for failures in sorted(own):
        fastest = _fastest_plan(job, own, made, failures)
        if fastest.period * 1000 > bounds[failures] * _FAR_ABOVE:
            above[failures] = fastest.key
    return above


class _Again(NamedTuple):
    """One more search for the plan of a layout."""

    key: Key
    seed: int
    """Beside the job's own."""
    effort: Effort

    @property
    def rank(self) -> tuple[int, bool]:
        return self.seed, self.effort.extras_apart


def _not_close(job: JobSpec, own: Own, made: list[RecutPlans], bounds: Mapping[int, int]) -> list[Key]:
    """The fastest layout for the fewest failures, if it is worth a search at length."""
    failures = min(own)
    fastest = _fastest_plan(job, own, made, failures)
    is_close = fastest.period * 1000 <= bounds[failures] * _CLOSE
    is_due = job.workers <= _COUNTS and Sizes.LARGE < _ops_of(job, fastest.key) <= Sizes.HUGE
    return [fastest.key] if is_due and not is_close else []


def _at_length(job: JobSpec, key: Key) -> list[_Again]:
    """Tabu searches, on the usual routes and, where some workers have one more, with extras apart."""
    layout, split = key
    units = job.pipelines * job.microbatches * split
    efforts = [replace(Effort(), searched_ops=Sizes.HUGE)]
    if any(units % workers for workers in layout.workers):
        efforts.append(replace(efforts[0], extras_apart=True))
    return [_Again(key, _SEEDS[0], effort) for effort in efforts]


def _from_seeds(job: JobSpec, wanted: list[Key]) -> Iterator[_Again]:
    """The usual search from other seeds, for as many layouts as there are ops for."""
    left = _AGAIN_OPS
    for seed in _SEEDS:
        for key in wanted:
            ops = _ops_of(job, key)
            if ops <= left:
                yield _Again(key, seed, Effort())
                left -= ops if ops > Sizes.LARGE else 0


def _searched_again(
    job: JobSpec, made: list[RecutPlans], tasks: list[_Again], run: Run, guard: Guard
) -> list[RecutPlans]:
    """All layouts, with the fastest of their plans from these searches."""
    if not tasks or guard.strikes():
        return made
    found: list[tuple[_Again, Streams]] = [*run(_planned_again, ((job, task, guard) for task in tasks))]
    plans = {one.key: one.plans[0] for one in made}
    for again, plan in sorted(found, key=lambda one: (one[1].claims.period, one[0].rank)):
        if plan.claims.period < plans[again.key].claims.period:
            plans[again.key] = plan
    return [replace(one, plans=(plans[one.key], *one.plans[1:])) for one in made]


def _planned_again(task: tuple[JobSpec, _Again, Guard]) -> tuple[_Again, Streams]:
    """The whole plan of a layout by another search than the first."""
    job, again, guard = task
    layout, split = again.key
    derived = job_of_layout(variants(job)[split], layout)
    slots = AssignSlots(again.effort, guard, seed=job.solver.seed + again.seed)
    return again, all_passes(slots).run(Target(derived, absent_cells(derived, layout)))


def _worth_planning(
    job: JobSpec, own: Own, found: Mapping[int, list[Ranked]], path: Mapping[int, Key]
) -> set[Key]:
    """Layouts that get a whole plan: those that move few bytes, and the fastest."""
    wanted: set[Key] = set()
    known = FAR
    many = job.workers > _COUNTS
    worth = _WORTH if many else 1000
    # From the most failures: what fewer workers run as fast is not planned again for more of them.
    for failures in sorted(found, reverse=True):
        ranked = found[failures]
        if ranked and _ops(job, ranked[0].layout) > Sizes.LARGE:
            fastest = ranked[0]
            # A whole plan comes near the bound where a quick one does not.
            promised = min(fastest.period, fastest.bound * _NEAR // 1000)
            known = min(known, own[failures].claims.period)
            if promised * 1000 >= known * worth:
                continue
            # One that moves less takes the place of the fastest if it is nearly as fast.
            near = [one for one in ranked if one.key == path[failures]]
            chosen = near[0] if near and near[0].period * worth <= fastest.period * 1000 else fastest
            wanted.update([chosen.key] if many else [chosen.key, path[failures]])
            known = min(known, chosen.period)
        else:
            wanted.update([path[failures], *(one.key for one in _hopeful(ranked, _WHOLE_PLANS))])
        # Runs take no plan that splits micro-batches yet.
        wanted.update([one.key for one in ranked if one.split == 1][:1] if job.split_ppm is not None else [])
    return wanted


def _hopeful(ranked: list[Ranked], number: int) -> list[Ranked]:
    """The first, and the one that holds the bound over all down: it is faster, or its bound is higher."""
    return list(dict.fromkeys([*ranked[:number], *sorted(ranked, key=lambda one: one.bound)[:1]]))


def variants(job: JobSpec) -> dict[int, JobSpec]:
    """The job with its micro-batches whole and, if it may be, with all of them split in two."""
    return {1: job} if job.split_ppm is None else {1: job, 2: halved(job)}


def _by_workers(key: Key) -> tuple[int, int, str]:
    layout, split = key
    return sum(layout.workers), split, str(layout)


def _fits(recut: RecutPlans, job: JobSpec, failures: int) -> bool:
    return sum(recut.layout.workers) <= job.workers - failures


def _rank(recut: RecutPlans) -> Ranked:
    return Ranked(recut.claims.period, recut.claims.lower_bound, recut.layout, recut.split)


def _ops(job: JobSpec, layout: Layout) -> int:
    return 3 * job.pipelines * job.microbatches * layout.stages


def _ops_of(job: JobSpec, key: Key) -> int:
    """With as many micro-batches as they are split into."""
    return _ops(job, key[0]) * key[1]


def is_large(job: JobSpec, layout: Layout) -> bool:
    """True if a quick plan says as much as a whole one about which layout is better."""
    return _ops(job, layout) > Sizes.LARGE


Least = dict[int, int]
"""Lower bound on the period of any cut, for each way to split micro-batches that has a cut at all."""


def _least_periods(job: JobSpec, counts: Sequence[int]) -> dict[int, Least]:
    """For each number of failures, from the fewest."""
    least: dict[int, Least] = {failures: {} for failures in counts}
    for split, variant in variants(job).items():
        layouts = Layouts(variant, job.workers)
        period = 0
        for failures in counts:
            # Fewer workers are never faster.
            found = layouts.least_period(job.workers - failures, period)
            if found is None:
                break
            least[failures][split] = period = found
    return least


def counts_with_layouts(job: JobSpec, bounds: Mapping[int, int]) -> list[tuple[int, bool]]:
    """Numbers of failures that get layouts of their own, from the most; and whether one may wait for others.

    Of many workers one more or less is worth little: layouts lie some numbers apart, and further where their
    bounds are equal. These wait: what more failures have may be as good.
    """
    step = -(-job.workers // _COUNTS)
    taken = [(max(bounds), False)]
    for failures in sorted(bounds, reverse=True)[1:]:
        last = taken[-1][0]
        is_better = bounds[failures] * 1000 < bounds[last] * _WORTH
        is_cliff = bounds[failures] * 1000 < bounds[last] * _CLIFF
        is_due = last - failures >= step and (step == 1 or is_better)
        if is_due or is_cliff or failures == min(bounds):
            taken.append((failures, False))
        elif last - failures >= 3 * step:
            taken.append((failures, True))
    return taken


def _is_served(failures: int, bounds: Mapping[int, int], found: Mapping[int, list[Ranked]]) -> bool:
    """True if a layout for more failures has a quick plan near what no plan for these goes below."""
    return _quickest(failures, found) * 1000 <= bounds[failures] * _NEAR


def above_steps(bounds: Mapping[int, int], found: Mapping[int, list[Ranked]]) -> list[int]:
    """Numbers without layouts of their own whose plans are far slower than those for one failure fewer, and
    may be faster."""
    return [
        failures
        for failures in sorted(bounds.keys() - found, reverse=True)
        if _quickest(failures, found) * 1000 > bounds[failures] * _FAR_ABOVE
        and _quickest(failures - 1, found) * 1000 < _quickest(failures, found) * _CLIFF
    ]


def _quickest(failures: int, found: Mapping[int, list[Ranked]]) -> int:
    """The shortest period of a quick plan for these failures or more."""
    periods = (one.period for more, ranked in found.items() if more >= failures for one in ranked)
    return min(periods, default=FAR)


def _ranked(
    task: tuple[JobSpec, Claims, int, Guard, Least],
) -> tuple[int, list[Ranked], dict[int, RaisedBound], bool]:
    """Layouts for the workers that so many failures leave, fastest first; what no cut goes below, for either
    way to split micro-batches; and whether time was short."""
    job, own, failures, guard, least = task
    if guard.strikes():
        return failures, [], {1: _known(0)}, True
    workers = job.workers - failures
    ranked: list[Ranked] = []
    bounds: dict[int, RaisedBound] = {}
    for split, variant in variants(job).items():
        fastest = min((one.period for one in ranked), default=own.period)
        if split in least and least[split] * 1000 < own.period * _WORTH:
            layouts = Layouts(variant, job.workers)
            ranked += _compared(variant, split, layouts, workers, fastest, guard)
            fastest = min((one.period for one in ranked), default=own.period)
            bounds[split] = _raised(variant, layouts, workers, least[split], fastest, guard)
            ranked += _promising(variant, split, bounds[split], ranked, workers, guard)
        else:
            bounds[split] = _known(least.get(split, FAR))
    return failures, sorted(ranked, key=_by_period), bounds, guard.struck


def _known(least: int) -> RaisedBound:
    """A bound that knows no layout for itself."""
    return RaisedBound(least, (), least)


def _raised(
    job: JobSpec,
    layouts: Layouts,
    workers: int,
    least: int,
    known: int,
    guard: Guard,
) -> RaisedBound:
    """The bound over all layouts of a small job, where the fastest known is far above it."""
    is_near = known * 1000 <= least * _RAISED_FROM
    if is_near or workers > _COUNTS or guard.strikes():
        return _known(least)
    deepest = Sizes.LARGE // (3 * layouts.units)
    return raised_bound(job, layouts, workers, least, known, deepest, guard)


def _proven(made: Sequence[RecutPlans]) -> dict[int, Proven]:
    """The bounds of layouts that have whole plans, for either way to split micro-batches."""
    return {
        split: {one.layout: one.claims.lower_bound for one in made if one.split == split} for split in (1, 2)
    }


def _promising(
    job: JobSpec, split: int, raised: RaisedBound, ranked: list[Ranked], workers: int, guard: Guard
) -> list[Ranked]:
    """Quick plans of layouts that were not tried, and whose whole bounds leave them room to be faster; and of
    the fastest of all with workers that it leaves out."""
    known = {one.layout for one in ranked}
    others = [(bound, layout) for bound, layout in raised.promising if layout not in known]
    fastest = min((one.period for one in ranked), default=FAR)
    tried = _tried(job, split, others[:_PROMISING], fastest, guard)
    best = min([*ranked, *tried], default=None, key=_by_period)
    return tried if best is None else [*tried, *_with_spare_workers(job, best, workers, guard)]


def _with_spare_workers(job: JobSpec, best: Ranked, workers: int, guard: Guard) -> Iterator[Ranked]:
    """Quick plans of the layout with one worker more at a time, as long as that helps.

    Bounds see no use in a worker that leaves the largest share of its stage as it is; plans do.
    """
    units = job.pipelines * job.microbatches
    for _ in range(workers - sum(best.layout.workers)):
        layers, counts = best.layout.layers, best.layout.workers
        larger = [
            Layout(layers, (*counts[:stage], count + 1, *counts[stage + 1 :]))
            for stage, count in enumerate(counts)
            if count < units
        ]
        promised = sorted(((layout_bound(job, one), one) for one in larger), key=_by_bound)
        tried = _tried(job, best.split, promised, best.period, guard)
        fastest = min(tried, default=best, key=_by_period)
        # As fast with a lower bound: the whole plan is likely to be faster.
        if _by_period(fastest) >= _by_period(best):
            return
        yield fastest
        best = fastest


def _compared(
    job: JobSpec, split: int, layouts: Layouts, workers: int, fastest: int, guard: Guard
) -> list[Ranked]:
    """Layouts for so many workers that may be faster than this, by quick plans."""
    tried = _tried(job, split, climbed(job, layouts, workers), fastest, guard)
    return _climbed_by_plans(job, tried, guard)


def fastest_recut(
    job: JobSpec, workers: int, guard: Guard, *, split: bool = False
) -> tuple[RecutPlans, int] | None:
    """The fastest layout found for so many workers, or fewer, and what no plan of any cut goes below.

    None if they cannot hold all layers. For a job that runs: fewer layouts get a whole plan than in a bundle.
    With `split`, every micro-batch is in two.
    """
    variant = halved(job) if split else job
    layouts = Layouts(variant, workers)
    least = layouts.least_period(workers)
    if least is None:
        return None
    parts = 2 if split else 1
    ranked = sorted(_compared(variant, parts, layouts, workers, FAR, guard), key=_by_period)
    if not ranked:
        return None
    raised = _raised(variant, layouts, workers, least, ranked[0].period, guard)
    ranked = sorted([*ranked, *_promising(variant, parts, raised, ranked, workers, guard)], key=_by_period)
    few = ranked[:1]
    if _ops(variant, ranked[0].layout) <= Sizes.LARGE:
        few = _hopeful(ranked, _PLANS_ON_DEMAND)
    made = [_planned((job, one.key, guard, _ROUNDS)) for one in few]
    fastest = min(made, key=lambda one: (one.claims.period, _by_workers(one.key)))
    return fastest, raised.with_proven(_proven(made)[parts])


def plan_layout(job: JobSpec, layout: Layout, guard: Guard) -> RecutPlans:
    """A prompt plan of a layout, and one that covers one failure more: for a job that waits."""
    return _plans_of(job, (layout, 1), Effort().prompt(), guard)


def fastest_layouts(job: JobSpec, workers: int, guard: Guard) -> list[Layout]:
    """Layouts for so many workers, those with the fastest quick plans first; none if they hold too little."""
    ranked = _compared(job, 1, Layouts(job, workers), workers, FAR, guard)
    return [one.layout for one in sorted(ranked, key=_by_period)]


def fastest_layout(job: JobSpec, workers: int) -> tuple[Layout, int | None] | None:
    """The layout for so many workers or fewer that seems fastest, and the period of a quick plan of it.

    For simulations, which ask for many: in a large job bounds alone compare, and there is no such period.
    None if the workers cannot hold all layers. One worker more is never slower: fewer are looked at as long
    as their bound is below what has been found.
    """
    best: _Quickest | None = None
    for count in range(workers, 0, -1):
        least = Layouts(job, count).least_period(count)
        if least is None or (best is not None and least >= best.value):
            break
        found = _quickest_with(job, count)
        if found is not None and (best is None or found.value < best.value):
            best = found
    return None if best is None else (best.layout, best.period)


class _Quickest(NamedTuple):
    """The layout for a number of workers that seems fastest."""

    value: int
    """Its period, or the bound of a large one."""
    layout: Layout
    period: int | None
    """Of its quick plan."""


@lru_cache(maxsize=1024)
def _quickest_with(job: JobSpec, workers: int) -> _Quickest | None:
    """A simulation of many fleets asks for the same ones again."""
    choices = climbed(job, Layouts(job, workers), workers)
    if not choices:
        return None
    bound, layout = choices[0]
    if _ops(job, layout) > Sizes.LARGE:
        return _Quickest(bound, layout, None)
    best = min(_tried(job, 1, choices, FAR, Guard(job.solver.time_limit_ns)), key=_by_period)
    return _Quickest(best.period, best.layout, best.period)


def _tried(
    job: JobSpec, split: int, layouts: list[tuple[int, Layout]], fastest: int, guard: Guard
) -> list[Ranked]:
    """Quick plans of those layouts that may still be the fastest; of one, however little time is left."""
    ranked: list[Ranked] = []
    ops = 0
    for promised, layout in layouts:
        is_large = _ops(job, layout) > Sizes.LARGE
        enough = len(ranked) >= _MOST_TRIED or (is_large and len(ranked) >= 2 and ops >= _TRIED_OPS)
        if promised >= fastest or enough or (ranked and guard.strikes()):
            continue
        claims = quick_plan(job, layout, guard)
        ranked.append(Ranked(claims.period, promised, layout, split))
        fastest = min(fastest, claims.period)
        ops += _ops(job, layout)
    return ranked


def _climbed_by_plans(job: JobSpec, ranked: list[Ranked], guard: Guard) -> list[Ranked]:
    """Layouts of a small job and what is near the best of them, as long as a quick plan gets better."""
    known = {one.layout for one in ranked}
    for start in sorted(ranked, key=_by_period)[:_CLIMBED_BY_PLANS]:
        best = start
        for _ in range(_STEPS):
            if _ops(job, best.layout) > Sizes.LARGE or guard.strikes():
                break
            nearby = [*neighbours(best.layout, job), *regrouped(best.layout, job)]
            promised = sorted(
                (layout_period(job, one), one.stages, str(one), one) for one in nearby if one not in known
            )
            bounds = [
                (max(bound, layout_bound(job, layout)), layout)
                for bound, _, _, layout in promised[:_NEIGHBOURS]
                if bound < best.period
            ]
            nearer = [
                Ranked(quick_plan(job, layout, guard).period, bound, layout, best.split)
                for bound, layout in bounds
                if bound < best.period
            ]
            known.update(one.layout for one in nearer)
            ranked = [*ranked, *nearer]
            better = min(nearer, default=best, key=_by_period)
            if better.period >= best.period:
                break
            best = better
    return ranked


def _by_period(ranked: Ranked) -> tuple[int, int, int, int, str]:
    return ranked.period, ranked.bound, *_by_workers(ranked.key)


def regrouped(layout: Layout, job: JobSpec) -> list[Layout]:
    """Layouts in which two stages next to each other are one, or one is two."""
    found: list[Layout] = []
    stages = list(zip(layout.layers, layout.workers, strict=True))
    units = job.pipelines * job.microbatches
    for index, (layers, workers) in enumerate(stages):
        before, after = stages[:index], stages[index + 1 :]
        if after and workers + after[0][1] <= units:
            both = (layers + after[0][0], workers + after[0][1])
            found.append(_layout([*before, both, *after[1:]]))
        for first in range(1, layers):
            # Workers in proportion to layers.
            share = max(job.redundancy, round(workers * first / layers))
            if workers - share >= job.redundancy:
                found.append(_layout([*before, (first, share), (layers - first, workers - share), *after]))
    return found


def _layout(stages: list[tuple[int, int]]) -> Layout:
    layers, workers = zip(*stages, strict=True)
    return Layout(layers, workers)


def climbed(job: JobSpec, layouts: Layouts, workers: int) -> list[tuple[int, Layout]]:
    """Layouts with the best whole bounds, best first: those of the dynamic program, and what is near them."""
    choices = [choice.layout for choice in layouts.near(workers)]
    if choices and _ops(job, choices[0]) > Sizes.LARGE:
        smooth = sorted(choices, key=roughness)
        number = _FEW_BOUNDS if job.workers <= _COUNTS else _FEWER_BOUNDS
        pairs = zip(choices[:number], smooth[:number], strict=True)
        few = dict.fromkeys(layout for pair in pairs for layout in pair)
        sums = accumulate((_ops(job, one) for one in few), initial=0)
        looked_at = [one for one, before in zip(few, sums, strict=False) if before < _BOUND_OPS]
        return sorted(((layout_bound(job, one), one) for one in looked_at), key=_by_bound)
    wide = (choice.layout for choice in layouts.near(workers, wide=True))
    choices = [layout for layout in wide if _ops(job, layout) <= _COMPARED_OPS]
    known: dict[Layout, int] = {}

    def bound(layout: Layout) -> int:
        if layout not in known:
            known[layout] = layout_bound(job, layout)
        return known[layout]

    for start in sorted(choices, key=lambda layout: (bound(layout), layout.stages))[:_CLIMBED]:
        best = start
        while len(known) < _MOST_BOUNDS:
            nearer = [one for one in neighbours(best, job) if layouts.period(one) < bound(best)]
            better = next((one for one in nearer if bound(one) < bound(best)), None)
            if better is None:
                break
            best = better
    return sorted(((bound, layout) for layout, bound in known.items()), key=_by_bound)


def _by_bound(entry: tuple[int, Layout]) -> tuple[int, int, str]:
    return entry[0], entry[1].stages, str(entry[1])


def neighbours(layout: Layout, job: JobSpec, changing: Collection[int] | None = None) -> list[Layout]:
    """Layouts that differ by one layer moved over a border, or by one worker moved to another stage.

    If some stages are named, workers move from or to these only.
    """
    found: list[Layout] = []
    layers, workers = layout.layers, layout.workers
    for stage in range(layout.stages - 1):
        for here, there in ((stage, stage + 1), (stage + 1, stage)):
            if layers[here] > 1:
                found.append(Layout(_shifted(layers, here, there), workers))
    units = job.pipelines * job.microbatches
    for here in range(layout.stages):
        for there in range(layout.stages):
            if changing is not None and here not in changing and there not in changing:
                continue
            if here != there and workers[here] > job.redundancy and workers[there] < units:
                found.append(Layout(layers, _shifted(workers, here, there)))
    return found


def _shifted(values: tuple[int, ...], here: int, there: int) -> tuple[int, ...]:
    changed = list(values)
    changed[here] -= 1
    changed[there] += 1
    return tuple(changed)


def quick_plan(job: JobSpec, layout: Layout, guard: Guard) -> Claims:
    """Claims of a quick plan of a layout."""
    derived = job_of_layout(job, layout)
    if not has_room(derived):
        return Claims(FAR, FAR, FAR, "memory")
    is_large = _ops(job, layout) > Sizes.LARGE
    effort = Effort().least() if is_large else replace(Effort().quick(), wide=True)
    passes = GRAPH_PASSES >> AssignSlots(effort, guard)
    return passes.run(Target(derived, absent_cells(derived, layout))).claims


def _planned(task: tuple[JobSpec, Key, Guard, int]) -> RecutPlans:
    """The whole plan of a layout, and one that covers one failure more on any stage of several workers."""
    job, key, guard, rounds = task
    effort = Effort()
    if _ops(job, key[0]) > Sizes.LARGE:
        effort = replace(effort, rounds=min(rounds, effort.rounds))
    return _plans_of(job, key, effort, guard)


def _plans_of(job: JobSpec, key: Key, effort: Effort, guard: Guard) -> RecutPlans:
    layout, split = key
    derived = job_of_layout(variants(job)[split], layout)
    absent = absent_cells(derived, layout)
    plans = [_plan(derived, absent, effort, guard)]
    missing = failed_per_stage(absent, derived.stages)
    covering = tuple(count + (workers > 1) for count, workers in zip(missing, layout.workers, strict=True))
    if covering != missing and has_room(derived.left_by(covering)):
        plans.append(_plan(derived, normal_form(covering, derived.pipelines), Effort().least(), guard))
    return RecutPlans(layout, split, tuple(plans))


def _plan(job: JobSpec, failed: FailureSet, effort: Effort, guard: Guard) -> Streams:
    return all_passes(AssignSlots(effort, guard)).run(Target(job, failed))


def _own(job: JobSpec, plan: Streams) -> Ranked:
    """The own cut, with the workers that a plan leaves on each stage."""
    failed = failed_per_stage(plan.failed, job.stages)
    layout = Layout(job.cut, tuple(job.pipelines - count for count in failed))
    return Ranked(plan.claims.period, plan.claims.lower_bound, layout)


def _fastest(ranked: list[Ranked]) -> Ranked:
    return min(ranked, key=_by_period)


def _fastest_plan(job: JobSpec, own: Own, made: list[RecutPlans], failures: int) -> Ranked:
    """Of all that so many failures leave workers for."""
    fitting = [_rank(one) for one in made if _fits(one, job, failures)]
    return _fastest([_own(job, own[failures]), *fitting])


def _near(ranked: list[Ranked]) -> list[Ranked]:
    """Those within reach of the fastest."""
    fastest = min(one.period for one in ranked)
    return [one for one in ranked if one.period * 1000 <= fastest * _NEAR]


def least_moved(choices: Sequence[Sequence[Ranked]], layer_bytes: tuple[int, ...]) -> list[Key]:
    """One layout for each number of failures, so that the fewest bytes move between neighbouring numbers.

    A dynamic program along the numbers; of equal sums, the faster layouts.
    """
    rows: list[list[tuple[tuple[int, int], int]]] = []
    for number, row in enumerate(choices):
        if number == 0:
            rows.append([((0, one.period), -1) for one in row])
            continue
        entries: list[tuple[tuple[int, int], int]] = []
        for one in row:
            ways = [
                (
                    (sums[0] + bytes_between(before.layout, one.layout, layer_bytes), sums[1] + one.period),
                    index,
                )
                for index, (before, (sums, _)) in enumerate(zip(choices[number - 1], rows[-1], strict=True))
            ]
            entries.append(min(ways))
        rows.append(entries)
    index = min(range(len(rows[-1])), key=lambda index: rows[-1][index][0])
    chosen: list[Key] = []
    for number in reversed(range(len(choices))):
        chosen.append(choices[number][index].key)
        index = rows[number][index][1]
    return chosen[::-1]


@lru_cache(maxsize=4096)
def bytes_between(more: Layout, fewer: Layout, layer_bytes: tuple[int, ...]) -> int:
    """Bytes to move from a layout to one with fewer workers, if those that fail are not needed there."""
    if more == fewer:
        return 0
    held = {
        (rank, stage): span
        for stage, (span, workers) in enumerate(zip(more.ranges, more.workers, strict=True))
        for rank in range(workers)
    }
    if sum(fewer.workers) > len(held):
        return bytes_between(fewer, more, layer_bytes)
    return least_bytes(held, fewer.layers, fewer.workers, layer_bytes).size


def with_bound(plan: Streams, bound: int) -> Streams:
    """The plan with what is known of all cuts."""
    return replace(plan, claims=replace(plan.claims, bound_over_cuts=bound))


def with_bound_over(recut: RecutPlans, job: JobSpec, bounds: Mapping[int, int]) -> RecutPlans:
    """The plans of a layout with what is known of all others for as many workers."""
    # What holds for more workers holds for these too.
    failed = job.workers - sum(recut.layout.workers)
    bound = bounds[max(failures for failures in bounds if failures <= failed)]
    bound = min(bound, recut.claims.lower_bound)
    return replace(recut, plans=(with_bound(recut.plans[0], bound), *recut.plans[1:]))
