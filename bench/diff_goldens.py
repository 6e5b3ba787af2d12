"""Compile every golden/specs/*.job and compare its plans with golden/schedules/<spec>.<failures>.txt.

`make check` runs this; `make golden` runs it with --update, which rewrites the schedules instead.
"""

import sys
import tempfile
from pathlib import Path

from recycle_compiler.cli.main import main as recyclec
from recycle_compiler.frontend import load_job

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def main() -> int:
    """1 if any plan is not as its golden says."""
    update = sys.argv[1:] == ["--update"]
    with tempfile.TemporaryDirectory() as folder:
        results = [_compare(spec, Path(folder), update) for spec in sorted(GOLDEN.glob("specs/*.job"))]
    if all(results):
        return 0
    print("if the change is meant, run `make golden` and read the diff", file=sys.stderr)
    return 1


def _compare(spec: Path, folder: Path, update: bool) -> bool:
    """Whether all plans of one job are as their goldens say."""
    bundle = folder / f"{spec.stem}.plan"
    if recyclec(["--quiet", "compile", str(spec), "-o", str(bundle), "--jobs", "1"]) != 0:
        return False
    same = True
    for failures in range(load_job(spec).spec.failures + 1):
        golden = GOLDEN / "schedules" / f"{spec.stem}.{failures}.txt"
        now = golden if update else folder / golden.name
        recyclec(["show", str(bundle), "--failures", str(failures), "--format", "schedule", "-o", str(now)])
        print(f"{golden.relative_to(GOLDEN.parent)}: ", end="")
        same &= recyclec(["diff", str(golden), str(now)]) == 0
    return same


if __name__ == "__main__":
    sys.exit(main())
