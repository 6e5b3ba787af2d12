"""Times of single operations: the median of several, and how far they spread."""

import time
from collections.abc import Callable, Sequence
from statistics import quantiles
from typing import Any, NamedTuple, TypeVar

import torch

_Result = TypeVar("_Result")


class Timing(NamedTuple):
    """Nanoseconds: the median, and the quarters between which half of the measurements lie."""

    median: int
    low: int
    high: int

    @classmethod
    def of(cls, measured: Sequence[int]) -> "Timing":
        """Of one measurement or more."""
        if len(measured) == 1:
            return cls(measured[0], measured[0], measured[0])
        low, middle, high = quantiles(measured, n=4, method="inclusive")
        return cls(round(middle), round(low), round(high))

    def scaled(self, factor: float) -> "Timing":
        return Timing(*(round(part * factor) for part in self))

    @property
    def spread(self) -> float:
        """The width of the middle half, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


NOTHING = Timing(0, 0, 0)


class Stopwatch:
    """Times one call at a time on a device, which has nothing else to do meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def time(self, work: Callable[[], _Result]) -> tuple[_Result, int]:
        """The result of a call and its nanoseconds, from an idle device to an idle device."""
        if self._device.type != "cuda":
            began = time.perf_counter_ns()
            result = work()
            return result, time.perf_counter_ns() - began
        start, end = _event(), _event()
        torch.cuda.synchronize(self._device)
        start.record()
        result = work()
        end.record()
        end.synchronize()
        return result, round(start.elapsed_time(end) * 1e6)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)
