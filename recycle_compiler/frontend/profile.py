"""What each stage costs: the `profile` block, or measured costs from a file, `profile from "gpt3.a100.json"`.

    {"format": "recycle-profile", "version": 1, "device": "NVIDIA A100", "unit": "ns",
     "stages": [{"forward": 1200000, "backward_input": 1300000, "backward_weight": 1100000,
                 "optimizer": 400000, "reduce": 900000, "transfer": 60000,
                 "activation_bytes": 100663296, "kept_bytes": 67108864, "parameter_bytes": 3221225472}, ...]}

Keys that are not named here are left to whoever wrote them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.check import Section
from recycle_compiler.frontend.diagnostics import Report, count, quote, shorten, spell
from recycle_compiler.frontend.read_file import ReadError, read_text
from recycle_compiler.frontend.syntax import Quoted, Setting
from recycle_compiler.frontend.values import (
    LARGEST,
    item_span,
    memory_unit_of,
    read_amounts,
    read_times,
    read_unit,
)
from recycle_compiler.ir.job import MEMORY_SCALE, STRICTLY_POSITIVE

TIMES = ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "transfer")
FORMAT = "recycle-profile"
VERSION = 1
DISPLAY_UNIT = "ms"
"""Times are measured in nanoseconds; people read iterations in milliseconds."""
_MOST_BYTES = 4 << 20
_MOST_SHOWN = 10
_FIELDS = {
    "forward": ("forward", 1),
    "backward_input": ("backward_input", 1),
    "backward_weight": ("backward_weight", 1),
    "activation_bytes": ("activation", 0),
    "optimizer": ("optimizer", 0),
    "reduce": ("reduce", 0),
    "transfer": ("transfer", 0),
    "kept_bytes": ("kept_for_weight", 0),
    "parameter_bytes": ("parameters", 0),
}
"""Key in the file: field of the costs, least value."""
_REQUIRED = ("forward", "backward_input", "backward_weight", "activation_bytes")
_LOOKS_LIKE = f'a profile is JSON that begins {{"format": "{FORMAT}", "version": {VERSION}, ...'
_MEMORY = ("activation", "kept_for_weight")


@dataclass(frozen=True, slots=True)
class Costs:
    """Per stage, in ticks and in bytes or thousandths of an activation, as a JobSpec has them."""

    unit: str
    memory_unit: str
    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    backward_weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    reduce: tuple[int, ...]
    transfer: tuple[int, ...]
    activation: tuple[int, ...]
    kept_for_weight: tuple[int, ...]
    parameters: tuple[int, ...]
    """What a worker that moves to the stage must copy, in bytes."""
    resident: tuple[int, ...]
    """What of the capacity is taken before the first activation, in bytes."""
    span: Span = field(compare=False)
    """Where the job says where its costs come from."""

    def per_stage(self) -> dict[str, tuple[int, ...]]:
        """The tuples that go into a JobSpec as they are, by field name."""
        kept = (
            one.name for one in fields(self) if one.name not in ("unit", "memory_unit", "resident", "span")
        )
        return {name: getattr(self, name) for name in kept}


class _ProfileError(Exception):
    """The profile cannot be used; the message names the place inside it."""

    def __init__(self, message: str, hint: str = _LOOKS_LIKE) -> None:
        super().__init__(message)
        self.hint = hint


def read_profile_file(file: Quoted, folder: Path, stages: int | None, report: Report) -> Costs | None:
    """The costs in a profile; what is wrong with it is placed at its name in the job file."""
    try:
        profile = _load(folder / file.text)
        rows = _stages_of(profile, stages)
    except _ProfileError as wrong:
        report.error("profile-file", f'"{shorten(file.text)}": {wrong}', file.span, wrong.hint)
        return None
    problems = [problem for stage, row in enumerate(rows) for problem in _problems(stage, row)]
    for problem in problems[:_MOST_SHOWN]:
        report.error(
            "profile-file", f'"{shorten(file.text)}": {problem}', file.span, "measure the profile again"
        )
    if problems or stages is None:
        return None
    return _costs([cast(dict[str, int], row) for row in rows], file)


def _load(path: Path) -> Any:
    try:
        text = read_text(path, _MOST_BYTES)
    except ReadError as error:
        hint = "paths are relative to the job file" if error.code == "unreadable" else _LOOKS_LIKE
        raise _ProfileError(str(error), hint) from None
    try:
        return json.loads(text)
    except RecursionError:
        raise _ProfileError("is nested too deeply to be a profile") from None
    except json.JSONDecodeError as wrong:
        raise _ProfileError(_where(wrong)) from None
    except ValueError:
        raise _ProfileError("holds a number with thousands of digits", "measure the profile again") from None


def _where(wrong: json.JSONDecodeError) -> str:
    """The place where JSON ends, in words of our own: the library's are for programmers."""
    rest = wrong.doc[wrong.pos :].split()
    if not wrong.doc.strip():
        return "is empty"
    if not rest:
        return f"is not whole: the JSON breaks off at line {wrong.lineno}, column {wrong.colno}"
    return f"is not valid JSON at line {wrong.lineno}, column {wrong.colno}: found {quote(rest[0])}"


