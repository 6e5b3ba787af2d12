"""Values of settings as exact integers, with an error for each that cannot be one."""

from dataclasses import dataclass
from typing import TypeVar

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend import schema
from recycle_compiler.frontend.names import report_unknown_unit
from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.syntax import Listing, Name, Quantity, Setting, Value
from recycle_compiler.frontend.wording import count, one_of, spell

LARGEST = 1 << 50
"""No time (in ticks) and no memory (in bytes) of one op may be larger, so that sums fit 64 bits."""
_MOST_DIGITS = 30

_Item = TypeVar("_Item")


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


def read_decimal(quantity: Quantity, report: Report) -> Decimal | None:
    """The number of a quantity, whatever its unit."""
    digits = quantity.digits
    if len(digits) > _MOST_DIGITS:
        message = f"a number has at most {_MOST_DIGITS} digits, got {len(digits):,}"
        report.error("range", message, quantity.span, "use a larger unit")
        return None
    before, _, after = digits.partition(".")
    return Decimal(int(before + after), len(after))


def read_whole(setting: Setting, report: Report, least: int, most: int) -> int | None:
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


def read_share(setting: Setting, report: Report, least_ppm: int = 0) -> Decimal | None:
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
    """What may be one value for all stages or a list of them, as a list; None when it is text."""
    if isinstance(value, Listing):
        return value.items
    return (value,) if isinstance(value, Quantity | Name) else None


def per_stage(
    setting: Setting, values: tuple[_Item, ...], stages: int | None, report: Report, spare: int = 0
) -> tuple[_Item, ...] | None:
    """One value for each stage; a single value stands for all, `spare` values may be left out at the end."""
    if stages is None:
        return None
    if not isinstance(setting.value, Listing):
        return values * stages
    if stages - spare <= len(values) <= stages:
        return values
    key, span = setting.key.text, setting.value.span
    needed = f"{stages - spare:,} or {stages:,}" if spare else f"{stages:,}"
    message = f"{key} needs {needed} values for {count(stages, 'stage')}, got {len(values):,}"
    report.error("length", message, span, "give one value for each stage, or a single value for all of them")
    return None


def check_unit(quantity: Quantity, key: str, allowed: tuple[str, ...], report: Report) -> bool:
    """Whether the unit, if there is one, is among those allowed; reports it when it is not."""
    unit = quantity.unit
    if unit is None or unit.text in allowed:
        return True
    if unit.text not in schema.UNITS:
        report_unknown_unit(unit, quantity.digits, report)
    else:
        message = f"{key} cannot be in `{unit.text}`, got {spell(quantity)}"
        report.error("unit", message, quantity.span, f"it takes {one_of(allowed)}")
    return False


def check_range(number: int, least: int, scale: int, key: str, value: Quantity, report: Report) -> bool:
    """Whether a time or an amount, `scale` to its unit, is neither too small nor absurdly large."""
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


def item_span(setting: Setting, stage: int) -> Span:
    """Where the value of one stage stands."""
    value = setting.value
    if isinstance(value, Listing) and stage < len(value.items):
        return value.items[stage].span
    return value.span
