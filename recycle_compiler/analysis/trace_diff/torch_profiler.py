"""Traces of torch's profiler as the trace of a run: one file for each rank.

What torch.distributed.pipelining notes is read: `PP:1F3` or `Forward 3` for a forward of micro-batch 3,
`Backward 3`, `PP:1B3`, `PP:1I3`, `PP:1W3`, and `Optimizer.step#AdamW.step`; names of our own, `F0.3`, are
read too. Sums of gradients are the collectives (`nccl:all_reduce`, `nccl:_reduce_scatter_base`, ...) after
the last micro-batch. Where optimizer state is in shards, weights are gathered by those after the optimizer
(`nccl:_all_gather_base`, `gloo:broadcast`, ...), also within the step of torch's `ZeroRedundancyOptimizer`:
`O` is then the step of the optimizer inside. Each belongs to the `ProfilerStep#7` that it lies in.

An op lasts from its first kernel to the end of its last one, where the trace has kernels: those that runtime
calls within its annotation have launched, or what the profiler itself shows as the annotation on the GPU.
Without kernels the annotation's own time counts. Ranks of one stage follow each other, as Megatron and
torchtitan number them: rank = (stage x pipelines + pipeline) x tensor + tensor rank; of a worker's ranks the
first one counts. Clocks are taken as they are.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from recycle_compiler.analysis.trace_diff.trace_file import Ran, RunTrace, TraceError
from recycle_compiler.ir.failure import Worker

_STEP = re.compile(r"ProfilerStep#(\d{1,15})", re.ASCII)
_ACTION = re.compile(r"PP:\d{1,9}([FBIW])(\d{1,9})", re.ASCII)
_PLAIN = re.compile(r"(Forward|Backward) (\d{1,9})", re.ASCII)
_OWN = re.compile(r"([FBIW])\d{1,9}\.(\d{1,9})", re.ASCII)
_OPTIMIZER = re.compile(r"Optimizer\.step#.*")
_SUM = re.compile(r"(nccl|gloo|c10d):.*(reduce|Reduce).*")
_GATHER = re.compile(r"(nccl|gloo|c10d):.*([Gg]ather|[Bb]roadcast).*")
_ON_CPU, _ON_GPU = "user_annotation", "gpu_user_annotation"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


class RankGrid(NamedTuple):
    """The job that the ranks belong to."""

    pipelines: int
    stages: int
    tensor: int
    is_sharded: bool = False
    """Optimizer state is in shards: weights are gathered after each step."""

    def worker(self, rank: int) -> Worker | None:
        """None for ranks that are not the first of their worker."""
        if rank % self.tensor:
            return None
        stage, pipeline = divmod(rank // self.tensor, self.pipelines)
        if stage >= self.stages:
            raise TraceError(
                f"rank {rank} is none of the job: it has {self.stages * self.pipelines * self.tensor} ranks"
            )
        return Worker(pipeline, stage)


class _Span(NamedTuple):
    start: float
    end: float
    name: str = ""

    def contains(self, other: "_Span") -> bool:
        return self != other and self.start <= other.start and other.end <= self.end


def is_profile(whole: Any) -> bool:
    """True if this is what torch's profiler writes."""
    return isinstance(whole, dict) and "schemaVersion" in whole and "traceEvents" in whole


def trace_of_profiles(profiles: Sequence[Mapping[str, Any]], grid: RankGrid) -> RunTrace:
    """The trace of a run whose ranks have left these."""
    ops: dict[Worker, list[Ran]] = {}
    for number, profile in enumerate(profiles):
        info = profile.get("distributedInfo")
        rank: Any = cast("dict[str, Any]", info).get("rank") if isinstance(info, dict) else number
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
            raise TraceError("a profile does not say which rank it is of")
        worker = grid.worker(rank)
        if worker is None:
            continue
        if worker in ops:
            raise TraceError(f"two profiles are of rank {rank}")
        ops[worker] = list(_ops(profile, worker, grid.is_sharded))
        if not ops[worker]:
            raise TraceError(
                f"the profile of rank {rank} has no op of a pipeline within a step: profile with "
                "torch.profiler.schedule, and call step() on the profiler after each step"
            )
    common = set[int].intersection(*({op.step for op in found} for found in ops.values()))
    if not common:
        raise TraceError("no step is in the profiles of all ranks")
    origin = min(op.start for found in ops.values() for op in found)
    return RunTrace(
        tuple(
            op._replace(start=op.start - origin, end=op.end - origin)
            for found in ops.values()
            for op in found
            if op.step in common
        ),
        None,
    )


