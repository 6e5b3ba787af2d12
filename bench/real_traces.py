"""Two recorded fleets, every policy: `python -m bench.real_traces`; needs the traces beside the project."""

from collections.abc import Iterator

from bench.fleet_settings import SHARED_DATA, samples_of, setting_of
from bench.parts import Parts
from bench.report import Section
from recycle_compiler.fleet.comparison import Batch, Comparison, compare
from recycle_compiler.fleet.machines import Fleet, lay_out
from recycle_compiler.fleet.policy import NAMES
from recycle_compiler.fleet.report import FleetReport, PolicyOutcome
from recycle_compiler.fleet.traces.read import read_trace
from recycle_compiler.fleet.traces.trace import JobGrid

TITLE = "Recorded fleets"
TRACES = {"aws-p3.csv": "gpt3-3.35b-32", "gcp-a100.txt": "gpt3-6.7b-64"}
"""By file: the job that has a place for every machine there ever was."""
_PARTS = Parts("real_traces")


def section() -> Section:
    """One row for each trace and policy."""
    return Section(
        title=TITLE,
        command="python -m bench.real_traces",
        words=(
            "AWS P3 spot nodes over 11 h (10 to 32 of them) with GPT-3 3.35B on 32 workers, and GCP A100 "
            "spot nodes over 27 h (17 to 64) with 6.7B on 64; one machine is one worker. GPU-hours lost "
            "are relative to our plan without failures; `still` is time without progress. Costs of changes "
            "are the defaults of `recyclec simulate`: for Oobleck 2 to 10 s by model size. Fault-free (1F1B) "
            "and zero-bubble (our plan for no failures) are references in which nothing fails."
        ),
        columns=("trace", "policy", "samples/s", "of our fault-free", "GPU-hours lost", "still h"),
        rows=tuple(row for file, job in TRACES.items() for row in _kept_rows(file, job)),
        origin=_PARTS.origin,
    )


def report_of(file: str, job: str) -> FleetReport:
    """Results of all policies for a trace."""
    if not (SHARED_DATA / "traces" / file).exists():
        raise SystemExit(
            f"{file} is not in ../shared/data/traces: recorded traces are not part of the project"
        )
    setting = setting_of(job)
    spec = setting.job
    trace = read_trace(SHARED_DATA / "traces" / file, JobGrid(spec.pipelines, spec.stages))
    fleet = Fleet(trace, lay_out(spec.pipelines, spec.stages, spec.tensor))
    return compare(Comparison(setting, fleet, Batch("samples/s", samples_of(job))), NAMES)


def _kept_rows(file: str, job: str) -> list[tuple[str, ...]]:
    """The rows of one trace, which may have been made before."""
    return [tuple(row) for row in _PARTS.value(file, lambda: list(_rows(file, report_of(file, job))))]


def _rows(file: str, report: FleetReport) -> Iterator[tuple[str, ...]]:
    for outcome in report.outcomes:
        yield (file, outcome.name, *_cells(outcome))


def _cells(outcome: PolicyOutcome) -> tuple[str, str, str, str]:
    if outcome.average is None or outcome.share is None or outcome.gpu_hours_lost is None:
        return outcome.note.partition(":")[0], "", "", ""
    return (
        f"{outcome.average:.2f}",
        f"{outcome.share:.3f}",
        str(round(outcome.gpu_hours_lost)),
        f"{outcome.still:.2f}",
    )


if __name__ == "__main__":
    print(section().text())
