"""Lower bounds of a stage, for each range of layers and number of workers, whatever other stages are.

The arguments are those of scheduling/bounds.py for one worker of a stage: it carries a share of the
micro-batches, idles before its first backward where memory cannot fill the round trip, idles at its end, and
some earlier stage still has to finish after it. They need little of the other stages: the layers above and
below have to be passed, in however many stages. Each stage between takes transfers on top, of which only
those next to the stage itself are certain. All of them grow with the length of the way, so what is left out
keeps them valid. Where the optimizer's state is sharded, more workers keep and step less of it each: what a
stage imposes is then counted for the most workers that a column stands for. Where peers share experts, fewer
workers exchange fewer tokens, and more of them hide more of W behind that: so a column counts the exchanges
of the fewest, and what those of the most hide. A stage with too few slots for the experts of its layers is
none, nor is one that has them only while nobody fails.

Bounds that look at the workers of other stages (crowds, both ends) are not used here: they depend on the rest
of the layout.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import Layout
from recycle_runtime.plan.overlap import MOST_ROUNDS

Ints = NDArray[np.int64]
FAR = 1 << 60
"""A period that nothing takes: no micro-batch fits into memory."""
MOST_LAYERS = 512
"""Beyond, the table would not fit into memory; such a job keeps its cut."""
_MOST_WAITING = 256
"""Micro-batches in memory up to which what is left after the last F is counted exactly."""

_AT_A_TIME = 100_000
"""Elements of an array of such micro-batches."""


@dataclass(frozen=True, slots=True, eq=False)
class StageTable:
    """period[range, choice]: what a stage of these layers imposes with this many workers."""

    first: Ints
    """First layer of each range."""
    end: Ints
    """First layer beyond each range."""
    workers: Ints
    """Of each choice, from the fewest. Numbers between give no worker a smaller share and are left out."""
    period: Ints

    def ranges(self, layers: int) -> Ints:
        """number[first, end] of each range."""
        number = np.full((layers + 1, layers + 1), -1, dtype=np.int64)
        number[self.first, self.end] = np.arange(len(self.first))
        return number


@dataclass(frozen=True, slots=True, eq=False)
class _Ranges:
    """Columns with one value for each range of layers, as a column vector."""

    forward: Ints
    backward: Ints
    weight: Ints
    optimizer: Ints
    reduce: Ints
    gather: Ints
    fewest: Ints
    """Workers with enough slots for the experts of the range, also after a failure that loses no state."""
    activation: Ints
    kept: Ints
    capacity: Ints
    """For activations; FAR where it is unlimited."""
    trip: Ints
    """From the end of an F to the start of its backward at least."""
    down: Ints
    """From the start of an F on the first layer of the model to its arrival here at least."""
    way_up: Ints
    """From the end of a backward here to the end of the first stage's work at least; 0 on the first stage."""


