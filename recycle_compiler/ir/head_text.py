"""What the texts of several levels share: the head with its job, times, claims."""

from collections.abc import Sequence
from fractions import Fraction

from recycle_compiler.ir.failure import FailureSet, Worker, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.job_text import TextError, parse_job, print_job
from recycle_compiler.ir.streams import Claims


def print_time(ticks: int, ticks_per_unit: int) -> str:
    """Ticks in the job's unit, as an exact decimal."""
    whole, rest = divmod(ticks, ticks_per_unit)
    if not rest:
        return str(whole)
    digits = len(str(ticks_per_unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


def parse_time(word: str, ticks_per_unit: int) -> int:
    """Inverse of `print_time`."""
    ticks = Fraction(word) * ticks_per_unit
    if ticks.denominator != 1:
        raise ValueError(f"{word} is not a whole number of ticks")
    return int(ticks)


def print_release(release: Sequence[int], unit: int) -> str:
    """The line of window openings."""
    return "release " + " ".join(print_time(time, unit) for time in release)


def print_claims(claims: Claims, unit: int) -> str:
    """The line of claims."""
    numbers = (f"{name} {print_time(getattr(claims, name), unit)}" for name in _CLAIMED_TIMES)
    cut = "yes" if claims.cut_short else "no"
    return f"claims {' '.join(numbers)} cut_short {cut} reason {claims.reason}"


def parse_claims(words: Sequence[str], unit: int) -> Claims:
    """What follows the word `claims`."""
    names, values = words[0:8:2], words[1:8:2]
    if tuple(names) != (*_CLAIMED_TIMES, "cut_short") or words[8] != "reason":
        raise ValueError("claims are out of order")
    makespan, period, bound = (parse_time(value, unit) for value in values[:3])
    return Claims(makespan, period, bound, " ".join(words[9:]), values[3] == "yes")


_CLAIMED_TIMES = ("makespan", "period", "lower_bound")


def print_head(job: JobSpec, failed: FailureSet) -> str:
    """The job and the failed workers."""
    return print_job(job) + " ".join(("failed", *map(str, failed))) + "\n"


def split_text(text: str, level: str) -> tuple[JobSpec, FailureSet, list[tuple[int, list[str]]]]:
    """The job, the failed workers, and the numbered lines after them."""
    lines = text.splitlines()
    if not lines or lines[0] != level:
        raise TextError(1, f"expected `{level}`")
    heads = [index for index, line in enumerate(lines) if line.split()[:1] == ["failed"]]
    if not heads:
        raise TextError(0, "the line of failed workers is missing")
    job = parse_job(lines[1 : heads[0]])
    try:
        failed = failure_set(parse_worker(word) for word in lines[heads[0]].split()[1:])
    except ValueError as cause:
        raise TextError(heads[0] + 1, str(cause)) from cause
    rest = [(number, line.split()) for number, line in enumerate(lines, start=1)][heads[0] + 1 :]
    return job, failed, [(number, words) for number, words in rest if words]


def parse_worker(word: str) -> Worker:
    """`pipeline:stage`."""
    pipeline, _, stage = word.partition(":")
    return Worker(int(pipeline), int(stage))
