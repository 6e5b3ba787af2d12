"""Op times as workers measure them while they train. Needs no torch.

Each worker says the median time of its ops of each kind, step by step; here they are smoothed. A stage takes
as long as its typical worker, the lower of two in the middle, so that one who is slow does not count for its
peers. A reduction, or a gather, ends for all when the last one has come to it, so the shortest time is the
one.

A worker that has lost tensor-parallel ranks has ops of its own: with longer slices, and fewer messages
between ranks. It is compared with peers that have as many ranks or more, and these are not compared with it.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median, median_low

from recycle_runtime.coordinator.measured_job import JobText, StageTimes
from recycle_runtime.plan.assembly import Worker

_NEWEST = 0.1
"""The weight of the newest step against all before it."""
_LARGEST_CHANGE = 4.0
"""In one step; a process that was held up for a moment has not become slower."""
ENOUGH_SAMPLES = 5
_NANOSECOND = 1e-9
_OF_PEERS = ("R", "G")
"""Ops that peers make together."""


class SmoothedTimes:
    """Smoothed seconds of each kind of op (F, B, I, W, R, O, G) on each worker."""

    def __init__(self) -> None:
        self._seconds: dict[Worker, dict[str, float]] = {}
        self._samples: dict[Worker, int] = {}
        self._factors: dict[Worker, float] | None = None
        """Until something else is measured."""
        self._fewer: dict[Worker, int] = {}
        """Processes of workers that have lost tensor-parallel ranks."""

    def add(self, worker: Worker, times: Mapping[str, float]) -> None:
        """Add op times that a worker has measured in a step; kinds that it did not run are left out."""
        self._factors = None
        known = self._seconds.setdefault(worker, {})
        self._samples[worker] = count = self._samples.get(worker, 0) + 1
        for kind, seconds in times.items():
            if seconds > 0:
                known[kind] = _smooth(known.get(kind), seconds, count)

    def have_fewer_ranks(self, fewer: Mapping[Worker, int]) -> None:
        """Workers that have lost tensor-parallel ranks now, and how many each has."""
        self._fewer, self._factors = dict(fewer), None

    def forget(self, worker: Worker) -> None:
        """It is gone, or does something else."""
        self._factors = None
        self._seconds.pop(worker, None)
        self._samples.pop(worker, None)

    def keep(self, workers: Collection[Worker]) -> None:
        """Forget all other workers."""
        for worker in set(self._seconds) - set(workers):
            self.forget(worker)

    def of_stage(self, stage: int) -> dict[str, float]:
        """Seconds of each kind that a worker of this stage has measured often enough."""
        found: dict[str, list[tuple[float, float]]] = {}
        for worker, known in self._peers(stage):
            if self._samples[worker] >= ENOUGH_SAMPLES:
                for kind, seconds in known.items():
                    found.setdefault(kind, []).append((self._ranks(worker), seconds))
        times: dict[str, float] = {}
        for kind, all_ in found.items():
            most, _ = max(all_)
            times[kind] = (
                min(seconds for _, seconds in all_)
                if kind in _OF_PEERS
                else median_low(seconds for ranks, seconds in all_ if ranks == most)
            )
        return times

    def factor(self, worker: Worker) -> float | None:
        """Time of a worker's ops as a multiple of the time that its peers take; None if it is not known."""
        if self._factors is None:
            self._factors = dict(self._compared())
        return self._factors.get(worker)

    def slow(self, workers: Collection[Worker], limit: float) -> dict[Worker, float]:
        """Those that take so many times longer than their peers, each with its factor."""
        factors = {worker: self.factor(worker) for worker in sorted(workers)}
        return {worker: factor for worker, factor in factors.items() if factor and factor >= limit}

    def _compared(self) -> Iterator[tuple[Worker, float]]:
        """Every worker with its peers; many of them are sorted once and not for each."""
        stages: dict[int, list[tuple[Worker, dict[str, float]]]] = {}
        for worker, known in self._seconds.items():
            if self._samples[worker] >= ENOUGH_SAMPLES:
                stages.setdefault(worker[1], []).append((worker, known))
        for everybody in stages.values():
            for ranks in {self._ranks(worker) for worker, _ in everybody}:
                peers = [peer for peer in everybody if self._ranks(peer[0]) >= ranks]
                of_kind: dict[str, list[float]] = {}
                for _, known in peers:
                    for kind, seconds in known.items():
                        of_kind.setdefault(kind, []).append(seconds)
                ordered = {kind: sorted(found) for kind, found in of_kind.items() if kind not in _OF_PEERS}
                yield from self._beside(ordered, [peer for peer in peers if self._ranks(peer[0]) == ranks])

    @staticmethod
    def _beside(
        ordered: Mapping[str, list[float]], workers: Collection[tuple[Worker, dict[str, float]]]
    ) -> Iterator[tuple[Worker, float]]:
        """Each of these workers beside all that have a time in `ordered`, its own among them."""
        for worker, known in workers:
            mine = theirs = 0.0
            for kind in known.keys() & ordered.keys():
                if len(ordered[kind]) > 1:
                    mine += known[kind]
                    theirs += _median_of_others(ordered[kind], known[kind])
            if theirs > 0:
                yield worker, mine / theirs

    def _ranks(self, worker: Worker) -> float:
        """Processes of a worker; infinity: as many as the job says."""
        return self._fewer.get(worker, float("inf"))

    def _peers(self, stage: int) -> Iterator[tuple[Worker, dict[str, float]]]:
        for worker, known in sorted(self._seconds.items()):
            if worker[1] == stage:
                yield worker, known


