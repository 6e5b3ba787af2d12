"""A trace from a file, whichever of the formats it has."""

from pathlib import Path

from recycle_compiler.diagnostics import CompileError, Diagnostic
from recycle_compiler.fleet.traces import count_samples, fault_records, json_lines, node_events
from recycle_compiler.fleet.traces.lines import meaningful, whole_line
from recycle_compiler.fleet.traces.trace import FleetTrace, JobGrid
from recycle_compiler.frontend.diagnostics import Mistakes
from recycle_compiler.frontend.read_file import ReadError, read_text

MOST_BYTES = 32 << 20
_FORMATS = (
    "a line is `1800000,remove,node7` (milliseconds), `2021-12-11, 11:15:50, 54` or `260,54` (date and "
    'time or seconds, how many there are), or `{"at": "30m", "failed": ["node7"]}`; or the file is one JSON '
    "list of faults"
)
_WORDS = "a trace is a file, or words such as `every 30m repair 2h` or `poisson mtbf=1000h`"


def read_trace(path: str | Path, grid: JobGrid, seed: int = 0) -> FleetTrace:
    """The trace in a file; CompileError with everything that is wrong with it."""
    name = str(path)
    try:
        source = read_text(Path(path), MOST_BYTES)
    except ReadError as error:
        hint = _WORDS if error.code == "unreadable" else _FORMATS
        raise CompileError([Diagnostic(error.code, f"the trace {error}", None, hint)], "", name) from None
    return parse_trace(source, name, grid, seed)


def parse_trace(source: str, name: str, grid: JobGrid, seed: int = 0) -> FleetTrace:
    """The trace in a text."""
    report = Mistakes(source, name)
    trace = _parse(source, Path(name).name, grid, seed, report)
    report.raise_if_any()
    if trace is None:
        raise AssertionError("a trace was not read and nothing was said about it")
    return trace


def _parse(source: str, name: str, grid: JobGrid, seed: int, report: Mistakes) -> FleetTrace | None:
    number, line = next(meaningful(source), (0, ""))
    if not number:
        report.error("empty", "the trace holds no events", None, _FORMATS)
        return None
    if fault_records.LOOKS_LIKE.match(line):
        return fault_records.read_fault_records(name, source, grid.drawn, seed, report)
    if json_lines.LOOKS_LIKE.match(line):
        return json_lines.read_json_lines(name, source, grid, report)
    if count_samples.LOOKS_LIKE.match(line):
        return count_samples.read_count_samples(name, source, seed, report)
    if node_events.LOOKS_LIKE.match(line):
        return node_events.read_node_events(name, source, report)
    report.error("format", "this line has none of the formats of a trace", whole_line(number, line), _FORMATS)
    return None
