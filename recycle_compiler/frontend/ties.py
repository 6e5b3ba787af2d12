"""Layers that share parameters: `parallel { tied = ends  tied_reduce = 0.4 ms }`.

The gradients of what they share are summed over the workers of all of them, so these reduce together. A job
in layers names layers, a job of whole stages names stages; `ends` are the first and the last.
"""

from typing import NamedTuple

from recycle_compiler.frontend.check import Sections
from recycle_compiler.frontend.costs import ChunkCosts, LayeredCosts
from recycle_compiler.frontend.cut import setting_of
from recycle_compiler.frontend.diagnostics import Mistakes, quote, spell
from recycle_compiler.frontend.gpt_model import ModelLayers, tie_time
from recycle_compiler.frontend.syntax import Listing, Name, SyntaxSetting
from recycle_compiler.frontend.values import Over, items_of, meaning_of, read_times, read_whole


class Ties(NamedTuple):
    """Layers or stages that share parameters, as a job gives them."""

    tied: tuple[int, ...] = ()
    """Numbers of layers, or of stages."""
    reduce: int = 0
    """Ticks that a reduction takes longer for it."""


def read_ties(sections: Sections, source: ChunkCosts | LayeredCosts, report: Mistakes) -> Ties | None:
    """None when the report says what is wrong."""
    setting, cost = (setting_of(sections, "parallel", key) for key in ("tied", "tied_reduce"))
    if setting is None:
        if cost is not None:
            message = "`tied_reduce` is given, but not which layers are tied"
            report.error("conflict", message, cost.key.span, "write `tied = ends`, or remove it")
        return Ties()
    is_in_stages = isinstance(source, ChunkCosts)
    count = len(source.forward) if is_in_stages else source.costs.count
    tied = _read_tied(setting, count, "stage" if is_in_stages else "layer", report)
    if cost is not None:
        times = read_times(cost, source.unit, Over(1), 0, report)
        reduce = times[0] if times else None
    else:
        reduce = tie_time(source) if isinstance(source, ModelLayers) else 0
    if tied is None or reduce is None:
        return None
    return Ties(tied, reduce if tied else 0)


def _read_tied(setting: SyntaxSetting, count: int, noun: str, report: Mistakes) -> tuple[int, ...] | None:
    value = setting.value
    if isinstance(value, Name) and value.text == "ends":
        return (0, count - 1) if count > 1 else ()
    items = items_of(value) if isinstance(value, Listing) else None
    if items is None:
        message = f"tied must be `ends` or a list of {noun}s, got {spell(value)}"
        report.error("type", message, value.span, meaning_of("tied"))
        return None
    for item in items:
        if isinstance(item, Name):
            message = f"tied must be numbers of {noun}s, got {quote(item.text)}"
            report.error("type", message, item.span, meaning_of("tied"))
    numbers = [
        read_whole(SyntaxSetting(setting.key, item), report, 0, count - 1)
        for item in items
        if not isinstance(item, Name)
    ]
    known = sorted({number for number in numbers if number is not None})
    if len(known) == len(items) > 1:
        return tuple(known)
    if all(number is not None for number in numbers) and len(numbers) == len(items):
        message = f"tied must name two or more different {noun}s, got {spell(value)}"
        report.error("range", message, value.span, meaning_of("tied"))
    return None
