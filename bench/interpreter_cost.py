"""Cost of the loop around the handlers: `python -m bench.interpreter_cost`.

Streams run with handlers that do nothing, and with the same handlers traced. With real handlers and a model
of nothing, what is left is all that is not training: buffers, messages, autograd, the optimizer's step.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.beside_torch import compile_plans, started
from bench.models import NOTHING
from bench.report import Section, job_path
from bench.turns import take_turns
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.execution.interpreter import Interpreter
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction, Opcode

TITLE = "The interpreter"
REPEATS = 300
_NONE = "-"


class Case(NamedTuple):
    """A worker whose stream is run."""

    job: str
    failed: Worker
    worker: Worker


CASES = (Case("figure3", (1, 2), (0, 1)), Case("scale-2048", (0, 3), (8, 8)))


def section() -> Section:
    """One row for each stream, and one for a step of nothing."""
    return Section(
        title=TITLE,
        command="python -m bench.interpreter_cost",
        words=(
            "Microseconds per instruction, medians. Empty handlers return at once; `traced` is the same with "
            "times taken around compute instructions. `real handlers` is the CPU time of both processes "
            "that run bench/jobs/beside-torch.job with two numbers on each stage: whole steps with clipping "
            "and AdamW, gloo's threads included, divided by all instructions."
        ),
        columns=("stream", "instructions", "empty us", "traced us", "real handlers us"),
        rows=(*(_row(case) for case in CASES), *_rows_of_nothing()),
    )


def stream_of(case: Case) -> tuple[Instruction, ...]:
    """The stream of the case's worker, planned now."""
    job = load_job(str(job_path(case.job))).spec
    program = plan_failed(job, failure_set([case.failed]))
    return next(stream for worker, stream in program.items() if tuple(worker) == case.worker)


def per_instruction(
    interpreter: Interpreter, before_step: Callable[[int], object] = lambda _: None, repeats: int = REPEATS
) -> float:
    """Microseconds, the median over whole streams."""
    seconds: list[float] = []
    for step in range(repeats):
        before_step(step)
        began = time.perf_counter()
        interpreter.run(step)
        seconds.append(time.perf_counter() - began)
    return 1e6 * statistics.median(seconds) / len(interpreter.stream)


def _row(case: Case) -> tuple[str, ...]:
    # The rest is of use without torch.
    import torch

    from recycle_runtime.execution.tracing import Tracer

    stream = stream_of(case)
    empty = dict.fromkeys(Opcode, _nothing)
    tracer = Tracer(torch.device("cpu"))
    bare = per_instruction(Interpreter(stream, empty, case.worker, 0, 1))
    traced = per_instruction(Interpreter(stream, tracer.around(empty), case.worker, 0, 1), tracer.begin)
    name = f"{case.job}, {_name(case.failed)} failed, worker {_name(case.worker)}"
    return (name, f"{len(stream):,}", f"{bare:.2f}", f"{traced:.2f}", _NONE)


def _rows_of_nothing(rounds: int = 8, steps: int = 20) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(NOTHING.program, encoding="utf-8")
        compile_plans(Path(folder), program, profiled=False)
        for name in ("1f1b", "zero-bubble"):
            plan = Path(folder, f"{name}.plan")
            with started([("ours", plan)], program) as pairs:
                pairs[0].turn(steps)
                turns = take_turns(pairs, rounds, steps)[0]
            count = instructions(plan)
            cpu = 1e6 * statistics.median(turn.cpu for turn in turns) / count
            rows.append((f"beside-torch, {name}", f"{count:,}", _NONE, _NONE, f"{cpu:.0f}"))
    return rows


def instructions(plan: Path) -> int:
    """Of all workers of the first plan."""
    bundle = Bundle.read(str(plan))
    return sum(len(bundle.stream(0, worker)) for worker in bundle.workers(0))


def _nothing(_: Instruction) -> None:
    return


def _name(worker: Sequence[int]) -> str:
    return ":".join(map(str, worker))


if __name__ == "__main__":
    print(section().text())
