"""Plans of small random jobs: the verifier, which shares no code with the planner, finds nothing wrong."""

from hypothesis import given, settings

from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.text import parse_streams, print_schedule, print_streams
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.jobs import quick_plans


@settings(max_examples=250)
@given(quick_plans())
def test_every_plan_passes_the_verifier(program: Streams) -> None:
    """Those that the MILP has a part in are in test_optima.py."""
    bundle = Bundle.parse(bundle_bytes(source="", plans=[program]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    assert print_schedule(replay(read_streams(bundle, 0))) == print_schedule(replay(program))
    assert print_streams(parse_streams(print_streams(program))) == print_streams(program)
