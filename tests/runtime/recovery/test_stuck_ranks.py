"""A tensor-parallel rank that waits in a collective of the program, and gloo never tells it to stop."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.recovery.sliced import RANKS, SLICED, check_slices
from tests.runtime.recovery.watched import run
from tests.runtime.training.compare import changed
from tests.support.jobs import unit_job

STEPS, PER_STEP = 8, 4

STUCK = """
import os, signal, threading, time

from recycle_runtime.transport import gloo
from recycle_runtime.transport.sockets import GroupSockets

FORWARD = 5
_folder, _left, _layers = Path({folder!r}), threading.Event(), layers
# Nobody is woken by a connection that is broken off, or by a group that goes.
GroupSockets.break_off = lambda _: _left.set()
gloo.drop = [].extend


def layers(group=None):
    made = _layers(group)
    if group is not None:
        pids = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
        dist.all_gather(pids, torch.tensor([os.getpid()]), group=group)
        pids = [int(pid) for pid in pids]
        (_folder / f"pid-{{os.getpid()}}").touch()
        _hook(made[0][1], group.rank(), pids)
    return made


def _hook(first, rank, pids):
    counts = iter(range(1_000_000))

    def before(*_):
        if next(counts) == FORWARD:
            _enter_alone(pids) if rank == 0 else _stay_out(pids)

    first.register_forward_pre_hook(before)


def _enter_alone(pids):
    (_folder / f"enters-{{pids[0]}}").touch()


def _stay_out(pids):
    # Of both workers, one has a rank that is stuck, and the other is killed.
    try:
        os.close(os.open(_folder / "stuck", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    while not (_folder / f"enters-{{pids[0]}}").exists():
        time.sleep(0.01)
    others = [int(path.name.partition("-")[2]) for path in _folder.glob("pid-*")]
    os.kill(next(pid for pid in others if pid not in pids), signal.SIGKILL)
    _left.wait()
    raise RuntimeError("told to leave")

"""


@pytest.mark.slow
def test_a_rank_that_gloo_forgets_leaves_and_goes_on(tmp_path: Path) -> None:
    """A worker is killed while a rank of the other one is in an all-reduce that its own second rank has not
    entered, and never will: both leave, and train on alone."""
    job = replace(unit_job(1, 2, PER_STEP // 2), tensor=RANKS)
    bundle = write_bundle(tmp_path / "ranks.plan", job, {}, [(0,), (1,)])
    program = changed(tmp_path, SLICED, STUCK.format(folder=str(tmp_path)))
    outcome = run(tmp_path, bundle, program, STEPS)
    assert (tmp_path / "stuck").exists()
    check_slices(tmp_path, outcome, STEPS, PER_STEP)
    assert outcome.rows[-1].live == 1
