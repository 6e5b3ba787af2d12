"""`recyclec diff`: what changed between two bundles or two schedule texts; exit 1 if anything did.

If the second file is the trace of a run, the plan is compared with that instead: a report, and exit 0.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recycle_compiler.analysis.plan_diff import (
    PlanDiff,
    changed_streams,
    compare,
    difference_lines,
    difference_object,
    plan_title,
)
from recycle_compiler.analysis.trace_diff.document import comparison_document
from recycle_compiler.analysis.trace_diff.text import comparison_text
from recycle_compiler.analysis.trace_diff.trace_file import begins_like_a_trace
from recycle_compiler.cli.bundles import read_bundle, read_plan, schedule_of
from recycle_compiler.cli.commands.diff_with_run import compare_bundle, compare_text
from recycle_compiler.cli.values import count
from recycle_compiler.ir.job import TextError
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.text import parse_schedule
from recycle_runtime.cli.output import DONE, Output, UsageError, UserError
from recycle_runtime.plan.bundle import MAGIC

DIFFERENT = 1
_SCHEDULE_HEAD = b"schedule"
_ENOUGH = 16
"""Bytes that tell what a file is."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = (
        "Exit 1 if anything changed. A file that cannot be read is exit 1 too: stderr then says why, and "
        "stdout stays empty. The comparison with a trace (as `recycle-run local --trace` writes it) is a "
        "report: exit 0, however much the run differs."
    )
    parser.add_argument("before", metavar="A", help="a bundle or the text of a schedule")
    parser.add_argument("after", metavar="B", help="the same, or the trace of a run of A")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")
    parser.add_argument(
        "--step",
        type=count,
        metavar="N",
        help="the step of the trace to analyse (default: the median one; the first is left out as warm-up)",
    )


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two inputs: its plans, read when they are needed, and the failures each is for."""

    counts: tuple[int, ...]
    read: Callable[[int], tuple[Schedule, Streams | None]]


def run(arguments: Namespace, output: Output) -> int:
    if begins_like_a_trace(_beginning(arguments.before)):
        raise UsageError(f"{arguments.before}: looks like a trace; the plan comes first, then the trace")
    if begins_like_a_trace(_beginning(arguments.after)):
        return _with_run(arguments, output)
    if arguments.step is not None:
        raise UsageError(f"--step needs a trace: {arguments.after} is none")
    before, after = _side(arguments.before), _side(arguments.after)
    pairs = _pairs(before.counts, after.counts)
    only_before = [count for count in before.counts if count not in dict(pairs)]
    only_after = [count for count in after.counts if count not in dict(pairs).values()]
    found: list[dict[str, Any]] = []
    if not arguments.json:
        output.data("".join(f"{plan_title(count)}: only in {arguments.before}\n" for count in only_before))
        output.data("".join(f"{plan_title(count)}: only in {arguments.after}\n" for count in only_after))
    same = not only_before and not only_after
    # One plan at a time: all plans of a large bundle would not fit into memory.
    for old, new in pairs:
        diff = _compare(before.read(old), after.read(new))
        same &= diff.is_empty
        if arguments.json:
            found.append(difference_object(diff))
        else:
            output.data(_words(diff))
    if arguments.json:
        document = {"same": same, "only_before": only_before, "only_after": only_after, "plans": found}
        output.data(json.dumps(document, indent=1) + "\n")
    return DONE if same else DIFFERENT


def _with_run(arguments: Namespace, output: Output) -> int:
    plan, trace, step = arguments.before, arguments.after, arguments.step
    if _is_text(_beginning(plan)):
        comparison = compare_text(_read_text(plan), plan, trace, step)
    else:
        comparison = compare_bundle(plan, trace, step)
    output.data(comparison_document(comparison) if arguments.json else comparison_text(comparison, trace))
    return DONE


def _pairs(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[int, int]]:
    """Plans for as many failures are compared; so are two that are all there is, whatever they are for."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    return [(count, count) for count in before if count in after]


def _words(diff: PlanDiff) -> str:
    old, new = plan_title(len(diff.before.failed)), plan_title(len(diff.after.failed))
    title = new if old == new else f"{old} -> {new}"
    title += f": {'same' if diff.is_empty else 'different'}\n"
    return title + "".join(f"{line}\n" for line in difference_lines(diff))


def _compare(before: tuple[Schedule, Streams | None], after: tuple[Schedule, Streams | None]) -> PlanDiff:
    (old, old_streams), (new, new_streams) = before, after
    changed = changed_streams(old_streams, new_streams) if old_streams and new_streams else ()
    return compare(old, new, changed)


def _side(path: str) -> Side:
    """A bundle, or the text of one schedule; told apart by how they begin."""
    beginning = _beginning(path)
    if _is_text(beginning):
        return _text_side(path)
    if not beginning.startswith(MAGIC):
        raise UserError(f"{path}: neither a bundle nor a schedule text")
    return _bundle_side(path)


def _beginning(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_ENOUGH)


def _is_text(beginning: bytes) -> bool:
    return beginning.splitlines()[:1] == [_SCHEDULE_HEAD]


def _bundle_side(path: str) -> Side:
    bundle = read_bundle(path)
    counts = tuple(len(plan.failed) for plan in bundle.plans)

    def read(count: int) -> tuple[Schedule, Streams]:
        streams = read_plan(bundle, path, counts.index(count))
        return schedule_of(streams, path), streams

    return Side(counts, read)


def _text_side(path: str) -> Side:
    schedule = _read_text(path)
    return Side((len(schedule.failed),), lambda count: (schedule, None))


def _read_text(path: str) -> Schedule:
    try:
        return parse_schedule(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a schedule text: it is not UTF-8") from error
    except TextError as error:
        raise UserError(f"{path}: not a schedule text: {error}") from error
