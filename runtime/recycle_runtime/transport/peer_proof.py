"""Processes of a new group prove to each other that they belong to the job, before anything else is sent.

Gloo takes whoever connects first to a port for the process that should. So each process proves to each one
that it is connected to that it knows the token: two small messages either way, once for every group. What is
sent afterwards is not signed.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch

from recycle_runtime.protocol.access import Token, access_of
from recycle_runtime.protocol.mutual_proof import (
    NONCE_BYTES,
    OFFER_BYTES,
    common_key,
    meeting,
    new_pair_nonce,
    offer,
)
from recycle_runtime.weights.tensor_bytes import bytes_of

_TAG = 1
"""Messages between workers have another."""

Prove = Callable[[Any, str, int, Collection[int]], None]
"""To others in a group of this name as this rank; RuntimeError if one of them has no part in the job."""


def prover(token: Token, generation: int) -> Prove:
    """For processes of a job with this token; a proof is for one generation."""

    def prove(group: Any, name: str, rank: int, others: Collection[int]) -> None:
        tokens, name = access_of(token).tokens(), f"generation {generation} {name}"
        own = {other: new_pair_nonce() for other in others}
        theirs = _exchanged(group, own, NONCE_BYTES)
        seen = {
            other: meeting(_pair_name(name, rank, other), _end(rank, other), own[other], theirs[other])
            for other in others
        }
        offers = {other: offer(tokens, _end(rank, other), seen[other]) for other in others}
        for other, offered in _exchanged(group, offers, OFFER_BYTES).items():
            if common_key(tokens, _end(rank, other), seen[other], offered) is None:
                raise RuntimeError(f"what answers for rank {other} of {name} does not know the job's token")

    return prove


def _exchanged(group: Any, sent: dict[int, bytes], size: int) -> dict[int, bytes]:
    """Data that each of the others has sent in exchange for its own."""
    received = {other: torch.empty(size, dtype=torch.uint8) for other in sent}
    works: list[Any] = []
    # Gloo drops tensors that nobody refers to.
    held = {other: torch.frombuffer(bytearray(data), dtype=torch.uint8) for other, data in sent.items()}
    for other, data in held.items():
        works += [group.send([data], other, _TAG), group.recv([received[other]], other, _TAG)]
    for work in works:
        work.wait()
    return {other: bytes(bytes_of(tensor)) for other, tensor in received.items()}


def _pair_name(name: str, rank: int, other: int) -> str:
    return f"{name} {min(rank, other)} {max(rank, other)}"


def _end(rank: int, other: int) -> int:
    return int(rank > other)
