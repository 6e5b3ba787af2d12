"""Gain of a sharded optimizer state at every number of failures: `python -m bench.sharded_state [names]`.

Each job is planned with the whole state on every worker, staggered and not, and with shards of two owners,
under its own cut, with failures spread evenly over the stages.
"""

import sys
from typing import NamedTuple

from bench.parts import Parts
from bench.report import Section, job_path, percent
from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend import parse_job_text
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.state import held_by_stage
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_compiler.planner.compile import NoPlanError, plan_failed

TITLE = "Sharded optimizer state"
SHARDED = "optimizer { state = sharded  owners = 2 }"
PLAIN = "techniques { adaptive  decouple }"
SHARES = (0, 1, 5, 10, 15, 20, 25)
"""Percent of the workers that have failed; at least one of them from the second on."""
WHOLE, UNSTAGGERED, SHARDS = "whole", "whole, no stagger", "2 owners"
GPT3 = """job {name} {{
  parallel  {{ pipeline = {stages}  data = {pipelines}  tensor = 8 }}
  batch     {{ microbatches = {microbatches}  micro = 1 }}
  model gpt {{ layers = 96  hidden = 12288  heads = 96  sequence = 2048  vocabulary = 50304 }}
  device a100
  memory    {{ capacity = {capacity} GiB }}
}}
"""
WORKERS, UNITS = 256, 1024
"""Of 8 GPUs each, and micro-batches of an iteration, in the jobs of 175B."""
JOBS = (
    *(f"175b-{stages}x{WORKERS // stages}-{capacity}" for stages, capacity in ((16, 80), (16, 48), (8, 80))),
    *("megatron-145.6b", "megatron-76.1b", "megatron-39.1b", "megatron-18.4b"),
)
_PARTS = Parts("sharded_state")


class Row(NamedTuple):
    """One job with one kind of state."""

    left: float | None
    """GiB for activations on a worker of the fullest stage while none has failed; None: it does not fit."""
    size: float
    """Bytes for each parameter there."""
    in_flight: float
    """Activations there that this is room for, in those of 1F1B's first stage: one for every stage."""
    periods: list[int | None]
    """Nanoseconds of an iteration at every share; None: no room."""


def job_text(name: str) -> str:
    """The job file of this name."""
    if not name.startswith("175b-"):
        lines = job_path(name).read_text(encoding="utf-8").splitlines(keepends=True)
        return "".join(line for line in lines if not line.lstrip().startswith("optimizer"))
    shape, capacity = name.removeprefix("175b-").split("-")
    stages, pipelines = map(int, shape.split("x"))
    return GPT3.format(
        name=f"gpt3-{name}",
        stages=stages,
        pipelines=pipelines,
        microbatches=UNITS // pipelines,
        capacity=capacity,
    )


def rows_of(name: str) -> dict[str, Row]:
    """With the whole state, staggered and not, and with shards."""
    source = job_text(name)
    texts = {
        WHOLE: source,
        UNSTAGGERED: source.replace("  memory ", f"  {PLAIN}\n  memory "),
        SHARDS: source.replace("  memory ", f"  {SHARDED}\n  memory "),
    }
    return {
        kind: Row(*_PARTS.value(f"{name}-{kind}", lambda text=text: _row(text)))
        for kind, text in texts.items()
    }


def _row(text: str) -> Row:
    try:
        job = parse_job_text(text, "bench.job")
    except CompileError:
        return Row(None, 0.0, 0.0, [None] * len(SHARES))
    stage, fullest = min(enumerate(held_by_stage(job)), key=lambda each: each[1].activations or 0)
    room = fullest.activations or 0
    periods = [_period(job, share) for share in SHARES]
    in_flight = room / (job.activation[stage] * job.stages)
    return Row(room / 2**30, fullest.total / fullest.parameters, in_flight, periods)


def _baseline(name: str) -> int:
    """Fault-free 1F1B with the whole state and as much memory as it likes; of 175B, in 16 stages."""
    text = job_text(JOBS[0] if name.startswith("175b-") else name)
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("memory"))
    return one_f_one_b_period(parse_job_text("\n".join(lines) + "\n", "bench.job"))


def _period(job: JobSpec, share: int) -> int | None:
    failures = max(int(share > 0), job.workers * share // 100)
    each, more = divmod(failures, job.stages)
    counts = tuple(each + (stage < more) for stage in range(job.stages))
    try:
        return plan_failed(job, normal_form(counts, job.pipelines)).claims.period
    except NoPlanError:
        return None


_NO_ROOM = ("does not fit", "", "")


def _gain(rows: dict[str, Row]) -> str:
    """Gain of shards over the faster plan with the whole state, over all numbers of failures."""
    whole = zip(rows[WHOLE].periods, rows[UNSTAGGERED].periods, strict=True)
    faster = (min((period for period in each if period is not None), default=None) for each in whole)
    gains = [
        before / after - 1
        for before, after in zip(faster, rows[SHARDS].periods, strict=True)
        if before is not None and after is not None
    ]
    return f"{percent(min(gains))} to {percent(max(gains))}" if gains else "trains"


def section(names: tuple[str, ...] = JOBS) -> Section:
    """The table."""
    rows: list[tuple[str, ...]] = []
    gains: list[str] = []
    for name in names:
        baseline, found = _baseline(name), rows_of(name)
        for kind, row in found.items():
            held = (f"{row.size:.1f}", f"{row.left:.1f}", f"{row.in_flight:.2f}") if row.left else _NO_ROOM
            speed = ("" if period is None else f"{baseline / period:.3f}" for period in row.periods)
            rows.append((f"{name}, {kind}", *held, *speed))
        gains.append(f"{name} {_gain(found)}")
    failed = (f"{share} % failed" if share else "no failure" for share in SHARES)
    columns = ("job, state", "bytes a parameter", "activations, GiB", "of 1F1B's", *failed)
    words = (
        "Quick plans under the job's own cut, failures spread evenly over stages. Speeds are iterations per "
        "hour against fault-free 1F1B with the whole state and as much memory as it likes (of all rows of "
        "175B, that of 16 stages). Bytes a parameter and what is left for activations are those of the "
        "fullest stage while no worker has failed; `of 1F1B's` is how many times one activation for every "
        "stage that is. 175b-16x16-80 is GPT-3 175B on 2,048 GPUs: 16 stages, 16 pipelines, 8 GPUs a worker, "
        "80 GiB each. With the whole state, undo and kept gradients of a staggered step take 16 bytes a "
        "parameter, which jobs with little room are better off without; two owners leave room for both. What "
        f"two owners gain over the faster of the two others, at least and at most: {'; '.join(gains)}."
    )
    return Section(TITLE, "python -m bench.sharded_state", words, columns, tuple(rows), _PARTS.origin)


if __name__ == "__main__":
    print(section(tuple(sys.argv[1:]) or JOBS).markdown())
