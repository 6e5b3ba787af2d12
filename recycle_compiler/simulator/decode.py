"""From a bundle to columns. Equal streams are decoded once, and large plans by a compiled decoder."""

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.streams import Streams
from recycle_compiler.stream_machines import machine_for
from recycle_runtime.plan import stream_layout
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.codec import decode_fields
from recycle_runtime.plan.isa import NONE

COMPILE_FROM = 40_000
"""Instructions to decode from which loading numba pays."""
LOADED_FROM = 10_000
"""The same, where it has been loaded already."""


def read_streams(bundle: Bundle, plan: int) -> Streams:
    """The streams of one plan; BundleError when one of them cannot be decoded."""
    workers = tuple(Worker(*worker) for worker in bundle.workers(plan))
    encoded = [(*bundle.encoded(plan, worker), bundle.frame(worker).is_last_stage) for worker in workers]
    machine = machine_for(sum(count for _, count, _ in set(encoded)), COMPILE_FROM, LOADED_FROM)
    decoded: dict[tuple[bytes, int, bool], Column] = {}
    for worker, stream in zip(workers, encoded, strict=True):
        if stream not in decoded:
            fields = decode_fields(stream[0], stream[1], bundle.frame(worker), machine)
            if fields is None:
                raise BundleError(bundle.undecodable(plan, worker))
            decoded[stream] = np.array(fields, dtype=np.int64).reshape(-1, stream_layout.FIELDS)
    rows = np.concatenate([decoded[stream] for stream in encoded])
    lengths = [stream[1] for stream in encoded]
    homes = np.repeat([worker.pipeline for worker in workers], lengths)
    columns = [np.ascontiguousarray(rows[:, field]) for field in range(stream_layout.FIELDS)]
    for field in (stream_layout.PIPELINE, stream_layout.PEER):
        # A stream counts pipelines from its worker's own.
        relative = columns[field]
        columns[field] = np.where(relative == NONE, NONE, (relative + homes) % bundle.pipelines)
    return Streams(workers, np.cumsum([0, *lengths], dtype=np.int64), *columns)
