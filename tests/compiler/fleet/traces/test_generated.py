"""Traces from words: what may be said, and what is made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.fleet.traces.generated import (
    FailureGroup,
    Machines,
    Repair,
    Words,
    generate,
    is_words,
    parse_words,
)
from recycle_compiler.fleet.traces.trace import FleetTrace, duration_text, seconds_of

HOUR = 3600.0


def made(text: str, machines: int = 24, gpus: int = 1, hours: float = 12, seed: int = 0) -> FleetTrace:
    return generate(parse_words(text), Machines(machines, gpus), hours * HOUR, seed)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("500ms", 0.5),
        ("2d", 172800),
        ("0", 0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "1x", "-5", "1h-5m", "1e3", "nan", "inf", "٣", "1_0", "9" * 400])
def test_no_times(text: str) -> None:
    assert seconds_of(text) is None


@given(st.integers(0, 10**6))
def test_times_in_words_mean_the_same(seconds: int) -> None:
    assert seconds_of(duration_text(seconds)) == seconds


def test_what_words_mean() -> None:
    assert parse_words("every 30m") == Words("every 30m", "every", 1800.0)
    assert parse_words("every=30m repair=2h spares=1") == Words(
        "every=30m repair=2h spares=1", "every", 1800.0, Repair(7200.0), spares=1
    )
    assert parse_words("poisson mtbf 1000h  repair = 4h node=8:20% rack=32") == Words(
        "poisson mtbf 1000h repair = 4h node=8:20% rack=32",
        "poisson",
        3.6e6,
        Repair(14400.0),
        (FailureGroup(8, 0.2), FailureGroup(32, 0.1)),
    )


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("evry 30m", "--trace:1:1: error[unknown-trace]", "did you mean `every`?"),
        ("every", "--trace:1:1: error[missing-value]", "write `every 30m`"),
        ("every soon", "--trace:1:7: error[type]", "this is no time: `soon`"),
        ("every 0s", "--trace:1:7: error[range]", "at least 1ms"),
        ("every 30m repare 2h", "--trace:1:11: error[unknown-word]", "did you mean `repair`?"),
        ("every 30m repair", "--trace:1:11: error[missing-value]", "`repair` has no value"),
        ("every 30m repair 1h repair 2h", "--trace:1:21: error[duplicate]", "given twice"),
        ("every 30m mtbf 2h", "--trace:1:11: error[unknown-word]", "takes `repair` or `spares`"),
        ("poisson", "--trace:1:1: error[missing]", "mean time between failures of a GPU"),
        ("poisson mtbf=1h node=0", "--trace:1:22: error[type]", "whole number from 1"),
        ("poisson mtbf=1h node=8:200%", "--trace:1:22: error[range]", "from 0% to 100%"),
        ("poisson mtbf=1h node=8:0.2", "--trace:1:22: error[range]", "write `node=8:10%`"),
        ("poisson mtbf=1h node=8:70% rack=16:40%", "--trace:1:33: error[range]", "more than 100 % together"),
        ("none 5", "--trace:1:6: error[unknown-word]", "takes `spares`"),
        ("every 30m spares many", "--trace:1:18: error[type]", "whole number from 0"),
    ],
)
def test_words_that_are_wrong(text: str, place: str, words: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_words(text)
    said = caught.value.render()
    assert said.startswith(place), said
    assert "hint: " in said
    assert words in said


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("every 30m", True),
        ("none", True),
        ("every=1h", True),
        ("evry 30m", True),
        ("trace.csv", False),
        ("my traces/aws.csv", False),
        ("", False),
    ],
)
def test_words_or_a_file(text: str, answer: bool) -> None:
    assert is_words(text) is answer


def test_every_takes_one_at_a_time() -> None:
    trace = made("every 30m", machines=4)
    assert [event.at / 60 for event in trace.events] == [30, 60, 90, 120]
    assert len({event.node for event in trace.events}) == 4


def test_every_with_repair() -> None:
    trace = made("every 1h repair 90m", machines=8, hours=5)
    assert [(event.at / 60, event.added) for event in trace.events] == [
        (60, False),
        (120, False),
        (150, True),
        (180, False),
        (210, True),
        (240, False),
        (270, True),
    ]


def test_none_and_spares() -> None:
    trace = made("none spares 3", machines=4)
    assert (len(trace.nodes), trace.events) == (7, ())


@given(
    st.sampled_from(["every 7m", "every 5m repair 31m", "poisson mtbf=20h", "poisson mtbf=9h repair=1h"]),
    st.sampled_from(["", " spares 2"]),
    st.integers(1, 20),
    st.integers(0, 1000),
)
def test_generated_traces_are_possible(text: str, more: str, machines: int, seed: int) -> None:
    trace = made(text + more, machines=machines, seed=seed)
    there = set(trace.nodes)
    assert list(trace.events) == sorted(trace.events, key=lambda event: event.at)
    for event in trace.events:
        assert 0 <= event.at < trace.span
        assert (event.node in there) != event.added
        (there.add if event.added else there.remove)(event.node)
    assert trace == made(text + more, machines=machines, seed=seed)


@given(st.integers(0, 50))
def test_groups_fall_together(seed: int) -> None:
    trace = made("poisson mtbf=100h repair=2h node=4:50% rack=8:50%", machines=32, seed=seed)
    for _, events in trace.moments():
        fallen = sorted(int(event.node.removeprefix("node")) for event in events if not event.added)
        if fallen:
            assert fallen[-1] - fallen[0] < 8
            assert fallen[0] // 8 == fallen[-1] // 8


def test_another_seed_gives_another_trace() -> None:
    assert made("poisson mtbf=50h", seed=1).events != made("poisson mtbf=50h", seed=2).events


@pytest.mark.parametrize(("machines", "gpus"), [(1000, 1), (125, 8)])
def test_the_mean_rate_is_right(machines: int, gpus: int) -> None:
    # 1,000 GPUs that fail every 1,000 h: one failure an hour, here 2,000 of them.
    trace = made("poisson mtbf=1000h repair=1m", machines=machines, gpus=gpus, hours=2000)
    failures = sum(not event.added for event in trace.events)
    assert failures == pytest.approx(2000, rel=0.1)


def test_the_mean_repair_is_right() -> None:
    trace = made("poisson mtbf=1000h repair=2h", machines=1000, hours=1000)
    away: dict[str, float] = {}
    times: list[float] = []
    for event in trace.events:
        if event.added:
            times.append(event.at - away.pop(event.node))
        else:
            away[event.node] = event.at
    assert sum(times) / len(times) == pytest.approx(2 * HOUR, rel=0.15)


def test_too_many_failures_are_refused() -> None:
    with pytest.raises(CompileError) as caught:
        made("poisson mtbf=1ms", machines=1000)
    assert "at most 1,000,000" in caught.value.render()
