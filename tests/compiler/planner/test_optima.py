"""2,000 small random jobs against optima that an exact solver has proven (bench/reference/make_optima.py).

Every twentieth is planned in every run of the tests, all of them with the slow ones. Every plan passes the
verifier, no bound exceeds the optimum, and plans are as good as promised.
"""

from pathlib import Path

import pytest

from bench.reference.optima import Optimum, load_optima
from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.streams import Claims
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle

OPTIMA = Path(__file__).resolve().parents[2] / "data" / "optima.jsonl"


def planned(entry: Optimum) -> Claims:
    """The claims of a plan that the verifier has found nothing wrong with."""
    program = plan_failed(entry.job, normal_form(entry.failed_per_stage, entry.job.pipelines))
    bundle = Bundle.parse(bundle_bytes(source="", plans=[program]))
    violations = [str(violation) for violation in verify_bundle(bundle)]
    assert not violations, (entry.seed, violations)
    return program.claims


@pytest.mark.parametrize(
    ("part", "parts"),
    [(0, 20), *(pytest.param(part, 8, marks=pytest.mark.slow) for part in range(8))],
)
def test_plans_against_proven_optima(part: int, parts: int) -> None:
    entries = [entry for entry in load_optima(OPTIMA) if entry.seed % parts == part]
    settled = close = 0
    for entry in entries:
        claims = planned(entry)
        assert claims.lower_bound <= entry.best, f"seed {entry.seed}: the bound certifies a lie"
        assert claims.period >= entry.lower_bound, f"seed {entry.seed}: better than the exact solver's bound"
        if entry.optimum is not None:
            settled += 1
            close += claims.period * 100 <= entry.optimum * 105
    assert settled >= len(entries) * 3 // 4
    assert close >= settled * 0.95, f"only {close} of {settled} plans are within 5 % of the optimum"
