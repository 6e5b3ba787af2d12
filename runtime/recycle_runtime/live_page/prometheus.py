"""The numbers of a run in the text format that Prometheus reads. Standard library only."""

from collections.abc import Mapping

_HELP = {
    "step": "Number of the last step that counted",
    "loss": "Mean loss of that step",
    "step_seconds": "Seconds that it took",
    "planned_step_seconds": "Seconds that the plan promises for a step",
    "learning_rate": "Learning rate of that step",
    "gradient_norm": "Norm of all gradients before clipping, of the last step for which it is known",
    "workers_live": "Workers in the group",
    "workers": "Workers that the job was made for",
    "generation": "Number of the group, one more after each change",
    "steps_total": "Steps that counted since the page was opened",
    "steps_skipped_total": "Of them, left out because a gradient was not finite",
    "recoveries_total": "Changes of the group after the start",
    "recovery_seconds_total": "Seconds that they took",
    "samples_total": "Samples trained on",
    "tokens_total": "Tokens trained on",
}


def prometheus_text(totals: Mapping[str, float | None]) -> str:
    """One gauge or counter for each number that is known."""
    lines: list[str] = []
    for name, value in totals.items():
        if value is None:
            continue
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [
            f"# HELP recycle_{name} {_HELP[name]}",
            f"# TYPE recycle_{name} {kind}",
            f"recycle_{name} {value!r}",
        ]
    return "".join(f"{line}\n" for line in lines)
