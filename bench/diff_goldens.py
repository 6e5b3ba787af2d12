"""Compile every golden/specs/*.job and compare its plans with golden/schedules/<spec>.<failures>.txt.

`make check` runs this; `make golden` runs it with --update, which rewrites the schedules instead.

Where the MILP finds a schedule that the search alone does not, another machine may find another one of the
same period: the solver computes in floating point, and which of many solutions it comes to is not the same
everywhere. Such a plan has to be as good as its golden and pass the verifier, and no more.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from recycle_compiler.cli.main import main as recyclec
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_level
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort

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
    """True if all plans of one job are as their goldens say."""
    bundle = folder / f"{spec.stem}.plan"
    if recyclec(["--quiet", "compile", str(spec), "-o", str(bundle), "--jobs", "1"]) != 0:
        return False
    same = True
    for failures in range(load_job(spec).spec.failures + 1):
        golden = GOLDEN / "schedules" / f"{spec.stem}.{failures}.txt"
        now = golden if update else folder / golden.name
        recyclec(["show", str(bundle), "--failures", str(failures), "--format", "schedule", "-o", str(now)])
        print(f"{golden.relative_to(GOLDEN.parent)}: ", end="")
        if recyclec(["diff", str(golden), str(now)]) != 0:
            chosen = is_choice_of_the_solver(golden.read_text(), now.read_text(), Effort())
            print("  found by the solver, and as good" if chosen else "  not as it was")
            same &= chosen
    return same


def is_choice_of_the_solver(golden: str, text: str, effort: Effort) -> bool:
    """True if two different schedules are as good as each other, and what comes before the solver is not."""
    before, now = parse_level(golden), parse_level(text)
    assert isinstance(before, Schedule) and isinstance(now, Schedule), "goldens of plans are schedules"
    worth = [(one.job, one.failed, one.claims.period, one.claims.lower_bound) for one in (before, now)]
    if worth[0] != worth[1] or list(now.verify()):
        return False
    quick = effort.quick()
    first = replace(
        effort,
        exact=False,
        op_moves=quick.op_moves,
        compiled_op_moves=quick.compiled_op_moves,
        most_moves=quick.most_moves,
    )
    return plan_failed(now.job, now.failed, effort=first).claims.period > now.claims.period


if __name__ == "__main__":
    sys.exit(main())
