"""`recyclec diff`: what changed between two bundles or two schedule texts; exit 1 if anything did.

Of jobs in layers, plans under other cuts are compared where both have the same layout, and where another cut
became the fastest, both are named. If the second file is the trace of a run, the plan is compared with that
instead: a report, and exit 0.
"""

import json
import os
import re
import stat
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recycle_compiler.analysis.cut_diff import (
    CutChange,
    change_line,
    change_object,
    cut_change,
    cut_name,
    fastest_cut,
)
from recycle_compiler.analysis.plan_diff import (
    PlanDiff,
    changed_streams,
    compare_plans,
    difference_lines,
    difference_object,
    plan_title,
    schedule_title,
)
from recycle_compiler.analysis.trace_diff.document import comparison_document
from recycle_compiler.analysis.trace_diff.text import comparison_text
from recycle_compiler.analysis.trace_diff.trace_file import begins_like_a_trace
from recycle_compiler.cli.bundles import read_bundle, read_bundle_job, read_plan, schedule_of
from recycle_compiler.cli.commands.diff_with_run import compare_bundle, compare_text
from recycle_compiler.cli.options.files import add_output_argument
from recycle_compiler.cli.pages import pairs_page, run_page
from recycle_compiler.cli.values import count, one_of
from recycle_compiler.diagnostics import CompileError, Diagnostic, Span
from recycle_compiler.frontend.read_file import ReadError, read_text
from recycle_compiler.ir.job import JobSpec, TextError
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.text import parse_schedule
from recycle_runtime.cli.output import DONE, Output, UsageError, UserError, check_target, to_stdout
from recycle_runtime.files import naming
from recycle_runtime.plan.bundle import MAGIC, Bundle

DIFFERENT = 1
FORMATS = ("text", "json", "html")
_SCHEDULE_HEAD = b"schedule"
_MOST_BYTES = 1 << 28
_ENOUGH = 16
"""Bytes that tell what a file is."""
_WORD = re.compile(r"\S+")
_HINT = "`--format schedule` of `recyclec show` and `recyclec plan` writes such a text"


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = (
        "Exit 1 if anything changed. A file that cannot be read is exit 1 too: stderr then says why, and "
        "stdout stays empty. The comparison with a trace (as `recycle-run local --trace` writes it) is a "
        "report: exit 0, however much the run differs."
    )
    parser.add_argument("before", metavar="A", help="a bundle or the text of a schedule")
    parser.add_argument(
        "after",
        metavar="B",
        help="the same, or the trace of a run of A: ours, or torch's profiler's, a file or a folder of one "
        "for each rank",
    )
    parser.add_argument(
        "--format",
        type=one_of(FORMATS),
        metavar="|".join(FORMATS),
        help="text (default), JSON, or a page that shows both, one below the other",
    )
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    add_output_argument(parser)
    parser.add_argument(
        "--step",
        type=count,
        metavar="N",
        help="the step of the trace to analyse (default: the median one; the first is left out as warm-up)",
    )


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One of the two inputs: its plans, read when they are needed, and the failures each is for."""

    counts: tuple[int, ...]
    read: Callable[[int], tuple[Schedule, Streams | None]]
    path: str
    bundle: Bundle | None = None
    """None for a text."""

    @property
    def cuts(self) -> dict[tuple[str, int], int]:
        """The layout of each other cut's first plan, and the number of a plan under it: which cut that is."""
        if self.bundle is None:
            return {}
        return {
            (cut_name(self.bundle, recut), plan): number
            for number, recut in enumerate(self.bundle.recuts)
            for plan in range(len(recut.plans))
        }

    def read_under(self, cut: int, plan: int) -> tuple[Schedule, Streams]:
        """A plan under another cut."""
        assert self.bundle is not None, "a text has no other cuts"
        streams = read_plan(self.bundle.recuts[cut], self.path, plan)
        return schedule_of(streams, self.path), streams


