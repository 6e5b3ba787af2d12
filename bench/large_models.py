"""Every policy on up to 1,536 GPUs with 1, 5 and 10 % failed: `python -m bench.large_models [names]`."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from bench.fleet_settings import made_for, setting_of, shuffled_workers
from bench.line_plot import Panel, plot
from bench.parts import Parts
from bench.report import ROOT, Section, job_path
from recycle_compiler.fleet.our_plans import fastest_period
from recycle_compiler.fleet.policies import oobleck
from recycle_compiler.fleet.policy import CannotRunError, Policy, make_policy
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.frontend import load_job
from recycle_compiler.planner.baselines import best_placement

TITLE = "Large models"
SIZES = ("18.4b", "39.1b", "76.1b", "145.6b")
JOBS = tuple(f"megatron-{size}{kind}" for kind in ("", "-deep") for size in SIZES)
SHARES = (0, 1, 5, 10)
"""Percent of the workers that have failed."""
RESHAPED = "oobleck, any depth"
OWN_CUT = "ours, own cut"
NAMES = (
    "ours", OWN_CUT, "recycle", "oobleck", RESHAPED, "chameleon", "elaswave", "bamboo", "varuna", "elastic",
    "fault-scaled", "zero-bubble",
)  # fmt: skip
PICTURE = ROOT / "docs" / "large-models.svg"
_PARTS = Parts("large_models")


class Steady(NamedTuple):
    """Throughput of the policies at every share, against fault-free 1F1B; None where one cannot run."""

    job: str
    failed: tuple[int, ...]
    values: dict[str, list[float | None]]


@cache
def steady(name: str) -> Steady:
    """Throughput of policies once they have adapted, whatever the way there costs."""
    failed, values = _PARTS.value(name, lambda: _values(name))
    return Steady(name, tuple(failed), values)


def _values(name: str) -> tuple[tuple[int, ...], dict[str, list[float | None]]]:
    """The numbers of failures, and what each policy reaches with them."""
    job = load_job(str(job_path(name))).spec
    failed = tuple(max(int(share > 0), round(job.workers * share / 100)) for share in SHARES)
    setting = setting_of(name, made_for(name, failed).plans)
    return failed, {policy: [_share(setting, policy, count) for count in failed] for policy in NAMES}


def _share(setting: FleetSetting, name: str, failed: int) -> float | None:
    if name == "recycle":
        return setting.one_f_one_b / best_placement(setting.job, failed)[0]
    if name == "ours":
        period = fastest_period(setting, failed)
        assert period is not None, "every number of failures has a plan"
        return setting.one_f_one_b / period
    down = frozenset(shuffled_workers(setting.job)[:failed])
    try:
        rate = _made(name, setting).begin(down, 0)
    except CannotRunError:
        return None
    return rate / setting.rate(setting.one_f_one_b)


def _made(name: str, setting: FleetSetting) -> Policy:
    if name == OWN_CUT:
        return make_policy("ours", replace(setting, recuts=()))
    if name == "oobleck":
        return oobleck.Oobleck(setting, least=setting.job.stages)
    return make_policy("oobleck" if name == RESHAPED else name, setting)


def section(names: Sequence[str] = JOBS) -> Section:
    """One row for each job and share; draws the picture as well."""
    results = [steady(name) for name in names]
    if tuple(names) == JOBS:
        PICTURE.write_text(_picture(results), encoding="utf-8")
    return Section(
        title=TITLE,
        command=" ".join(("python -m bench.large_models", *(names if tuple(names) != JOBS else ()))),
        words=(
            "![policies by failed workers](large-models.svg) Throughput relative to fault-free 1F1B after "
            "a policy has adapted to the failures; the cost of adapting is not included. Models, batches, "
            "tensor-parallel width and GPUs are those published for Megatron-LM; first with its pipelines "
            "(1, 2, 4 and 8 stages), then on as many stages as ReCycle simulated, up to 64. A worker is "
            "eight GPUs. Failed workers are drawn once. In the first four jobs optimizer state is in shards "
            "of two owners, for all systems: the whole state, with what undoes a staggered step, would leave "
            "little room or none; other systems keep nothing to undo. Ours is cut again, every layer on two "
            "workers at "
            "least; `ours, own cut` and ReCycle move workers to the best placement of the failures. "
            "Oobleck has pipelines no shorter than the job's, like all other "
            "systems; a second column shows the pipelines it would choose freely: where memory allows "
            "shorter ones they have fewer bubbles, and the job should have been partitioned that way in "
            "the first place. Varuna chooses freely too, and pays for its checkpoints at all times. Our "
            "model of Oobleck is optimistic: pipelines with different partitions reduce gradients as "
            "quickly as equal ones. Chameleon is the best of ReCycle, Oobleck at any depth and Bamboo; "
            "ElasWave keeps the number of stages, resizes micro-batches without loss and has moved its "
            "layers. Under its own cut ours is behind them where re-routing has to round: with few stages "
            "or few micro-batches per worker, the micro-batches of one failed worker add one or two to "
            "some of its peers, and all others wait for these. Zero-bubble is our plan for no failures, as "
            "if nothing had failed: what failures cost, and no other system."
        ),
        columns=("job", "GPUs", "stages", "failed", *NAMES),
        rows=tuple(row for result in results for row in _rows(result)),
        origin=_PARTS.origin,
    )


def _rows(result: Steady) -> Iterator[tuple[str, ...]]:
    job = load_job(str(job_path(result.job))).spec
    for number, failed in enumerate(result.failed):
        cells = (result.values[name][number] for name in NAMES)
        yield (
            result.job.removeprefix("megatron-"),
            f"{job.workers * job.tensor:,}",
            str(job.stages),
            f"{failed} of {job.workers}",
            *("-" if cell is None else f"{cell:.3f}" for cell in cells),
        )


def _picture(results: Sequence[Steady]) -> str:
    panels = [Panel(_title(result.job), result.values) for result in results]
    label = "throughput against fault-free 1F1B, by the share of workers that have failed"
    return plot(panels, [f"{share} %" for share in SHARES], label, columns=len(SIZES))


def _title(name: str) -> str:
    job = load_job(str(job_path(name))).spec
    size = name.removeprefix("megatron-").removesuffix("-deep").upper()
    return f"{size}, {job.stages} stage{'s' * (job.stages > 1)}"


if __name__ == "__main__":
    print(section(tuple(sys.argv[1:]) or JOBS).text())
