"""The verifier on bundles as they are written to files."""

import numpy as np

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import Worker, failure_set
from recycle_compiler.ir.streams import Claims, Streams
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_bundle, verify_plan
from recycle_runtime.plan.bundle import Bundle
from tests.compiler.verifier.memory_bundle import MemoryBundle
from tests.compiler.verifier.tiny_plans import coupled_plan, split_plan


def written(bundle: MemoryBundle) -> Bundle:
    """The first plan of a bundle in memory, to bytes and back."""
    entry, streams = bundle.plans[0], bundle.streams[0]
    workers = tuple(Worker(*cell) for cell in sorted(streams, key=lambda cell: (cell[1], cell[0])))
    rows = np.array([step for worker in workers for step in streams[worker]], dtype=np.int64)
    program = Streams(
        bundle.job,
        failure_set(entry.failed),
        entry.release,
        Claims(entry.makespan, entry.period, entry.lower_bound, "load"),
        workers,
        np.cumsum([0, *(len(streams[worker]) for worker in workers)]),
        *(np.ascontiguousarray(column) for column in rows.T),
    )
    return Bundle.parse(bundle_bytes(source="", plans=[program]))


def test_what_passes_in_memory_passes_from_a_file() -> None:
    for bundle in (split_plan(), coupled_plan()):
        assert list(verify_bundle(written(bundle))) == []
        assert verify_plan(written(bundle), 0) == verify_plan(bundle, 0)


def test_what_fails_in_memory_fails_from_a_file() -> None:
    bundle = split_plan().moved((1, 0), "recv_gradient p1 m1 i1 @0", before="recv_gradient p1 m0 i0 @0")
    bundle = bundle.with_entry(makespan=12)
    rules = [violation.rule for violation in verify_bundle(written(bundle))]
    assert rules == [VerifierRule.MESSAGE_ORDER, VerifierRule.CLAIM_MAKESPAN]
