"""Checks the names in a job: sorts blocks and settings by name, and reports those wrong, twice or missing."""

from collections import deque
from dataclasses import dataclass, field, replace
from decimal import Decimal

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend import schema
from recycle_compiler.frontend.diagnostics import Mistakes, any_of, closest, did_you_mean, quote
from recycle_compiler.frontend.syntax import Block, Entry, Job, Name, Quantity, SyntaxSetting, end_of, name_of

_MOST_DIGITS = 20
"""Of a number that a hint converts to another unit, exactly."""


@dataclass(frozen=True, slots=True)
class Section:
    """One block of a job, its entries by name."""

    block: Block
    settings: dict[str, SyntaxSetting] = field(default_factory=dict[str, SyntaxSetting])
    switches: dict[str, Name] = field(default_factory=dict[str, Name])
    """Bare words; also settings that were left without a good value."""

    def names(self, key: str) -> bool:
        """True if the user gave this setting, be it without a good value."""
        return key in self.settings or key in self.switches

    @property
    def span(self) -> Span:
        return self.block.head.span


Sections = dict[str, Section]


def read_names(job: Job, report: Mistakes) -> Sections:
    """The sections of a job by name; every name in them is a known one, misspelt ones put right."""
    sections: Sections = {}
    misspelt: list[Block] = []
    waiting = deque(_read_job_level(job, report))
    while waiting:
        block = waiting.popleft()
        name = block.head.text
        if name not in schema.BLOCKS:
            misspelt.append(block)
        elif name in sections:
            first = sections[name].span.line
            hint = f"the first is on line {first}"
            report.error("duplicate", f"block `{name}` is given twice", block.head.span, hint)
        else:
            sections[name] = _read_section(block, report, waiting)
    for block in misspelt:
        _report_unknown_block(block, report)
        # Read as what it was meant to be, so that it is not called missing as well.
        meant = closest(block.head.text, schema.BLOCKS)
        if meant and meant not in sections:
            sections[meant] = _read_section(
                replace(block, head=replace(block.head, text=meant)), report, deque()
            )
    return sections


def report_missing(job: Job, sections: Sections, report: Mistakes) -> None:
    """Report the blocks and settings that a job cannot do without."""
    for name in schema.REQUIRED_BLOCKS:
        if name not in sections:
            hint = f"write `{schema.EXAMPLES[name]}`"
            report.error("missing", f"job {quote(job.name.text)} has no `{name}` block", job.name.span, hint)
    for name, section in sections.items():
        if section.block.file:
            continue
        if section.names(schema.IN_PLACE_OF_REQUIRED.get(name, "")):
            continue
        for key in schema.REQUIRED_SETTINGS.get(name, ()):
            if not section.names(key):
                hint = f"write `{key} = ...`"
                report.error("missing", f"block `{name}` has no setting `{key}`", section.span, hint)


def _read_job_level(job: Job, report: Mistakes) -> list[Block]:
    blocks: list[Block] = []
    for entry in job.braces.entries:
        if isinstance(entry, Block):
            blocks.append(entry)
            continue
        name = name_of(entry)
        if name.text in schema.BLOCKS:
            hint = f"write `{schema.EXAMPLES[name.text]}`"
            report.error("not-a-setting", f"`{name.text}` is a block, not a setting", name.span, hint)
        elif name.text:
            homes = schema.blocks_with(name.text)
            hint = _belongs(homes) if homes else did_you_mean(name.text, schema.BLOCKS, _known_blocks())
            report.error("unknown-setting", f"a job holds blocks, found {quote(name.text)}", name.span, hint)
    return blocks


def _report_unknown_block(block: Block, report: Mistakes) -> None:
    name = block.head.text
    if name == "gpt":
        hint = "write `model gpt { ... }`"
    else:
        hint = did_you_mean(name, schema.BLOCKS, _known_blocks())
    report.error("unknown-block", f"unknown block {quote(name)}", block.head.span, hint)


def _read_section(block: Block, report: Mistakes, waiting: deque[Block]) -> Section:
    section = Section(block)
    misspelt: list[SyntaxSetting | Name] = []
    previous: Entry | None = None
    for entry in block.entries:
        if (
            isinstance(entry, Name)
            and isinstance(previous, SyntaxSetting)
            and _could_be_unit(entry, previous)
        ):
            _take_as_unit(entry, previous, section, report)
        elif not isinstance(entry, Block) and not _add_known(entry, section, report):
            misspelt.append(entry)
        previous = entry
    for entry in misspelt:
        _add_misspelt(entry, section, report)
    # Read on as if the forgotten brace were there.
    waiting.extendleft(reversed(report_nested(block, report)))
    return section


