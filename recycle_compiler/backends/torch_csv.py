"""A plan as torch.distributed.pipelining reads schedules: CSV, a row for each rank, actions such as `2F0`.

    0F0,0F1,0I0,0W0,0F2,...        rank 0 runs stage 0
    1F0,1I0,1F1,1I1,1W0,...        rank 1 runs stage 1

What torch calls a stage is a chunk; a rank with several of them has them all in its row.

Torch adds sends, receives and the reduction itself, and steps after all micro-batches: barriers, reductions
and optimizer steps are left out. It looks losses up by their place among the last stage's forwards, whatever
the numbers are, so micro-batches are renumbered in that order. It cannot express re-routed work.
"""

from collections.abc import Sequence

from recycle_compiler.ir.streams import Streams
from recycle_runtime.plan.isa import Instruction, Opcode

_LETTERS = {
    Opcode.FORWARD: "F",
    Opcode.BACKWARD: "B",
    Opcode.BACKWARD_INPUT: "I",
    Opcode.BACKWARD_WEIGHT: "W",
}


class TorchCsvError(ValueError):
    """A plan that torch.distributed.pipelining cannot run; the sentence says why."""


def torch_csv(streams: Streams) -> str:
    """The schedule of the first pipeline; a healthy plan has one for each, and any of them fits all."""
    _check(streams)
    rows = [stream for worker, stream in streams.items() if worker.pipeline == 0]
    numbers = _renumbered(rows, streams.job.chunks - 1)
    return "".join(f"{','.join(_actions(row, numbers))}\n" for row in rows)


def _check(streams: Streams) -> None:
    if streams.job.groups:
        raise TorchCsvError(
            "the pipelines of this plan form groups with cuts of their own, which "
            "torch.distributed.pipelining cannot express; a plan without failures under the job's own cut "
            "(`--cut own`) fits into its CSV"
        )
    if streams.failed and streams.job.is_recut:
        raise TorchCsvError(
            "the stages of this plan have different numbers of workers, which torch.distributed.pipelining "
            "cannot express; a plan without failures under the job's own cut (`--cut own`) fits into its CSV"
        )
    if streams.failed:
        names = ", ".join(f"{worker.pipeline}:{worker.stage}" for worker in streams.failed)
        raise TorchCsvError(
            f"this plan is for failed workers ({names}): torch.distributed.pipelining cannot express "
            "micro-batches that another pipeline takes over; only a plan without failures fits into its CSV"
        )
    for worker, stream in streams.items():
        for instruction in stream:
            if instruction.opcode in _LETTERS and instruction.pipeline != worker.pipeline:
                raise TorchCsvError(
                    f"worker {worker.pipeline}:{worker.stage} runs micro-batch {instruction.microbatch} of "
                    f"pipeline {instruction.pipeline}: torch.distributed.pipelining cannot re-route"
                )


def _renumbered(rows: Sequence[Sequence[Instruction]], last_chunk: int) -> dict[int, int]:
    """New numbers of micro-batches: their place among the forwards of the last chunk."""
    forwards = (each for row in rows for each in row if each.opcode is Opcode.FORWARD)
    ordered = (each.microbatch for each in forwards if each.chunk == last_chunk)
    return {microbatch: place for place, microbatch in enumerate(ordered)}


def _actions(stream: Sequence[Instruction], numbers: dict[int, int]) -> list[str]:
    return [
        f"{each.chunk}{_LETTERS[each.opcode]}{numbers[each.microbatch]}"
        for each in stream
        if each.opcode in _LETTERS
    ]
