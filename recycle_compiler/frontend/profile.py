"""The `profile` block: what each stage costs, written out."""

from collections.abc import Mapping

from recycle_compiler.frontend.check import Section
from recycle_compiler.frontend.costs import STEADY, ChunkCosts
from recycle_compiler.frontend.diagnostics import Mistakes, spell
from recycle_compiler.frontend.syntax import SyntaxSetting
from recycle_compiler.frontend.values import (
    Over,
    item_span,
    memory_unit_of,
    read_amounts,
    read_times,
    read_unit,
)
from recycle_compiler.ir.job import MEMORY_SCALE, STRICTLY_POSITIVE

TIMES = ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "gather", "transfer")
MEMORY = ("activation", "kept_for_weight", "sharded")
Values = tuple[int, ...]


def read_profile_block(
    section: Section, capacity: SyntaxSetting | None, stages: int | None, report: Mistakes
) -> ChunkCosts | None:
    """The costs that a profile block states; the capacity has a say in what memory is counted in."""
    settings = section.settings
    unit = read_unit(settings.get("unit"), report)
    over = Over(stages)
    times = {key: read_times_or_zero(section, key, unit, over, report) for key in TIMES}
    stated = [settings[key] for key in MEMORY if key in settings]
    memory_unit = memory_unit_of([*stated, capacity] if capacity else stated)
    activation, kept = read_memory(section, memory_unit, over, report)
    state = read_amounts_or_zero(section, "sharded", memory_unit, over, report)
    exchange = read_times_or_zero(section, "exchange", unit, over, report)
    if unit is None or stages is None or activation is None or kept is None or state is None:
        return None
    known_times = {key: values for key, values in times.items() if values is not None}
    if len(known_times) < len(times) or exchange is None:
        return None
    known_times |= with_exchange(known_times, exchange)
    nothing = (0,) * stages
    return ChunkCosts(
        unit=unit,
        memory_unit=memory_unit,
        activation=activation,
        kept_for_weight=kept,
        parameters=nothing,
        resident=nothing,
        state=state,
        exchange=exchange if any(exchange) else (),
        span=section.span,
        variation=STEADY,
        **known_times,
    )


def with_exchange(times: Mapping[str, Values], exchange: Values) -> dict[str, Values]:
    """Times of a round: what it computes, and its tokens on their way."""
    return {
        key: tuple(map(sum, zip(times[key], exchange, strict=True))) for key in ("forward", "backward_input")
    }


def read_times_or_zero(
    section: Section, key: str, unit: str | None, over: Over, report: Mistakes
) -> Values | None:
    """Ticks per stage or layer; nothing stated is zero, where that is allowed."""
    setting = section.settings.get(key)
    least = 1 if key in STRICTLY_POSITIVE else 0
    transfer = key == "transfer"
    if setting is None:
        return None if least or over.count is None else (0,) * (over.count - transfer)
    # Nothing is sent from the last one, so its transfer may be given and is not used.
    times = read_times(setting, unit, over, least, report, spare=int(transfer))
    return times[: over.count - 1] if transfer and times and over.count else times


def read_amounts_or_zero(
    section: Section, key: str, memory_unit: str, over: Over, report: Mistakes
) -> Values | None:
    """Memory per stage or layer; nothing stated is none."""
    setting = section.settings.get(key)
    if setting is None:
        return None if over.count is None else (0,) * over.count
    return read_amounts(setting, memory_unit, over, report)


def read_memory(
    section: Section, memory_unit: str, over: Over, report: Mistakes
) -> tuple[Values | None, Values | None]:
    """Memory held from F, and the part of it that stays between I and W: all, where the job does not say."""
    activation = _activation(section, memory_unit, over, report)
    setting = section.settings.get("kept_for_weight")
    if setting is None:
        return activation, activation
    kept = read_amounts(setting, memory_unit, over, report)
    _check_kept(kept, activation, over.noun, setting, report)
    return activation, kept


def _activation(section: Section, memory_unit: str, over: Over, report: Mistakes) -> Values | None:
    if setting := section.settings.get("activation"):
        return read_amounts(setting, memory_unit, over, report)
    if section.names("activation"):
        return None
    if memory_unit == "byte":
        message = f"block `{section.block.head.text}` has no setting `activation`, and memory is in bytes"
        report.error("missing", message, section.span, "write `activation = 96 MiB`")
        return None
    return None if over.count is None else (MEMORY_SCALE["count"],) * over.count


def _check_kept(
    kept: Values | None, activation: Values | None, noun: str, setting: SyntaxSetting, report: Mistakes
) -> None:
    for index, (part, whole) in enumerate(zip(kept or (), activation or (), strict=False)):
        if part > whole:
            message = (
                f"kept_for_weight cannot exceed activation on {noun} {index}, got {spell(setting.value)}"
            )
            hint = "it is the part of the activation that stays after the input gradient"
            report.error("range", message, item_span(setting, index), hint)
            return
