"""Times and amounts of memory per stage: units, exactness and range."""

from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.schema import MEMORY_UNITS, TIME_UNITS
from recycle_compiler.frontend.syntax import Name, Quantity, Setting
from recycle_compiler.frontend.values import (
    check_range,
    check_unit,
    items_of,
    meaning_of,
    per_stage,
    read_decimal,
)
from recycle_compiler.frontend.wording import one_of, spell
from recycle_compiler.ir.job import MEMORY_SCALE, TICKS_PER_UNIT


def read_times(
    setting: Setting, unit: str | None, stages: int | None, least: int, report: Report, spare: int = 0
) -> tuple[int, ...] | None:
    """Ticks per stage; `unit` is that of plain numbers, None when the job got it wrong."""
    items = _quantities(setting, "a time", report)
    if items is None:
        return None
    ticks = [_read_time(item, setting.key.text, unit, least, report) for item in items]
    known = tuple(one for one in ticks if one is not None)
    return per_stage(setting, known, stages, report, spare) if len(known) == len(ticks) else None


def read_duration(setting: Setting, least: int, most: int, report: Report) -> int | None:
    """One time in nanoseconds, with a unit of its own."""
    key, value = setting.key.text, setting.value
    real = TIME_UNITS[1:]
    if not isinstance(value, Quantity) or value.unit is None:
        message = f"{key} needs a time with a unit, got {spell(value)}"
        report.error("unit", message, value.span, meaning_of(key))
        return None
    decimal = read_decimal(value, report) if check_unit(value, key, real, report) else None
    if decimal is None:
        return None
    nanoseconds = decimal.floor_of(TICKS_PER_UNIT[value.unit.text])
    if not least <= nanoseconds <= most:
        allowed = "more than 0 s" if nanoseconds < least else f"at most {most // 10**9:,} s"
        report.error("range", f"{key} must be {allowed}, got {spell(value)}", value.span, meaning_of(key))
        return None
    return nanoseconds


def memory_unit_of(settings: list[Setting]) -> str:
    """What a job counts memory in: bytes as soon as one amount has such a unit."""
    for setting in settings:
        for item in items_of(setting.value) or ():
            if isinstance(item, Quantity) and item.unit and item.unit.text in MEMORY_UNITS:
                return "byte"
    return "count"


def read_amounts(
    setting: Setting, memory_unit: str, stages: int | None, report: Report
) -> tuple[int, ...] | None:
    """Memory per stage, in the scale of the memory unit."""
    items = _quantities(setting, "an amount", report)
    if items is None:
        return None
    amounts = [read_amount(item, setting.key.text, memory_unit, report) for item in items]
    known = tuple(one for one in amounts if one is not None)
    return per_stage(setting, known, stages, report) if len(known) == len(amounts) else None


def read_amount(value: Quantity, key: str, memory_unit: str, report: Report) -> int | None:
    """One amount of memory; zero needs no unit."""
    decimal = read_decimal(value, report) if check_unit(value, key, tuple(MEMORY_UNITS), report) else None
    if decimal is None:
        return None
    if memory_unit == "byte" and value.unit is None and decimal.numerator:
        hint = f"write `{value.digits} MiB`, or plain counts for activation and capacity alike"
        report.error(
            "unit", f"{key} needs a unit where memory is in bytes, got {spell(value)}", value.span, hint
        )
        return None
    scale = MEMORY_UNITS[value.unit.text] if value.unit else MEMORY_SCALE[memory_unit]
    amount = decimal.scaled(scale)
    if amount is None:
        smallest = "whole bytes" if value.unit else "thousandths"
        _report_precision(value, key, smallest, report)
        return None
    return amount if check_range(amount, 0, scale, key, value, report) else None


def _read_time(value: Quantity, key: str, unit: str | None, least: int, report: Report) -> int | None:
    decimal = read_decimal(value, report) if check_unit(value, key, TIME_UNITS, report) else None
    if decimal is None or unit is None:
        return None
    own = value.unit.text if value.unit else unit
    if (own == "slot") != (unit == "slot") and decimal.numerator:
        hint = f"write `unit = {own}` in the profile" if unit == "slot" else "give it in us, ms or s"
        message = f"{key} cannot be in `{own}` where the unit is `{unit}`, got {spell(value)}"
        report.error("unit", message, value.span, hint)
        return None
    scale = TICKS_PER_UNIT[own]
    ticks = decimal.scaled(scale)
    if ticks is None:
        _report_precision(
            value, key, "thousandths of a slot" if own == "slot" else "whole nanoseconds", report
        )
        return None
    return ticks if check_range(ticks, least, scale, key, value, report) else None


def _report_precision(value: Quantity, key: str, smallest: str, report: Report) -> None:
    hint = f"{key} is kept in {smallest}; round it to that"
    report.error("precision", f"{key} has more digits than are kept, got {spell(value)}", value.span, hint)


def _quantities(setting: Setting, what: str, report: Report) -> tuple[Quantity, ...] | None:
    """The numbers of a setting; None when something else is among them."""
    items = items_of(setting.value)
    if items is None:
        items = (setting.value,)
    wrong = [item for item in items if not isinstance(item, Quantity)]
    for item in wrong:
        hint = "write a number, or a list with one for each stage"
        report.error("type", f"{setting.key.text} must be {what}, got {spell(item)}", item.span, hint)
    return None if wrong else tuple(item for item in items if isinstance(item, Quantity))


def read_unit(setting: Setting | None, report: Report) -> str | None:
    """The unit of plain times: slots unless the job says otherwise; None when it is no unit."""
    if setting is None:
        return "slot"
    value = setting.value
    if isinstance(value, Name) and value.text in TIME_UNITS:
        return value.text
    report.error(
        "unit", f"unit must be {one_of(TIME_UNITS)}, got {spell(value)}", value.span, "write `unit = ms`"
    )
    return None
