"""Measurements, as the JSON that the compiler reads and as a table for people."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from recycle_runtime.profiler.links import TokenRows
from recycle_runtime.profiler.meters import NOTHING, Timing

FORMAT, VERSION = "recycle-profile", 1
_AT_LEAST_ONE = ("forward", "backward_input", "backward_weight")
"""The planner needs these to take time, however little."""
UNSTEADY = 0.25
"""Half of the measurements within this share of the median is steady enough."""

WHOLE_LAYERS = (
    "parallelize was not called: these are costs of whole layers, as with tensor = 1; a rank has a part of "
    "their work and memory, and sends messages to the others beside"
)
"""Of a program with tensor parallelism."""


@dataclass(frozen=True, slots=True)
class StageCosts:
    """One stage or layer: times with their spread, and bytes."""

    forward: Timing
    backward_input: Timing
    backward_weight: Timing
    backward: Timing
    """The whole backward as autograd does it, to compare with the two halves."""
    optimizer: Timing
    reduce: Timing
    transfer: Timing
    saved_bytes: int
    """Alive between F and I."""
    kept_bytes: int
    """Alive between I and W."""
    parameter_bytes: int
    """Parameters, buffers and the optimizer's state: what a worker that moves here copies."""
    resident_bytes: int
    """That, gradients, and what takes a step back: what is held whatever runs."""
    gradient_bytes: int
    weight_bytes: int
    """Parameters and buffers."""
    expert_bytes: int
    """Of these, experts that peers can share."""
    slot_bytes: int
    """One expert of each mixture layer."""
    exchanged: tuple[TokenRows, ...]
    """That go to those experts in a forward."""
    arrived_bytes: int
    """Alive between F and I besides, where peers share the experts: rows that have come, which activation
    checkpointing computes with again."""
    boundary_bytes: int
    """Values that go to the next stage."""
    working_bytes: int
    """The most that F, I or W holds beside that while it runs; 0 where it is not known, on a CPU."""
    exchange: Timing = NOTHING
    """Time of these rows in a forward or a backward, between peers that share the experts."""
    slot_transfer: Timing = NOTHING
    """Time of one expert of each mixture layer to another peer."""
    half: tuple[Timing, Timing, Timing] | None = None
    """F, I and W of the first half of the micro-batch; of layers whose program can compute it."""
    beside_message: tuple[Timing, Timing, Timing, Timing] | None = None
    """F, I, W and the whole backward while a message takes some of the device; None where none does."""

    def slowed(self, crossing: int) -> "StageCosts":
        """With ops as they are if messages cross for so many nanoseconds in each micro-batch."""
        if self.beside_message is None:
            return self
        forward, backward_input, backward_weight, backward = self.beside_message
        whole = forward.median + backward_input.median + backward_weight.median
        share = min(1.0, crossing / max(1, whole))
        return replace(
            self,
            forward=self.forward.towards(forward, share),
            backward_input=self.backward_input.towards(backward_input, share),
            backward_weight=self.backward_weight.towards(backward_weight, share),
            backward=self.backward.towards(backward, share),
        )

    @property
    def exchange_bytes(self) -> int:
        """Bytes of these rows, there and back."""
        return 2 * sum(each.nbytes for each in self.exchanged)

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"exchange_bytes": self.exchange_bytes}
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if isinstance(value, Timing):
                row[field.name] = max(value.median, int(field.name in _AT_LEAST_ONE))
                row[f"{field.name}_quartiles"] = [value.low, value.high]
            elif isinstance(value, int):
                row[field.name] = value
        for name, timing in zip(_AT_LEAST_ONE, self.half or (), strict=False):
            row[f"half_{name}"] = timing.median
        # What W needs may be more than what F saved: gradients have come to it.
        row["activation_bytes"] = max(self.saved_bytes, self.kept_bytes)
        return row


@dataclass(frozen=True, slots=True)
class Profile:
    """All stages or layers, and how they were measured."""

    device: str
    stages: tuple[StageCosts, ...]
    """Or layers, where they have names."""
    details: dict[str, Any]
    layer_names: tuple[str, ...] = ()
    why_not_split: str = ""
    """Reason why the cost of halves of micro-batches is not known; empty in a profile by stage."""
    spread_ppm: int | None = None
    """Standard deviation of the times of micro-batches, in millionths; None if all had the same shape."""

    @property
    def split_ppm(self) -> int | None:
        """Extra time of two halves of a micro-batch over the whole, in millionths; None if unknown."""
        halves = [layer.half for layer in self.stages if layer.half is not None]
        if not halves or len(halves) < len(self.stages):
            return None
        whole = [
            timing.median
            for layer in self.stages
            for timing in (layer.forward, layer.backward_input, layer.backward_weight)
        ]
        return over_ppm(whole, [timing.median for half in halves for timing in half])

    @property
    def noun(self) -> str:
        """Noun for a row: `layer` or `stage`."""
        return "layer" if self.layer_names else "stage"

    def to_text(self) -> str:
        """The JSON that `profile from` reads, a line for each row; keys it does not know are for people."""
        head = {"format": FORMAT, "version": VERSION, "device": self.device, "unit": "ns"} | self.details
        if self.split_ppm is not None:
            head["split_ppm"] = self.split_ppm
        if self.spread_ppm is not None:
            head["spread_ppm"] = self.spread_ppm
        parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        named = [{"name": name} for name in self.layer_names] or [{}] * len(self.stages)
        rows = ",\n  ".join(
            json.dumps(name | stage.to_json()) for name, stage in zip(named, self.stages, strict=True)
        )
        parts.append(f'"{self.noun}s": [\n  {rows}\n ]')
        return "{" + ",\n ".join(parts) + "}\n"

    def unsteady(self) -> list[int]:
        """The stages or layers whose times vary so much that another measurement would differ."""
        return [
            number
            for number, stage in enumerate(self.stages)
            if max(stage.forward.spread, stage.backward_input.spread, stage.backward_weight.spread) > UNSTEADY
        ]


def over_ppm(whole: Sequence[int], half: Sequence[int]) -> int:
    """Extra time of two halves over the whole, in millionths, at least 0; times in any unit."""
    return max(0, round(1_000_000 * (2 * sum(half) / max(1, sum(whole)) - 1)))


_TIMES = ["F", "I", "W", "B", "(I+W)/B", "optimizer", "reduce", "transfer"]
_SIZES = ["F to I", "I to W", "to copy"]


def profile_table(profile: Profile) -> str:
    """A line for every stage or layer; the share after a time is how far measurements of one op differ."""
    heads = [profile.noun, *_TIMES, *_SIZES]
    titles = profile.layer_names or [str(number) for number in range(len(profile.stages))]
    rows = [heads, *(_row(title, stage) for title, stage in zip(titles, profile.stages, strict=True))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join(_line(row, widths) for row in rows)


def _row(title: str, stage: StageCosts) -> list[str]:
    ratio = (stage.backward_input.median + stage.backward_weight.median) / max(1, stage.backward.median)
    return [
        title,
        *(
            f"{_time(timing.median)} ±{timing.spread / 2:.0%}"
            for timing in (stage.forward, stage.backward_input, stage.backward_weight, stage.backward)
        ),
        f"{ratio:.2f}",
        *(_time(timing.median) for timing in (stage.optimizer, stage.reduce, stage.transfer)),
        *map(_size, (stage.saved_bytes, stage.kept_bytes, stage.parameter_bytes)),
    ]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _time(nanoseconds: int) -> str:
    if nanoseconds == 0:
        return "0"
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e3:.3g} us"


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
