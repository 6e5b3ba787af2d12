"""The `profile { ... }` block: times and memory as the user states them."""

from recycle_compiler.frontend.amounts import memory_unit_of, read_amounts, read_times, read_unit
from recycle_compiler.frontend.costs import TIMES, Costs
from recycle_compiler.frontend.names import Section
from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.syntax import Setting
from recycle_compiler.frontend.values import item_span
from recycle_compiler.frontend.wording import spell
from recycle_compiler.ir.job import MEMORY_SCALE, STRICTLY_POSITIVE

_MEMORY = ("activation", "kept_for_weight")


def read_profile_block(
    section: Section, capacity: Setting | None, stages: int | None, report: Report
) -> Costs | None:
    """The costs that a profile block states; the capacity has a say in what memory is counted in."""
    settings = section.settings
    unit = read_unit(settings.get("unit"), report)
    times = {key: _times_or_zero(section, key, unit, stages, report) for key in TIMES}
    stated = [settings[key] for key in _MEMORY if key in settings]
    memory_unit = memory_unit_of([*stated, capacity] if capacity else stated)
    activation = _activation(section, capacity, memory_unit, stages, report)
    kept = activation
    if setting := settings.get("kept_for_weight"):
        kept = read_amounts(setting, memory_unit, stages, report)
        _check_kept(kept, activation, setting, report)
    if unit is None or stages is None or activation is None or kept is None:
        return None
    known_times = {key: values for key, values in times.items() if values is not None}
    if len(known_times) < len(times):
        return None
    nothing = (0,) * stages
    return Costs(
        unit=unit,
        memory_unit=memory_unit,
        activation=activation,
        kept_for_weight=kept,
        parameters=nothing,
        resident=nothing,
        span=section.span,
        **known_times,
    )


def _times_or_zero(
    section: Section, key: str, unit: str | None, stages: int | None, report: Report
) -> tuple[int, ...] | None:
    """Ticks per stage; nothing stated is zero, where that is allowed."""
    setting = section.settings.get(key)
    least = 1 if key in STRICTLY_POSITIVE else 0
    transfer = key == "transfer"
    if setting is None:
        return None if least or stages is None else (0,) * (stages - transfer)
    # Nothing is sent from the last stage, so its transfer may be given and is not used.
    times = read_times(setting, unit, stages, least, report, spare=int(transfer))
    return times[: stages - 1] if transfer and times and stages else times


def _activation(
    section: Section, capacity: Setting | None, memory_unit: str, stages: int | None, report: Report
) -> tuple[int, ...] | None:
    if setting := section.settings.get("activation"):
        return read_amounts(setting, memory_unit, stages, report)
    if section.names("activation"):
        return None
    if memory_unit == "byte":
        message = "block `profile` has no setting `activation`, and memory is in bytes"
        report.error("missing", message, section.span, "write `activation = 96 MiB`")
        return None
    return None if stages is None else (MEMORY_SCALE["count"],) * stages


def _check_kept(
    kept: tuple[int, ...] | None, activation: tuple[int, ...] | None, setting: Setting, report: Report
) -> None:
    for stage, (part, whole) in enumerate(zip(kept or (), activation or (), strict=False)):
        if part > whole:
            message = f"kept_for_weight cannot exceed activation on stage {stage}, got {spell(setting.value)}"
            hint = "it is the part of the activation that stays after the input gradient"
            report.error("range", message, item_span(setting, stage), hint)
            return
