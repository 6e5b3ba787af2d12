"""The `layers` block: what each layer costs, written out.

layers {
  unit = ms
  forward = [0.2, 96 * 6.6, 5.3]          # embedding, 96 blocks, head
  backward_input = [0.1, 96 * 6.8, 5.7]
  backward_weight = [0.1, 96 * 6.3, 5.1]
  activation = 102 MiB                    # one value for all layers
}
"""

from recycle_compiler.frontend.check import Section
from recycle_compiler.frontend.costs import MeasuredLayers
from recycle_compiler.frontend.diagnostics import Mistakes, quantity, spell
from recycle_compiler.frontend.profile import (
    MEMORY,
    TIMES,
    read_amounts_or_zero,
    read_memory,
    read_times_or_zero,
    with_exchange,
)
from recycle_compiler.frontend.shape import GivenShape
from recycle_compiler.frontend.syntax import Listing, SyntaxSetting
from recycle_compiler.frontend.values import (
    Over,
    items_of,
    meaning_of,
    memory_unit_of,
    per_each,
    read_repeats,
    read_unit,
    read_whole,
)
from recycle_compiler.ir.layers import LayerCosts

MOST_LAYERS = 4_096
_MOST_EXPERTS = 1 << 16
_PER_LAYER = (*TIMES, *MEMORY, "parameters", "resident", "exchange", "experts")


def read_layers_block(
    section: Section, capacity: SyntaxSetting | None, shape: GivenShape, owners: int, report: Mistakes
) -> MeasuredLayers | None:
    """The costs that a layers block states; the capacity has a say in what memory is counted in."""
    settings = section.settings
    over = Over(_read_count(section, report), "layer")
    unit = read_unit(settings.get("unit"), report)
    columns = {key: read_times_or_zero(section, key, unit, over, report) for key in TIMES}
    stated = [settings[key] for key in (*MEMORY, "resident") if key in settings]
    memory_unit = memory_unit_of([*stated, capacity] if capacity else stated)
    columns["activation"], columns["kept_for_weight"] = read_memory(section, memory_unit, over, report)
    columns["parameters"] = read_amounts_or_zero(section, "parameters", "byte", over, report)
    columns["resident"] = read_amounts_or_zero(section, "resident", memory_unit, over, report)
    columns["state"] = read_amounts_or_zero(section, "sharded", memory_unit, over, report)
    exchange = read_times_or_zero(section, "exchange", unit, over, report)
    columns["expert_counts"] = _read_experts(section, over, report)
    known = {key: values for key, values in columns.items() if values is not None}
    if unit is None or exchange is None or len(known) < len(columns):
        return None
    known |= with_exchange(known, exchange)
    return MeasuredLayers(
        unit=unit,
        memory_unit=memory_unit,
        measured=LayerCosts(capacity=None, **known),
        reduce_workers=shape.pipelines,
        span=section.span,
        owners=owners,
        exchange=exchange if any(exchange) else (),
    )


def _read_experts(section: Section, over: Over, report: Mistakes) -> tuple[int, ...] | None:
    """Experts of each mixture in a layer; 0 where nothing is stated."""
    setting = section.settings.get("experts")
    if setting is None:
        return None if over.count is None else (0,) * over.count
    items = items_of(setting.value)
    if items is None:
        message = f"experts must be a number or a list of them, got {spell(setting.value)}"
        report.error("type", message, setting.value.span, meaning_of("experts"))
        return None
    numbers = [read_whole(SyntaxSetting(setting.key, item), report, 0, _MOST_EXPERTS) for item in items]
    known = tuple(number for number in numbers if number is not None)
    return per_each(setting, known, over, report) if len(known) == len(numbers) else None


def _read_count(section: Section, report: Mistakes) -> int | None:
    """Number of layers: as `count` says, or as many as the first list has values."""
    if setting := section.settings.get("count"):
        return read_whole(setting, report, 1, MOST_LAYERS)
    if section.names("count"):
        return None
    lists = [
        setting
        for key in _PER_LAYER
        if (setting := section.settings.get(key)) and isinstance(setting.value, Listing)
    ]
    # Values between layers are one fewer, and may be as many.
    lists.sort(key=lambda setting: setting.key.text == "transfer")
    if not lists or lists[0].key.text == "transfer":
        hint = "write `count = 32`, or a list with one value for each layer"
        report.error("missing", "block `layers` does not say how many layers there are", section.span, hint)
        return None
    return _length(lists[0], report)


def _length(setting: SyntaxSetting, report: Mistakes) -> int | None:
    repeats = read_repeats(setting, report)
    if repeats is None:
        return None
    total = sum(repeats)
    if 1 <= total <= MOST_LAYERS:
        return total
    message = f"a job has 1 to {MOST_LAYERS:,} layers, {setting.key.text} has {quantity(total, 'value')}"
    report.error("range", message, setting.value.span, "a layer is a transformer block, not an op")
    return None
