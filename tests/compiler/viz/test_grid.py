"""Pictures of plans, in every layout."""

import re
from dataclasses import replace

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_schedule
from recycle_compiler.viz.grid import schedule_grid


def test_the_example_of_these_tests_is_valid(tiny: Schedule) -> None:
    assert list(tiny.verify()) == []


def test_a_cell_per_slot(tiny: Schedule) -> None:
    assert schedule_grid(tiny, width=100) == (
        "tiny: 2 stages, 2 pipelines, 2 micro-batches each; failed: 1:1\n"
        "period 13 slots, optimal (load of stage 1); makespan 13 slots; adaptive + decouple + stagger\n"
        "\n"
        "worker  0                        5                        10\n"
        "0:0     F0   F1   .    I0   W0   .    .    I1   W1   .    .    O    .    .\n"
        "0:1     .    F0   I0   F1.0 I1.0 F1   I1   F1.1 I1.1 W0   W1.0 W1   W1.1 O\n"
        "\n"
        "1:0     F0   F1   .    .    .    I0   W0   .    .    I1   W1   O    .    .\n"
        "1:1     x    x    x    x    x    x    x    x    x    x    x    x    x    x\n"
        "\n"
        "F forward, I input gradient, W weight gradient, O optimizer, . idle, x failed\n"
        "F1.0: micro-batch 0 of pipeline 1, run by a peer; without a dot: of the worker's own pipeline\n"
    )


def test_lines_below_each_other_when_cells_do_not_fit(tiny: Schedule) -> None:
    assert schedule_grid(tiny, width=40).splitlines()[6:] == [
        "worker        0         10",
        "0:0     op    FF.IW..IW..O..",
        "        batch 01 00  11",
        "0:1     op    .FIFIFIFIWWWWO",
        "        batch  000011110011",
        "        of       11  11 1 1",
        "",
        "1:0     op    FF...IW..IWO..",
        "        batch 01   00  11",
        "1:1           xxxxxxxxxxxxxx",
        "",
        "F forward, I input gradient, W weight",
        "  gradient, O optimizer, . idle, x",
        "  failed",
        "batch: the micro-batch; of: its",
        "  pipeline, where not the worker's own",
    ]


def test_long_ops_are_drawn_to_their_end(tiny_text: str) -> None:
    schedule = parse_schedule(tiny_text.replace("optimizer 1000 1000", "optimizer 1000 3000"))
    row = next(line for line in schedule_grid(schedule, width=100).splitlines() if line.startswith("0:1"))
    assert row.endswith("W1.1 O-------------")


def test_uneven_times_are_drawn_to_scale(tiny_text: str) -> None:
    milliseconds = tiny_text.replace("units slot", "units ms").replace("1000 1000", "1000000 1000000")
    uneven = milliseconds.replace("forward 1000000 1000000", "forward 997000 1000000")
    picture = schedule_grid(parse_schedule(uneven), width=64)
    assert "0:1     ....F0--I0--F1.0I1.0" in picture
    assert picture.endswith("one column is 0.25 ms; to scale, labelled where\n  there is room\n")


def test_columns_of_several_slots_show_what_fills_them(tiny: Schedule) -> None:
    """Stage 1 starts 100 slots late, so that a column has to stand for several slots."""
    late = replace(tiny, start=tiny.start + 100_000 * tiny.ops.chunk)
    assert schedule_grid(late, width=40).splitlines()[7:10] == [
        "0:0     *" + "." * 28,
        "0:1     " + "." * 25 + "**W.",
        "",
    ]
    assert schedule_grid(late, width=40).endswith(
        "scaled to fit: one column is 4 slots; it\n  shows what takes more than half of its\n  time\n"
    )


def test_no_line_is_wider_than_asked(tiny: Schedule) -> None:
    for width in range(30, 120):
        picture = schedule_grid(tiny, width=width).splitlines()
        assert all(len(row) <= width for row in picture)


def test_colour_adds_only_escape_codes(tiny: Schedule) -> None:
    colored = schedule_grid(tiny, width=100, color=True)
    assert "\x1b[" in colored
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == schedule_grid(tiny, width=100).splitlines()


def test_a_plan_above_its_bound_says_by_how_much(tiny: Schedule) -> None:
    claims = replace(tiny.claims, lower_bound=12_000, cut_short=True)
    header = schedule_grid(replace(tiny, claims=claims), width=200).splitlines()[1]
    assert header.startswith(
        "period 13 slots, at most 8.3 % above optimal: lower bound 12 (load of stage 1), "
        "cut short by the time limit; makespan"
    )
