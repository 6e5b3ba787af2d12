"""Every block of the tutorial is written or run, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def test_the_tutorial_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran: list[str] = []
    for language, title, text in _BLOCK.findall(page):
        if title:
            (tmp_path / title).write_text(text, "utf-8")
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-euc", text],
                cwd=tmp_path,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            ran.append(done.stdout)
    assert len(ran) == 6
    (difference,) = re.findall(r"largest difference: (\S+)", ran[-1])
    assert float(difference) < 1e-6
