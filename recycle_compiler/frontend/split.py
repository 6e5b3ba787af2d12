"""`split` of the batch block: whether plans under other cuts may split micro-batches, and at which cost.

batch { microbatches = 8  split = 4% }      two halves take 4 % longer than the whole
batch { microbatches = 8  split = auto }    as a profile by layer has measured it
"""

from recycle_compiler.frontend.check import Sections
from recycle_compiler.frontend.costs import ChunkCosts, LayeredCosts, MeasuredLayers
from recycle_compiler.frontend.cut import IN_LAYERS, setting_of
from recycle_compiler.frontend.diagnostics import Mistakes, spell
from recycle_compiler.frontend.syntax import Name, Quantity, SyntaxSetting
from recycle_compiler.frontend.values import meaning_of, read_share

_WORDS = ("off", "auto")


def read_split(
    sections: Sections, source: ChunkCosts | LayeredCosts | None, *, recut: bool, report: Mistakes
) -> int | None:
    """Read the extra time of two halves over the whole, in millionths; None if there are no halves."""
    setting = setting_of(sections, "batch", "split")
    if setting is None or (isinstance(setting.value, Name) and setting.value.text == "off"):
        return None
    if not _is_known(setting, report):
        return None
    if isinstance(source, ChunkCosts) or not recut:
        message = "micro-batches are split in plans under other cuts only, and this job keeps its cut"
        hint = f"remove `split`; or {IN_LAYERS}" if recut else "remove `split`, or `recut = off`"
        report.error("conflict", message, setting.key.span, hint)
        return None
    if isinstance(setting.value, Name):
        return _measured(setting, source, report)
    share = read_share(setting, report)
    return share.floor_of(10_000) if share else None


def _is_known(setting: SyntaxSetting, report: Mistakes) -> bool:
    """True if it is a word that is known, or a share for all that is seen here."""
    value = setting.value
    if isinstance(value, Quantity) or (isinstance(value, Name) and value.text in _WORDS):
        return True
    message = f"split must be `off`, `auto` or a share, got {spell(value)}"
    report.error("type", message, value.span, meaning_of("split"))
    return False


def _measured(setting: SyntaxSetting, source: LayeredCosts | None, report: Mistakes) -> int | None:
    if source is None:
        return None
    if isinstance(source, MeasuredLayers) and source.split_ppm is not None:
        return source.split_ppm
    message = "what it costs to split micro-batches has not been measured"
    hint = "write a share, such as `split = 4%`, or use a profile by layer that has `split_ppm`"
    report.error("missing", message, setting.value.span, hint)
    return None
