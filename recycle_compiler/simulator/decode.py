"""From a bundle to columns."""

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.streams import Streams
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.isa import NONE, Instruction


def read_streams(bundle: Bundle, plan: int) -> Streams:
    """The streams of one plan; BundleError when one of them cannot be decoded."""
    workers = tuple(Worker(*worker) for worker in bundle.workers(plan))
    lengths = bundle.layouts[plan].lengths
    homes = np.repeat([worker.pipeline for worker in workers], lengths)
    data, widths, rows = bundle.columns(plan)
    columns: dict[str, Column] = {}
    start = 0
    for name, width, limit in zip(Instruction._fields, widths, bundle.shape.limits, strict=True):
        stored = np.frombuffer(data, f"<u{width}", rows, start).astype(np.int64)
        if rows and (int(stored.max()) > limit or (name == "opcode" and int(stored.min()) < 2)):
            raise BundleError(f"damaged: plan {plan} has an instruction with a {name} out of range")
        columns[name] = stored - 1
        start += rows * width
    for name in ("pipeline", "neighbour"):
        # A stream counts pipelines from its worker's own; of a neighbour, the stage stays as it is.
        relative = columns[name]
        stage, pipeline = np.divmod(relative, bundle.pipelines)
        absolute = stage * bundle.pipelines + (pipeline + homes) % bundle.pipelines
        columns[name] = np.where(relative == NONE, NONE, absolute)
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    return Streams(workers, offsets, *columns.values(), bundle.pipelines)
