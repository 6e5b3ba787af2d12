"""A step of ours and of torch.distributed.pipelining, side by side: `python -m bench.beside_torch [models]`.

The same model, micro-batches and optimizer, two stages in two processes, one thread each, over gloo. Every
contestant has a pair of processes; the pairs take turns of a few steps, so what else the machine does hits
all alike. They must agree on the losses.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.measure import RECYCLEC, run
from bench.models import MICROBATCHES, MODELS, Model
from bench.report import Section, job_path
from bench.turns import PROCESSES, Pair, Setting, Turn, TurnError, share, take_turns
from recycle_compiler.backends.bundle import read_streams, write_bundle
from recycle_compiler.backends.torch_csv import torch_csv
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.bundle import Bundle

TITLE = "Steps beside torch.distributed.pipelining"
RECYCLE_RUN = RECYCLEC.with_name("recycle-run")
WARM_UP = 14
"""Steps. The first is clipped, and ours waits for the norm during the ten after that."""
LOSSES_AGREE = 2e-3
"""Of the loss; float32 in another order of sums, and training makes small differences grow."""


class Contestant(NamedTuple):
    """A way to train the model."""

    name: str
    work: str
    """A function of bench/contestants.py."""
    file: str
    """What is run, of the files of `compile_plans`."""
    beside: tuple[str, ...] = ()
    """Those of ours that it is compared with."""


ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_V = "1F1B", "zero-bubble", "zero-bubble V"
V = (0, 1, 1, 0)
"""Which worker holds each chunk: a micro-batch goes down and up again."""
CONTESTANTS = (
    Contestant(ONE_F_ONE_B, "ours", "1f1b.plan"),
    Contestant(ZERO_BUBBLE, "ours", "zero-bubble.plan"),
    Contestant(ZERO_BUBBLE_V, "ours", "zero-bubble-v.plan"),
    Contestant("Schedule1F1B", "torch_1f1b", "", (ONE_F_ONE_B,)),
    Contestant("ScheduleInterleavedZeroBubble", "torch_interleaved_zero_bubble", "", (ZERO_BUBBLE,)),
    Contestant("ScheduleZBVZeroBubble", "torch_zbv", "", (ZERO_BUBBLE, ZERO_BUBBLE_V)),
    Contestant("our zero-bubble plan as CSV", "torch_csv", "zero-bubble.csv", (ZERO_BUBBLE,)),
)


def section(models: Sequence[Model] = MODELS) -> Section:
    """Rows for each model and each of torch's schedules."""
    return Section(
        title=TITLE,
        command="python -m bench.beside_torch",
        words=(
            "Milliseconds of a training step in float32 on CPU, two stages in two processes with one "
            "thread each, over gloo (ours: up to 64 KiB through a socket of the host, as all of "
            "`nothing` and 64 are). 64 and 256 are widths of examples/programs/gpt.py (8 blocks, 8 "
            "micro-batches of 4 x 64 letters, AdamW, clipping by the norm of the whole model); `nothing` "
            "has two numbers on each stage, so that only the work around it is left. Ours runs 1F1B with a "
            "barrier (bench/jobs/beside-torch.job, techniques none) and a zero-bubble plan in the same "
            "memory (decouple and stagger), for the GPT made with times that `recycle-run profile` has "
            "measured. ScheduleZBVZeroBubble has two stages on each process, and so has `zero-bubble V`, a "
            "plan for chunks that lie on the workers as 0, 1, 1, 0. All contestants take turns of a few "
            "steps; times are medians over turns, a ratio is the median of the ratios within a "
            "round, CPU is of both processes. Losses agree."
        ),
        columns=(
            "model", "torch's schedule", "torch's ms", "torch's CPU ms", "our plan", "our ms", "our CPU ms",
            "ours / torch's",
        ),
        rows=tuple(row for model in models for row in table(model.name, measure(model))),
    )  # fmt: skip


def table(model: str, turns: dict[str, list[Turn]]) -> list[tuple[str, ...]]:
    """A row for each of torch's contestants with each of ours beside it."""
    rows: list[tuple[str, ...]] = []
    for theirs, ours in ((one.name, name) for one in CONTESTANTS for name in one.beside):
        ratio = share([turn.seconds for turn in turns[ours]], [turn.seconds for turn in turns[theirs]])
        rows.append((model, theirs, *_medians(turns[theirs]), ours, *_medians(turns[ours]), f"{ratio:.3f}"))
    return rows


def _medians(turns: Sequence[Turn]) -> tuple[str, str]:
    return (
        f"{1000 * statistics.median(turn.seconds for turn in turns):.1f}",
        f"{1000 * statistics.median(turn.cpu for turn in turns):.1f}",
    )


