"""Rules that a whole job must meet, beyond those of its single settings."""

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.report import Report
from recycle_compiler.ir.job import JobSpec

LARGEST_TOTAL = 1 << 54
"""Sums over a whole iteration stay below this, so that 64-bit columns never overflow."""


def check_totals(spec: JobSpec, span: Span, report: Report) -> None:
    """Report a job whose iteration, run op after op by one worker, could not be counted."""
    units = spec.pipelines * spec.microbatches
    per_unit = (
        sum(spec.forward) + sum(spec.backward_input) + sum(spec.backward_weight) + 2 * sum(spec.transfer)
    )
    ticks = units * per_unit + sum(spec.reduce) + sum(spec.optimizer)
    if ticks > LARGEST_TOTAL:
        longest = LARGEST_TOTAL // spec.ticks_per_unit
        got = ticks // spec.ticks_per_unit
        message = f"the ops of an iteration may add up to {longest:,} {spec.unit}, got {got:,}"
        report.error("too-large", message, span, "check the unit of the times")
    amount = units * sum(spec.activation)
    if amount > LARGEST_TOTAL:
        largest = LARGEST_TOTAL // spec.memory_scale
        message = (
            f"the activations of an iteration may add up to {largest:,}, got {amount // spec.memory_scale:,}"
        )
        report.error("too-large", message, span, "check the unit of `activation`")