def run(arguments: Namespace, output: Output) -> int:
    if arguments.json and arguments.format not in (None, "json"):
        raise UsageError(f"--json is --format json: leave out one of it and --format {arguments.format}")
    arguments.format = "json" if arguments.json else arguments.format or "text"
    for path in (arguments.before, arguments.after):
        check_target(arguments.out, path)
    if begins_like_a_trace(_beginning(arguments.before)):
        raise UsageError(f"{arguments.before}: looks like a trace; the plan comes first, then the trace")
    if os.path.isdir(arguments.after) or begins_like_a_trace(_beginning(arguments.after)):
        return _with_run(arguments, output)
    if arguments.step is not None:
        raise UsageError(f"--step needs a trace: {arguments.after} is none")
    before, after = _side(arguments.before), _side(arguments.after)
    pairs = _pairs(before.counts, after.counts)
    findings = _Findings(output, arguments.out, arguments.format)
    _compare_own(before, after, pairs, findings)
    if before.cuts or after.cuts:
        _compare_cuts(before, after, findings)
        _compare_fastest(before, after, pairs, findings)
    if arguments.format == "html":
        schedules = [(before.read(old)[0], after.read(new)[0]) for old, new in pairs]
        findings.texts.append(pairs_page((before.path, after.path), schedules))
    return findings.end()


@dataclass(slots=True)
class _Findings:
    """Differences: printed as found, or collected for a file, for JSON or for a page."""

    output: Output
    out: str | None
    format: str
    texts: list[str] = field(default_factory=list[str])
    """Text that goes into the output file."""
    same: bool = True
    document: dict[str, Any] = field(default_factory=dict[str, Any])

    def tell(self, text: str) -> None:
        """Print text to stdout, or collect it for the output file."""
        if self.format != "text":
            return
        if to_stdout(self.out):
            self.output.data(text)
        else:
            self.texts.append(text)

    def only(self, key: str, items: Sequence[Any], titles: Sequence[str], path: str) -> None:
        """Report items that only one of the files has."""
        self.same &= not items
        self.document[key] = list(items)
        self.tell("".join(f"{title}: only in {path}\n" for title in titles))

    def plan(self, key: str, diff: PlanDiff, layout: str | None = None) -> None:
        """Two plans."""
        self.same &= diff.is_empty
        if self.format != "json":
            self.tell(_words(diff))
            return
        found = difference_object(diff)
        if layout is not None:
            # Cells of its grid that have no worker are no failures.
            found = {"layout": layout, **{name: found[name] for name in found if name != "failures"}}
        self.document.setdefault(key, []).append(found)

    def end(self) -> int:
        if self.format == "json":
            self.texts = [json.dumps({"same": self.same, **self.document}, indent=1) + "\n"]
        if self.texts or not to_stdout(self.out):
            self.output.deliver("".join(self.texts), self.out)
        return DONE if self.same else DIFFERENT


def _compare_own(
    before: DiffSide, after: DiffSide, pairs: list[tuple[int, int]], findings: _Findings
) -> None:
    """Plans under the cut that the job starts with."""
    only_before = [count for count in before.counts if count not in dict(pairs)]
    only_after = [count for count in after.counts if count not in dict(pairs).values()]
    findings.only("only_before", only_before, list(map(plan_title, only_before)), before.path)
    findings.only("only_after", only_after, list(map(plan_title, only_after)), after.path)
    findings.document["plans"] = []
    # One plan at a time: all plans of a large bundle would not fit into memory.
    for old, new in pairs:
        findings.plan("plans", _compare(before.read(old), after.read(new)))


def _compare_cuts(before: DiffSide, after: DiffSide, findings: _Findings) -> None:
    """Plans under other cuts, where both have the same layout."""
    old, new = before.cuts, after.cuts
    for key, one, other, path in (
        ("only_cuts_before", old, new, before.path),
        ("only_cuts_after", new, old, after.path),
    ):
        layouts = sorted({layout for layout, _ in one.keys() - other.keys()})
        findings.only(key, layouts, [f"plans under {layout}" for layout in layouts], path)
    findings.document["plans_under_other_cuts"] = []
    for layout, plan in (key for key in old if key in new):
        first = before.read_under(old[layout, plan], plan)
        second = after.read_under(new[layout, plan], plan)
        findings.plan("plans_under_other_cuts", _compare(first, second), layout)


def _compare_fastest(
    before: DiffSide, after: DiffSide, pairs: list[tuple[int, int]], findings: _Findings
) -> None:
    """Report where another cut became the fastest."""
    changes = list(_cut_changes(before, after, pairs))
    findings.document["fastest_cuts"] = [change_object(change, *jobs) for change, jobs in changes]
    findings.tell("".join(f"{change_line(change, *jobs)}\n" for change, jobs in changes))


