"""Pictures of a year on recorded faults: `python -m bench.year SIMULATED.json ADVICE.json`, into docs/.

The files are those of `recyclec simulate --format json` and `recyclec advise --format json` on
examples/year.job. Recovery times against size are measured where they are ours, and published where they are
not.
"""

import json
import sys
from pathlib import Path
from typing import Any

from recycle_compiler.viz.chart import Bars, LineChart, Point

DOCS = Path(__file__).parents[1] / "docs"
PARTS = (
    ("down", "#444b53"), ("slowed", "#e0a030"), ("redone", "#d55e00"), ("saving", "#b8608f"),
    ("reconfiguring", "#7a5195"), ("spare", "#8a949e"),
)  # fmt: skip
REFERENCES = ("fault-scaled", "fault-free", "zero-bubble")
RECOVERY = {
    "recyclec, measured*": (
        Point(6, 0.44, "6 MIG devices"),
        Point(12, 0.155, "12 workers, one H200"),
    ),
    "torchft, measured*": (Point(6, 11.3),),
    "ElasWave, published*": (Point(96, 1.0),),
    "Oobleck, published*": (Point(32, 10.0),),
    "DeadPool, published*": (Point(512, 40.0),),
    "TrainMover, published*": (Point(1024, 20.0),),
    "FlashRecovery, published*": (Point(4800, 150.0),),
    "FT-HSDP, published*": (Point(100_000, 180.0),),
}
"""Workers or devices, and seconds without steps after a failure: docs/recovery.md, docs/gpu.md, and
abstracts."""


def year(simulated: dict[str, Any]) -> str:
    """GPU-hours of each policy that were not useful, by where they went."""
    rows: list[tuple[str, list[float], str]] = []
    for name, policy in simulated["policies"].items():
        if policy["average"] is not None and name not in REFERENCES:
            hours = policy["gpu_hours"]
            lost = f"{100 - 100 * hours['useful'] / sum(hours.values()):.1f} %"
            cost = f"{policy['average']:.0f} {policy['unit']}, {policy['cost_per_million']:.0f} a million"
            rows.append((name, [hours[part] for part, _ in PARTS], f"{lost}; {cost}"))
    title = (
        f"{simulated['hours'] / 24:.0f} days of recorded faults: GPU-hours of {simulated['gpus']} GPUs "
        "without use, by cause"
    )
    return Bars(title, PARTS, rows).svg()


def intervals(advice: dict[str, Any]) -> str:
    """Effective training time against the time between failures."""
    found = advice["effective_training_time_by_interval"]
    series = {
        policy: [Point(seconds, share) for _, seconds, share in points] for policy, points in found.items()
    }
    marks = {seconds: name for points in found.values() for name, seconds, _ in points}
    series["MoEvement, published*"] = [Point(600.0, 0.94)]
    title = "Effective training time against time between failures"
    return LineChart(
        title, "mean time between failures", "share", series, logarithmic=True, marks=marks
    ).svg()


def recovery() -> str:
    """Time without steps after a failure, against the size of the job."""
    title = "Seconds without steps after a failure, against size"
    return LineChart(
        title, "workers or devices", "seconds", RECOVERY, logarithmic=True, y_from_zero=False
    ).svg()


def main() -> None:
    simulated, advice = (json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:3])
    pictures = {
        "year.svg": year(simulated),
        "effective-time.svg": intervals(advice),
        "recovery-by-size.svg": recovery(),
    }
    for name, picture in pictures.items():
        (DOCS / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
