"""Measured costs from a file, `profile from "gpt3.a100.json"`, by stage or by layer.

    {"format": "recycle-profile", "version": 1, "device": "NVIDIA A100", "unit": "ns",
     "stages": [{"forward": 1200000, "backward_input": 1300000, "backward_weight": 1100000,
                 "optimizer": 400000, "reduce": 900000, "transfer": 60000,
                 "activation_bytes": 100663296, "kept_bytes": 67108864, "parameter_bytes": 3221225472}, ...]}

A profile by layer has `layers` in place of `stages`, `resident_bytes` in each of them, and `pipelines`: how
many workers took part in a reduction. With `parameter_count` in each row the state is counted from that;
with `weight_bytes` and `gradient_bytes` it is what `resident_bytes` has beyond them. `expert_bytes` are those
weights of which a worker has slots alone, `slot_bytes` one expert of each mixture, and `slot_transfer` how
long these take to another worker: gradients and weights of experts travel so. A profile by layer may have
`overhead_bytes` of a worker, `working_bytes` in each row, of which a worker needs the largest, and
`split_ppm`: how much longer two halves of a micro-batch take than the whole, in millionths; null where that
could not be measured. `exchange` in a row is how long tokens take to their experts and back in one forward,
which `forward` and `backward_input` are without; `arrived_bytes` are tokens that checkpointing keeps beside
`activation_bytes`. Either may have `spread_ppm` and `jitter_ppm`: how much op
times vary by micro-batch and by chance, as standard deviations in millionths. Keys that are not named here
are left to whoever wrote them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from recycle_compiler.frontend.costs import ChunkCosts, MeasuredLayers, Variation
from recycle_compiler.frontend.diagnostics import Mistakes, quantity, quote, shorten
from recycle_compiler.frontend.layers import MOST_LAYERS
from recycle_compiler.frontend.optimizer_state import StateRules
from recycle_compiler.frontend.profile import with_exchange
from recycle_compiler.frontend.read_file import ReadError, read_text
from recycle_compiler.frontend.shape import MOST_GPUS, GivenShape
from recycle_compiler.frontend.syntax import Quoted
from recycle_compiler.frontend.values import LARGEST
from recycle_compiler.ir.expert_messages import MOST_EXPERTS
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.state import bytes_of_all, bytes_of_shards

FORMAT = "recycle-profile"
VERSION = 1
DISPLAY_UNIT = "ms"
"""Times are measured in nanoseconds; people read iterations in milliseconds."""
_MOST_BYTES = 4 << 20
_MOST_SHOWN = 10
_MOST_SPLIT = 100_000_000
_MOST_VARIATION = 1_000_000
_FIELDS = {
    "forward": ("forward", 1),
    "backward_input": ("backward_input", 1),
    "backward_weight": ("backward_weight", 1),
    "activation_bytes": ("activation", 0),
    "optimizer": ("optimizer", 0),
    "reduce": ("reduce", 0),
    "gather": ("gather", 0),
    "transfer": ("transfer", 0),
    "kept_bytes": ("kept_for_weight", 0),
    "parameter_bytes": ("parameters", 0),
    "resident_bytes": ("resident", 0),
    "parameter_count": ("counts", 0),
    "working_bytes": ("working", 0),
    "weight_bytes": ("weights", 0),
    "gradient_bytes": ("gradients", 0),
    "expert_bytes": ("experts", 0),
    "slot_bytes": ("slot", 0),
    "slot_transfer": ("slot_transfer", 0),
    "exchange": ("exchange", 0),
    "arrived_bytes": ("arrived", 0),
}
"""Key in the file: field of the costs, least value."""
_REQUIRED = ("forward", "backward_input", "backward_weight", "activation_bytes")
_LOOKS_LIKE = f'a profile is JSON that begins {{"format": "{FORMAT}", "version": {VERSION}, ...'


class _ProfileError(Exception):
    """The profile cannot be used; the message names the place inside it."""

    def __init__(self, message: str, hint: str = _LOOKS_LIKE) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _Measured:
    """The rows of a profile as they stand in the file."""

    noun: str
    """Noun for a row: a stage, or a layer."""
    rows: list[Any]
    pipelines: int | None
    """Number of workers that took part in a reduction; None where the file does not say."""
    split_ppm: int | None
    """Extra time of two halves over a whole micro-batch, in millionths; None where it was not measured."""
    overhead: int
    """Bytes of a worker's memory that are neither state nor activations."""


