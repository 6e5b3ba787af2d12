"""Checks of the worker lines of a schedule's text, once they are readable.

Every worker has one line, and failed ones have none. Each op is with a worker that holds its chunk. On every
chunk every micro-batch has one F, and one B or one I and one W.
"""

from bisect import bisect_right
from itertools import accumulate

from recycle_compiler.ir.failure import FailureSet, Worker
from recycle_compiler.ir.job import JobSpec, TextError
from recycle_compiler.ir.ops import MICROBATCH_KINDS, UNSET, Op, OpKind

_ONE_LINE = "write all ops of a worker in one line"
_NO_LINE = "take the worker out of the line `failed`, or leave out its own"
_ONCE = "on every chunk a micro-batch has one F, and one B or one I and one W"
_WHOLE = f"{_ONCE}; if the text was cut off, write it again with `--format schedule`"
_SAME_WORK = {
    OpKind.F: (OpKind.F,),
    OpKind.B: (OpKind.B, OpKind.I, OpKind.W),
    OpKind.I: (OpKind.I, OpKind.B),
    OpKind.W: (OpKind.W, OpKind.B),
    OpKind.R: (OpKind.R,),
    OpKind.O: (OpKind.O,),
    OpKind.G: (OpKind.G,),
    OpKind.SF: (OpKind.SF,),
    OpKind.SB: (OpKind.SB, OpKind.SI, OpKind.SW),
    OpKind.SI: (OpKind.SI, OpKind.SB),
    OpKind.SW: (OpKind.SW, OpKind.SB),
}
"""For each kind those of which a micro-batch has none beside it."""

_NEEDED = {
    "F{0}": (OpKind.F,),
    "B{0} or I{0}": (OpKind.B, OpKind.I),
    "W{0}": (OpKind.B, OpKind.W),
}
"""Ops that every micro-batch has on every chunk, and the kinds of which one is enough."""


class WrittenOps:
    """Collects what is written where; a TextError says what cannot be right."""

    def __init__(self, job: JobSpec, failed: FailureSet) -> None:
        self._job, self._failed, self._holders = job, frozenset(failed), job.holders
        self._ends = list(accumulate(job.shares))
        self._lines: dict[Worker, int] = {}
        self._ops: dict[tuple[int, ...], int] = {}
        """The line of each."""

    def begin(self, worker: Worker, line: int) -> None:
        """The ops of this worker come."""
        if worker in self._failed:
            raise TextError(line, f"worker {worker} has failed, and has a line of ops", 1, _NO_LINE)
        if worker in self._lines:
            first = self._lines[worker]
            raise TextError(line, f"worker {worker} has a line already, line {first}", 1, _ONE_LINE)
        self._lines[worker] = line

    def add(self, op: Op, worker: Worker, label: str, word: int) -> None:
        """The next one of this worker, and which word of its line it is."""
        line = self._lines[worker]
        if why := self._misplaced(op, worker):
            raise TextError(line, f"{label} of worker {worker} {why}", word)
        # Every worker sums and steps, and only one of them runs a micro-batch.
        by = UNSET if op.kind in MICROBATCH_KINDS else op.worker
        place = (op.pipeline, op.microbatch, op.chunk, by)
        for kind in _SAME_WORK[op.kind]:
            if other := self._ops.get((kind, *place)):
                name = label.replace(op.kind.name, kind.name, 1)
                what = f"{label} of worker {worker} is one too many: line {other} has {name}"
                raise TextError(line, what, word, _ONCE if by == UNSET else None)
        self._ops[op.kind, *place] = line

    def check_whole(self, last_line: int) -> None:
        """True if every micro-batch has been everywhere; the text ends with this line."""
        job = self._job
        for chunk in range(job.chunks):
            for unit in range(job.pipelines * job.microbatches):
                place = (*divmod(unit, job.microbatches), chunk)
                for name, kinds in _NEEDED.items():
                    if not any((kind, *place, UNSET) in self._ops for kind in kinds):
                        raise self._missing(name, place, last_line)

    def _missing(self, name: str, place: tuple[int, int, int], last_line: int) -> TextError:
        pipeline, microbatch, chunk = place
        stage = self._stage(*place)
        label = f"{pipeline}.{microbatch}" + ("" if stage == chunk else f".c{chunk}")
        lines = [line for worker, line in self._lines.items() if worker.stage == stage]
        what = f"no worker of stage {stage} has {name.format(label)}"
        if lines:
            return TextError(max(lines), what, 1, _WHOLE)
        return TextError(last_line, f"{what}: none has a line", 0, _WHOLE)

    def _misplaced(self, op: Op, worker: Worker) -> str | None:
        """Reason why the worker cannot have the op, by its chunk or its group; None if it can."""
        stages = self._holders[op.chunk]
        if worker.stage not in stages:
            return "is on a chunk that the worker does not hold"
        if op.kind not in MICROBATCH_KINDS or worker.stage == self._stage(*op[1:4]):
            return None
        group, own = self._group(op.pipeline, op.microbatch), stages.index(worker.stage)
        shares = " ".join(map(str, self._job.shares))
        return f"is a micro-batch of group {group}, by the shares {shares}, and the worker is of group {own}"

    def _group(self, pipeline: int, microbatch: int) -> int:
        return bisect_right(self._ends, pipeline * self._job.microbatches + microbatch)

    def _stage(self, pipeline: int, microbatch: int, chunk: int) -> int:
        """Stage of the micro-batch on this chunk."""
        return self._holders[chunk][self._group(pipeline, microbatch)]
