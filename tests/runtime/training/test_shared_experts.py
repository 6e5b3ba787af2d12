"""Experts that peers share give the parameters of the same training on one process, to the last digits."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.target import Target
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.execution.expert_counts import ExpertCounts
from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.execution.split_backward import WeightWork
from recycle_runtime.experts.among_peers import Arrivals
from recycle_runtime.experts.exchange import Alone as OneProcess
from recycle_runtime.experts.placement import Placement
from recycle_runtime.experts.shared import SharedExperts
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.profiler import Options, profile
from recycle_runtime.program.loading import load_program
from recycle_runtime.state.ownership import Ownership
from recycle_runtime.worker.fixed_plan import FixedPlanWorker
from tests.compiler.test_sharded import sharded
from tests.runtime.training.alone import Alone, train_alone
from tests.runtime.training.compare import Failed, changed, file_of
from tests.runtime.training.example_programs import spoiled
from tests.runtime.training.test_evaluation import evaluate_in_threads
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import quick_plan, unit_job

SHARED_EXPERTS = str(Path(__file__).parent / "programs" / "shared_experts.py")
EXPERTS = 4
STEPS = 3
"""Experts are placed by what was chosen in the steps before: twice."""


def job_of(pipelines: int, slots: int, every: int = 1, *, decouple: bool, stagger: bool) -> JobSpec:
    techniques = Techniques(adaptive=True, decouple=decouple, stagger=stagger)
    job = sharded(unit_job(2, pipelines, 3, None, techniques))
    exchange = tuple(ticks // 2 for ticks in job.forward)
    return replace(job, slots=slots, placed_every=every, exchange=exchange)


def trained(
    folder: Path, job: JobSpec, failed: Failed | None = None, program: str = SHARED_EXPERTS
) -> dict[Worker, FixedPlanWorker]:
    """Workers after all steps; losses and all that they have of experts are what one process computes."""
    plan = quick_plan(Target(job, failure_set(failed or [])))
    losses, workers = train_in_threads(file_of(folder, plan), program, 0, STEPS)
    check(job, losses, workers, train_alone(program, job.stages, job.pipelines * job.microbatches, STEPS))
    return workers


def check(job: JobSpec, losses: list[float], workers: dict[Worker, FixedPlanWorker], alone: Alone) -> None:
    """Losses, and all that workers have at the end; every row of experts with as many owners as it should."""
    assert losses == pytest.approx(alone.losses, rel=1e-12, nan_ok=True)
    owned: dict[tuple[int, str, int], int] = {}
    peers = [sum(worker[1] == stage for worker in workers) for stage in range(job.stages)]
    for worker in workers.values():
        for number, chunk in worker.chunks.items():
            state = chunk.module.state_dict()
            for layer in chunk.layers:
                stacked = {each.name: each for each in layer.experts.stacked.values()}
                assert stacked.keys() == {name for name in state if ".experts." in name}
                for name, expected in alone.states[number].items():
                    if name not in stacked:
                        _equal(state[name], expected)
                        continue
                    # Slots, and no more, and rows of the shards that are owned.
                    each = stacked[name]
                    assert each.experts.resident == each.experts.exchange.here
                    assert len(state[name]) == job.slots
                    _equal(state[name], expected[list(each.experts.exchange.here)])
                    for shard, made in layer.owned.items():
                        rows = layer.shards[shard][each.number]
                        _equal(made.rows[each.number], rows.of(expected))
                        for expert in range(rows.first, rows.last):
                            owned[number, name, expert] = owned.get((number, name, expert), 0) + 1
    assert owned and all(count == min(2, peers[chunk]) for (chunk, *_), count in owned.items())


def _equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("pipelines", "slots", "decouple", "stagger", "failed"),
    [
        (2, 2, True, True, []),
        (2, 4, False, False, [(1, 0)]),
        (3, 2, True, True, [(1, 1)]),
        (3, 3, False, True, [(0, 0), (2, 1)]),
        (3, 5, True, False, []),
    ],
    ids=str,
)
def test_equal_to_one_process(
    tmp_path: Path, pipelines: int, slots: int, decouple: bool, stagger: bool, failed: Failed
) -> None:
    trained(tmp_path, job_of(pipelines, slots, decouple=decouple, stagger=stagger), failed)


@pytest.mark.parametrize("failed", [[], [(1, 1)]], ids=str)
def test_w_is_computed_while_tokens_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: Failed
) -> None:
    """Whole W, of micro-batches and of rounds that were served, in forwards and in backwards."""
    job = replace(job_of(3, 2, decouple=True, stagger=True), microbatches=6)
    computed: Counter[tuple[str, bool]] = Counter()
    run_some, run = WeightWork.run_some, WeightWork.run

    def counted(self: WeightWork, count: int) -> int:
        done = run_some(self, count)
        is_in_backward = torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]
        kind = "backward" if is_in_backward else "forward"
        computed[kind, self.is_empty] += done
        return done

    def left(self: WeightWork, *given: Any) -> None:
        computed["left", self.is_empty] += 1
        run(self, *given)

    monkeypatch.setattr(WeightWork, "run_some", counted)
    monkeypatch.setattr(WeightWork, "run", left)
    trained(tmp_path, job, failed)
    pieces = {kind: sum(n for (k, _), n in computed.items() if k == kind) for kind in ("forward", "backward")}
    assert min(pieces.values()) > 0
    # Of some W nothing is left where it stands, and all of those that no round comes after.
    assert computed["left", True] > 0 and computed["left", False] > 0


_CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint

_forward = Block.forward
Block.forward = lambda self, value: checkpoint(_forward, self, value, use_reentrant={reentrant})
"""


