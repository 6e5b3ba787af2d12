"""Training with optimizer state in shards gives the parameters of the same training on one process."""

import threading
from pathlib import Path

import pytest

from recycle_compiler.ir.job import Techniques
from recycle_runtime.execution import session
from tests.compiler.test_sharded import sharded
from tests.runtime.training.compare import MLP, Failed, changed, check_in_threads
from tests.support.jobs import figure3

ALL, NONE = Techniques(True, True, True), Techniques(False, False, False)


@pytest.mark.parametrize(
    ("owners", "techniques", "failed"),
    [
        (2, ALL, []),
        (2, ALL, [(1, 2), (0, 0)]),
        (2, NONE, []),
        (1, ALL, []),
        (3, ALL, [(1, 2)]),
    ],
    ids=str,
)
def test_running_example(tmp_path: Path, owners: int, techniques: Techniques, failed: Failed) -> None:
    check_in_threads(tmp_path, sharded(figure3((4, 3, 2, 1), techniques), owners), failed)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_clipping(tmp_path: Path, clip: float) -> None:
    program = changed(tmp_path, MLP, f"CLIP_NORM = {clip}")
    check_in_threads(tmp_path, sharded(figure3((4, 3, 2, 1))), [(1, 2)], program)


class DeviceWork:
    """Work that devices are still to do when their hosts have made all steps."""

    def __init__(self, workers: int) -> None:
        self._lock, self._left = threading.Lock(), workers
        self.is_done = threading.Event()

    def mark(self, device: object) -> "DeviceWork":
        del device
        return self

    def synchronize(self) -> None:
        with self._lock:
            self._left -= 1
        if self._left == 0:
            self.is_done.set()


def test_a_worker_has_the_weights_of_the_last_step_before_it_may_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device may be behind its host then: one that leaves would cut off what others wait for."""
    job = sharded(figure3((4, 3, 2, 1)))
    work = DeviceWork(job.workers)
    monkeypatch.setattr(session, "mark_on", work.mark)
    check_in_threads(tmp_path, job, [])
    assert work.is_done.is_set()
