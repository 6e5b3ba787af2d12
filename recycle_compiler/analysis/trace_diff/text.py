"""A comparison as text: a verdict in one line, then the tables behind it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recycle_compiler.analysis.trace_diff.breakdown import Reason, main_reasons
from recycle_compiler.analysis.trace_diff.comparison import TraceComparison
from recycle_compiler.ir.groups import any_layout_of
from recycle_compiler.ir.units import percent, plural, time_text, unit_name

_UNITS = (("us", 1.0, 1e3), ("ms", 1e3, 1e7))
"""Each with its length in microseconds, and the time from which on it is too small."""
_LISTED = 16
"""Lines of a table of steps or workers, and failed workers named."""
_NOTICEABLE = 0.001
"""Of the planned period: a smaller difference is not reported."""
_AS_LONG = 0.0005


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit, and how many decimals of it are shown."""

    unit: str
    microseconds: float
    decimals: int

    def number(self, time: float) -> str:
        """`58.1`."""
        return f"{self.rounded(time):.{self.decimals}f}"

    def amount(self, time: float) -> str:
        """`58.1 ms`."""
        return f"{self.number(time)} {self.unit}"

    def change(self, time: float) -> str:
        """`+4.6 ms`."""
        return f"{self.rounded(time):+.{self.decimals}f} {self.unit}"

    def rounded(self, time: float) -> float:
        # Adding zero turns the zero below zero into a plain one.
        return round(time / self.microseconds, self.decimals) + 0.0


def scale_for(time: float) -> TimeUnit:
    """For a report about this time: milliseconds, unless they are too small or too large to read."""
    unit, size = next(((unit, size) for unit, size, end in _UNITS if time < end), ("s", 1e6))
    value = time / size
    return TimeUnit(unit, size, 1 if value >= 10 else 3)


def percentage(share: float) -> str:
    """`+13.9 %`."""
    return f"{100 * share + 0.0:+.1f} %"


def comparison_text(comparison: TraceComparison, origin: str) -> str:
    """All of it, in paragraphs."""
    scale = scale_for(comparison.time)
    paragraphs = (
        (*_head(comparison, origin), verdict(comparison), *_unit(comparison)),
        _steps(comparison, scale),
        _op_times(comparison, scale),
        _workers(comparison, scale),
        _latest(comparison, scale),
        _order(comparison),
    )
    told = ("".join(f"{line}\n" for line in paragraph) for paragraph in paragraphs)
    return "\n".join(text for text in told if text)


def verdict(comparison: TraceComparison) -> str:
    """One line; the parts are differences of what is shown, so they add up as they stand there."""
    scale = scale_for(comparison.time)
    unit = scale.microseconds
    time, planned, typical, replayed = (
        scale.rounded(value) * unit
        for value in (comparison.time, comparison.planned, comparison.typical, comparison.replayed)
    )
    share = comparison.time / comparison.planned - 1
    period = scale.amount(planned)
    if comparison.is_calibrated:
        job = comparison.schedule.job
        period += f" for {time_text(job, comparison.schedule.claims.period)} {unit_name(job)}"
    parts = [_ops_part(comparison, scale.change(typical - planned))]
    if scale.rounded(replayed - typical):
        parts.append(f"uneven ops {scale.change(replayed - typical)}")
    parts.append(f"waiting {scale.change(time - replayed)}")
    return f"step {scale.amount(time)}, planned {period} ({percentage(share)}): {'; '.join(parts)}"


def _ops_part(comparison: TraceComparison, change: str) -> str:
    share = comparison.longer / comparison.planned
    if abs(share) < _AS_LONG:
        return f"ops take as long as the profile says ({change})"
    how = f"{percent(abs(share))} {'longer' if share > 0 else 'shorter'}"
    reasons = main_reasons(comparison.reasons, comparison.longer)
    mostly = f", mostly {_ops_of(reasons[0])}" if len(reasons) == 1 else ""
    if len(reasons) > 1:
        mostly = ", " + " and ".join(
            f"{_ops_of(reason)} {'longer' if reason.saving > 0 else 'shorter'}" for reason in reasons
        )
    return f"ops are {how} than the profile ({change}){mostly}"


def _ops_of(reason: Reason) -> str:
    return reason.kind.name if reason.stage is None else f"{reason.kind.name} on stage {reason.stage}"


