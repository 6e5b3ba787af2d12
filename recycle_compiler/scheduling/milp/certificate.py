"""Check in exact arithmetic what a solver says about a system of rows: this point meets it, or none does.

A solver works in floating point; what it says is a hint. Its hint is one weight per row: if the rows add up,
with these weights, to more on the left than on the right wherever columns lie within their bounds, then no
point meets them all, whatever rounding did to the weights.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_SCALE = 720_720
"""Weights are mostly small fractions, which this makes whole."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """A sum of columns times values, at most a limit, for each row; sparse, row after row."""

    limit: Ints
    offset: Ints
    """Row r has the entries offset[r] up to offset[r + 1]."""
    column: Ints
    value: Ints
    lower: Ints
    """The bounds of every column."""
    upper: Ints


def meets(point: Ints, rows: SparseRows) -> bool:
    """True if a point meets every row."""
    for row, limit in enumerate(rows.limit.tolist()):
        entries = slice(int(rows.offset[row]), int(rows.offset[row + 1]))
        terms = zip(rows.column[entries].tolist(), rows.value[entries].tolist(), strict=True)
        if sum(int(point[column]) * value for column, value in terms) > limit:
            return False
    return True


def refutes(weights: NDArray[np.float64], rows: SparseRows, lower: Ints, upper: Ints) -> bool:
    """True if the weights, or their opposites, prove that no point within these bounds meets all rows.

    Bounds that cross, or a row that fails on its own, need no weights.
    """
    if (lower > upper).any():
        return True
    largest = float(np.abs(weights).max(initial=0.0))
    if np.isfinite(largest) and largest > 0.0:
        scaled = np.rint(weights * (_SCALE / largest))
        for sign in (1, -1):
            if _adds_up(np.maximum(sign * scaled, 0).astype(np.int64), rows, lower, upper):
                return True
    one_row = np.zeros(len(rows.limit), dtype=np.int64)
    for row in range(len(rows.limit)):
        one_row[row] = 1
        if _adds_up(one_row, rows, lower, upper):
            return True
        one_row[row] = 0
    return False


def _adds_up(weights: Ints, rows: SparseRows, lower: Ints, upper: Ints) -> bool:
    # Python's integers throughout, since memory in bytes times weights may exceed 64 bits.
    factors: dict[int, int] = {}
    most = 0
    for row in np.flatnonzero(weights).tolist():
        weight = int(weights[row])
        most += weight * int(rows.limit[row])
        entries = slice(int(rows.offset[row]), int(rows.offset[row + 1]))
        for column, value in zip(rows.column[entries].tolist(), rows.value[entries].tolist(), strict=True):
            factors[column] = factors.get(column, 0) + weight * value
    least = sum(factor * int((lower if factor > 0 else upper)[column]) for column, factor in factors.items())
    return least > most