def _median_of_others(ordered: list[float], own: float) -> float:
    """The lower of two in the middle of sorted numbers without one of them."""
    middle = (len(ordered) - 2) // 2
    return ordered[middle if middle < bisect_left(ordered, own) else middle + 1]


def calibrated(job: JobText, ops: SmoothedTimes) -> float | None:
    """Seconds of a tick: a nanosecond, or what the work on micro-batches shows; None while it is unknown."""
    if not job.is_abstract:
        return _NANOSECOND
    ratios: list[float] = []
    for stage in range(job.stages):
        planned, measured = _work(job.times, stage), ops.of_stage(stage)
        ratios += [measured[kind] / ticks for kind, ticks in planned.items() if kind in measured]
    return median(ratios) if ratios else None


def measured_times(
    job: JobText, ops: SmoothedTimes, tick: float, gone: Sequence[int] = ()
) -> StageTimes | None:
    """Ticks of ops as measured; None until every stage has been. Ops that no worker runs are as planned.

    `gone`: how many cells of each stage are empty. Of a sharded state the others step more then.
    """
    rows: list[tuple[int, ...]] = []
    for stage in range(job.stages):
        measured = {kind: round(seconds / tick) for kind, seconds in ops.of_stage(stage).items()}
        if "F" not in measured or not measured.keys() & {"B", "W"}:
            return None
        planned = _work(job.times, stage)
        if "B" in measured and not {"I", "W"} <= measured.keys():
            measured["I"] = round(measured["B"] * planned["I"] / planned["B"])
            measured["W"] = measured["B"] - measured["I"]
        work = (max(1, measured.get(kind, planned[kind])) for kind in ("F", "I", "W"))
        optimizer = measured.get("O", job.times.optimizer[stage])
        row = [*work, optimizer, measured.get("R", job.times.reduce[stage])]
        if job.owners:
            if "O" in measured and gone:
                row[3] = optimizer * job.owned(stage) // job.owned(stage, gone[stage])
            row.append(measured.get("G", job.times.gather[stage]))
        rows.append(tuple(row))
    return StageTimes(*zip(*rows, strict=True))


def shift(before: StageTimes, now: StageTimes, microbatches: int) -> tuple[float, int]:
    """Largest relative change of a stage's op times, as a share of the longest stage's work, and the stage.

    A factor that all ops have in common counts for nothing: it is no reason to plan again.
    """
    stages = range(len(before.forward))
    old, new = ([_loads(times, stage, microbatches) for stage in stages] for times in (before, now))
    whole_old, whole_new = sum(map(sum, old)), sum(map(sum, new))
    scale = whole_old / whole_new
    moved = [
        sum(abs(scale * after - planned) for planned, after in zip(*pair, strict=True))
        for pair in zip(old, new, strict=True)
    ]
    most = max(stages, key=lambda stage: moved[stage])
    return moved[most] / max(map(sum, old)), most


def _smooth(known: float | None, seconds: float, count: int) -> float:
    if known is None:
        return seconds
    weight = max(_NEWEST, 1 / count)
    if count > ENOUGH_SAMPLES:
        seconds = min(max(seconds, known / _LARGEST_CHANGE), known * _LARGEST_CHANGE)
    return known + weight * (seconds - known)


def _work(times: StageTimes, stage: int) -> dict[str, int]:
    back, weight = times.backward_input[stage], times.backward_weight[stage]
    return {"F": times.forward[stage], "I": back, "W": weight, "B": back + weight}


def _loads(times: StageTimes, stage: int, microbatches: int) -> tuple[int, ...]:
    work = (times.forward[stage], times.backward_input[stage], times.backward_weight[stage])
    once = (row[stage] for row in (times.optimizer, times.reduce, times.gather) if row)
    return (*(microbatches * ticks for ticks in work), *once)
