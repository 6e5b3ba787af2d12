"""The text of passes and reproducers is exact; what a hand has changed is read, or refused in a sentence."""

import re
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import TextError
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import Level, print_level
from recycle_compiler.passes import text as pass_text
from recycle_compiler.passes.add_worker import AddWorker
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.pipeline import AnyPass, PassError
from recycle_compiler.passes.route_microbatches import RouteMicrobatches
from recycle_compiler.passes.standard import LOWERING_PASSES, all_passes
from recycle_compiler.passes.text import (
    PASSES,
    parse_pass,
    parse_passes,
    parse_reproducer,
    pass_class,
    print_pass,
    print_passes,
    print_reproducer,
    reproduce,
    write_reproducer,
)
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.scheduling.slow_workers import SlowWorker
from tests.support.jobs import unit_job

Built = TypeVar("Built")
WORKERS = st.builds(Worker, st.integers(0, 99), st.integers(0, 99))
SHARES = st.none() | st.integers(0, 10**6)
st.register_type_strategy(Worker, WORKERS)
st.register_type_strategy(SlowWorker, st.builds(SlowWorker, WORKERS, st.fractions(Fraction(1, 1000)), SHARES))


def with_any_fields(kind: type[Built]) -> st.SearchStrategy[Built]:
    """Every field, one with a default too, has any value of its type."""
    return st.builds(kind, **{one.name: ... for one in fields(kind)})  # type: ignore[arg-type]


st.register_type_strategy(Effort, with_any_fields(Effort))
ANY_PASS: st.SearchStrategy[AnyPass] = st.sampled_from(PASSES).map(pass_class).flatmap(with_any_fields)


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_has_the_name_of_its_file(name: str) -> None:
    kind = pass_class(name)
    assert kind.name == name
    assert kind.__module__ == f"recycle_compiler.passes.{name.replace('-', '_')}"
    assert print_pass(kind()) == name
    assert all(field.init for field in fields(kind()))  # type: ignore[arg-type]


def test_every_pass_is_in_the_table() -> None:
    folder = Path(pass_text.__file__).parent
    found = {path for path in folder.glob("*.py") if re.search(r"^class \w+\(Pass\[", path.read_text(), re.M)}
    assert {path.stem.replace("_", "-") for path in found} == set(PASSES)


@given(ANY_PASS)
def test_passes_are_read_back(step: AnyPass) -> None:
    assert parse_pass(print_pass(step)) == step


@given(st.lists(ANY_PASS, max_size=3).map(tuple))
def test_pipelines_are_read_back(passes: tuple[AnyPass, ...]) -> None:
    assert parse_passes(print_passes(passes)) == passes


def test_options_that_are_as_by_default_are_left_out() -> None:
    slow = (SlowWorker(Worker(1, 2), Fraction(3), 2), SlowWorker(Worker(0, 1), Fraction(5, 2)))
    assert print_pass(RouteMicrobatches(slow)) == "route-microbatches{slow=[1:2=3@2,0:1=5/2]}"
    step = AssignSlots(Effort(rules=16, exact=False), Guard(10**9), seed=3)
    assert print_pass(step) == "assign-slots{effort={rules=16,exact=false},seed=3}"
    assert parse_pass("assign-slots{effort={},slow=[],seed=none}") == AssignSlots()
    assert parse_pass("split-backward{}") == parse_pass("split-backward")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("split", "no pass is called `split`; there are normalize-failures, "),
        ("", "no pass is called ``"),
        ("build-graph{x=1}", "build-graph: no option is called `x`; it has none"),
        ("assign-slots{x=1}", "assign-slots: no option is called `x`; options are effort, "),
        ("assign-slots{effort}", "assign-slots: option `effort` has no value"),
        ("assign-slots{slow=[],slow=[]}", "assign-slots: option `slow` has two values"),
        ("assign-slots{effort={rules=x}}", "option `rules`: expected a whole number, got `x`"),
        ("assign-slots{effort={exact=yes}}", "option `exact`: expected true or false, got `yes`"),
        ("assign-slots{effort=1}", "option `effort`: expected `{...}`, got `1`"),
        ("assign-slots{slow=1:2=3}", "option `slow`: expected `[...]`, got `1:2=3`"),
        ("assign-slots{slow=[1=3]}", "option `slow`: expected a slow worker such as 1:2=3, got `1=3`"),
        ("assign-slots{slow=[1:2=1/0]}", "expected a slow worker such as 1:2=3, got `1:2=1/0`"),
        ("assign-slots{", "assign-slots: expected `{...}`, got `{`"),
        ("assign-slots{slow=[1:2=3}", "brackets do not match"),
        ("assign-slots{slow=[]}}", "brackets do not match"),
        ("assign-slots{effort={rules=1},}", "no option is called ``"),
    ],
)
def test_a_pass_that_cannot_be_read_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_pass(text)