def measure(model: Model) -> dict[str, list[Turn]]:
    """The turns of every contestant, after some that do not count."""
    names = [one.name for one in CONTESTANTS]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(model.program, encoding="utf-8")
        compile_plans(Path(folder), program, model.profiled)
        with started([(one.work, Path(folder, one.file)) for one in CONTESTANTS], program) as pairs:
            first = [pair.turn(WARM_UP) for pair in pairs]
            check_losses(dict(zip(names, (turn.losses for turn in first), strict=True)))
            turns = take_turns(pairs, model.rounds, model.steps)
    return dict(zip(names, turns, strict=True))


@contextmanager
def started(works: Sequence[tuple[str, Path]], program: Path) -> Generator[list[Pair]]:
    """A pair for each function of bench/contestants.py, with the file it runs."""
    # Everything else here is of use without torch.
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    with ExitStack() as stack:
        # The stores live as long as the pairs do.
        stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in works]
        pairs: list[Pair] = []
        for (work, file), store in zip(works, stores, strict=True):
            pairs.append(Pair(work, Setting(store.port, str(program), str(file))))
            stack.callback(pairs[-1].close)
        yield pairs


def compile_plans(folder: Path, program: Path, profiled: bool) -> None:
    """Ours, and the zero-bubble one as torch reads it."""
    job, plan = job_path("beside-torch"), folder / "zero-bubble.plan"
    in_four = folder / "in-four.job"
    run([RECYCLEC, "compile", job, "--techniques", "none", "-o", folder / "1f1b.plan"])
    if profiled:
        job = folder / "profiled.job"
        job.write_text(_profile(program, folder / "profile.json", PROCESSES), encoding="utf-8")
        in_four.write_text(_profile(program, folder / "in-four.json", len(V)), encoding="utf-8")
    else:
        in_four.write_text(cut_in_four(job.read_text(encoding="utf-8")), encoding="utf-8")
    run([RECYCLEC, "compile", job, "--techniques", "decouple,stagger", "-o", plan])
    schedule = torch_csv(read_streams(Bundle.read(str(plan)), 0))
    (folder / "zero-bubble.csv").write_text(schedule, encoding="utf-8")
    with_chunks = plan_failed(in_v(load_job(str(in_four)).spec), failure_set([]))
    write_bundle(folder / "zero-bubble-v.plan", source="", plans=[with_chunks])


def _profile(program: Path, profile: Path, stages: int) -> str:
    """Measures the stages of a program; the job with their times."""
    run([RECYCLE_RUN, "profile", "--program", program, "--stages", str(stages), "-o", profile])
    return profiled_job(profile.name, profile.read_text(encoding="utf-8"))


def cut_in_four(job: str) -> str:
    """The same job with twice as many stages of the same times."""
    assert "pipeline = 2 " in job, "the job says in another way that it has two stages"
    return job.replace("pipeline = 2 ", "pipeline = 4 ")


def in_v(job: JobSpec) -> JobSpec:
    """A job of four stages as one of two, whose workers hold two chunks each in the memory of 1F1B."""
    of_stage = [
        sum(amount for amount, stage in zip(job.activation, V, strict=True) if stage == each)
        for each in range(PROCESSES)
    ]
    return replace(
        job,
        stages=PROCESSES,
        chunk_stages=V,
        # What a worker hands to itself takes no time.
        transfer=(job.transfer[0], 0, job.transfer[2]),
        capacity=tuple(PROCESSES * amount for amount in of_stage),
        techniques=Techniques(adaptive=False, decouple=True, stagger=True),
    )


def profiled_job(name: str, profile: str) -> str:
    """A job with the times of a profile, in the memory that 1F1B takes."""
    stages: list[dict[str, int]] = json.loads(profile)["stages"]
    capacity = ", ".join(f"{len(stages) * stage['activation_bytes']} B" for stage in stages)
    return f"""job profiled {{
  parallel {{ pipeline = {len(stages)}  data = 1  tensor = 1 }}
  batch    {{ microbatches = {MICROBATCHES} }}
  profile from "{name}"
  memory   {{ capacity = [{capacity}] }}
  tolerate {{ failures = 0 }}
}}
"""


def check_losses(losses: dict[str, list[float]]) -> None:
    """TurnError unless all have the same losses, step for step."""
    (first, expected), *others = losses.items()
    for name, found in others:
        if len(found) != len(expected):
            raise TurnError(f"{name} has {len(found)} losses, {first} has {len(expected)}")
        for step, (one, other) in enumerate(zip(found, expected, strict=True)):
            if not abs(one - other) <= LOSSES_AGREE * abs(other):
                raise TurnError(f"step {step}: {name} has a loss of {one}, {first} of {other}")


def main() -> None:
    names = sys.argv[1:]
    if unknown := set(names) - {model.name for model in MODELS}:
        sys.exit(f"no model {min(unknown)}; there are {', '.join(model.name for model in MODELS)}")
    print(section([model for model in MODELS if not names or model.name in names]).text())


if __name__ == "__main__":
    main()
