"""From a bundle to columns. Equal streams are decoded once, and large plans by a compiled decoder."""

import hashlib
import inspect
import sys
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.job_text import TextError, parse_job
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.streams import Streams
from recycle_runtime import isa, range_coder, stream_layout, stream_model
from recycle_runtime.bundle import Bundle, BundleError
from recycle_runtime.codec import PLAIN, Machine, decode_fields
from recycle_runtime.isa import NONE

COMPILE_FROM = 40_000
"""Instructions to decode from which loading numba pays."""
LOADED_FROM = 10_000
"""The same, where it has been loaded already."""


def job_of(bundle: Bundle) -> JobSpec:
    """The job that the bundle was made for, with every number resolved."""
    try:
        job = parse_job(bundle.job_text.splitlines())
    except TextError as cause:
        raise BundleError(f"damaged: its job cannot be read: {cause}") from cause
    shape = (bundle.stages, bundle.pipelines, bundle.tensor, bundle.microbatches)
    if (job.stages, job.pipelines, job.tensor, job.microbatches) != shape:
        raise BundleError("damaged: its job and its index do not have the same shape")
    return job


def read_streams(bundle: Bundle, plan: int) -> Streams:
    """The streams of one plan; BundleError when one of them cannot be decoded."""
    workers = tuple(Worker(*worker) for worker in bundle.workers(plan))
    encoded = [(*bundle.encoded(plan, worker), bundle.frame(worker).is_last_stage) for worker in workers]
    machine = _machine_for(sum(count for _, count, _ in set(encoded)))
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


def _machine_for(instructions: int) -> Machine:
    enough = LOADED_FROM if "numba" in sys.modules else COMPILE_FROM
    return _compiled_machine() if instructions >= enough else PLAIN


@cache
def _compiled_machine() -> Machine:
    """The runtime's own decoder on arrays: compiled now, or on an earlier run and kept on disk."""
    modules = (range_coder, stream_model)
    # What is kept belongs to a function's own file; the digest covers what else it depends on.
    sources = "".join(map(inspect.getsource, (isa, stream_layout, *modules)))
    digest = hashlib.sha256(sources.encode()).hexdigest()[:12]
    scope: dict[str, Any] = {name: value for module in modules for name, value in vars(module).items()}
    for name, value in tuple(scope.items()):
        if isinstance(value, FunctionType):
            copy = FunctionType(value.__code__, scope, name)
            copy.__qualname__ = f"{name}_{digest}"
            scope[name] = compile_function(copy)
    contexts: Any = np.array(PLAIN.contexts, dtype=np.int64)
    names = ("start_encoding", "start_decoding", "code_stream", "finish")
    return Machine(_zeros, contexts, *(scope[name] for name in names))


def _zeros(size: int) -> Any:
    return np.zeros(size, dtype=np.int64)
