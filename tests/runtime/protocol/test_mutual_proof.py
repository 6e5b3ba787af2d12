"""Two processes that prove the token to each other, with several tokens on the way in or out."""

import pytest

from recycle_runtime.protocol.mutual_proof import (
    NONCE_BYTES,
    OFFER_BYTES,
    common_key,
    meeting,
    new_pair_nonce,
    offer,
)

A, B, C = (letter * 32 for letter in "abc")


def keys(first: list[str], second: list[str], names: tuple[str, str] = ("x", "x")) -> list[bytes | None]:
    """The keys that both ends come to."""
    nonces = new_pair_nonce(), new_pair_nonce()
    seen = [meeting(names[end], end, nonces[end], nonces[1 - end]) for end in (0, 1)]
    offers = [offer(tokens, end, seen[end]) for end, tokens in enumerate((first, second))]
    assert {len(nonces[0]), len(offers[0])} == {NONCE_BYTES, OFFER_BYTES}
    return [common_key(tokens, end, seen[end], offers[1 - end]) for end, tokens in enumerate((first, second))]


@pytest.mark.parametrize(("first", "second"), [([A], [A]), ([A], [B, A]), ([B, A], [A, B]), ([C, A], [A, B])])
def test_with_a_token_in_common_both_have_one_key(first: list[str], second: list[str]) -> None:
    one, other = keys(first, second)
    assert one == other is not None
    assert keys(first, second)[0] != one


def test_without_one_neither_has() -> None:
    assert keys([A], [B]) == keys([A, B], [C]) == [None, None]


def test_a_proof_is_for_one_meeting() -> None:
    assert keys([A], [A], ("x", "y")) == [None, None]


def test_a_proof_that_is_sent_back_proves_nothing() -> None:
    both = meeting("x", 0, new_pair_nonce(), new_pair_nonce())
    assert common_key([A], 0, both, offer([A], 0, both)) is None
    assert common_key([A], 0, both, offer([A], 1, both)) is not None
