"""`recyclec diff`: what changed between two bundles or two schedule texts; exit 1 if anything did."""

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recycle_compiler.commands.bundles import read_bundle, read_plan, schedule_of
from recycle_compiler.commands.output import DONE, Output, UserError
from recycle_compiler.diff import PlanDiff, changed_streams, compare
from recycle_compiler.ir.job_text import TextError
from recycle_compiler.ir.program import Program
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_schedule
from recycle_compiler.viz.difference import difference_lines, difference_object, plan_title
from recycle_runtime.bundle import MAGIC

DIFFERENT = 1
_SCHEDULE_HEAD = b"schedule"
_ENOUGH = 16
"""Bytes that tell what a file is."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two inputs: its plans, read when they are needed, and the failures each is for."""

    counts: tuple[int, ...]
    read: Callable[[int], tuple[Schedule, Program | None]]


def run(arguments: Namespace, output: Output) -> int:
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


def _compare(before: tuple[Schedule, Program | None], after: tuple[Schedule, Program | None]) -> PlanDiff:
    (old, old_program), (new, new_program) = before, after
    streams = changed_streams(old_program, new_program) if old_program and new_program else ()
    return compare(old, new, streams)


def _side(path: str) -> Side:
    """A bundle, or the text of one schedule; told apart by how they begin."""
    with open(path, "rb") as file:
        beginning = file.read(_ENOUGH)
    if beginning.splitlines()[:1] == [_SCHEDULE_HEAD]:
        return _text_side(path)
    if not beginning.startswith(MAGIC):
        raise UserError(f"{path}: neither a bundle nor a schedule text")
    return _bundle_side(path)


def _bundle_side(path: str) -> Side:
    bundle = read_bundle(path)
    counts = tuple(len(plan.failed) for plan in bundle.plans)

    def read(count: int) -> tuple[Schedule, Program]:
        program = read_plan(bundle, path, counts.index(count))
        return schedule_of(program, path), program

    return Side(counts, read)


def _text_side(path: str) -> Side:
    try:
        schedule = parse_schedule(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a schedule text: it is not UTF-8") from error
    except TextError as error:
        raise UserError(f"{path}: not a schedule text: {error}") from error
    return Side((len(schedule.failed),), lambda count: (schedule, None))
