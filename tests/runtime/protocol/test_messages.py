"""Messages: every one survives the wire, and whatever is none is refused with a sentence."""

import dataclasses
import json
import os
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.protocol.codec import Integer, Natural, ProtocolError, decode, encode
from recycle_runtime.protocol.messages import observers, store
from recycle_runtime.protocol.messages.generations import Go, Hold, Join, Leave
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import StopJob, ToObserver
from recycle_runtime.protocol.messages.steps import LossShare, StepDone
from recycle_runtime.protocol.messages.wire import (
    KINDS,
    PASSED_ON,
    FromAgent,
    FromWorker,
    Handlers,
    Message,
    Passed,
    Relayed,
    ToAgent,
    ToWorker,
    ToWorkers,
    from_fields,
    to_fields,
)

NATURALS = st.integers(0, (1 << 63) - 1)


def some(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that messages have."""
    if kind == Natural:
        return NATURALS
    if kind is Relayed:
        return st.lists(some(Passed), max_size=3).map(lambda passed: Relayed(tuple(passed)))
    if kind is Passed:
        carried = st.sampled_from(sorted(PASSED_ON, key=lambda one: one.__name__)).flatmap(some)
        return st.builds(Passed, st.lists(NATURALS, max_size=3).map(tuple), st.none() | carried)
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        hints = get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: some(hint) for name, hint in hints.items()})
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(1 << 62), 1 << 62),
        Integer: st.integers(-(1 << 62), 1 << 62),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
    }
    if kind in plain:
        return plain[kind]
    arguments = get_args(kind)
    if type(None) in arguments:
        return st.none() | some(next(one for one in arguments if one is not type(None)))
    if arguments[1:] == (Ellipsis,):
        return st.lists(some(arguments[0]), max_size=3).map(tuple)
    if "Mapping" in str(kind):
        return st.dictionaries(st.text(max_size=3), some(arguments[1]), max_size=3)
    return st.tuples(*(some(one) for one in arguments))


ANY_MESSAGE = st.sampled_from(sorted(KINDS)).flatmap(lambda name: some(KINDS[name]))


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite(text: str) -> None:
    back = from_fields(json.loads(json.dumps(to_fields(LossShare(4, float(text))))))
    assert isinstance(back, LossShare) and str(back.loss) == text


def test_a_name_of_a_file_that_is_not_utf_8() -> None:
    said = StopJob(os.fsdecode(b"\xff.plan"))
    assert from_fields(json.loads(json.dumps(to_fields(said)))) == said


def test_values_of_other_kinds_travel_as_plain_ones() -> None:
    """A number or text of a library's own class, and a mapping that cannot be changed."""

    class Text(str):
        __slots__ = ()

    class Number(float):
        __slots__ = ()

    said = StepDone(3, Number(0.5), 0.5, 0, MappingProxyType({"F": Number(0.25)}), rate=None)
    assert to_fields(said) == to_fields(StepDone(3, 0.5, 0.5, 0, {"F": 0.25}))
    assert type(to_fields(StopJob(Text("enough")))["why"]) is str
    with pytest.raises(TypeError, match="object cannot be sent"):
        encode(object())


@given(ANY_MESSAGE)
def test_every_message_survives(message: Message) -> None:
    assert from_fields(json.loads(json.dumps(to_fields(message)))) == message


def test_every_message_says_who_sends_it() -> None:
    directions = (
        FromWorker,
        ToWorker,
        FromAgent,
        ToAgent,
        observers.FromObserver,
        ToObserver,
        store.StoreRequest,
        store.StoreAnswer,
    )
    sent = [kind for direction in directions for kind in get_args(direction)]
    sent += [*get_args(observers.FromObserver), store.StoreOpen]
    assert sorted({kind.__name__ for kind in sent}) == sorted(kind.__name__ for kind in KINDS.values())
    for kind in KINDS.values():
        assert getattr(kind, "__dataclass_params__").frozen and hasattr(kind, "__slots__")  # noqa: B009


STEP = to_fields(StepDone(3, None, 0.5, 0, {"F": 0.25}))
JOIN = to_fields(Join(Member((0, 1), 0), 7, 0, 0, False))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "there is no message of type 'None'"),
        ({"type": "fly"}, "there is no message of type 'fly'"),
        ({"type": ["join"]}, "there is no message of type"),
        ({"type": "join"}, "join has no field asked, generation, is_training, member, pid"),
        (STEP | {"more": 1}, "step_done has an unknown field: 'more'"),
        (STEP | {"step": "3"}, "step_done.step: expected int, got str"),
        (STEP | {"step": True}, "step_done.step: expected int, got bool"),
        (STEP | {"step": 3.0}, "step_done.step: expected int, got float"),
        (STEP | {"step": None}, "step_done.step: expected int, got null"),
        (STEP | {"step": -1}, "step_done.step: expected int >= 0"),
        (STEP | {"step": 1 << 63}, "step_done.step: expected int <= 9223372036854775807"),
        (STEP | {"seconds": 10**400}, "step_done.seconds: number out of range"),
        (STEP | {"seconds": "1"}, "step_done.seconds: expected float, got str"),
        (STEP | {"loss": []}, r"step_done.loss: expected float \| null, got array"),
        (STEP | {"times": []}, "step_done.times: expected object, got array"),
        (STEP | {"times": {"F": "x"}}, r"step_done.times\[...\]: expected float, got str"),
        (JOIN | {"is_training": 1}, "join.is_training: expected bool, got int"),
        (JOIN | {"member": [[0, 1]]}, "join.member: expected array of length 2, got 1"),
        (JOIN | {"member": [[0, 1, 2], 0]}, r"join.member\[0\]: expected array of length 2, got 3"),
        (JOIN | {"member": [[0, -1], 0]}, r"join.member\[0\]\[1\]: expected int >= 0"),
        (JOIN | {"member": "0:1"}, "join.member: expected array, got str"),
        ({"type": "bundle_data", "number": 1, "data": "*"}, "bundle_data.data: invalid base64"),
        ({"type": "observe", "next": {}}, r"observe.next: expected int \| null, got object"),
        ({"type": "reach", "here": [1], "unanswered": []}, r"reach.here\[0\]: expected str, got int"),
    ],
)
def test_what_is_no_message(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        from_fields(fields)


@given(
    st.dictionaries(
        st.sampled_from(["type", "step", "generation", "member", "pid", "x"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(sorted(KINDS)),
    )
)
def test_anything_is_a_message_or_refused(fields: dict[str, object]) -> None:
    try:
        assert to_fields(from_fields(fields)) == fields
    except ProtocolError as error:
        assert "\n" not in str(error)


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(Leave, {"generation": "x" * 10_000})
    assert len(str(caught.value)) < 200


def test_a_message_has_one_handler() -> None:
    heard: list[tuple[str, int]] = []
    handlers = Handlers[str]()
    handlers.on(Leave, lambda who, said: heard.append((who, said.generation)))
    handlers.handle("coordinator", Leave(7))
    assert heard == [("coordinator", 7)]
    with pytest.raises(ProtocolError, match="hold is not expected here"):
        handlers.handle("coordinator", Hold(1, 1))
    with pytest.raises(ValueError, match="Leave is handled already"):
        handlers.on(Leave, lambda who, said: None)


def test_names_on_the_wire() -> None:
    fields = {"type": "loss_share", "step": 4, "loss": None, "rate": None, "corrections": 0}
    assert to_fields(LossShare(4, None)) == fields
    assert KINDS["go"] is Go


def test_what_goes_to_many_travels_once() -> None:
    """Of messages of one type that follow each other, only what differs."""
    leave, later = Leave(3), Hold(7, 1)
    told = (Passed((1, 2), leave), Passed((3,), Leave(4)), Passed((1,), later), Passed((2,), None),
            Passed((3,), Hold(7, 2)))  # fmt: skip
    assert to_fields(ToWorkers(Relayed(told)))["told"] == [
        ((1, 2), {"type": "leave", "generation": 3}),
        ((3,), {"generation": 4}),
        ((1,), {"type": "hold", "step": 7, "request": 1}),
        ((2,), None),
        ((3,), {"request": 2}),
    ]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({}, "passed on: expected array, got object"),
        ([[1, None]], r"passed on\[0\]\[0\]: expected array, got int"),
        ([[[-1], None]], r"passed on\[0\]\[0\]\[0\]: expected int >= 0"),
        ([[[True], None]], r"passed on\[0\]\[0\]\[0\]: expected int, got bool"),
        ([[[1], []]], r"passed on\[0\]\[1\]: expected object \| null, got array"),
        ([[[1], {}]], "no message of type"),
        ([[[1], {"type": "leave"}]], "leave has no field generation"),
        (
            [[[1], {"type": "leave", "generation": 1}], [[1], {"step": 1}]],
            "leave has an unknown field: 'step'",
        ),
        ([[[1], {"type": "job_over"}]], "JobOver is not for agents to pass on"),
        ([[[1], {"type": "to_workers", "told": []}]], "ToWorkers is not for agents to pass on"),
    ],
)
def test_what_cannot_be_passed_on(told: object, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        from_fields({"type": "to_workers", "told": told})
