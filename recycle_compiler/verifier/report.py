"""Findings of the verifier: violations with stable codes, and a report for each plan."""

from dataclasses import dataclass
from enum import StrEnum

from recycle_compiler.ir.failure import Worker


class VerifierRule(StrEnum):
    """Rule that can be broken; the value is the code that users see. docs/verification.md explains each."""

    INDEX_SHAPE = "index-shape"
    INDEX_SOURCE = "index-source"
    INDEX_STATE = "index-state"
    INDEX_WORKER = "index-worker"
    STREAM_UNREADABLE = "stream-unreadable"
    FIELD_RANGE = "field-range"
    OP_COUNT = "op-count"
    OP_HOST = "op-host"
    OP_ORDER = "op-order"
    TECHNIQUE_OFF = "technique-off"
    LOAD_PLACE = "load-place"
    FINISH_STEPS = "finish-steps"
    ROUND_HOLDERS = "round-holders"
    ROUND_GROUPS = "round-groups"
    ROUND_SERVICE = "round-service"
    ROUND_SLOTS = "round-slots"
    REPLAY_STUCK = "replay-stuck"
    DEPENDENCY = "dependency"
    WORKER_OVERLAP = "worker-overlap"
    MEMORY = "memory"
    MESSAGE_MATCH = "message-match"
    MESSAGE_PLACE = "message-place"
    MESSAGE_ORDER = "message-order"
    DEADLOCK = "deadlock"
    BUFFER_REUSE = "buffer-reuse"
    BUFFER_MATCH = "buffer-match"
    INBOX_REUSE = "inbox-reuse"
    INBOX_MATCH = "inbox-match"
    CLAIM_RELEASE = "claim-release"
    CLAIM_MAKESPAN = "claim-makespan"
    CLAIM_PERIOD = "claim-period"
    CLAIM_BOUND = "claim-bound"
    CLAIM_REASON = "claim-reason"
    ITERATION_OVERLAP = "iteration-overlap"
    CUT_MODEL = "cut-model"
    CUT_COSTS = "cut-costs"
    CUT_REDUNDANCY = "cut-redundancy"
    CUT_MEMORY = "cut-memory"
    CLAIM_OVER_CUTS = "claim-over-cuts"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is wrong, and where."""

    rule: VerifierRule
    plan: int | None
    """Index of the plan in its bundle; None when it is about the bundle."""
    worker: Worker | None
    """None when it is about the whole plan."""
    position: int | None
    """Counts the instructions of the worker's stream from 0; None when it is about the whole stream."""
    message: str
    cut: int | None = None
    """The number of the other cut that the plan is under; None for the job's own."""

    def __str__(self) -> str:
        place = "bundle" if self.plan is None else f"plan {self.plan}"
        if self.cut is not None:
            place = f"cut {self.cut}" if self.plan is None else f"cut {self.cut}, {place}"
        if self.worker is not None:
            place += f", worker {self.worker}"
        if self.position is not None:
            place += f", instruction {self.position}"
        return f"{place}: {self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Findings in one plan. Times in ticks; None when the streams are too broken to be timed."""

    plan: int
    violations: tuple[Violation, ...]
    instructions: int = 0
    makespan: int | None = None
    """Replayed, not claimed; so is the period."""
    period: int | None = None
    peak_memory: tuple[tuple[Worker, int], ...] = ()
    """The most activation memory each live worker holds at once."""
    cut: int | None = None
    """The number of the other cut that the plan is under; None for the job's own."""

    @property
    def passed(self) -> bool:
        return not self.violations
