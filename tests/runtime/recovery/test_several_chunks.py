"""Jobs whose workers hold several chunks survive failures: kill and re-join, checkpoint and resume."""

from pathlib import Path

import pytest
import torch

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import Techniques
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from tests.compiler.test_sharded import sharded
from tests.runtime.recovery.watched import PROGRAMS, TINY, check, run, saved_models, stage_of
from tests.runtime.training.alone import Alone, train_alone
from tests.support.chunks import chunked_job

LAYERED = str(PROGRAMS / "layered.py")
V_SHAPE = (0, 1, 1, 0)


def plans(folder: Path, *, stagger: bool, owners: int = 0) -> str:
    """Six micro-batches a step, with two pipelines, or three where shards have owners."""
    techniques = Techniques(adaptive=True, decouple=True, stagger=stagger)
    job = chunked_job(V_SHAPE, 3 if owners else 2, 2 if owners else 3, techniques=techniques)
    job = sharded(job, owners) if owners else job
    path = folder / "chunks.plan"
    states = ([], [(1, 0)], [(1, 1)])
    write_bundle(path, source="", plans=[plan_failed(job, failure_set(failed)) for failed in states])
    return str(path)


def on_workers(alone: Alone) -> Alone:
    """States of each stage in place of each chunk, as workers save them."""
    states: list[dict[str, torch.Tensor]] = [{}, {}]
    for chunk, stage in enumerate(V_SHAPE):
        states[stage] |= alone.states[chunk]
    return Alone(alone.losses, states)


def between_steps_of(bundle: str) -> int:
    """The instruction of worker 1:0 at which it has stepped one of its chunks and not the other."""
    stream = Bundle.read(bundle).stream(0, (1, 0))
    return [at for at, each in enumerate(stream) if each.opcode is Opcode.OPTIMIZER][1]


@pytest.mark.slow
@pytest.mark.parametrize("owners", [0, 2])
@pytest.mark.parametrize("stagger", [True, False])
def test_kill_and_rejoin(tmp_path: Path, stagger: bool, owners: int) -> None:
    """Also when a worker dies that has stepped one of its chunks and not the other."""
    bundle, alone = plans(tmp_path, stagger=stagger, owners=owners), train_alone(LAYERED, 4, 6, 90)
    at = between_steps_of(bundle)
    faults = [f"kill=1:0@3.{at}", "kill=1:1@33", f"kill=0:0@63.{at}"]
    outcome = run(tmp_path / "run", bundle, LAYERED, 90, faults, ["1:0@4", "1:1@34", "0:0@64"])
    assert len(outcome.faults) == 3
    check(tmp_path / "run", outcome, on_workers(alone))


def test_whole_stages_and_a_resume(tmp_path: Path) -> None:
    """A worker dies that has stepped one of its chunks and not the other, and comes back. A checkpoint has a
    shard for every chunk; a run that begins with one goes on with all of them."""
    bundle, kept, alone = plans(tmp_path, stagger=True), tmp_path / "kept", train_alone(TINY, 4, 6, 65)
    fault = f"kill=1:0@3.{between_steps_of(bundle)}"
    first = run(tmp_path / "first", bundle, TINY, 60, [fault], ["1:0@4"], checkpoint=kept)
    assert first.error is None and len(first.faults) == 1 and first.rows[-1].live == 4
    assert [row.loss for row in first.rows] == pytest.approx(alone.losses[:60], rel=1e-10)
    second = run(tmp_path / "second", bundle, TINY, 65, ["kill=0:1@61"], checkpoint=kept, resume=True)
    assert second.rows[0].step == 60 and len(second.faults) == 1
    assert [row.loss for row in second.rows] == pytest.approx(alone.losses[60:], rel=1e-10)
    for path, state in saved_models(tmp_path / "second" / "saved").items():
        for chunk in (chunk for chunk, held_by in enumerate(V_SHAPE) if held_by == stage_of(path)):
            for name, tensor in alone.states[chunk].items():
                torch.testing.assert_close(state[f"{chunk}.{name}"], tensor, rtol=1e-10, atol=1e-10)
