"""A plan that the bundle does not have, made by running `recyclec` as a process. Standard library only."""

import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle
from recycle_runtime.plan_choice import NoPlanError

_SECONDS = 120


def plan_on_demand(bundle: Bundle, failed: Collection[Worker], path: Path) -> None:
    """Write a bundle with the plan for exactly these failed workers; NoPlanError if that cannot be."""
    beside = Path(sys.executable).parent / "recyclec"
    command = str(beside) if beside.exists() else shutil.which("recyclec")
    if command is None:
        raise NoPlanError("the bundle has no plan for these failures, and recyclec is not there to make one")
    names = ",".join(f"{pipeline}:{stage}" for pipeline, stage in sorted(failed))
    try:
        made = subprocess.run(
            [command, "--quiet", "plan", "-", "--failed", names, "-o", str(path)],
            input=bundle.job_source.encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoPlanError(f"recyclec has made no plan for {names} in {_SECONDS} s") from None
    if made.returncode != 0:
        said = made.stderr.decode(errors="replace").strip()
        raise NoPlanError(f"the bundle has no plan for {names}, and recyclec cannot make one: {said}")
