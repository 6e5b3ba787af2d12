"""The table that `recyclec compile` ends with."""

from dataclasses import dataclass, replace

import pytest

from recycle_compiler.ir.layout import Layout
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.viz.table import per_stage_text, summary_table


@dataclass(frozen=True)
class Row:
    failures: int = 1
    failed_per_stage: tuple[int, ...] = (0, 1)
    period: int = 13_500
    lower_bound: int = 13_000
    gap: float = 0.5 / 13
    status: str = "bounded"
    seconds: float = 1.234
    against_1f1b: float = 0.9
    cut_short: bool = True
    layout: Layout | None = None
    split: int = 1
    bound_over_cuts: int = 0


def test_one_line_per_plan(tiny: Schedule) -> None:
    table = summary_table(tiny.job, [Row()], color=False)
    assert [" ".join(line.split()) for line in table.splitlines()] == [
        "failures failed per stage period (slot) bound gap status vs 1F1B fault-free seconds",
        "1 0 1 13.5 13 3.8 % bounded, cut short 0.900x 1.23",
    ]
    assert len({len(line) for line in table.splitlines()}) == 1


def test_colour_is_only_for_terminals(tiny: Schedule) -> None:
    assert "\x1b[1m" in summary_table(tiny.job, [Row()], color=True)


@pytest.mark.parametrize(
    ("per_stage", "text"),
    [((0, 1, 0, 2), "0 1 0 2"), ((0,) * 9 + (3, 1), "9:3 10:1"), ((0,) * 20, "-")],
)
def test_long_vectors_are_listed_by_stage(per_stage: tuple[int, ...], text: str) -> None:
    assert per_stage_text(per_stage) == text


def test_a_job_in_layers_says_which_cut(tiny: Schedule) -> None:
    job = replace(tiny.job, cut=(4, 3))
    rows = [
        Row(layout=Layout((4, 3), (3, 3)), bound_over_cuts=9000),
        Row(layout=Layout((2, 2, 3), (2, 2, 1)), split=2, bound_over_cuts=8500),
    ]
    lines = summary_table(job, rows, color=False).splitlines()
    assert "layers x workers" in lines[0]
    assert "4x3 3x3 (own cut)" in lines[1]
    assert "2x2*2 3x1, in halves" in lines[2] and "8.5" in lines[2]