@lru_cache(maxsize=2)
def stage_table(job: JobSpec, most_workers: int) -> StageTable:
    """The table for a job in layers, for stages of up to so many workers."""
    costs = job.layer_costs
    assert costs is not None and costs.count <= MOST_LAYERS, "a job that can be re-cut"
    first, end = (index.astype(np.int64) for index in np.triu_indices(costs.count + 1, 1))
    units = job.pipelines * job.microbatches
    workers = _useful_counts(units, job.redundancy, most_workers, _workers_for_experts(job, costs))
    share = -(-units // workers)
    most = np.append(workers[1:] - 1, most_workers)[: len(workers)]
    ranges = _ranges(job, costs, first, end, workers, most)
    return StageTable(first, end, workers, _periods(job, ranges, workers, share, units))


def _useful_counts(units: int, least: int, most: int, needed: Ints) -> Ints:
    """For each share of the micro-batches that a worker can have, the fewest workers that give it; and those
    that some layer needs."""
    fewest: dict[int, int] = {}
    counts = range(max(1, least), min(most, units) + 1)
    for count in counts:
        fewest.setdefault(-(-units // count), count)
    return np.array(sorted({*fewest.values(), *(set(needed.tolist()) & set(counts))}), dtype=np.int64)


def _workers_for_experts(job: JobSpec, costs: LayerCosts) -> Ints:
    """Of each layer: workers with slots for all of its experts, and as many more as may fail on any stage."""
    experts = np.array(costs.expert_counts, dtype=np.int64) * min(1, job.slots)
    return np.where(experts > 0, -(-experts // max(1, job.slots)) + job.redundancy - 1, 0)


def _ranges(
    job: JobSpec, costs: LayerCosts, first: Ints, end: Ints, fewest: Ints, most: Ints | None = None
) -> _Ranges:
    """Columns of ranges; of those that workers share out, and of exchanges between them, one for each number
    of workers from `fewest` to `most`, which are the same unless given."""
    most = fewest if most is None else most

    def shared(values: Ints) -> Ints:
        # Divided first, since the products may not fit into 64 bits; rounded down, which keeps bounds valid.
        return values // most * np.minimum(job.owners, most) if job.owners else values

    def summed(values: tuple[int, ...]) -> Ints:
        total = np.concatenate([[0], np.cumsum(np.array(values, dtype=np.int64))])
        return (total[end] - total[first])[:, None]

    def total_before(values: tuple[int, ...], border: Ints) -> Ints:
        return np.concatenate([[0], np.cumsum(np.array(values, dtype=np.int64))])[border][:, None]

    def exchanged(workers: Ints) -> Ints:
        """Of tokens between so many workers of a stage."""
        return exchange - exchange // workers if any(costs.exchange) else exchange

    split = job.techniques.decouple
    weight = np.array(costs.backward_weight, dtype=np.int64)
    backward = np.array(costs.backward_input, dtype=np.int64) + (0 if split else weight)
    weight = weight if split else np.zeros_like(weight)
    exchange = summed(costs.exchange)
    # A transfer at either border of the model is none.
    border = np.array([0, *costs.transfer, 0], dtype=np.int64)
    both = (np.array(costs.forward) + backward).tolist()
    trip = total_before(tuple(both), np.full_like(end, costs.count)) - total_before(tuple(both), end)
    capacity = FAR if costs.capacity is None else costs.capacity - summed(costs.resident)
    if costs.capacity is not None and job.owners:
        capacity = capacity - shared(summed(costs.state))
    down = total_before(costs.forward, first) + border[first][:, None]
    # The first stage holds layer 0, whose W and step come after the last backward.
    last_steps = max(0, int(weight[0]) - MOST_ROUNDS * sum(costs.exchange))
    if job.techniques.stagger and not job.owners:
        last_steps += costs.optimizer[0]
    up = total_before(tuple(backward.tolist()), first) + border[first][:, None] + last_steps
    return _Ranges(
        forward=summed(costs.forward) + exchanged(fewest),
        backward=summed(tuple(backward.tolist())) + exchanged(fewest),
        weight=np.maximum(0, summed(tuple(weight.tolist())) - MOST_ROUNDS * exchanged(most)),
        optimizer=shared(summed(costs.optimizer)),
        reduce=summed(costs.reduce),
        gather=summed(costs.gather),
        fewest=_largest(_workers_for_experts(job, costs), first, end),
        activation=summed(costs.activation),
        kept=summed(costs.kept_for_weight) if split else np.zeros((len(first), 1), dtype=np.int64),
        capacity=np.broadcast_to(capacity, np.broadcast_shapes(np.shape(capacity), (len(first), 1))).astype(
            np.int64
        ),
        trip=trip + 2 * border[end][:, None],
        down=down,
        way_up=np.where(first[:, None] > 0, up, 0),
    )


def _largest(values: Ints, first: Ints, end: Ints) -> Ints:
    """Of the layers of each range."""
    if not values.any():
        return np.zeros((len(first), 1), dtype=np.int64)
    pairs = zip(first.tolist(), end.tolist(), strict=True)
    return np.array([values[low:high].max() for low, high in pairs], dtype=np.int64)[:, None]


def _periods(job: JobSpec, of: _Ranges, workers: Ints, share: Ints, units: int) -> Ints:
    busy, to_last = _busy(of, share, units)
    finish = _finish(of, workers)
    tail = np.where(of.way_up > 0, of.down + to_last + of.way_up, 0)
    if job.techniques.stagger:
        period = np.maximum(busy + finish, tail)
    else:
        period = np.maximum(of.down + busy, tail) + finish
    return np.where((_holdable(of, units) < 1) | (workers < of.fewest), FAR, period)


class ShareTable:
    """Lower bounds of a stage of each range of layers by the share of its busiest worker, whatever its peers.

    Rows are ranges, in the order of a StageTable. A longer share never takes less time.
    """

    def __init__(self, job: JobSpec) -> None:
        costs = job.layer_costs
        assert costs is not None and costs.count <= MOST_LAYERS, "a job that can be re-cut"
        self.layers = costs.count
        self.first, self.end = (index.astype(np.int64) for index in np.triu_indices(costs.count + 1, 1))
        self.units = job.pipelines * job.microbatches
        self._stagger = job.techniques.stagger
        self._of = _ranges(
            job, costs, self.first, self.end, np.ones(1, dtype=np.int64), np.array([job.workers])
        )
        self._fits = _holdable(self._of, self.units) >= 1

    def finish(self, holders: Ints) -> Ints:
        """[range, number of holders]: from the last op of a worker to the end of its step."""
        return _finish(self._of, holders)

    def most(self, limit: int, finish: Ints) -> Ints:
        """The longest share with which a stage of each range keeps to a limit; 0 if none does."""
        each = self._of.forward + self._of.backward + self._of.weight
        high = np.clip((limit - finish) // np.maximum(each, 1), 0, self.units)
        low = np.zeros_like(high)
        # A first guess is mostly not far off: steps down double until one keeps to the limit.
        step = 1
        tried = high
        while (low < high).any():
            fits = self.keeps(np.maximum(tried, 1), limit, finish) & (tried > 0)
            low, high = np.where(fits, np.maximum(low, tried), low), np.where(fits, high, tried - 1)
            high = np.maximum(low, high)
            tried = np.where(low > 0, (low + high + 1) // 2, np.maximum(high - step, (low + high + 1) // 2))
            step *= 2
        return low

    def keeps(self, share: Ints, limit: int, finish: Ints) -> NDArray[np.bool_]:
        """True if a stage of each range, a worker of which has such a share, keeps to a limit."""
        busy, tail = self.spans(share)
        return self.within(busy, tail, limit, finish)

    def spans(self, share: Ints) -> tuple[Ints, Ints]:
        """Time of such a worker up to its sums, and from the first op of the model to the last."""
        busy, to_last = _busy(self._of, share, self.units)
        tail = np.where(self._of.way_up > 0, self._of.down + to_last + self._of.way_up, 0)
        return (busy if self._stagger else self._of.down + busy), tail

    def within(self, busy: Ints, tail: Ints, limit: int, finish: Ints) -> NDArray[np.bool_]:
        """True if such spans, and what comes after them, keep to a limit."""
        whole = np.maximum(busy + finish, tail if self._stagger else tail + finish)
        return self._fits & (whole <= limit)


def layout_period(job: JobSpec, layout: Layout, shares: tuple[int, ...] = ()) -> int:
    """Such bounds for one layout: all its transfers, tails through every earlier stage, crowds in them.

    `shares` are the micro-batches of the busiest worker of each stage; without them all workers have as many.
    """
    costs = job.layer_costs
    assert costs is not None, "a job in layers"
    first, end = (np.array(side, dtype=np.int64) for side in zip(*layout.ranges, strict=True))
    workers = np.array(layout.workers, dtype=np.int64)[:, None]
    units = job.pipelines * job.microbatches
    of = _ranges(job, costs, first, end, workers)
    if (_holdable(of, units) < 1).any() or (workers < of.fewest).any():
        return FAR
    inner = [costs.transfer[past - 1] for _, past in layout.ranges[:-1]]
    transfer = np.array([*inner, 0], dtype=np.int64)[:, None]
    # Transfers of later stages, which the ranges do not know of.
    of = replace(of, trip=of.trip + 2 * (transfer.sum() - np.cumsum(transfer)[:, None]))
    down, up = (np.cumsum(step + transfer)[:, None] - step - transfer for step in (of.forward, of.backward))
    finish = _finish(of, workers)
    share = np.array(shares, dtype=np.int64)[:, None] if shares else -(-units // workers)
    if not job.techniques.stagger:
        busy, to_last = _busy(of, share, units)
        tails = down[1:] + to_last[1:] + up[1:] + of.weight[0]
        return int(max((down + busy).max(), tails.max(initial=0)) + finish.max())

    crowd = units - workers * (share - 1)
    # [stage, earlier]: the way up to an earlier stage and what is left to do there; what a crowd adds to it.
    after = down + up - (down + up).T + (of.weight + finish).T
    rounds = (-(-crowd // workers.T) - 1) * (of.backward + of.weight).T
    earlier = np.tri(len(workers), k=-1, dtype=np.bool_)

    def bounds(spans: tuple[Ints, Ints], way: Ints) -> Ints:
        busy, to_last = spans
        tails = np.where(earlier, to_last + way, 0).max(axis=1)[:, None]
        return np.maximum(busy + finish, tails)

    # Either a crowd has exactly a share each, or some worker has more.
    spans = _busy(of, share, units)
    crowded = np.minimum(bounds(spans, after + rounds), bounds(_busy(of, share + 1, units), after))
    return int(np.maximum(bounds(spans, after), crowded).max())


def _finish(of: _Ranges, workers: Ints) -> Ints:
    both = (-(-times * (workers - 1) // workers) for times in (of.reduce, of.gather))
    return of.optimizer + sum(both)


def _holdable(of: _Ranges, units: int) -> Ints:
    unlimited = (of.capacity == FAR) | (of.activation == 0)
    return np.where(unlimited, units, of.capacity // np.maximum(of.activation, 1))


def _busy(of: _Ranges, share: Ints, units: int) -> tuple[Ints, Ints]:
    """Least time of a worker with such a share, idle time included; and its work up to its last backward."""
    holdable = _holdable(of, units)
    in_memory = np.minimum(share, holdable)
    work = share * (of.forward + of.backward + of.weight)
    ramp = np.maximum(0, of.trip - (in_memory - 1) * of.forward)
    slack = _outstanding(of, share, in_memory) - of.trip - of.backward
    drain = np.maximum(0, of.weight - slack)
    apart = share > holdable
    whole = work + np.where(apart, ramp + drain, np.maximum(ramp, drain))
    late = np.minimum(share, _deferrable(of, units)) * of.weight
    saved = np.where(apart, ramp - np.minimum(late, slack), np.maximum(ramp - late, -slack))
    return np.maximum(whole, _tracks(of, share, in_memory)), work + saved


def _outstanding(of: _Ranges, share: Ints, in_memory: Ints) -> Ints:
    """The most work that can be left when the last F of a worker has run; see scheduling/bounds.py."""
    both = of.backward + of.weight
    free = (of.capacity == FAR) | (of.kept == 0)
    found = in_memory * both + np.where(free, (share - in_memory) * of.weight, 0)
    tight = ~free & (of.kept < of.activation)
    if not tight.any():
        return found
    kept = np.maximum(of.kept, 1)
    most = int(np.where(tight, in_memory, 0).max(initial=0))
    if most > _MOST_WAITING:
        every = np.minimum(share, of.capacity // kept) * of.weight
        return np.where(tight, in_memory * both + every, found)
    step = max(1, _AT_A_TIME // max(1, found.size))
    for first in range(1, most + 1, step):
        waiting: Ints = np.arange(first, min(first + step, most + 1)).reshape(-1, 1, 1)
        room = (of.capacity - waiting * of.activation) // kept
        left = waiting * both + np.minimum(share - waiting, room) * of.weight
        counts = tight & (waiting <= in_memory)
        found = np.maximum(found, np.where(counts, left, found).max(axis=0))
    return found


def _deferrable(of: _Ranges, units: int) -> Ints:
    """W that can be outstanding when the last backward ends."""
    free = (of.capacity == FAR) | (of.kept == 0)
    return np.where(free, units, 1 + (of.capacity - of.activation) // np.maximum(of.kept, 1))


def _tracks(of: _Ranges, share: Ints, in_memory: Ints) -> Ints:
    """Memory alone: too few activations at once to hide the round trip."""
    trip = of.forward + of.trip + of.backward
    whole = of.kept == of.activation
    held = np.where(whole, trip + of.weight, trip)
    busy = -(-share // np.maximum(in_memory, 1)) * held + np.where(whole, 0, of.weight)
    limited = (of.capacity != FAR) & (of.capacity > 0)
    capacity = np.where(limited, of.capacity, 1)
    # In floating point and rounded down, since the products may not fit into 64 bits.
    each = of.activation * 1.0 * trip + of.kept * 1.0 * of.weight
    energy = np.minimum(np.floor(share * each / capacity * (1 - 1e-12)), FAR).astype(np.int64)
    return np.where(limited, np.maximum(busy, energy), busy)
