"""The `memory` block: what a worker can hold."""

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.check import Sections
from recycle_compiler.frontend.costs import ChunkCosts
from recycle_compiler.frontend.diagnostics import Mistakes, quote, spell
from recycle_compiler.frontend.schema import MEMORY_UNITS
from recycle_compiler.frontend.syntax import Listing, Name, SyntaxSetting
from recycle_compiler.frontend.values import Over, item_span, items_of, per_each, read_amount
from recycle_compiler.ir.job import MEMORY_SCALE

Capacity = tuple[int | None, ...]


def capacity_setting(sections: Sections) -> SyntaxSetting | None:
    """The `capacity` of the `memory` block, if there is one."""
    memory = sections.get("memory")
    return memory.settings.get("capacity") if memory else None


def read_capacity(
    setting: SyntaxSetting | None, memory_unit: str, stages: int | None, report: Mistakes
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
    return per_each(setting, tuple(amounts), Over(stages), report) if good else None


def for_activations(
    capacity: Capacity,
    costs: ChunkCosts,
    setting: SyntaxSetting | None,
    report: Mistakes,
    overhead: int = 0,
    shared: tuple[int, ...] = (),
) -> Capacity:
    """Capacity less what every worker of a stage has in it; reports stages that cannot hold one micro-batch.

    `shared` is what a worker keeps of a state that is shared out: it must fit too, and is still to be taken
    off.
    """
    if setting is None:
        return capacity
    shared = shared or (0,) * len(capacity)
    left = tuple(
        None if whole is None else whole - taken - overhead
        for whole, taken in zip(capacity, costs.resident, strict=True)
    )
    short = {
        stage: needed + kept - rest
        for stage, (rest, needed, kept) in enumerate(zip(left, costs.activation, shared, strict=True))
        if rest is not None and rest < needed + kept
    }
    # One value for all stages is one mistake: the stage that needs most shows it.
    shown = (
        short if isinstance(setting.value, Listing) else sorted(short, key=lambda stage: -short[stage])[:1]
    )
    for stage in shown:
        taken = costs.resident[stage] + shared[stage] + overhead
        needed = (costs.activation[stage], taken, capacity[stage] or 0)
        report_short(f"stage {stage}", needed, costs.memory_unit, item_span(setting, stage), report)
    return left


def report_short(
    where: str, needed: tuple[int, int, int], memory_unit: str, span: Span, report: Mistakes
) -> None:
    """Report a stage or layer that does not fit: what it needs to run, to be there, and what there is."""
    activation, resident, whole = (spell_amount(amount, memory_unit) for amount in needed)
    needs = f"one micro-batch on {where} needs {activation}"
    if needed[1]:
        needs += f" besides {resident} of weights, gradients and optimizer state"
    message = f"{needs}, capacity is {whole}"
    hint = "raise the capacity, or use smaller micro-batches" + " or more stages" * where.startswith("stage")
    report.error("memory-too-small", message, span, hint, no_plan=True)


def spell_amount(amount: int, memory_unit: str) -> str:
    """An amount as people write it; bytes are rounded to two decimals of the largest fitting unit."""
    if memory_unit == "count":
        whole, rest = divmod(amount, MEMORY_SCALE["count"])
        return f"{whole}.{rest:03}".rstrip("0").rstrip(".")
    name, size = [pair for pair in MEMORY_UNITS.items() if pair[1] <= max(amount, 1)][-1]
    hundredths = (100 * amount + size // 2) // size
    whole, rest = divmod(hundredths, 100)
    return f"{whole}.{rest:02}".rstrip("0").rstrip(".") + f" {name}"


def _check_unlimited(word: Name, report: Mistakes) -> bool:
    if word.text == "unlimited":
        return True
    message = f"capacity must be an amount or `unlimited`, got {quote(word.text)}"
    report.error("type", message, word.span, "did you mean `unlimited`?")
    return False
