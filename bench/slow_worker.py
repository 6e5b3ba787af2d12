"""A worker that becomes slow, and what its job makes of it: `python -m bench.slow_worker`.

Two stages of three workers train with ops that sleep; from step 10 on, worker 1:0 takes three times as long.
"""

import subprocess
import tempfile
from pathlib import Path
from statistics import median

from bench.measure import RECYCLEC
from bench.report import ROOT, Section
from recycle_runtime.launcher.local import RunOptions, run_local
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.protocol.messages.observers import Generation, JobEvent, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow

TITLE = "A slow worker"
PROGRAM = str(ROOT / "bench" / "programs" / "sleepy.py")
STEPS, SLOW_FROM, EVERY = 70, 10, 10
JOB = """job slow {
  parallel { pipeline = 2  data = 3 }
  batch    { microbatches = 6 }
  profile  { forward = 20  backward_input = 20  backward_weight = 1  optimizer = 1 }
  tolerate { failures = 1 }
}
"""


def section() -> Section:
    """Steps before, while it is slow, and with the plan that was chosen then."""
    rows: list[tuple[int, float]] = []
    news: list[str] = []
    taken: list[int] = []

    def take(message: ToObserver) -> None:
        if isinstance(message, StepRow):
            rows.append((message.step, message.seconds))
        elif isinstance(message, Generation) and rows:
            taken.append(message.step)
        elif isinstance(message, JobEvent):
            news.append(message.text)

    with tempfile.TemporaryDirectory() as folder:
        job, plan = Path(folder) / "slow.job", Path(folder) / "slow.plan"
        job.write_text(JOB, encoding="utf-8")
        subprocess.run([RECYCLEC, "--quiet", "compile", job, "-o", plan], check=True)
        adaptation = AdaptationOptions(replan_every=EVERY)
        faults = (f"slow=1:0@{SLOW_FROM}",)
        run_local(RunOptions(str(plan), PROGRAM, STEPS, faults=faults, adaptation=adaptation), take)
    first, last = min(taken, default=STEPS), max(taken, default=STEPS)
    spans = {
        "all are equally fast": (3, SLOW_FROM),
        "1:0 is slow": (SLOW_FROM + 1, first),
        "with the last plan": (last + 2, STEPS),
    }
    said = next((line for line in news if ": taken" in line), "no plan was taken")
    return Section(
        title=TITLE,
        command="python -m bench.slow_worker",
        words=(
            "Two stages of three workers, ops that sleep; from a certain step on the ops of 1:0 take three "
            f"times as long. Medians. The job says: {said}."
        ),
        columns=("", "steps", "seconds a step"),
        rows=tuple(_row(name, [s for step, s in rows if a <= step < b]) for name, (a, b) in spans.items()),
    )


def _row(name: str, seconds: list[float]) -> tuple[str, ...]:
    return (name, str(len(seconds)), f"{median(seconds):.3f}" if seconds else "-")


def main() -> None:
    print(section().text())


if __name__ == "__main__":
    main()
