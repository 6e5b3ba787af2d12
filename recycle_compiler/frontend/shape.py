"""The `parallel` and `batch` blocks: how many stages, pipelines and micro-batches a job has.

A job that says `workers` instead leaves stages and pipelines to the compiler.
"""

from dataclasses import dataclass

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.check import Section, Sections
from recycle_compiler.frontend.diagnostics import Mistakes
from recycle_compiler.frontend.syntax import SyntaxSetting
from recycle_compiler.frontend.values import read_whole

MOST_GPUS = 1_048_576
MOST_OPS = 50_000_000
_MOST_SAMPLES = 1 << 30


@dataclass(frozen=True, slots=True)
class GivenShape:
    """The size of a job; None where the file did not give a good number."""

    stages: int | None
    pipelines: int | None
    tensor: int | None
    microbatches: int | None
    """Per pipeline; of all workers together in a free job."""
    micro: int | None
    """Samples in a micro-batch; only an analytic model needs it."""
    workers: int | None = None
    """Of a free job."""
    is_free: bool = False
    """True if the compiler chooses stages and pipelines."""


def read_shape(sections: Sections, report: Mistakes) -> GivenShape:
    """The numbers of the `parallel` and `batch` blocks."""
    parallel = sections.get("parallel")
    if parallel and parallel.names("workers"):
        return _read_free(parallel, sections.get("batch"), report)
    stages = _read(parallel, "pipeline", report, MOST_GPUS)
    pipelines = _read(parallel, "data", report, MOST_GPUS)
    tensor = _read_tensor(parallel, report)
    batch = sections.get("batch")
    micro = _read(batch, "micro", report, _MOST_SAMPLES)
    microbatches = _read_microbatches(batch, pipelines, micro, report)
    if parallel and stages and pipelines and tensor:
        _check_size(parallel, (stages, pipelines, tensor), microbatches, batch, report)
    return GivenShape(stages, pipelines, tensor, microbatches, micro)


def _read_free(parallel: Section, batch: Section | None, report: Mistakes) -> GivenShape:
    """The numbers of a job that leaves stages and pipelines to the compiler."""
    workers = _read(parallel, "workers", report, MOST_GPUS)
    tensor = _read_tensor(parallel, report)
    for key in ("pipeline", "data"):
        if setting := parallel.settings.get(key):
            hint = f"remove one of them: `workers` leaves `{key}` to the compiler"
            report.error("conflict", f"parallel has both `workers` and `{key}`", setting.key.span, hint)
    micro = _read(batch, "micro", report, _MOST_SAMPLES)
    # As many as one pipeline would have.
    microbatches = _read_microbatches(batch, 1, micro, report)
    if workers and tensor and workers * tensor > MOST_GPUS:
        message = f"workers x tensor may be at most {MOST_GPUS:,} GPUs, got {workers * tensor:,}"
        report.error("too-large", message, parallel.span, "check both numbers")
    return GivenShape(None, None, tensor, microbatches, micro, workers, is_free=True)


def _read_tensor(parallel: Section | None, report: Mistakes) -> int | None:
    return _read(parallel, "tensor", report, MOST_GPUS) if _has(parallel, "tensor") else 1


def _read_microbatches(
    batch: Section | None, pipelines: int | None, micro: int | None, report: Mistakes
) -> int | None:
    if batch is None:
        return None
    if _has(batch, "microbatches"):
        if setting := batch.settings.get("global"):
            hint = "remove one of them: `global` is `microbatches` x `data` x `micro`"
            report.error("conflict", "batch has both `microbatches` and `global`", setting.key.span, hint)
        return _read(batch, "microbatches", report, MOST_OPS)
    if not _has(batch, "global"):
        hint = "write `microbatches = 6`, or `global = 1024  micro = 4`"
        report.error("missing", "block `batch` has neither `microbatches` nor `global`", batch.span, hint)
        return None
    if not _has(batch, "micro"):
        hint = "write `micro = 4`, the samples in one micro-batch"
        report.error("missing", "block `batch` has `global` but no `micro`", batch.span, hint)
    total = _read(batch, "global", report, _MOST_SAMPLES)
    if total is None or pipelines is None or micro is None:
        return None
    return _divide(total, pipelines, micro, batch.settings["global"], report)


def _divide(total: int, pipelines: int, micro: int, setting: SyntaxSetting, report: Mistakes) -> int | None:
    together = pipelines * micro
    microbatches, rest = divmod(total, together)
    if not rest:
        return microbatches
    below, above = microbatches * together, (microbatches + 1) * together
    nearest = f"{below} or {above}" if below else f"{above}"
    by = f"data x micro = {pipelines} x {micro} = {together}" if pipelines > 1 else f"micro = {micro}"
    message = f"global must divide by {by}, got {total}"
    report.error("divide", message, setting.value.span, f"the nearest that does: {nearest}")
    return None


def _check_size(
    parallel: Section,
    sizes: tuple[int, int, int],
    microbatches: int | None,
    batch: Section | None,
    report: Mistakes,
) -> None:
    stages, pipelines, tensor = sizes
    gpus = stages * pipelines * tensor
    if gpus > MOST_GPUS:
        message = f"pipeline x data x tensor may be at most {MOST_GPUS:,} GPUs, got {gpus:,}"
        report.error("too-large", message, parallel.span, "check the three numbers")
        return
    if batch:
        check_ops(stages, pipelines * (microbatches or 0), batch, report)


def check_ops(stages: int, microbatches: int, batch: Section, report: Mistakes) -> None:
    """Report an iteration of more ops than a plan may have; `microbatches` are those of all pipelines."""
    ops = 3 * stages * microbatches
    if ops > MOST_OPS:
        message = (
            f"a plan may have at most {MOST_OPS:,} ops (3 x pipeline x data x micro-batches), got {ops:,}"
        )
        report.error("too-large", message, _count_span(batch), "use fewer, larger micro-batches")


def _count_span(batch: Section) -> Span:
    setting = batch.settings.get("microbatches") or batch.settings.get("global")
    return setting.value.span if setting else batch.span


def _has(section: Section | None, key: str) -> bool:
    return section is not None and section.names(key)


def _read(section: Section | None, key: str, report: Mistakes, most: int) -> int | None:
    setting = section.settings.get(key) if section else None
    return read_whole(setting, report, 1, most) if setting else None
