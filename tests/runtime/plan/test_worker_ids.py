"""Workers in few words."""

from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan.worker_ids import grid_text, workers_in


def test_a_grid_with_a_failure() -> None:
    grid = [(pipeline, stage) for pipeline in range(64) for stage in range(2) if (pipeline, stage) != (13, 1)]
    assert grid_text(grid) == "0-63;0-12,14-63"
    assert grid_text([(2, 3)]) == ";;;2-2"
    assert grid_text(()) == ""


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 5))))
def test_and_back(workers: set[tuple[int, int]]) -> None:
    assert list(workers_in(grid_text(workers))) == sorted(workers, key=lambda worker: (worker[1], worker[0]))
