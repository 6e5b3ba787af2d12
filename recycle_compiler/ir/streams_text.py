"""Text of streams: their head, then the stream of each worker as assembly; read back exactly.

streams
job figure3
...
failed 1:2
release 0 1 2 3
claims makespan 29 period 30 lower_bound 30 cut_short no reason load of stage 2
worker 0:0
    0  load              p0 m0    b0
    1  forward           p0 m0    b0
"""

from itertools import accumulate, groupby

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.head_text import (
    parse_claims,
    parse_time,
    print_claims,
    print_head,
    print_release,
    split_text,
)
from recycle_compiler.ir.job_text import TextError
from recycle_compiler.ir.streams import Streams
from recycle_runtime.plan.assembly import AssemblyError, assemble, disassemble
from recycle_runtime.plan.isa import Instruction


def print_streams(streams: Streams) -> str:
    """One line per instruction."""
    unit = streams.job.ticks_per_unit
    head = ["streams", print_head(streams.job, streams.failed).rstrip("\n")]
    head += [print_release(streams.release, unit), print_claims(streams.claims, unit)]
    bodies = (disassemble(stream, worker, streams.job.pipelines) for worker, stream in streams.items())
    return "\n".join(head) + "\n" + "".join(bodies)


def parse_streams(text: str) -> Streams:
    """Inverse of `print_streams`."""
    job, failed, rest = split_text(text, "streams")
    unit = job.ticks_per_unit
    if [words[0] for _, words in rest[:2]] != ["release", "claims"]:
        raise TextError(0, "streams need their release and claims lines")
    try:
        release = tuple(parse_time(word, unit) for word in rest[0][1][1:])
        claims = parse_claims(rest[1][1][1:], unit)
    except (ValueError, IndexError) as cause:
        raise TextError(rest[0][0], f"not a line of streams: {cause}") from cause
    lines = text.splitlines()
    workers: list[Worker] = []
    streams: list[tuple[Instruction, ...]] = []
    for first, last in _blocks(rest):
        try:
            worker, stream = assemble("\n".join(lines[first - 1 : last]), job.pipelines)
        except AssemblyError as cause:
            raise TextError(first - 1 + cause.line, cause.what) from cause
        workers.append(Worker(*worker))
        streams.append(stream)
    table = np.array([row for stream in streams for row in stream], dtype=np.int64).reshape(
        -1, len(Instruction._fields)
    )
    offsets = np.array([0, *accumulate(len(stream) for stream in streams)], dtype=np.int64)
    columns = (np.ascontiguousarray(column) for column in table.T)
    return Streams(job, failed, release, claims, tuple(workers), offsets, *columns)


def _blocks(rest: list[tuple[int, list[str]]]) -> list[tuple[int, int]]:
    """First and last line of each worker's stream."""
    heads = accumulate(int(words[0] == "worker") for _, words in rest[2:])
    numbered = zip(heads, (number for number, _ in rest[2:]), strict=True)
    blocks = ([number for _, number in group] for _, group in groupby(numbered, key=lambda pair: pair[0]))
    return [(block[0], block[-1]) for block in blocks]