def _cut_changes(
    before: DiffSide, after: DiffSide, pairs: list[tuple[int, int]]
) -> Iterator[tuple[CutChange, tuple[JobSpec, JobSpec]]]:
    """Numbers of failures for which another layout is the fastest, with the jobs of both sides."""
    if before.bundle is None or after.bundle is None:
        return
    jobs = read_bundle_job(before.bundle, before.path), read_bundle_job(after.bundle, after.path)
    if any(job.layer_costs is None for job in jobs):
        return
    for old, new in pairs:
        first = fastest_cut(before.bundle, jobs[0], before.counts.index(old))
        second = fastest_cut(after.bundle, jobs[1], after.counts.index(new))
        if first is not None and second is not None and first.layout != second.layout:
            yield cut_change(new, first, second), jobs


def _with_run(arguments: Namespace, output: Output) -> int:
    plan, trace, step = arguments.before, arguments.after, arguments.step
    if _is_text(_beginning(plan)):
        comparison = compare_text(_read_text(plan), plan, trace, step)
    else:
        comparison = compare_bundle(plan, trace, step)
    texts: dict[str, Callable[[], str]] = {
        "text": lambda: comparison_text(comparison, trace),
        "json": lambda: comparison_document(comparison),
        "html": lambda: run_page(comparison, (plan, trace)),
    }
    output.deliver(texts[arguments.format](), arguments.out)
    return DONE


def _pairs(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[int, int]]:
    """Plans for as many failures are compared; so are two that are all there is, whatever they are for."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    return [(count, count) for count in before if count in after]


def _words(diff: PlanDiff) -> str:
    old, new = schedule_title(diff.before), schedule_title(diff.after)
    title = new if old == new else f"{old} -> {new}"
    title += f": {'same' if diff.is_empty else 'different'}\n"
    return title + "".join(f"{line}\n" for line in difference_lines(diff))


def _compare(before: tuple[Schedule, Streams | None], after: tuple[Schedule, Streams | None]) -> PlanDiff:
    (old, old_streams), (new, new_streams) = before, after
    changed = changed_streams(old_streams, new_streams) if old_streams and new_streams else ()
    return compare_plans(old, new, changed)


def _side(path: str) -> DiffSide:
    """A bundle, or the text of one schedule; distinguished by how they begin."""
    beginning = _beginning(path)
    if _is_text(beginning):
        return _text_side(path)
    if not beginning.startswith(MAGIC):
        raise UserError(f"{path}: neither a bundle nor a schedule text; a trace is JSON and comes second")
    return _bundle_side(path)


def _beginning(path: str) -> bytes:
    if stat.S_ISFIFO(os.stat(path).st_mode):
        raise UserError(f"{path}: a pipe cannot be read twice; write it to a file first")
    with open(path, "rb") as file, naming(path):
        return file.read(_ENOUGH)


def _is_text(beginning: bytes) -> bool:
    return beginning.splitlines()[:1] == [_SCHEDULE_HEAD]


def _bundle_side(path: str) -> DiffSide:
    bundle = read_bundle(path)
    counts = tuple(len(plan.failed) for plan in bundle.plans)

    def read(count: int) -> tuple[Schedule, Streams]:
        streams = read_plan(bundle, path, counts.index(count))
        return schedule_of(streams, path), streams

    return DiffSide(counts, read, path, bundle)


def _text_side(path: str) -> DiffSide:
    schedule = _read_text(path)
    return DiffSide((len(schedule.failed),), lambda count: (schedule, None), path)


def _read_text(path: str) -> Schedule:
    try:
        text = read_text(Path(path), _MOST_BYTES)
    except ReadError as error:
        raise UserError(f"{path}: not a schedule text: it {error}") from None
    try:
        return parse_schedule(text)
    except TextError as error:
        raise _compile_error(error, text, path) from error


def _compile_error(error: TextError, text: str, path: str) -> CompileError:
    """CompileError for a text that cannot be parsed, with its place."""
    lines = text.splitlines()
    span = None
    if 0 < error.line <= len(lines):
        words = list(_WORD.finditer(lines[error.line - 1]))
        first, last = (0, -1) if error.word is None else (error.word, error.word)
        if words:
            span = Span(error.line, words[first].start() + 1, words[last].end() + 1)
    found = Diagnostic("schedule-text", error.what, span, error.hint or _HINT)
    return CompileError([found], "\n".join(lines), path)
