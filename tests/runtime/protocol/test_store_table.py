"""The store that groups meet at."""

import base64
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.protocol.framing import Message
from recycle_runtime.protocol.store_table import StoreTable


def ask(table: StoreTable, operation: str, *keys: str, value: Any = None) -> list[Message]:
    """The answers, of which there is one unless the request waits."""
    answers: list[Message] = []
    table.request({"op": operation, "keys": list(keys), "value": value}, answers.append)
    return answers


def test_values() -> None:
    table = StoreTable()
    assert ask(table, "set", "a", value="YQ==") == [{}]
    assert ask(table, "get", "a") == [{"values": ["YQ=="]}]
    assert ask(table, "check", "a") == [{"value": True}]
    assert ask(table, "check", "a", "b") == [{"value": False}]
    assert ask(table, "remove", "a") == [{"value": True}]
    assert ask(table, "remove", "a") == [{"value": False}]
    assert ask(table, "add", "n", value=2) == [{"value": 2}]
    assert ask(table, "add", "n", value=3) == [{"value": 5}]
    assert ask(table, "get", "n") == [{"values": [base64.b64encode(b"5").decode()]}]
    (answer,) = ask(table, "fly", "n")
    assert "error" in answer


def test_waiting() -> None:
    table = StoreTable()
    both, values = ask(table, "wait", "a", "b"), ask(table, "get", "b")
    ask(table, "set", "a", value="1")
    assert both == values == []
    ask(table, "set", "b", value="2")
    assert (both, values) == ([{}], [{"values": ["2"]}])


def test_what_lies_beside_a_key_comes_with_it() -> None:
    table = StoreTable()

    def see(key: str, known: int = 0) -> list[Message]:
        answers: list[Message] = []
        table.request({"op": "see", "keys": [key], "known": known}, answers.append)
        return answers

    later = see("all/2")
    for number, name in enumerate(("all/0", "peers/0", "all/1")):
        ask(table, "set", name, value=str(number))
    assert later == []
    assert see("all/0") == [{"told": [["all/0", "0"], ["all/1", "2"]]}]
    ask(table, "set", "all/2", value="3")
    assert later == [{"told": [["all/0", "0"], ["all/1", "2"], ["all/2", "3"]]}]
    assert see("all/2", known=2) == [{"told": [["all/2", "3"]]}]
    ask(table, "remove", "all/0")
    assert see("all/1") == [{"told": [["all/0", None], ["all/1", "2"], ["all/2", "3"]]}]
    old = see("g1/all/1")
    table.begin(2)
    assert "error" in old[0] and "error" in see("g1/all/0")[0]


def test_whoever_waits_for_the_past_is_told_so() -> None:
    table = StoreTable()
    old, new, other = ask(table, "wait", "g1/a"), ask(table, "wait", "g2/a"), ask(table, "wait", "g1x")
    table.begin(2)
    assert "error" in old[0]
    assert new == other == []
    # What comes too late is not kept, and not waited for.
    ask(table, "set", "g1/a", value="1")
    assert ask(table, "check", "g1/a") == [{"value": False}]
    assert "error" in ask(table, "get", "g1/a")[0]
    ask(table, "set", "g2/a", value="1")
    assert new == [{}]


def test_those_who_are_gone_are_not_answered() -> None:
    table = StoreTable()
    answers: list[Message] = []
    answer = answers.append
    table.request({"op": "wait", "keys": ["a"]}, answer)
    table.forget(answer)
    ask(table, "set", "a", value="1")
    assert answers == []


KEYS = st.sampled_from(["a", "b", "g1/a", "g2/a", "g3/b"])


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "get", "see", "wait", "check", "remove", "begin"]), KEYS),
        max_size=40,
    )
)
def test_everybody_is_answered_once(requests: list[tuple[str, str]]) -> None:
    table = StoreTable()
    waiting: list[list[Message]] = []
    generation = 0
    for operation, key in requests:
        if operation == "begin":
            generation += 1
            table.begin(generation)
        else:
            waiting.append(ask(table, operation, key, value="1"))
            assert len(waiting[-1]) == 1 or operation in ("get", "see", "wait")
    for key in ("a", "b", "g1/a", "g2/a", "g3/b"):
        ask(table, "set", key, value="1")
    table.begin(99)
    assert all(len(answers) == 1 for answers in waiting)


def test_requests_that_make_no_sense_are_answered_with_an_error() -> None:
    table = StoreTable()
    ask(table, "set", "text", value="YQ==")
    table.begin(3)
    senseless: list[Message] = [
        {"op": "set", "keys": []},
        {"op": "set", "keys": ["a"]},
        {"op": "see", "keys": []},
        {"op": "see", "keys": ["text"], "known": "z"},
        {"op": "remove", "keys": []},
        {"op": "add", "keys": ["n"], "value": "x"},
        {"op": "add", "keys": ["text"], "value": 1},
        {"op": "get", "keys": 3},
    ]
    for message in senseless:
        answers: list[Message] = []
        table.request(message, answers.append)
        assert len(answers) == 1 and "error" in answers[0], message
    for key in ("g²/x", "g" + 5000 * "1" + "/x"):
        assert ask(table, "set", key, value="1") == [{}]