def test_reproducers_are_read_back() -> None:
    target = Target(unit_job(2, 2, 1), (Worker(1, 0),))
    passes = all_passes(AssignSlots(Effort(rules=1))).steps
    text = print_reproducer(target, passes)
    assert text.startswith("passes normalize-failures build-graph ")
    assert parse_reproducer(text) == (target, passes)
    assert parse_reproducer(f"# after nothing\n{text}") == (target, passes)
    assert parse_reproducer(print_reproducer(target, ())) == (target, ())


def tiny_target() -> str:
    return print_level(Target(unit_job(1, 1, 1), ()))


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("", 1, "expected `passes`"),
        ("graph\n", 1, "expected `passes`"),
        ("# a\n# b\n", 3, "expected `passes`"),
        ("passes no-such-pass\ntarget\n", 1, "no pass is called `no-such-pass`"),
        ("# a\npasses no-such-pass\ntarget\n", 2, "no pass is called `no-such-pass`"),
        ("passes\nnonsense\n", 2, "expected one of target, graph, "),
        (f"passes split-backward\n{tiny_target()}", 1, "split-backward takes a graph, not a target"),
        (f"passes build-graph build-graph\n{tiny_target()}", 1, "build-graph takes a target, not a graph"),
    ],
)
def test_what_is_not_a_reproducer_is_refused(text: str, line: int, complaint: str) -> None:
    with pytest.raises(TextError, match=re.escape(complaint)) as caught:
        reproduce(text)
    assert caught.value.line == line


def test_ir_that_a_hand_has_broken_is_refused(tiny_text: str) -> None:
    broken = tiny_text.replace("0 F0.0  1 F0.1", "0 F0.0  0 F0.1")
    with pytest.raises(
        TextError, match="the IR that begins here is not valid: worker 0:0 runs two ops"
    ) as caught:
        reproduce(f"passes insert-transfers\n{broken}")
    assert caught.value.line == 2


def test_the_lines_of_the_ir_are_counted_from_the_top(tiny_text: str) -> None:
    broken = tiny_text.replace("worker 0:0", "wurker 0:0")
    with pytest.raises(TextError) as alone:
        reproduce(f"passes\n{broken}")
    with pytest.raises(TextError) as below:
        reproduce(f"# a\n# b\npasses\n{broken}")
    assert alone.value.line and below.value.line == alone.value.line + 2


SLOTS = AssignSlots(Effort(rules=1, op_moves=0))


@pytest.mark.parametrize("name", PASSES)
def test_a_crash_is_reproduced_in_the_same_pass_with_the_same_options(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = pass_class(name)
    # It needs a plan to add a worker to, which is made while nothing crashes.
    plan = all_passes(SLOTS).run(Target(unit_job(2, 2, 2), (Worker(0, 1),)))
    ran: list[AnyPass] = []

    def crash(self: AnyPass, before: Level) -> Level:
        ran.append(self)
        raise RuntimeError("on purpose")

    monkeypatch.setattr(kind, "run", crash)
    monkeypatch.setattr(pass_text.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(PassError, match=f"{name}: .*on purpose") as first:
        match name:
            case "add-worker":
                (AddWorker((Worker(1, 0),)) >> LOWERING_PASSES).run(plan)
            case "one-f-one-b":
                one_f_one_b_period(unit_job(2, 2, 2))
            case _:
                plan_failed(unit_job(2, 2, 2), (Worker(0, 1),), effort=SLOTS.effort, guard=Guard(10**9))
    path = write_reproducer(first.value)
    assert path.parent == tmp_path and path.name.startswith(f"recyclec-{name}-")
    with pytest.raises(PassError) as again:
        reproduce(path.read_text(encoding="utf-8"))
    assert str(again.value) == str(first.value)
    assert again.value.rest == first.value.rest
    assert print_level(again.value.before) == print_level(first.value.before)
    assert ran[0] == ran[1]