def report_nested(block: Block, report: Mistakes) -> list[Block]:
    """The blocks inside a block; the first is reported, the others would only repeat that."""
    nested = [entry for entry in block.entries if isinstance(entry, Block)]
    if nested:
        inner, outer = nested[0].head, block.head.text
        message = f"block {quote(inner.text)} cannot stand inside block {quote(outer)}"
        report.error("nested-block", message, inner.span, f"close {quote(outer)} with `}}` before it")
    return nested


def _add_known(entry: SyntaxSetting | Name, section: Section, report: Mistakes) -> bool:
    """Put an entry in its place, or report why it has none; False when its name is not known."""
    name, block = name_of(entry), section.block.head.text
    text, span = name.text, name.span
    keys, switches = schema.BLOCKS[block], schema.SWITCHES.get(block, ())
    if not text:
        # The parser put it in to get past a mistake.
        return True
    if given := section.settings.get(text):
        report.error(
            "duplicate", f"`{text}` is given twice", span, f"the first is on line {given.key.span.line}"
        )
    elif text in section.switches:
        report.error("duplicate", f"`{text}` is given twice", span, "once is enough")
    elif isinstance(entry, SyntaxSetting) and text in keys:
        section.settings[text] = entry
    elif isinstance(entry, Name) and text in switches:
        section.switches[text] = entry
    elif text in keys:
        section.switches[text] = name
        report.error("missing-value", f"`{text}` has no value", span, f"write `{text} = ...`")
    elif text in switches:
        report.error("not-a-setting", f"`{text}` takes no value", span, f"write `{schema.EXAMPLES[block]}`")
    else:
        return False
    return True


def _add_misspelt(entry: SyntaxSetting | Name, section: Section, report: Mistakes) -> None:
    """Report an unknown name, and read it as what it was probably meant to be."""
    name, block = name_of(entry), section.block.head.text
    keys, switches = schema.BLOCKS[block], schema.SWITCHES.get(block, ())
    what = "switch" if switches else "setting"
    meant = closest(name.text, (*keys, *switches))
    homes = schema.blocks_with(name.text)
    hint = f"did you mean `{meant}`?" if meant else f"it takes {any_of((*keys, *switches))}"
    if homes and not meant:
        hint = _belongs(homes)
    report.error(f"unknown-{what}", f"block `{block}` has no {what} {quote(name.text)}", name.span, hint)
    if meant is None:
        return
    right = replace(name, text=meant)
    if isinstance(entry, SyntaxSetting) and meant in keys:
        section.settings.setdefault(meant, replace(entry, key=right))
    elif isinstance(entry, Name) and meant in switches:
        section.switches.setdefault(meant, right)


def _could_be_unit(name: Name, previous: SyntaxSetting) -> bool:
    """True if a bare word that is no name of ours stands right behind a number without a unit."""
    return (
        isinstance(previous.value, Quantity)
        and previous.value.unit is None
        and end_of(previous).line == name.span.line
        and bool(name.text)
        and not schema.blocks_with(name.text)
    )


def _take_as_unit(word: Name, previous: SyntaxSetting, section: Section, report: Mistakes) -> None:
    """Report the word; the number before it means nothing then, so nothing more is said about it."""
    if isinstance(previous.value, Quantity):
        report_unknown_unit(word, previous.value.digits, report)
    if section.settings.get(previous.key.text) is previous:
        section.switches[previous.key.text] = section.settings.pop(previous.key.text).key


def report_unknown_unit(unit: Name, digits: str, report: Mistakes) -> None:
    """Report a word that is no unit, behind the digits of a number."""
    text = unit.text
    hint = f"units are {any_of(schema.UNITS)}"
    # Decimal units are the common slip: 80 GB for 80 GiB.
    if text in schema.OTHER_UNITS and len(digits) <= _MOST_DIGITS and "e" not in digits.lower():
        factor, right = schema.OTHER_UNITS[text]
        hint = f"write it as `{_times(digits, factor)} {right}`"
    elif len(text) == 2 and text[0].upper() in "KMGT" and text[1] in "Bb":
        hint = f"did you mean `{text[0].upper()}iB`?"
    elif found := closest(text, schema.UNITS):
        hint = f"did you mean `{found}`?"
    elif text[0] == "_" or text[0] in "eE":
        hint = "numbers are written out in digits, without `_` or exponents"
    report.error("unknown-unit", f"unknown unit {quote(text)}", unit.span, hint)


def _times(digits: str, factor: str) -> str:
    """An exact product, written out."""
    product = f"{Decimal(digits) * Decimal(factor):f}"
    return product.rstrip("0").rstrip(".") if "." in product else product


def _belongs(blocks: list[str]) -> str:
    return f"it belongs in block {any_of(blocks)}"


def _known_blocks() -> str:
    return f"blocks are {any_of(schema.BLOCKS)}"
