"""The part of a W that is computed in the exchanges of rounds before it."""

import pytest

from recycle_runtime.plan.overlap import StreamOp, overlapped, shares_of_weights


def ops(text: str, exchange: int = 3, weight: int = 4) -> list[StreamOp]:
    """`F0 I0 W0`: the number is that of the micro-batch."""
    words = text.split()
    return [StreamOp(word[1:], word[0] == "W", weight if word[0] == "W" else exchange) for word in words]


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        # Its own rounds are over before it begins.
        ("F0 I0 W0", [0]),
        ("F0 I0 F1 W0", [3]),
        ("F0 I0 F1 I1 W0", [4]),
        # In the last two rounds, and no more; the oldest first, so what follows finds most room.
        ("F0 I0 F1 I1 F2 W0", [4]),
        ("F0 I0 F1 I1 W0 F2 W1", [4, 3]),
        ("F0 I0 F1 I1 F2 W0 W1", [4, 2]),
        ("F0 I0 F1 I1 F2 I2 W0 W1 W2", [4, 2, 0]),
    ],
)
def test_rounds_after_its_own(text: str, hidden: list[int]) -> None:
    found = overlapped(ops(text))
    words = text.split()
    assert [ticks for ticks, word in zip(found, words, strict=True) if word[0] == "W"] == hidden
    assert not any(ticks for ticks, word in zip(found, words, strict=True) if word[0] != "W")


def test_shares_name_their_rounds() -> None:
    shares = shares_of_weights(ops("F0 I0 F1 I1 W0"))
    assert [tuple(share) for share in shares[4]] == [(2, 3), (3, 1)]
