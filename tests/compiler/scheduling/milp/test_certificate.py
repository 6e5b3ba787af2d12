"""Proofs in exact arithmetic: right weights convince, wrong ones do not, and size does not matter."""

import numpy as np
import pytest

from recycle_compiler.scheduling.milp.certificate import Ints, SparseRows, meets, refutes


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def apart(factor: int, gap: int) -> SparseRows:
    """factor * x <= 0 and factor * (y - x) <= 0 with y at least `gap`, which fails for every gap above 0."""
    return SparseRows(
        limit=ints(0, 0),
        offset=ints(0, 1, 3),
        column=ints(0, 1, 0),
        value=ints(factor, factor, -factor),
        lower=ints(0, gap),
        upper=ints(9, 9),
    )


@pytest.mark.parametrize("factor", [1, 96 << 20, 1 << 60])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_that_add_up_to_a_contradiction_refute(factor: int, sign: float) -> None:
    rows = apart(factor, gap=1)
    assert refutes(sign * np.array([1.0, 1.0]), rows, rows.lower, rows.upper)


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (np.nan, 1.0), (1.0, -1.0)])
def test_other_weights_refute_nothing(weights: tuple[float, float]) -> None:
    rows = apart(1, gap=1)
    assert not refutes(np.array(weights), rows, rows.lower, rows.upper)


def test_nothing_refutes_what_has_a_solution() -> None:
    rows = apart(1, gap=0)
    assert meets(ints(0, 0), rows)
    for weights in np.random.default_rng(0).random((200, 2)):
        assert not refutes(weights, rows, rows.lower, rows.upper)


def test_bounds_that_cross_and_rows_that_fail_alone_need_no_weights() -> None:
    rows = apart(1, gap=0)
    nothing = np.zeros(2)
    assert refutes(nothing, rows, ints(3, 0), ints(2, 9))
    assert refutes(nothing, rows, ints(1, 0), ints(9, 9))
    assert not refutes(nothing, rows, ints(0, 0), ints(9, 9))


def test_bounds_of_a_branch_count() -> None:
    rows = apart(1, gap=0)
    assert refutes(np.array([1.0, 1.0]), rows, ints(0, 1), rows.upper)


def test_a_point_off_one_row_does_not_meet_them() -> None:
    rows = apart(1 << 40, gap=0)
    assert not meets(ints(0, 1), rows)
    assert not meets(ints(1, 1), rows)
