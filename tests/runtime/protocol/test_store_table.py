"""The store that groups meet at."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.protocol.messages.store import (
    StoreAdd,
    StoreAnswer,
    StoreCheck,
    StoreFolder,
    StoreGather,
    StoreGet,
    StoreNumber,
    StoreRefusal,
    StoreRemove,
    StoreRequest,
    StoreSee,
    StoreSet,
    StoreValue,
    StoreValues,
)
from recycle_runtime.protocol.store_table import StoreTable


def ask(table: StoreTable, request: StoreRequest) -> list[StoreAnswer]:
    """The answers, of which there is one unless the request waits."""
    answers: list[StoreAnswer] = []
    table.request(request, answers.append)
    return answers


def test_values() -> None:
    table = StoreTable()
    assert ask(table, StoreSet("a", "YQ==")) == []
    assert ask(table, StoreGet("a")) == [StoreValue("YQ==")]
    assert ask(table, StoreCheck(("a",))) == [StoreNumber(1)]
    assert ask(table, StoreCheck(("a", "b"))) == [StoreNumber(0)]
    assert ask(table, StoreRemove("a")) == [StoreNumber(1)]
    assert ask(table, StoreRemove("a")) == [StoreNumber(0)]
    assert ask(table, StoreAdd("n", 2)) == [StoreNumber(2)]
    assert ask(table, StoreAdd("n", 3)) == [StoreNumber(5)]
    assert ask(table, StoreGet("n")) == [StoreValue(base64.b64encode(b"5").decode())]


def test_several_keys_are_one_answer_when_the_last_is_there() -> None:
    table = StoreTable()
    ask(table, StoreSet("g1/c", "3"))
    answers = ask(table, StoreGather(("g1/a", "g1/b", "g1/c")))
    ask(table, StoreSet("g1/b", "2"))
    assert answers == []
    ask(table, StoreSet("g1/a", "1"))
    assert answers == [StoreValues(("1", "2", "3"))]
    assert ask(table, StoreGather(())) == [StoreValues(())]
    late = ask(table, StoreGather(("g1/d",)))
    table.begin(2)
    assert [type(answer) for answer in late] == [StoreRefusal]


def test_a_client_that_is_gone_gets_no_answer() -> None:
    table = StoreTable()
    gone: list[StoreAnswer] = []
    table.request(StoreGather(("a", "b")), gone.append)
    stays = ask(table, StoreGet("a"))
    ask(table, StoreSet("a", "1"))
    table.forget(gone.append)
    ask(table, StoreSet("b", "2"))
    assert (gone, stays) == ([], [StoreValue("1")])


def test_waiting() -> None:
    table = StoreTable()
    values = ask(table, StoreGet("b"))
    ask(table, StoreSet("a", "1"))
    assert values == []
    ask(table, StoreSet("b", "2"))
    assert values == [StoreValue("2")]


def test_what_lies_beside_a_key_comes_with_it() -> None:
    table = StoreTable()
    later = ask(table, StoreSee("all/2", 0))
    for number, name in enumerate(("all/0", "peers/0", "all/1")):
        ask(table, StoreSet(name, str(number)))
    assert later == []
    assert ask(table, StoreSee("all/0", 0)) == [StoreFolder((("all/0", "0"), ("all/1", "2")))]
    ask(table, StoreSet("all/2", "3"))
    assert later == [StoreFolder((("all/0", "0"), ("all/1", "2"), ("all/2", "3")))]
    assert ask(table, StoreSee("all/2", 2)) == [StoreFolder((("all/2", "3"),))]
    ask(table, StoreRemove("all/0"))
    assert ask(table, StoreSee("all/1", 0)) == [
        StoreFolder((("all/0", None), ("all/1", "2"), ("all/2", "3")))
    ]
    old = ask(table, StoreSee("g1/all/1", 0))
    table.begin(2)
    assert isinstance(old[0], StoreRefusal)
    assert isinstance(ask(table, StoreSee("g1/all/0", 0))[0], StoreRefusal)


def test_whoever_waits_for_the_past_is_told_so() -> None:
    table = StoreTable()
    old, new, other = (ask(table, StoreGet(key)) for key in ("g1/a", "g2/a", "g1x"))
    table.begin(2)
    assert isinstance(old[0], StoreRefusal)
    assert new == other == []
    # What comes too late is not kept, and not waited for.
    ask(table, StoreSet("g1/a", "1"))
    assert ask(table, StoreCheck(("g1/a",))) == [StoreNumber(0)]
    assert isinstance(ask(table, StoreGet("g1/a"))[0], StoreRefusal)
    ask(table, StoreSet("g2/a", "1"))
    assert new == [StoreValue("1")]


def test_those_who_are_gone_are_not_answered() -> None:
    table = StoreTable()
    answers: list[StoreAnswer] = []
    answer = answers.append
    table.request(StoreGet("a"), answer)
    table.forget(answer)
    ask(table, StoreSet("a", "1"))
    assert answers == []


KEYS = st.sampled_from(["a", "b", "g1/a", "g2/a", "g3/b"])
REQUESTS = st.one_of(
    st.builds(StoreSet, KEYS, st.just("1")),
    st.builds(StoreGet, KEYS),
    st.builds(StoreSee, KEYS, st.just(0)),
    st.builds(StoreCheck, st.tuples(KEYS)),
    st.builds(StoreRemove, KEYS),
    st.none(),
)


@given(st.lists(REQUESTS, max_size=40))
def test_everybody_is_answered_once(requests: list[StoreRequest | None]) -> None:
    """None: a new generation begins."""
    table = StoreTable()
    waiting: list[list[StoreAnswer]] = []
    generation = 0
    for request in requests:
        if request is None:
            generation += 1
            table.begin(generation)
        else:
            answers = ask(table, request)
            if isinstance(request, StoreSet):
                assert answers == []
                continue
            waiting.append(answers)
            assert len(waiting[-1]) == 1 or isinstance(request, StoreGet | StoreSee)
    for key in ("a", "b", "g1/a", "g2/a", "g3/b"):
        ask(table, StoreSet(key, "1"))
    table.begin(99)
    assert all(len(answers) == 1 for answers in waiting)


def test_requests_that_make_no_sense_are_answered() -> None:
    table = StoreTable()
    ask(table, StoreSet("text", "YQ=="))
    table.begin(3)
    assert ask(table, StoreAdd("text", 1)) == [StoreRefusal("text holds no number")]
    assert ask(table, StoreCheck(())) == [StoreNumber(1)]
    for key in ("g\u00b2/x", "g" + 5000 * "1" + "/x", "", "/"):
        assert ask(table, StoreSet(key, "1")) == []
        assert ask(table, StoreSee(key, 99)) == [StoreFolder(())]