def _ops(profile: Mapping[str, Any], worker: Worker, is_sharded: bool) -> Iterator[Ran]:
    """Of all steps that were recorded from their beginning to their end."""
    events = [
        cast("dict[str, Any]", event)
        for event in cast("list[Any]", profile["traceEvents"])
        if isinstance(event, dict) and cast("dict[str, Any]", event).get("ph") == "X"
    ]
    notes = sorted(_spans(events, (_ON_CPU,)))
    kernels = _Kernels(events)
    steps = [(note, int(found[1])) for note in notes if (found := _STEP.fullmatch(note.name))]
    for step, number in steps:
        inside = [note for note in notes if step.start <= note.start and note.end <= step.end]
        work = [
            (name, kernels.time_of(note)) for note in inside if (name := _name_of(note.name, worker.pipeline))
        ]
        if not work:
            continue
        last = max(time.end for _, time in work)
        yield from (Ran(name, number, worker, time.start, time.end, 0.0) for name, time in work)
        begun = max(note.start for note in inside if _name_of(note.name, worker.pipeline))
        after = [note for note in inside if note.start >= begun]
        steps_made = [note for note in after if _OPTIMIZER.fullmatch(note.name)]
        together = [("R", [note for note in after if _SUM.fullmatch(note.name)]), ("O", steps_made)]
        if is_sharded:
            inner = [note for note in steps_made if not any(map(note.contains, steps_made))]
            stepped = max((note.start for note in inner), default=begun)
            spread = [note for note in after if note.start >= stepped and _GATHER.fullmatch(note.name)]
            together[1:] = [("O", inner), ("G", spread)]
        for kind, ran in together:
            found = [kernels.time_of(note) for note in ran]
            # A run may have none: one worker for a stage sums nothing.
            start = max(last, min((time.start for time in found), default=last))
            last = max(start, max((time.end for time in found), default=last))
            yield Ran(kind, number, worker, start, last, 0.0)


def _name_of(note: str, pipeline: int) -> str | None:
    """The name that an op has in plans; None for what is no work on a micro-batch."""
    if found := _ACTION.fullmatch(note) or _OWN.fullmatch(note):
        return f"{found[1]}{pipeline}.{int(found[2])}" if found.re is _ACTION else note
    found = _PLAIN.fullmatch(note)
    return f"{found[1][0]}{pipeline}.{int(found[2])}" if found else None


def _spans(events: Iterable[Mapping[str, Any]], categories: Sequence[str]) -> Iterator[_Span]:
    for event in events:
        if event.get("cat") in categories:
            start, length, name = event.get("ts"), event.get("dur", 0), event.get("name")
            if not (_is_time(start) and _is_time(length)) or not isinstance(name, str):
                raise TraceError(f"an event of category {event['cat']} has no time or no name")
            yield _Span(float(cast(float, start)), float(cast(float, start)) + float(length), name)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e16


class _Kernels:
    """Work of the GPU for annotations of the CPU."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        ran: dict[Any, _Span] = {}
        for event in events:
            if event.get("cat") in _KERNELS:
                number = _correlation(event)
                span = next(_spans([event], _KERNELS))
                known = ran.get(number)
                ran[number] = _union([span, known]) if known else span
        launches = [
            (next(_spans([event], _LAUNCHES)).start, ran[number])
            for event in events
            if event.get("cat") in _LAUNCHES and (number := _correlation(event)) in ran
        ]
        launches.sort(key=lambda launch: launch[0])
        self._moments, self._ran = [at for at, _ in launches], [span for _, span in launches]
        self._shown: dict[str, list[_Span]] = {}
        for span in sorted(_spans(events, (_ON_GPU,))):
            self._shown.setdefault(span.name, []).append(span)

    def time_of(self, note: _Span) -> _Span:
        """From the first kernel to the end of the last; the annotation itself where it has none."""
        first, last = bisect_right(self._moments, note.start), bisect_right(self._moments, note.end)
        if own := self._ran[first:last]:
            return _union(own)
        shown = self._shown.get(note.name, [])
        return next((span for span in shown if span.start >= note.start), note)


def _correlation(event: Mapping[str, Any]) -> Any:
    args = event.get("args")
    return cast("dict[str, Any]", args).get("correlation") if isinstance(args, dict) else None


def _union(spans: Sequence[_Span]) -> _Span:
    return _Span(min(span.start for span in spans), max(span.end for span in spans), spans[0].name)
