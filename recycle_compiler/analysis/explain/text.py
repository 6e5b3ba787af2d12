"""An explanation as text.

On the critical path, ops in a row on one worker are one line, and so is a micro-batch on its way:

    0:0 F0.0..F0.5 (6 ops, 6 slots)
    -> transfer 0.5 slots -> F0.5 from 0:1 to 0:14 (14 ops, 14 slots; transfers 6.5 slots)
    -> transfer 0.5 slots -> 0:15 F0.5..I0.5 (2 ops, 2 slots)
"""

from collections.abc import Iterator, Sequence

from recycle_compiler.analysis.explain.critical_path import CriticalPath, PathStep, StepKind
from recycle_compiler.analysis.explain.cuts import NO_ROOM, BorderMove, CutFacts
from recycle_compiler.analysis.explain.groups import GroupFacts
from recycle_compiler.analysis.explain.idle import CAUSES, StageTime
from recycle_compiler.analysis.explain.proof import Proof
from recycle_compiler.analysis.explain.report import Explanation
from recycle_compiler.analysis.explain.what_if import BOUNDS, NONE, WhatIfOutcome
from recycle_compiler.ir.groups import AnyLayout, stages_of_groups
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.ir.rounds import overlapped_on
from recycle_compiler.ir.units import ending_words, percent, plural, time_text, unit_name
from recycle_compiler.viz.heading import heading, holders_text, no_plan, stage_list
from recycle_compiler.viz.memory_table import memory_lines

_MOVES = 4
"""Changes of the cut that are printed; JSON has them all."""
_MEANING = {
    "ramp-up": "before a worker's first backward",
    "tail": "after its last F, when only backwards and W are left",
    "transfer": "the input of the worker's next op was on its way",
    "imbalance": "the worker was done and a peer was not, or it has fewer micro-batches than its peers",
    "memory": "an F was ready but memory was full",
    "dependency": "another stage had not yet produced the input of the worker's next op",
    "sums": "the stage was done, and another group that sums with it was not",
    "slack": "the stage was done with this iteration and waited for the next",
}
_SHOWN = 20
"""Of more lines, the first and the last half of these are shown."""
_WAY = 3
"""As many stages make a way worth a line of its own."""


def explanation_text(explanation: Explanation) -> str:
    """All of it, in paragraphs."""
    paragraphs = (_head, _spread, _bottleneck, _bound, _cut, path_lines, _times, _memory, _what_if)
    told = ("".join(f"{line}\n" for line in paragraph(explanation)) for paragraph in paragraphs)
    return "\n".join(text for text in told if text)


def _head(explanation: Explanation) -> Iterator[str]:
    job, claims = explanation.schedule.job, explanation.schedule.claims
    yield from heading(explanation.schedule)
    none = no_plan(explanation.schedule)
    proof = f"optimal: {none} is faster"
    if claims.status != "optimal":
        bound = amount(job, claims.lower_bound)
        proof = f"at most {percent(claims.gap)} above optimal: {none} is faster than {bound}"
    if claims.cut_short:
        proof += ", cut short by the time limit"
    yield f"period {amount(job, claims.period)}, {proof}; makespan {amount(job, claims.makespan)}"
    if explanation.one_f_one_b is not None:
        baseline = amount(job, explanation.one_f_one_b)
        yield f"fault-free 1F1B takes {baseline}: this plan runs at {explanation.against_1f1b:.3f}x its speed"


def _spread(explanation: Explanation) -> Iterator[str]:
    """Cost of op times that vary."""
    spread, period = explanation.spread, explanation.schedule.claims.period
    if spread is None:
        return
    job = explanation.schedule.job
    yield (
        f"op times vary: a mean period of {amount(job, round(spread.mean))}, "
        f"{percent(max(0.0, spread.mean / period - 1))} more than planned; standard deviation "
        f"{amount(job, round(spread.deviation))}"
    )
    parts = (
        ("micro-batch", job.spread_ppm, spread.by_microbatch),
        ("chance", job.jitter_ppm, spread.by_chance),
    )
    for what, ppm, mean in parts:
        if ppm:
            yield f"  {percent(ppm / 1e6)} by {what} alone: {percent(max(0.0, mean / period - 1))} more"