def read_profile_file(
    file: Quoted, folder: Path, shape: GivenShape, state: StateRules, report: Mistakes
) -> ChunkCosts | MeasuredLayers | None:
    """The costs in a profile; what is wrong with it is placed at its name in the job file."""
    try:
        profile = _read_head(_load(folder / file.text))
        measured = _read_layers(profile) if "layers" in profile else _read_stages(profile, shape)
        variation = _read_variation(profile)
    except _ProfileError as wrong:
        report.error("profile-file", f'"{shorten(file.text)}": {wrong}', file.span, wrong.hint)
        return None
    problems = [
        problem
        for number, row in enumerate(measured.rows)
        for problem in _problems(f"{measured.noun}s[{number}]", row)
    ]
    for problem in problems[:_MOST_SHOWN]:
        report.error(
            "profile-file", f'"{shorten(file.text)}": {problem}', file.span, "measure the profile again"
        )
    if problems:
        return None
    columns = _columns([cast(dict[str, int], row) for row in measured.rows])
    # Ops of a worker run one after the other.
    working = max(columns.pop("working"))
    workers = measured.pipelines or shape.pipelines
    held = {name: columns.pop(name) for name in ("weights", "gradients", "experts", "slot", "slot_transfer")}
    columns |= _with_slots(columns, held, state)
    arrived = columns.pop("arrived")
    if state.slots:
        columns["activation"] = tuple(map(sum, zip(columns["activation"], arrived, strict=True)))
    else:
        # Measured for jobs whose peers share experts: here every worker has all of them.
        columns["exchange"] = (0,) * len(columns["exchange"])
    columns |= _sharded(columns, workers or 1, state)
    columns |= with_exchange(columns, columns["exchange"])
    if measured.noun == "stage":
        return _stage_costs(columns, file, variation) if shape.stages or shape.is_free else None
    exchange = columns.pop("exchange")
    costs = LayerCosts(capacity=None, **columns)
    return MeasuredLayers(
        DISPLAY_UNIT,
        "byte",
        costs,
        workers,
        file.span,
        measured.split_ppm,
        state.owners,
        measured.overhead + working,
        variation,
        exchange if any(exchange) else (),
    )


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


def _read_head(profile: Any) -> dict[str, Any]:
    """The profile, if it is one and its times can be used."""
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
    return fields


def _read_layers(fields: dict[str, Any]) -> _Measured:
    if "stages" in fields:
        raise _ProfileError("has both stages and layers", "a profile is by stage or by layer")
    rows = fields["layers"]
    if not isinstance(rows, list) or not 1 <= len(cast(list[Any], rows)) <= MOST_LAYERS:
        got = f"{len(cast(list[Any], rows)):,}" if isinstance(rows, list) else _spell(fields, "layers")
        raise _ProfileError(
            f"layers must be a list of 1 to {MOST_LAYERS:,}, got {got}", "it holds one object per layer"
        )
    pipelines = fields.get("pipelines")
    if pipelines is not None and (type(pipelines) is not int or not 1 <= pipelines <= MOST_GPUS):
        raise _ProfileError(
            f"pipelines must be a whole number from 1, got {_spell(fields, 'pipelines')}",
            "it is the number of workers that took part in a reduction",
        )
    split = fields.get("split_ppm")
    if split is not None and (type(split) is not int or not 0 <= split <= _MOST_SPLIT):
        raise _ProfileError(
            f"split_ppm must be a whole number from 0 to {_MOST_SPLIT:,}, got {_spell(fields, 'split_ppm')}",
            "it says how much longer two halves of a micro-batch take than the whole, in millionths",
        )
    overhead = fields.get("overhead_bytes", 0)
    if type(overhead) is not int or not 0 <= overhead <= LARGEST:
        raise _ProfileError(
            f"overhead_bytes must be a whole number from 0 to 2**50, got {_spell(fields, 'overhead_bytes')}",
            "it is what the device's context and communication take of a worker's memory",
        )
    return _Measured("layer", cast(list[Any], rows), pipelines, split, overhead)


def _read_variation(fields: dict[str, Any]) -> Variation:
    for key in Variation._fields:
        value = fields.get(key, 0)
        if type(value) is not int or not 0 <= value <= _MOST_VARIATION:
            raise _ProfileError(
                f"{key} must be a whole number from 0 to {_MOST_VARIATION:,}, got {_spell(fields, key)}",
                "it says how much op times vary, in millionths",
            )
    return Variation(*(fields.get(key, 0) for key in Variation._fields))


def _read_stages(fields: dict[str, Any], shape: GivenShape) -> _Measured:
    rows = fields.get("stages")
    if not isinstance(rows, list):
        raise _ProfileError(
            f"stages must be a list, got {_spell(fields, 'stages')}", "it holds one object per stage"
        )
    measured = cast(list[Any], rows)
    if shape.stages is not None and len(measured) != shape.stages:
        raise _ProfileError(
            f"must list {quantity(shape.stages, 'stage')}, as `pipeline` says, got {len(measured):,}",
            "measure as many stages as the job has, or change `pipeline`",
        )
    return _Measured("stage", measured, None, None, 0)


