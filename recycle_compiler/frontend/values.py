"""Values of settings as exact integers, with an error for each that cannot be one."""

from dataclasses import dataclass
from typing import TypeVar

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend import schema
from recycle_compiler.frontend.check import report_unknown_unit
from recycle_compiler.frontend.diagnostics import Mistakes, any_of, quantity, quote, spell
from recycle_compiler.frontend.schema import MEMORY_UNITS, TIME_UNITS
from recycle_compiler.frontend.syntax import Listing, Name, Quantity, Repeat, SyntaxSetting, Value
from recycle_compiler.ir.job import MEMORY_SCALE, TICKS_PER_UNIT

LARGEST = 1 << 50
"""No time (in ticks) and no memory (in bytes) of one op may be larger, so that sums fit 64 bits."""
_MOST_DIGITS = 30
MOST_REPEATS = 1 << 16
"""Of one value in a list."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Over:
    """Stages of a job, or its layers: a list has one value for each."""

    count: int | None
    """None where the job got it wrong."""
    noun: str = "stage"


@dataclass(frozen=True, slots=True)
class Decimal:
    """An exact number: numerator / 10 ** places."""

    numerator: int
    places: int

    def scaled(self, factor: int) -> int | None:
        """The number times a factor, or None when that is not whole."""
        whole, rest = divmod(self.numerator * factor, 10**self.places)
        return None if rest else whole

    def floor_of(self, factor: int) -> int:
        """The number times a factor, rounded down."""
        return self.numerator * factor // 10**self.places


def read_decimal(quantity: Quantity, report: Mistakes) -> Decimal | None:
    """The number of a quantity, whatever its unit."""
    digits = quantity.digits
    if len(digits) > _MOST_DIGITS:
        message = f"a number has at most {_MOST_DIGITS} digits, got {len(digits):,}"
        report.error("range", message, quantity.span, "use a larger unit")
        return None
    if "e" in digits.lower():
        message = f"numbers have no exponents, got {quote(digits)}"
        report.error("type", message, quantity.span, "write it out in digits, or use another unit")
        return None
    before, _, after = digits.partition(".")
    return Decimal(int(before + after), len(after))


def read_whole(setting: SyntaxSetting, report: Mistakes, least: int, most: int) -> int | None:
    """A plain whole number within a range."""
    key, value = setting.key.text, setting.value
    if not isinstance(value, Quantity) or value.unit:
        message = f"{key} must be a plain whole number, got {spell(value)}"
        report.error("type", message, value.span, meaning_of(key))
        return None
    decimal = read_decimal(value, report)
    if decimal is None:
        return None
    number = decimal.scaled(1)
    if number is None:
        report.error("type", f"{key} must be a whole number, got {spell(value)}", value.span, meaning_of(key))
        return None
    if not least <= number <= most:
        allowed = f"at least {least:,}" if number < least else f"at most {most:,}"
        report.error("range", f"{key} must be {allowed}, got {spell(value)}", value.span, meaning_of(key))
        return None
    return number


def read_share(setting: SyntaxSetting, report: Mistakes, least_ppm: int = 0) -> Decimal | None:
    """A percentage between 0% (or a given least) and 100%, as a number of percent."""
    key, value = setting.key.text, setting.value
    if not isinstance(value, Quantity) or value.unit is None or value.unit.text != "%":
        message = f"{key} must be a percentage, got {spell(value)}"
        report.error("unit", message, value.span, meaning_of(key))
        return None
    decimal = read_decimal(value, report)
    if decimal is None:
        return None
    parts_per_million = decimal.scaled(10_000)
    if parts_per_million is None:
        message = f"{key} has more digits than are kept, got {spell(value)}"
        report.error("precision", message, value.span, "a percentage has at most 4 decimals")
        return None
    if not least_ppm <= parts_per_million <= 1_000_000:
        least = f"{least_ppm / 10_000:g}%"
        message = f"{key} must be between {least} and 100%, got {spell(value)}"
        report.error("range", message, value.span, meaning_of(key))
        return None
    return decimal


def meaning_of(key: str) -> str:
    """A hint that says what a setting is."""
    return schema.MEANINGS[key]


def items_of(value: Value) -> tuple[Quantity | Name, ...] | None:
    """Items of one value for all stages or of a list of values, each item once; None when it is text."""
    if isinstance(value, Listing):
        return tuple(item.item if isinstance(item, Repeat) else item for item in value.items)
    return (value,) if isinstance(value, Quantity | Name) else None


def read_repeats(setting: SyntaxSetting, report: Mistakes) -> tuple[int, ...] | None:
    """Number of times that each item of a list stands in it."""
    items = setting.value.items if isinstance(setting.value, Listing) else ()
    times = [_read_times_of(item, report) if isinstance(item, Repeat) else 1 for item in items]
    known = tuple(one for one in times if one is not None)
    return known if len(known) == len(times) else None


def _read_times_of(repeat: Repeat, report: Mistakes) -> int | None:
    digits = repeat.times.digits
    if len(digits) <= _MOST_DIGITS and digits.isdecimal() and 1 <= int(digits) <= MOST_REPEATS:
        return int(digits)
    message = f"a value is repeated 1 to {MOST_REPEATS:,} times, got {spell(repeat.times)}"
    report.error("range", message, repeat.times.span, "write `[2 * 1.5, 3]`")
    return None


def per_each(
    setting: SyntaxSetting, values: tuple[_Item, ...], over: Over, report: Mistakes, spare: int = 0
) -> tuple[_Item, ...] | None:
    """One value for each stage or layer; a single value stands for all, the last `spare` may be left out."""
    if over.count is None:
        return None
    if not isinstance(setting.value, Listing):
        return values * over.count
    repeats = read_repeats(setting, report)
    if repeats is None:
        return None
    total = sum(repeats)
    if over.count - spare <= total <= over.count:
        return tuple(value for value, times in zip(values, repeats, strict=True) for _ in range(times))
    key, span = setting.key.text, setting.value.span
    needed = f"{over.count - spare:,} or {over.count:,}" if spare else f"{over.count:,}"
    message = f"{key} needs {needed} values for {quantity(over.count, over.noun)}, got {total:,}"
    hint = f"give one value for each {over.noun}, or a single value for all of them"
    report.error("length", message, span, hint)
    return None


def check_unit(quantity: Quantity, key: str, allowed: tuple[str, ...], report: Mistakes) -> bool:
    """True if the unit, if there is one, is among those allowed; reports it when it is not."""
    unit = quantity.unit
    if unit is None or unit.text in allowed:
        return True
    if unit.text not in schema.UNITS:
        report_unknown_unit(unit, quantity.digits, report)
    else:
        message = f"{key} cannot be in `{unit.text}`, got {spell(quantity)}"
        report.error("unit", message, quantity.span, f"it takes {any_of(allowed)}")
    return False


def check_range(number: int, least: int, scale: int, key: str, value: Quantity, report: Mistakes) -> bool:
    """True if a time or an amount, `scale` to its unit, is neither too small nor absurdly large."""
    if least <= number <= LARGEST:
        return True
    if number > LARGEST:
        unit = f" {value.unit.text}" if value.unit else ""
        allowed, hint = f"at most {LARGEST // scale:,}{unit}", "check its unit"
    elif least > 0:
        allowed, hint = "more than 0", "an op takes time"
    else:
        allowed, hint = "at least 0", "0 means none"
    report.error("range", f"{key} must be {allowed}, got {spell(value)}", value.span, hint)
    return False


def item_span(setting: SyntaxSetting, index: int) -> Span:
    """Span of the value of one stage or layer."""
    value = setting.value
    for item in value.items if isinstance(value, Listing) else ():
        index -= int(item.times.digits) if isinstance(item, Repeat) else 1
        if index < 0:
            return item.span
    return value.span


def read_times(
    setting: SyntaxSetting, unit: str | None, over: Over, least: int, report: Mistakes, spare: int = 0
) -> tuple[int, ...] | None:
    """Ticks per stage or layer; `unit` is that of plain numbers, None when the job got it wrong."""
    items = _quantities(setting, "a time", over, report)
    if items is None:
        return None
    ticks = [_read_time(item, setting.key.text, unit, least, report) for item in items]
    known = tuple(one for one in ticks if one is not None)
    return per_each(setting, known, over, report, spare) if len(known) == len(ticks) else None


def read_duration(setting: SyntaxSetting, least: int, most: int, report: Mistakes) -> int | None:
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


def memory_unit_of(settings: list[SyntaxSetting]) -> str:
    """Unit in which a job counts memory: bytes as soon as one amount has such a unit."""
    for setting in settings:
        for item in items_of(setting.value) or ():
            if isinstance(item, Quantity) and item.unit and item.unit.text in MEMORY_UNITS:
                return "byte"
    return "count"


def read_amounts(
    setting: SyntaxSetting, memory_unit: str, over: Over, report: Mistakes
) -> tuple[int, ...] | None:
    """Memory per stage or layer, in the scale of the memory unit."""
    items = _quantities(setting, "an amount", over, report)
    if items is None:
        return None
    amounts = [read_amount(item, setting.key.text, memory_unit, report) for item in items]
    known = tuple(one for one in amounts if one is not None)
    return per_each(setting, known, over, report) if len(known) == len(amounts) else None


def read_amount(value: Quantity, key: str, memory_unit: str, report: Mistakes) -> int | None:
    """One amount of memory; zero needs no unit."""
    decimal = read_decimal(value, report) if check_unit(value, key, tuple(MEMORY_UNITS), report) else None
    if decimal is None:
        return None
    if memory_unit == "byte" and value.unit is None and decimal.numerator:
        hint = f"write `{value.digits} MiB`"
        # Bytes to copy are bytes in every job.
        if key != "parameters":
            hint += ", or plain counts for activation and capacity alike"
        report.error(
            "unit", f"{key} needs a unit where memory is in bytes, got {spell(value)}", value.span, hint
        )
        return None
    scale = MEMORY_UNITS[value.unit.text] if value.unit else MEMORY_SCALE[memory_unit]
    amount = decimal.scaled(scale)
    if amount is None and value.unit and scale > 1:
        # `1.8 MiB` is no whole number of bytes: what is there is rounded down, what is needed up.
        amount = decimal.floor_of(scale) + (key != "capacity")
    if amount is None:
        smallest = "whole bytes" if value.unit else "thousandths"
        _report_precision(value, key, smallest, report)
        return None
    return amount if check_range(amount, 0, scale, key, value, report) else None


def _read_time(value: Quantity, key: str, unit: str | None, least: int, report: Mistakes) -> int | None:
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


def _report_precision(value: Quantity, key: str, smallest: str, report: Mistakes) -> None:
    hint = f"{key} is kept in {smallest}; round it to that"
    report.error("precision", f"{key} has more digits than are kept, got {spell(value)}", value.span, hint)


def _quantities(
    setting: SyntaxSetting, what: str, over: Over, report: Mistakes
) -> tuple[Quantity, ...] | None:
    """The numbers of a setting; None when something else is among them."""
    items = items_of(setting.value)
    if items is None:
        items = (setting.value,)
    wrong = [item for item in items if not isinstance(item, Quantity)]
    for item in wrong:
        hint = f"write a number, or a list with one for each {over.noun}"
        report.error("type", f"{setting.key.text} must be {what}, got {spell(item)}", item.span, hint)
    return None if wrong else tuple(item for item in items if isinstance(item, Quantity))


def read_unit(setting: SyntaxSetting | None, report: Mistakes) -> str | None:
    """The unit of plain times: slots unless the job says otherwise; None when it is no unit."""
    if setting is None:
        return "slot"
    value = setting.value
    if isinstance(value, Name) and value.text in TIME_UNITS:
        return value.text
    report.error(
        "unit",
        f"unit must be {any_of(TIME_UNITS)}, got {spell(value)}",
        value.span,
        "write `unit = ms`",
    )
    return None
