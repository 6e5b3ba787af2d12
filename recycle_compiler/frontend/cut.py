"""Cuts of a job in layers, in the beginning and later: `cut`, `recut`, `groups` ...

The job's own cut is the one it says; else that of its model; else the most even one. A job with `workers`
gets the fewest stages that fit, with its workers spread evenly: the compiler starts from there.
"""

from dataclasses import dataclass, replace

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.balance import balanced_cut, fewest_stages
from recycle_compiler.frontend.capacity import report_short
from recycle_compiler.frontend.check import Sections
from recycle_compiler.frontend.costs import ChunkCosts, Cut, LayeredCosts
from recycle_compiler.frontend.diagnostics import Mistakes, quantity, quote, spell
from recycle_compiler.frontend.shape import MOST_GPUS, GivenShape, check_ops
from recycle_compiler.frontend.syntax import Listing, Name, SyntaxSetting
from recycle_compiler.frontend.values import LARGEST, Over, items_of, meaning_of, per_each, read_whole
from recycle_compiler.ir.job import DEFAULT_REDUNDANCY
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import grid_width
from recycle_compiler.ir.sharding import shares_of
from recycle_compiler.ir.units import plural

IN_LAYERS = "give costs by layer: `model gpt { ... }`, a profile by layer, or `layers { ... }`"


@dataclass(frozen=True, slots=True)
class FirstCut:
    """A job in layers as it is cut in the beginning."""

    cut: Cut
    pipelines: int
    microbatches: int
    """Per pipeline."""
    costs: ChunkCosts
    layer_costs: LayerCosts
    redundancy: int
    free_workers: int
    """Of a job that leaves stages and pipelines to the compiler; 0 in any other."""


def setting_of(sections: Sections, block: str, key: str) -> SyntaxSetting | None:
    """A setting, if the job has it."""
    section = sections.get(block)
    return section.settings.get(key) if section else None


def read_recut(sections: Sections, report: Mistakes) -> bool | None:
    """True if the job may be re-cut; None where it does not say."""
    word = _word_of(sections, "recut", ("on", "off"), report)
    return None if word is None else word == "on"


def read_grouping(sections: Sections, report: Mistakes) -> bool:
    """True if groups of pipelines may have cuts of their own."""
    return _word_of(sections, "groups", ("auto", "off"), report) != "off"


def _word_of(sections: Sections, key: str, words: tuple[str, str], report: Mistakes) -> str | None:
    """One of two words that a setting of the parallel block holds; None where the job does not say."""
    setting = setting_of(sections, "parallel", key)
    if setting is None:
        return None
    value = setting.value
    if isinstance(value, Name) and value.text in words:
        return value.text
    message = f"{key} must be `{words[0]}` or `{words[1]}`, got {spell(value)}"
    report.error("type", message, value.span, meaning_of(key))
    return None


def refuse_layer_settings(sections: Sections, report: Mistakes) -> None:
    """Report what only a job in layers may say, in a job that gives whole stages."""
    setting = setting_of(sections, "parallel", "recut")
    if setting and isinstance(setting.value, Name) and setting.value.text == "on":
        message = "a job that gives whole stages cannot be re-cut"
        report.error("cannot-recut", message, setting.value.span, f"{IN_LAYERS}; or write `recut = off`")
    for block, key in (("parallel", "workers"), ("parallel", "cut"), ("tolerate", "redundancy")):
        if setting := setting_of(sections, block, key):
            message = f"`{key}` needs a job in layers, and this one gives whole stages"
            report.error("conflict", message, setting.key.span, IN_LAYERS)


def check_recut(
    sections: Sections,
    shape: GivenShape,
    recut: bool | None,
    capacity: SyntaxSetting | None,
    report: Mistakes,
) -> None:
    """Report what keeps a job in layers from being re-cut, or cut by the compiler in the beginning."""
    if shape.is_free and (setting := setting_of(sections, "parallel", "cut")):
        message = "parallel has both `workers` and `cut`"
        hint = "remove one of them: `workers` leaves `cut` to the compiler"
        report.error("conflict", message, setting.key.span, hint)
    if shape.is_free and recut is False and (setting := setting_of(sections, "parallel", "recut")):
        message = "`workers` leaves the cut to the compiler, so there is none to keep"
        hint = "remove `recut = off`, or give `pipeline` and `data`"
        report.error("conflict", message, setting.value.span, hint)
    fixed = recut is False and not shape.is_free
    if not fixed and capacity and isinstance(capacity.value, Listing):
        message = f"a job with a capacity for each stage cannot be re-cut, got {spell(capacity.value)}"
        hint = "write one capacity for all workers" + ("" if shape.is_free else ", or `recut = off`")
        report.error("cannot-recut", message, capacity.value.span, hint)


