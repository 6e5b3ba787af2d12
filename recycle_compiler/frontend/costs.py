"""What each stage costs in time and memory, whichever of the three sources says it."""

from dataclasses import dataclass, field, fields

from recycle_compiler.diagnostics import Span

TIMES = ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "transfer")


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
