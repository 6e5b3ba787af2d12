"""A report as JSON: one line per policy."""

import json
from typing import Any

from recycle_compiler.fleet.report import Outcome, Report


def report_document(report: Report) -> str:
    """Averages, timelines and logs of all policies; null where a policy cannot run."""
    head: dict[str, Any] = {
        "job": report.job,
        "trace": report.trace,
        "about": report.about,
        "unit": report.unit,
        "hours": _short(report.hours),
        "workers": report.workers,
        "gpus": report.gpus,
        "reference": _short(report.reference),
        "gpu_hours_down": _short(report.gpu_hours_down),
    }
    policies = ",\n  ".join(
        f"{json.dumps(outcome.name)}: {json.dumps(_policy(outcome, report.unit))}"
        for outcome in report.outcomes
    )
    return f'{json.dumps(head)[:-1]}, "policies": {{\n  {policies}\n}}}}\n'


def _policy(outcome: Outcome, unit: str) -> dict[str, Any]:
    return {
        "average": _short(outcome.average),
        "unit": unit,
        "share": _short(outcome.share),
        "gpu_hours_lost": _short(outcome.gpu_hours_lost),
        "hours_still": _short(outcome.still),
        "iterations": _short(outcome.iterations),
        "done_twice": _short(outcome.redone),
        "note": outcome.note,
        "timeline": [[round(at, 9), live, _short(throughput)] for at, live, throughput in outcome.timeline],
        "log": [
            {
                "hours": round(entry.hours, 9),
                "live": entry.live,
                "pause": _short(entry.pause),
                "redone": _short(entry.redone),
                "throughput": _short(entry.throughput),
                "why": entry.why,
            }
            for entry in outcome.log
        ],
    }


def _short(value: float | None) -> float | None:
    """Nine digits that count are enough, and the same on any machine."""
    return None if value is None else float(f"{value:.9g}")
