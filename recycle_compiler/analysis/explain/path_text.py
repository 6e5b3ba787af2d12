"""The critical path in words: ops in a row on one worker are one line, and so is a micro-batch on its way.

0:0 F0.0..F0.5 (6 ops, 6 slots)
-> transfer 0.5 slots -> F0.5 from 0:1 to 0:14 (14 ops, 14 slots; transfers 6.5 slots)
-> transfer 0.5 slots -> 0:15 F0.5..I0.5 (2 ops, 2 slots)
"""

from collections.abc import Iterator, Sequence

from recycle_compiler.analysis.explain.critical_path import CriticalPath, Step, StepKind
from recycle_compiler.analysis.explain.report import Explanation
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import plural, time_text, unit_name

_SHOWN = 20
"""Of more lines, the first and the last half of these are shown."""
_WAY = 3
"""As many stages make a way worth a line of its own."""


def path_lines(explanation: Explanation) -> Iterator[str]:
    """The path and what it is made of."""
    job, path = explanation.schedule.job, explanation.path
    whose = f"the window of stage {path.stage}" if job.techniques.stagger else "first op to last optimizer"
    yield f"critical path: {amount(job, path.length)}, {whose}"
    groups = _groups(path.steps)
    told = [_words(job, group) for group in groups]
    if len(told) > _SHOWN:
        half = _SHOWN // 2
        ticks = sum(step.ticks for group in groups[half:-half] for step in group)
        told[half:-half] = [f"... {len(told) - 2 * half} more of these, {amount(job, ticks)} ..."]
    for index, words in enumerate(told):
        yield f"  {'-> ' if index else ''}{words}"
    yield f"  = {_sum(job, path, explanation.bottleneck)}"
    if not path.closed:
        yield f"  stages hold each other up: the chain began before the window of stage {path.stage} opened"


def amount(job: JobSpec, ticks: int) -> str:
    """`1 slot`, `33 slots`, `31.5 ms`."""
    number = time_text(job, ticks)
    return "1 slot" if (number, job.unit) == ("1", "slot") else f"{number} {unit_name(job)}"


def _groups(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that are told in one line: ops or a way through several stages, with the transfer to there."""
    groups: list[list[Step]] = []
    index = 0
    while index < len(steps):
        begin = index + (steps[index].kind is StepKind.TRANSFER)
        until = _end_of_way(steps, begin)
        stages = sum(1 for step in steps[begin:until] if step.kind is StepKind.COMPUTE)
        until = until if stages >= _WAY else begin + 1
        groups.append(list(steps[index:until]))
        index = until
    return groups


def _end_of_way(steps: Sequence[Step], begin: int) -> int:
    """Where the run of steps ends in which one micro-batch moves on from stage to stage."""
    until = begin
    for index in range(begin, len(steps)):
        step = steps[index]
        if step.kind is StepKind.COMPUTE and (step.ops, step.first) == (1, steps[begin].first):
            until = index + 1
        elif step.kind is not StepKind.TRANSFER:
            break
    return until


def _words(job: JobSpec, group: Sequence[Step]) -> str:
    if group[0].kind is StepKind.TRANSFER:
        return f"transfer {amount(job, group[0].ticks)} -> {_words(job, group[1:])}"
    if len(group) == 1:
        return _step(job, group[0])
    compute = [step for step in group if step.kind is StepKind.COMPUTE]
    transfers = sum(step.ticks for step in group if step.kind is StepKind.TRANSFER)
    ticks = sum(step.ticks for step in compute)
    way = f"{compute[0].first}{_when(compute[0])} from {compute[0].worker} to {compute[-1].worker}"
    more = f"; transfers {amount(job, transfers)}" if transfers else ""
    return f"{way} ({plural(len(compute), 'op')}, {amount(job, ticks)}{more})"


def _step(job: JobSpec, step: Step) -> str:
    time = amount(job, step.ticks)
    if step.kind is StepKind.COMPUTE:
        ops = step.first if step.ops == 1 else f"{step.first}..{step.last}"
        return f"{step.worker} {ops}{_when(step)} ({plural(step.ops, 'op')}, {time})"
    if step.kind is StepKind.FINISH:
        return f"reduction and optimizer of stage {step.stage}{_when(step)} ({time})"
    return f"waiting for nothing ({time})"


def _when(step: Step) -> str:
    return " of the previous iteration" if step.iteration < 0 else ""


def _sum(job: JobSpec, path: CriticalPath, bottleneck: int) -> str:
    own = path.computed_on(bottleneck)
    causes = (
        (own, f"compute on stage {bottleneck}"),
        (path.total(StepKind.COMPUTE) - own, "compute elsewhere"),
        (path.total(StepKind.TRANSFER), "transfer"),
        (path.total(StepKind.FINISH), "reduction and optimizer"),
        (path.total(StepKind.NOTHING), "waiting for nothing"),
    )
    return " + ".join(f"{time_text(job, ticks)} {cause}" for ticks, cause in causes)
