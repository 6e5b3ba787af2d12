"""Sums over peers in several buckets, which begin before REDUCE, and what a step sends."""

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.ir.job import Techniques
from recycle_runtime.execution.optimizer import gradient_part
from recycle_runtime.execution.optimizer.stepper import Stepper
from recycle_runtime.execution.session import Session
from recycle_runtime.state import ownership
from recycle_runtime.transport.interface import PeerSum
from tests.compiler.test_sharded import sharded
from tests.runtime.training.compare import MLP, STEPS, Failed, changed, check_in_threads
from tests.runtime.training.threads import ThreadTransport
from tests.support.jobs import figure3

ALL, NONE = Techniques(True, True, True), Techniques(False, False, False)
FIGURE3 = (4, 3, 2, 1)


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A bucket for each parameter; how many sums began early, each time some could."""
    found: list[int] = []
    original = Stepper.begin_sums

    def begin_sums(self: Stepper, start: Any, complete: Sequence[Any]) -> None:
        original(self, start, complete)
        found.append(len(complete))

    monkeypatch.setattr(gradient_part, "BUCKET_BYTES", 1)
    monkeypatch.setattr(ownership, "BUCKET_BYTES", 1)
    monkeypatch.setattr(ownership, "SENT_APART", 1)
    monkeypatch.setattr(Stepper, "begin_sums", begin_sums)
    return found


@pytest.mark.parametrize("techniques", [ALL, NONE], ids=["split", "whole backward"])
@pytest.mark.parametrize("owners", [0, 2])
@pytest.mark.parametrize("failed", [[], [(1, 2), (0, 0)]], ids=["all live", "two failed"])
def test_early_sums(
    tmp_path: Path, small_buckets: list[int], techniques: Techniques, owners: int, failed: Failed
) -> None:
    job = figure3(FIGURE3, techniques)
    check_in_threads(tmp_path, sharded(job, owners) if owners else job, failed)
    assert len(small_buckets) >= STEPS and min(small_buckets) >= 1


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_early_sums_wait_for_the_verdict_on_the_last_step(
    tmp_path: Path, small_buckets: list[int], clip: float
) -> None:
    program = changed(tmp_path, MLP, f"CLIP_NORM = {clip}")
    check_in_threads(tmp_path, sharded(figure3(FIGURE3)), [], program)
    assert small_buckets


class Traffic:
    """Messages between holders of chunks in a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[tuple[int, int]] = Counter()
        """By step and chunk, of all holders."""
        self.sizes: Counter[tuple[int, int]] = Counter()
        """Bytes that leave holders, if a sum goes from peer to peer."""
        self._now = threading.local()
        run, start_sum = Session.run, ThreadTransport.start_peer_sum
        start_sums = ThreadTransport.start_peer_sums

        def run_step(session: Session, step: int) -> Any:
            self._now.step = step
            return run(session, step)

        def one(transport: Any, chunk: int, tensor: Any) -> Any:
            self._count(transport, chunk, [PeerSum(tensor)])
            return start_sum(transport, chunk, tensor)

        def several(transport: Any, chunk: int, sums: Sequence[PeerSum], **more: Any) -> Any:
            self._count(transport, chunk, sums)
            return start_sums(transport, chunk, sums, **more)

        monkeypatch.setattr(Session, "run", run_step)
        monkeypatch.setattr(ThreadTransport, "start_peer_sum", one)
        monkeypatch.setattr(ThreadTransport, "start_peer_sums", several)

    def taken(self) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
        """Calls and sizes so far, and begin again."""
        found, self.calls, self.sizes = (self.calls, self.sizes), Counter(), Counter()
        return found

    def _count(self, transport: Any, chunk: int, sums: Sequence[PeerSum]) -> None:
        if (step := getattr(self._now, "step", None)) is None:
            return
        holders = transport._grid.holders(chunk)
        self.calls[step, chunk] += 1
        if transport._worker != holders[0]:
            return
        others = len(holders) - 1
        for each in sums:
            if each.is_copy:
                copies = len(each.takers) or others
            else:
                copies = others + len(each.takers) - 1 if each.takers else 2 * others
            self.sizes[step, chunk] += copies * each.tensor.nbytes


def test_two_of_three_owners_send_as_much_as_whole_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And make two calls more: the sum of squares, and weights."""
    traffic = Traffic(monkeypatch)
    check_in_threads(tmp_path, figure3(FIGURE3), [])
    calls, sizes = traffic.taken()
    check_in_threads(tmp_path, sharded(figure3(FIGURE3)), [])
    for key, size in sizes.items():
        assert traffic.calls[key] == calls[key] + 2 * 3
        # The sum of squares is one number; flags, and gaps between gradients, are not gathered.
        assert 0.98 * size <= traffic.sizes[key] <= size + 2 * 2 * 8


def test_two_owners_of_two_peers_are_whole_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    failed = [(1, stage) for stage in range(4)]
    check_in_threads(tmp_path, figure3(FIGURE3), failed)
    calls, sizes = traffic.taken()
    check_in_threads(tmp_path, sharded(figure3(FIGURE3)), failed)
    assert traffic.taken() == (calls, sizes)