def _bottleneck(explanation: Explanation) -> Iterator[str]:
    job, stage = explanation.schedule.job, explanation.bottleneck
    time = explanation.times[stage]
    fewest, most = explanation.hosted
    each = plural(most, "micro-batch") if fewest == most else f"{fewest} to {plural(most, 'micro-batch')}"
    yield f"bottleneck: stage {stage}{_in_group(explanation.group)}"
    alive = f"{time.workers} of {plural(job.pipelines, 'worker')} alive"
    yield (
        f"  {plural(time.workers, 'worker') if job.is_recut else alive}, {each} on each, "
        f"busy {percent(time.busy / time.whole)} of the period"
    )
    if any(job.exchange_left):
        share = job.exchange_left[stage] * 2 * most / explanation.schedule.claims.period
        hidden = overlapped_on(job, explanation.schedule.ops, stage) / explanation.schedule.claims.period
        yield (
            f"  exchanges of tokens, within F and I: {amount(job, job.exchange_left[stage])} each, "
            f"{percent(share)} of the period; {percent(hidden)} of the period is W computed meanwhile"
        )
    if not job.techniques.stagger:
        return
    window = f"  its own window, from first op to optimizer, takes {amount(job, time.window)}"
    if time.window < time.period:
        window += f"; the period is the window of stage {explanation.path.stage}"
    yield window


def _bound(explanation: Explanation) -> Iterator[str]:
    job, proof = explanation.schedule.job, explanation.binding
    yield f"binding bound: {proof.reason}{_in_group(explanation.group)}, {amount(job, proof.period)}"
    if explanation.group:
        first = stages_of_groups(job)[explanation.group].start
        yield f"  stages are counted within the group here: its stage 0 is stage {first} of the plan"
    if proof.claim:
        yield f"  {proof.claim}"
    yield from _parts(job, proof)
    if not proof.parts:
        yield "  proven for the schedule as a whole; one stage alone does not show it"
    if explanation.others:
        told = ", ".join(f"{other.reason} ({amount(job, other.period)})" for other in explanation.others)
        yield f"  other bounds: {told}"


def _cut(explanation: Explanation) -> Iterator[str]:
    """Reasons for the cut, or for the groups of pipelines."""
    cuts = explanation.cuts
    if isinstance(cuts, GroupFacts):
        yield from _why_groups(explanation, cuts)
    if not isinstance(cuts, CutFacts):
        return
    job, period = cuts.job, explanation.schedule.claims.period
    first, end = cuts.layout.ranges[explanation.bottleneck]
    layers = f"layer {first}" if end == first + 1 else f"layers {first} to {end - 1}"
    holders = plural(cuts.layout.workers[explanation.bottleneck], "worker")
    yield f"why this cut: {stage_list(cuts.layout)} (layers x workers of each stage)"
    yield f"  stage {explanation.bottleneck} binds: {layers} on {holders}"
    if cuts.bound_over_cuts:
        over = max(cuts.bound_over_cuts, cuts.bound_one_cut)
        yield f"  {_no_plan_under_one_cut(cuts)} is faster than {amount(job, over)}{_compared(period, over)}"
        if cuts.bound_over_cuts < over:
            yield f"  no two groups of pipelines are faster than {amount(job, cuts.bound_over_cuts)}"
    if cuts.own is not None and not cuts.is_own:
        own = f"  the job's own cut, {_listed(cuts.own.layout)}, takes {amount(job, cuts.own.period)}"
        yield f"{own} with as many workers: {_slower(cuts.own.period, period)}"
    yield from _moves(cuts)
    yield from _one_more(cuts, period)