def read_start(
    layers: LayeredCosts,
    capacity: int | None,
    failures: int | None,
    owners: int,
    sections: Sections,
    shape: GivenShape,
    report: Mistakes,
) -> FirstCut | None:
    """Read the cut that a job in layers starts with; `capacity` is that of every worker."""
    costs = replace(layers.costs, capacity=capacity)
    if shape.is_free:
        start = _free_start(layers, costs, failures, owners, sections, shape, report)
    else:
        start = _given_start(layers, costs, owners, sections, shape, report)
    return start if start and _check_largest(start.costs, report) else None


def _with_shares(costs: LayerCosts, owners: int, workers: int) -> LayerCosts:
    """The costs with what each of so many workers keeps of a state that is shared out."""
    shares = shares_of(costs.state, owners, workers)
    return replace(costs, resident=tuple(map(sum, zip(costs.resident, shares, strict=True))))


def _given_start(
    layers: LayeredCosts,
    costs: LayerCosts,
    owners: int,
    sections: Sections,
    shape: GivenShape,
    report: Mistakes,
) -> FirstCut | None:
    redundancy = _read_redundancy(sections, shape.pipelines, "pipeline", report)
    if not (shape.stages and shape.pipelines and shape.microbatches):
        return None
    held = _with_shares(costs, owners, shape.pipelines)
    cut = _read_cut(layers, held, shape.stages, sections, report)
    if cut is None or redundancy is None:
        return None
    stage_costs = layers.stage_costs(cut, shape.pipelines)
    return FirstCut(cut, shape.pipelines, shape.microbatches, stage_costs, costs, redundancy, free_workers=0)


def _read_cut(
    layers: LayeredCosts, costs: LayerCosts, stages: int, sections: Sections, report: Mistakes
) -> Cut | None:
    """The layers of each stage: as the job says, or as the model or the costs have it."""
    if setting := setting_of(sections, "parallel", "cut"):
        return _read_given_cut(setting, costs.count, stages, report)
    if stages > costs.count:
        # A model has said so in words of its own.
        if "model" not in sections and (setting := setting_of(sections, "parallel", "pipeline")):
            message = f"pipeline may be at most {costs.count:,}, one stage for each layer, got {stages:,}"
            report.error("range", message, setting.value.span, "lower `pipeline`")
        return None
    usual = layers.usual_cut(stages)
    if usual:
        return usual
    # Where no cut fits, one that disregards memory shows what is missing.
    return balanced_cut(costs, stages) or balanced_cut(replace(costs, capacity=None), stages)


def _read_given_cut(setting: SyntaxSetting, layers: int, stages: int, report: Mistakes) -> Cut | None:
    items = items_of(setting.value) if isinstance(setting.value, Listing) else None
    if items is None:
        message = f"cut must be a list, got {spell(setting.value)}"
        report.error("type", message, setting.value.span, meaning_of("cut"))
        return None
    numbers = [
        None if isinstance(item, Name) else read_whole(SyntaxSetting(setting.key, item), report, 1, layers)
        for item in items
    ]
    for item in items:
        if isinstance(item, Name):
            report.error("type", f"cut must be numbers, got {quote(item.text)}", item.span, meaning_of("cut"))
    known = tuple(number for number in numbers if number is not None)
    cut = per_each(setting, known, Over(stages), report) if len(known) == len(numbers) else None
    if cut is None or sum(cut) == layers:
        return cut
    message = f"the stages of `cut` must have all {quantity(layers, 'layer')} of the job, got {sum(cut):,}"
    report.error("range", message, setting.value.span, "the embedding and the head are layers too")
    return None


def _read_redundancy(sections: Sections, most: int | None, noun: str, report: Mistakes) -> int | None:
    """Read the number of workers that hold each layer; never more than there are in the beginning."""
    setting = setting_of(sections, "tolerate", "redundancy")
    if setting is None:
        section = sections.get("tolerate")
        if section and section.names("redundancy"):
            return None
        return min(DEFAULT_REDUNDANCY, most or DEFAULT_REDUNDANCY)
    redundancy = read_whole(setting, report, 1, MOST_GPUS)
    if redundancy is None or most is None or redundancy <= most:
        return redundancy
    message = f"redundancy may be at most {most:,}, the number of {noun}s, got {redundancy:,}"
    hint = f"lower `redundancy`, or raise `{'data' if noun == 'pipeline' else 'workers'}`"
    report.error("range", message, setting.value.span, hint)
    return None


