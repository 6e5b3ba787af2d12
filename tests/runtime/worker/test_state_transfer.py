"""The state of a chunk from one process to another: nothing is executed, and not more is read than fits."""

import subprocess
import sys
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
from recycle_runtime.worker.state_transfer import (
    Pair,
    StatePair,
    largest_state,
    pack,
    receive_bytes,
    send_bytes,
    unpack,
)
from tests.runtime.checkpoint.runs import JOB, plans, with_dropout

CPU = torch.device("cpu")
TIMEOUT = timedelta(seconds=30)


def chunk_of(folder: Path) -> Chunk:
    bundle = Bundle.read(plans(folder / "job.plan", JOB))
    return build_chunks(load_program(with_dropout(folder)), bundle, 1, 0, CPU)[1]


def transferred(data: torch.Tensor, largest: int) -> torch.Tensor:
    """What arrives when these bytes are sent."""
    store = dist.HashStore()

    async def meet(name: str, rank: int) -> StatePair:
        return Pair(store, name, rank, TIMEOUT, "token")

    def nothing() -> None:
        pass

    def send() -> None:
        # Whoever sends to one that refuses hears that the other end is gone.
        with suppress(RuntimeError):
            completed(send_bytes(data, meet, "here", nothing))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return completed(receive_bytes(meet, "here", nothing, largest))


def test_a_chunk_becomes_what_was_sent(tmp_path: Path) -> None:
    one, other = chunk_of(tmp_path), chunk_of(tmp_path)
    with torch.no_grad():
        for parameter in one.module.parameters():
            parameter.add_(1.0)
    other.load(unpack(transferred(pack(one.state()), largest_state(other)), CPU))
    assert other.is_part_of_run
    for name, tensor in one.module.state_dict().items():
        assert torch.equal(other.module.state_dict()[name], tensor)


def test_more_than_fits_is_refused_before_it_is_read(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path)
    with pytest.raises(RuntimeError, match="a state of 100 bytes arrives, at most 99 are accepted"):
        transferred(torch.zeros(100, dtype=torch.uint8), 99)
    assert largest_state(chunk) > 3 * chunk.state_bytes


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


def test_nothing_that_arrives_is_executed() -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return print, ("executed",)

    with pytest.raises(Exception, match=r"weights_only|WeightsUnpickler"):
        unpack(pack({"model": Evil()}), CPU)


_WITHOUT_NUMPY = """
import sys, warnings
sys.modules["numpy"] = None
warnings.simplefilter("ignore")
import torch
from recycle_runtime.worker.state_transfer import pack, unpack
state = {"layers": {0: {"model": {"weight": torch.arange(5.0)}, "optimizer": None}}, "stepper": {"steps": 3}}
back = unpack(pack(state), torch.device("cpu"))
assert back["stepper"] == {"steps": 3}
assert torch.equal(back["layers"][0]["model"]["weight"], torch.arange(5.0))
"""


def test_numpy_is_not_needed() -> None:
    """Torch works without it, and so does the runtime."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT_NUMPY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