def _no_plan_under_one_cut(facts: CutFacts | GroupFacts) -> str:
    """Plans that the bound over all cuts covers; those with fewer holders of a layer may be faster."""
    return f"no plan for {plural(facts.workers, 'worker')}{holders_text(facts.job)}, under one cut,"


def _compared(period: int, bound: int) -> str:
    """The period of this plan with a bound, which need not be about it."""
    if period == bound:
        return ", which this plan takes"
    if period < bound:
        return f"; this plan is {percent(bound / period - 1)} faster"
    return f"; this plan takes {percent(period / bound - 1)} longer"


def _moves(cuts: CutFacts) -> Iterator[str]:
    """Effect of moving a layer or a worker over a border between stages, by bounds."""
    if not cuts.moves:
        return
    ordered = sorted(cuts.moves, key=lambda move: move.bound)
    better = [move for move in ordered if move.bound < cuts.bound]
    reference = f"the bound of {amount(cuts.job, cuts.bound)}"
    if better:
        yield f"  one layer or worker moved over a border would lower {reference}, and perhaps plans"
    else:
        yield f"  no layer or worker moved over a border would lower {reference}; those that cost least"
    for move in ordered[:_MOVES]:
        yield f"    {_move(cuts, move)}"
    if len(ordered) > _MOVES:
        worst = ordered[-1]
        to = f"up to {amount(cuts.job, worst.bound)}" if worst.fits else "some do not fit into memory"
        yield f"    and {len(ordered) - _MOVES} more, {to}"


def _move(cuts: CutFacts, move: BorderMove) -> str:
    what = f"a {move.what} from stage {move.source} to stage {move.target}"
    return f"{what}: {amount(cuts.job, move.bound) if move.fits else 'does not fit into memory'}"


def _one_more(cuts: CutFacts, period: int) -> Iterator[str]:
    job = cuts.job
    stage, bound = cuts.where_one_more
    if cuts.one_more is not None:
        gain = period / cuts.one_more - 1
        best = f"with the best of all cuts{holders_text(job)}"
        buys = f"at most {percent(gain)} faster, {best}" if gain > 0 else "nothing"
        yield f"  one worker more would buy {buys} (bound {amount(job, cuts.one_more)})"
    if bound < cuts.bound:
        yield f"    under this cut most on stage {stage} (bound {amount(job, bound)})"
    else:
        yield "    under this cut nothing, on whichever stage"
    yield from _one_failure_fewer(cuts)


def _one_failure_fewer(cuts: CutFacts | GroupFacts) -> Iterator[str]:
    if cuts.fewer is not None:
        fewer = f"  with {plural(cuts.fewer.failures, 'failure')} the bundle takes"
        yield f"{fewer} {amount(cuts.job, cuts.fewer.period)}, under {_listed(cuts.fewer.layout)}"


def _listed(layout: AnyLayout) -> str:
    return stage_list(layout) if isinstance(layout, Layout) else str(layout)


def _in_group(group: int | None) -> str:
    return "" if group is None else f" in group {group}"


_COUNTS = {2: "two", 3: "three", 4: "four"}


def _why_groups(explanation: Explanation, facts: GroupFacts) -> Iterator[str]:
    """Reasons for the groups of pipelines."""
    job, period = facts.job, explanation.schedule.claims.period
    count = _COUNTS.get(len(facts.groups), str(len(facts.groups)))
    yield f"why {count} groups: {facts.layout} (layers x workers of each stage @ micro-batches)"
    if facts.one_cut is not None:
        takes = f"{_listed(facts.one_cut.layout)}, takes {amount(job, facts.one_cut.period)}"
        slower = _slower(facts.one_cut.period, period)
        yield f"  the fastest plan of the bundle under one cut for as many workers, {takes}: {slower}"
    for none, least in (
        (_no_plan_under_one_cut(facts), facts.bound_one_cut),
        (f"no plan of two groups for {plural(facts.workers, 'worker')}", facts.bound_two_groups),
    ):
        if least:
            yield f"  {none} is faster than {amount(job, least)}{_compared(period, least)}"
    for number, group in enumerate(facts.groups):
        who = f"{plural(group.share, 'micro-batch')} on {plural(group.workers, 'worker')}"
        takes = "takes" if group.share == 1 else "take"
        least = f"{takes} at least {amount(job, group.bound)} ({group.reason})"
        yield f"  group {number}{' binds' if number == facts.binding else ''}: {who} {least}"
    yield from _shares(facts)
    yield from _one_more_in_groups(facts, period)
    yield from _one_failure_fewer(facts)


