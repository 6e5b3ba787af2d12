"""Plans of small random jobs: the verifier, which shares no code with the planner, finds nothing wrong."""

from hypothesis import given, settings

from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_streams, print_schedule, print_streams
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.jobs import small_targets


@settings(max_examples=60)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_every_plan_passes_the_verifier(target: Target) -> None:
    program = plan_failed(target.job, target.failed)
    bundle = Bundle.parse(bundle_bytes(source="", plans=[program]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    assert print_schedule(replay(read_streams(bundle, 0))) == print_schedule(replay(program))
    assert print_streams(parse_streams(print_streams(program))) == print_streams(program)
