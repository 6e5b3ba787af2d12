"""Two processes prove to each other that they know a token of the job, over whatever connects them.

Each sends a nonce, and then a proof for every token that it knows, since one of them may have read its file
before a new token was in it. Of those that both know they take the same one. Needs no torch.
"""

import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from recycle_runtime.protocol.access import MOST_TOKENS

NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
OFFER_BYTES: Final = MOST_TOKENS * _PROOF_BYTES


def new_pair_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def meeting(name: str, end: int, own: bytes, others: bytes) -> bytes:
    """Facts that both ends know of each other, as end 0 or 1 sees it: a proof is good for nothing else.

    The name says what they meet for and who they are; then come the nonces of end 0 and of end 1.
    """
    return f"{name} ".encode() + (own + others if end == 0 else others + own)


def offer(tokens: Sequence[str], end: int, meeting: bytes) -> bytes:
    """The proofs that one end sends, always as many."""
    proofs = [_proof(token, end, meeting) for token in tokens[:MOST_TOKENS]]
    proofs += [secrets.token_bytes(_PROOF_BYTES) for _ in range(MOST_TOKENS - len(proofs))]
    return b"".join(proofs)


def common_key(tokens: Sequence[str], end: int, meeting: bytes, offered: bytes) -> bytes | None:
    """A key for these two, made of a token that the other end has proved; None if there is none."""
    proofs = [offered[at : at + _PROOF_BYTES] for at in range(0, len(offered), _PROOF_BYTES)]
    known = [
        token
        for token in tokens
        if any([hmac.compare_digest(each, _proof(token, 1 - end, meeting)) for each in proofs])
    ]
    if not known:
        return None
    # Both ends see the same ones, and choose alike.
    chosen = min(known, key=lambda token: _proof(token, 0, meeting))
    return _digest(chosen, "key", meeting)


def _proof(token: str, end: int, meeting: bytes) -> bytes:
    return _digest(token, f"end {end}", meeting)


def _digest(token: str, what: str, meeting: bytes) -> bytes:
    return hmac.digest(token.encode(), f"pair {what} ".encode() + meeting, "sha256")