def _problems(path: str, row: Any) -> Iterator[str]:
    """Yield what is wrong with one stage or layer, each with its path in the file."""
    if not isinstance(row, dict):
        yield f"{path} must be an object, got {_spell_value(row)}"
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
            yield f"{path}.{key} must be a whole number from {least} to 2**50, got {got}"
    if good and fields.get("kept_bytes", 0) > fields["activation_bytes"]:
        allowed = f"activation_bytes = {fields['activation_bytes']}"
        yield f"{path}.kept_bytes cannot exceed {allowed}, got {fields['kept_bytes']}"
    if good and fields.get("expert_bytes", 0) > fields.get("weight_bytes", 0):
        allowed = f"weight_bytes = {fields.get('weight_bytes', 0)}"
        yield f"{path}.expert_bytes cannot exceed {allowed}, got {fields['expert_bytes']}"


Columns = dict[str, tuple[int, ...]]


def _columns(rows: list[dict[str, int]]) -> Columns:
    """Costs by kind rather than by row."""
    columns = {name: tuple(row.get(key, 0) for row in rows) for key, (name, _) in _FIELDS.items()}
    # All of the activation is kept where no less was measured.
    columns["kept_for_weight"] = tuple(row.get("kept_bytes", row["activation_bytes"]) for row in rows)
    columns["transfer"] = columns["transfer"][:-1]
    return columns


def _with_slots(columns: Columns, held: Columns, state: StateRules) -> Columns:
    """Columns of state measured apart from what every worker has, where the state is sharded; of experts,
    only those in a worker's slots count, and their gradients are all that it sums: as part of one sum, unless
    it was measured how long the messages take in which they travel."""
    if not (state.owners and all(held["weights"])):
        return {}
    found: dict[str, list[int]] = {"resident": [], "state": [], "reduce": [], "gather": []}
    counts, messages = list[int](), list[int]()
    for row, (weights, gradients, experts, slot, message) in enumerate(zip(*held.values(), strict=True)):
        elsewhere = experts - state.slots * slot if state.slots else 0
        everywhere = (weights + gradients) * (weights - elsewhere) // weights
        found["resident"].append(everywhere)
        found["state"].append(max(0, columns["resident"][row] - weights - gradients))
        counts.append(experts // slot if state.slots and slot else 0)
        is_known = 0 < counts[row] <= MOST_EXPERTS
        messages.append(message if is_known else 0)
        apart = experts if messages[row] else elsewhere
        for name in ("reduce", "gather"):
            found[name].append(columns[name][row] * (weights - apart) // weights)
    if any(counts):
        found["expert_counts"] = counts
    if any(messages):
        found["slot_transfer"] = messages
    return {name: tuple(values) for name, values in found.items()}


def _sharded(columns: Columns, workers: int, state: StateRules) -> Columns:
    """Memory of parameters, where their number is known; and changes where the state is sharded.

    A profile that does not say how long weights take to be gathered has measured a whole state: half of its
    sum is one that leaves each part with one worker, and weights in bf16 are half of those bytes.
    """
    found: Columns = {}
    rules = {"staggered": state.staggered}
    if all(columns["counts"]):
        each = bytes_of_all(**rules, sharded=state.owners > 0)
        found["resident"] = tuple(each * count for count in columns["counts"])
    if not state.owners:
        return found | {"gather": (0,) * len(columns["gather"])}
    if all(columns["counts"]) or "state" not in columns:
        found["state"] = tuple(bytes_of_shards(**rules) * count for count in columns["counts"])
    if not any(columns["gather"]):
        sent = workers - 1 + min(state.owners, workers) - 1
        found["gather"] = tuple(-(-time // 4) for time in columns["reduce"])
        found["reduce"] = tuple(-(-time * sent // (2 * max(1, workers - 1))) for time in columns["reduce"])
    return found


def _stage_costs(columns: dict[str, tuple[int, ...]], file: Quoted, variation: Variation) -> ChunkCosts:
    # The capacity of a job with a profile by stage is for activations alone.
    columns["resident"] = (0,) * len(columns["forward"])
    columns["exchange"] = columns["exchange"] if any(columns["exchange"]) else ()
    return ChunkCosts(unit=DISPLAY_UNIT, memory_unit="byte", span=file.span, variation=variation, **columns)


def _spell(fields: Mapping[str, Any], key: str) -> str:
    return _spell_value(fields[key]) if key in fields else "nothing"


def _spell_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shorten(json.dumps(value))
