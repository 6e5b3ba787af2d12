"""The same job gives the same bytes: other hash seeds, numbers of processes, plain or compiled loops."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.text import print_streams
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling import loops
from tests.support.jobs import unit_job

JOB = Path(__file__).resolve().parents[3] / "golden" / "specs" / "uneven-bytes.job"


def compiled_bytes(tmp_path: Path, seed: str, jobs: str) -> bytes:
    job, out = tmp_path / "uneven.job", tmp_path / f"{seed}-{jobs}.plan"
    # Processes that start beside others need many seconds; the limit is not what is tested.
    job.write_text(JOB.read_text().replace("time_limit = 10 s", "time_limit = 3600 s"))
    command = [
        sys.executable,
        "-m",
        "recycle_compiler.cli",
        "compile",
        str(job),
        "-o",
        str(out),
        "--jobs",
        jobs,
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
    return out.read_bytes()


def test_same_bytes_for_every_hash_seed_and_number_of_processes(tmp_path: Path) -> None:
    first = compiled_bytes(tmp_path, "0", "1")
    assert compiled_bytes(tmp_path, "1", "2") == first
    assert compiled_bytes(tmp_path, "2", "1") == first


@pytest.mark.parametrize("failed", [(), ((2, 2),), ((2, 1), (2, 2), (1, 2))])
def test_plain_and_compiled_loops_agree(
    failed: tuple[tuple[int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = unit_job(4, 3, 6, capacity=(5, 3, 3, 2))
    plain = plan_failed(job, failure_set(failed))
    monkeypatch.setattr(loops, "Sizes", SimpleNamespace(COMPILED=0))
    compiled = plan_failed(job, failure_set(failed))
    assert print_streams(compiled) == print_streams(plain)