def _stages_of(profile: Any, stages: int | None) -> list[Any]:
    if not isinstance(profile, dict):
        raise _ProfileError("must hold a JSON object")
    fields = cast(dict[str, Any], profile)
    if fields.get("format") != FORMAT:
        raise _ProfileError(f'format must be "{FORMAT}", got {_spell(fields, "format")}')
    if fields.get("version") != VERSION or isinstance(fields["version"], bool):
        raise _ProfileError(f"version must be {VERSION}, got {_spell(fields, 'version')}")
    if fields.get("unit", "ns") != "ns":
        raise _ProfileError(f'unit must be "ns", got {_spell(fields, "unit")}', "times are whole nanoseconds")
    if not isinstance(fields.get("device", ""), str):
        raise _ProfileError(
            f"device must be text, got {_spell(fields, 'device')}", "it names what was measured, for people"
        )
    rows = fields.get("stages")
    if not isinstance(rows, list):
        raise _ProfileError(
            f"stages must be a list, got {_spell(fields, 'stages')}", "it holds one object per stage"
        )
    measured = cast(list[Any], rows)
    if stages is not None and len(measured) != stages:
        raise _ProfileError(
            f"must list {count(stages, 'stage')}, as `pipeline` says, got {len(measured):,}",
            "measure as many stages as the job has, or change `pipeline`",
        )
    return measured


def _problems(stage: int, row: Any) -> Iterator[str]:
    """Yield what is wrong with one stage, each with its path in the file."""
    if not isinstance(row, dict):
        yield f"stages[{stage}] must be an object, got {_spell_value(row)}"
        return
    fields = cast(dict[str, Any], row)
    good = True
    for key, (_, least) in _FIELDS.items():
        if key not in fields and key not in _REQUIRED:
            continue
        value = fields.get(key)
        if type(value) is not int or not least <= value <= LARGEST:
            good = False
            got = _spell(fields, key)
            yield f"stages[{stage}].{key} must be a whole number from {least} to 2**50, got {got}"
    if good and fields.get("kept_bytes", 0) > fields["activation_bytes"]:
        allowed = f"activation_bytes = {fields['activation_bytes']}"
        yield f"stages[{stage}].kept_bytes cannot exceed {allowed}, got {fields['kept_bytes']}"


def _costs(rows: list[dict[str, int]], file: Quoted) -> Costs:
    columns = {name: tuple(row.get(key, 0) for row in rows) for key, (name, _) in _FIELDS.items()}
    # All of the activation is kept where no less was measured.
    columns["kept_for_weight"] = tuple(row.get("kept_bytes", row["activation_bytes"]) for row in rows)
    columns["transfer"] = columns["transfer"][:-1]
    return Costs(unit=DISPLAY_UNIT, memory_unit="byte", resident=(0,) * len(rows), span=file.span, **columns)


def _spell(fields: Mapping[str, Any], key: str) -> str:
    return _spell_value(fields[key]) if key in fields else "nothing"


def _spell_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shorten(json.dumps(value))


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
