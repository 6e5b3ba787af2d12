"""Differences that `recyclec diff` finds between two plans."""

from dataclasses import replace

from recycle_compiler.analysis.plan_diff import (
    Moved,
    Shifted,
    compare_plans,
    difference_lines,
    difference_object,
)
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_schedule


def changed(text: str, old: str, new: str) -> Schedule:
    assert old in text
    return parse_schedule(text.replace(old, new))


def test_a_plan_does_not_differ_from_itself(tiny: Schedule) -> None:
    diff = compare_plans(tiny, tiny)
    assert diff.is_empty
    assert list(difference_lines(diff)) == []


def test_an_op_that_starts_later(tiny: Schedule, tiny_text: str) -> None:
    diff = compare_plans(tiny, changed(tiny_text, "7 I0.1  8 W0.1", "7 I0.1  9 W0.1"))
    assert diff.shifted == (Shifted("W.p0.m1.s0", Worker(0, 0), 8_000, 9_000),)
    assert not diff.is_empty
    assert not (diff.moved or diff.reordered or diff.memory or diff.claims or diff.job)


def test_an_op_that_runs_elsewhere_keeps_its_name(tiny: Schedule, tiny_text: str) -> None:
    after = tiny_text.replace("  10 W1.1  11 R", "  11 R").replace("8 W0.1  11 R", "8 W0.1  10 W1.1  11 R")
    diff = compare_plans(tiny, parse_schedule(after))
    assert diff.moved == (Moved("W.p1.m1.s0", Worker(1, 0), Worker(0, 0)),)
    assert not diff.shifted
    assert not (diff.reordered or diff.memory or diff.removed or diff.added)


def test_two_ops_that_change_places_are_one_out_of_order(tiny: Schedule, tiny_text: str) -> None:
    diff = compare_plans(tiny, changed(tiny_text, "9 W0.0  10 W1.0  11 W0.1", "9 W0.1  10 W1.0  11 W0.0"))
    assert diff.reordered == ((Worker(0, 1), 2),)
    assert {one.op for one in diff.shifted} == {"W.p0.m0.s1", "W.p0.m1.s1"}


def test_peak_memory(tiny: Schedule, tiny_text: str) -> None:
    early = "1 F0.0  2 I0.0  3 W0.0  4 F1.0  5 I1.0  6 W1.0  7 F0.1  8 I0.1  9 F1.1  10 I1.1"
    diff = compare_plans(
        tiny,
        changed(
            tiny_text,
            "1 F0.0  2 I0.0  3 F1.0  4 I1.0  5 F0.1  6 I0.1  7 F1.1  8 I1.1  9 W0.0  10 W1.0",
            early,
        ),
    )
    assert diff.memory == ((Worker(0, 1), 4_000, 2_000),)


def test_ops_of_one_side_only(tiny: Schedule, tiny_text: str) -> None:
    diff = compare_plans(tiny, changed(tiny_text, "10 W1.1  11 R", "10 W1.1"))
    assert diff.removed == ("R.s0.w1",)
    assert compare_plans(diff.after, diff.before).added == ("R.s0.w1",)


def test_jobs_of_different_shape_can_be_compared(tiny: Schedule, tiny_text: str) -> None:
    more = tiny_text.replace("microbatches 2", "microbatches 3").replace(
        "forward 1000 1000", "forward 1000 2500"
    )
    # The third ones come after all others.
    for end, pipelines in ((" 8 W0.1", (0,)), (" 10 W1.1", (1,)), (" 12 W1.1", (0, 1))):
        ops = (
            f"{30 + 3 * pipeline}{kind}{pipeline}.2" for pipeline in pipelines for kind in (" F", " I", " W")
        )
        more = more.replace(end, "  ".join((end, *ops)))
    diff = compare_plans(tiny, parse_schedule(more))
    assert "  job microbatches 2 -> 3" in difference_lines(diff)
    assert "  job forward  1 1 -> 1 2.5" in difference_lines(diff)


def test_words_for_a_reviewer(tiny: Schedule, tiny_text: str) -> None:
    text = tiny_text.replace("period 13 lower_bound 13", "period 14 lower_bound 13").replace(
        "failed 1:1", "failed 0:1"
    )
    text = text.replace("worker 0:1", "worker 1:1").replace("7 I0.1  8 W0.1", "7 I0.1  9 W0.1")
    assert list(difference_lines(compare_plans(tiny, parse_schedule(text)))) == [
        "  failed       1:1 -> 0:1",
        "  period       13 -> 14 slots (+7.7 %)",
        "  status       optimal -> bounded",
        "  gone         2 ops",
        "    R.s1.w0",
        "    O.s1.w0",
        "  new          2 ops",
        "    R.s1.w1",
        "    O.s1.w1",
        "  moved        12 ops to another worker",
        "    F.p0.m0.s1  0:1 -> 1:1",
        "    I.p0.m0.s1  0:1 -> 1:1",
        "    F.p1.m0.s1  0:1 -> 1:1",
        "    I.p1.m0.s1  0:1 -> 1:1",
        "    F.p0.m1.s1  0:1 -> 1:1",
        "    and 7 more",
        "  retimed      1 op, by worker: 0:0 1",
        "    W.p0.m1.s0 on 0:0  8 -> 9",
        "  peak memory  2 workers",
        "    0:1  4 -> none",
        "    1:1  none -> 4",
    ]


def test_the_same_for_programs(tiny: Schedule, tiny_text: str) -> None:
    after = changed(tiny_text, "lower_bound 13", "lower_bound 12.5")
    found = difference_object(compare_plans(tiny, after))
    assert found["claims"] == {"lower_bound": [13, 12.5], "status": ["optimal", "bounded"]}
    assert (found["same"], found["failures"], found["retimed"]) == (False, 1, [])


def test_a_bound_over_cuts_that_one_side_does_not_have(tiny: Schedule) -> None:
    """A job in layers beside one that keeps its cut."""
    cut = replace(tiny, claims=replace(tiny.claims, bound_over_cuts=12_000))
    (gone,) = difference_lines(compare_plans(cut, tiny))
    assert gone.split() == ["bound", "over", "cuts", "12", "slots", "->", "none"]
    assert difference_object(compare_plans(tiny, cut))["claims"] == {"bound_over_cuts": [None, 12]}
