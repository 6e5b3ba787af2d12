"""The `memory` block: what each worker has for activations, and whether one fits at all."""

from recycle_compiler.frontend.amounts import read_amount
from recycle_compiler.frontend.costs import Costs
from recycle_compiler.frontend.names import Sections
from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.schema import MEMORY_UNITS
from recycle_compiler.frontend.syntax import Listing, Name, Setting
from recycle_compiler.frontend.values import item_span, items_of, per_stage
from recycle_compiler.frontend.wording import quote, spell
from recycle_compiler.ir.job import MEMORY_SCALE

Capacity = tuple[int | None, ...]


def capacity_setting(sections: Sections) -> Setting | None:
    """The `capacity` of the `memory` block, if there is one."""
    memory = sections.get("memory")
    return memory.settings.get("capacity") if memory else None


def read_capacity(
    setting: Setting | None, memory_unit: str, stages: int | None, report: Report
) -> Capacity | None:
    """Capacity per stage as stated, in the scale of the memory unit; None per stage is unlimited."""
    if setting is None:
        return None if stages is None else (None,) * stages
    items = items_of(setting.value)
    if items is None:
        hint = "write `80 GiB`, a plain count, or `unlimited`"
        message = f"capacity must be an amount, got {spell(setting.value)}"
        report.error("type", message, setting.value.span, hint)
        return None
    amounts: list[int | None] = []
    good = True
    for item in items:
        if isinstance(item, Name):
            amounts.append(None)
            good = _check_unlimited(item, report) and good
            continue
        amount = read_amount(item, "capacity", memory_unit, report)
        amounts.append(amount)
        good = amount is not None and good
    return per_stage(setting, tuple(amounts), stages, report) if good else None


def for_activations(capacity: Capacity, costs: Costs, setting: Setting | None, report: Report) -> Capacity:
    """Capacity less what is resident; reports stages that cannot hold one micro-batch."""
    if setting is None:
        return capacity
    left = tuple(
        None if whole is None else whole - taken
        for whole, taken in zip(capacity, costs.resident, strict=True)
    )
    short = {
        stage: needed - rest
        for stage, (rest, needed) in enumerate(zip(left, costs.activation, strict=True))
        if rest is not None and rest < needed
    }
    # One value for all stages is one mistake: the stage that needs most shows it.
    shown = (
        short if isinstance(setting.value, Listing) else sorted(short, key=lambda stage: -short[stage])[:1]
    )
    for stage in shown:
        _report_short(stage, capacity[stage] or 0, costs, setting, report)
    return left


def _report_short(stage: int, whole: int, costs: Costs, setting: Setting, report: Report) -> None:
    unit, resident = costs.memory_unit, costs.resident[stage]
    needs = f"one micro-batch on stage {stage} needs {spell_amount(costs.activation[stage], unit)}"
    if resident:
        needs += f" besides {spell_amount(resident, unit)} of weights, gradients and optimizer state"
    message = f"{needs}, capacity is {spell_amount(whole, unit)}"
    hint = "raise the capacity, or use smaller micro-batches or more stages"
    report.error("memory-too-small", message, item_span(setting, stage), hint, no_plan=True)


def spell_amount(amount: int, memory_unit: str) -> str:
    """An amount as people write it; bytes are rounded to two decimals of the largest fitting unit."""
    if memory_unit == "count":
        whole, rest = divmod(amount, MEMORY_SCALE["count"])
        return f"{whole}.{rest:03}".rstrip("0").rstrip(".")
    name, size = [pair for pair in MEMORY_UNITS.items() if pair[1] <= max(amount, 1)][-1]
    hundredths = (100 * amount + size // 2) // size
    whole, rest = divmod(hundredths, 100)
    return f"{whole}.{rest:02}".rstrip("0").rstrip(".") + f" {name}"


def _check_unlimited(word: Name, report: Report) -> bool:
    if word.text == "unlimited":
        return True
    message = f"capacity must be an amount or `unlimited`, got {quote(word.text)}"
    report.error("type", message, word.span, "did you mean `unlimited`?")
    return False
