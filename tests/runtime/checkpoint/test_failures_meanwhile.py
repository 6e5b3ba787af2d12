"""Workers that die while they write a checkpoint, or read one."""

import shutil
from pathlib import Path

import pytest

from tests.runtime.checkpoint.conftest import Stopped
from tests.runtime.checkpoint.runs import FAILED, JOB, losses, plans, run, train_in_turns, with_dropout

DIES_ONCE = """
import os, signal, time
from recycle_runtime.checkpoint import storage
from recycle_runtime.execution import layer as held

def die_once(what, layer):
    # One of the second stage, neither its first nor its last.
    if what == {what!r} and layer == 7:
        try:
            os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

def sealed(path, kind, fields, inner=storage.write_sealed):
    # The tensors are there, their description is not.
    die_once("writing", fields["about"]["layer"])
    return inner(path, kind, fields)

def loads(layer, state, inner=held.Layer.load):
    die_once("reading", layer.number)
    inner(layer, state)

storage.write_sealed, held.Layer.load = sealed, loads
"""


def test_the_writer_dies_while_it_writes(tmp_path: Path) -> None:
    """That checkpoint never becomes complete, and the next one does."""
    marker = tmp_path / "died"
    program = with_dropout(tmp_path, DIES_ONCE.format(what="writing", marker=str(marker)))
    bundle = plans(tmp_path / "job.plan", JOB, FAILED)
    kept = tmp_path / "kept"
    result, events = run(bundle, program, 12, checkpoint=str(kept), checkpoint_every=3)
    assert marker.exists()
    expected, _ = train_in_turns(with_dropout(tmp_path), JOB.stages, [(12, 4)])
    assert losses(result) == pytest.approx(dict(enumerate(expected)), rel=1e-12)
    assert events[-1].startswith("checkpoint of step 12: ")
    complete = sorted(path for path in kept.iterdir() if (path / "manifest.json").exists())
    assert sorted(kept.iterdir()) == complete
    assert 1 <= len(complete) <= 2


@pytest.mark.slow
def test_a_worker_dies_while_it_reads(stopped: Stopped, tmp_path: Path) -> None:
    """Whoever has read the checkpoint and whoever has not go on together."""
    marker = tmp_path / "died"
    shutil.copytree(stopped.kept, tmp_path / "kept")
    program = with_dropout(tmp_path, DIES_ONCE.format(what="reading", marker=str(marker)))
    result, _ = run(
        stopped.bundle, program, 8, checkpoint=str(tmp_path / "kept"), resume=True, accepts_changes=True
    )
    assert marker.exists()
    expected, _ = train_in_turns(stopped.program, JOB.stages, [(8, 4)])
    assert losses(result) == pytest.approx({step: expected[step] for step in (5, 6, 7)}, rel=1e-12)
    assert result.steps[-1].live == 3
