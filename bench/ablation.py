"""Gain of each technique, one on top of the other: `python -m bench.ablation`."""

from collections.abc import Iterator

from bench.fleet_settings import made_for
from bench.report import Section, job_path
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.planner.baselines import best_placement, one_f_one_b_period

TITLE = "Ablation"
FAILURES = {"figure3": (1, 2, 4), "gpt3-3.35b-24": (1, 2, 4, 5, 8), "scale-2048": (2, 12, 25)}
"""By job: how many workers have failed."""
STEPS = (
    Techniques(adaptive=True, decouple=False, stagger=False),
    Techniques(adaptive=True, decouple=True, stagger=False),
    Techniques(adaptive=True, decouple=True, stagger=True),
)
"""ReCycle's techniques, one more each time."""


def section() -> Section:
    """One row for each job and number of failures."""
    return Section(
        title=TITLE,
        command="python -m bench.ablation",
        words=(
            "Throughput relative to fault-free 1F1B. `adaptive` re-routes the micro-batches of failed "
            "workers to their peers; `+ decouple` splits backward on stages with failures; `+ stagger` "
            "lets each stage run its optimizer step on its own: ReCycle as published. Ours splits backward "
            "everywhere, chooses the placement of failures and searches for the order of ops; `dropped` is "
            "what remains when every failure costs its pipeline. The orders of the first three follow a "
            "greedy rule instead of the published MILP: on figure3 with one failure re-routing alone takes "
            "42 slots this way, where 39 are possible. Staggering adds next to nothing to them: a first "
            "stage with whole backwards is busy from the first op to the last."
        ),
        columns=("job", "failed", "workers", "dropped", "adaptive", "+ decouple", "+ stagger", "ours"),
        rows=tuple(row for name, counts in FAILURES.items() for row in _rows(name, counts)),
    )


def shares(job: JobSpec, failures: int) -> list[float]:
    """Throughput with each step, as a share of fault-free 1F1B."""
    healthy = one_f_one_b_period(job)
    return [healthy / best_placement(job, failures, techniques)[0] for techniques in STEPS]


def _rows(name: str, counts: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    job = load_job(str(job_path(name))).spec
    healthy = one_f_one_b_period(job)
    for failures, plan in zip(counts, made_for(name, counts).plans.own, strict=True):
        left = max(0, job.pipelines - failures) / job.pipelines
        values = (left, *shares(job, failures), healthy / plan.period)
        yield (name, str(failures), str(job.workers), *(f"{value:.3f}" for value in values))


if __name__ == "__main__":
    print(section().text())
