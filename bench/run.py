"""Start-up time of the commands, planning time and bundle size of the examples: `make bench`."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recycle_compiler.cli import main as recyclec
from recycle_runtime.bundle import Bundle

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.job"))
REPEATS = 5


def main() -> None:
    print("start-up, best of", REPEATS)
    for argv in (["--version"], ["--help"], ["check", str(EXAMPLES[0])]):
        print(f"  recyclec {argv[0]:10} {_best_seconds(argv):6.3f} s")
    print("compile, one process")
    with tempfile.TemporaryDirectory() as folder:
        for job in EXAMPLES:
            bundle = Path(folder) / f"{job.stem}.plan"
            began = time.perf_counter()
            recyclec(["--quiet", "compile", str(job), "-o", str(bundle), "--jobs", "1"])
            _report(bundle, time.perf_counter() - began)


def _best_seconds(argv: list[str]) -> float:
    command = [sys.executable, "-m", "recycle_compiler.cli", *argv]
    times: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    return min(times)


def _report(path: Path, seconds: float) -> None:
    bundle = Bundle.read(path)
    size = path.stat().st_size
    print(
        f"  {path.stem:20} {seconds:8.2f} s  {len(bundle.plans):3} plans  {size:9,} bytes  "
        f"{bundle.instructions:9,} instructions  {size / bundle.instructions:.2f} bytes per instruction"
    )


if __name__ == "__main__":
    main()
