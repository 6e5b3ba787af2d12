"""Time and memory over five sizes of one job: `python -m bench.growth`."""

import tempfile
from pathlib import Path

from bench.measure import MIB
from bench.plans import compiled, ops_of
from bench.report import Section, job_path

TITLE = "Growth"
NAME = "scale-2048"
PIPELINES = (4, 8, 16, 32, 64)
FAILURES = 4


def section() -> Section:
    """One row for each number of pipelines."""
    return Section(
        title=TITLE,
        command="python -m bench.growth",
        words=(
            f"`{NAME}` with more and fewer pipelines, plans for 0 to {FAILURES} failures. Microseconds are "
            "of all processes together, per op of all plans; the smallest sizes also show what starting up "
            "costs."
        ),
        columns=("pipelines", "GPUs", "ops of all plans", "seconds", "CPU us per op", "peak MiB"),
        rows=tuple(_row(pipelines) for pipelines in PIPELINES),
    )


def _row(pipelines: int) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "grown.job"
        job.write_text(with_pipelines(job_path(NAME).read_text(), pipelines))
        made = compiled(job, "--failures", str(FAILURES))
        ops = ops_of(job) * len(made.plans)
    return (
        str(pipelines),
        f"{pipelines * 16 * 8:,}",
        f"{ops:,}",
        f"{made.seconds:.1f}",
        f"{1e6 * made.cpu_seconds / ops:.0f}",
        f"{made.peak_bytes / MIB:,.0f}",
    )


def with_pipelines(text: str, pipelines: int) -> str:
    """The text of the job with another number of pipelines."""
    before, after = "data = 16", f"data = {pipelines}"
    assert text.count(before) == 1
    return text.replace(before, after)


if __name__ == "__main__":
    print(section().text())
