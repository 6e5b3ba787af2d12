"""A script that is started as any other says how to start it."""

import subprocess
import sys
from pathlib import Path


def test_without_recycle_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import recycle_runtime as recycle\nrecycle.Trainer([], loss=None, optimizer=None)\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == (
        "recycle.Trainer trains with the workers of a plan: start this script with "
        "`recycle-run local PLAN SCRIPT.py`\n"
    )
