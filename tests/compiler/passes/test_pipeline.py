"""Pipelines: passes that fit, values that are verified, and what a crash tells."""

import pickle
from dataclasses import dataclass, replace
from typing import assert_type

import pytest

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.build_graph import BuildGraph
from recycle_compiler.passes.canonicalize_schedule import CanonicalizeSchedule
from recycle_compiler.passes.normalize_failures import NormalizeFailures
from recycle_compiler.passes.pipeline import Pass, PassDone, PassError, Pipeline
from recycle_compiler.passes.split_backward import SplitBackward
from recycle_compiler.passes.standard import GRAPH_PASSES, LOWERING_PASSES, all_passes
from recycle_compiler.scheduling.search import Effort
from tests.support.jobs import unit_job


@dataclass(frozen=True, slots=True)
class Swap(Pass[Schedule, Schedule]):
    """A pass with a mistake: it lets the first two rows change places."""

    name = "swap"

    def run(self, before: Schedule) -> Schedule:
        start = before.start.copy()
        start[[0, 1]] = start[[1, 0]]
        return replace(before, start=start)


@dataclass(frozen=True, slots=True)
class Fail(Pass[Graph, Graph]):
    """A pass that raises."""

    name = "fail"
    error: type[Exception]

    def run(self, before: Graph) -> Graph:
        raise self.error("on purpose")


def test_passes_compose_by_level() -> None:
    assert_type(NormalizeFailures() >> BuildGraph(), Pipeline[Target, Graph])
    assert_type(GRAPH_PASSES >> AssignSlots() >> LOWERING_PASSES, Pipeline[Target, Streams])
    assert_type(all_passes().run(Target(unit_job(1, 1, 1), ())), Streams)
    # What does not fit is refused before anything runs.
    BuildGraph() >> CanonicalizeSchedule()  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    GRAPH_PASSES >> LOWERING_PASSES  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]


def test_composing_changes_nothing() -> None:
    two = NormalizeFailures() >> BuildGraph()
    three = two >> SplitBackward()
    assert two == NormalizeFailures() >> BuildGraph()
    assert [step.name for step in three.steps] == ["normalize-failures", "build-graph", "split-backward"]
    assert NormalizeFailures() >> (BuildGraph() >> SplitBackward()) == three


def test_observers_see_every_pass() -> None:
    seen: list[PassDone] = []
    made = GRAPH_PASSES.run(Target(unit_job(1, 1, 1), ()), [seen.append])
    assert [(step.number, step.done) for step in seen] == list(enumerate(GRAPH_PASSES.steps, start=1))
    assert [step.rest for step in seen] == [GRAPH_PASSES.steps[number:] for number in range(1, 6)]
    assert seen[-1].value is made


def test_a_pass_that_leaves_a_broken_value_is_named() -> None:
    slots = AssignSlots(Effort(rules=1))
    passes = GRAPH_PASSES >> slots >> Swap() >> LOWERING_PASSES
    with pytest.raises(PassError, match="swap: rows are not sorted") as caught:
        passes.run(Target(unit_job(2, 1, 2), ()))
    assert isinstance(caught.value.before, Schedule)
    assert caught.value.rest == (Swap(), *LOWERING_PASSES.steps)


@pytest.mark.parametrize("error", [AssertionError, AttributeError, RuntimeError, KeyError])
def test_a_pass_that_crashes_is_named(error: type[Exception]) -> None:
    with pytest.raises(PassError, match=r"fail: .*on purpose") as caught:
        (GRAPH_PASSES >> Fail(error)).run(Target(unit_job(2, 1, 2), ()))
    assert isinstance(caught.value.before, Graph)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.rest) == (str(caught.value), (Fail(error),))


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_what_the_machine_does_is_no_crash(error: type[Exception]) -> None:
    with pytest.raises(error):
        (GRAPH_PASSES >> Fail(error)).run(Target(unit_job(2, 1, 2), ()))


def test_a_crash_within_passes_of_a_pass_is_theirs() -> None:
    @dataclass(frozen=True, slots=True)
    class Outer(Pass[Graph, Graph]):
        name = "outer"

        def run(self, before: Graph) -> Graph:
            return (SplitBackward() >> Fail(ValueError)).run(before)

    with pytest.raises(PassError, match=r"^fail: "):
        (NormalizeFailures() >> BuildGraph() >> Outer()).run(Target(unit_job(2, 1, 2), ()))
