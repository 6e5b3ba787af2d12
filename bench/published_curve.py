"""The published throughput by failed workers, ReCycle's and ours: `python -m bench.published_curve`."""

from functools import cache

from bench.fleet_settings import setting_of
from bench.report import Section, job_path
from recycle_compiler.fleet.our_plans import fastest_period
from recycle_compiler.frontend import load_job
from recycle_compiler.planner.baselines import best_placement, one_f_one_b_period
from recycle_compiler.planner.compile import compile_job

TITLE = "The published curve"
JOB = "gpt3-3.35b-24"
LAYERED = f"{JOB}-layers"
FAULT_FREE = 11.34
"""Samples a second of 1F1B without failures."""
PUBLISHED = (11.34, 11.29, 10.89, 10.68, 10.47, 9.49, 9.31, 9.13, 8.90, 8.85)
"""Samples a second of ReCycle with 0 to 9 failed workers, read off the authors' talk."""


@cache
def recycle_shares() -> tuple[float, ...]:
    """Throughput of ReCycle as published, by failures, as a share of fault-free 1F1B."""
    job = load_job(str(job_path(JOB))).spec
    healthy = one_f_one_b_period(job)
    return tuple(healthy / best_placement(job, count)[0] for count in range(len(PUBLISHED)))


@cache
def our_shares() -> tuple[float, ...]:
    """The same of our plans."""
    job = load_job(str(job_path(JOB))).spec
    healthy = one_f_one_b_period(job)
    return tuple(healthy / program.claims.period for program in compile_job(job, failures=len(PUBLISHED) - 1))


@cache
def recut_shares() -> tuple[float, ...]:
    """The same where the cut is chosen too, on the job by layer."""
    setting = setting_of(LAYERED)
    periods = [fastest_period(setting, count) for count in range(len(PUBLISHED))]
    return tuple(setting.one_f_one_b / period for period in periods if period is not None)


def section() -> Section:
    """One row for each number of failed workers."""
    worst = max(abs(ours - published) for ours, published in zip(recycle_shares(), _published(), strict=True))
    return Section(
        title=TITLE,
        command="python -m bench.published_curve",
        words=(
            "GPT-3 3.35B on 24 GPUs (6 pipelines of 4 stages), throughput relative to fault-free 1F1B. The "
            "publication does not state micro-batches, stage times or memory. They were fitted, first by "
            "random search and then around the closest results: micro-batches (3 to 12), the partition of "
            "28 layers, the weight of embedding and head, F : I : W, transfers, optimizer and memory. "
            "bench/jobs/gpt3-3.35b-24.job is among the closest fits and has round numbers; its largest "
            f"error is {100 * worst:.1f} points: 6 micro-batches, stages of 8, 8, 6 and 6 layers, four "
            "activations on every worker. Uneven stages make the first failures cheap, and tight memory "
            "makes further ones expensive: with room for more activations the published techniques would "
            "do better than published. Because it is fitted, the agreement of the ten values shows that "
            "our model of ReCycle can have the published shape, not that it predicts it. Fault-scaled is "
            "the share of live workers. `ours, any cut` is the same model by layer, "
            "bench/jobs/gpt3-3.35b-24-layers.job, relative to its own 1F1B: the cut and the workers of "
            "each stage are chosen for every number of failures, every layer on two workers at least."
        ),
        columns=(
            "failed",
            "published",
            "ReCycle, our model",
            "difference",
            "ours",
            "ours, any cut",
            "fault-scaled",
        ),
        rows=tuple(
            (
                str(failed),
                f"{published:.3f}",
                f"{recycle:.3f}",
                f"{100 * (recycle - published):+.1f}",
                f"{ours:.3f}",
                f"{recut:.3f}",
                f"{1 - failed / 24:.3f}",
            )
            for failed, (published, recycle, ours, recut) in enumerate(
                zip(_published(), recycle_shares(), our_shares(), recut_shares(), strict=True)
            )
        ),
    )  # fmt: skip


def _published() -> tuple[float, ...]:
    return tuple(value / FAULT_FREE for value in PUBLISHED)


if __name__ == "__main__":
    print(section().text())
