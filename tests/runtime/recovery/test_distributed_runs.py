"""Models that torch's tensor parallelism distributes over the ranks of a worker, through failures: every rank
has its slices of what a plain loop trains."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recycle_runtime.cli.main import main
from recycle_runtime.launcher.local import RunOptions, run_local
from recycle_runtime.launcher.supervisor import Supervisor
from recycle_runtime.protocol.messages.observers import ToObserver
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.recovery.watched import Outcome, check_rows, run
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed
from tests.runtime.training.test_tied import TIED
from tests.runtime.training.tied_alone import train_tied_alone
from tests.runtime.training.whole import Whole, train_whole
from tests.support.layers import layer_costs, layered_job

PROGRAMS = Path(__file__).resolve().parents[1] / "training" / "programs"
LLAMA = str(PROGRAMS / "parallel_llama.py")
PARALLELIZED = str(PROGRAMS / "parallelized.py")
PIPELINES = MICROBATCHES = RANKS = 2


def two_by_two(folder: Path, cut: tuple[int, int] = (2, 2), *, decouples: bool = True) -> str:
    """Two pipelines of two stages, each worker of two ranks."""
    job = layered_job(layer_costs((1000,) * sum(cut)), cut, PIPELINES, MICROBATCHES)
    job = replace(job, tensor=RANKS)
    job = replace(job, techniques=replace(job.techniques, decouple=decouples))
    return write_bundle(folder / "ranks.plan", job, {}, [(0, 0), (0, 1), (1, 0)])


def check(folder: Path, outcome: Outcome, steps: int, expected: Whole) -> None:
    check_rows(folder, outcome, expected.losses[:steps])
    seen: set[str] = set()
    for path in (folder / "saved").glob("worker-*-0.pt"):
        ranks = [path.with_name(f"{path.name[: -len('0.pt')]}{rank}.pt") for rank in range(RANKS)]
        parts = [torch.load(each, weights_only=True)["model"] for each in ranks]
        for name, whole in expected.state.items():
            if name not in parts[0]:
                continue
            pieces = [part[name] for part in parts]
            along = [axis for axis, size in enumerate(whole.shape) if pieces[0].shape[axis] != size]
            joined = torch.cat(pieces, along[0]) if along else pieces[0]
            torch.testing.assert_close(joined, whole, rtol=1e-9, atol=1e-11)
            seen.add(name)
    assert seen == set(expected.state)


@pytest.mark.slow
def test_a_kill_and_a_return(tmp_path: Path) -> None:
    """One rank of a worker fails, and its worker with it."""
    steps, bundle = 60, two_by_two(tmp_path)
    for attempt in range(3):
        here = tmp_path / f"run-{attempt}"
        outcome = run(here, bundle, LLAMA, steps, ["kill=1:1@3"], ["1:1@6"])
        assert outcome.causes
        check(here, outcome, steps, train_whole(LLAMA, PIPELINES * MICROBATCHES, steps))
        if outcome.rows[-1].live == PIPELINES * 2:
            return
        steps *= 3
    pytest.fail("the worker has not come back")


@pytest.mark.slow
def test_a_worker_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    """One comes back with one of its two ranks; then its peer fails, and gets its state from that one."""
    source = Path(LLAMA).read_text().replace("Path(__file__)", f"Path({LLAMA!r})")
    program, steps, bundle = tmp_path / "program.py", 80, two_by_two(tmp_path)
    program.write_text(f"{source}\nRANKS = (1,)\n")
    for attempt in range(3):
        here = tmp_path / f"run-{attempt}"
        kills, returns = ["kill=1:1@3", f"kill?=0:1@{steps // 4}"], ["1:1@6x1", f"0:1@{steps // 2}"]
        outcome = run(here, bundle, str(program), steps, kills, returns)
        check(here, outcome, steps, train_whole(LLAMA, PIPELINES * MICROBATCHES, steps))
        has_given = len(outcome.faults) == 4 and outcome.rows[-1].live == PIPELINES * 2
        if "1:1 is restarted with 1 of 2 ranks" in outcome.events and has_given:
            return
        steps *= 2
    pytest.fail("the worker has not come back, or has given nobody its state")


DIVIDED = """
import time

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

CLIP_NORM, RANKS = 0.5, (1,)


def parallelize(module, mesh):
    if isinstance(module, Block):
        parallelize_module(module, mesh, {"linear": ColwiseParallel(output_layouts=Replicate())})


