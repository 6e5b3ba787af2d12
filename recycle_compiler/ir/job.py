"""A job with every number resolved: what the planner, the verifier and the bundle work from.

All arithmetic is on integers. A tick is one nanosecond, or one thousandth of a slot when the
job counts in slots; memory is in bytes, or in thousandths when the job counts activations.
"""

from collections.abc import Iterator
from dataclasses import dataclass

TICKS_PER_UNIT = {"slot": 1_000, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MEMORY_SCALE = {"count": 1_000, "byte": 1}


@dataclass(frozen=True, slots=True)
class Techniques:
    """What the planner may use; each can be switched off to see what it is worth."""

    adaptive: bool = True
    decouple: bool = True
    stagger: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the techniques that are on, in the order users read them."""
        switches = (("adaptive", self.adaptive), ("decouple", self.decouple), ("stagger", self.stagger))
        return tuple(name for name, on in switches if on)


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """How much the planner may spend, and when it may stop early."""

    time_limit_ns: int = 600_000_000_000
    """For all plans of the job together."""
    gap_ppm: int = 0
    """Stop improving a plan within this many millionths of its bound."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One training job. Tuples have one value per stage."""

    name: str
    stages: int
    pipelines: int
    tensor: int
    microbatches: int
    """Per pipeline."""
    unit: str
    """What users write times in: a key of TICKS_PER_UNIT."""
    memory_unit: str
    """What users write memory in: a key of MEMORY_SCALE."""
    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    backward_weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    reduce: tuple[int, ...]
    transfer: tuple[int, ...]
    """From stage s to s + 1 and back; one value fewer than there are stages."""
    activation: tuple[int, ...]
    """Held from the start of F."""
    kept_for_weight: tuple[int, ...]
    """What of the activation stays between the end of I and the end of W."""
    capacity: tuple[int | None, ...]
    """For activations, per worker; None is unlimited."""
    parameters: tuple[int, ...]
    """Bytes that a worker moving to this stage must copy, optimizer state included; 0 when not known."""
    techniques: Techniques
    failures: int
    """Workers that may fail: the bundle holds plans for 0 up to this many."""
    solver: SolverOptions

    @property
    def workers(self) -> int:
        """How many workers a healthy job has; a tensor-parallel group is one worker."""
        return self.stages * self.pipelines

    @property
    def ticks_per_unit(self) -> int:
        return TICKS_PER_UNIT[self.unit]

    @property
    def memory_scale(self) -> int:
        return MEMORY_SCALE[self.memory_unit]

    def verify(self) -> Iterator[str]:
        """Yield every broken invariant; a good job yields nothing."""
        for name in ("stages", "pipelines", "tensor", "microbatches"):
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1, got {getattr(self, name)}"
        for name in PER_STAGE:
            values = getattr(self, name)
            expected = self.stages - (name == "transfer")
            if len(values) != expected:
                yield f"{name} needs {expected} values, got {len(values)}"
            least = 1 if name in STRICTLY_POSITIVE else 0
            if any(value is not None and value < least for value in values):
                yield f"{name} must be at least {least} everywhere, got {values}"
        if any(kept > whole for kept, whole in zip(self.kept_for_weight, self.activation, strict=False)):
            yield "kept_for_weight exceeds activation"
        if self.unit not in TICKS_PER_UNIT or self.memory_unit not in MEMORY_SCALE:
            yield f"unknown unit {self.unit} or {self.memory_unit}"
        if not 0 <= self.failures <= self.workers:
            yield f"failures must be between 0 and {self.workers}, got {self.failures}"


STRICTLY_POSITIVE = ("forward", "backward_input", "backward_weight")
PER_STAGE = (
    *STRICTLY_POSITIVE,
    "optimizer",
    "reduce",
    "transfer",
    "activation",
    "kept_for_weight",
    "capacity",
    "parameters",
)
