"""Machines to workers: places, spares, and what a change means for the job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.fleet.machines import Fleet, LayoutError, lay_out
from recycle_compiler.fleet.policy import Change, Worker
from recycle_compiler.fleet.traces.generated import Machines, generate, parse_words
from recycle_compiler.fleet.traces.read import parse_trace
from recycle_compiler.fleet.traces.trace import FleetEvent, FleetTrace, JobGrid

GRID = JobGrid(pipelines=2, stages=2)


def fleet(nodes: str, *events: tuple[float, str], gpus_per_node: int | None = None, tensor: int = 1) -> Fleet:
    """Machines by one letter; an event is `+a` or `-a`."""
    named = tuple(FleetEvent(at, word[1:], word[0] == "+") for at, word in events)
    return Fleet(FleetTrace("t", 100.0, tuple(nodes), named), lay_out(2, 2, tensor, gpus_per_node))


def workers(*names: str) -> frozenset[Worker]:
    return frozenset((int(name[0]), int(name[1])) for name in names)


def test_a_machine_is_a_worker_unless_said_otherwise() -> None:
    assert lay_out(2, 2, 8).places == (((0, 0),), ((0, 1),), ((1, 0),), ((1, 1),))
    assert lay_out(2, 2, 8).gpus_each == 8


def test_layouts() -> None:
    assert lay_out(2, 2, 2, 4).places == (((0, 0), (0, 1)), ((1, 0), (1, 1)))
    assert lay_out(2, 2, 2, 4, by="stage").places == (((0, 0), (1, 0)), ((0, 1), (1, 1)))
    assert lay_out(1, 3, 1, 2).places == (((0, 0), (0, 1)), ((0, 2),))
    assert lay_out(1, 2, 4, 2).places == (((0, 0),), ((0, 0),), ((0, 1),), ((0, 1),))
    with pytest.raises(LayoutError, match="a worker has 4 GPUs and a machine 6"):
        lay_out(1, 2, 4, 6)


def test_failed_and_back_in_its_place() -> None:
    one = fleet("abcd", (10, "-c"), (20, "+c"))
    assert one.start == (frozenset(), 0)
    assert list(one.changes()) == [
        Change(10, workers("10"), frozenset(), workers("10"), 0),
        Change(20, frozenset(), workers("10"), frozenset(), 0),
    ]


def test_too_few_machines_leave_the_last_places_down() -> None:
    one = fleet("ab", (5, "+x"))
    assert one.start.down == workers("10", "11")
    assert next(one.changes()).returned == workers("10")


def test_a_new_machine_goes_where_fewest_live() -> None:
    one = fleet("abcd", (1, "-a"), (2, "-b"), (3, "-d"), (4, "+x"))
    assert list(one.changes())[-1].returned == workers("01")


def test_an_old_machine_whose_place_is_taken_goes_elsewhere() -> None:
    one = fleet("abcd", (1, "-a"), (2, "+x"), (3, "-b"), (4, "+a"))
    assert list(one.changes())[-1] == Change(4, frozenset(), workers("01"), frozenset(), 0)


def test_a_spare_machine_takes_over_at_once() -> None:
    one = fleet("abcdef", (7, "-b"))
    assert one.start == (frozenset(), 2)
    assert list(one.changes()) == [Change(7, workers("01"), workers("01"), frozenset(), 1, workers("01"))]


def test_a_spare_machine_that_goes_is_a_change_too() -> None:
    assert list(fleet("abcde", (7, "-e")).changes()) == [Change(7, frozenset(), frozenset(), frozenset(), 0)]


def test_what_happens_at_one_moment_is_one_change() -> None:
    one = fleet("abcd", (9, "-a"), (9, "-b"), (9, "+x"))
    assert list(one.changes()) == [Change(9, workers("00", "01"), workers("00"), workers("01"), 0)]


def test_a_machine_that_is_restarted_has_lost_what_it_held() -> None:
    one = fleet("abcd", (9, "-a"), (9, "+a"))
    assert list(one.changes()) == [Change(9, workers("00"), workers("00"), frozenset(), 0)]


def test_a_machine_takes_all_its_workers() -> None:
    one = fleet("abc", (9, "-a"), (12, "-b"), gpus_per_node=2)
    assert one.start == (frozenset(), 2)
    assert list(one.changes()) == [
        Change(9, workers("00", "01"), workers("00", "01"), frozenset(), 0, workers("00", "01")),
        Change(12, workers("10", "11"), frozenset(), workers("10", "11"), 0),
    ]


def test_a_worker_on_several_machines_needs_them_all() -> None:
    one = fleet("abcdefgh", (1, "-a"), (2, "-b"), (3, "+a"), (4, "+b"), tensor=2, gpus_per_node=1)
    assert [(change.at, sorted(change.failed), sorted(change.returned)) for change in one.changes()] == [
        (1, [(0, 0)], []),
        (4, [], [(0, 0)]),
    ]


def test_events_at_the_beginning_belong_to_it() -> None:
    one = fleet("abcd", (0, "-a"), (5, "+a"))
    assert one.start.down == workers("00")
    assert len(list(one.changes())) == 1


def test_workers_by_name() -> None:
    trace = parse_trace('{"at": 0, "failed": ["1:1"]}\n{"at": 5, "failed": ["0:1"]}\n{"at": 9}', "t", GRID)
    one = Fleet(trace, lay_out(2, 2, 1, 4))
    assert one.start.down == workers("11")
    assert list(one.changes()) == [Change(5, workers("01"), frozenset(), workers("01", "11"), 0)]


def test_machines_that_nobody_names_are_there() -> None:
    trace = parse_trace('{"at": 5, "failed": ["x"]}\n{"at": 9}', "t", GRID)
    one = Fleet(trace, lay_out(2, 2, 1))
    assert one.start == (frozenset(), 0)
    assert next(one.changes()).failed == workers("00")


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([(1, None), (1, 2), (2, 1), (2, 4)]),
    st.integers(0, 3),
    st.integers(0, 200),
)
def test_changes_add_up(
    pipelines: int, stages: int, gpus: tuple[int, int | None], spares: int, seed: int
) -> None:
    layout = lay_out(pipelines, stages, *gpus)
    words = parse_words(f"poisson mtbf=4h repair=2h node=2:30% spares={spares}")
    one = Fleet(generate(words, Machines(len(layout.places), layout.gpus_each), 36000, seed), layout)
    grid = {(pipeline, stage) for pipeline in range(pipelines) for stage in range(stages)}
    down = one.start.down
    assert down == frozenset()
    for change in one.changes():
        assert change.failed <= grid - down
        assert change.down == (down | change.failed) - change.returned
        assert change.returned <= down | change.failed
        assert change.spare >= 0
        assert not (change.down and change.spare and gpus != (2, 1))
        down = change.down
