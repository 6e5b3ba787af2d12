"""Training with optimizer state in shards gives the parameters of the same training on one process."""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_compiler.cli.main import main
from recycle_compiler.ir.job import Techniques
from recycle_runtime.coordinator.peer_digests import PeerDigests
from recycle_runtime.execution import session
from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.execution.digest import tensor_digest
from recycle_runtime.plan.chrome_trace import chrome_trace
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import PeerDigest
from recycle_runtime.state import ownership
from recycle_runtime.worker import fixed_plan
from recycle_runtime.worker.fixed_plan import FixedPlanWorker
from tests.compiler.test_sharded import sharded
from tests.runtime.training.compare import MLP, STEPS, Failed, changed, check_in_threads, plan_file
from tests.runtime.training.example_programs import spoiled
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import figure3, unit_job

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


_SPOILED = """
_layers = layers


def layers():
    return [("first", First(FEATURES, WIDTH, dtype=torch.float64)), *_layers()[1:]]
"""


@pytest.mark.parametrize("techniques", [ALL, NONE], ids=["staggered", "barrier"])
def test_a_skipped_step(tmp_path: Path, techniques: Techniques) -> None:
    """A gradient is no number on one worker: nobody steps any of its shards."""
    program = changed(tmp_path, MLP, spoiled(14) + _SPOILED)
    job = sharded(unit_job(2, 3, 2, techniques=techniques))
    check_in_threads(tmp_path, job, [], program)
    _, workers = train_in_threads(plan_file(tmp_path, job, []), program, 0, STEPS)
    chunks = [chunk for worker in workers.values() for chunk in worker.chunks.values()]
    assert {chunk.stepper.progress.skipped for chunk in chunks} == {1}


def test_equal_to_whole_state_to_the_last_bit(tmp_path: Path) -> None:
    """Sums must be in the same order, as in threads; and a bit that flips in one owner is found."""
    job = unit_job(2, 3, 2)
    _, whole = train_in_threads(plan_file(tmp_path, job, [(2, 1)]), MLP, 0, STEPS)
    _, shared = train_in_threads(plan_file(tmp_path, sharded(job), [(2, 1)]), MLP, 0, STEPS)
    for worker, one in whole.items():
        for number, module in one.modules.items():
            found = shared[worker].modules[number].state_dict()
            assert all(torch.equal(found[name], value) for name, value in module.state_dict().items())
    assert _difference(shared) is None
    chunk = shared[1, 0].chunks[0]
    ((shard, made),) = list(chunk.layers[1].owned.items())[:1]
    state = next(iter(made.optimizer.state.values()))
    state["exp_avg"].view(torch.int64)[0, 0] ^= 1
    found = _difference(shared)
    assert found is not None and f"in shard {shard}: layer0.linear.weight" in found
    assert "1:0" in found and "are peers and differ" in found


def _difference(workers: Mapping[Worker, FixedPlanWorker]) -> str | None:
    """Words of the coordinator on the digests of all of them."""
    digests = PeerDigests()
    said = [
        digests.differs(Member(worker, 0), 1, PeerDigest(number, STEPS, tensor_digest(chunk.layers)))
        for worker, one in workers.items()
        for number, chunk in one.chunks.items()
    ]
    return next((each for each in said if each is not None), None)


@pytest.mark.parametrize("techniques", [ALL, NONE], ids=["staggered", "barrier"])
def test_what_is_kept_for_undo_is_that_of_owned_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, techniques: Techniques
) -> None:
    """Optimizer state, what undoes its step, and gradients for another step: two of three shards of each.
    Where nobody steps before the norm is known, nothing is kept."""

    def recoverable(*given: Any, **more: Any) -> dict[int, Chunk]:
        return build_chunks(*given, **{**more, "recoverable": True})

    monkeypatch.setattr(fixed_plan, "build_chunks", recoverable)
    job = replace(unit_job(1, 3, 2, techniques=techniques), cut=(10,))
    program = changed(tmp_path, MLP, "WIDTH = 96\nCLIP_NORM = 1e9")
    held: list[list[tuple[int, int, int]]] = []
    for each in (job, sharded(job)):
        _, workers = train_in_threads(plan_file(tmp_path, each, []), program, 0, 2)
        held.append([_held(chunk) for worker in workers.values() for chunk in worker.chunks.values()])
    whole, shared = held
    for numbers, expected in zip(shared, whole, strict=True):
        for number, of_all in zip(numbers, expected, strict=True):
            # Rows are not divided.
            assert number == pytest.approx(of_all * 2 / 3, rel=0.05)
    assert all(
        (undo > 0) is techniques.stagger and (kept > 0) is techniques.stagger for _, undo, kept in whole
    )


def _held(chunk: Chunk) -> tuple[int, int, int]:
    """Bytes of what its optimizers keep, of what undoes their step, and of gradients beside those in use."""
    stepper, state = chunk.stepper, sum(each.state_bytes for layer in chunk.layers for each in layer.steppers)
    in_use = sum(parameter.nbytes for parameter in chunk.module.parameters())
    kept = stepper.gradients.bytes_held - in_use
    return state, stepper.undo.bytes_held, kept if kept > in_use // 4 else 0


def test_gathers_are_in_traces_and_compared_with_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_file(tmp_path, sharded(unit_job(2, 3, 2)), [])
    _, workers = train_in_threads(plan, MLP, 0, 2, trace=True)
    tracks = {worker: one.tracer.events for worker, one in workers.items() if one.tracer is not None}
    for events in tracks.values():
        assert [event.name for event in events if event.name in "ROG"] == ["R", "O", "G"] * 2
    trace = tmp_path / "trace.json"
    trace.write_text(chrome_trace(tracks, {"failed": []}))
    assert main(["diff", plan, str(trace), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ops"]
    assert [row["count"] for row in rows if row["kind"] == "G"] == [3, 3]


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


@pytest.mark.parametrize("techniques", [ALL, NONE], ids=["staggered", "barrier"])
def test_a_layer_waits_for_its_own_weights_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, techniques: Techniques
) -> None:
    """Each travels alone here. The first forward of a step begins when those of its first layer are there."""
    monkeypatch.setattr(ownership, "BUCKET_BYTES", 1)
    monkeypatch.setattr(ownership, "SENT_APART", 1)
    left: dict[int, list[int]] = {}
    original = Chunk._before_layer  # pyright: ignore[reportPrivateUsage]

    def before_layer(self: Chunk, number: int) -> None:
        original(self, number)
        owners: Any = self.arrive
        under_way = owners.__self__._under_way
        left.setdefault(id(self), []).append(len(under_way))
        assert all(each.layer > number for each in under_way)

    monkeypatch.setattr(Chunk, "_before_layer", before_layer)
    job = sharded(figure3((4, 3, 2, 1), techniques))
    check_in_threads(tmp_path, job, [])
    assert len(left) == job.workers
    # Stages have three, three, two and two layers; the first step follows none.
    assert sorted(max(found) for found in left.values()) == [1] * 6 + [2] * 6
    assert all(sum(each > 0 for each in found) >= STEPS - 1 for found in left.values())
