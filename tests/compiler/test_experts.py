"""Jobs whose peers share experts: from the job to bundles that verifier and simulator accept."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec, parse_job, print_job
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_graph, parse_schedule, print_graph, print_schedule
from recycle_compiler.passes.add_worker import AddWorker
from recycle_compiler.passes.standard import GRAPH_PASSES, LOWERING_PASSES
from recycle_compiler.planner.compile import compile_job, plan_failed
from recycle_compiler.scheduling.rounds.problem import Ints, RoundsProblem, rounds_problem
from recycle_compiler.scheduling.rounds.routes import fewest_rounds
from recycle_compiler.scheduling.rounds.timing import RoundsClock
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from tests.compiler.test_sharded import sharded
from tests.support.jobs import SLOT, figure3, small_targets, unit_job


def with_experts(job: JobSpec, slots: int = 2) -> JobSpec:
    """The job with slots for experts, and so with a sharded state."""
    techniques = replace(job.techniques, adaptive=True)
    return replace(sharded(replace(job, techniques=techniques)), slots=slots, placed_every=1)


def small_expert_targets() -> st.SearchStrategy[Target]:
    return small_targets().map(lambda target: Target(with_experts(target.job), target.failed))


@settings(max_examples=80, deadline=None)
@given(small_expert_targets())
def test_every_plan_in_rounds_holds(target: Target) -> None:
    """Verified, simulated to the planned times, and read back from text."""
    plan = plan_failed(target.job, target.failed, effort=Effort().least())
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    run = simulate(bundle, 0, iterations=3)
    assert (run.period, run.makespan) == (plan.claims.period, plan.claims.makespan)
    schedule = replay(read_streams(bundle, 0))
    assert list(schedule.verify()) == []
    assert print_schedule(parse_schedule(print_schedule(schedule))) == print_schedule(schedule)
    graph = GRAPH_PASSES.run(target)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_who_has_no_micro_batch_in_a_round_serves() -> None:
    job = replace(with_experts(figure3(6)), microbatches=5, failures=2)
    plans = compile_job(job)
    bundle = Bundle.parse(bundle_bytes(source="", plans=plans))
    assert (bundle.slots, bundle.placed_every) == (2, 1)
    assert parse_job(print_job(job).splitlines()) == job
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    served = [
        [row.opcode for _, stream in plan.items() for row in stream if row.opcode >= Opcode.SERVE_FORWARD]
        for plan in plans
    ]
    # 15 micro-batches are 5 rounds of 3 workers, and 8 of 2, the last of which is short of one.
    assert served[0] == []
    assert served[1] == [Opcode.SERVE_FORWARD, Opcode.SERVE_BACKWARD_INPUT, Opcode.SERVE_BACKWARD_WEIGHT]


def test_one_failure_fewer_is_never_slower() -> None:
    """The plan for more failures, with one worker more, in the same rounds."""
    job = replace(with_experts(figure3(6)), microbatches=5, failures=4)
    crowded = plan_failed(job, failure_set([(2, 1), (2, 3)]))
    relieved = (AddWorker() >> LOWERING_PASSES).run(crowded)
    bundle = Bundle.parse(bundle_bytes(source="", plans=[crowded, relieved]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    assert relieved.claims.period <= crowded.claims.period
    periods = [plan.claims.period for plan in compile_job(job)]
    assert periods == sorted(periods)


def test_moves_and_rules_find_what_trying_all_orders_finds() -> None:
    """Two stages with few rounds: every order of either stage, against the plan and its bound."""
    random = Random(7)
    for _ in range(6):
        job = unit_job(2, 2, 3, capacity=(random.randint(2, 4), random.randint(1, 3)))
        times = {
            name: tuple(random.randint(1, 3) * SLOT for _ in range(2))
            for name in ("forward", "backward_input", "backward_weight")
        }
        job = with_experts(replace(job, transfer=(SLOT,), **times))
        plan = plan_failed(job, ())
        graph = GRAPH_PASSES.run(Target(job, ()))
        clock = RoundsClock(rounds_problem(graph, fewest_rounds(graph)))
        optimum = min(timed.period for timed in map(clock.time, all_orders(clock)) if timed is not None)
        assert plan.claims.lower_bound <= optimum
        assert plan.claims.period == optimum


def all_orders(clock: RoundsClock) -> Iterator[Ints]:
    """Orders of the machines that memory allows; what is impossible for other reasons is among them."""
    problem = clock.problem
    orders = [list(_words(problem, machine)) for machine in range(problem.machines)]
    for words in product(*orders):
        yield np.array(list(chain.from_iterable(words)), dtype=np.int64)


def _words(problem: RoundsProblem, machine: int) -> Iterator[tuple[int, ...]]:
    lines = np.flatnonzero(problem.machine == machine).tolist()
    counts = {line: int(problem.first[line + 1] - problem.first[line]) for line in lines}

    def extend(word: tuple[int, ...], done: tuple[int, ...], held: int) -> Iterator[tuple[int, ...]]:
        if len(word) == sum(counts.values()):
            yield word
        for place, line in enumerate(lines):
            is_open = done[place] < counts[line] and (place == 0 or done[place] < done[place - 1])
            if not is_open or 0 <= problem.capacity[machine] < held + problem.takes[line]:
                continue
            op = int(problem.first[line]) + done[place]
            after = (*done[:place], done[place] + 1, *done[place + 1 :])
            yield from extend((*word, op), after, held + int(problem.takes[line] - problem.frees[line]))

    yield from extend((), (0,) * len(lines), 0)
