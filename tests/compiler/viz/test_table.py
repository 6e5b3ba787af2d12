"""The table that `recyclec compile` ends with."""

from dataclasses import dataclass

import pytest

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