def loss(output, target):
    time.sleep(0.05)
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
"""


@pytest.mark.slow
def test_a_worker_gets_its_ranks_back(tmp_path: Path) -> None:
    """Its head is its embedding; while it has fewer ranks the coordinator is killed and started again."""
    program, layers = changed(tmp_path, TIED, DIVIDED), 6
    job = layered_job(layer_costs((1000,) * layers), (3, 3), PIPELINES, MICROBATCHES)
    job = replace(job, tensor=RANKS, tied=(0, layers - 1))
    bundle = write_bundle(tmp_path / "ranks.plan", job, {}, [(0, 0), (0, 1), (1, 0)])
    steps, killed = 60, list[int]()

    def drive(supervisor: Supervisor, message: ToObserver) -> None:
        if isinstance(message, StepRow) and not killed and message.step > 3 and message.live == 4:
            killed.append(message.step)
            supervisor.coordinator.process.kill()

    for attempt in range(3):
        killed.clear()
        here, kills = tmp_path / f"run-{attempt}", ["kill=1:1@3", f"kill=1:1@{steps // 2}"]
        returns = ["1:1@5x1", f"1:1@{steps // 2 + 2}"]
        outcome = run(here, bundle, program, steps, kills, returns, drive=drive)
        alone = train_tied_alone(program, 2, PIPELINES * MICROBATCHES, steps)
        check(here, outcome, steps, Whole(alone.losses, alone.states[0]))
        # The second time perhaps in the place of a worker that has moved to its own.
        come_back = [event for event in outcome.events if event.startswith("1:1 is restarted")]
        with_fewer = ["with 1 of 2 ranks" in event for event in come_back]
        if killed and with_fewer == [True, False] and outcome.rows[-1].live == 4:
            return
        steps *= 2
    pytest.fail("the worker has not come back twice")


@pytest.mark.slow
def test_a_kill_without_decoupled_backwards(tmp_path: Path) -> None:
    """A worker of the other stage moves to the place of the one that has failed."""
    steps, bundle = 30, two_by_two(tmp_path, decouples=False)
    outcome = run(tmp_path / "run", bundle, LLAMA, steps, ["kill=1:1@3"])
    assert outcome.causes
    check(tmp_path / "run", outcome, steps, train_whole(LLAMA, PIPELINES * MICROBATCHES, steps))


@pytest.mark.slow
def test_a_checkpoint_is_resumed_from_and_exported_as_a_whole(tmp_path: Path) -> None:
    """With a sequence in slices between layers, and a kill before and after."""
    kept, bundle = tmp_path / "kept", two_by_two(tmp_path, (2, 3))
    kept.mkdir()
    more: dict[str, Any] = {"checkpoint": kept, "checkpoint_every": 4}
    first = run(tmp_path / "first", bundle, PARALLELIZED, 10, ["kill=1:0@6"], **more)
    assert first.error is None
    second = run(tmp_path / "second", bundle, PARALLELIZED, 16, ["kill=0:1@13"], resume=True, **more)
    assert second.error is None
    alone = train_alone(PARALLELIZED, 1, PIPELINES * MICROBATCHES, 16, cut=(5,))
    rows = {row.step: row.loss for row in (*first.rows, *second.rows)}
    assert [rows[step] for step in range(16)] == pytest.approx(alone.losses, rel=1e-9)
    assert main(["export", str(kept), "-o", str(tmp_path / "exported")]) == 0
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert exported.keys() == alone.states[0].keys()
    for name, tensor in alone.states[0].items():
        torch.testing.assert_close(exported[name], tensor, rtol=1e-9, atol=1e-11)


SCRIPT = """
import sys

import torch

import recycle_runtime as recycle

sys.path.insert(0, {programs!r})
import parallel_llama as llama


class Rows:
    def microbatch(self, index):
        return ROWS[index]


batches = llama.batches(0)
ROWS = [next(batches) for _ in range({rows})]
trainer = recycle.Trainer(
    llama.model(), optimizer=llama.optimizer, clip_norm=llama.CLIP_NORM, parallelize=llama.parallelize, seed=0
)
assert trainer.mesh.size() == 2
for step in trainer.steps({steps}):
    report = trainer.step(Rows())
    trainer.print(step, report.loss)
state = trainer.state_dict()
if trainer.is_main:
    torch.save(state, {out!r})
"""
PLAIN = """
import sys

import torch

sys.path.insert(0, {programs!r})
import parallel_llama as llama

torch.manual_seed(0)
model, batches = llama.model(), llama.batches(0)
optimizer = llama.optimizer(list(model.parameters()))
for _ in range({steps}):
    for _ in range(4):
        (model(**next(batches)).loss / 4).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), llama.CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()
state = model.state_dict()
"""


@pytest.mark.slow
def test_a_script_with_a_whole_model(tmp_path: Path) -> None:
    """Its `state_dict` has whole tensors, after a kill."""
    out, script = tmp_path / "state.pt", tmp_path / "train.py"
    steps = 6
    script.write_text(SCRIPT.format(programs=str(PROGRAMS), steps=steps, rows=4 * steps, out=str(out)))
    bundle = two_by_two(tmp_path)
    run_local(RunOptions(bundle, "", None, script=(str(script),), faults=("kill=1:1@3",)))
    found = torch.load(out, weights_only=True)
    plain: dict[str, dict[str, torch.Tensor]] = {}
    exec(PLAIN.format(programs=str(PROGRAMS), steps=steps), plain)
    assert found.keys() == plain["state"].keys()
    for name, tensor in plain["state"].items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-11)