def _head(comparison: TraceComparison, origin: str) -> Iterator[str]:
    layout = any_layout_of(comparison.schedule.job, comparison.schedule.failed)
    failed = [str(worker) for worker in comparison.schedule.failed[:_LISTED]]
    if len(comparison.schedule.failed) > _LISTED:
        failed.append(f"and {len(comparison.schedule.failed) - _LISTED} more")
    name = comparison.schedule.job.name
    which = f"the median of {plural(len(comparison.counted), 'step')}"
    if comparison.asked:
        which = "as asked"
    elif len(comparison.counted) == 1:
        which = "the only one" if not comparison.warm_up else "the only one that counts"
    left_out = f"; step {comparison.warm_up[0]} left out as warm-up" if comparison.warm_up else ""
    state = f"failed: {', '.join(failed) or 'none'}"
    if layout is not None and comparison.schedule.job.is_recut:
        state = f"{layout}{' in halves' if comparison.schedule.job.parts == 2 else ''}"
    yield f"{name}, {state}; step {comparison.step} of {origin}, {which}{left_out}"


def _unit(comparison: TraceComparison) -> Iterator[str]:
    if not comparison.is_calibrated:
        return
    job = comparison.schedule.job
    unit = comparison.tick * job.ticks_per_unit
    yield (
        f"one {job.unit} is taken as {scale_for(unit).amount(unit)}: the median, over all work on "
        f"micro-batches, of its measured time for each {job.unit} planned"
    )


def _steps(comparison: TraceComparison, scale: TimeUnit) -> Iterator[str]:
    counted = [(step, time) for step, time in comparison.steps if step in comparison.counted]
    if len(comparison.steps) > _LISTED:
        fastest, slowest = min(counted, key=lambda row: row[1]), max(counted, key=lambda row: row[1])
        for word, (step, time) in (("fastest", fastest), ("slowest", slowest)):
            yield f"{word}: step {step}, {scale.amount(time)} ({percentage(time / comparison.planned - 1)})"
        return
    rows = [("step", scale.unit, "against plan", "")]
    for step, time in comparison.steps:
        note = (
            "warm-up" if step in comparison.warm_up else "taken apart here" if step == comparison.step else ""
        )
        rows.append((str(step), scale.number(time), percentage(time / comparison.planned - 1), note))
    yield "steps"
    yield from _table(rows, left=(3,))


def _op_times(comparison: TraceComparison, scale: TimeUnit) -> Iterator[str]:
    fine = scale_for(max(row.median for row in comparison.op_times))
    rows: list[tuple[str, ...]] = [
        ("op", "stage", "count", f"planned {fine.unit}", "measured", "ratio", "tenth", "nine tenths")
    ]
    held = comparison.schedule.job.held
    for row in comparison.op_times:
        ratio = f"{row.median / row.planned:.3f}" if row.planned else "-"
        place = f"{row.stage} c{row.chunk}" if len(held[row.stage]) > 1 else str(row.stage)
        times = [fine.number(time) for time in (row.planned, row.median)]
        spread = [fine.number(time) for time in (row.low, row.high)]
        rows.append((row.kind.name, place, str(row.count), *times, ratio, *spread))
    yield "ops without their waiting: planned, the median measured, a tenth are below, nine tenths are below"
    yield from _table(rows)


def _workers(comparison: TraceComparison, scale: TimeUnit) -> Iterator[str]:
    shown = sorted(comparison.workers, key=lambda row: -row.waiting)[:_LISTED]
    left = len(comparison.workers) - len(shown)
    longest = comparison.longest_data_wait
    data = ("for data",) if longest else ()
    rows: list[tuple[str, ...]] = [
        ("worker", f"step {scale.unit}", "busy", "planned busy", "waiting", *data, "between ops")
    ]
    for row in comparison.workers:
        if row in shown:
            for_data = (row.data,) if longest else ()
            times = (row.whole, row.busy, row.planned_busy, row.waiting, *for_data, row.between)
            rows.append((str(row.worker), *map(scale.number, times)))
    more = f"; {left} that waited less are left out, --json has them" if left else ""
    yield f"workers in step {comparison.step}: waiting is for messages and peers{more}"
    yield from _table(rows)
    if longest:
        time, share = scale.amount(longest.data), percent(longest.data / comparison.time)
        yield f"waiting for data: {time} on worker {longest.worker}, {share} of the step"


def _latest(comparison: TraceComparison, scale: TimeUnit) -> Iterator[str]:
    shown = [late for late in comparison.latest if late.late >= _NOTICEABLE * comparison.planned]
    if not shown:
        return
    rows = [("op", "worker", f"planned {scale.unit}", "started", "late")]
    for late in shown:
        times = (scale.number(late.planned), scale.number(late.started), scale.number(late.late))
        rows.append((late.name, str(late.worker), *times))
    yield f"started latest in step {comparison.step}, from its first op on"
    yield from _table(rows)


def _order(comparison: TraceComparison) -> Iterator[str]:
    if not comparison.other_order:
        yield "order: as planned on every worker in every step"
        return
    for other in comparison.other_order[:_LISTED]:
        where = f"where its plan has {other.planned}"
        yield f"order: worker {other.worker} ran {other.ran} in step {other.step}, {where}"


def _table(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"  {'  '.join(cells)}".rstrip()
