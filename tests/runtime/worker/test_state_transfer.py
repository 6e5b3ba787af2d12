"""The state of a chunk from one process to another: nothing is executed, and not more is read than fits."""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.surroundings import completed
from recycle_runtime.state.image import packed
from recycle_runtime.state.layer_state import states_of
from recycle_runtime.worker.state_stream import image_of, load_sent, states_in
from recycle_runtime.worker.state_transfer import (
    Pair,
    StatePair,
    largest_of,
    receive_bytes,
    send_bytes,
)
from tests.runtime.checkpoint.runs import JOB, plans, with_dropout

CPU = torch.device("cpu")
TIMEOUT = timedelta(seconds=30)


def chunk_of(folder: Path) -> Chunk:
    bundle = Bundle.read(plans(folder / "job.plan", JOB))
    return build_chunks(load_program(with_dropout(folder)), bundle, 1, 0, CPU)[1]


def transferred(data: torch.Tensor, largest: int) -> torch.Tensor:
    """The state that arrives when these bytes are sent."""
    store = dist.HashStore()

    async def meet(name: str, rank: int) -> StatePair:
        return Pair(store, name, rank, TIMEOUT, "token")

    def send() -> None:
        # Whoever sends to one that refuses hears that the other end is gone.
        with suppress(RuntimeError):
            completed(send_bytes(data, meet, "here"))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return completed(receive_bytes(meet, "here", largest))


def test_a_chunk_becomes_what_was_sent(tmp_path: Path) -> None:
    one, other = chunk_of(tmp_path), chunk_of(tmp_path)
    with torch.no_grad():
        for parameter in one.module.parameters():
            parameter.add_(1.0)
    sent = packed("state", list(states_of([one])))
    load_sent(other, states_in(image_of(transferred(sent, largest_of([other.module]))), other))
    assert other.is_part_of_run
    for name, tensor in one.module.state_dict().items():
        assert torch.equal(other.module.state_dict()[name], tensor)


def test_more_than_fits_is_refused_before_it_is_read(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path)
    with pytest.raises(RuntimeError, match="a state of 100 bytes arrives, at most 99 are accepted"):
        transferred(torch.zeros(100, dtype=torch.uint8), 99)
    assert largest_of([chunk.module]) > 3 * chunk.state_bytes


def met(first: str, second: str) -> list[Pair | RuntimeError]:
    """Two ends, each with its token; an end that finds fault with the other raises."""
    store, ends = dist.HashStore(), list[Pair | RuntimeError]()

    def meet(rank: int, token: str) -> None:
        try:
            ends.append(Pair(store, "here", rank, TIMEOUT, token))
        except RuntimeError as error:
            ends.append(error)

    thread = threading.Thread(target=meet, args=(0, first))
    thread.start()
    meet(1, second)
    thread.join()
    return ends


def test_whoever_does_not_know_the_token_gets_nothing() -> None:
    """A port of gloo's belonged to whoever connected first."""
    for found in met("token", "other"):
        assert isinstance(found, RuntimeError) and "does not know the job's token" in str(found)
    assert all(isinstance(found, Pair) for found in met("token", "token"))


@pytest.mark.parametrize("spoilt", ["_head", "_signature"])
def test_what_was_changed_on_its_way(monkeypatch: pytest.MonkeyPatch, spoilt: str) -> None:
    """Neither believed nor read: the size before memory is taken for it, the rest before it is unpacked."""
    thread = threading.current_thread()
    real: Callable[..., object] = getattr(Pair, spoilt)

    def other_at_sender(pair: Pair, *arguments: object) -> object:
        if threading.current_thread() is not thread:
            pair._key = b"another"  # pyright: ignore[reportPrivateUsage]
        return real(pair, *arguments)

    monkeypatch.setattr(Pair, spoilt, other_at_sender)
    with pytest.raises(RuntimeError, match="changed on its way"):
        transferred(torch.zeros(100, dtype=torch.uint8), 100)