def _shares(facts: GroupFacts) -> Iterator[str]:
    """Micro-batches of each group, and the effect of moving one of them to another group."""
    units, workers = sum(facts.layout.shares), sum(facts.layout.workers)
    each = ", ".join(
        f"{group.share / group.workers:.1f} in group {number}" for number, group in enumerate(facts.groups)
    )
    yield f"  {units / workers:.1f} micro-batches for each worker would be even; there are {each}"
    for move in facts.moves:
        what = f"one micro-batch of group {move.source} in group {move.target}"
        if move.bound >= NO_ROOM:
            yield f"    {what} would leave fewer than a stage has workers"
            continue
        change = "raise" if move.bound > facts.bound else "lower" if move.bound < facts.bound else "leave"
        to = "as it is" if change == "leave" else f"to {amount(facts.job, move.bound)}"
        yield f"    {what} would {change} the bound of {amount(facts.job, facts.bound)} {to}"


def _one_more_in_groups(facts: GroupFacts, period: int) -> Iterator[str]:
    job = facts.job
    if (best := facts.one_more_two_groups) is not None:
        gain = period / best - 1
        cuts = f"the best of all cuts{holders_text(job)} or two groups"
        buys = f"at most {percent(gain)} faster, with {cuts}"
        yield f"  one worker more would buy {buys if gain > 0 else 'nothing'} (bound {amount(job, best)})"
    for one in facts.one_more:
        where = f"    in group {one.group} on stage {one.stage}"
        if one.bound >= facts.bound:
            yield f"{where}, with any share: nothing"
            continue
        shares = " and ".join(map(str, one.layout.shares))
        yield f"{where}, with {shares} micro-batches: bound {amount(job, one.bound)}"
    if facts.one_more_one_cut is not None:
        bound = amount(job, facts.one_more_one_cut)
        yield f"    under one cut, the best of all{holders_text(job)}: bound {bound}"


def _slower(period: int, reference: int) -> str:
    if period == reference:
        return "as fast"
    return f"{percent(abs(reference / period - 1))} {'slower' if period > reference else 'faster'}"


def _parts(job: JobSpec, proof: Proof) -> Iterator[str]:
    numbers = [time_text(job, part.ticks) for part in proof.parts]
    width = max((len(number) for number in numbers), default=0)
    for number, part in zip(numbers, proof.parts, strict=True):
        yield f"  {number:>{width}}  {part.what}"


def _times(explanation: Explanation) -> Iterator[str]:
    job = explanation.schedule.job
    # Only workers of groups wait for others to sum with.
    columns = ("busy", *CAUSES, *(("sums",) if job.groups else ()), "slack")
    rows: list[tuple[str, ...]] = [("stage", "alive", *columns)]
    for time in explanation.times:
        sums = (time.sums,) if job.groups else ()
        shares = (f"{100 * ticks / time.whole:.1f}" for ticks in (time.busy, *time.idle, *sums, time.slack))
        rows.append((str(time.stage), str(time.workers), *shares))
    yield "where the time of each stage goes, in percent of the period"
    yield from _table(rows)
    seen = [cause for index, cause in enumerate(CAUSES) if any(t.idle[index] for t in explanation.times)]
    if any(time.sums for time in explanation.times):
        seen.append("sums")
    if any(time.slack for time in explanation.times):
        seen.append("slack")
    for cause in seen:
        yield f"  {cause}: {_MEANING[cause]}"
    yield from _full_memory(explanation.times[explanation.bottleneck])