@pytest.mark.parametrize(
    ("reentrant", "decouple", "failed"),
    [
        (False, True, [(1, 1)]),
        (True, False, []),
        pytest.param(False, False, [], marks=pytest.mark.slow),
        pytest.param(True, True, [(1, 1)], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_blocks_are_computed_again_and_no_token_travels_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reentrant: bool, decouple: bool, failed: Failed
) -> None:
    """Tokens that have come are kept for it: as many bytes as a profile counts."""
    job = job_of(3, 3, decouple=decouple, stagger=True)
    held, keeping = list[tuple[Arrivals, int]](), ExpertCounts.keeping

    @contextmanager
    def counted(self: ExpertCounts, arrivals: Arrivals) -> Generator[None]:
        with keeping(self, arrivals):
            yield
        if all(arrivals is not each for each, _ in held):
            held.append((arrivals, sum(rows.nbytes for each in arrivals.values() for rows in each.rows)))

    monkeypatch.setattr(ExpertCounts, "keeping", counted)
    program = tmp_path / "checkpointed.py"
    source = Path(SHARED_EXPERTS).read_text(encoding="utf-8")
    program.write_text(source + _CHECKPOINTED.format(reentrant=reentrant), encoding="utf-8")
    travelled: list[int] = []
    for each in (SHARED_EXPERTS, str(program)):
        workers = trained(tmp_path, job, failed, each)
        chunks = [chunk for worker in workers.values() for chunk in worker.chunks.values()]
        exchanges: list[Any] = [layer.exchange for chunk in chunks for layer in chunk.expert_counts.layers]
        travelled.append(sum(exchange.bytes_given for exchange in exchanges))
        counts = {each.arrived_bytes for each in profile(load_program(each), Options(2, repeat=1)).stages}
        # Two mixtures, there and back: five tokens of six float64 have two experts each.
        expected = 0 if each == SHARED_EXPERTS else 2 * 2 * (5 * 2) * 6 * 8
        assert counts == {expected}
        kept = sum(count for _, count in held)
        # Those that a peer without a micro-batch has computed are not kept.
        assert kept <= len(held) * expected if failed else kept == len(held) * expected
        assert held and bool(kept) == bool(expected)
        held.clear()
    assert travelled[0] == travelled[1] > 0


_TWICE = """
Block.forward = lambda self, value: _forward(self, _forward(self, value))
_twice = Block.forward
Block.forward = lambda self, value: checkpoint(_twice, self, value, use_reentrant=False)
"""


def test_a_mixture_that_is_called_twice_in_what_is_computed_again(tmp_path: Path) -> None:
    """Tokens that came at the first call are not taken for those of the second."""
    program = tmp_path / "twice.py"
    source = Path(SHARED_EXPERTS).read_text(encoding="utf-8")
    program.write_text(source + _CHECKPOINTED.format(reentrant=False) + _TWICE, encoding="utf-8")
    with pytest.raises(StreamError, match="several times in one forward"):
        trained(tmp_path, job_of(2, 4, decouple=True, stagger=True), None, str(program))


_SPOILED = """
_build = build_stage


def build_stage(stage, stages):
    made = _build(stage, stages)
    if stage == 0:
        made[0] = First(WIDTH, WIDTH).double()
    return made
"""


@pytest.mark.parametrize("stagger", [False, True])
def test_a_skipped_step(tmp_path: Path, stagger: bool) -> None:
    """A gradient is no number on one worker: experts, their state and their places stay as they are."""
    program = changed(tmp_path, SHARED_EXPERTS, spoiled(11) + _SPOILED)
    workers = trained(tmp_path, job_of(3, 2, decouple=True, stagger=stagger), program=program)
    chunks = [chunk for worker in workers.values() for chunk in worker.chunks.values()]
    assert {chunk.stepper.progress.skipped for chunk in chunks} == {1}


class Rows:
    """For an evaluation that ends in the middle of a round: some workers have a micro-batch less."""

    count = 7

    def item(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        value = torch.randn(4, 6, dtype=torch.float64, generator=generator)
        return value, value.sin()

    def signature(self, index: int) -> str:
        return "float64[4,6]"


def test_evaluation_goes_through_shared_experts_too(tmp_path: Path) -> None:
    workers = trained(tmp_path, job_of(3, 2, decouple=False, stagger=False), [(2, 0)])
    found = evaluate_in_threads(list(workers.values()), Rows())
    program, alone = load_program(SHARED_EXPERTS), train_alone(SHARED_EXPERTS, 2, 9, STEPS)
    stages = [build_module(program, stage, 2, 0).eval() for stage in range(2)]
    for stage, state in zip(stages, alone.states, strict=True):
        stage.load_state_dict(state)
    losses: list[float] = []
    for value, target in map(Rows().item, range(Rows.count)):
        with torch.no_grad():
            losses.append(float(program.loss(stages[1](stages[0](value)), target)))
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-12)


@pytest.mark.parametrize(("pipelines", "slots", "every"), [(2, EXPERTS, 0), (3, 3, 1)])
def test_tokens_beyond_a_capacity_are_dropped_as_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipelines: int, slots: int, every: int
) -> None:
    """One that is told, in every step, how many slots each expert has."""
    program = changed(tmp_path, SHARED_EXPERTS, "CAPACITY = 1.0")
    job = job_of(pipelines, slots, every, decouple=True, stagger=True)
    placements = dict[tuple[int, int, int], Placement]()
    with monkeypatch.context() as patch:
        original = Ownership.gather

        def gather(self: Ownership) -> None:
            """Places of the next generation, as known when one begins and after a step."""
            layers = (each for layer in self.chunk.layers for each in layer.experts.layers)
            for place, each in enumerate(layers):
                found = placements.setdefault(
                    (self.chunk.number, place, self.chunk.applied), each.exchange.placement
                )
                assert found == each.exchange.placement
            original(self)

        patch.setattr(Ownership, "gather", gather)
        losses, workers = train_in_threads(file_of(tmp_path, quick_plan(Target(job, ()))), program, 0, STEPS)
    assert len({each.replicas for each in placements.values()}) > min(every, 1)
    per_step, calls = job.pipelines * job.microbatches, Counter[SharedExperts]()
    kept = train_alone(SHARED_EXPERTS, job.stages, per_step, STEPS)
    assert losses != pytest.approx(kept.losses, rel=1e-6)
    forward = SharedExperts.forward

    def told(
        self: SharedExperts, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        place = list(calls).index(self) if self in calls else len(calls)
        step = calls[self] // per_step
        self.exchange = OneProcess(placements[place // 2, place % 2, step])
        if calls[self] % per_step == 0:
            self.take_counts()
        calls[self] += 1
        return forward(self, tokens, chosen, weights)

    monkeypatch.setattr(SharedExperts, "forward", told)
    check(job, losses, workers, train_alone.__wrapped__(program, job.stages, per_step, STEPS))
    counted = [each.take_counts() for each in calls]
    dropped = sum(int(each.dropped) for each in counted if each is not None)
    told_of = [worker.session.handlers.choices for worker in workers.values()]
    assert dropped and tuple(map(sum, zip(*told_of, strict=True))) == (4 * per_step * 5 * 2, dropped)


def test_steps_that_are_clipped_late_are_made_again_in_the_places_that_they_began_in(tmp_path: Path) -> None:
    program = changed(tmp_path, SHARED_EXPERTS, "CLIP_NORM = 0.4")
    trained(tmp_path, job_of(3, 2, decouple=True, stagger=True), program=program)


@pytest.mark.parametrize("every", [0, 1])
def test_every_slot_costs_its_weights_once_wherever_its_expert_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """An owner has what it needs for its slots; all others are sent it, as often where experts never move."""
    original, sent = Ownership.gather, Counter[int]()
    placements = dict[tuple[int, int, int], Placement]()

    def gather(self: Ownership) -> None:
        before, chunk = self.bytes_given, self.chunk
        original(self)
        sent[chunk.applied] += self.bytes_given - before
        for layer in chunk.layers:
            for place, each in enumerate(layer.experts.layers):
                placements[chunk.applied, chunk.number, place] = each.exchange.placement

    monkeypatch.setattr(Ownership, "gather", gather)
    workers = trained(tmp_path, job_of(4, 1, every, decouple=True, stagger=False))
    assert sent.keys() == set(range(STEPS + 1))
    assert len(set(placements.values())) > 1 if every else len(set(placements.values())) == 1
    for step in sent:
        given = here = slots = 0
        for (peer, _), worker in workers.items():
            for number, chunk in worker.chunks.items():
                (layer,) = chunk.layers
                for place, experts in enumerate(layer.experts.layers):
                    mine = placements[step, number, place].peers[peer]
                    for each in layer.experts.stacked.values():
                        if each.experts is not experts:
                            continue
                        size = each.parameter[0].nbytes
                        rows = [layer.shards[shard][each.number] for shard in layer.owned]
                        owned = sum(row.first <= expert < row.last for expert in mine for row in rows)
                        slots, here = slots + size * len(mine), here + size * owned
                        given += size * (len(mine) - owned)
        assert (sent[step], slots) == (given, given + here)
        # As many as there are weights of experts: one replica of each.
        assert slots == 4 * 4 * 8 * (8 * 6 + 8 + 6 * 8 + 6)
