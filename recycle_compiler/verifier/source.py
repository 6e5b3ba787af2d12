"""What the verifier reads: a bundle, or anything in a test that looks like one."""

from collections.abc import Sequence
from typing import Protocol

from recycle_runtime.plan.isa import Instruction


class PlanClaims(Protocol):
    """The index entry of one plan: its failure state and what it says of itself. Times in ticks."""

    @property
    def failed(self) -> Sequence[tuple[int, int]]:
        """(pipeline, stage) of every failed worker."""
        ...

    @property
    def release(self) -> Sequence[int]:
        """When the window of each stage opens."""
        ...

    @property
    def makespan(self) -> int: ...

    @property
    def period(self) -> int: ...

    @property
    def lower_bound(self) -> int: ...


class PlanSource(Protocol):
    """A bundle as far as the verifier is concerned."""

    @property
    def stages(self) -> int: ...

    @property
    def pipelines(self) -> int: ...

    @property
    def tensor(self) -> int: ...

    @property
    def microbatches(self) -> int: ...

    @property
    def job_text(self) -> str:
        """The resolved job, as `print_job` writes it."""
        ...

    @property
    def plans(self) -> Sequence[PlanClaims]: ...

    def workers(self, plan_index: int, /) -> Sequence[tuple[int, int]]:
        """(pipeline, stage) of every worker that has a stream."""
        ...

    def stream(self, plan_index: int, worker: tuple[int, int], /) -> Sequence[Instruction]: ...
