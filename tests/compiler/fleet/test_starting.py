"""Machines that come are there once they have started, whoever uses them."""

from recycle_compiler.fleet.course import as_seen_by
from recycle_compiler.fleet.policy import Change, Worker
from tests.compiler.fleet.settings import read_fleet

A, B = (0, 0), (0, 1)


def change(at: float, failed: set[Worker], returned: set[Worker], down: set[Worker]) -> Change:
    return Change(at, frozenset(failed), frozenset(returned), frozenset(down), 0)


def seen(*changes: Change, policy: str = "recycle") -> list[Change]:
    return list(as_seen_by(policy, changes, 20.0))


def test_a_return_is_seen_later() -> None:
    failed, back = change(10, {A}, set(), {A}), change(50, set(), {A}, set())
    assert seen(failed, back) == [failed, back._replace(at=70)]
    assert seen(failed, back, policy="restart") == [failed, back]


def test_a_worker_that_fails_while_it_starts_was_never_there() -> None:
    failed = change(10, {A}, set(), {A})
    assert seen(failed, change(50, set(), {A}, set()), change(60, {A}, set(), {A})) == [failed]


def test_a_spare_machine_starts_as_well() -> None:
    assert seen(change(10, {A}, {A}, set())) == [
        change(10, {A}, set(), {A}),
        change(30, set(), {A}, set()),
    ]


def test_what_happens_at_one_moment_is_one_change() -> None:
    changes = (change(10, {A}, {A}, set()), change(30, {B}, set(), {B}))
    assert seen(*changes)[1:] == [change(30, {B}, {A}, {B})]


def test_nobody_is_down_for_longer_than_that() -> None:
    fleet = read_fleet(
        '{"at": 10, "failed": ["0:0", "1:1"]}',
        '{"at": 20, "returned": ["0:0"]}',
        '{"at": 30, "returned": ["1:1"]}',
        '{"at": 99}',
    )
    assert [(one.at, len(one.down)) for one in seen(*fleet.changes())] == [(10, 2), (40, 1), (50, 0)]
