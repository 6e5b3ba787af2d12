"""Targets, graphs and schedules as text."""

import pytest
from hypothesis import given, settings

from recycle_compiler.ir.job import TextError
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import (
    parse_graph,
    parse_schedule,
    parse_target,
    parse_time,
    print_graph,
    print_schedule,
    print_target,
    print_time,
)
from tests.support.jobs import routed, small_targets


@given(small_targets())
def test_target_reads_back(target: Target) -> None:
    assert parse_target(print_target(target)) == target


@settings(max_examples=30)
@given(small_targets())
def test_graph_reads_back(target: Target) -> None:
    graph = routed(target.job, target.failed)
    again = parse_graph(print_graph(graph))
    assert print_graph(again) == print_graph(graph)
    assert again.ops.same_as(graph.ops)
    assert not list(again.verify())


def test_schedule_reads_back(tiny: Schedule, tiny_text: str) -> None:
    assert print_schedule(tiny) == tiny_text
    assert not list(tiny.verify())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schedule\n", "scedule\n"),
        ("failed 1:1", ""),
        ("failed 1:1", "failed 1-1"),
        ("release 0 1", "release 0"),
        ("worker 0:0  0 F0.0", "worker 0:0  0"),
        ("worker 0:0  0 F0.0", "worker 0:0  0 Z0.0"),
        ("worker 0:0  0 F0.0", "worker 0:9  0 F0.0"),
        ("claims makespan", "claims span"),
    ],
)
def test_refuses_what_is_not_a_schedule(old: str, new: str, tiny_text: str) -> None:
    assert old in tiny_text
    with pytest.raises(TextError):
        parse_schedule(tiny_text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("1 F0.1  3 I0.0", "1 F0.1  1 I0.0", "two ops at once"),
        ("3 I0.0  4 W0.0  7 I0.1", "3 W0.0  4 I0.0  7 I0.1", "W starts before"),
        ("worker 1:0  0 F1.0", "worker 1:0  3 F1.0", "rows are not sorted|two ops|input has arrived"),
        ("capacity unlimited 4000", "capacity unlimited 3000", "holds 4000"),
        ("lower_bound 13", "lower_bound 14", "exceeds the period"),
        ("period 13", "period 14", "measures"),
    ],
)
def test_verify_tells_what_is_wrong(old: str, new: str, complaint: str, tiny_text: str) -> None:
    assert old in tiny_text
    broken = "; ".join(parse_schedule(tiny_text.replace(old, new, 1)).verify())
    assert any(part in broken for part in complaint.split("|")), broken


@pytest.mark.parametrize(
    ("ticks", "unit", "text"), [(0, 1000, "0"), (1500, 1000, "1.5"), (7, 1_000_000, "0.000007")]
)
def test_times_are_exact_decimals(ticks: int, unit: int, text: str) -> None:
    assert print_time(ticks, unit) == text
    assert parse_time(text, unit) == ticks
