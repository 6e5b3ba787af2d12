"""Disks that are full: what was asked for and cannot be written is said, and leaves nothing half written."""

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from recycle_runtime.launcher.local import RunError
from tests.runtime.checkpoint.runs import JOB, plans, run
from tests.runtime.training.compare import MLP


@pytest.fixture
def full_disk(tmp_path: Path) -> Generator[Path]:
    """A disk of its own, with room for names and for next to nothing else."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be made by root alone")
    try:
        (place / "filler").write_bytes(bytes(56 << 10))
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_what_should_be_saved(full_disk: Path, tmp_path: Path) -> None:
    saved = full_disk / "saved"
    saved.mkdir()
    with pytest.raises(RunError, match=r"worker \d:\d: cannot write .*worker-\d-\d-0\.pt: no space left"):
        run(plans(tmp_path / "job.plan", JOB), MLP, 2, save=str(saved))
    assert all(path.suffix == ".pt" and path.stat().st_size > 0 for path in saved.iterdir())


def test_a_checkpoint(full_disk: Path, tmp_path: Path) -> None:
    """Training goes on to the end, and what else was asked for is there."""
    kept, saved = full_disk / "kept", tmp_path / "saved"
    saved.mkdir()
    with pytest.raises(RunError, match=r"^no checkpoint of step 3: .*[Nn]o space left") as caught:
        run(
            plans(tmp_path / "job.plan", JOB),
            MLP,
            3,
            checkpoint=str(kept),
            checkpoint_every=2,
            save=str(saved),
        )
    assert "no checkpoint is complete yet" in str(caught.value)
    assert len(list(saved.glob("worker-*.pt"))) == 4
    assert list(kept.iterdir()) == []


@pytest.mark.slow
def test_a_worker_whose_peer_has_saved_may_die(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    run(plans(tmp_path / "job.plan", JOB), MLP, 2, save=str(saved), faults=("kill=1:1@1.save",))
    assert sorted(path.name for path in saved.iterdir()) == [
        "worker-0-0-0.pt",
        "worker-0-1-0.pt",
        "worker-1-0-0.pt",
    ]
