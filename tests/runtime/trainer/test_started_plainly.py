"""A script that is started as any other says how to start it."""

import subprocess
import sys
from pathlib import Path


def test_without_recycle_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import recycle_runtime as recycle\nrecycle.Trainer([], loss=None, optimizer=None)\n")
    command = [sys.executable, "train.py", "--rate", "a b"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == (
        "recycle.Trainer trains with the workers of a plan, which says how many micro-batches a step "
        "has: start this script with `recycle-run local PLAN train.py --rate 'a b'`, and with --debug 0:0 "
        "before its name for a debugger in one worker\n"
    )
