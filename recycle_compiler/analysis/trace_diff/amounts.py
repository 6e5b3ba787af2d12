"""Times of a run as people read them: one unit for a whole report, rounded so that sums stay right."""

from dataclasses import dataclass

_UNITS = (("us", 1.0, 1e3), ("ms", 1e3, 1e7))
"""Each with its length in microseconds, and the time from which on it is too small."""


@dataclass(frozen=True, slots=True)
class Scale:
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


def scale_for(time: float) -> Scale:
    """For a report about this time: milliseconds, unless they are too small or too large to read."""
    unit, size = next(((unit, size) for unit, size, end in _UNITS if time < end), ("s", 1e6))
    value = time / size
    return Scale(unit, size, 1 if value >= 10 else 3)


def percentage(share: float) -> str:
    """`+13.9 %`."""
    return f"{100 * share + 0.0:+.1f} %"
