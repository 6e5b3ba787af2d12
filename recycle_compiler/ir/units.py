"""Ticks and memory as users write them."""

from fractions import Fraction

from recycle_compiler.ir.job import JobSpec

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def in_unit(job: JobSpec, ticks: int) -> int | float:
    """A time in the job's unit; whole numbers stay integers."""
    return _number(Fraction(ticks, job.ticks_per_unit))


def in_memory_unit(job: JobSpec, amount: int) -> int | float:
    """An amount of memory in the job's unit; whole numbers stay integers."""
    return _number(Fraction(amount, job.memory_scale))


def time_text(job: JobSpec, ticks: int) -> str:
    """`29` or `12.345`: a time in the job's unit, to three decimals, without its unit."""
    return short(Fraction(ticks, job.ticks_per_unit))


def memory_text(job: JobSpec, amount: int) -> str:
    """`4` activations, or `96 MiB`."""
    if job.memory_unit == "count":
        return short(Fraction(amount, job.memory_scale))
    size, unit = Fraction(amount), 0
    while size >= 1024 and unit + 1 < len(_BYTE_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{short(size)} {_BYTE_UNITS[unit]}"


def unit_name(job: JobSpec) -> str:
    """The unit as a word after a number."""
    return "slots" if job.unit == "slot" else job.unit


def short(value: Fraction) -> str:
    """To three decimals, without trailing zeros."""
    return f"{float(value):.3f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """`6.2 %`: to one decimal, as users read shares."""
    if 0 < share < 0.0005:
        return "under 0.1 %"
    return f"{100 * share:.1f} %"


def ending_words(job: JobSpec) -> str:
    """End of a step, in words."""
    return "reduction, optimizer and gathering of weights" if job.owners else "reduction and optimizer"


def plural(count: int, noun: str) -> str:
    """`1 stage`, `2 stages`, `6 micro-batches`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