def _memory(explanation: Explanation) -> Iterator[str]:
    schedule = explanation.schedule
    peaks = [0] * schedule.job.stages
    for _, stage, amount_held in schedule.peak_memory():
        peaks[stage] = max(peaks[stage], amount_held)
    yield from memory_lines(schedule.job, peaks)


def _full_memory(time: StageTime) -> Iterator[str]:
    ramp_up = time.idle[CAUSES.index("ramp-up")]
    if time.full_ramp_up:
        share = percent(time.full_ramp_up / ramp_up)
        yield f"  during {share} of the ramp-up of stage {time.stage} an F was ready but memory was full"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _what_if(explanation: Explanation) -> Iterator[str]:
    found = explanation.what_if
    if found.mode == NONE:
        return
    how = "judged by bounds alone" if found.mode == BOUNDS else "planned again, quickly"
    yield f"what if, {how}; compared with {amount(explanation.schedule.job, found.reference)}"
    for outcome in found.outcomes:
        yield f"  {_outcome(explanation.schedule.job, outcome)}"
    if not found.outcomes:
        yield "  nothing that was tried makes a difference of 0.1 % or more"


def _outcome(job: JobSpec, outcome: WhatIfOutcome) -> str:
    speed = f"{percent(abs(outcome.gain))} {'faster' if outcome.gain > 0 else 'slower'}"
    if outcome.microbatches != job.microbatches:
        speed += " per micro-batch"
    bound = f"bound {amount(job, outcome.lower_bound)}"
    if outcome.period is None:
        return f"{outcome.what}: {'at most' if outcome.gain > 0 else 'at least'} {speed} ({bound})"
    return f"{outcome.what}: {speed} (period {amount(job, outcome.period)}, {bound})"


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


def _groups(steps: Sequence[PathStep]) -> list[list[PathStep]]:
    """Steps that are printed in one line: ops or a way through several stages, with the transfer to there."""
    groups: list[list[PathStep]] = []
    index = 0
    while index < len(steps):
        begin = index + (steps[index].kind is StepKind.TRANSFER)
        until = _end_of_way(steps, begin)
        stages = sum(1 for step in steps[begin:until] if step.kind is StepKind.COMPUTE)
        until = until if stages >= _WAY else begin + 1
        groups.append(list(steps[index:until]))
        index = until
    return groups


def _end_of_way(steps: Sequence[PathStep], begin: int) -> int:
    """End of the run of steps in which one micro-batch moves on from stage to stage."""
    until = begin
    for index in range(begin, len(steps)):
        step = steps[index]
        if step.kind is StepKind.COMPUTE and (step.ops, step.first) == (1, steps[begin].first):
            until = index + 1
        elif step.kind is not StepKind.TRANSFER:
            break
    return until


def _words(job: JobSpec, group: Sequence[PathStep]) -> str:
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


def _step(job: JobSpec, step: PathStep) -> str:
    time = amount(job, step.ticks)
    if step.kind is StepKind.COMPUTE:
        ops = step.first if step.ops == 1 else f"{step.first}..{step.last}"
        return f"{step.worker} {ops}{_when(step)} ({plural(step.ops, 'op')}, {time})"
    if step.kind is StepKind.FINISH:
        return f"{ending_words(job)} of stage {step.stage}{_when(step)} ({time})"
    return f"waiting for nothing ({time})"


def _when(step: PathStep) -> str:
    return " of the previous iteration" if step.iteration < 0 else ""


def _sum(job: JobSpec, path: CriticalPath, bottleneck: int) -> str:
    own = path.computed_on(bottleneck)
    causes = (
        (own, f"compute on stage {bottleneck}"),
        (path.total(StepKind.COMPUTE) - own, "compute elsewhere"),
        (path.total(StepKind.TRANSFER), "transfer"),
        (path.total(StepKind.FINISH), ending_words(job)),
        (path.total(StepKind.NOTHING), "waiting for nothing"),
    )
    return " + ".join(f"{time_text(job, ticks)} {cause}" for ticks, cause in causes)
