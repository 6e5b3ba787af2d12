"""Advice on machines as text, as JSON and as a page with its curves."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from recycle_compiler.fleet.advice import INTERVALS, Advice, PolicyResult
from recycle_compiler.fleet.report import figure, printed_table, short_number
from recycle_compiler.fleet.state_options import StateOption, best_option, checkpoints_at_par
from recycle_compiler.fleet.traces.trace import duration_text
from recycle_compiler.ir.units import percent, plural, time_text
from recycle_compiler.viz.chart import LineChart, Point
from recycle_compiler.viz.shell import MADE_BY

_GIB = 1 << 30
_HOURS_A_YEAR = 365 * 24
_PUBLISHED = {"MoEvement, published*": ("10 min", 0.94)}
"""Effective training times of other systems (arXiv 2412.15411), which were not measured here."""


def advice_table(advice: Advice, color: bool = False) -> str:
    """A line for each number of machines, then what is advised and why."""
    return "\n".join((_tables(advice, color), *why(advice), ""))


def _tables(advice: Advice, color: bool = False) -> str:
    unit, priced = advice.question.batch.unit, advice.question.price is not None
    cost = "per million" if priced else "GPU-hours per million"
    titles = ("machines", "in the job", "spare", unit, "useful", cost, "read back a year")
    rows = [
        (str(option.machines), str(option.in_job), str(option.spares), *_cells(advice, option))
        for option in advice.of("ours")
    ]
    others = [policy for policy in advice.by_interval if policy != "ours"]
    least = {policy: {one.machines: one for one in advice.of(policy)} for policy in ("ours", *others)}
    beside = [
        (
            str(machines),
            *(
                _cost(advice, least[policy][machines]) if machines in least[policy] else "-"
                for policy in least
            ),
        )
        for machines in advice.question.machines
    ]
    tables = (
        printed_table(titles, rows, color),
        printed_table((f"{cost}, machines", *least), beside, color),
        _state_table(advice, color),
    )
    return "\n".join(filter(None, tables))


def _cells(advice: Advice, option: PolicyResult) -> Iterator[str]:
    yield figure(option.throughput)
    yield percent(option.gpu_hours.useful / (option.gpu_hours.total or 1.0))
    yield _cost(advice, option)
    yield f"{option.checkpoints_read:.1f}"


def _cost(advice: Advice, option: PolicyResult) -> str:
    price = advice.question.price
    return f"{option.per_million * (1.0 if price is None else price):,.2f}"


def why(advice: Advice) -> Iterator[str]:
    """The advice, a sentence on each choice with the figures that it rests on."""
    question, best = advice.question, advice.best
    unit, setting = question.batch.unit, question.setting
    if best is None:
        most = max(advice.of("ours"), key=lambda option: option.throughput)
        yield (
            f"No number of machines from {question.machines[0]} to {question.machines[-1]} reaches "
            f"{figure(question.wanted or 0.0)} {unit}: {most.machines} reach {figure(most.throughput)}."
        )
        best = most
    else:
        wanted = "" if question.wanted is None else f" that reach {figure(question.wanted)} {unit}"
        yield (
            f"Advised: {plural(best.machines, 'machine')}, {best.in_job} in the job and {best.spares} spare, "
            f"{figure(best.throughput)} {unit} at {_cost(advice, best)} a million, least of all{wanted}."
        )
    yield from _spares(advice, best)
    yield (
        f"Tolerance: compile for {plural(advice.tolerance, 'failure')}; more are down for at most 0.1 % of "
        f"the time (up to {advice.most_down}), and then a plan is made on demand, in "
        f"{setting.costs.planning:g} s ({setting.costs.origin('planning')})."
    )
    lost = ", ".join(
        f"{plural(one.times, 'time')} with {plural(one.holders, 'holder')}" for one in advice.copies
    )
    yield from _why_state(advice)
    yield (
        f"Holders: {_holders(advice)}. In {figure(advice.years)} years of draws all holders of a "
        f"stage's state were lost at most {lost} (failures of a stage within the {advice.copy_seconds:.1f} s "
        "in which it is copied)."
    )
    read = f"at most {advice.read_back:.2g} times a year" if advice.read_back else "in no draw"
    yield (
        f"Checkpoints: read back {read}; save every {duration_text(round(advice.checkpoint_every))} if a "
        f"save stops training for {setting.checkpoint_save:.0f} s (Young and Daly), more often otherwise."
    )
    yield (
        f"Averages over {plural(question.draws, 'draw')} of machines from the trace, from seed "
        f"{question.seed} on."
    )


def _spares(advice: Advice, best: PolicyResult) -> Iterator[str]:
    alike = [one for one in advice.options if one.policy == "ours" and one.machines == best.machines]
    for other in alike:
        if other.spares != best.spares:
            change = other.throughput / best.throughput - 1
            yield (
                f"Spares: with {other.spares} of the {best.machines} machines held back, not {best.spares}, "
                f"{figure(other.throughput)} {advice.question.batch.unit} ({100 * change:+.1f} %) at "
                f"{_cost(advice, other)} a million."
            )


def _why_state(advice: Advice) -> Iterator[str]:
    """Ways to keep state, with the figures of each."""
    if advice.states_note:
        yield f"State: not compared, since {advice.states_note}."
        return
    best, unit = best_option(advice.states), advice.question.batch.unit
    if best is None:
        yield f"State: no way to keep it has a plan: {advice.states[0].why}."
        return
    settings = [f"optimizer {{ state = sharded  owners = {best.owners} }}"] if best.owners else []
    if best.redundancy is not None:
        settings.append(f"tolerate {{ redundancy = {best.redundancy} }}")
    chosen = " and ".join(f"`{one}`" for one in settings) or "whole state"
    copies = (
        f"`--neighbour-copies {best.copy_steps}`" if best.copy_steps else "no copies in neighbours' memory"
    )
    rate = figure(best.rate * advice.question.batch.per_iteration)
    yield (
        f"State: {chosen} with {copies}, {rate} {unit} over the trace with quick plans for none and "
        f"{plural(advice.tolerance, 'failure')}, which are slower than those of a bundle: lines on state "
        f"compare with each other alone. {_losses_text(advice, best)} Of all that are within 0.1 % of the "
        "fastest it loses least; whole state comes before shards."
    )
    planned = [one for one in advice.states if one.period is not None]
    whole = [one for one in planned if best.owners and not one.owners]
    safer = [one for one in planned if one.owners and one.losses < best.losses]
    for others in filter(None, (whole, safer)):
        yield _other_state(advice, best, max(others, key=lambda one: one.rate))


def _losses_text(advice: Advice, state: StateOption) -> str:
    """Losses of state a year, and their cost."""
    if not state.losses:
        return "In no draw all holders of some state are lost."
    job = advice.question.setting.job
    hours = state.lost * job.present * job.tensor * _HOURS_A_YEAR
    return (
        f"All holders of some are lost at most {state.losses:.2g} times a year, and a checkpoint is read at "
        f"most {state.read_back:.2g}, which costs {100 * state.lost:.2g} % of the time, {hours:,.0f} "
        "GPU-hours a year."
    )


def _other_state(advice: Advice, best: StateOption, other: StateOption) -> str:
    """Another way to keep state beside the one that is advised."""
    setting, unit = advice.question.setting, advice.question.batch.unit
    assert best.period is not None and other.period is not None
    name = other.name.replace("whole", "whole state")
    copies = f" and a copy every {plural(other.copy_steps, 'step')}" if other.copy_steps else ""
    rate = figure(other.rate * advice.question.batch.per_iteration)
    words = (
        f"State: with {name}{copies}, {rate} {unit} ({100 * (other.rate / best.rate - 1):+.2f} %): a "
        f"step takes {time_text(setting.job, other.period)} {setting.job.unit} and not "
        f"{time_text(setting.job, best.period)}. {_losses_text(advice, other)}"
    )
    every = checkpoints_at_par(setting, best, other)
    if every is None:
        return words
    return f"{words} It is faster where checkpoints come less often than every {duration_text(round(every))}."


def _state_table(advice: Advice, color: bool) -> str:
    """The ways to keep state; nothing where they were not compared."""
    if not advice.states:
        return ""
    job, scale = advice.question.setting.job, advice.question.batch.per_iteration
    titles = (
        "state", "copy every", f"step ({job.unit})", f"with {plural(advice.tolerance, 'failure')}",
        "GiB of state a GPU", "holders", "lost a year", "read back a year", advice.question.batch.unit,
    )  # fmt: skip
    rows = [
        (
            one.name,
            f"{plural(one.copy_steps, 'step')}" if one.copy_steps else "-",
            *(
                "no plan" if ticks is None else time_text(job, ticks)
                for ticks in (one.period, one.period_failed)
            ),
            "-" if one.held is None else f"{one.held / _GIB:.1f}",
            str(one.holders),
            f"{one.losses:.2g}",
            f"{one.read_back:.2g}",
            figure(one.rate * scale),
        )
        for one in advice.states
    ]
    return printed_table(titles, rows, color)


def _holders(advice: Advice) -> str:
    enough = [one.holders for one in advice.copies if not one.times]
    if enough:
        return f"{enough[0]} are enough to lose no state"
    return f"{advice.copies[-1].holders} are not always enough"


def advice_document(advice: Advice) -> str:
    """Everything, for programs."""
    best = advice.best
    document: dict[str, Any] = {
        "job": advice.question.setting.job.name,
        "unit": advice.question.batch.unit,
        "machines": [advice.question.machines[0], advice.question.machines[-1]],
        "draws": advice.question.draws,
        "price": advice.question.price,
        "wanted": advice.question.wanted,
        "advised": None if best is None else _option(advice, best),
        "tolerance": advice.tolerance,
        "most_down": advice.most_down,
        "copies": [
            {"holders": one.holders, "lost": one.times, "with_another": one.with_another}
            for one in advice.copies
        ],
        "years": short_number(advice.years),
        "read_back_a_year": short_number(advice.read_back),
        "checkpoint_every": short_number(advice.checkpoint_every),
        "options": [_option(advice, option) for option in advice.options],
        "effective_training_time_by_interval": {
            policy: [[name, INTERVALS[name], short_number(share)] for name, share in points]
            for policy, points in advice.by_interval.items()
        },
        "states": [
            {
                "owners": one.owners,
                "redundancy": one.redundancy,
                "copy_steps": one.copy_steps,
                "holders": one.holders,
                "period_ticks": one.period,
                "period_ticks_failed": one.period_failed,
                "held_bytes": one.held,
                "losses_a_year": short_number(one.losses),
                "read_back_a_year": short_number(one.read_back),
                "lost_share": short_number(one.lost),
                "throughput": short_number(one.rate * advice.question.batch.per_iteration),
                "no_plan": one.why or None,
            }
            for one in advice.states
        ],
        "state": None if (chosen := best_option(advice.states)) is None else advice.states.index(chosen),
        "why": list(why(advice)),
    }
    return f"{json.dumps(document)}\n"


def _option(advice: Advice, option: PolicyResult) -> dict[str, Any]:
    price = advice.question.price
    return {
        "policy": option.policy,
        "machines": option.machines,
        "spares": option.spares,
        "throughput": short_number(option.throughput),
        "effective_training_time": short_number(option.effective_training_time),
        "gpu_hours": {name: short_number(hours) for name, hours in option.gpu_hours._asdict().items()},
        "gpu_hours_per_million": short_number(option.per_million),
        "cost_per_million": None if price is None else short_number(option.per_million * price),
        "checkpoints_read_a_year": short_number(option.checkpoints_read),
    }


def interval_chart(advice: Advice) -> LineChart:
    """Effective training time against the time between failures."""
    series = {
        policy: [Point(INTERVALS[name], share) for name, share in points]
        for policy, points in advice.by_interval.items()
    }
    for name, (interval, share) in _PUBLISHED.items():
        series[name] = [Point(INTERVALS[interval], share)]
    return LineChart(
        "Effective training time against time between failures",
        "mean time between failures of the whole job",
        "share of the time",
        series,
        logarithmic=True,
        marks={seconds: name for name, seconds in INTERVALS.items()},
    )


def advice_page(advice: Advice) -> str:
    """One file that loads nothing and runs no script."""
    job, unit = advice.question.setting.job.name, advice.question.batch.unit
    policies = list(advice.by_interval)
    price = advice.question.price
    scale, what = (1.0, "GPU-hours") if price is None else (price, "cost")
    costs = {
        policy: [Point(one.machines, one.per_million * scale) for one in advice.of(policy)]
        for policy in policies
    }
    rates = {
        policy: [Point(one.machines, one.throughput) for one in advice.of(policy)] for policy in policies
    }
    numbers = advice.question.machines
    marks = {float(count): str(count) for count in numbers[:: 1 + len(numbers) // 12]}
    charts = (
        LineChart(f"Throughput against machines ({unit})", "machines", unit, rates, marks=marks),
        LineChart(
            f"{what} per million of {unit.partition('/')[0]} against machines",
            "machines",
            what,
            costs,
            y_from_zero=False,
            marks=marks,
        ),
        interval_chart(advice),
    )
    title = escape(f"Advice for {job}")
    figures = "".join(f"<figure>{chart.svg()}</figure>" for chart in charts)
    reasons = "".join(f"<li>{escape(line)}</li>" for line in why(advice))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{title}</title><style>{_STYLE}</style>"
    )
    return (
        f"{head}<main><h1>{title}</h1><ul>{reasons}</ul>{figures}<pre>{escape(_tables(advice))}</pre>"
        f"<p>Made by {escape(MADE_BY)} advise. This file loads nothing.</p></main></html>\n"
    )


_STYLE = (
    "body{margin:0;font:15px/1.5 system-ui,sans-serif;background:#fff;color:#1d232b}"
    "main{max-width:60rem;margin:auto;padding:1rem}figure{margin:1.5rem 0;overflow-x:auto}"
    "pre{overflow-x:auto;font-size:13px}"
    "@media(prefers-color-scheme:dark){body{background:#14181d;color:#e6eaee}}"
)
