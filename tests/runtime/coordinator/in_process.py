"""A replanner that calls the compiler where the real one starts processes, for tests alone."""

from collections.abc import Collection, Mapping
from pathlib import Path

from recycle_compiler.analysis.trace_diff.network import retimed_step
from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.failure import Worker as Place
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.compile import plan_failed, plan_slow
from recycle_compiler.scheduling.slow_workers import slow_workers
from recycle_runtime.coordinator.plans import PlanFiles
from recycle_runtime.coordinator.replanning import InUse, Offer, Replanner, Variant
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import PlanBook


class InProcess(Replanner):
    """Its answers are there at once, and no file is written."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.book: PlanBook | None = None
        self.files: PlanFiles | None = None
        self.requests = 0
        self.may_be_lighter = True
        """Tests may leave that out."""
        self._answer: list[Offer] | None = None
        self.slow: dict[Worker, float] = {}
        self.sources: set[str] = set()
        """What was asked for."""

    def ask(
        self,
        job: str,
        in_use: InUse,
        book: PlanBook,
        failed: Collection[Worker],
        slow: Mapping[Worker, float],
        *,
        may_be_lighter: bool,
        source: str = "",
    ) -> None:
        assert self.book is not None and self.files is not None
        self.requests += 1
        self.slow = dict(slow)
        self.sources.add(source)
        times = parse_job_text(job, "measured.job")
        bundle = self.book.bundles[self.files.paths.index(in_use.path)]
        number = next(n for n, plan in enumerate(bundle.plans) if plan.failed == in_use.failed)

        def step(bundle: Bundle, plan: int, slow: Mapping[Worker, float]) -> float:
            factors = {Place(*worker): by for worker, by in slow.items()}
            return retimed_step(replay(read_streams(bundle, plan)), times, factors)

        now = step(bundle, number, in_use.slow)
        self._answer = []
        here = Path(f"made {self.requests}")
        variants = [Variant(here / "all alike", tuple(sorted(failed)))]
        if slow and self.may_be_lighter:
            assert may_be_lighter
            variants.append(Variant(here / "lighter", tuple(sorted(failed)), lighter=slow))
        if slow:
            counted = tuple(sorted({*failed, *slow}))
            variants.append(Variant(here / "standby", counted, tuple(sorted(slow))))
        for variant in variants:
            program = _planned(times, variant)
            made = Bundle.parse(bundle_bytes(source=job, plans=[program]))
            working = {worker: by for worker, by in slow.items() if worker not in variant.standby}
            self._answer.append(Offer(variant, made, 1 - step(made, 0, working) / now))

    def made(self) -> list[Offer] | None:
        answer, self._answer = self._answer, None
        return answer

    def stop(self) -> None:
        self._answer = None


def _planned(job: JobSpec, variant: Variant) -> Streams:
    failed = failure_set(variant.failed)
    if not variant.lighter:
        return plan_failed(job, failed)
    return plan_slow(job, failed, slow_workers(list(variant.lighter.items()))).streams