def _free_start(
    layers: LayeredCosts,
    costs: LayerCosts,
    failures: int | None,
    owners: int,
    sections: Sections,
    shape: GivenShape,
    report: Mistakes,
) -> FirstCut | None:
    redundancy = _read_redundancy(sections, shape.workers, "worker", report)
    if not (shape.workers and shape.microbatches and redundancy):
        return None
    workers, microbatches = shape.workers, shape.microbatches
    # With more stages fewer workers share the state of each.
    per_stage = (
        (stages, _with_shares(costs, owners, max(1, workers // stages))) for stages in range(1, workers + 1)
    )
    fitting = ((fewest_stages(held), held, stages) for stages, held in per_stage)
    needed, held = next(
        ((stages, held) for fewest, held, stages in fitting if fewest is not None and fewest <= stages),
        (None, _with_shares(costs, owners, 1)),
    )
    if needed is None:
        _report_layer_too_large(layers, held, sections, report)
        return None
    if not _check_held(redundancy, needed, workers, failures or 0, sections, report):
        return None
    # No stage can use more workers than there are micro-batches.
    least, most = max(needed, -(-workers // microbatches)), min(costs.count, workers // redundancy)
    if least > most:
        fewest = plural(-(-workers // most), "micro-batch")
        message = f"{workers:,} workers on {quantity(most, 'stage')} need {fewest}, got {microbatches:,}"
        hint = "use smaller micro-batches, or fewer workers"
        report.error("range", message, _batch_span(sections), hint)
        return None
    stages = _roomy_stages(held, least, most)
    if batch := sections.get("batch"):
        check_ops(stages, microbatches, batch, report)
    cut = balanced_cut(held, stages)
    assert cut is not None, "memory asks for no more stages than these"
    per_stage = -(-workers // stages)
    pipelines = grid_width(microbatches, per_stage)
    return FirstCut(
        cut,
        pipelines,
        microbatches // pipelines,
        layers.stage_costs(cut, per_stage),
        costs,
        redundancy,
        free_workers=workers,
    )


def _roomy_stages(costs: LayerCosts, least: int, most: int) -> int:
    """The fewest stages, doubled until every worker could hold a micro-batch for each stage, as 1F1B does."""
    stages = least
    while stages <= most:
        roomy = replace(costs, activation=tuple(stages * amount for amount in costs.activation))
        if balanced_cut(roomy, stages):
            return stages
        stages *= 2
    return least


def _check_held(
    redundancy: int, stages: int, workers: int, failures: int, sections: Sections, report: Mistakes
) -> bool:
    """True if so many stages can be held so many times by the workers that remain."""
    if redundancy * stages <= workers - failures:
        return True
    needed = f"{redundancy * stages:,} ({quantity(stages, 'stage')} on {quantity(redundancy, 'worker')} each)"
    setting = setting_of(sections, "tolerate", "failures")
    if redundancy * stages <= workers and setting:
        most = workers - redundancy * stages
        message = f"{quantity(workers, 'worker')}, of which memory needs {needed}, survive at most "
        message += f"{quantity(most, 'failure')}, got {failures:,}"
        hint = "lower `failures` or `redundancy`, or raise `workers`"
        report.error("too-many-failures", message, setting.value.span, hint, no_plan=True)
        return False
    setting = setting_of(sections, "tolerate", "redundancy") or setting_of(sections, "parallel", "workers")
    message = f"memory needs at least {needed}, got {quantity(workers, 'worker')}"
    hint = "raise `workers` or the capacity, or lower `redundancy`"
    report.error("cannot-hold", message, setting.value.span if setting else None, hint, no_plan=True)
    return False


def _report_layer_too_large(
    layers: LayeredCosts, costs: LayerCosts, sections: Sections, report: Mistakes
) -> None:
    """Report the layer that needs most, where one alone is too much for a worker."""
    setting = setting_of(sections, "memory", "capacity")
    if setting is None or costs.capacity is None:
        return
    worst = max(range(costs.count), key=lambda layer: costs.resident[layer] + costs.activation[layer])
    needed = (costs.activation[worst], costs.resident[worst], costs.capacity)
    report_short(f"layer {worst}", needed, layers.memory_unit, setting.value.span, report)


def _check_largest(costs: ChunkCosts, report: Mistakes) -> bool:
    for name, values in costs.per_stage().items():
        if max(values, default=0) > LARGEST:
            message = f"{name} is absurdly large on one stage: {max(values):,}"
            report.error("too-large", message, costs.span, "check the sizes and units of the layers")
            return False
    return True


def _batch_span(sections: Sections) -> Span | None:
    setting = setting_of(sections, "batch", "microbatches") or setting_of(sections, "batch", "global")
    return setting.value.span if setting else None
